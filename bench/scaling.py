"""Twice the executors: how much faster a standalone cluster of two workers is than one of one worker.

Each worker is a process with one core, so on a machine of two cores the second worker has a core of its own, and no
more than twice the rate can be shown. Nothing goes through a hub meanwhile: the job ``measure`` reads an archive, as
Spark reads Parquet files. A figure is the median of some rounds after those that warm the executors up.

The job ``match`` then says how much it reads of each message: once, whatever the number of tasks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from pyspark.sql import DataFrame

import bench
from bench import matching
from bench._peers import Headrace, running
from bench.fleet import _publish
from bench.pipeline import _archived, _fill
from headrace import connect_sync, where
from headrace.spark import history, register, session
from headrace.spark.jobs import match
from headrace.spark.jobs.job import JobRun
from headrace.spark.jobs.measure import measure as figures
from headrace.spark.options import HubOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[1] / "examples" / "spark-cluster" / "cluster.py"
WORKERS = (1, 2)
LEAST = 1.7
"""What the second worker is to bring."""
SPLIT_BYTES = 2 << 20
"""Of an archive that is measured in seconds, so that no executor waits long for the other's last task."""


class FleetHub(Headrace):
    """A hub whose matching is Spark's."""

    def command(self) -> list[str]:
        """Return its command line."""
        return [*super().command(), "--set", "matching.engine=spark"]

    def address(self, door: str) -> str:
        """Return where a door is."""
        found: str = json.loads((self.directory / "ready.json").read_text())[door]
        return found


def main(argv: Sequence[str]) -> int:
    return bench.run("scaling", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure with one worker and with two."""
    total, copies, rounds = (20_000, 2, 1) if quick else (2_000_000, 6, 2)
    scaled = bench.Table(
        f"measure: {copies * total:,} messages of an archive, on a standalone cluster of workers with one core",
        ("rows/s",),
        note=f"an archive of {total:,}, {copies} times over; the median of {rounds} rounds, after as many to warm up",
    )
    read = bench.Table(
        "match: messages read for each message matched, on the same clusters",
        ("reads/message", "messages/s", "ranges"),
        note="messages/s: with the hub, its dispatcher and a client on the same two cores",
    )
    with tempfile.TemporaryDirectory() as directory:
        for workers in WORKERS:
            name = f"{workers} worker{'s' if workers > 1 else ''}"
            with cluster(workers) as spark:
                archive = Path(directory, "archive")
                if not archive.exists():
                    _archive(spark, archive, total)
                rate = copies * total / measured(spark, archive, copies, rounds)
                scaled.add(
                    name, rate, base="1 worker" if workers > 1 else None, least=LEAST if workers > 1 else None
                )
                read.add(name, *_matched(spark, Path(directory, f"match-{workers}"), 24 if quick else 400))
    yield scaled
    yield read


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[SparkSession]:
    """A session on a cluster of so many workers, which ends with it."""
    spec = importlib.util.spec_from_file_location("cluster", EXAMPLE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(EXAMPLE)
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with example.cluster(0, workers, memory="1g") as master:
        settings = {
            "spark.sql.files.maxPartitionBytes": SPLIT_BYTES,
            "spark.sql.files.openCostInBytes": 0,
            "spark.sql.shuffle.partitions": 2,
        }
        spark = session(master, "bench", memory="1g", stateless=True, **settings)
        register(spark)
        try:
            yield spark
        finally:
            spark.stop()


def _archive(spark: SparkSession, place: Path, total: int) -> None:
    with running(Headrace) as hub:
        uvloop.run(_fill(hub.tube, total))
        hub.seal()
        _archived(spark, hub.tube, place, total)


def measured(spark: SparkSession, archive: Path, copies: int, rounds: int) -> float:
    """How long the windows of so many copies of an archive take, as one query."""
    took = []
    for _ in range(2 * rounds):
        rows = reduce(DataFrame.unionAll, (history(spark, str(archive)) for _ in range(copies)))
        begin = time.perf_counter()
        windows = figures(rows).collect()
        took.append(time.perf_counter() - begin)
        if not windows:
            raise ValueError("nothing was measured")
    return statistics.median(took[rounds:])


def _matched(spark: SparkSession, place: Path, copies: int) -> tuple[float, float, float]:
    """Let the fleet match what one client wants; return reads a message, its rate, and the ranges of a micro-batch."""
    load = matching._load(matching.KINDS[0], 1000)
    total = copies * matching.MESSAGES
    with running(FleetHub) as hub, connect_sync(f"sdk://{hub.address('sdk')}") as client:
        client.subscribe(where(**{matching._name(0): matching._value(0)}))
        reading = threading.Thread(target=lambda: [None for _ in client], daemon=True)
        reading.start()
        run = JobRun(
            spark,
            "match",
            HubOptions(hub.tube),
            {"path": str(place), "dispatchers": hub.address("dispatcher")},
            match.PARAMETERS,
        )
        # What is published before is not the fleet's: it begins with the head.
        started = match.start(run)
        try:
            uvloop.run(_publish(load, copies, hub.tube))
            deadline = time.monotonic() + 120
            while int(str(started.facts()["through"])) < total:
                if time.monotonic() > deadline or not started.query.isActive:
                    raise TimeoutError(f"the fleet is at {started.facts()}")
                time.sleep(0.05)
            facts: Any = started.facts()
        finally:
            started.query.stop()
    return facts["read"] / total, facts["rows_per_second"], facts["ranges"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
