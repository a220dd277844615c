"""The source: the sequence as rows, as a stream or as a batch.

An offset is ``{"log": uuid, "seq": n}``: everything up to ``n`` has been read. The range between two offsets is cut
into as many partitions as there are cores, and executors read them (:mod:`~headrace.spark.source.range_rows`). Nothing
else is kept: a stream that resumes from its checkpoint, on another machine or after a restart of the hub, needs only
its offset.

Offsets never pass the head. Sequence numbers belong to messages alone, without a gap, so offsets count rows: a stream
that keeps a hold, which is an entry of the log, does not wake itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.message import SCHEMA
from headrace.platforms import usable_cores
from headrace.spark.options import SourceOptions
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.spark_release import (
    HAS_LIMITS,
    RELEASE,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.link.client import Extent

SPARK_SCHEMA: Final = from_arrow_schema(SCHEMA)
"""The envelope as Spark has it."""


def schema_of(options: SourceOptions) -> StructType:
    """Return the columns that the options name."""
    if options.columns is None:
        return SPARK_SCHEMA
    return StructType([SPARK_SCHEMA[name] for name in options.columns])


LEAST_ROWS: Final = 10_000
"""The smallest partition, unless ``minPartitions`` is given: a task costs too."""

MOST_ROWS: Final = 2_000_000
"""The largest partition: a task that fails has to be repeated."""

Offset = dict[str, Any]


class SequencePartition(InputPartition):
    """A range of a log's sequence, and the log's path on the hub's machine."""

    def __init__(self, log: str, path: str, first: int, last: int) -> None:
        self.log = log
        self.path = path
        self.first = first
        self.last = last

    def __repr__(self) -> str:
        return f"SequencePartition({self.first}..{self.last} of {self.log})"


