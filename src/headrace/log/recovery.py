"""Open a log directory: recover from a crash, refuse damage.

Files are named by the first operation they hold: ``N.open`` (a tail), ``N.arrow`` with ``N.index`` and perhaps
``N.entries`` and ``N.topics`` (a sealed segment), ``N.snapshot``, and ``lock``. ``*.making`` is an unfinished file.
Anything else is not the log's, and is left alone.

A crash leaves one of a few states, each with one answer (``docs/log.md`` lists them). Everything else (a bad frame,
index or header, a hole between segments, files of another log) is damage: opening fails with an error that names file,
offset and sequence range. Nothing is changed before everything is checked, so a refused directory is left as it is for
``headrace log repair``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from headrace.errors import DamagedError, StorageError, UsageError
from headrace.log import watermark
from headrace.log.files import MAKING
from headrace.log.frame_file import HEADER_BYTES, READ_BYTES, FileHeader
from headrace.log.sealed.segment import SealedSegment
from headrace.log.snapshots import snapshot as snapshots
from headrace.log.snapshots.start_after import INSTALLING, finish_installing
from headrace.log.tail import TailFile, TornEnd
from headrace.platforms import sync_data, sync_path

SEGMENT_FILE: Final = re.compile(r"(\d{16})\.(open|arrow|index|entries)")
_TOPICS_FILE: Final = re.compile(r"\d{16}\.topics")
_UNFINISHED: Final = re.compile(r"\d{16}\.(open|arrow|index|entries|topics|snapshot)" + re.escape(MAKING))
Segment = SealedSegment | TailFile

REPAIRING: Final = "repairing"
"""A file that exists during a repair, and remains if that is interrupted."""

STATE_MISSING: Final = "the snapshot that covers trimmed messages and lost entries is missing"

_LOOKS: Final = 5
"""Attempts to read the directory of a hub that may seal or trim a file meanwhile."""


@dataclass(slots=True)
class Recovered:
    """A directory's content, in order, after recovery."""

    uuid: UUID
    segments: list[Segment]
    torn: TornEnd | None = None
    snapshot: snapshots.Snapshot | None = None
    damaged_snapshots: list[DamagedError] = field(default_factory=list)


def recover(directory: Path, *, sync: bool, uuid: UUID | None = None) -> Recovered:
    """Open a directory for writing: clean up after a crash, refuse damage, begin a log if there is none.

    ``uuid`` is the uuid to give a new log.
    """
    finish_installing(directory)
    segments, torn, litter = _read_segments(directory, writable=True)
    if segments:
        recovered = _with_snapshot(directory, Recovered(segments[0].uuid, segments, torn))
    elif left := sorted([*snapshots.paths(directory), *litter]):
        raise DamagedError(str(left[-1]), 0, 1, None, "there are traces of a log, but no messages")
    else:
        recovered = Recovered(uuid or uuid4(), segments)
    sealed = {segment.first_op for segment in segments if isinstance(segment, SealedSegment)}
    for path in directory.iterdir():
        if is_topics_alone(path, sealed) or _UNFINISHED.fullmatch(path.name):
            litter.append(path)
    # Before cutting: an unused tail must never follow a tail that was shortened.
    for path in litter:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            # The next start may remove it. But a tail must not stay: it would be taken for a part of the log.
            if path.suffix == ".open" and int(path.stem) not in sealed:
                raise
    if torn is not None and torn.offset:
        _cut(segments[-1], torn)
    if not segments or isinstance(segments[-1], SealedSegment):
        op, following, time = 1, 1, 0
        if segments:
            op, following, time = segments[-1].last_op + 1, segments[-1].last + 1, segments[-1].last_time
        path = directory / f"{op:016d}.open"
        segments.append(TailFile.create(path, recovered.uuid, op, following, time, sync=sync))
    if sync:
        # A killed hub leaves unsynced writes. They are served from now on, so they must survive.
        mark = watermark.read(directory)
        synced = mark[1] if mark is not None and mark[0] == recovered.uuid else 0
        for segment in segments:
            if isinstance(segment, TailFile):
                segment.write_again(synced)
                sync_data(segment.fd)
        sync_path(directory)
    return recovered


def look(directory: Path) -> Recovered:
    """Read a directory that a hub may be writing to, changing nothing."""
    for attempt in range(_LOOKS):
        try:
            segments, torn, _ = _read_segments(directory, writable=False)
            if segments:
                return _with_snapshot(directory, Recovered(segments[0].uuid, segments, torn))
        except (FileNotFoundError, DamagedError):
            # Listing a directory is not atomic: it may show a file and miss its successor.
            if attempt == _LOOKS - 1 and directory.exists():
                raise
        else:
            break
    raise UsageError(f"{directory} holds no log; name the hub's data directory with --data")


