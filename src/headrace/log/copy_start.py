"""A log that is a copy: it begins behind a snapshot of another one, and goes on as that one does.

Such a log is the snapshot and an empty tail. The snapshot is written first; if only that is there, the beginning was
interrupted, and a second one takes its place.

A copy has the uuid of what it is a copy of, so it must not go on by itself: there would be two histories of one name. A
file ``copy`` says what it is. Whoever wants it to go on by itself, because the other log is gone for good, removes it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from headrace.errors import UsageError
from headrace.log import snapshot as snapshots
from headrace.log.files import sync_directory, translating
from headrace.log.snapshot import Snapshot
from headrace.log.tail import TailFile

COPY: Final = "copy"
"""The file that says that a log is a copy, and of what."""

_OUTDATED: Final = ".outdated"


def is_log(directory: Path) -> bool:
    """Whether there are messages, or room for some, in a directory."""
    kept = "[0-9]" * 16
    return any(directory.glob(f"{kept}.open")) or any(directory.glob(f"{kept}.arrow"))


def begin(directory: Path, snapshot: Snapshot, *, sync: bool) -> None:
    """Make an empty log of the snapshot's uuid that goes on behind its sequence number."""
    with translating(directory):
        shutil.rmtree(_outdated(directory), ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        for path in snapshots.paths(directory):
            path.unlink()
        if snapshot.seq:
            snapshots.write(directory, snapshot, sync=sync)
        following = snapshot.seq + 1
        TailFile.create(directory / f"{following:016d}.open", snapshot.uuid, following, sync=sync)
        if sync:
            sync_directory(directory)


def begin_anew(directory: Path, snapshot: Snapshot, *, sync: bool) -> None:
    """Make such a log in the place of one that is closed; what it held is removed."""
    with translating(directory):
        shutil.rmtree(_outdated(directory), ignore_errors=True)
        # Out of the way in one step: whatever happens next, there is never half a log.
        directory.rename(_outdated(directory))
    begin(directory, snapshot, sync=sync)


def note_copy(directory: Path, of: str) -> None:
    """Say that a log is a copy of the one that ``of`` describes."""
    with translating(directory):
        (directory / COPY).write_text(of + "\n")


def check_original(directory: Path) -> None:
    """Raise if the log in a directory is a copy."""
    try:
        of = (directory / COPY).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return
    raise UsageError(
        f"{directory} is a copy of {of}: start it with --upstream. To let it go on by itself, because that one is gone"
        f" for good, remove {directory / COPY}"
    )


def _outdated(directory: Path) -> Path:
    return directory.with_name(directory.name + _OUTDATED)
