"""A bounded queue of sequence ranges, which are disjoint and in order; overlapping and adjoining ones are merged."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""First and last sequence number, both included."""

first_of = itemgetter(0)
last_of = itemgetter(1)


class Ranges:
    """At most ``limit`` ranges, lowest first."""

    __slots__ = ("_limit", "_ranges")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ranges: list[Range] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def add(self, first: int, last: int) -> bool:
        """Queue a range; return ``False`` if it touches no queued range and there is no room for another one.

        >>> ranges = Ranges(2)
        >>> ranges.add(1, 3), ranges.add(9, 9), ranges.add(4, 6), ranges.add(20, 30)
        (True, True, True, False)
        >>> list(ranges)
        [(1, 6), (9, 9)]
        """
        begin = bisect_left(self._ranges, first - 1, key=last_of)
        end = bisect_right(self._ranges, last + 1, key=first_of)
        if begin == end and len(self._ranges) >= self._limit:
            return False
        if begin < end:
            first = min(first, self._ranges[begin][0])
            last = max(last, self._ranges[end - 1][1])
        self._ranges[begin:end] = [(first, last)]
        return True

    def take(self, most: int) -> Range:
        """Remove and return the lowest range, or its first ``most`` numbers; there must be one."""
        first, last = self._ranges[0]
        cut = first + most - 1
        if cut < last:
            self._ranges[0] = (cut + 1, last)
            return first, cut
        del self._ranges[0]
        return first, last

    def cut_below(self, first: int) -> list[Range]:
        """Remove and return everything below ``first``."""
        removed: list[Range] = []
        while self._ranges and self._ranges[0][0] < first:
            begin, end = self._ranges.pop(0)
            removed.append((begin, min(end, first - 1)))
            if end >= first:
                self._ranges.insert(0, (first, end))
        return removed
