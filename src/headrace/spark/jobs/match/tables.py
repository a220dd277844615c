"""The subscriptions that a run of the fleet begins with, kept where every executor can read them.

The hub tells what all clients want as it is at its head. A task needs it as it was before its micro-batch. So the
driver keeps tables of some places in the sequence: the one of the run's beginning and, from time to time, a newer one.
From a table that is not beyond its place a task comes to it by the entries of the log in between, or goes on from what
it remembers of the micro-batch before. A table becomes useful when the fleet has passed its place; then older ones go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.errors import StorageError
from headrace.spark.jobs.folder import Folder, storage_errors
from headrace.wire.attribute.messages import CLIENT_ID_BYTES

EVERY: Final = 1_000_000
"""A newer table is taken when the fleet has come this far since the last one: what a task without any memory has to
look through at most, about."""

_SUFFIX: Final = ".subscriptions"


class SubscriptionTable(NamedTuple):
    """The subscriptions as they were when entry ``seq`` was in the log."""

    seq: int
    rows: pa.Table


class SubscriptionTables:
    """The tables of one run, in a folder; tasks get copies of this."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def add(self, rows: pa.Table) -> int:
        """Keep a table as the link gives it; returns its place."""
        seq = int(rows.schema.metadata[b"head"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        with storage_errors(f"the subscriptions cannot be written to {self._folder.path}"):
            self._folder.write(f"{seq:015d}{_SUFFIX}", sink.getvalue().to_pybytes())
        return seq

    def find(self, place: int) -> SubscriptionTable:
        """The newest table that is not beyond a place."""
        with storage_errors(f"the subscriptions cannot be read from {self._folder.path}"):
            seqs = [seq for seq in self._seqs() if seq <= place]
            if not seqs:
                raise StorageError(
                    f"{self._folder.path} has no subscriptions of before {place + 1}: executors must see the same path"
                )
            with pa.ipc.open_stream(self._folder.read(f"{seqs[-1]:015d}{_SUFFIX}")) as reader:
                return SubscriptionTable(seqs[-1], reader.read_all())

    def drop_before(self, place: int) -> None:
        """Remove what nobody at or behind a place needs."""
        with storage_errors(f"{self._folder.path}"):
            for seq in [seq for seq in self._seqs() if seq <= place][:-1]:
                self._folder.remove(f"{seq:015d}{_SUFFIX}")

    def _seqs(self) -> Iterator[int]:
        for name in self._folder.names():
            if name.endswith(_SUFFIX):
                yield int(name.removesuffix(_SUFFIX))


def matcher_table(rows: pa.Table) -> pa.Table:
    """A table of the link as :meth:`headrace.matching.Matcher.load` takes it."""
    clients = b"".join(map(bytes.fromhex, rows.column("client").to_pylist()))
    ids = pa.Array.from_buffers(pa.binary(CLIENT_ID_BYTES), rows.num_rows, [None, pa.py_buffer(clients)])
    return pa.table({"client": ids, "predicates": rows.column("fields")})
