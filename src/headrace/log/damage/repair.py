"""Repair a damaged log so that it opens again, for ``headrace log repair``.

:func:`plan` reports what is wrong and what would be done (:mod:`~headrace.log.damage.repair_plan` decides);
:func:`repair` does it, offline, under the writer's lock. Nothing is deleted: what leaves the log goes into
``damaged-N/``, with the report.

Every file changes in one rename. An interrupted repair leaves the file ``repairing``; the log does not open then, and
the next repair undoes it and begins again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import pyarrow as pa

from headrace.log import frame, recovery, watermark
from headrace.log.damage.findings import GoodRange, InspectedSegment
from headrace.log.damage.repair_plan import (
    BeginTail,
    ForgetState,
    Keep,
    MarkLost,
    Reindex,
    Report,
    Restamp,
    Rewrite,
    SetAside,
    Step,
    decide,
    files_of,
)
from headrace.log.files import Descriptor, WriterLock, making, translating, write_whole
from headrace.log.frame_file import HEADER_BYTES, READ_BYTES, FileHeader, read_label, walk
from headrace.log.sealed.entries_file import EntriesWriter
from headrace.log.sealed.index import ENTRIES_LOST
from headrace.log.sealed.segment import SealedSegment
from headrace.log.sealed.writing import SegmentEnd, write_segment
from headrace.log.snapshots import snapshot
from headrace.log.tail import TailFile
from headrace.message import Batch
from headrace.platforms import sync_path

__all__ = ["Keep", "Report", "plan", "repair"]

_REPORT: Final = "report.txt"


class _Marker(msgspec.Struct):
    """The facts needed to undo a repair."""

    aside: str
    before: UUID | None
    after: UUID
    made: list[str]
    """Files that the repair created."""


def plan(directory: Path, keep: Keep = "before") -> Report:
    """Report what is wrong and what :func:`repair` would do; change nothing."""
    with translating(directory):
        return _decide(directory, keep, _read_marker(directory))


def repair(directory: Path, keep: Keep = "before") -> Report:
    """Repair the log; report what was found, done and lost."""
    with translating(directory):
        lock = WriterLock(directory / "lock")
        try:
            marker = _read_marker(directory)
            if marker is not None:
                _undo(directory, marker)
            report = _decide(directory, keep, marker)
            if report.steps:
                watermark.forget(directory)
                report = _perform(report)
            (directory / recovery.REPAIRING).unlink(missing_ok=True)
            recovery.recover(directory, sync=True)
        finally:
            lock.release()
    return report


def _decide(directory: Path, keep: Keep, marker: _Marker | None) -> Report:
    return decide(directory, keep, None if marker is None else (marker.before, marker.after))


def _perform(report: Report) -> Report:
    directory = report.directory
    aside = next(path for n in count(1) if not (path := directory / f"damaged-{n}").exists())
    made = [path.name for step in report.steps for path in _makes(step) if not path.exists()]
    marker = _Marker(aside.name, report.uuid_before, report.uuid_after, made)
    write_whole(directory / recovery.REPAIRING, msgspec.json.encode(marker), sync=True)
    aside.mkdir()
    sync_path(directory)
    report = replace(report, aside=aside)
    (aside / _REPORT).write_text("".join(f"{line}\n" for line in report.lines()))
    for step in report.steps:
        _perform_step(step, aside, report.uuid_after)
    sync_path(aside)
    sync_path(directory)
    return report


def _makes(step: Step) -> list[Path]:
    """The files that a step writes; some may exist already."""
    match step:
        case Rewrite(source, kept):
            targets = [step.target(good) for good in kept]
            if source.index is None:
                return targets
            return [
                path.with_suffix(suffix)
                for path in targets
                for suffix in (".arrow", ".index", ".entries", ".topics")
            ]
        case MarkLost(path):
            return [path, path.with_suffix(".index"), path.with_suffix(".topics")]
        case BeginTail(path) | ForgetState(path):
            return [path]
        case Reindex(source):
            return [source.path.with_suffix(".index")]
        case _:
            return []


def _perform_step(step: Step, aside: Path, uuid: UUID) -> None:
    match step:
        case SetAside(path):
            path.rename(aside / path.name)
        case Rewrite(source, kept):
            for path in files_of(source):
                _keep_copy(path, aside)
                path.unlink()
            for good in kept:
                _rewrite(replace(source, path=aside / source.path.name), good, step.target(good), uuid)
        case Reindex(source):
            index = source.path.with_suffix(".index")
            if index.exists():
                _keep_copy(index, aside)
            if source.index is not None:
                replace(source.index, uuid=uuid).write(index, sync=True)
                if source.index.entries_size and not source.index.entries_lost:
                    _restamp_frames(source.path.with_suffix(".entries"), uuid)
        case MarkLost(path, last_op, after):
            header = FileHeader(uuid, int(path.stem), after + 1, 0, 0)
            _write_without_entries(path, header, [], SegmentEnd(last_op, after, 0))
        case Restamp(path):
            _restamp(path, uuid)
        case BeginTail(path, first):
            TailFile.create(path, uuid, int(path.stem), first, sync=True)
        case ForgetState(path, seq):
            snapshot.write(path.parent, snapshot.Snapshot(uuid, int(path.stem), seq, {}), sync=True)


def _rewrite(source: InspectedSegment, good: GoodRange, target: Path, uuid: UUID) -> None:
    if source.index is None:
        _rewrite_tail(source, good, target, uuid)
        return
    segment = SealedSegment(source.path, source.index)
    rows = (segment.salvage(number) for number in range(good.begin, good.end))
    batches = source.index.batches[good.begin : good.end]
    time = int(batches[-1]["last_time"]) if len(batches) else 0
    header = FileHeader(uuid, good.first_op, good.first, 0, 1 + secrets.randbelow((1 << 32) - 1))
    if good.entries_lost:
        _write_without_entries(target, header, rows, SegmentEnd(good.last_op, good.last, time))
        return
    with EntriesWriter.beside(target, header) as entries:
        for batch in _entries_of(segment, good):
            entries.add(batch)
            time = max(time, batch.last_time)
        ends = SegmentEnd(good.last_op, good.last, time)
        write_segment(target, header, rows, entries, ends, sync=True)


def _entries_of(segment: SealedSegment, good: GoodRange) -> Iterator[Batch]:
    """The entries of a part of a sealed segment."""
    if segment.entries is None:
        return
    op = segment.entries.next_op(good.first_op)
    while op is not None and op <= good.last_op:
        batch = segment.entries.read(op, good.last_op)
        yield batch
        op = segment.entries.next_op(batch.last_op + 1)


def _write_without_entries(
    target: Path, header: FileHeader, rows: Iterable[pa.RecordBatch], ends: SegmentEnd
) -> None:
    """Write a segment whose index records that its entries are lost."""
    with EntriesWriter.beside(target, header) as none:
        segment = write_segment(target, header, rows, none, ends, sync=True)
    replace(segment.index, entries_size=ENTRIES_LOST).write(target.with_suffix(".index"), sync=True)


def _rewrite_tail(source: InspectedSegment, good: GoodRange, target: Path, uuid: UUID) -> None:
    """Write a part of a tail as a tail. Its frames are encoded anew: they may refer to labels of the old file."""
    descriptor = Descriptor(source.path, os.O_RDONLY)
    made = TailFile.create(target, uuid, good.first_op, good.first, source.time, sync=True)
    offset = good.begin
    with target.open("r+b") as file:
        file.seek(made.size)
        for window, place in walk(descriptor.fd, source.salt, offset):
            if offset >= good.end:
                break
            batch = frame.decode(window, place.at, _labels(source, descriptor.fd, offset - place.at))
            offset += place.length
            # An append that has lost its last entries ends here.
            continued = bool(place.flags & frame.CONTINUED) and offset < good.end
            encoded = made.encode(batch, frame.time_span(batch), made.size, continued=continued)
            file.writelines(encoded.pieces)
            made.appended(encoded)
        file.flush()
        os.fsync(file.fileno())


def _labels(source: InspectedSegment, fd: int, start: int) -> frame.FindLabel:
    """Find the labels of a window that begins at ``start``."""
    return lambda at: read_label(source.path, fd, source.salt, start + at, source.first)


def _restamp(path: Path, uuid: UUID) -> None:
    match path.suffix:
        case ".open":
            _restamp_frames(path, uuid)
        case ".arrow":
            # The Arrow file is never rewritten: its own metadata still names the log that sealed it.
            segment = SealedSegment.open(path)
            replace(segment.index, uuid=uuid).write(path.with_suffix(".index"), sync=True)
            if segment.entries_size:
                _restamp_frames(segment.entries_path, uuid)
        case _:
            found = replace(snapshot.read(path), uuid=uuid)
            write_whole(path, snapshot.serialize(found), sync=True)


def _restamp_frames(path: Path, uuid: UUID) -> None:
    """Put a uuid into the header of a tail or of a file of entries."""
    with path.open("rb") as file:
        header = FileHeader.parse(file.read(HEADER_BYTES), path)
    if header.uuid != uuid:
        _copy_frames(path, replace(header, uuid=uuid))


def _copy_frames(path: Path, header: FileHeader) -> None:
    """Write a file of frames with a new header, all else byte for byte."""
    with making(path) as unfinished:
        with path.open("rb") as old, unfinished.open("wb") as new:
            new.write(header.serialize())
            old.seek(HEADER_BYTES)
            shutil.copyfileobj(old, new, READ_BYTES)
            new.flush()
            os.fsync(new.fileno())
        unfinished.rename(path)


def _keep_copy(path: Path, aside: Path) -> None:
    try:
        os.link(path, aside / path.name)
    except OSError:
        shutil.copy2(path, aside / path.name)


def _read_marker(directory: Path) -> _Marker | None:
    with contextlib.suppress(FileNotFoundError):
        return msgspec.json.decode((directory / recovery.REPAIRING).read_bytes(), type=_Marker)
    return None


def _undo(directory: Path, marker: _Marker) -> None:
    """Restore everything that an interrupted repair set aside."""
    for name in marker.made:
        (directory / name).unlink(missing_ok=True)
    aside = directory / marker.aside
    if aside.exists():
        (aside / _REPORT).unlink(missing_ok=True)
        for path in aside.iterdir():
            path.replace(directory / path.name)
            # rename() does nothing if both names are links to the same file.
            path.unlink(missing_ok=True)
        aside.rmdir()
    sync_path(directory)
