"""The copies of a history that a command can look at: a log's files, a hub over the link, an archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.archive.copy import ArchiveCopy
from headrace.archive.table import open_table
from headrace.cli.terminal.options import DoorScheme, committed_head, door_of, existing_log, hub_access
from headrace.client.link_copy import HubCopy
from headrace.client.sync import SyncLinkClient
from headrace.config import Settings
from headrace.log import Log
from headrace.log.proof.chain import Chain
from headrace.message import merge

READ_BYTES: Final = 4 << 20


class LogCopy:
    """A log's files, which a hub may be writing."""

    def __init__(self, log: Log, head: int) -> None:
        self.name = str(log.directory)
        self.at_hand = True
        self.log, self.first, self.head = log.uuid, log.first, head
        self._files = log

    def recorded(self) -> Chain:
        """Return the digests that the log keeps, and those of its open tail."""
        return self._files.chain.at(self.head)

    def rows(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield messages."""
        while first <= last:
            batches = self._files.read(first, last, READ_BYTES)
            if not batches:
                return
            yield merge(batches)
            first = batches[-1].last + 1


@contextmanager
def copy_at(
    place: str | None, settings: Settings, client_id: str | None
) -> Iterator[LogCopy | HubCopy | ArchiveCopy]:
    """Open a copy by a hub's URL, a data directory or an archive's place; by default the log here."""
    if place is not None and "://" in place and door_of(place) is DoorScheme.TUBE:
        access = hub_access(place, DoorScheme.TUBE, client_id)
        with SyncLinkClient(access.link("headrace verify")) as link:
            yield HubCopy(place, link)
        return
    if place is not None and not (Path(place) / "log").is_dir():
        yield ArchiveCopy(place, open_table(place))
        return
    if place is not None:
        settings = settings.override({"node.data": Path(place)}, source="the directory")
    log = Log.open(existing_log(settings), read_only=True)
    try:
        committed = committed_head(settings, client_id)
        yield LogCopy(log, log.head if committed is None else min(log.head, committed))
    finally:
        log.close()
