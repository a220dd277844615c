"""Try the source and the sink in the PySpark that is installed; ``tools/spark_matrix.py`` runs this in many of them.

Prints what was tried, a line each, and fails where something does not work that this release should have.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.spark import map_in_arrow, register, session
from headrace.spark.spark_release import HAS_LIMITS, HAS_STREAM_WRITER
from headrace.testing import Hub

OTHER = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class Reader(DataSourceReader):
    def read(self, partition):
        yield (42,)

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "another"
    def schema(self):
        return "answer int"
    def reader(self, schema):
        return Reader()
"""
"""A data source of somebody else's package."""


def main() -> None:
    """Try everything once."""
    place = Path(tempfile.mkdtemp(prefix="headrace-smoke-"))
    (place / "pyspark_another").mkdir()
    (place / "pyspark_another" / "__init__.py").write_text(OTHER)
    sys.path.insert(0, str(place))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    spark = session("local[2]")
    try:
        with Hub() as hub:
            _try_all(spark, hub, place)
    finally:
        spark.stop()
        shutil.rmtree(place)
    print(f"PySpark {pyspark.__version__}: all of it works")


def _try_all(spark: SparkSession, hub: Hub, place: Path) -> None:
    servers = hub.doors["tube_tcp"]
    _expect(spark.read.format("another").load().collect()[0].answer, 42, "another package's source is found")
    rows = spark.range(1000).selectExpr("cast(id as string) as payload", "'in' as topic")
    rows.write.format("headrace").option("servers", servers).mode("append").save()
    for _ in range(2):
        once = rows.where("payload < '2'").write.format("headrace").mode("append")
        once.options(servers=servers, txnAppId="once", txnVersion=1).save()
    read = spark.read.format("headrace").option("servers", servers)
    count = 1000 + rows.where("payload < '2'").count()
    _expect(read.load().count(), count, "a batch is written, once where it has a version, and read")
    register(spark)
    _expect(read.load().where("topic = 'in'").count(), count, "the source is registered")
    mapped = map_in_arrow(spark, _numbers, "seq long", stream=False, servers=servers)
    _expect(mapped.count(), count, "a function is applied to Arrow batches")

    stream = spark.readStream.format("headrace").options(servers=servers, startingOffsets="earliest")
    _expect(_copied(stream.load(), place / "stream"), count, "a stream is read")
    with _refused_unless(HAS_LIMITS, "which came with 4.2"):
        limited = spark.readStream.format("headrace").options(servers=servers, startingOffsets="earliest")
        copied = _copied(limited.option("maxOffsetsPerTrigger", "600").load(), place / "limited")
        _expect(copied, count, "a stream is read within limits")
    with _refused_unless(HAS_STREAM_WRITER, "write from foreachBatch"):
        writer = stream.load().selectExpr("payload", "'out' as topic").writeStream.format("headrace")
        writer = writer.options(servers=servers, checkpointLocation=str(place / "out"))
        writer.trigger(availableNow=True).start().awaitTermination()
        _expect(read.option("topic", "out").load().count(), count, "a stream is written")


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["seq"])


def _copied(rows: DataFrame, checkpoint: Path) -> int:
    """Count the rows of a stream, micro-batch by micro-batch."""
    counts: list[int] = []
    writer = rows.writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    return sum(counts)


@contextmanager
def _refused_unless(has: bool, why: str) -> Iterator[None]:
    """Expect something to work if the release has it, and else to be refused with a reason."""
    try:
        yield
    except PySparkException as error:
        if has or why not in str(error):
            raise
        print(f"refused with a reason: … {why} …")
    else:
        _expect(has, True, "what works is what this release has")


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise SystemExit(f"{what}: expected {expected}, found {found}")
    print(what)


if __name__ == "__main__":
    main()
