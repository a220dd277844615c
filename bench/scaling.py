"""Twice the executors: how much faster a standalone cluster of two workers is than one of one worker.

Each worker has one core, so on a machine of two cores no more than twice the rate can be shown. Two drivers share a
cluster of three workers, one of them with two; they measure by turns, so that what else the machine does befalls both
alike. Nothing goes through a hub meanwhile: the job ``measure`` reads an archive, as Spark reads Parquet files.

The job ``match`` then says how much it reads of each message: once, whatever the number of tasks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import statistics
import subprocess
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
from headrace.spark.jobs import match as fleet
from headrace.spark.jobs.job import JobRun
from headrace.spark.jobs.measure import measure as figures
from headrace.spark.options import HubOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[1] / "examples" / "spark-cluster" / "cluster.py"
WORKERS = (1, 2)
DRIVER = "--driver"
"""The argument of a process that is a driver."""
ANSWER = "figures: "
"""What its answers begin with."""
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
    if argv[:1] == [DRIVER]:
        return _drive(*argv[1:])
    return bench.run("scaling", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure with one worker and with two, by turns; quickly, with two alone."""
    sizes = WORKERS[-1:] if quick else WORKERS
    total, copies, rounds, messages = (20_000, 2, 1, 24) if quick else (2_000_000, 2, 6, 400)
    scaled = bench.Table(
        f"measure: {copies * total:,} messages of an archive, on a standalone cluster of workers with one core",
        ("rows/s",),
        note=f"an archive of {total:,}, {copies} times over; by turns, the median of {rounds} rounds after as many",
    )
    read = bench.Table(
        "match: messages read for each message matched, on the same cluster",
        ("reads/message", "messages/s", "ranges"),
        note="messages/s: with the hub, its dispatcher and a client on the same two cores",
    )
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = stack.enter_context(_example().cluster(0, sum(sizes), memory="1g"))
        drivers = {
            workers: stack.enter_context(Driver.start(master, workers, directory)) for workers in sizes
        }
        drivers[sizes[-1]].ask("archive", total)
        took = bench.in_turns(sizes, lambda workers: drivers[workers].ask("measure", copies)[0], 2 * rounds)
        for workers in sizes:
            name = f"{workers} worker{'s' if workers > 1 else ''}"
            rate = copies * total / statistics.median(took[workers][rounds:])
            base, least = (None, None) if workers == sizes[0] else ("1 worker", LEAST)
            scaled.add(name, rate, base=base, least=least)
            read.add(name, *drivers[workers].ask("match", messages))
    yield scaled
    yield read


class Driver:
    """A driver in a process of its own, with so many of the cluster's workers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def start(cls, master: str, workers: int, directory: Path) -> Iterator[Driver]:
        """Start one, and end it."""
        line = [sys.executable, "-m", "bench.scaling", DRIVER, master, str(workers), str(directory)]
        with subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        ) as process:
            driver = cls(process)
            driver.ask("workers", workers)
            try:
                yield driver
            finally:
                process.communicate()

    def ask(self, what: str, number: int) -> list[float]:
        """Have it do something, and tell figures."""
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("the driver has no pipes")
        self._process.stdin.write(f"{what} {number}\n")
        self._process.stdin.flush()
        for said in self._process.stdout:
            if said.startswith(ANSWER):
                figures: list[float] = json.loads(said.removeprefix(ANSWER))
                return figures
        raise ChildProcessError(f"a driver ended where it was asked for {what}")


def _drive(master: str, workers: str, directory: str) -> int:
    """Be a driver: do what the lines of standard input say."""
    settings = {
        "spark.cores.max": workers,
        "spark.sql.files.maxPartitionBytes": SPLIT_BYTES,
        "spark.sql.files.openCostInBytes": 0,
        "spark.sql.shuffle.partitions": 2,
    }
    spark = session(master, f"bench-{workers}", memory="1g", stateless=True, **settings)
    register(spark)
    archive = Path(directory, "archive")
    try:
        for line in sys.stdin:
            what, number = line.split()
            told: Sequence[float] = ()
            match what:
                case "workers":
                    # The first job makes the executors ready.
                    told = [spark.range(1000).repartition(int(number)).count()]
                case "archive":
                    _archive(spark, archive, int(number))
                case "measure":
                    told = [_measured(spark, archive, int(number))]
                case "match":
                    told = _matched(spark, Path(directory, f"match-{workers}"), int(number))
            print(f"{ANSWER}{json.dumps(list(told))}", flush=True)
    finally:
        spark.stop()
    return 0


def _example() -> Any:
    """The example's module, which starts a cluster."""
    spec = importlib.util.spec_from_file_location("cluster", EXAMPLE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def _archive(spark: SparkSession, place: Path, total: int) -> None:
    with running(Headrace) as hub:
        uvloop.run(_fill(hub.tube, total))
        hub.seal()
        _archived(spark, hub.tube, place, total)


def _measured(spark: SparkSession, archive: Path, copies: int) -> float:
    """How long the windows of so many copies of an archive take, as one query."""
    rows = reduce(DataFrame.unionAll, (history(spark, str(archive)) for _ in range(copies)))
    begin = time.perf_counter()
    if not figures(rows).collect():
        raise ValueError("nothing was measured")
    return time.perf_counter() - begin


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
            fleet.PARAMETERS,
        )
        # What is published before is not the fleet's: it begins with the head.
        started = fleet.start(run)
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
