"""Begin a log after a snapshot of another one, as its copy or in its place.

A frontend's log is a **copy** (:func:`begin`): the snapshot and an empty tail. The snapshot is written first; if only
that is there, the start was interrupted, and the next start replaces it. A copy has the uuid of its original, so it
must not continue on its own: there would be two histories under one uuid. The file ``copy`` marks it; to let the copy
continue because the original is gone for good, remove that file.

A node of a cluster that lacks messages which no node keeps any more **installs** a snapshot (:func:`install`): its log
continues after the snapshot, and everything older is removed. The snapshot is first written as one file,
``installing``. Once that file is there the log is the new one, and opening it finishes what a crash interrupted.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.errors import DamagedError, UsageError
from headrace.log import watermark
from headrace.log.checksum import crc32c
from headrace.log.files import WriterLock, translating, write_whole
from headrace.log.proof.log_chain import SECTION, write_chain
from headrace.log.snapshots import snapshot as snapshots
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.tail import TailFile
from headrace.platforms import sync_path

COPY: Final = "copy"
"""The file that marks a log as a copy, and names its original."""

INSTALLING: Final = "installing"
"""The file that holds the snapshot, and the earliest time of what follows, until the installation is done."""

_OUTDATED: Final = ".outdated"
_REPLACED: Final = re.compile(r"\d{16}\.(open|arrow|index|entries|snapshot|torn)")


def is_log(directory: Path) -> bool:
    """Whether a directory holds a log, even an empty one."""
    kept = "[0-9]" * 16
    return any(directory.glob(f"{kept}.open")) or any(directory.glob(f"{kept}.arrow"))


def begin(directory: Path, snapshot: Snapshot, *, sync: bool) -> None:
    """Create an empty log with the snapshot's uuid that continues after it."""
    with translating(directory):
        shutil.rmtree(_outdated(directory), ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        for path in snapshots.paths(directory):
            path.unlink()
        if snapshot.op:
            snapshots.write(directory, _with_chain_beside(directory, snapshot, sync=sync), sync=sync)
        _begin_tail(directory, snapshot, 0, sync=sync)
        if sync:
            sync_path(directory)


def begin_anew(directory: Path, snapshot: Snapshot, *, sync: bool) -> None:
    """Create a log as :func:`begin` does, in place of a closed one, which is removed."""
    with translating(directory):
        shutil.rmtree(_outdated(directory), ignore_errors=True)
        # Moved away in one step: whatever happens next, there is never half a log.
        directory.rename(_outdated(directory))
    begin(directory, snapshot, sync=sync)


def note_copy(directory: Path, of: str) -> None:
    """Mark a log as a copy of the one that ``of`` describes."""
    with translating(directory):
        (directory / COPY).write_text(of + "\n")


def check_original(directory: Path) -> None:
    """Raise if the log in a directory is marked as a copy."""
    try:
        of = (directory / COPY).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return
    raise UsageError(
        f"{directory} is a copy of {of}: start it with --upstream. If the original is gone for good, remove"
        f" {directory / COPY} to run the copy on its own"
    )


def install(directory: Path, snapshot: Snapshot, time: int) -> None:
    """Replace the log in ``directory``, which must be closed, by one that begins after ``snapshot``.

    Its uuid is the snapshot's. ``time`` (µs) is the time of the last message that the snapshot covers.
    """
    with translating(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(directory / "lock")
        try:
            body = time.to_bytes(8, "little", signed=True) + snapshots.serialize(snapshot)
            write_whole(directory / INSTALLING, crc32c(body).to_bytes(4, "little") + body, sync=True)
            sync_path(directory)
            finish_installing(directory)
        finally:
            lock.release()


def finish_installing(directory: Path) -> None:
    """Finish an interrupted installation, if there is one."""
    path = directory / INSTALLING
    if not path.exists():
        return
    data = path.read_bytes()
    body = data[4:]
    if data[:4] != crc32c(body).to_bytes(4, "little"):
        raise DamagedError(str(path), 0, 1, None, "the snapshot to begin with does not match its checksum")
    time = int.from_bytes(body[:8], "little", signed=True)
    snapshot = snapshots.parse(body[8:], str(path))
    watermark.forget(directory)
    for old in directory.iterdir():
        if _REPLACED.fullmatch(old.name):
            old.unlink(missing_ok=True)
    snapshots.write(directory, _with_chain_beside(directory, snapshot, sync=True), sync=True)
    _begin_tail(directory, snapshot, time, sync=True)
    sync_path(directory)
    path.unlink()
    sync_path(directory)


def _with_chain_beside(directory: Path, snapshot: Snapshot, *, sync: bool) -> Snapshot:
    """Write the chain of digests that came with a snapshot to its own file; return the snapshot without it."""
    sections = dict(snapshot.sections)
    write_chain(directory, sections.pop(SECTION, None), sync=sync)
    return replace(snapshot, sections=sections)


def _begin_tail(directory: Path, snapshot: Snapshot, time: int, *, sync: bool) -> None:
    op, first = snapshot.op + 1, snapshot.seq + 1
    TailFile.create(directory / f"{op:016d}.open", snapshot.uuid, op, first, time, sync=sync)


def _outdated(directory: Path) -> Path:
    return directory.with_name(directory.name + _OUTDATED)
