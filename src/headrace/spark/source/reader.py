"""The source: the sequence as rows, as a stream or as a batch.

An offset is ``{"log": uuid, "seq": n}``: everything up to ``n`` has been read. Between two offsets is a range of the
sequence, which is cut into as many partitions as there are cores to read them, and read by whichever executor has
time (:mod:`~headrace.spark.source.range_rows`). Nothing else is kept: a stream that goes on from its checkpoint, on
another machine and after the hub was restarted, needs no more than its offset.

Offsets never go past the head. They do not move for log entries alone (a hold that was moved, say): those come with the
next message. So a stream that keeps a hold does not wake itself, and an idle hub stays idle.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import UsageError
from headrace.spark.options import Reading
from headrace.spark.runtime.python_workers import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.link.client import Extent

SPARK_SCHEMA: Final = StructType(
    [
        StructField("seq", LongType(), False),
        StructField("time", TimestampType(), False),
        StructField("origin", StringType(), False),
        StructField("node", IntegerType(), False),
        StructField("publisher", StringType(), False),
        StructField("number", LongType(), True),
        StructField("topic", StringType(), False),
        StructField("attributes", MapType(StringType(), StringType()), False),
        StructField("numbers", MapType(StringType(), DoubleType()), False),
        StructField("payload", BinaryType(), False),
    ]
)
"""The envelope as Spark has it; in Arrow it is :data:`headrace.message.SCHEMA`."""


def schema_of(options: Reading) -> StructType:
    """The columns that the options name."""
    if options.columns is None:
        return SPARK_SCHEMA
    return StructType([SPARK_SCHEMA[name] for name in options.columns])


LEAST_ROWS: Final = 10_000
"""A range is not cut into smaller partitions than this, unless ``minPartitions`` says so: a task costs too."""

MOST_ROWS: Final = 2_000_000
"""Nor are partitions larger: a task that fails has to be done again."""

Offset = dict[str, Any]


class SequencePartition(InputPartition):
    """A range of a log's sequence, and where the log lies on the hub's machine."""

    def __init__(self, log: str, path: str, first: int, last: int) -> None:
        self.log = log
        self.path = path
        self.first = first
        self.last = last

    def __repr__(self) -> str:
        return f"SequencePartition({self.first}..{self.last} of {self.log})"


class _Reader:
    """What both readers share."""

    def __init__(self, options: Reading, parallelism: int) -> None:
        self._options = options
        self._parallelism = parallelism

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs in an executor."""
        from headrace.spark.source.range_rows import Span, read_span

        if isinstance(partition, SequencePartition) and partition.first <= partition.last:
            span = Span(partition.log, partition.path, partition.first, partition.last)
            yield from read_span(self._options, span)
        settle("read")

    def _extent(self, *, at_once: bool = False, **asked: int | None) -> Extent:
        from headrace.spark.hub_connections import link

        with link(self._options.access, at_once=at_once) as client:
            return client.head(**asked)

    def _start(self, place: str | int, extent: Extent) -> int:
        """The number before the first that is to be read."""
        if self._options.starting_time is not None:
            return self._seq_at(self._options.starting_time) - 1
        if place == "earliest":
            return extent.first - 1
        if place == "latest":
            return extent.head
        if int(place) > extent.head + 1:
            raise UsageError(f"startingOffsets = {place}: the log's head is {extent.head}")
        return int(place) - 1

    def _seq_at(self, time: int) -> int:
        from headrace.spark.hub_connections import link

        with link(self._options.access) as client:
            first: int = client.first_at(time)
            return first

    def _partitions(self, extent: Extent, first: int, last: int) -> list[SequencePartition]:
        from headrace.spark.source.range_rows import report_loss

        if first < extent.first:
            lost = min(extent.first - 1, last)
            report_loss(self._options, first, lost)
            first = lost + 1
        least = self._options.min_partitions
        return [
            SequencePartition(extent.log, extent.path, *each)
            for each in split(first, last, self._parallelism, least)
        ]


class SequenceReader(_Reader, DataSourceReader):
    """``spark.read.format("headrace")``."""

    def partitions(self) -> Sequence[InputPartition]:
        """The range that the options name, cut to size."""
        options = self._options
        extent = self._extent(at_once=True)
        first = self._start(options.starting or "earliest", extent) + 1
        last = extent.head if options.ending == "latest" else int(options.ending)
        if last > extent.head:
            raise UsageError(f"endingOffsets = {last}: the log's head is {extent.head}")
        # Spark makes a partition of its own where it gets none.
        return self._partitions(extent, first, last) or [SequencePartition(extent.log, "", 1, 0)]


class SequenceStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream.format("headrace")``.

    One instance lives in a Python process beside the driver for as long as the query runs; what it keeps between calls
    is there to save questions.
    """

    def __init__(self, options: Reading, parallelism: int) -> None:
        super().__init__(options, parallelism)
        self._target: int | None = None
        """Where a query with ``availableNow`` ends."""
        self._known: Extent | None = None
        self._taken: float | None = None
        """When the newest batch was taken, by the clock of ``monotonic``."""
        self._held = 0
        self._told = 0
        """Up to where lost messages were reported."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins; asked once in a query's life."""
        extent = self._look(at_once=True)
        start = self._start(self._options.starting or "latest", extent)
        if self._options.hold is not None:
            self._hold(start + 1)
        return _offset(extent.log, start)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes."""
        begin = _seq(start)
        most_bytes = self._options.max_bytes if isinstance(limit, ReadMaxRows) else None
        if isinstance(limit, ReadMaxBytes):
            most_bytes = limit.max_bytes
        first = None if most_bytes is None else begin + 1
        extent = self._look(start, from_seq=first, size=most_bytes)
        if extent.head < begin:
            self._catch_up(begin)
            extent = self._look(start, from_seq=first, size=most_bytes)
        end = extent.head if self._target is None else min(self._target, extent.head)
        if end <= begin or extent.message <= begin or (self._target is None and not self._due(begin)):
            return start
        if isinstance(limit, ReadMaxRows):
            # Counted from the first that there is: what was lost is passed over at no cost.
            end = min(end, max(begin, extent.first - 1) + limit.max_rows)
        if most_bytes is not None and extent.reach is not None:
            end = min(end, max(extent.reach, begin + 1))
        return _offset(extent.log, end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say a batch may hold."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The head, for those who watch how far behind a query is."""
        return None if self._known is None else _offset(self._known.log, self._known.head)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that reads what there is now."""
        self._target = self._look(at_once=True).head

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges of one batch."""
        extent = self._look(start)
        last = _seq(end)
        if last > extent.head:
            # A batch that was planned by another node's head, or before the hub lost the end of its log.
            extent = self._catch_up(last)
            last = min(last, extent.head)
        return self._partitions(extent, _seq(start) + 1, last)

    def commit(self, end: Offset) -> None:
        """A batch is done with: what is up to its end need not be kept for this query."""
        if self._options.hold is not None:
            self._hold(_seq(end) + 1)

    def stop(self) -> None:
        """The query is over."""
        from headrace.spark.hub_connections import close_links

        close_links()

    def _due(self, begin: int) -> bool:
        """Whether what is behind ``begin`` need not wait for more: it is enough, or has waited for long enough.

        As with Kafka's ``minOffsetsPerTrigger``, the wait counts from the batch before; the first has none.
        """
        least, now = self._options.min_bytes, monotonic()
        if least is not None and self._taken is not None and now - self._taken < self._options.max_delay:
            extent = self._extent(from_seq=begin + 1, size=least)
            if extent.reach is None or extent.reach >= extent.head:
                return False
        self._taken = now
        return True

    def _look(
        self, offset: Mapping[str, Any] | None = None, *, at_once: bool = False, **asked: int | None
    ) -> Extent:
        from headrace.spark.source.range_rows import another_log

        extent = self._extent(at_once=at_once, **asked)
        if offset is not None and offset.get("log") != extent.log:
            raise UsageError(another_log(str(offset.get("log")), extent.log))
        self._known = extent
        return extent

    def _hold(self, seq: int) -> None:
        from headrace.spark.hub_connections import link

        if seq != self._held and (hold := self._options.hold) is not None:
            oldest = 1 if self._known is None else self._known.first
            place = max(seq, oldest)
            with link(self._options.access) as client:
                # A hold that is set is an entry of the log, moved or not: a query's first may be where it is.
                if self._held or client.holds().get(hold) != place:
                    client.hold(hold, place)
            self._held = seq

    def _catch_up(self, seq: int) -> Extent:
        """Wait for a node that is behind. A log that stays so lost its end: the numbers are given to others."""
        from headrace.spark.hub_connections import link, reach
        from headrace.spark.source.range_rows import REWOUND, report_loss

        with link(self._options.access) as client:
            extent = reach(client, seq, self._options.access)
        if extent.head < seq and seq > self._told:
            self._told = seq
            report_loss(self._options, extent.head + 1, seq, REWOUND)
        return extent


def split(first: int, last: int, parallelism: int, least: int | None = None) -> list[tuple[int, int]]:
    """Cut a range into even parts: at least ``least``, else as many as can be read at a time and are worth a task.

    >>> split(1, 10, 4, 3)
    [(1, 4), (5, 7), (8, 10)]
    >>> split(1, 100, 4)
    [(1, 100)]
    >>> len(split(1, 100_000, 4)), len(split(1, 10_000_000, 4)), split(5, 4, 4)
    (4, 5, [])
    """
    count = last - first + 1
    if count <= 0:
        return []
    if least is not None:
        parts = max(least, -(-count // MOST_ROWS))
    else:
        parts = max(min(parallelism, count // LEAST_ROWS), -(-count // MOST_ROWS), 1)
    parts = min(parts, count)
    edges = [first + count * part // parts + (count * part % parts > 0) for part in range(parts + 1)]
    return [(edges[part], edges[part + 1] - 1) for part in range(parts)]


def cores() -> int:
    """How many tasks can be expected to run at a time where nobody says: as many as this machine has cores."""
    return len(os.sched_getaffinity(0)) or 1


def _offset(log: str, seq: int) -> Offset:
    return {"log": log, "seq": seq}


def _seq(offset: Mapping[str, Any]) -> int:
    seq = offset.get("seq")
    if type(seq) is not int or not isinstance(offset.get("log"), str):
        raise UsageError(f'{dict(offset)!r} is no offset of ours: expected {{"log": uuid, "seq": number}}')
    return seq
