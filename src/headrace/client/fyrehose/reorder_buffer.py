"""Messages that came before their turn, kept until those before them have come.

Strategy: stretches of consecutive messages as they arrived, in order of their numbers, each with its payloads
copied out of the receive buffer, which a few bytes would otherwise keep whole. Nothing is done message by message
except where an empty copy is replaced.

The room is bounded in messages and in bytes. When it is short, the newest give way: they are needed last, and can be
asked for again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from headrace.message import Run

_STRETCH_BYTES = 512
"""Bytes that a stretch costs besides its payloads: two arrays and the objects around them."""

_OFFSET_BYTES = 4

Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Messages ``first, first + 1, …``"""

    first: int
    run: Run

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.first + len(self.run) - 1

    @property
    def cost(self) -> int:
        """Bytes of memory that it takes."""
        return _cost(self.run)


class ReorderBuffer:
    """The room for early messages: at most ``max_count`` of them, in at most ``max_bytes``."""

    __slots__ = ("_hollow", "_max_bytes", "_max_count", "_stretches", "count", "size")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._stretches: list[Stretch] = []
        self._hollow: set[int] = set()
        self.count = 0
        self.size = 0

    @property
    def last(self) -> int:
        """The highest number kept; 0 if none is."""
        return self._stretches[-1].last if self._stretches else 0

    @property
    def half_empty(self) -> bool:
        """Whether there is room again, after there was none."""
        return 2 * self.count <= self._max_count and 2 * self.size <= self._max_bytes

    def add(self, first: int, run: Run) -> tuple[int, list[Range]]:
        """Keep messages none of which is kept already.

        Returns how many of them there was room for, and which newer ones gave way. There is always room for one
        message, however long, or the messages after a lost range might never arrive.
        """
        evicted: list[Stretch] = []
        while self._over(run) and self._stretches and self._stretches[-1].first > first:
            evicted += self._remove(len(self._stretches) - 1, len(self._stretches))
        fitting = len(run)
        if self._over(run):
            room = self._max_bytes - self.size - _STRETCH_BYTES
            costs = np.cumsum(run.lengths + _OFFSET_BYTES)
            fitting = min(self._max_count - self.count, int(np.searchsorted(costs, room, side="right")))
            fitting = max(fitting, 0 if self._stretches else 1)
            run = run.slice(0, fitting)
        if fitting:
            stretch = Stretch(first, _copy(run))
            self._stretches.insert(bisect_left(self._stretches, first, key=attrgetter("first")), stretch)
            self._hollow.update((np.flatnonzero(run.lengths == 0) + first).tolist())
            self.count += fitting
            self.size += stretch.cost
        return fitting, [(each.first, each.last) for each in reversed(evicted)]

    def take(self, first: int) -> Run | None:
        """Remove and return the messages that follow one another from ``first`` on."""
        end = 0
        after = first
        while end < len(self._stretches) and self._stretches[end].first == after:
            after = self._stretches[end].last + 1
            end += 1
        if not end:
            return None
        return _join([each.run for each in self._remove(0, end)])

    def prefer(self, first: int, run: Run) -> None:
        """Replace empty copies of messages that are kept already by ones that are not empty."""
        if not self._hollow:
            return
        for seq in sorted(self._hollow.intersection(range(first, first + len(run)))):
            payload = run[seq - first]
            if not payload or self.size + len(payload) > self._max_bytes:
                continue
            index = bisect_left(self._stretches, seq, key=attrgetter("last"))
            stretch = self._stretches[index]
            payloads = list(stretch.run)
            payloads[seq - stretch.first] = payload
            self._stretches[index] = Stretch(stretch.first, Run.of(payloads))
            self._hollow.discard(seq)
            self.size += len(payload)

    def find(self, first: int, last: int) -> Stretch | None:
        """Return the oldest stretch that holds any of a range."""
        index = bisect_left(self._stretches, first, key=attrgetter("last"))
        if index < len(self._stretches) and self._stretches[index].first <= last:
            return self._stretches[index]
        return None

    def _over(self, run: Run) -> bool:
        """Whether there is too little room for a run."""
        return self.count + len(run) > self._max_count or self.size + _cost(run) > self._max_bytes

    def _remove(self, begin: int, end: int) -> list[Stretch]:
        removed = self._stretches[begin:end]
        del self._stretches[begin:end]
        self.count -= sum(len(stretch.run) for stretch in removed)
        self.size -= sum(stretch.cost for stretch in removed)
        if self._hollow:
            for stretch in removed:
                self._hollow.difference_update(range(stretch.first, stretch.last + 1))
        return removed


def _cost(run: Run) -> int:
    return _STRETCH_BYTES + _OFFSET_BYTES * len(run) + run.size


def _copy(run: Run) -> Run:
    return Run(run.content.copy(), run.offsets - run.offsets[0])


def _join(runs: Sequence[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    offsets = np.zeros(sum(len(run) for run in runs) + 1, np.int32)
    np.cumsum(np.concatenate([run.lengths for run in runs]), out=offsets[1:])
    return Run(np.concatenate([run.content for run in runs]), offsets)
