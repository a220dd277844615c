"""What every file of a log holds, good and bad: the common ground of ``verify`` and ``repair``.

Opening a log stops at the first damage. A survey goes on behind it: it names each problem, and says which messages
around it are still good, as **stretches**. It changes nothing, so a hub may be running meanwhile.

An append whose frames are not all good is not whole, so a stretch of a tail begins and ends between appends.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.errors import DamagedError
from headrace.log import frame, snapshot
from headrace.log.files import Descriptor
from headrace.log.recovery import gap_between, never_begun
from headrace.log.sealed import Index, SealedSegment
from headrace.log.tail import HEADER_BYTES, FileHeader, fault, find_frame, walk

SEGMENT: Final = re.compile(r"(\d{16})\.(open|arrow|index)")

NOBODY: Final = UUID(int=0)
"""Stands for the log of an index that was rebuilt: the file itself cannot tell whose it is now."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written; ``first`` to ``last`` (``None``: to the end) are in doubt."""

    path: Path
    offset: int
    first: int
    last: int | None
    reason: str
    mends: bool = False
    """A crash leaves such things: nobody was told of the messages, and opening the log mends it."""

    @classmethod
    def of(cls, damage: DamagedError) -> Problem:
        """What an error tells."""
        return cls(Path(damage.path), damage.offset, damage.first, damage.last, damage.reason)

    def __str__(self) -> str:
        text = str(DamagedError(str(self.path), self.offset, self.first, self.last, self.reason))
        return f"{text} (left by a crash, mended when the log is next opened)" if self.mends else text


@dataclass(frozen=True, slots=True)
class Stretch:
    """Good messages of one file that follow one another.

    ``begin`` and ``end`` are where they lie: bytes of a tail, record batches of a sealed segment.
    """

    path: Path
    first: int
    last: int
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class Surveyed:
    """One segment: what is good in it and what is not."""

    path: Path
    size: int
    first: int
    """The sequence number that the file's name says it begins with."""
    last: int | None
    """The last message that was here, good or not; ``first - 1`` when there was none, ``None`` when nobody knows."""
    uuid: UUID | None = None
    stretches: list[Stretch] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    time: int = 0
    salt: int = 0
    """What the header of a tail says."""
    index: Index | None = None
    """A sealed segment's; rebuilt from the Arrow file where :attr:`rebuilt` says so."""
    rebuilt: bool = False

    def note(self, offset: int, first: int, last: int | None, reason: str, *, mends: bool = False) -> None:
        """Add a problem."""
        self.problems.append(Problem(self.path, offset, first, last, reason, mends=mends))


def survey(directory: Path, uuids: Collection[UUID]) -> Iterator[Surveyed]:
    """Every segment in order, read byte by byte; those of other logs than ``uuids`` say so."""
    before: Surveyed | None = None
    for number in numbers(directory):
        surveyed = survey_segment(directory, number)
        if surveyed is None:
            continue
        if surveyed.uuid is not None and surveyed.uuid not in uuids:
            named = ", ".join(map(str, uuids))
            surveyed.note(
                0,
                surveyed.first,
                surveyed.last,
                f"it is of log {surveyed.uuid}, its neighbours of log {named}",
            )
        if before is not None:
            _settle(before, surveyed)
            yield before
        before = surveyed
    if before is not None:
        yield before


def log_uuids(directory: Path) -> list[UUID]:
    """The uuids that the segments' headers name, the most frequent first."""
    found: Counter[UUID] = Counter()
    for number in numbers(directory):
        path = directory / f"{number:016d}.open"
        with contextlib.suppress(DamagedError, FileNotFoundError):
            found[Index.read(path.with_suffix(".index")).uuid] += 1
            continue
        with contextlib.suppress(DamagedError, FileNotFoundError), path.open("rb") as file:
            found[FileHeader.parse(file.read(HEADER_BYTES), path).uuid] += 1
    return [uuid for uuid, _ in found.most_common()]


def numbers(directory: Path) -> list[int]:
    """The numbers of the segments that are there, or leave an index behind."""
    found = (SEGMENT.fullmatch(path.name) for path in directory.iterdir())
    return sorted({int(match[1]) for match in found if match})


def survey_segment(directory: Path, number: int) -> Surveyed | None:
    """Read every byte of one segment; ``None`` if it is not there (any more)."""
    tail, sealed = directory / f"{number:016d}.open", directory / f"{number:016d}.arrow"
    while tail.exists() or sealed.exists():
        # A file that is gone when we come to it was sealed or trimmed meanwhile: look what is there now.
        with contextlib.suppress(FileNotFoundError):
            if not sealed.exists():
                return survey_tail(tail)
            surveyed = survey_sealed(sealed)
            # Sealing that a crash interrupted leaves both, and the tail has everything.
            return survey_tail(tail) if surveyed.problems and tail.exists() else surveyed
    return None