class _Reader:
    """The common part of both readers."""

    def __init__(self, options: SourceOptions, parallelism: int) -> None:
        self._options = options
        self._parallelism = parallelism

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; runs in an executor."""
        from headrace.spark.source.range_rows import LogRange, read_range

        if isinstance(partition, SequencePartition) and partition.first <= partition.last:
            span = LogRange(partition.log, partition.path, partition.first, partition.last)
            yield from read_range(self._options, span)
        hide_from_collector("read")

    def _extent(
        self, *, at_once: bool = False, from_seq: int | None = None, size: int | None = None
    ) -> Extent:
        from headrace.spark.hub_connections import link

        with link(self._options.access, at_once=at_once) as client:
            return client.head(from_seq=from_seq, size=size)

    def _start(self, place: str | int, extent: Extent) -> int:
        """Return the number before the first to be read."""
        from headrace.spark.hub_connections import link

        if self._options.starting_time is not None:
            with link(self._options.access) as client:
                return client.first_at(self._options.starting_time) - 1
        if place == "earliest":
            return extent.first - 1
        if place == "latest":
            return extent.head
        if int(place) > extent.head + 1:
            raise UsageError(f"startingOffsets = {place}: the log's head is {extent.head}")
        return int(place) - 1

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
        """Return the range that the options name, in partitions."""
        options = self._options
        extent = self._extent(at_once=True)
        first = self._start(options.starting or "earliest", extent) + 1
        last = extent.head if options.ending == "latest" else int(options.ending)
        if last > extent.head:
            raise UsageError(f"endingOffsets = {last}: the log's head is {extent.head}")
        # If there is none, Spark would make a partition of its own.
        return self._partitions(extent, first, last) or [SequencePartition(extent.log, "", 1, 0)]


class SequenceStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream.format("headrace")``.

    One instance lives in a Python process beside the driver as long as the query runs; its state only saves requests.
    """

    def __init__(self, options: SourceOptions, parallelism: int) -> None:
        super().__init__(options, parallelism)
        if not HAS_LIMITS and any((options.max_offsets, options.max_bytes, options.min_bytes)):
            raise UsageError(
                f"PySpark {RELEASE} lets no Python source limit its micro-batches, which came with 4.2: leave "
                "maxOffsetsPerTrigger, maxBytesPerTrigger and minBytesPerTrigger out"
            )
        self._target: int | None = None
        """The end of a query with ``availableNow``."""
        self._known: Extent | None = None
        self._taken: float | None = None
        """When the newest batch was taken, by ``monotonic``."""
        self._held = 0
        self._reported = 0
        """The last lost message that was reported."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the beginning of a new query; called once in a query's life."""
        extent = self._look(at_once=True)
        start = self._start(self._options.starting or "latest", extent)
        if self._options.hold is not None:
            self._hold(start + 1)
        return _offset(extent.log, start)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch."""
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
        if end <= begin or (self._target is None and not self._due(begin)):
            return start
        if isinstance(limit, ReadMaxRows):
            # Counted from the first that exists: lost messages are skipped at no cost.
            end = min(end, max(begin, extent.first - 1) + limit.max_rows)
        if most_bytes is not None and extent.reach is not None:
            end = min(end, max(extent.reach, begin + 1))
        return _offset(extent.log, end)

    if not HAS_LIMITS:

        def latestOffset(self) -> Offset:  # type: ignore[misc]  # noqa: N802
            """Return the head: before PySpark 4.2, a micro-batch is all that there is."""
            extent = self._look()
            return _offset(extent.log, extent.head)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch that the options set."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the head, to show how far behind a query is."""
        return None if self._known is None else _offset(self._known.log, self._known.head)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that reads what exists now."""
        self._target = self._look(at_once=True).head

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions of one batch."""
        extent = self._look(start)
        last = _seq(end)
        if last > extent.head:
            # The batch was planned by another node's head, or before the hub lost the end of its log.
            extent = self._catch_up(last)
            last = min(last, extent.head)
        return self._partitions(extent, _seq(start) + 1, last)

    def commit(self, end: Offset) -> None:
        """Move the hold: this query no longer needs the messages of a finished batch."""
        if self._options.hold is not None:
            self._hold(_seq(end) + 1)

    def stop(self) -> None:
        """End the query."""
        from headrace.spark.hub_connections import close_links

        close_links()

    def _due(self, begin: int) -> bool:
        """Return whether the messages after ``begin`` are enough for a batch, or have waited long enough.

        As with Kafka's ``minOffsetsPerTrigger``, the wait counts from the batch before; the first does not wait.
        """
        least, now = self._options.min_bytes, monotonic()
        if least is not None and self._taken is not None and now - self._taken < self._options.max_delay:
            extent = self._extent(from_seq=begin + 1, size=least)
            if extent.reach is None or extent.reach >= extent.head:
                return False
        self._taken = now
        return True

    def _look(
        self,
        offset: Mapping[str, Any] | None = None,
        *,
        at_once: bool = False,
        from_seq: int | None = None,
        size: int | None = None,
    ) -> Extent:
        from headrace.spark.source.range_rows import another_log

        extent = self._extent(at_once=at_once, from_seq=from_seq, size=size)
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
                # Setting a hold appends a log entry even if it does not move: avoid that for a query's first.
                if self._held or client.holds().get(hold) != place:
                    client.hold(hold, place)
            self._held = seq

    def _catch_up(self, seq: int) -> Extent:
        """Wait for a node that is behind. A log that stays behind has lost its end, and will reuse the numbers."""
        from headrace.spark.hub_connections import link, wait_for_head
        from headrace.spark.source.range_rows import REWOUND, report_loss

        with link(self._options.access) as client:
            extent = wait_for_head(client, seq, self._options.access)
        if extent.head < seq and seq > self._reported:
            self._reported = seq
            report_loss(self._options, extent.head + 1, seq, REWOUND)
        return extent


def split(first: int, last: int, parallelism: int, least: int | None = None) -> list[tuple[int, int]]:
    """Cut a range into even parts: at least ``least``, else as many as can run at a time and are worth a task.

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
    """Return the number of tasks expected to run at a time by default: this machine's cores."""
    return usable_cores()


def _offset(log: str, seq: int) -> Offset:
    return {"log": log, "seq": seq}


def _seq(offset: Mapping[str, Any]) -> int:
    seq = offset.get("seq")
    if type(seq) is not int or not isinstance(offset.get("log"), str):
        raise UsageError(f'{dict(offset)!r} is no offset of ours: expected {{"log": uuid, "seq": number}}')
    return seq
