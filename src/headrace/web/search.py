"""Searches of the log for people: bounded, in short steps, so that they may be many.

A :class:`Search` is a number of steps, each a bounded amount of work for a thread. Between two of them other readers
have their turn, and a search whose client has gone is not continued. All of its steps together are bounded too: the
result has the range that was searched, so that the next search can continue there. What the log's index of topics rules
out costs next to nothing, so a search for a rare topic covers a long range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from headrace.hub.filtered_read import read_passing
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.message import Message, messages

STEP_BYTES: Final = 1 << 20
"""Bytes of messages that a step reads, about."""

MOST_BYTES: Final = 256 << 20
"""Bytes that one search reads, about: some hundred thousand messages, or as many as the index skips."""

ROOM: Final = 16 << 20
"""Memory of the rows that a step compares."""

_FIRST_LOOK: Final = 1_000
_LONGEST_LOOK: Final = 1 << 20
"""Messages that a search backwards looks through at a time: first a few, then more and more."""


class Search:
    """A search of a range for ``count`` messages that pass a filter; call :meth:`step` until that returns ``True``."""

    def __init__(self, log: Log, wanted: Filter, first: int, last: int, count: int) -> None:
        self.first = max(first, log.first)
        self.last = min(last, log.head)
        """The range, then that part of it that was searched."""
        self.found: list[Message] = []
        self._log = log
        self._wanted = wanted
        self._count = count
        self._cost = 0
        self.at = self.first
        """The oldest message that the next step may read."""
        self._steps = self._run()

    def step(self) -> bool:
        """Do one step, in a thread; return whether it was the last."""
        return next(self._steps, None) is None

    def _run(self) -> Iterator[bool]:
        """Search, and yield after each step."""
        raise NotImplementedError

    def _passing(self, first: int, last: int) -> Iterator[tuple[list[pa.RecordBatch], int]]:
        """Yield the rows of a range that pass, step by step, each time with the last number that was looked at."""
        while first <= last:
            rows, upto, cost = read_passing(self._log, first, last, self._wanted, STEP_BYTES, ROOM)
            self._cost += cost
            first = upto + 1
            yield rows, upto


class SearchForward(Search):
    """A search for the first messages of a range."""

    def _run(self) -> Iterator[bool]:
        upto = self.first - 1
        for rows, upto in self._passing(self.first, self.last):
            for batch in rows:
                self.found += messages(batch.slice(0, self._count - len(self.found)))
            if len(self.found) >= self._count:
                upto = self.found[-1].seq
                break
            if self._cost >= MOST_BYTES:
                break
            self.at = upto + 1
            yield True
        self.last = min(upto, self.last)


class SearchBackward(Search):
    """A search for the last messages of a range: through parts of it, the last of them first."""

    def __init__(self, log: Log, wanted: Filter, first: int, last: int, count: int) -> None:
        super().__init__(log, wanted, first, last, count)
        self.at = max(self.first, self.last + 1 - _FIRST_LOOK)

    def _run(self) -> Iterator[bool]:
        begin, width = self.last + 1, _FIRST_LOOK
        while begin > self.first and len(self.found) < self._count and self._cost < MOST_BYTES:
            begin, end = max(self.first, begin - width), begin - 1
            rows: list[pa.RecordBatch] = []
            self.at = max(self.first, begin - _LONGEST_LOOK)
            for passing, _ in self._passing(begin, end):
                rows = _last_rows([*rows, *passing], self._count - len(self.found))
                yield True
            self.found = [message for batch in rows for message in messages(batch)] + self.found
            # A part is searched to its end, so it must not have more than there are bytes for.
            each = self._cost / (self.last - begin + 1)
            width = min(width * 4, _LONGEST_LOOK, max(int((MOST_BYTES - self._cost) / each), 1))
        self.first = self.found[0].seq if len(self.found) >= self._count else begin


def _last_rows(batches: list[pa.RecordBatch], count: int) -> list[pa.RecordBatch]:
    kept: list[pa.RecordBatch] = []
    for rows in reversed(batches):
        if not count:
            break
        last = rows.slice(max(rows.num_rows - count, 0))
        count -= last.num_rows
        kept.insert(0, last)
    return kept
