"""What readers found gone and passed over: ranges of the sequence, by the reader's name, for the hub's status.

A reader that is to go on where messages are missing (Spark's ``failOnDataLoss=false``) says which they were, in a log
that may be seen by nobody. So it tells the hub too. What is told twice, in a task's second try or because a micro-batch
was planned again, counts once. It is kept as little as it may be asked for: the newest ranges of the newest readers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_READERS: Final = 64
MAX_RANGES: Final = 8
"""Of one reader: more are counted, and no longer named."""

Range = tuple[int, int]


@dataclass(slots=True)
class _Lost:
    messages: int = 0
    ranges: list[Range] = field(default_factory=list)
    """None touches another; that which was told last is the last."""


class Losses:
    """The newest losses of each reader."""

    def __init__(self) -> None:
        self._readers: dict[str, _Lost] = {}

    def add(self, reader: str, first: int, last: int) -> list[Range]:
        """Messages ``first`` to ``last`` were gone; returns those of them that were not known to be."""
        lost = self._readers.pop(reader, None) or _Lost()
        while len(self._readers) >= MAX_READERS:
            # The one that has been silent for the longest.
            self._readers.pop(next(iter(self._readers)))
        self._readers[reader] = lost
        fresh = _without((first, last), lost.ranges)
        lost.messages += sum(end - begin + 1 for begin, end in fresh)
        near = [each for each in lost.ranges if each[0] <= last + 1 and each[1] >= first - 1]
        whole = min([first, *(each[0] for each in near)]), max([last, *(each[1] for each in near)])
        lost.ranges = [*(each for each in lost.ranges if each not in near), whole][-MAX_RANGES:]
        return fresh

    def facts(self, reader: str | None = None) -> dict[str, object]:
        """For each reader, or for one: how many messages, and the newest ranges, the newest last."""
        return {
            name: {"messages": lost.messages, "ranges": [list(each) for each in lost.ranges]}
            for name, lost in self._readers.items()
            if reader in (None, name)
        }


def _without(wanted: Range, known: list[Range]) -> list[Range]:
    """The parts of a range that are in none of others.

    >>> _without((1, 10), [(3, 4), (9, 20)])
    [(1, 2), (5, 8)]
    """
    left = []
    begin, end = wanted
    for first, last in sorted(known):
        if last < begin or first > end:
            continue
        if first > begin:
            left.append((begin, first - 1))
        begin = last + 1
    return [*left, (begin, end)] if begin <= end else left
