"""Twice the executors: how much faster each job is on a standalone cluster of two workers than on one of one worker.

A worker is what a machine of one core would be: it, its executor and the executor's Python processes are pinned to one
of this machine's cores. Otherwise a single task would take part of the second core too, for the JVM beside Python, for
the compiler and for the collector. The drivers and the hub are not pinned; they take their share of both cores.

Two drivers, one for each cluster, measure by turns, so that what else the machine does befalls both alike. Executors
read files: an archive's, or the hub's sealed segments. Only ``match`` as a job, in the second table, goes through the
hub: it says how much it reads of each message, which is once, whatever the number of tasks.

The first rows are a plain loop in one pinned process and in two: more than that ratio no cluster can show here.
``BENCH_JOBS=measure,verify`` measures some of the jobs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import uvloop
from pyspark.sql import functions as F

import bench
from bench import matching
from bench._peers import Headrace, running
from bench.fleet import _publish, _subscriptions
from bench.pipeline import _archived, _event
from headrace import connect_sync, where
from headrace.archive import open_table
from headrace.client.link.client import LinkClient
from headrace.config import Address
from headrace.spark import register, session
from headrace.spark.hub_connections import link
from headrace.spark.jobs import match as fleet
from headrace.spark.jobs.job import JobRun
from headrace.spark.jobs.measure import measure as figures
from headrace.spark.jobs.verify import verify
from headrace.spark.options import HubOptions, SourceOptions
from headrace.spark.source.range_source import frame
from headrace.spark.source.reader import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "spark-cluster" / "cluster.py"
WORKERS: Final = (1, 2)
DRIVER: Final = "--driver"
"""The argument of a process that is a driver."""
ANSWER: Final = "figures: "
"""What its answers begin with."""
LEAST: Final = 1.7
"""What the second worker is to bring."""
PARTS: Final = 16
"""Tasks of a query, so that neither worker waits long for the other's last one."""
STOP_SECONDS: Final = 10
JOBS: Final = ("history", "measure", "verify", "match", "archive")


class Load(NamedTuple):
    """How much there is to do."""

    messages: int
    """In the hub that is archived, measured and verified."""
    copies: int
    """Of the archive's files, which ``history`` and ``measure`` read as one query."""
    matched: int
    """Thousands of messages (1,024) that ``match`` reads."""
    subscriptions: int
    rounds: int
    pushed: int
    """Thousands of messages that the job ``match`` pushes."""

    def of(self, job: str) -> tuple[int, int]:
        """Return how many rows a job reads, and the number that its driver is told."""
        match job:
            case "history" | "measure":
                return self.copies * self.messages, 0
            case "match":
                return self.matched * matching.MESSAGES, self.subscriptions
            case _:
                return self.messages, self.messages


