"""Backups: snapshots of a hub's state beside its archive, and the log that begins anew from both.

A backup is the archive, which has the messages, and a snapshot in its folder ``_backup`` with the state after one of
them. A snapshot is saved only once the archive reaches as far. A restored log has the uuid, the numbers and the state
of the original, and serves the messages before its snapshot from the archive. What was archived after the snapshot is
appended to it again: the state follows from these messages, but for entries between them, such as acknowledgements.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

from headrace.archive.folder import Folder, storage_errors
from headrace.archive.past import ArchivedPast
from headrace.archive.reader import ArchiveReader
from headrace.archive.table import ArchiveTable, open_table
from headrace.errors import ArchiveError, UsageError
from headrace.log import Log
from headrace.log.files import translating
from headrace.log.snapshots.snapshot import KEPT, Snapshot, parse
from headrace.log.snapshots.start_after import install
from headrace.message import Batch
from headrace.platforms import sync_path

FOLDER: Final = "_backup"
"""The folder in an archive that its snapshots are in; readers of tables pass over such names."""

_SUFFIX: Final = ".snapshot"
_STEP: Final = 8 << 20
_UNFINISHED: Final = ".restoring"


class Restored(NamedTuple):
    """A log that begins anew: its uuid, the message that its snapshot is after, and its last one."""

    log: str
    snapshot: int
    head: int


def save_snapshot(place: str, data: bytes) -> Snapshot:
    """Save a hub's state in its archive, which must reach as far; only the newest snapshots are kept."""
    snapshot, table = parse(data, "the hub's snapshot"), open_table(place)
    _check_covered(place, table, snapshot)
    folder = table.folder.sub(FOLDER)
    with storage_errors(place):
        folder.write(f"{snapshot.op:016d}{_SUFFIX}", data)
        for old in _names(folder)[KEPT:]:
            folder.remove(old)
    return snapshot


def newest_snapshot(place: str, table: ArchiveTable) -> Snapshot:
    """Return the newest snapshot in an archive."""
    folder = table.folder.sub(FOLDER)
    with storage_errors(place):
        names = _names(folder)
        if not names:
            raise UsageError(f"{place} has no snapshot: it is an archive, but no backup was made of its hub")
        data = folder.read(names[0])
    snapshot = parse(data, f"{place}/{FOLDER}/{names[0]}")
    _check_covered(place, table, snapshot)
    return snapshot


def restore(place: str, directory: Path) -> Restored:
    """Begin a log in an empty directory from the backup at ``place``."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty: restore into an empty data directory")
    table = open_table(place)
    snapshot = newest_snapshot(place, table)
    reader = ArchiveReader(table, place)
    seq = snapshot.seq
    time = reader.read(seq, seq, 1)[0].to_arrow().column("time")[0].value if seq else 0
    # Under another name until it is whole: a hub that goes on before its archive ends would make another history.
    unfinished = directory.with_name(directory.name + _UNFINISHED)
    with translating(unfinished):
        shutil.rmtree(unfinished, ignore_errors=True)
        restored = _restore(place, table, reader, snapshot, time, unfinished)
        sync_path(unfinished)
        unfinished.rename(directory)
        sync_path(directory.parent)
    return restored


def _restore(
    place: str, table: ArchiveTable, reader: ArchiveReader, snapshot: Snapshot, time: int, directory: Path
) -> Restored:
    install(directory, snapshot, time)
    log = Log.open(directory)
    try:
        while log.tail < table.through:
            rows = (batch.to_arrow() for batch in reader.read(log.tail + 1, table.through, _STEP))
            log.append([Batch.from_arrow(each) for each in rows])
            log.commit(log.tail_op)
        past = ArchivedPast(log, place)
        if not past.look():
            raise ArchiveError(place, table.first, table.through, past.problem or "it is out of reach")
        return Restored(str(log.uuid), snapshot.seq, log.head)
    finally:
        log.close()


def _check_covered(place: str, table: ArchiveTable, snapshot: Snapshot) -> None:
    if table.log != str(snapshot.uuid):
        raise UsageError(
            f"{place} has the archive of log {table.log}, and the snapshot is of {snapshot.uuid}"
        )
    if snapshot.seq > table.through:
        reason = f"it ends at {table.through}, and the snapshot is after message {snapshot.seq}"
        raise ArchiveError(place, table.through + 1, snapshot.seq, reason)


def _names(folder: Folder) -> list[str]:
    """The snapshots in a folder, newest first."""
    return sorted((name for name in folder.files() if name.endswith(_SUFFIX)), reverse=True)
