"""Back up a hub: add the messages that its archive lacks, then save a snapshot of the hub's state there.

The snapshot is taken first and saved last, so that the archive always covers it. If a job archives the same log, a
backup adds only the messages that the job has not reached yet; if both add at once, the slower one starts over where
the other ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.archive.appending import append, check_history, ledger_for
from headrace.archive.backups import save_snapshot
from headrace.archive.ledger import Writer
from headrace.client.link.client import LinkClient
from headrace.errors import ArchiveError, OvertakenError, TrimmedError, UsageError
from headrace.hub.state_parts import StateParts
from headrace.log import Log
from headrace.log.snapshots.snapshot import parse

_STEP: Final = 256 << 20
"""Bytes of messages that are fetched from a hub, and then added to the archive at once."""

_WRITER: Final = "headrace backup"
_EMPTY: Final = "the log has no messages yet: there is nothing to back up"


class BackedUp(NamedTuple):
    """A backup: the log, the last message that the snapshot covers, and the number of messages added to the archive."""

    log: str
    snapshot: int
    added: int


async def back_up(link: LinkClient, place: str, kind: str = "delta") -> BackedUp:
    """Back up a running hub; a new archive gets the format ``kind``."""
    data = await link.snapshot()
    last, added = parse(data, "the hub's snapshot").seq, 0
    if not last:
        raise UsageError(_EMPTY)
    while (ledger := await asyncio.to_thread(ledger_for, place, link.log, kind)).through < last:
        first = ledger.through + 1
        if (await link.head()).first < first:
            # A hub that has these messages only in an archive has nothing to compare.
            with contextlib.suppress(ArchiveError, TrimmedError):
                async with link.read(first - 1, first - 1) as stream:
                    check_history(ledger, [batch async for batch in stream])
        rows: list[pa.RecordBatch] = []
        size = 0
        async with link.read(first, last) as stream:
            async for batch in stream:
                rows.append(batch)
                size += batch.nbytes
                if size >= _STEP:
                    break
        with contextlib.suppress(OvertakenError):
            added += await asyncio.to_thread(append, ledger, rows, Writer(_WRITER, first)) - first + 1
    await asyncio.to_thread(save_snapshot, place, data)
    return BackedUp(link.log, last, added)


def back_up_files(directory: Path, place: str, kind: str = "delta") -> BackedUp:
    """Back up the log of a stopped hub."""
    log = Log.open(directory)
    try:
        state = StateParts().state()
        state.restore(log)
        if not log.head:
            raise UsageError(_EMPTY)
        ledger = ledger_for(place, str(log.uuid), kind)
        first = ledger.through + 1
        if log.first < first <= log.head:
            check_history(ledger, [batch.to_arrow() for batch in log.read(first - 1, first - 1)])

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in log.scan(first):
                yield batch.to_arrow()

        through = append(ledger, rows(), Writer(_WRITER, first)) if first <= log.head else ledger.through
        save_snapshot(place, log.packed_snapshot(state.freeze()))
        return BackedUp(str(log.uuid), state.seq, through - first + 1)
    finally:
        log.close()
