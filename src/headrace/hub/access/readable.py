"""The part of a batch that a reader may read: only those rows, or all rows with the other payloads empty."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.hub.access.principal import Action, Principal
from headrace.message import Batch, Run


def readable_rows(reader: Principal, batch: Batch, rows: list[int]) -> list[int]:
    """Return those of some rows whose topics a reader may read."""
    columns = batch.columns
    if columns is None or "topic" not in columns.schema.names:
        return rows if reader.may(Action.READ, batch.topic) else []
    seen = reader.mask(Action.READ, columns.column("topic").take(pa.array(rows, pa.int64())))
    return [row for row, passes in zip(rows, seen, strict=True) if passes]


def readable_run(batch: Batch, reader: Principal) -> Run:
    """Return a batch's payloads as a reader may see them: those of topics that it may not read are empty."""
    columns = batch.columns
    if columns is None or "topic" not in columns.schema.names:
        return (
            batch.run if reader.may(Action.READ, batch.topic) else _run(batch, np.zeros(len(batch), np.bool_))
        )
    seen = reader.mask(Action.READ, columns.column("topic"))
    return batch.run if seen.all() else _run(batch, seen)


def _run(batch: Batch, seen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Run:
    run = batch.run
    lengths = np.asarray(run.lengths)
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.where(seen, lengths, 0), out=offsets[1:])
    return Run(run.content[np.repeat(seen, lengths)], offsets)
