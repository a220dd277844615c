"""Compares rows that come again with those in the log: a repeat has the same bytes.

Repeats are rare, so rows are compared with the log itself and nothing is kept for it. Reading them may take
milliseconds, since sealed segments are unpacked. So a driver may do that elsewhere, one repeat after another: a client
that sends many repeats delays other repeats, but nothing else.
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
"""The reason why rows are not a repeat; ``None`` if they are."""

WhenCompared: TypeAlias = Callable[[Difference], None]

Elsewhere: TypeAlias = Callable[[Callable[[], Difference], WhenCompared], None]
"""Runs a function in a thread, and always calls back on the event loop with the result."""


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
    """Raise an error unless the first rows of ``batch`` are in the log at these places."""
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
                        f"from message {seq} on: somebody else publishes under this name. Give each publisher its own "
                        "name, or open the name, so that the older publisher is refused",
                    )
                number += len(kept)
                seq += len(kept)


def _not_known(batch: Batch, number: int, seq: int, reason: str) -> RefusedError:
    return RefusedError(
        "unknown",
        f"number {number} of publisher {batch.publisher!r} is in the log as message {seq}, which cannot be read "
        f"({reason}), so it is not known whether this is the same",
    )


def same_rows(one: Batch, other: Batch) -> bool:
    """Return whether two batches have the same payloads, topics, attributes and numbers."""
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
    # Copies have nothing before their first or after their last entry.
    every = pa.array(np.arange(len(one)))
    one, other = one.take(every), other.take(every)
    if not one.offsets.equals(other.offsets) or not one.keys.equals(other.keys):
        return False
    items, others = one.items, other.items
    if items.type == pa.float64():
        # Compare bits: NaN is equal to itself here.
        items, others = items.view(pa.int64()), others.view(pa.int64())
    return bool(items.equals(others))
