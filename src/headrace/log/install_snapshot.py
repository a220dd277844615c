"""Beginning a log anew behind a snapshot: how a node gets past what the others have trimmed.

A node of a cluster that lacks messages which nobody keeps any more takes a snapshot instead, and its log goes on behind
that. What it had before goes. First the snapshot is brought to the disk as one file, ``installing``: from then on the
log is the new one, and whoever opens it finishes what a crash interrupted. Before that, it is the old one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from headrace.errors import DamagedError
from headrace.log import snapshot as snapshots
from headrace.log.checksum import crc32c
from headrace.log.files import sync_directory, translating, write_whole
from headrace.log.lock import WriterLock
from headrace.log.tail import TailFile

INSTALLING: Final = "installing"
"""The file that holds the snapshot, and the time before which nothing may follow, until all is done."""

_REPLACED: Final = re.compile(r"\d{16}\.(open|arrow|index|snapshot|torn)")


def install(directory: Path, snapshot: snapshots.Snapshot, time: int) -> None:
    """Have the log in ``directory``, which nobody has open, begin behind ``snapshot``, for good.

    Its uuid is the snapshot's. ``time`` (µs) is that of the last message which the snapshot covers.
    """
    with translating(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(directory / "lock")
        try:
            body = time.to_bytes(8, "little", signed=True) + snapshots.serialize(snapshot)
            write_whole(directory / INSTALLING, crc32c(body).to_bytes(4, "little") + body, sync=True)
            sync_directory(directory)
            finish(directory)
        finally:
            lock.release()


def finish(directory: Path) -> None:
    """Do what is left of an installation, if there is one."""
    path = directory / INSTALLING
    if not path.exists():
        return
    data = path.read_bytes()
    body = data[4:]
    if data[:4] != crc32c(body).to_bytes(4, "little"):
        raise DamagedError(str(path), 0, 1, None, "the snapshot to begin with does not match its checksum")
    time = int.from_bytes(body[:8], "little", signed=True)
    snapshot = snapshots.parse(body[8:], str(path))
    for old in directory.iterdir():
        if _REPLACED.fullmatch(old.name):
            old.unlink(missing_ok=True)
    snapshots.write(directory, snapshot, sync=True)
    first = snapshot.seq + 1
    TailFile.create(directory / f"{first:016d}.open", snapshot.uuid, first, time, sync=True)
    sync_directory(directory)
    path.unlink()
    sync_directory(directory)
