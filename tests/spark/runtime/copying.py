"""A driver for tests on a cluster: copies a hub's log to an archive, and topic ``in`` to topic ``out`` and to files.

    python copying.py MASTER SERVERS DIRECTORY

It ends when stdin does. Whatever ends a query ends the driver, with an error: Spark itself has to cope with executors
that die.
"""

from __future__ import annotations

import os
import select
import sys

from headrace.spark import register, session
from headrace.spark.jobs import archive
from headrace.spark.jobs.job import JobRun
from headrace.spark.options import HubOptions
from headrace.spark.runtime.session import ARROW


def main(master: str, servers: str, directory: str) -> None:
    spark = session(
        master,
        app="copying",
        memory="512m",
        **{
            "spark.executor.memory": "512m",
            # Executors start as this driver does; see tests/jvm.py.
            "spark.executor.extraJavaOptions": f"{ARROW} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
            "spark.sql.shuffle.partitions": 2,
            "spark.scheduler.mode": "FAIR",
        },
    )
    register(spark)
    hub = {"servers": servers}
    told = {"path": f"{directory}/archive", "interval": "0.3"}
    archiving = archive.start(JobRun(spark, "archive", HubOptions(servers), told, archive.PARAMETERS)).query
    rows = spark.readStream.format("headrace").options(
        **hub, topic="in", startingOffsets="earliest", minPartitions="2"
    )
    files = (
        rows.load()
        .select("seq", "payload")
        .writeStream.format("parquet")
        .options(path=f"{directory}/files", checkpointLocation=f"{directory}/files-checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    copied = rows.load().selectExpr("'out' as topic", "payload")
    copying = (
        copied.writeStream.format("headrace")
        .options(**hub, checkpointLocation=f"{directory}/checkpoint")
        .trigger(processingTime="0.3 seconds")
        .start()
    )
    print("copying", flush=True)
    queries = (archiving, files, copying)
    while all(query.isActive for query in queries):
        if select.select([sys.stdin], [], [], 0.2)[0]:
            break
    for query in queries:
        if not query.isActive:
            raise RuntimeError("a query has ended by itself") from query.exception()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
