"""The fleet as a Spark source: a task is a whole micro-batch and one share of the clients.

Offsets are the source's own (:mod:`headrace.spark.source.reader`). But every task reads the whole range, and the log's
entries of subscriptions in it. It matches the messages for its :class:`~headrace.spark.jobs.match.share.Share` of the
clients, in order, and pushes as it goes. So one task pushes everything for a client, in the order of the sequence and
without a hole. A repeated task pushes the whole micro-batch again; connectors drop repeats. The rows are facts about
each task.

A Python worker runs many tasks and remembers their shares: the next time only changed subscriptions are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headrace.archive.folder import Folder
from headrace.config import Address
from headrace.errors import LostRangeError, TrimmedError, UnreachableError, UsageError
from headrace.spark.hub_connections import link, wait_for_head
from headrace.spark.jobs.job import spark_ddl
from headrace.spark.jobs.match.push import DispatcherConnection
from headrace.spark.jobs.match.share import ENTRIES, Changes, Share
from headrace.spark.jobs.match.tables import SubscriptionTables
from headrace.spark.options import SourceOptions, parse_source_options
from headrace.spark.runtime.driver_settings import tasks_at_a_time
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.source.range_rows import REWOUND, TRIMMED, LogRange, another_log, read_range
from headrace.spark.source.reader import Offset, SequencePartition, SequenceStreamReader
from headrace.wire.attribute.messages import MatcherPush, serialize
from headrace.wire.attribute.push_parts import split

NAME: Final = "headrace-fleet"
_DONE: Final = pa.schema(
    [
        pa.field("share", pa.int32()),
        *(
            pa.field(name, pa.int64())
            for name in ("first", "last", "op", "subscriptions", "messages", "matched", "pushed")
        ),
    ]
)

SEND_BYTES: Final = 256 << 10
"""Pushes are sent in pieces of about this size."""

MAX_KEPT: Final = 64
"""Shares that a process remembers."""

AGAIN_SECONDS: Final = 0.2

_kept: dict[tuple[str, str, int, int], Share] = {}
_keeping = threading.Lock()


@dataclass(frozen=True, slots=True)
class Fleet:
    """The settings of every task."""

    options: SourceOptions
    dispatcher: Address
    tables: str
    """The folder with the run's tables."""
    shares: int
    json_attributes: bool = False
    answers: bool = True
    """Whether the dispatcher answers heartbeats."""


class FleetPartition(InputPartition):
    """A range of the sequence, and a share of the clients."""

    def __init__(self, span: LogRange, share: int) -> None:
        self.span = span
        self.share = share


class FleetDataSource(DataSource):
    """``spark.readStream.format("headrace-fleet")``, for the job ``match``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> str:
        """Return the schema: facts about each task."""
        return spark_ddl(_DONE)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Make the fleet's reader."""
        given = {name.lower(): value for name, value in self.options.items()}
        names = ("dispatcher", "answers", "tables", "shares", "jsonattributes")
        own = {name: given.pop(name) for name in names}
        fleet = Fleet(
            parse_source_options(given, stream=True),
            Address.parse(own["dispatcher"]),
            own["tables"],
            int(own["shares"]),
            json_attributes=own["jsonattributes"] == "true",
            answers=own["answers"] == "true",
        )
        return FleetReader(fleet)


