"""Tables of subscriptions for the tasks of a fleet, where every executor can read them.

The hub gives all subscriptions as of its head; a task needs them as of the beginning of its micro-batch. So the driver
keeps the table of the run's beginning and, now and then, a newer one. A task starts from the newest table that is not
past its beginning, or from the share it remembers, and applies the entries in between. Once the fleet has passed a
table, older ones are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.archive.folder import Folder, storage_errors
from headrace.errors import StorageError

EVERY: Final = 1_000_000
"""Messages and entries from table to table: about the most that a task without a share has to look through."""

_SUFFIX: Final = ".subscriptions"


class SubscriptionTable(NamedTuple):
    """The subscriptions as they were some time after message ``seq`` and before the next."""

    seq: int
    op: int
    """The log's own position up to which every entry is in the table."""
    rows: pa.Table


class SubscriptionTables:
    """The tables of one run, in a folder; tasks get copies of this."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def add(self, rows: pa.Table) -> SubscriptionTable:
        """Keep a table as the link gives it."""
        table = _with_place(rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        with storage_errors(f"the subscriptions cannot be written to {self._folder.path}"):
            self._folder.write(f"{table.seq:015d}{_SUFFIX}", sink.getvalue().to_pybytes())
        return table

    def find(self, place: int) -> SubscriptionTable:
        """Read the newest table that is not past ``place``."""
        with storage_errors(f"the subscriptions cannot be read from {self._folder.path}"):
            seqs = [seq for seq in self._seqs() if seq <= place]
            if not seqs:
                raise StorageError(
                    f"{self._folder.path} has no subscriptions of before {place + 1}: executors must see the same path"
                )
            with pa.ipc.open_stream(self._folder.read(f"{seqs[-1]:015d}{_SUFFIX}")) as reader:
                return _with_place(reader.read_all())

    def drop_before(self, place: int) -> None:
        """Remove the tables that nobody at or after ``place`` needs."""
        with storage_errors(f"{self._folder.path}"):
            for seq in [seq for seq in self._seqs() if seq <= place][:-1]:
                self._folder.remove(f"{seq:015d}{_SUFFIX}")

    def _seqs(self) -> Iterator[int]:
        for name in self._folder.names():
            if name.endswith(_SUFFIX):
                yield int(name.removesuffix(_SUFFIX))


def _with_place(rows: pa.Table) -> SubscriptionTable:
    seq, op = (int(rows.schema.metadata[name]) for name in (b"head", b"op"))
    return SubscriptionTable(seq, op, rows)
