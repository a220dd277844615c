"""Inspect every file of a log: which messages and entries are good and which are not, for ``verify`` and ``repair``.

Opening a log stops at the first damage. An inspection continues: it names each problem, and the ranges of operations
around it that are still good. It changes nothing, so a hub may be running meanwhile. An append that has lost messages
is bad as a whole, so a good range of a tail begins and ends between appends, or where nothing but entries is lost.

Files are named by operations, but reports speak of messages. If a file no longer tells its first message, the file
before it does.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import DamagedError
from headrace.log import frame, watermark
from headrace.log.damage.findings import GoodRange, InspectedSegment, Problem
from headrace.log.files import Descriptor
from headrace.log.frame_file import HEADER_BYTES, FileHeader, FrameRows, fault, find_frame, misplaced, walk
from headrace.log.recovery import SEGMENT_FILE, gap_between, never_begun
from headrace.log.sealed.index import ENTRIES_LOST, SegmentIndex
from headrace.log.sealed.segment import SealedSegment
from headrace.log.snapshots import snapshot

NOBODY: Final = UUID(int=0)
"""The unknown log of a rebuilt index."""


def inspect(directory: Path, uuids: Collection[UUID]) -> Iterator[InspectedSegment]:
    """Read every byte of every segment, in order; a segment of a log not in ``uuids`` is a problem."""
    before: InspectedSegment | None = None
    mark = watermark.read(directory)
    for number in numbers(directory):
        inspected = inspect_segment(directory, number, _following(before), uuids, mark)
        if inspected is None:
            continue
        if inspected.uuid is not None and inspected.uuid not in uuids:
            named = ", ".join(map(str, uuids))
            reason = f"it belongs to log {inspected.uuid}, its neighbours to log {named}"
            inspected.note(0, inspected.first, inspected.last, reason)
            # Its place among the others means nothing.
            yield inspected
            continue
        if before is not None:
            if _ends_log(before, inspected, mark):
                break
            _settle(before, inspected)
            yield before
        before = inspected
    if before is not None:
        if before.rebuilt and before.last_op is not None:
            # No later segment shows whether entries were lost with the index, so they count as lost.
            _settle_entries(before, before.last_op, "it is missing, if there was one")
        yield before


def log_uuids(directory: Path) -> list[UUID]:
    """Return the uuids that the segments' headers name, the most frequent first."""
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
    """Return the first operations of all segments, even if only the index or the entries are left."""
    found = (SEGMENT_FILE.fullmatch(path.name) for path in directory.iterdir())
    return sorted({int(match[1]) for match in found if match})


def inspect_segment(
    directory: Path,
    number: int,
    first: int = 1,
    uuids: Collection[UUID] = (),
    mark: tuple[UUID, int] | None = None,
) -> InspectedSegment | None:
    """Read every byte of one segment; ``None`` if it has vanished.

    ``first`` is its first message, if its files do not tell. Its files may have any of ``uuids``. ``mark`` is the log's
    watermark.
    """
    tail, sealed = directory / f"{number:016d}.open", directory / f"{number:016d}.arrow"
    while tail.exists() or sealed.exists():
        # A file that has vanished was sealed or trimmed meanwhile: try again.
        with contextlib.suppress(FileNotFoundError):
            if not sealed.exists():
                return inspect_tail(tail, first, mark)
            inspected = inspect_sealed(sealed, first, uuids)
            # Interrupted sealing leaves both, and the tail has everything.
            return inspect_tail(tail, first, mark) if inspected.problems and tail.exists() else inspected
    return None