class FleetReader(SequenceStreamReader):
    """Plans micro-batches as the source does, and gives each share a task."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.options, tasks_at_a_time())
        self._fleet = fleet

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Make a task for each share."""
        ranges = [each for each in super().partitions(start, end) if isinstance(each, SequencePartition)]
        if not ranges:
            return []
        span = LogRange(ranges[0].log, ranges[0].path, ranges[0].first, ranges[-1].last)
        return [FleetPartition(span, share) for share in range(self._fleet.shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Do one task; runs in an executor."""
        if not isinstance(partition, FleetPartition):
            return
        done = push_share(self._fleet, partition.span, partition.share)
        yield pa.RecordBatch.from_pylist([done], _DONE)
        hide_from_collector("match")


def push_share(fleet: Fleet, span: LogRange, number: int) -> Mapping[str, int]:
    """Match a range for one share and push it; start again if the connection to the dispatcher is lost."""
    deadline = None
    while True:
        try:
            return _push_once(fleet, span, number)
        except UnreachableError:
            now = monotonic()
            deadline = now + fleet.options.access.patience if deadline is None else deadline
            if now >= deadline:
                raise
            threading.Event().wait(AGAIN_SECONDS)


def _push_once(fleet: Fleet, span: LogRange, number: int) -> Mapping[str, int]:
    key = (span.log, fleet.tables, fleet.shares, number)
    share = _share_at(fleet, span, number, key)
    share.matched = share.found = pushed = 0
    connection = None
    try:
        following = span.first
        changes = Changes(_entries(fleet, span, share))
        for rows in read_range(fleet.options, span):
            seqs = rows.column("seq")
            if seqs[0].as_py() != following or seqs[-1].as_py() != following + rows.num_rows - 1:
                raise LostRangeError(following, seqs[-1].as_py(), "the hub did not send all of it")
            following += rows.num_rows
            for data, count in _serialized(share.pushes(rows, changes)):
                if connection is None:
                    connection = DispatcherConnection(
                        fleet.dispatcher, fleet.options.access.patience, answers=fleet.answers
                    )
                connection.send(data)
                pushed += count
            if connection is not None:
                connection.keep()
        if following <= span.last:
            raise LostRangeError(following, span.last, "the hub did not send all of it")
        if connection is not None:
            connection.finish()
    finally:
        if connection is not None:
            connection.close()
    facts = {
        "share": number,
        "first": span.first,
        "last": span.last,
        "op": share.op,
        "subscriptions": len(share),
        "messages": span.last - span.first + 1,
        "matched": share.found,
        "pushed": pushed,
    }
    _keep(key, share)
    return facts


def _share_at(fleet: Fleet, span: LogRange, number: int, key: tuple[str, str, int, int]) -> Share:
    """Return a share that has no change after the beginning of a range, remembered or made from a table.

    No other task has it. Its changes up to the beginning of the range may be missing.
    """
    with _keeping:
        share = _kept.pop(key, None)
    if share is None or share.changed >= span.first:
        table = SubscriptionTables(Folder.at(fleet.tables)).find(span.first - 1)
        share = Share(table, number, fleet.shares, json_attributes=fleet.json_attributes)
    return share


def _entries(fleet: Fleet, span: LogRange, share: Share) -> Iterator[pa.RecordBatch]:
    """Read the entries of subscriptions that count for a range and that a share does not have; it then has them."""
    # An entry after the last message counts only for what comes later, and more may follow it.
    first, last = share.place, span.last - 1
    if first > last:
        return
    access = fleet.options.access
    with link(access) as client:
        if client.log != span.log:
            raise UsageError(another_log(span.log, client.log))
        # Only a hub that has the message after them has them all.
        head = wait_for_head(client, span.last, access).head
        if head < span.last:
            raise LostRangeError(head + 1, span.last, REWOUND)
        # From a position: of the entries after the share's message some may be gone, and others not.
        stream = client.entries(first, last, topic=ENTRIES, from_op=share.op + 1)
        try:
            yield from stream
        except TrimmedError as trimmed:
            raise LostRangeError(first, max(trimmed.oldest - 1, first), TRIMMED) from None
        # That is where the range's last message is, which is no entry.
        share.op = stream.position or share.op


def _keep(key: tuple[str, str, int, int], share: Share) -> None:
    with _keeping:
        _kept[key] = share
        for old in [each for each in _kept if each[:3] != key[:3]]:
            del _kept[old]  # of another run
        while len(_kept) > MAX_KEPT:
            del _kept[next(iter(_kept))]


def _serialized(pushes: Iterator[MatcherPush]) -> Iterator[tuple[bytes, int]]:
    """Serialize pushes, many at a time; yield their bytes and number."""
    parts: list[bytes] = []
    size = count = 0
    for push in pushes:
        parts += map(serialize, split(push))
        count += 1
        size += len(push.payload) + len(push.clients)
        if size >= SEND_BYTES:
            yield b"".join(parts), count
            parts, size, count = [], 0, 0
    if parts:
        yield b"".join(parts), count