def survey_tail(path: Path) -> Surveyed:
    """Read every byte of a tail. A torn end is a problem that mends, as if no segment followed."""
    descriptor = Descriptor(path, os.O_RDONLY)
    fd, first = descriptor.fd, int(path.stem)
    surveyed = Surveyed(path, os.fstat(fd).st_size, first, first - 1)
    try:
        header = FileHeader.parse(os.pread(fd, HEADER_BYTES, 0), path)
    except DamagedError as damage:
        torn = never_begun(path)
        if torn is not None:
            surveyed.note(0, first, None, torn.reason, mends=True)
            return surveyed
        surveyed.note(0, first, None, damage.reason)
        # Every frame has the salt, and the file's name its first number; the uuid is the neighbours'.
        surveyed.salt = _salt_of_first_frame(fd)
        if not surveyed.salt:
            surveyed.last = first - 1 if surveyed.size == HEADER_BYTES else None
            return surveyed
    else:
        surveyed.uuid, surveyed.time, surveyed.salt = header.uuid, header.time, header.salt
        if header.first != first:
            _misnamed(surveyed, header.first)
            return surveyed
    _survey_frames(surveyed, fd)
    return surveyed


def survey_sealed(path: Path) -> Surveyed:
    """Read every byte of a sealed segment and its index; rebuild the index if it is lost and the file is whole."""
    first, indexed = int(path.stem), path.with_suffix(".index")
    surveyed = Surveyed(path, path.stat().st_size, first, None)
    try:
        index = Index.read(indexed)
        surveyed.uuid = index.uuid
    except (DamagedError, FileNotFoundError) as lost:
        reason = lost.reason if isinstance(lost, DamagedError) else "it is missing"
        surveyed.problems.append(Problem(indexed, 0, first, None, reason))
        try:
            index = Index.rebuild(path, NOBODY)
        except DamagedError as damage:
            surveyed.problems.append(Problem.of(damage))
            return surveyed
        surveyed.rebuilt = True
    surveyed.index, surveyed.last = index, index.last
    if index.first != first:
        _misnamed(surveyed, index.first)
        return surveyed
    bad: set[int | None] = set()
    for number, found in SealedSegment(path, index).faults():
        bad.add(number)
        surveyed.problems.append(Problem.of(found))
    _stretches_between(surveyed, index, bad)
    return surveyed


def survey_snapshot(path: Path) -> snapshot.Snapshot | Problem | None:
    """The snapshot in a file, or what is wrong with it; ``None`` if it is not there (any more)."""
    try:
        return snapshot.read(path)
    except DamagedError as damage:
        return Problem.of(damage)
    except FileNotFoundError:
        return None


def _salt_of_first_frame(fd: int) -> int:
    """The salt of a tail whose header does not tell, 0 if its first frame does not either."""
    salt = int.from_bytes(os.pread(fd, 4, HEADER_BYTES), "little")
    return salt if salt and next(walk(fd, salt, HEADER_BYTES), None) else 0


def _misnamed(surveyed: Surveyed, begins: int) -> None:
    surveyed.last = None
    reason = f"it begins with message {begins}, not with {surveyed.first} as its name says"
    surveyed.note(0, surveyed.first, None, reason)


def _settle(before: Surveyed, after: Surveyed) -> None:
    """Judge a segment by the one that follows it."""
    # Only the last tail may have a torn end, and only the last may lack a header.
    before.problems = [
        replace(problem, last=max(after.first - 1, problem.first), mends=False) if problem.mends else problem
        for problem in before.problems
    ]
    if before.last is None:
        before.last = after.first - 1
    gap = gap_between(before.last, after.first)
    if gap is not None:
        after.note(0, *gap)


def _survey_frames(surveyed: Surveyed, fd: int) -> None:
    offset, following = HEADER_BYTES, surveyed.first
    begin: tuple[int, int] | None = (offset, following)
    while True:
        whole = (offset, following)
        displaced: int | None = None
        for _, place in walk(fd, surveyed.salt, offset):
            if place.first != following:
                displaced = place.first
                break
            offset += place.length
            following += place.messages
            if not place.flags & frame.CONTINUED:
                whole = (offset, following)
                # Behind damage, the first frames may belong to an append that is not all there.
                begin = begin or whole
        # An empty tail is good too: it says where the log goes on.
        if begin and (begin < whole or begin[0] == HEADER_BYTES):
            surveyed.stretches.append(Stretch(surveyed.path, begin[1], whole[1] - 1, begin[0], whole[0]))
        begin = None
        surveyed.last = following - 1
        if displaced is not None:
            reason = f"message {displaced} stands where {following} belongs"
            surveyed.note(offset, following, max(displaced - 1, following), reason)
            following = displaced
            continue
        torn = offset >= surveyed.size
        reason = "an append is cut short" if torn else fault(fd, surveyed.salt, offset)
        later = None if torn else find_frame(fd, surveyed.salt, offset + 8)
        if later is None:
            if whole[0] < surveyed.size:
                surveyed.last = whole[1] - 1
                surveyed.note(*whole, None, reason, mends=True)
            return
        surveyed.note(offset, following, max(later.first - 1, following), reason)
        offset, following = later.at, later.first


def _stretches_between(surveyed: Surveyed, index: Index, bad: set[int | None]) -> None:
    """The runs of good record batches."""
    begin: int | None = None
    for number, entry in enumerate([*index.entries, None]):
        if entry is not None and number not in bad:
            begin = number if begin is None else begin
        elif begin is not None:
            first, final = int(index.entries[begin]["first"]), index.entries[number - 1]
            last = int(final["first"]) + int(final["count"]) - 1
            surveyed.stretches.append(Stretch(surveyed.path, first, last, begin, number))
            begin = None