def inspect_tail(path: Path, first: int = 1, mark: tuple[UUID, int] | None = None) -> InspectedSegment:
    """Read every byte of a tail; a torn end is a recoverable problem, as if it were the last segment.

    Bad bytes beyond the watermark were never promised to anybody: with everything after them, they are a torn end.
    """
    descriptor = Descriptor(path, os.O_RDONLY)
    fd, op = descriptor.fd, int(path.stem)
    inspected = InspectedSegment(path, os.fstat(fd).st_size, op, op - 1, first, first - 1)
    try:
        header = FileHeader.parse(os.pread(fd, HEADER_BYTES, 0), path)
    except DamagedError as damage:
        torn = never_begun(path)
        if torn is not None:
            inspected.note(0, first, None, torn.reason, mends=True)
            return inspected
        # Every frame has the salt, and the first one its message; the neighbours have the uuid.
        inspected.salt, found = _first_frame(fd)
        if found is not None:
            inspected.first = found.first + 1 if found.entries else found.first
        inspected.note(0, inspected.first, None, damage.reason)
        if found is None:
            if inspected.size != HEADER_BYTES:
                inspected.last_op = inspected.last = None
            return inspected
    else:
        inspected.uuid, inspected.time, inspected.salt = header.uuid, header.time, header.salt
        if header.op != op:
            _misnamed(inspected)
            return inspected
        inspected.first = header.first
    synced = mark[1] if mark is not None and inspected.uuid == mark[0] else None
    _inspect_frames(inspected, fd, synced)
    return inspected


def inspect_sealed(path: Path, first: int = 1, uuids: Collection[UUID] = ()) -> InspectedSegment:
    """Read every byte of a sealed segment, its entries and its index; rebuild a lost index if the file is whole."""
    op, indexed, beside = int(path.stem), path.with_suffix(".index"), path.with_suffix(".entries")
    inspected = InspectedSegment(path, path.stat().st_size, op, None, first, None)
    try:
        index = SegmentIndex.read(indexed)
        inspected.uuid = index.uuid
    except (DamagedError, FileNotFoundError) as lost:
        reason = lost.reason if isinstance(lost, DamagedError) else "it is missing"
        inspected.uuid = _uuid_of(beside)
        try:
            index = SegmentIndex.rebuild(path, inspected.uuid or NOBODY)
        except DamagedError as damage:
            inspected.problems.append(Problem(indexed, 0, first, None, reason))
            inspected.problems.append(replace(Problem.of(damage), first=max(damage.first, first)))
            return inspected
        inspected.problems.append(Problem(indexed, 0, index.first, None, reason))
        inspected.rebuilt = True
    if index.first_op != op:
        _misnamed(inspected)
        return inspected
    inspected.last_op, inspected.first, inspected.last = index.last_op, index.first, index.last
    named = _uuid_of(beside)
    if named is not None and named != index.uuid and {named, index.uuid} <= set(uuids):
        # An interrupted repair has put the new uuid into one file, and not yet into the other.
        index, inspected.uuid = replace(index, uuid=named), None
    segment = SealedSegment(path, index)
    bad: set[int | None] = set()
    entries_lost = index.entries_lost
    inspected.marked = entries_lost and not inspected.rebuilt
    if inspected.rebuilt and entries_lost:
        reason = "it cannot be read"
        inspected.problems.append(Problem(beside, 0, index.first, index.first - 1, reason))
    elif not segment.entries_size and beside.exists():
        inspected.stray_entries = True
        reason = "the segment's index does not mention it"
        inspected.problems.append(Problem(beside, 0, index.first, index.first - 1, reason))
    for number, found in segment.faults():
        if Path(found.path) == beside:
            entries_lost = True
        else:
            bad.add(number)
        inspected.problems.append(Problem.of(found))
    if not bad and (fault := segment.topics_fault()) is not None:
        inspected.topics = Problem(segment.topics_path, 0, index.first, index.last, fault, harmless=True)
    inspected.index = replace(index, entries_size=ENTRIES_LOST) if entries_lost else index
    _good_between(inspected, segment, bad, entries_lost=entries_lost)
    return inspected


def inspect_snapshot(path: Path) -> snapshot.Snapshot | Problem | None:
    """Read the snapshot in a file, or the problem with it; ``None`` if it has vanished."""
    try:
        return snapshot.read(path)
    except DamagedError as damage:
        return Problem.of(damage)
    except FileNotFoundError:
        return None


def _following(before: InspectedSegment | None) -> int:
    """The message that comes first after a segment, as far as is known."""
    if before is None:
        return 1
    return before.first if before.last is None else before.last + 1


