"""``format("headrace")``: what Spark asks for by that name, and how it comes to know it.

Spark finds data sources by itself in packages whose names begin with ``pyspark_``: ours is ``pyspark_headrace``. Where
it does not look, or to tell the source how many cores there are, :func:`register` is one call.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.spark.options import Reading, check_reading, reading, writing
from headrace.spark.runtime.python_workers import settle
from headrace.spark.sink.writer import BatchWriter, StreamWriter
from headrace.spark.source.planner_strategies import SOURCE, for_threads, read_in_columns
from headrace.spark.source.reader import SequenceReader, SequenceStreamReader, cores, schema_of


class HeadraceDataSource(DataSource):
    """The source and the sink, as a stream or as a batch."""

    parallelism: int | None = None
    """How many tasks run at a time; ``None``: as many as the driver's machine has cores."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return SOURCE

    def schema(self) -> StructType:
        """The envelope, or some of it; asked for by ``load()``, which is when mistakes are best told."""
        return schema_of(check_reading(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """``spark.read``."""
        options = reading(self.options, stream=False)
        _check_schema(schema, options)
        return SequenceReader(options, self.parallelism or cores())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """``spark.readStream``."""
        options = reading(self.options, stream=True)
        _check_schema(schema, options)
        return SequenceStreamReader(options, self.parallelism or cores())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """``df.write``."""
        if overwrite:
            raise UsageError('a log is only ever appended to: write with mode("append")')
        return BatchWriter(writing(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """``df.writeStream``."""
        if overwrite:
            raise UsageError(
                'a log is only ever appended to: write with outputMode("append"); what "update" or "complete" brings '
                'is written from foreachBatch: batch.write.format("headrace").mode("append")'
            )
        writer = StreamWriter(writing(self.options), schema)
        settle("plan")  # Spark asks for each micro-batch anew.
        return writer


def register(spark: SparkSession) -> None:
    """Make ``format("headrace")`` known to a session, the session's size to it, and have its rows made once.

    >>> from headrace.testing import Hub
    >>> spark = SparkSession.builder.getOrCreate()  # any session, however it was made
    >>> register(spark)
    >>> with Hub() as hub, hub.connect_sync("tube") as link:
    ...     rows = spark.sql("select 'greetings' as topic, cast('hello' as binary) as payload")
    ...     servers = hub.doors["tube_tcp"]
    ...     rows.write.format("headrace").option("servers", servers).mode("append").save()
    ...     [(message.origin, message.topic, message.payload) for message in hub.messages()]
    [('spark', 'greetings', b'hello')]
    """
    register_kind(spark, HeadraceDataSource)
    read_in_columns(spark)


def register_kind(spark: SparkSession, kind: type[HeadraceDataSource]) -> None:
    """The same for a source that is made like ours."""
    parallelism = spark.sparkContext.defaultParallelism
    # A class of its own, which Spark pickles by value: what it knows of the session travels with it.
    spark.dataSource.register(
        type(kind.__name__, (kind,), {"parallelism": parallelism, "__module__": "__main__"})
    )
    for_threads(spark, kind.name())


def _check_schema(schema: StructType, options: Reading) -> None:
    if schema != schema_of(options):
        raise UsageError(
            "the source has the envelope's columns: leave schema() out, and name those you want with columns"
        )
