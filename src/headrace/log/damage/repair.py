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
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from headrace.log import recovery, snapshot
from headrace.log.damage.repair_plan import (
    BeginTail,
    ForgetState,
    Keep,
    Reindex,
    Report,
    Restamp,
    Rewrite,
    SetAside,
    Step,
    decide,
    files_of,
)
from headrace.log.files import WriterLock, making, sync_directory, translating, write_whole
from headrace.log.sealed import SealedSegment, write_segment
from headrace.log.tail import HEADER_BYTES, READ_BYTES, FileHeader, TailFile

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
    sync_directory(directory)
    report = replace(report, aside=aside)
    (aside / _REPORT).write_text("".join(f"{line}\n" for line in report.lines()))
    for step in report.steps:
        _perform_step(step, aside, report.uuid_after)
    sync_directory(aside)
    sync_directory(directory)
    return report


def _makes(step: Step) -> list[Path]:
    """The files that a step writes; some may exist already."""
    match step:
        case Rewrite():
            index = [] if step.source.index is None else [step.target.with_suffix(".index")]
            return [step.target, *index]
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
        case Rewrite(source):
            old = files_of(source)
            for path in old:
                _keep_copy(path, aside)
            _rewrite(step, uuid)
            if step.target.stem != source.path.stem:
                for path in old:
                    path.unlink()
        case Reindex(source):
            index = source.path.with_suffix(".index")
            if index.exists():
                _keep_copy(index, aside)
            if source.index is not None:
                replace(source.index, uuid=uuid).write(index, sync=True)
        case Restamp(path):
            _restamp(path, uuid)
        case BeginTail(path):
            TailFile.create(path, uuid, int(path.stem), sync=True)
        case ForgetState(path):
            snapshot.write(path.parent, snapshot.Snapshot(uuid, int(path.stem), {}), sync=True)


def _rewrite(step: Rewrite, uuid: UUID) -> None:
    source, good = step.source, step.good
    if source.index is not None:
        segment = SealedSegment(source.path, source.index)
        rows = (segment.salvage(number) for number in range(good.begin, good.end))
        write_segment(step.target, uuid, rows, sync=True)
    else:
        header = FileHeader(uuid, good.first, source.time, source.salt)
        _copy_tail(source.path, step.target, header, good.begin, good.end)


def _restamp(path: Path, uuid: UUID) -> None:
    match path.suffix:
        case ".open":
            with path.open("rb") as file:
                header = FileHeader.parse(file.read(HEADER_BYTES), path)
            _copy_tail(path, path, replace(header, uuid=uuid), HEADER_BYTES, path.stat().st_size)
        case ".arrow":
            # The Arrow file is never rewritten: its own metadata still names the log that sealed it.
            segment = SealedSegment.open(path)
            replace(segment.index, uuid=uuid).write(path.with_suffix(".index"), sync=True)
        case _:
            found = replace(snapshot.read(path), uuid=uuid)
            write_whole(path, snapshot.serialize(found), sync=True)


def _copy_tail(source: Path, target: Path, header: FileHeader, begin: int, end: int) -> None:
    """Write a tail with a new header and the frames of another, byte for byte."""
    with making(target) as unfinished:
        with source.open("rb") as old, unfinished.open("wb") as new:
            new.write(header.serialize())
            old.seek(begin)
            while begin < end and (block := old.read(min(READ_BYTES, end - begin))):
                new.write(block)
                begin += len(block)
            new.flush()
            os.fsync(new.fileno())
        unfinished.rename(target)


def _keep_copy(path: Path, aside: Path) -> None:
    """Keep a file that is about to be replaced."""
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
    sync_directory(directory)
