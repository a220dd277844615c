"""Whether rows that come again are those that the log has: a repeat has the same bytes, or it is none.

It is rare that rows come again, so they are compared with the log itself: nothing is kept for it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import RefusedError, StorageError
from headrace.hub.publishing.publisher_numbers import Span
from headrace.log import Log
from headrace.message import Batch


def check_same(log: Log, batch: Batch, places: list[Span]) -> None:
    """Raise unless the first rows of ``batch`` are in the log at these places."""
    for place in places:
        number, seq = place.number, place.seq
        while number < place.end:
            try:
                rows = log.read(seq, place.seq + place.end - 1 - place.number)
            except StorageError as error:
                # Retention has removed them, or they cannot be read.
                raise _not_known(batch, number, seq, str(error)) from error
            if not rows:
                raise _not_known(batch, number, seq, f"the log ends at message {log.head}")
            for kept in rows:
                begin = number - (batch.number or 0)
                if not same_rows(batch.slice(begin, begin + len(kept)), kept):
                    raise RefusedError(
                        "conflict",
                        f"number {number} of publisher {batch.publisher!r} is in the log already with other content, "
                        f"from message {seq} on: somebody else publishes under this name. Give each its own name, or "
                        "open it: then the older one is told",
                    )
                number += len(kept)
                seq += len(kept)


def _not_known(batch: Batch, number: int, seq: int, reason: str) -> RefusedError:
    return RefusedError(
        "unknown",
        f"number {number} of publisher {batch.publisher!r} is in the log as message {seq}, but what it was is not "
        f"known any more ({reason}): whether this is the same cannot be told",
    )


def same_rows(one: Batch, other: Batch) -> bool:
    """Whether two batches have the same payloads, topics, attributes and numbers."""
    if one.run != other.run:
        return False
    if one.columns is None and other.columns is None:
        return one.topic == other.topic
    rows, others = one.to_arrow(), other.to_arrow()
    return (
        bool(rows.column("topic").equals(others.column("topic")))
        and _same_maps(rows.column("attributes"), others.column("attributes"))
        and _same_maps(rows.column("numbers"), others.column("numbers"))
    )


def _same_maps(one: pa.MapArray, other: pa.MapArray) -> bool:
    # Taken anew, so that neither has anything before its first or after its last entry.
    every = pa.array(np.arange(len(one)))
    one, other = one.take(every), other.take(every)
    if not one.offsets.equals(other.offsets) or not one.keys.equals(other.keys):
        return False
    items, others = one.items, other.items
    if items.type == pa.float64():
        # Bit by bit: what is no number is equal to itself here.
        items, others = items.view(pa.int64()), others.view(pa.int64())
    return bool(items.equals(others))
