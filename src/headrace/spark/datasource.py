"""``format("headrace")``: the data source of that name, and its registration.

Spark finds data sources by itself in packages whose names begin with ``pyspark_``: ours is ``pyspark_headrace``.
:func:`register` is for sessions that do not look there.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
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
from headrace.spark.options import (
    SourceOptions,
    check_source_options,
    parse_sink_options,
    parse_source_options,
)
from headrace.spark.runtime.driver_settings import tasks_at_a_time
from headrace.spark.runtime.python_workers import hide_from_collector
from headrace.spark.runtime.session import is_connect
from headrace.spark.sink.writer import BatchWriter, StreamWriter
from headrace.spark.source.planner_strategies import SOURCE, for_threads, read_in_columns
from headrace.spark.source.reader import SequenceReader, SequenceStreamReader, schema_of
from headrace.spark.spark_release import HAS_STREAM_WRITER, RELEASE


class HeadraceDataSource(DataSource):
    """The source and the sink, as a stream or as a batch."""

    parallelism: int | None = None
    """Tasks that ran at a time when the source was registered, if the session was asked; what a plan is made for is
    judged when it is made (:mod:`~headrace.spark.runtime.driver_settings`)."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return SOURCE

    def schema(self) -> StructType:
        """Return the envelope's columns, or some; called by ``load()``, where mistakes are best reported."""
        return schema_of(check_source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """``spark.read``."""
        options = parse_source_options(self.options, stream=False)
        _check_schema(schema, options)
        return SequenceReader(options, tasks_at_a_time(self.parallelism))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """``spark.readStream``."""
        options = parse_source_options(self.options, stream=True)
        _check_schema(schema, options)
        return SequenceStreamReader(options, tasks_at_a_time(self.parallelism))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """``df.write``."""
        if overwrite:
            raise UsageError('a log is only ever appended to: write with mode("append")')
        return BatchWriter(parse_sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """``df.writeStream``."""
        if overwrite:
            raise UsageError(
                'a log is only ever appended to: write with outputMode("append"); write the rows of "update" or '
                '"complete" from foreachBatch: batch.write.format("headrace").mode("append")'
            )
        if not HAS_STREAM_WRITER:
            raise UsageError(
                f"PySpark {RELEASE} has no Arrow writer for streams, which came with 4.1: write from foreachBatch, "
                'with batch.write.format("headrace") and txnVersion'
            )
        writer = StreamWriter(parse_sink_options(self.options, stream=True), schema)
        hide_from_collector("plan")  # Spark calls this for each micro-batch.
        return writer


def register(spark: SparkSession) -> None:
    """Register ``format("headrace")`` in a session, with the session's size.

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
    if not is_connect(spark):
        read_in_columns(spark)


def register_kind(spark: SparkSession, kind: type[HeadraceDataSource]) -> None:
    """Register a source of this kind."""
    if not is_connect(spark):
        # A new class, which Spark pickles by value, with its attributes.
        parallelism = spark.sparkContext.defaultParallelism
        kind = type(kind.__name__, (kind,), {"parallelism": parallelism, "__module__": "__main__"})
    try:
        spark.dataSource.register(kind)
    except AnalysisException as error:
        # Spark 4.0 keeps a source that it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    if not is_connect(spark):
        for_threads(spark, kind.name())


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    if schema != schema_of(options):
        raise UsageError(
            "the source has the envelope's columns: leave schema() out, and name those you want with columns"
        )