def _read_segments(directory: Path, *, writable: bool) -> tuple[list[Segment], TornEnd | None, list[Path]]:
    """Return the segments in order, the torn end of the last, and the files to be removed."""
    if (directory / REPAIRING).exists():
        raise DamagedError(str(directory), 0, 1, None, "a repair was interrupted: run it again")
    if (directory / INSTALLING).exists():
        raise DamagedError(
            str(directory), 0, 1, None, "a snapshot is being installed: start the hub to finish it"
        )
    mark = watermark.read(directory)
    found: dict[int, set[str]] = {}
    for path in directory.iterdir():
        if match := SEGMENT_FILE.fullmatch(path.name):
            found.setdefault(int(match[1]), set()).add(match[2])
    segments: list[Segment] = []
    litter: list[Path] = []
    torn: TornEnd | None = None
    for op in sorted(found):
        path = directory / f"{op:016d}.open"
        before = segments[-1] if segments else None
        if found[op] == {"open"} and op == max(found) and before is not None:
            unwritten = never_begun(path)
            if unwritten is not None and (isinstance(before, TailFile) or before.last_op + 1 == op):
                torn = torn or unwritten
                litter.append(path)
                break
        try:
            segment, cut = _read_segment(path, found[op], litter, writable=writable, mark=mark)
        except DamagedError as damage:
            if not _unsynced_tails(before, {later: found[later] for later in found if later >= op}, mark):
                raise _placed(damage, before) from None
            # Power failed after a rotation, before a sync: not even the header of the new tail is there.
            torn = torn or TornEnd(0, 0, f"the tail from operation {op} on had not reached the disk")
            litter += _tails(directory, found, op)
            break
        if segment is None:
            continue
        unused = isinstance(segment, TailFile) and segment.empty and cut is None and op == max(found)
        short = isinstance(before, TailFile) and before.uuid == segment.uuid and before.last_op + 1 < op
        if unused and (torn is not None or short):
            # Power failed after a rotation, before a sync: the new tail is unused, the old one has lost its end.
            what = f"messages up to {segment.first - 1}"
            if before is not None and before.last + 1 == segment.first:
                what = f"entries of the log after message {before.last}"
            torn = torn or TornEnd(0, 0, f"{what} had not reached the disk")
            litter.append(path)
            break
        if before is not None and _never_synced(before, segment, mark) and (torn is not None or short):
            # Power failed before a sync: the old tail has lost some of its end, the new one nothing that was promised.
            torn = torn or TornEnd(0, 0, f"messages up to {segment.first - 1} had not reached the disk")
            litter += _tails(directory, found, op)
            break
        if torn is not None and before is not None:
            doubt = before.last + 1, segment.first - 1
            raise DamagedError(str(before.path), torn.offset, *doubt, torn.reason)
        _check_follows(before, segment)
        segments.append(segment)
        torn = cut
    return segments, torn, litter


def is_topics_alone(path: Path, sealed: Collection[int]) -> bool:
    """Whether a file is an index of topics without its segment; ``sealed`` are the segments' first operations."""
    return _TOPICS_FILE.fullmatch(path.name) is not None and int(path.stem) not in sealed


def _never_synced(before: Segment, segment: Segment, mark: tuple[UUID, int] | None) -> bool:
    """Whether nothing after segment ``before`` was ever known to be on the disk."""
    if mark is None or mark[0] != before.uuid or isinstance(segment, SealedSegment):
        return False
    return before.last_op >= mark[1]


def _unsynced_tails(
    before: Segment | None, files: dict[int, set[str]], mark: tuple[UUID, int] | None
) -> bool:
    """Whether these are tails after a segment, and nothing in any of them was ever known to be on the disk."""
    if before is None or mark is None or mark[0] != before.uuid:
        return False
    return min(files) > mark[1] and all(kinds == {"open"} for kinds in files.values())


def _tails(directory: Path, found: Collection[int], op: int) -> list[Path]:
    """The tails from an operation on, the newest first."""
    return [directory / f"{later:016d}.open" for later in sorted(found, reverse=True) if later >= op]


def _placed(damage: DamagedError, before: Segment | None) -> DamagedError:
    """Add the message at which damage begins: the file's name tells only the operation."""
    if before is None or (damage.first, damage.last) != (1, None):
        return damage
    return DamagedError(damage.path, damage.offset, before.last + 1, None, damage.reason)


