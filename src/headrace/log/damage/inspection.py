"""Inspect every file of a log: which messages are good and which are not, for ``verify`` and ``repair``.

Opening a log stops at the first damage. An inspection continues: it names each problem, and the ranges of messages
around it that are still good. It changes nothing, so a hub may be running meanwhile. An append with a bad frame is
bad as a whole, so a good range of a tail begins and ends between appends.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.errors import DamagedError
from headrace.log import frame, snapshot
from headrace.log.files import Descriptor
from headrace.log.recovery import SEGMENT_FILE, gap_between, never_begun
from headrace.log.sealed import SealedSegment, SegmentIndex
from headrace.log.tail import HEADER_BYTES, FileHeader, fault, find_frame, walk

NOBODY: Final = UUID(int=0)
"""The unknown log of a rebuilt index."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a file; messages ``first`` to ``last`` (``None``: to the end) are in doubt."""

    path: Path
    offset: int
    first: int
    last: int | None
    reason: str
    mends: bool = False
    """Whether this is what a crash leaves: never acknowledged, and repaired when the log is opened."""

    @classmethod
    def of(cls, damage: DamagedError) -> Problem:
        """The problem that an error describes."""
        return cls(Path(damage.path), damage.offset, damage.first, damage.last, damage.reason)

    def __str__(self) -> str:
        text = str(DamagedError(str(self.path), self.offset, self.first, self.last, self.reason))
        return f"{text} (left by a crash, mended when the log is next opened)" if self.mends else text


@dataclass(frozen=True, slots=True)
class GoodRange:
    """Good messages of one file that follow one another.

    ``begin`` and ``end`` are positions in the file: bytes of a tail, record batches of a sealed segment.
    """

    path: Path
    first: int
    last: int
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class InspectedSegment:
    """One segment: its good ranges and its problems."""

    path: Path
    size: int
    first: int
    """The first sequence number, according to the file's name."""
    last: int | None
    """The last message that was here, good or not; ``first - 1`` if there was none, ``None`` if unknown."""
    uuid: UUID | None = None
    good: list[GoodRange] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    time: int = 0
    salt: int = 0
    """From the header of a tail."""
    index: SegmentIndex | None = None
    """A sealed segment's index, perhaps :attr:`rebuilt` from the Arrow file."""
    rebuilt: bool = False

    def note(self, offset: int, first: int, last: int | None, reason: str, *, mends: bool = False) -> None:
        """Add a problem."""
        self.problems.append(Problem(self.path, offset, first, last, reason, mends=mends))


def inspect(directory: Path, uuids: Collection[UUID]) -> Iterator[InspectedSegment]:
    """Read every byte of every segment, in order; a segment of a log not in ``uuids`` is a problem."""
    before: InspectedSegment | None = None
    for number in numbers(directory):
        inspected = inspect_segment(directory, number)
        if inspected is None:
            continue
        if inspected.uuid is not None and inspected.uuid not in uuids:
            named = ", ".join(map(str, uuids))
            reason = f"it is of log {inspected.uuid}, its neighbours of log {named}"
            inspected.note(0, inspected.first, inspected.last, reason)
        if before is not None:
            _settle(before, inspected)
            yield before
        before = inspected
    if before is not None:
        yield before


def log_uuids(directory: Path) -> list[UUID]:
    """The uuids that the segments' headers name, the most frequent first."""
    found: Counter[UUID] = Counter()
    for number in numbers(directory):
        path = directory / f"{number:016d}.open"
        with contextlib.suppress(DamagedError, FileNotFoundError):
            found[SegmentIndex.read(path.with_suffix(".index")).uuid] += 1
            continue
        with contextlib.suppress(DamagedError, FileNotFoundError), path.open("rb") as file:
            found[FileHeader.parse(file.read(HEADER_BYTES), path).uuid] += 1
    return [uuid for uuid, _ in found.most_common()]


def numbers(directory: Path) -> list[int]:
    """The first numbers of all segments, even if only the index is left."""
    found = (SEGMENT_FILE.fullmatch(path.name) for path in directory.iterdir())
    return sorted({int(match[1]) for match in found if match})


def inspect_segment(directory: Path, number: int) -> InspectedSegment | None:
    """Read every byte of one segment; ``None`` if it has vanished."""
    tail, sealed = directory / f"{number:016d}.open", directory / f"{number:016d}.arrow"
    while tail.exists() or sealed.exists():
        # A file that has vanished was sealed or trimmed meanwhile: try again.
        with contextlib.suppress(FileNotFoundError):
            if not sealed.exists():
                return inspect_tail(tail)
            inspected = inspect_sealed(sealed)
            # Interrupted sealing leaves both, and the tail has everything.
            return inspect_tail(tail) if inspected.problems and tail.exists() else inspected
    return None


