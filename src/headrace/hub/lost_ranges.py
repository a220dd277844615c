"""Ranges of messages that readers found missing and skipped, by reader: a part of the hub's state.

A reader that continues past missing messages (Spark's ``failOnDataLoss=false``) may log them where nobody looks, so it
reports them to the hub, too. A range that is reported again, by a retried task or a replanned micro-batch, counts once.
Only the newest ranges of the newest readers are kept.

Entry ``reader/NAME``: payload ``{"first": n, "last": n}``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headrace.hub.sequence_ranges import Range
from headrace.hub.state import entry
from headrace.message import MAX_SEQUENCE, Batch

MAX_READERS: Final = 64
MAX_RANGES: Final = 8
"""Ranges kept per reader; more are only counted. No limit is a setting: the state must depend on the log alone."""
MAX_NAME: Final = 255
"""Characters of a reader's name."""


@dataclass(slots=True)
class _Lost:
    messages: int = 0
    ranges: list[Range] = field(default_factory=list)
    """Disjoint ranges, the one reported last at the end."""


class LostRanges:
    """The newest lost ranges of each reader."""

    name = "reader"

    def __init__(self) -> None:
        self.observer: Callable[[int, list[Range]], None] | None = None
        """Called per entry with its operation and the newly lost ranges."""
        self._readers: dict[str, _Lost] = {}

    def add(self, reader: str, first: int, last: int) -> list[Range]:
        """Add lost messages; return the ranges of them that are newly lost."""
        lost = self._readers.pop(reader, None) or _Lost()
        while len(self._readers) >= MAX_READERS:
            # Drop the reader whose last report is the oldest.
            self._readers.pop(next(iter(self._readers)))
        self._readers[reader] = lost
        fresh = _without((first, last), lost.ranges)
        # Bounded, since ranges that were forgotten may be reported and counted again.
        lost.messages = min(lost.messages + sum(end - begin + 1 for begin, end in fresh), MAX_SEQUENCE)
        near = [each for each in lost.ranges if each[0] <= last + 1 and each[1] >= first - 1]
        whole = min([first, *(each[0] for each in near)]), max([last, *(each[1] for each in near)])
        lost.ranges = [*(each for each in lost.ranges if each not in near), whole][-MAX_RANGES:]
        return fresh

    def unknown(self, reader: str, first: int, last: int) -> list[Range]:
        """Return the parts of ``first`` to ``last`` that are not known to be lost to a reader."""
        lost = self._readers.get(reader)
        return _without((first, last), lost.ranges if lost is not None else [])

    def facts(self, reader: str | None = None) -> dict[str, object]:
        """Return, for each reader or for one, the number of messages lost and the newest ranges, newest last."""
        return {
            name: {"messages": lost.messages, "ranges": [list(each) for each in lost.ranges]}
            for name, lost in self._readers.items()
            if reader in (None, name)
        }

    def apply(self, name: str, payload: bytes, _seq: int, op: int) -> None:
        """Apply a ``reader`` entry."""
        gone = msgspec.json.decode(payload, type=_Gone)
        if not 0 < len(name) <= MAX_NAME or gone.first > gone.last:
            raise msgspec.ValidationError(f"{name[:MAX_NAME]!r} cannot have lost {gone.first} to {gone.last}")
        fresh = self.add(name, gone.first, gone.last)
        if self.observer is not None:
            self.observer(op, fresh)

    def dump(self) -> bytes:
        """Return the lost ranges as a snapshot's section."""
        return msgspec.msgpack.encode(
            [(name, lost.messages, lost.ranges) for name, lost in self._readers.items()]
        )

    def load(self, section: bytes) -> None:
        """Restore the lost ranges from a snapshot."""
        loaded = msgspec.msgpack.decode(section, type=list[tuple[str, int, list[Range]]])
        self._readers = {name: _Lost(messages, ranges) for name, messages, ranges in loaded}


def lose(reader: str, first: int, last: int) -> Batch:
    """Make the log entry for messages that a reader found missing."""
    return entry(LostRanges.name, reader, msgspec.json.encode(_Gone(first, last)))


_Seq = Annotated[int, Meta(ge=1, le=MAX_SEQUENCE + 1)]


class _Gone(msgspec.Struct, frozen=True):
    first: _Seq
    last: _Seq


def _without(wanted: Range, known: list[Range]) -> list[Range]:
    """Return the parts of a range that are in none of the others.

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