def never_begun(path: Path) -> TornEnd | None:
    """Recognize a tail whose header never reached the disk: a power failure leaves it short, or zeros."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if any(file.read(HEADER_BYTES)) and size >= HEADER_BYTES:
            return None
        zeros = not any(any(block) for block in iter(lambda: file.read(READ_BYTES), b""))
    return TornEnd(0, size, "a tail has no header yet") if zeros else None


def _read_segment(
    path: Path, kinds: set[str], litter: list[Path], *, writable: bool, mark: tuple[UUID, int] | None
) -> tuple[Segment | None, TornEnd | None]:
    """Read one segment from the files with its number; ``path`` is the name of its tail, which may be missing."""
    sealed, index, entries = (path.with_suffix(suffix) for suffix in (".arrow", ".index", ".entries"))
    if "arrow" in kinds:
        try:
            if "index" not in kinds:
                raise DamagedError(str(sealed), 0, 1, None, "its index is missing")
            segment = SealedSegment.open(sealed)
            if writable and "open" in kinds:
                # If the sealed file is bad, the tail still has everything.
                for _, damage in segment.faults():
                    raise damage
        except DamagedError:
            if "open" not in kinds:
                raise
        else:
            if "open" in kinds:
                litter.append(path)
            return segment, None
    litter += [sealed, index, entries] if kinds - {"open"} else []
    if "open" not in kinds:
        return None, None
    synced = mark[1] if mark is not None and _is_of(path, mark[0]) else None
    return TailFile.open(path, writable=writable, synced=synced)


def _is_of(path: Path, uuid: UUID) -> bool:
    """Whether a tail belongs to a log; whoever opens it reports a header that cannot be read."""
    with path.open("rb") as file, contextlib.suppress(DamagedError, StorageError):
        return FileHeader.parse(file.read(HEADER_BYTES), path).uuid == uuid
    return False


def _check_follows(before: Segment | None, segment: Segment) -> None:
    named = int(segment.path.stem)
    if segment.first_op != named:
        reason = f"it begins at {segment.first_op}, not at {named} as its name says"
        raise DamagedError(str(segment.path), 0, segment.first, segment.last, reason)
    if before is None:
        return
    if segment.uuid != before.uuid:
        reason = f"it belongs to log {segment.uuid}, its neighbours to log {before.uuid}"
        raise DamagedError(str(segment.path), 0, segment.first, segment.last, reason)
    gap = gap_between((before.last_op, before.last), (segment.first_op, segment.first))
    if gap is not None:
        raise DamagedError(str(segment.path), 0, *gap)


def gap_between(end: tuple[int, int], begin: tuple[int, int]) -> tuple[int, int, str] | None:
    """Describe the fault, if any, between a segment and the next.

    ``end`` is the last operation and message of the first segment, ``begin`` the first of the second.
    """
    last, first = end[1], begin[1]
    if last + 1 < first:
        return last + 1, first - 1, f"messages {last + 1} to {first - 1} are missing before it"
    if last >= first:
        return first, last, f"messages {first} to {last} are also in the segment before it"
    if end[0] + 1 != begin[0]:
        how = "missing before it" if end[0] < begin[0] else "also in the segment before it"
        return first, last, f"entries of the log after message {last} are {how}"
    return None


def _cut(segment: Segment, torn: TornEnd) -> None:
    """Cut off a torn end, which was never acknowledged; keep its bytes in a file for inspection."""
    if not isinstance(segment, TailFile):
        raise UsageError("only a tail has a torn end")
    with contextlib.suppress(OSError):  # a full disk must not keep the log from opening
        segment.path.with_suffix(".torn").write_bytes(
            os.pread(segment.fd, min(torn.size, 1 << 20), torn.offset)
        )
    os.ftruncate(segment.fd, torn.offset)
    os.fsync(segment.fd)


def _with_snapshot(directory: Path, recovered: Recovered) -> Recovered:
    recovered.snapshot, recovered.damaged_snapshots = snapshots.newest(directory, recovered.uuid)
    last = recovered.segments[-1]
    op, seq = (0, 0) if recovered.snapshot is None else (recovered.snapshot.op, recovered.snapshot.seq)
    needed, message = needs_state(recovered.segments)
    if op < needed:
        # A snapshot precedes any trimming; without one the state before the oldest segment cannot be rebuilt.
        if recovered.damaged_snapshots:
            raise recovered.damaged_snapshots[0]
        raise DamagedError(str(directory), 0, seq + 1, message, STATE_MISSING)
    if op > last.last_op:
        reason = f"the snapshot at message {seq} is ahead of the log, which ends at {last.last}"
        raise DamagedError(str(directory), 0, last.last + 1, seq, reason)
    return recovered


def needs_state(segments: Sequence[Segment]) -> tuple[int, int]:
    """Return the operation, and its newest message, up to which a snapshot must replace missing entries."""
    lost = [
        segment for segment in segments if isinstance(segment, SealedSegment) and segment.index.entries_lost
    ]
    if lost:
        return lost[-1].last_op, lost[-1].last
    return segments[0].first_op - 1, segments[0].first - 1
