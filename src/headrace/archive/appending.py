"""Append to an archive from one process, without Spark: what a backup does, and what is too little for a cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.archive.folder import Folder
from headrace.archive.ledger import Ledger, Writer
from headrace.archive.parquet_file import write_files
from headrace.archive.table import format_of, open_ledger


def ledger_for(place: str, log: str, kind: str = "delta") -> Ledger:
    """Open the ledger of a log's archive to write to it; an archive that is begun is in the format ``kind``."""
    folder = Folder.at(place)
    return open_ledger(format_of(folder) or kind, folder, log)


def append(ledger: Ledger, rows: Iterable[pa.RecordBatch], writer: Writer) -> int:
    """Append messages, all or none, leaving out those that are there already; return the last one there is now.

    If anybody else appends meanwhile, that raises :class:`~headrace.errors.OvertakenError`.
    """
    files = list(write_files(ledger.folder, ledger.staging, ledger.log, ledger.through, rows))
    if files:
        ledger.append(files, writer)
        ledger.refresh()
    return ledger.through
