"""The sequence as ranges: for jobs whose tasks want Arrow batches, and no rows of Spark's.

Offsets, limits and holds are the source's own (:mod:`headrace.spark.source`), and a partition is a range of the
sequence as it is there. But what comes out of it is one row that names the range: whoever takes it reads the range
itself (:func:`rows_of`), in the same Python process. So messages do not pass through the JVM, which would make rows of
them, twice, and columns again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.options import Reading, reading
from headrace.spark.rows import Span, read_span
from headrace.spark.source import SequencePartition, SequenceStreamReader, cores, split
from headrace.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.client.tube import Extent

NAME: Final = "headrace-ranges"
SPARK_RANGES: Final = StructType(
    [
        StructField("log", StringType()),
        StructField("path", StringType()),
        StructField("first", LongType()),
        StructField("last", LongType()),
    ]
)
_RANGES: Final = pa.schema(
    [
        pa.field("log", pa.string()),
        pa.field("path", pa.string()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
    ]
)


class RangesDataSource(HeadraceDataSource):
    """``spark.readStream.format("headrace-ranges")``, with the options of ``headrace``."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return NAME

    def schema(self) -> StructType:
        """A range."""
        return SPARK_RANGES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """The ranges of each micro-batch."""
        return RangesReader(reading(self.options, stream=True), self.parallelism or cores())


class RangesReader(SequenceStreamReader):
    """Plans micro-batches as the source does, and reads nothing."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The partition itself, as a row."""
        if isinstance(partition, SequencePartition) and partition.first <= partition.last:
            columns: list[list[Any]] = [
                [partition.log],
                [partition.path],
                [partition.first],
                [partition.last],
            ]
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, _RANGES, strict=True)],
                schema=_RANGES,
            )


def rows_of(options: Reading, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages of ranges, as the options choose them; for a task of ``mapInArrow``."""
    for batch in ranges:
        for each in batch.to_pylist():
            yield from read_span(options, Span(**each))
    settle("ranges")


def frame(spark: SparkSession, extent: Extent) -> DataFrame:
    """All that a log has now, as ranges; each is for a task of its own, as many as can run at a time."""
    parts = split(extent.first, extent.head, 1, spark.sparkContext.defaultParallelism)
    rows = [{"log": extent.log, "path": extent.path, "first": first, "last": last} for first, last in parts]
    return spark.createDataFrame(pa.Table.from_pylist(rows, _RANGES))
