"""Whether rows that come again are those that the log has: a repeat has the same bytes, or it is none.

It is rare that rows come again, so they are compared with the log itself: nothing is kept for it. To read them may take
milliseconds, as sealed segments are unpacked. So a driver may have that done elsewhere, one repeat after another: who
sends many delays those that send some again, and nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headrace.errors import RefusedError, StorageError
from headrace.hub.publishing.publisher_numbers import Span
from headrace.log import Log
from headrace.message import Batch

Difference: TypeAlias = RefusedError | None
"""Why rows are no repeat, if they are not."""

WhenCompared: TypeAlias = Callable[[Difference], None]

Elsewhere: TypeAlias = Callable[[Callable[[], Difference], WhenCompared], None]
"""Does what it is given in a thread, and calls back on the event loop with the result, whatever happens."""


class Comparisons:
    """Compares rows with the log, one batch at a time, ``elsewhere`` or at once."""

    def __init__(self, log: Log, elsewhere: Elsewhere | None = None) -> None:
        self._log = log
        self._elsewhere = elsewhere
        self._waiting: deque[tuple[Callable[[], Difference], WhenCompared]] = deque()
        self._busy = False

    def compare(self, batch: Batch, places: Sequence[Span], done: WhenCompared) -> None:
        """Compare the first rows of a batch with those at some places; ``done`` may be called at once."""
        work = partial(_difference, self._log, batch, places)
        if self._elsewhere is None:
            done(work())
            return
        self._waiting.append((work, done))
        self._next()

    def _next(self) -> None:
        if self._elsewhere is not None and self._waiting and not self._busy:
            self._busy = True
            work, done = self._waiting.popleft()
            self._elsewhere(work, partial(self._done, done))

    def _done(self, done: WhenCompared, difference: Difference) -> None:
        self._busy = False
        try:
            done(difference)
        finally:
            self._next()


def _difference(log: Log, batch: Batch, places: Sequence[Span]) -> Difference:
    try:
        check_same(log, batch, places)
    except RefusedError as error:
        return error
    return None


def check_same(log: Log, batch: Batch, places: Sequence[Span]) -> None:
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
