"""Cut a large file of records into parts that begin and end between two records.

Nothing in such a file says where a record begins but the record before it. So each part *guesses* where its first
record is, by looking for a place from which several plausible records follow one another, and goes on from there, by
the records' lengths alone, to the first that is the next part's. Whoever has all parts compares: a part that was
guessed right begins where the part before it ended. One that was not is gone through again from there. So the cuts are
exact, whatever the records carry, and a wrong guess costs only time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO, Final, NamedTuple, Protocol

PLAUSIBLE: Final = 8
"""Records that must follow one another from a place for it to be guessed."""


class RecordFormat(Protocol):
    """How records are laid out: a head that says how long the rest is."""

    head_bytes: int
    most: int
    """Most bytes of a record, its head included."""

    def length(self, head: bytes) -> int | None:
        """Return the bytes after a head; ``None`` for a head that no reader goes on after."""

    def plausible(self, head: bytes) -> bool:
        """Whether these bytes look like a head."""


class PartScan(NamedTuple):
    """Bytes ``begin`` to ``end`` of a file, and what was found there."""

    begin: int
    end: int
    first: int | None
    """Where the first record begins, as far as can be guessed."""
    following: int
    """Where the first record after ``end`` begins."""
    stopped: bool
    """Whether the records end here, by the end of the file or by a head that cannot be read on after."""


def scan(file: BinaryIO, form: RecordFormat, begin: int, end: int, *, first: int | None = None) -> PartScan:
    """Go through a part, from ``first`` if that is known."""
    if first is None:
        first = _guess(file, form, begin, end)
    if first is None:
        return PartScan(begin, end, None, end, False)
    at = first
    while at < end:
        file.seek(at)
        head = file.read(form.head_bytes)
        length = form.length(head) if len(head) == form.head_bytes else None
        if length is None:
            return PartScan(begin, end, first, at, True)
        at += form.head_bytes + length
    return PartScan(begin, end, first, at, False)


def join(
    first: int, parts: Iterable[PartScan], again: Callable[[PartScan, int], PartScan]
) -> list[tuple[int, int | None]]:
    """Return exact parts: where the records of each begin and end; the last may end with the file.

    ``again`` scans a part from a known beginning.
    """
    found: list[tuple[int, int | None]] = []
    at = first
    for part in parts:
        if at >= part.end:
            continue  # A record is longer than the part.
        exact = part if part.first == at else again(part, at)
        found.append((at, None if exact.stopped else exact.following))
        if exact.stopped:
            break
        at = exact.following
    return found


def _guess(file: BinaryIO, form: RecordFormat, begin: int, end: int) -> int | None:
    """Find a place in a part from which plausible records follow one another."""
    file.seek(begin)
    window = file.read(min(end - begin, form.most) + form.most)
    for place in range(min(end - begin, form.most, len(window))):
        if form.plausible(window[place : place + form.head_bytes]) and _leads_on(window, form, place):
            return begin + place
    return None


def _leads_on(window: bytes, form: RecordFormat, at: int) -> bool:
    for _ in range(PLAUSIBLE):
        head = window[at : at + form.head_bytes]
        if len(head) < form.head_bytes:
            return True  # As far as the window shows, which is at least one whole record.
        if not form.plausible(head):
            return False
        at += form.head_bytes + (form.length(head) or 0)
    return True
