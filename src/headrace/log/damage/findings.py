"""The findings of an inspection: a segment's problems, and the ranges that are still good.

:mod:`~headrace.log.damage.inspection` makes them; ``verify`` reports the problems, and a repair keeps the good ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from headrace.errors import DamagedError
from headrace.log.sealed.index import SegmentIndex


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a file; messages ``first`` to ``last`` (``None``: to the end) are in doubt.

    If ``last`` is before ``first``, only entries of the log are in doubt, which stand after message ``last``.
    """

    path: Path
    offset: int
    first: int
    last: int | None
    reason: str
    mends: bool = False
    """Whether a crash left this: nothing in it was acknowledged, and opening the log repairs it."""
    harmless: bool = False
    """Whether no message or entry is in doubt."""

    @classmethod
    def of(cls, damage: DamagedError) -> Problem:
        """The problem that an error describes."""
        return cls(Path(damage.path), damage.offset, damage.first, damage.last, damage.reason)

    def __str__(self) -> str:
        if self.harmless:
            return f"{self.path}: {self.reason}; no message is in doubt: the hub does not use this file and rewrites it"
        text = str(DamagedError(str(self.path), self.offset, self.first, self.last, self.reason))
        return f"{text} (left by a crash; repaired when the log is next opened)" if self.mends else text


@dataclass(frozen=True, slots=True)
class GoodRange:
    """Good operations of one file that follow one another, and their messages, if there are any.

    ``begin`` and ``end`` are positions in the file: bytes of a tail, record batches of a sealed segment.
    """

    path: Path
    first_op: int
    last_op: int
    first: int
    last: int
    begin: int
    end: int
    entries_lost: bool = False
    """Whether only its messages are good. Then the entries' places are known only for a whole segment."""


@dataclass(slots=True, eq=False)
class InspectedSegment:
    """One segment: its good ranges and its problems."""

    path: Path
    size: int
    first_op: int
    """The first operation, according to the file's name."""
    last_op: int | None
    """The last operation that was here, good or not; ``first_op - 1`` if there was none, ``None`` if unknown."""
    first: int
    """The first message, or the next one if there is none; guessed from the segment before if it is unreadable."""
    last: int | None
    """The last message that was here; ``first - 1`` if there was none, ``None`` if unknown."""
    uuid: UUID | None = None
    good: list[GoodRange] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    gap: Problem | None = None
    """What is missing or doubled between the segment before and this one."""
    time: int = 0
    salt: int = 0
    """The salt in a tail's header."""
    index: SegmentIndex | None = None
    """A sealed segment's index, perhaps :attr:`rebuilt` from the Arrow file."""
    rebuilt: bool = False
    marked: bool = False
    """Whether the index says that an earlier repair has lost its entries."""
    stray_entries: bool = False
    """Whether there is a file of entries that the index does not mention."""
    topics: Problem | None = None
    """The fault of the index of topics, if any; it is not used then."""

    def note(self, offset: int, first: int, last: int | None, reason: str, *, mends: bool = False) -> None:
        """Add a problem of this segment's file."""
        self.problems.append(Problem(self.path, offset, first, last, reason, mends=mends))

    def all_problems(self) -> list[Problem]:
        """Its problems, and the gap before it."""
        return [*self.problems, *(each for each in (self.gap, self.topics) if each is not None)]

    def needs_state(self) -> tuple[int, int]:
        """Return the operation, and its newest message, up to which a snapshot must replace entries lost earlier."""
        return (self.index.last_op, self.index.last) if self.marked and self.index is not None else (0, 0)
