"""Operations that are committed together with the next one: no commit ends with one of them.

An append may be a group, such as the rows of a Spark batch and the mark after them, that is in the log whole or not at
all. It may also be too large for one parcel, or be fetched piece by piece by a node that is behind. So a log may end
within a group, and a majority may have a part of it. These rules keep it whole:

- what is committed never ends within a group;
- a node that leaves a view first cuts off the group that its log ends in: nobody can have committed any of it, and
  whoever had it whole reports it;
- a primary that cannot finish a group leaves the view.

Which operations are tied is a property of the log, the same on every node: :attr:`headrace.message.Batch.tied`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeAlias

Spans: TypeAlias = Iterable[tuple[int, int]]
"""Ranges of operations, each of which is tied to the next."""


class TiedOps:
    """The tied operations of a log's uncommitted end."""

    def __init__(self, spans: Spans = ()) -> None:
        self._spans: list[tuple[int, int]] = []
        self.add(spans)

    def add(self, spans: Spans, after: int = 0, last: int | None = None) -> None:
        """Add ranges, in order, as far as they are after ``after`` and not past ``last``."""
        for first, end in spans:
            begin = max(first, after + 1)
            if last is not None:
                end = min(end, last)
            if begin > end:
                continue
            if self._spans and self._spans[-1][1] + 1 == begin:
                begin = self._spans.pop()[0]
            self._spans.append((begin, end))

    def whole(self, op: int) -> int:
        """Return the last operation up to ``op`` with which a commit may end.

        >>> tied = TiedOps([(3, 5), (6, 7), (9, 9)])
        >>> [tied.whole(op) for op in range(2, 11)]
        [2, 2, 2, 2, 2, 2, 8, 8, 10]
        """
        place = bisect_right(self._spans, op, key=_first) - 1
        if place < 0 or self._spans[place][1] < op:
            return op
        return self._spans[place][0] - 1

    def committed(self, op: int) -> None:
        """Forget what is committed."""
        place = bisect_right(self._spans, op, key=_first)
        if place:
            del self._spans[:place]

    def cut_back(self, last: int) -> None:
        """Forget what is after ``last``."""
        spans, self._spans = self._spans, []
        self.add(spans, last=last)


def _first(span: tuple[int, int]) -> int:
    return span[0]
