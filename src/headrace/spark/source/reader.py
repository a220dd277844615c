"""The source: the sequence as rows, as a stream or as a batch.

An offset is ``{"log": uuid, "seq": n, "history": fingerprint}``: everything up to ``n`` has been read, and the
fingerprint is that of all those messages (:attr:`~headrace.log.proof.chain.Chain.fingerprint`). A log that has lost its
end, or was restored from a copy, numbers other messages the same: then the fingerprints differ, and the query is told.
The range between two offsets is cut into partitions (:mod:`~headrace.spark.source.planning`), and executors read them
(:mod:`~headrace.spark.source.range_rows`). Nothing else is kept: a stream that resumes from its checkpoint, on another
machine or after a restart of the hub, needs only its offset.

Offsets never pass the head. Sequence numbers belong to messages alone, without a gap, so offsets count rows: a stream
that keeps a hold, which is an entry of the log, does not wake itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.message import SCHEMA
from headrace.spark.options import SourceOptions
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.source.archived_rows import first_archived_at
from headrace.spark.source.planning import archive_reach, plan
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

    from headrace.archive import ArchiveTable
    from headrace.client.link.client import Extent

logger = logging.getLogger("headrace.spark")

SPARK_SCHEMA: Final = from_arrow_schema(SCHEMA)
"""The envelope as Spark has it."""


def schema_of(options: SourceOptions) -> StructType:
    """Return the columns that the options name."""
    if options.columns is None:
        return SPARK_SCHEMA
    return StructType([SPARK_SCHEMA[name] for name in options.columns])


Offset = dict[str, Any]


class SequencePartition(InputPartition):
    """A range of a log's sequence, the log's path on the hub's machine, and the archive's files that have the range."""

    def __init__(self, log: str, path: str, first: int, last: int, files: tuple[str, ...] = ()) -> None:
        self.log = log
        self.path = path
        self.first = first
        self.last = last
        self.files = files

    def __repr__(self) -> str:
        return f"SequencePartition({self.first}..{self.last} of {self.log})"


class _Reader:
    """The common part of both readers."""

    def __init__(self, options: SourceOptions, parallelism: int) -> None:
        self._options = options
        self._parallelism = parallelism
        self._table: ArchiveTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors are given the files that they read.
        return {**self.__dict__, "_table": None}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; runs in an executor."""
        from headrace.spark.source.range_rows import LogRange, read_range

        if isinstance(partition, SequencePartition) and partition.first <= partition.last:
            span = LogRange(
                partition.log, partition.path, partition.first, partition.last, list(partition.files)
            )
            yield from read_range(self._options, span)
        hide_from_collector("read")

    def _extent(
        self,
        *,
        at_once: bool = False,
        from_seq: int | None = None,
        size: int | None = None,
        history: Sequence[int] = (),
    ) -> Extent:
        from headrace.spark.hub_connections import link

        with link(self._options.access, at_once=at_once) as client:
            return client.head(from_seq=from_seq, size=size, history=history)

    def _archive(self, extent: Extent, first: int) -> ArchiveTable | None:
        """Return the archive's newest version, as far as it matters to a reader that is at ``first``."""
        from headrace.archive import open_table
        from headrace.spark.source.range_rows import another_log

        if self._options.archive is None:
            return None
        if self._table is None:
            self._table = open_table(self._options.archive)
        elif first < extent.first and self._table.through < extent.first - 1:
            # The log no longer has what follows this version: perhaps the archive does by now.
            self._table = self._table.refreshed()
        if self._table.log != extent.log:
            raise UsageError(another_log(self._table.log, extent.log, "archive"))
        return self._table

    def _start(self, place: str | int, extent: Extent) -> int:
        """Return the number before the first to be read."""
        if self._options.starting_time is not None:
            return self._first_at(self._options.starting_time, extent) - 1
        if place == "earliest":
            table = self._archive(extent, 1)
            return (extent.first if table is None else min(extent.first, table.first)) - 1
        if place == "latest":
            return extent.head
        if int(place) > extent.head + 1:
            raise UsageError(f"startingOffsets = {place}: the log's head is {extent.head}")
        return int(place) - 1

    def _first_at(self, time: int, extent: Extent) -> int:
        """Return the first message stamped at a time (µs) or later, or the one after the head."""
        from headrace.spark.hub_connections import link

        table = self._archive(extent, 1)
        if table is not None and (found := first_archived_at(table, time)) <= table.through:
            return found
        with link(self._options.access) as client:
            return client.first_at(time)

    def _partitions(self, extent: Extent, first: int, last: int) -> list[SequencePartition]:
        from headrace.spark.source.range_rows import report_loss

        table = self._archive(extent, first)
        oldest = _oldest(extent, table)
        if first < oldest:
            lost = min(oldest - 1, last)
            report_loss(self._options, first, lost)
            first = lost + 1
        parts = plan(
            first, last, self._parallelism, self._reach, table=table, least=self._options.min_partitions
        )
        return [SequencePartition(extent.log, extent.path, *part) for part in parts]

    def _reach(self, first: int, size: int) -> int | None:
        return self._extent(from_seq=first, size=size).reach


