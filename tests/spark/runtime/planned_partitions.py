"""How many partitions a session plans, in a process of its own: a session of this size, found or registered by hand."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from headrace.spark.datasource import HeadraceDataSource, register
from headrace.testing import Hub


def main(master: str) -> None:
    spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    with Hub() as hub, hub.connect_sync("tube") as link:
        link.publish([b"x"] * 60_000)
        read = spark.read.format("headrace").option("servers", hub.doors["tube_tcp"])
        print(read.load().rdd.getNumPartitions())
        spark.dataSource.register(HeadraceDataSource)
        print(read.load().rdd.getNumPartitions())
        register(spark)
        print(read.load().rdd.getNumPartitions())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
