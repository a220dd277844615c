"""A client of Spark Connect, in a process of its own: PySpark is either a client or has a JVM, never both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from headrace.spark import map_in_arrow, register
from headrace.spark.runtime.session import is_connect
from headrace.testing import Hub


def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["seq"])


def main(place: Path) -> None:
    spark = SparkSession.builder.remote("local[3]").getOrCreate()
    assert is_connect(spark)
    with Hub() as hub:
        servers = hub.doors["tube_tcp"]
        rows = spark.range(100).selectExpr("cast(id as string) payload", "'in' topic")
        rows.write.format("headrace").option("servers", servers).mode("append").save()
        read = spark.read.format("headrace").option("servers", servers)
        print(read.load().count())
        register(spark)
        print(read.load().count())
        print(map_in_arrow(spark, numbers, "seq long", stream=False, servers=servers).count())
        stream = (
            spark.readStream.format("headrace").options(servers=servers, startingOffsets="earliest").load()
        )
        writer = stream.selectExpr("payload", "'out' topic").writeStream.format("headrace")
        writer = writer.options(servers=servers, checkpointLocation=str(place / "out"))
        writer.trigger(availableNow=True).start().awaitTermination()
        print(read.option("topic", "out").load().count())
        publish(rows, servers)
        # As many partitions as the server, which nobody has told the source, runs tasks at a time.
        with hub.connect_sync("tube") as link:
            link.publish([b"x"] * 40_000)
        every = spark.read.format("headrace").option("servers", servers).load()
        print(every.select(spark_partition_id()).distinct().count())
    spark.stop()


def publish(rows: DataFrame, servers: str) -> None:
    try:
        rows.write.format("headrace").options(servers=servers, txnVersion=1).mode("append").save()
    except PySparkException as error:
        print("refused" if "not through Spark Connect" in str(error) else error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
