"""Log entries that are not messages: which they are, and what the backbone shows in their place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from headrace.message import NOT_A_MESSAGE, Batch, Message, Run, messages


def entries(batch: Batch) -> Iterator[Message]:
    """Return the log entries of a batch that are not messages."""
    if batch.columns is None:
        return iter(batch) if batch.origin == NOT_A_MESSAGE else iter(())
    mask = _not_messages(batch)
    return iter(()) if mask is None else messages(batch.to_arrow().filter(mask))


def backbone_run(batch: Batch) -> Run:
    """Return the payloads that the backbone delivers, in order; empty for log entries that are not messages."""
    mask = _not_messages(batch)
    if mask is None:
        return batch.run
    lengths = np.where(mask, 0, batch.run.lengths)
    offsets = np.zeros(len(batch) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    kept = np.repeat(~mask, batch.run.lengths)
    return Run(batch.run.content[kept], offsets)


def _not_messages(batch: Batch) -> npt.NDArray[np.bool_] | None:
    """Mark the entries of a batch that are not messages; ``None`` if all are messages, as nearly always."""
    if batch.columns is None or "origin" not in batch.columns.schema.names:
        return None if batch.origin != NOT_A_MESSAGE else np.ones(len(batch), np.bool_)
    found = pc.equal(batch.columns.column("origin"), NOT_A_MESSAGE)
    return found.to_numpy(zero_copy_only=False) if pc.any(found).as_py() else None
