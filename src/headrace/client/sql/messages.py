"""The table ``messages`` of a log: its own files, preceded by messages that only its archive has."""

from __future__ import annotations

from typing import Any, Final

import pyarrow.dataset as ds

from headrace.archive.past import ArchivedPast
from headrace.client.sql.log_table import LogTable
from headrace.log import Log
from headrace.message import SCHEMA

HERE: Final = "messages_here"
"""The part of the messages that the log's own files have, if there is another."""

_ARCHIVED: Final = "messages_archived"

BOTH: Final = f"create view messages as from {_ARCHIVED} union all by name from {HERE}"


def messages_of(log: Log, upto: int) -> dict[str, Any]:
    """Return the tables that ``messages`` is made of."""
    past, end = log.past, min(upto, log.first_here - 1)
    if not isinstance(past, ArchivedPast) or log.first > end:
        return {"messages": LogTable(log, upto)}
    system, files = past.files(log.first, end)
    form, seq = ds.ParquetFileFormat(), ds.field("seq")
    fragments = [
        form.make_fragment(file.path, system, (seq >= file.first) & (seq <= file.last)) for file in files
    ]
    archived = ds.FileSystemDataset(fragments, SCHEMA, form, system).filter(seq <= end)
    return {_ARCHIVED: archived, HERE: LogTable(log, upto)}