class SequenceReader(_Reader, DataSourceReader):
    """``spark.read.format("headrace")``.

    It has no ``pushFilters``: Spark 4.3 keeps what a read with conditions has planned for every later use of the same
    DataFrame, with other conditions or none.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """Return the range that the options name, in partitions."""
        options = self._options
        extent = self._extent(at_once=True)
        first = self._start(options.starting or "earliest", extent) + 1
        last = extent.head if options.ending == "latest" else int(options.ending)
        if options.ending_time is not None:
            last = self._first_at(options.ending_time, extent) - 1
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
        if not HAS_LIMITS and (options.max_offsets or options.max_bytes or options.has_minimum):
            raise UsageError(
                f"PySpark {RELEASE} lets no Python source limit its micro-batches, which came with 4.2: leave "
                "maxOffsetsPerTrigger, maxBytesPerTrigger, minOffsetsPerTrigger and minBytesPerTrigger out"
            )
        self._target: int | None = None
        """The end of a query with ``availableNow``."""
        self._known: Extent | None = None
        self._taken: float | None = None
        """When the newest batch was taken, by ``monotonic``."""
        self._held = 0
        self._reported = 0
        """The last lost message that was reported."""
        self._other_history: str | None = None
        """The fingerprint of another history that was reported."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the beginning of a new query; called once in a query's life."""
        extent = self._look(at_once=True)
        start = self._start(self._options.starting or "latest", extent)
        if self._options.hold is not None:
            self._hold(start + 1)
        return self._offset(extent, start)

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
        if end <= begin or (self._target is None and not self._due(begin, end)):
            return start
        table = self._archive(extent, begin + 1)
        # Counted from the first that exists: lost messages are skipped at no cost.
        oldest = max(begin + 1, _oldest(extent, table))
        if isinstance(limit, ReadMaxRows):
            end = min(end, oldest - 1 + limit.max_rows)
        if most_bytes is not None and table is not None and oldest < extent.first:
            # The hub cannot tell how many bytes they have that only the archive has.
            end = min(end, archive_reach(table.files(oldest, table.through), oldest, most_bytes))
        elif most_bytes is not None and extent.reach is not None:
            end = min(end, max(extent.reach, begin + 1))
        return self._offset(extent, end, start)

    if not HAS_LIMITS:

        def latestOffset(self) -> Offset:  # type: ignore[misc]  # noqa: N802
            """Return the head: before PySpark 4.2, a micro-batch is all that there is."""
            extent = self._look()
            return self._offset(extent, extent.head)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch that the options set."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the head, to show how far behind a query is."""
        return None if self._known is None else {"log": self._known.log, "seq": self._known.head}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that reads what exists now."""
        self._target = self._look(at_once=True).head

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions of one batch."""
        extent = self._look(start, end)
        last = _seq(end)
        if last > extent.head:
            # The batch was planned by another node's head, or before the hub lost the end of its log.
            self._catch_up(last)
            extent = self._look(start, end)
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

    def _due(self, begin: int, end: int) -> bool:
        """Return whether the messages after ``begin`` are enough for a batch, or have waited long enough.

        As with Kafka's ``minOffsetsPerTrigger``, the wait counts from the batch before; the first does not wait.
        """
        options, now = self._options, monotonic()
        if self._taken is not None and now - self._taken < options.max_delay:
            if options.min_offsets is not None and end - begin < options.min_offsets:
                return False
            if options.min_bytes is not None:
                extent = self._extent(from_seq=begin + 1, size=options.min_bytes)
                if extent.reach is None or extent.reach >= extent.head:
                    return False
        self._taken = now
        return True

    def _look(
        self,
        *offsets: Offset,
        at_once: bool = False,
        from_seq: int | None = None,
        size: int | None = None,
    ) -> Extent:
        """Return the log's range, after checking that offsets are of this log and its history."""
        from headrace.spark.source.range_rows import another_log

        checked = _with_history(offsets)
        extent = self._extent(
            at_once=at_once, from_seq=from_seq, size=size, history=[_seq(each) for each in checked]
        )
        for each in offsets:
            if each.get("log") != extent.log:
                raise UsageError(another_log(str(each.get("log")), extent.log))
        self._check_history(checked, extent)
        self._known = extent
        return extent

    def _offset(self, extent: Extent, seq: int, *start: Offset) -> Offset:
        """Return the offset after a message, with the fingerprint of the history up to there if the hub tells it.

        It is that of the history of ``start``, which is asked for in the same request.
        """
        checked = _with_history(start)
        found = self._extent(history=[*(_seq(each) for each in checked), seq])
        self._check_history(checked, found)
        offset = {"log": extent.log, "seq": seq}
        history = found.history[-1]
        return offset if history is None else {**offset, "history": history}

    def _check_history(self, offsets: Sequence[Offset], extent: Extent) -> None:
        """Check that the log has the messages up to each offset that were read; report the first where it has not.

        ``extent`` has the fingerprints up to these offsets first.
        """
        for offset, found in zip(offsets, extent.history, strict=False):
            if found not in (None, offset["history"]):
                self._report_history(offset, str(found), extent)
                return

    def _report_history(self, offset: Offset, found: str, extent: Extent) -> None:
        """Report that the log has other messages up to an offset than those that were read."""
        from headrace.spark.source.range_rows import another_history

        problem = another_history(_seq(offset), str(offset["history"]), found, extent.log)
        if self._options.fail_on_data_loss:
            raise UsageError(problem)
        if found != self._other_history:
            self._other_history = found
            logger.warning("%s; going on after it", problem)

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


def _oldest(extent: Extent, table: ArchiveTable | None) -> int:
    """Return the oldest message to read: the archive's, if nothing is missing between it and the log."""
    if table is None or table.through < extent.first - 1:
        return extent.first
    return min(extent.first, table.first)


def _with_history(offsets: Iterable[Offset]) -> list[Offset]:
    """Return those that have a fingerprint: older releases wrote none, and not every hub tells it."""
    return [offset for offset in offsets if offset.get("history") is not None]


def _seq(offset: Mapping[str, Any]) -> int:
    seq = offset.get("seq")
    if type(seq) is not int or not isinstance(offset.get("log"), str):
        raise UsageError(f'{dict(offset)!r} is no offset of ours: expected {{"log": uuid, "seq": number}}')
    return seq