def inspect_tail(path: Path) -> InspectedSegment:
    """Read every byte of a tail; a torn end is a recoverable problem, as if it were the last segment."""
    descriptor = Descriptor(path, os.O_RDONLY)
    fd, first = descriptor.fd, int(path.stem)
    inspected = InspectedSegment(path, os.fstat(fd).st_size, first, first - 1)
    try:
        header = FileHeader.parse(os.pread(fd, HEADER_BYTES, 0), path)
    except DamagedError as damage:
        torn = never_begun(path)
        if torn is not None:
            inspected.note(0, first, None, torn.reason, mends=True)
            return inspected
        inspected.note(0, first, None, damage.reason)
        # Every frame has the salt, and the file's name has its first number; the neighbours have the uuid.
        inspected.salt = _salt_of_first_frame(fd)
        if not inspected.salt:
            inspected.last = first - 1 if inspected.size == HEADER_BYTES else None
            return inspected
    else:
        inspected.uuid, inspected.time, inspected.salt = header.uuid, header.time, header.salt
        if header.first != first:
            _misnamed(inspected, header.first)
            return inspected
    _inspect_frames(inspected, fd)
    return inspected


def inspect_sealed(path: Path) -> InspectedSegment:
    """Read every byte of a sealed segment and its index; rebuild a lost index if the file is whole."""
    first, indexed = int(path.stem), path.with_suffix(".index")
    inspected = InspectedSegment(path, path.stat().st_size, first, None)
    try:
        index = SegmentIndex.read(indexed)
        inspected.uuid = index.uuid
    except (DamagedError, FileNotFoundError) as lost:
        reason = lost.reason if isinstance(lost, DamagedError) else "it is missing"
        inspected.problems.append(Problem(indexed, 0, first, None, reason))
        try:
            index = SegmentIndex.rebuild(path, NOBODY)
        except DamagedError as damage:
            inspected.problems.append(Problem.of(damage))
            return inspected
        inspected.rebuilt = True
    inspected.index, inspected.last = index, index.last
    if index.first != first:
        _misnamed(inspected, index.first)
        return inspected
    bad: set[int | None] = set()
    for number, found in SealedSegment(path, index).faults():
        bad.add(number)
        inspected.problems.append(Problem.of(found))
    _good_between(inspected, index, bad)
    return inspected


def inspect_snapshot(path: Path) -> snapshot.Snapshot | Problem | None:
    """Read the snapshot in a file, or the problem with it; ``None`` if it has vanished."""
    try:
        return snapshot.read(path)
    except DamagedError as damage:
        return Problem.of(damage)
    except FileNotFoundError:
        return None


def _salt_of_first_frame(fd: int) -> int:
    """Find the salt of a tail whose header is lost; 0 if its first frame is bad too."""
    salt = int.from_bytes(os.pread(fd, 4, HEADER_BYTES), "little")
    return salt if salt and next(walk(fd, salt, HEADER_BYTES), None) else 0


def _misnamed(inspected: InspectedSegment, begins: int) -> None:
    inspected.last = None
    reason = f"it begins with message {begins}, not with {inspected.first} as its name says"
    inspected.note(0, inspected.first, None, reason)


def _settle(before: InspectedSegment, after: InspectedSegment) -> None:
    """Complete a segment's problems, now that the segment after it is known."""
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


def _inspect_frames(inspected: InspectedSegment, fd: int) -> None:
    offset, following = HEADER_BYTES, inspected.first
    begin: tuple[int, int] | None = (offset, following)
    while True:
        whole = (offset, following)
        displaced: int | None = None
        for _, place in walk(fd, inspected.salt, offset):
            if place.first != following:
                displaced = place.first
                break
            offset += place.length
            following += place.messages
            if not place.flags & frame.CONTINUED:
                whole = (offset, following)
                # After damage, the first frames may belong to an append that is not whole.
                begin = begin or whole
        # An empty tail is good too: the log continues there.
        if begin and (begin < whole or begin[0] == HEADER_BYTES):
            inspected.good.append(GoodRange(inspected.path, begin[1], whole[1] - 1, begin[0], whole[0]))
        begin = None
        inspected.last = following - 1
        if displaced is not None:
            reason = f"message {displaced} stands where {following} belongs"
            inspected.note(offset, following, max(displaced - 1, following), reason)
            following = displaced
            continue
        torn = offset >= inspected.size
        reason = "an append is cut short" if torn else fault(fd, inspected.salt, offset)
        later = None if torn else find_frame(fd, inspected.salt, offset + 8)
        if later is None:
            if whole[0] < inspected.size:
                inspected.last = whole[1] - 1
                inspected.note(*whole, None, reason, mends=True)
            return
        inspected.note(offset, following, max(later.first - 1, following), reason)
        offset, following = later.at, later.first


def _good_between(inspected: InspectedSegment, index: SegmentIndex, bad: set[int | None]) -> None:
    """Add the runs of good record batches."""
    begin: int | None = None
    for number, entry in enumerate([*index.entries, None]):
        if entry is not None and number not in bad:
            begin = number if begin is None else begin
        elif begin is not None:
            first, final = int(index.entries[begin]["first"]), index.entries[number - 1]
            last = int(final["first"]) + int(final["count"]) - 1
            inspected.good.append(GoodRange(inspected.path, first, last, begin, number))
            begin = None