def _first_frame(fd: int) -> tuple[int, frame.FrameInfo | None]:
    """Find the salt and the first frame of a tail whose header is lost; no frame if that one is bad too."""
    salt = int.from_bytes(os.pread(fd, 4, HEADER_BYTES), "little")
    found = next(walk(fd, salt, HEADER_BYTES), None) if salt else None
    return (0, None) if found is None else (salt, found[1])


def _uuid_of(entries: Path) -> UUID | None:
    """The log that a file of entries belongs to, if it can be read."""
    with contextlib.suppress(DamagedError, FileNotFoundError), entries.open("rb") as file:
        return FileHeader.parse(file.read(HEADER_BYTES), entries).uuid
    return None


def _misnamed(inspected: InspectedSegment) -> None:
    inspected.last_op = inspected.last = None
    reason = "it does not begin where its name says"
    inspected.note(0, inspected.first, None, reason)


def _ends_log(before: InspectedSegment, after: InspectedSegment, mark: tuple[UUID, int] | None) -> bool:
    """Whether a power failure took the end of a tail before it was synced: opening drops the tails after it."""
    if mark is None or before.uuid != mark[0] or after.path.suffix != ".open" or before.last is None:
        return False
    # Not even the header of the new tail has reached the disk.
    headless = after.uuid is None and after.first_op > mark[1]
    if not headless and (before.path.suffix != ".open" or before.last_op is None or before.last_op < mark[1]):
        return False
    torn = any(problem.mends for problem in before.problems)
    short = headless or (before.last_op is not None and before.last_op + 1 < after.first_op)
    if short and not torn and before.gap is None:
        reason = "everything after it had not reached the disk"
        before.gap = Problem(before.path, before.size, before.last + 1, None, reason, mends=True)
    return torn or short


def _settle(before: InspectedSegment, after: InspectedSegment) -> None:
    """Complete a segment's problems, now that the segment after it is known."""
    # Only the last tail may have a torn end, and only the last may lack a header.
    before.problems = [
        replace(problem, last=max(after.first, problem.first) - 1, mends=False) if problem.mends else problem
        for problem in before.problems
    ]
    if before.last_op is None or before.last is None:
        before.last_op, before.last = after.first_op - 1, max(after.first, before.first) - 1
    elif before.rebuilt and before.last + 1 == after.first and before.last_op + 1 < after.first_op:
        _settle_entries(before, after.first_op - 1, "it is missing")
    gap = gap_between((before.last_op, before.last), (after.first_op, after.first))
    if gap is not None:
        after.gap = Problem(after.path, 0, *gap)


def _settle_entries(before: InspectedSegment, last_op: int, reason: str) -> None:
    """Note that entries are lost with the index that counted them, unless their file is good."""
    if before.index is None or (before.index.entries_size and not before.index.entries_lost):
        return
    if not before.index.entries_lost:
        beside = before.path.with_suffix(".entries")
        before.problems.append(Problem(beside, 0, before.first, before.first - 1, reason))
    before.index = replace(before.index, last_op=last_op, entries_size=ENTRIES_LOST)
    before.last_op = last_op
    before.good = [
        replace(good, entries_lost=True, last_op=last_op if good.last == before.last else good.last_op)
        for good in before.good
    ]


class _Place(NamedTuple):
    """A place in a tail: the offset, and the operation and message that come next."""

    offset: int
    op: int
    seq: int