QUICK: Final = Load(20_000, 2, 24, 1_000, 1, 24)
FULL: Final = Load(12_000_000, 3, 1_200, 100_000, 2, 400)


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
        with bench.ending_in_order():
            return _drive(*argv[1:])
    return bench.run("scaling", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure with one worker and with two, by turns; quickly, with two alone."""
    sizes, load = (WORKERS[-1:], QUICK) if quick else (WORKERS, FULL)
    asked = os.environ.get("BENCH_JOBS")
    jobs = asked.split(",") if asked else list(JOBS)
    yield _plain_loop(200_000 if quick else 20_000_000)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hub, wide = (stack.enter_context(running(Headrace)) for _ in range(2))
        uvloop.run(_fill(hub.tube, load.messages))
        uvloop.run(_publish(matching._load(matching.KINDS[0], 1000), load.matched, wide.tube))
        for each in (hub, wide):
            each.seal()
        drivers = {size: stack.enter_context(_driven(size, directory, hub.tube, wide.tube)) for size in sizes}
        if {"history", "measure"} & set(jobs):
            drivers[sizes[-1]].ask("make", load.messages)
            _multiply(directory / "archive", directory / "copies", load.copies)
        for job in jobs:
            yield _scaled(job, drivers, load)
        if asked is None:
            yield _read_once(drivers, load.pushed)


def _scaled(job: str, drivers: dict[int, Driver], load: Load) -> bench.Table:
    rows, number = load.of(job)
    table = bench.Table(
        f"{job}: {rows:,} messages, on a standalone cluster of workers with one core each",
        ("rows/s", "seconds"),
        note=f"by turns, the median of {load.rounds} rounds after one to warm up",
    )
    took = bench.in_turns(drivers, lambda size: drivers[size].ask(job, number)[0], 1 + load.rounds)
    first, *_ = drivers
    for size in drivers:
        seconds = statistics.median(took[size][1:])
        base, least = (None, None) if size == first else (_name(first), LEAST)
        table.add(_name(size), rows / seconds, seconds, base=base, least=least)
    return table


def _name(workers: int) -> str:
    return f"{workers} worker{'s' if workers > 1 else ''}"


async def _fill(servers: str, total: int) -> None:
    """Publish events, the same ones over and over: far enough apart that nothing compresses them together."""
    rng = random.Random(1)
    events = [[_event(rng, number) for number in range(1000)] for _ in range(20)]
    async with LinkClient([Address.parse(servers)]) as link:
        publisher = link.publisher()
        for each in itertools.islice(itertools.cycle(events), total // 1000):
            await publisher.send(each, topic="in")
        await publisher.flush()


def _multiply(archive: Path, place: Path, copies: int) -> None:
    """Give an archive's files more names: a query of them is long, and costs the driver no more than a short one."""
    place.mkdir()
    for file in open_table(str(archive)).all_files():
        for copy in range(copies):
            os.link(archive / file.path, place / f"{copy}-{Path(file.path).name}")


def _read_once(drivers: dict[int, Driver], copies: int) -> bench.Table:
    read = bench.Table(
        "the job match: messages read for each message matched, on the same clusters",
        ("reads/message", "messages/s", "ranges"),
        note="messages/s: with the hub, its dispatcher and a client on the same two cores",
    )
    for size, driver in drivers.items():
        read.add(_name(size), *driver.ask("push", copies))
    return read


def _plain_loop(steps: int) -> bench.Table:
    """What the machine itself allows: a loop in a pinned process, and in one on each of two cores."""
    table = bench.Table("a plain loop in processes that are pinned to a core each", ("steps/s",))
    context = multiprocessing.get_context("spawn")
    for count in WORKERS:
        took: Any = context.Queue()
        ready: Any = context.Barrier(count)
        processes = [
            context.Process(target=_loop, args=(core, steps, ready, took), daemon=True)
            for core in itertools.islice(itertools.cycle(sorted(os.sched_getaffinity(0))), count)
        ]
        for each in processes:
            each.start()
        seconds = max(took.get() for _ in processes)
        for each in processes:
            each.join()
        base = None if count == 1 else "1 process"
        table.add(f"{count} process{'es' if count > 1 else ''}", count * steps / seconds, base=base)
    return table


def _loop(core: int, steps: int, ready: Any, took: Any) -> None:
    os.sched_setaffinity(0, {core})
    ready.wait()
    begin, total = time.perf_counter(), 0
    for step in range(steps):
        total += step & 7
    took.put(time.perf_counter() - begin)


@contextlib.contextmanager
def _driven(workers: int, directory: Path, *hubs: str) -> Iterator[Driver]:
    """Start a cluster of so many workers and a driver of it."""
    with (
        _example().cluster(0, workers, memory="1g", pinned=True) as master,
        Driver.start(master, workers, directory, *hubs) as driver,
    ):
        yield driver


class Driver:
    """A driver in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def start(cls, master: str, workers: int, directory: Path, *hubs: str) -> Iterator[Driver]:
        """Start one, and end it."""
        line = [sys.executable, "-m", "bench.scaling", DRIVER, master, str(workers), str(directory), *hubs]
        process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        try:
            driver = cls(process)
            driver.ask("workers", workers)
            yield driver
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
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


def _drive(master: str, workers: str, directory: str, *hubs: str) -> int:
    """Be a driver: do what the lines of standard input say."""
    settings = {
        "spark.cores.max": workers,
        "spark.sql.files.openCostInBytes": 0,
        "spark.sql.files.minPartitionNum": PARTS,
        "spark.sql.shuffle.partitions": 2,
    }
    spark = session(master, f"bench-{workers}", memory="1g", stateless=True, **settings)
    register(spark)
    work = _Work(spark, Path(directory), *hubs)
    for line in sys.stdin:
        what, number = line.split()
        told = work.do(what, int(number))
        print(f"{ANSWER}{json.dumps(list(told))}", flush=True)
    spark.stop()
    return 0


class _Work:
    """What a driver can be asked for."""

    def __init__(self, spark: SparkSession, directory: Path, servers: str, wide: str) -> None:
        """``wide`` is a hub whose messages have many attributes."""
        self._spark = spark
        self._directory = directory
        self._servers = servers
        self._wide = wide
        self._archive = directory / "archive"

    def do(self, what: str, number: int) -> Sequence[float]:
        """Do it, and tell figures: mostly how long it took."""
        match what:
            case "workers":
                # The first job makes the executors ready.
                return [self._spark.range(1000).repartition(number).count()]
            case "make":
                return [_archived(self._spark, self._servers, self._archive, number)]
            case "history":
                every = self._copies()
                return [_timed(lambda: every.write.format("noop").mode("overwrite").save())]
            case "measure":
                every = self._copies()
                return [_timed(lambda: figures(every).collect())]
            case "verify":
                return [self._verified()]
            case "match":
                return [self._match(number)]
            case "archive":
                place = Path(tempfile.mkdtemp(dir=self._directory))
                took = _archived(self._spark, self._servers, place, number)
                shutil.rmtree(place, ignore_errors=True)
                return [took]
            case "push":
                return _pushed(self._spark, Path(tempfile.mkdtemp(dir=self._directory)), number)
        raise ValueError(what)

    def _copies(self) -> DataFrame:
        """Read the archive's files and their copies as ``history`` reads an archive's: by Spark's own reader."""
        return self._spark.read.schema(SPARK_SCHEMA).parquet(str(self._directory / "copies"))

    def _verified(self) -> float:
        rows = self._spark.read.format("headrace").options(servers=self._servers, minPartitions=PARTS).load()

        def check() -> None:
            if findings := verify(rows).collect():
                raise ValueError(f"the log is not whole: {findings[:3]}")

        return _timed(check)

    def _match(self, subscriptions: int) -> float:
        """Match messages of a hub's log, which tasks read from its files."""
        reading = SourceOptions(HubOptions(self._wide))
        with link(reading.access) as client:
            ranges = frame(self._spark, client.head())
        found = fleet.match(ranges, _wanted(subscriptions), reading=reading)
        return _timed(lambda: found.agg(F.sum(F.size("clients"))).collect())


@cache
def _wanted(subscriptions: int) -> pa.Table:
    return _subscriptions(matching._load(matching.KINDS[0], subscriptions))


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def _example() -> Any:
    """The example's module, which starts a cluster."""
    spec = importlib.util.spec_from_file_location("cluster", EXAMPLE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def _pushed(spark: SparkSession, place: Path, copies: int) -> tuple[float, float, float]:
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
