"""Append to an archive from one process, without Spark: for backups, and for amounts too small for a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from headrace.archive.folder import Folder
from headrace.archive.ledger import Ledger, Writer
from headrace.archive.parquet_file import write_files
from headrace.archive.table import format_of, open_ledger
from headrace.errors import StorageError
from headrace.log.frame import times

_MILLISECOND: Final = 1_000


def ledger_for(place: str, log: str, kind: str = "delta") -> Ledger:
    """Open the ledger of a log's archive to write to it; an archive that is begun is in the format ``kind``."""
    folder = Folder.at(place)
    return open_ledger(format_of(folder) or kind, folder, log)


def check_history(ledger: Ledger, rows: Iterable[pa.RecordBatch]) -> None:
    """Raise if the archive's last message and the log's, which ``rows`` has if anything, have different times.

    That happens if the hub lost the message in a power cut, or if two hubs continue one log after a restore.
    """
    for each in rows:
        ours, last = int(times(each)[0]), max(ledger.files(), key=lambda file: file.last)
        # Other engines that merge files note times to the millisecond.
        if abs(ours - last.last_time) >= _MILLISECOND:
            raise StorageError(
                f"{ledger.folder.path}: its message {last.last} differs from the log's: it is of another history. "
                "Choose another path"
            )


def append(ledger: Ledger, rows: Iterable[pa.RecordBatch], writer: Writer) -> int:
    """Append messages, all or none, leaving out those that are there already; return the last one there is now.

    If anybody else appends meanwhile, that raises :class:`~headrace.errors.OvertakenError`.
    """
    files = list(write_files(ledger.folder, ledger.staging, ledger.log, ledger.through, rows))
    if files:
        ledger.append(files, writer)
        ledger.refresh()
    return ledger.through