def _inspect_frames(inspected: InspectedSegment, fd: int, synced: int | None) -> None:
    labels: set[int] = set()
    here = _Place(HEADER_BYTES, inspected.first_op, inspected.first)
    begin: _Place | None = here
    while True:
        whole = here
        found: frame.FrameInfo | None = None
        for _, found in walk(fd, inspected.salt, here.offset):
            if not _is_next(found, here) or not _has_label(found, here, labels):
                break
            if not found.label:
                labels.add(here.offset)
            here = _after(found, here)
            if not found.flags & frame.CONTINUED:
                whole = here
                # After damage, the first frames may belong to an append that is not whole.
                begin = begin or whole
            found = None
        if found is None:
            torn = here.offset >= inspected.size
            reason = "an append is cut short" if torn else fault(fd, inspected.salt, here.offset)
            later = None if torn else find_frame(fd, inspected.salt, here.offset + 4)
            following = None if later is None else _begins(later, later.at)
        elif _is_next(found, here):
            reason = "the label of its rows is lost"
            following = _without_labels(fd, inspected.salt, here, labels)
        else:
            reason = misplaced(FrameRows.of(found), here.seq)
            following = _begins(found, here.offset)
        if synced is not None and here.op > synced:
            following = None
        only_entries = following is not None and following.seq == here.seq and following.op > here.op
        end = here if only_entries else whole
        # An empty tail is good too: the log continues there.
        if begin and (begin < end or (begin.offset == HEADER_BYTES and not only_entries)):
            inspected.good.append(
                GoodRange(
                    inspected.path, begin.op, end.op - 1, begin.seq, end.seq - 1, begin.offset, end.offset
                )
            )
        inspected.last_op, inspected.last = here.op - 1, here.seq - 1
        if following is None:
            if whole.offset < inspected.size:
                inspected.last_op, inspected.last = whole.op - 1, whole.seq - 1
                inspected.note(whole.offset, whole.seq, None, reason, mends=True)
            return
        last = here.seq - 1 if only_entries else max(following.seq - 1, here.seq)
        inspected.note(here.offset, here.seq, last, reason)
        here = following
        begin = here if only_entries else None


def _begins(found: frame.FrameInfo, offset: int) -> _Place:
    """The place where a frame begins."""
    return _Place(offset, found.op, found.first + 1 if found.entries else found.first)


def _is_next(found: frame.FrameInfo, here: _Place) -> bool:
    return _begins(found, here.offset) == here


def _has_label(found: frame.FrameInfo, here: _Place, labels: set[int]) -> bool:
    return not found.label or here.offset - found.label in labels


def _after(found: frame.FrameInfo, here: _Place) -> _Place:
    messages = 0 if found.entries else found.rows
    return _Place(here.offset + found.length, here.op + found.rows, here.seq + messages)


def _without_labels(fd: int, salt: int, here: _Place, labels: set[int]) -> _Place:
    """The place after frames whose labels were in damaged frames."""
    for _, found in walk(fd, salt, here.offset):
        if not _is_next(found, here) or _has_label(found, here, labels):
            break
        here = _after(found, here)
    return here


def _good_between(
    inspected: InspectedSegment, segment: SealedSegment, bad: set[int | None], *, entries_lost: bool
) -> None:
    """Add the runs of good record batches, with the entries between them."""
    batches = segment.index.batches
    if not len(batches):
        ends = segment.first_op, segment.last_op, segment.first, segment.last
        inspected.good.append(GoodRange(inspected.path, *ends, 0, 0, entries_lost=entries_lost))
        return
    begin: int | None = None
    for number, entry in enumerate([*batches, None]):
        if entry is not None and number not in bad:
            begin = number if begin is None else begin
        elif begin is not None:
            first, final = int(batches[begin]["first"]), batches[number - 1]
            last = int(final["first"]) + int(final["count"]) - 1
            ops = _operations(segment, first, last, entries_lost=entries_lost)
            inspected.good.append(
                GoodRange(inspected.path, *ops, first, last, begin, number, entries_lost=entries_lost)
            )
            begin = None


def _operations(segment: SealedSegment, first: int, last: int, *, entries_lost: bool) -> tuple[int, int]:
    """The first and last operation of some messages, with the entries before and after them.

    If the entries are lost, nobody knows where they stood: this counts as many as possible.
    """
    if entries_lost:
        return segment.first_op + first - segment.first, segment.last_op - (segment.last - last)
    begin = segment.first_op if first == segment.first else segment.op_of(first - 1) + 1
    end = segment.last_op if last == segment.last else segment.op_of(last + 1) - 1
    return begin, end
