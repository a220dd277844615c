"""A way to fill a log that is looked into."""

from __future__ import annotations

from headrace.log import Log
from headrace.message import Batch


def append(log: Log, *batches: Batch) -> None:
    for batch in batches:
        first = log.tail + (0 if batch.is_entries else 1)
        log.append([batch.numbered(log.tail_op + 1, first, 1, 7)])
    log.commit(log.tail_op)
