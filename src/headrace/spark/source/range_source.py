"""The sequence as ranges, for tasks that want Arrow batches and no rows of Spark's.

Offsets, limits, holds and partitions are the source's own (:mod:`headrace.spark.source.reader`). But a partition has
only one row, its range; the next function in the same Python process reads that itself (:func:`rows_of`). So messages
do not pass through the JVM, which would convert them to rows and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace.spark.datasource import HeadraceDataSource, register_kind
from headrace.spark.options import SourceOptions, as_text, parse_source_options
from headrace.spark.runtime.driver_settings import tasks_at_a_time
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.source.planning import split
from headrace.spark.source.range_rows import LogRange, read_range
from headrace.spark.source.reader import SequencePartition, SequenceReader, SequenceStreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.client.link.client import Extent

NAME: Final = "headrace-ranges"
_RANGES: Final = pa.schema(
    [
        pa.field("log", pa.string()),
        pa.field("path", pa.string()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("files", pa.list_(pa.string())),
    ]
)
SPARK_RANGES: Final = from_arrow_schema(_RANGES)


class RangesDataSource(HeadraceDataSource):
    """``spark.readStream.format("headrace-ranges")``, with the options of ``headrace``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema of a range."""
        return SPARK_RANGES

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Make the reader of a batch."""
        return RangesReader(
            parse_source_options(self.options, stream=False), tasks_at_a_time(self.parallelism)
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Make the reader of a stream."""
        return RangesStreamReader(
            parse_source_options(self.options, stream=True), tasks_at_a_time(self.parallelism)
        )


class _PartitionAsRow:
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SequencePartition) and partition.first <= partition.last:
            span = LogRange(
                partition.log, partition.path, partition.first, partition.last, list(partition.files)
            )
            yield pa.RecordBatch.from_pylist([span._asdict()], _RANGES)


class RangesReader(_PartitionAsRow, SequenceReader):
    """Plans a batch as the source does, and reads nothing."""


class RangesStreamReader(_PartitionAsRow, SequenceStreamReader):
    """Plans micro-batches as the source does, and reads nothing."""


Function = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def map_in_arrow(
    spark: SparkSession,
    function: Function,
    schema: StructType | str,
    *,
    stream: bool = True,
    **options: str | float | bool,
) -> DataFrame:
    """Apply a function to messages: ``mapInArrow`` of the source, without rows in between.

    Each task calls the function with an iterator of record batches, the messages of its range; it returns an iterator
    of record batches in ``schema``. The options are those of ``format("headrace")``.

    ``stream``
        A stream, as with ``readStream``; else a batch, as with ``read``.

    >>> import pyarrow as pa
    >>> import pyarrow.compute as pc
    >>> from headrace.spark import session
    >>> from headrace.testing import Hub
    >>> def sizes(batches):
    ...     for batch in batches:
    ...         sizes = pc.binary_length(batch["payload"]).cast("int64")
    ...         yield pa.RecordBatch.from_arrays([batch["topic"], sizes], ["topic", "size"])
    >>> spark = session("local[2]")
    >>> with Hub() as hub, hub.connect_sync("tube") as link:
    ...     _ = link.publish([b"one", b"three"], topic="orders")
    ...     servers = hub.doors["tube_tcp"]
    ...     made = map_in_arrow(spark, sizes, "topic string, size long", stream=False, servers=servers)
    ...     made.groupBy("topic").sum("size").collect()
    [Row(topic='orders', sum(size)=8)]
    """
    register_kind(spark, RangesDataSource)
    texts = {name: as_text(value) for name, value in options.items()}
    chosen = parse_source_options(texts, stream=stream)
    source = spark.readStream if stream else spark.read
    ranges = source.format(NAME).options(**texts).load()
    return ranges.mapInArrow(partial(over_ranges, function, chosen), schema)


def over_ranges(
    function: Function, options: SourceOptions, ranges: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply a function to the messages of ranges; for a task of ``mapInArrow``."""
    return iter(function(rows_of(options, ranges)))


def rows_of(options: SourceOptions, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the messages of ranges, as the options choose them; for a task of ``mapInArrow``."""
    for batch in ranges:
        for each in batch.to_pylist():
            yield from read_range(options, LogRange(**each))
    hide_from_collector("ranges")


def frame(spark: SparkSession, extent: Extent) -> DataFrame:
    """Make ranges of all that a log has now, one for each task that can run at a time."""
    parts = split(extent.first, extent.head, 1, spark.sparkContext.defaultParallelism)
    rows = [LogRange(extent.log, extent.path, first, last)._asdict() for first, last in parts]
    return spark.createDataFrame(pa.Table.from_pylist(rows, _RANGES))
