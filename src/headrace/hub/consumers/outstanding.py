"""Pieces: ranges of numbers that are not done yet, each in one state, cut as members acknowledge parts of them.

A piece knows which of its numbers **match** the consumer's filter. Numbers that do not match are done together with the
match before them, so that acknowledging the matches one by one leaves no holes.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.hub.sequence_ranges import Range, first_of, last_of

NOBODY: Final = -1


class Matches:
    """The matching numbers of a piece; shared by the pieces it is cut into."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: list[Range]) -> None:
        self._ranges = ranges

    def after(self, seq: int) -> int:
        """Find the next match after a number."""
        index = bisect_right(self._ranges, seq, key=last_of)
        return max(self._ranges[index][0], seq + 1) if index < len(self._ranges) else sys.maxsize

    def count(self, first: int, last: int) -> int:
        """Count the matches in a range."""
        return count(self.within(first, last))

    def within(self, first: int, last: int) -> list[Range]:
        """Return the matches in a range."""
        return clip(self._ranges, first, last)

    def joined(self, last: int, ranges: list[Range]) -> Matches:
        """Join the matches up to ``last`` with ranges after it."""
        if self._ranges[-1][1] > last:
            return Matches(clip(self._ranges, 1, last) + ranges)
        # The pieces that share this list end before the ranges that are added.
        self._ranges += ranges
        return self


class Piece(NamedTuple):
    """Numbers in one state; ``tries`` counts how often they were handed out."""

    first: int
    last: int
    tries: int = 0
    member: int = NOBODY
    """The member that has it; nobody while it waits or is doomed."""
    deadline: float = inf
    """Finite while it is in flight."""
    matches: Matches | None = None
    """The matches when it was last sent; ``None`` if all matched, or if it was never sent."""

    @property
    def size(self) -> int:
        """Count of its numbers."""
        return self.last - self.first + 1

    @property
    def in_flight(self) -> bool:
        """Whether a member has it and its ack timer runs."""
        return self.deadline != inf

    @property
    def messages(self) -> int:
        """Count of its matches; of a piece that was never sent, of its numbers."""
        return self.size if self.matches is None else self.matches.count(self.first, self.last)

    @property
    def counted(self) -> bool:
        """Whether it is known which of its numbers match: it was sent once, or its matches were kept."""
        read = self.tries if self.in_flight or self.member == NOBODY else self.tries - 1
        return read > 0 or self.matches is not None

    @property
    def matching(self) -> list[Range]:
        """Its matches, as ranges."""
        whole = [(self.first, self.last)]
        return whole if self.matches is None else self.matches.within(self.first, self.last)

    def reach(self, last: int) -> int:
        """Find where a cut at ``last`` ends: numbers that do not match stay with the match before them."""
        if last >= self.last:
            return self.last
        return last if self.matches is None else min(self.last, self.matches.after(last) - 1)

    def joined(self, last: int, matching: list[Range]) -> Piece:
        """Extend the piece up to ``last``; of the added numbers, these match."""
        if self.matches is None and matching == [(self.last + 1, last)]:
            return self._replace(last=last)
        matches = Matches([(self.first, self.last)]) if self.matches is None else self.matches
        return self._replace(last=last, matches=matches.joined(self.last, matching))


class Pieces:
    """Disjoint pieces, lowest first."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    def add(self, piece: Piece) -> None:
        """Add a piece that overlaps none."""
        insort(self._pieces, piece, key=first_of)

    def pop(self) -> Piece:
        """Remove and return the lowest piece; there must be one."""
        return self._pieces.pop(0)

    def pop_before(self, first: int) -> Piece | None:
        """Remove and return the piece that ends right before a number, if there is one."""
        index = bisect_left(self._pieces, first - 1, key=last_of)
        if index < len(self._pieces) and self._pieces[index].last == first - 1:
            return self._pieces.pop(index)
        return None

    def coalesce(self) -> None:
        """Join adjacent pieces; the fewest tries count."""
        joined: list[Piece] = []
        for piece in self._pieces:
            if joined and joined[-1].last + 1 == piece.first:
                before = joined[-1]
                tries = min(before.tries, piece.tries)
                matches = None
                if before.counted and piece.counted:
                    matches = Matches(before.matching + piece.matching)
                joined[-1] = Piece(before.first, piece.last, tries, matches=matches)
            else:
                joined.append(piece)
        self._pieces = joined

    def tears(self, first: int, last: int) -> bool:
        """Whether carving out a range would split a piece in two."""
        index = bisect_left(self._pieces, first, key=last_of)
        if index == len(self._pieces):
            return False
        piece = self._pieces[index]
        return piece.first < first and piece.reach(last) < piece.last

    def carve(self, first: int, last: int, wanted: Callable[[Piece], bool] | None = None) -> list[Piece]:
        """Cut a range out of the pieces, or of the wanted ones, and return it as pieces."""
        begin = bisect_left(self._pieces, first, key=last_of)
        end = bisect_right(self._pieces, last, key=first_of)
        carved: list[Piece] = []
        kept: list[Piece] = []
        for piece in self._pieces[begin:end]:
            if wanted is not None and not wanted(piece):
                kept.append(piece)
                continue
            cut_first, cut_last = max(first, piece.first), piece.reach(last)
            if cut_first > piece.first:
                kept.append(piece._replace(last=cut_first - 1))
            if cut_last < piece.last:
                kept.append(piece._replace(first=cut_last + 1))
            carved.append(piece._replace(first=cut_first, last=cut_last))
        self._pieces[begin:end] = kept
        return carved


def clip(ranges: Sequence[Range], first: int, last: int) -> list[Range]:
    """Clip ascending ranges to those between two numbers.

    >>> clip([(1, 3), (5, 6), (9, 12)], 2, 10)
    [(2, 3), (5, 6), (9, 10)]
    """
    begin = bisect_left(ranges, first, key=last_of)
    end = bisect_right(ranges, last, key=first_of)
    return [(max(first, start), min(last, until)) for start, until in ranges[begin:end]]


def count(ranges: Iterable[Range]) -> int:
    """Count the numbers of some ranges."""
    return sum(last - first + 1 for first, last in ranges)


def spans(seqs: npt.NDArray[np.int64]) -> list[Range]:
    """Make ranges of ascending numbers.

    >>> spans(np.array([1, 2, 3, 7, 9, 10]))
    [(1, 3), (7, 7), (9, 10)]
    """
    if not len(seqs):
        return []
    breaks = np.flatnonzero(np.diff(seqs) != 1)
    firsts = seqs[np.concatenate(([0], breaks + 1))]
    lasts = seqs[np.concatenate((breaks, [len(seqs) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
