"""The Spark pipeline beside Spark: the source, the sink (beside a bare socket), latency, and matching.

One machine, one session at a time. Every source reads the same rows in the same columns; what is timed are the
micro-batches of a query over all of them (not how long a query takes to start), after one that warmed everything up.
The bare writer does what any sink must: it takes Arrow batches from Spark and writes their bytes to a TCP socket that
somebody empties.

Matching is that of :mod:`bench.fleet`, with the fewer subscriptions of it.

Payloads are events such as devices send, in JSON. What they are made of matters: a format that compresses reads and
writes a hundred equal bytes in no time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import uvloop

import bench
from bench import fleet, matching
from bench._peers import Headrace, running
from headrace import connect_sync
from headrace.archive import open_table
from headrace.client.link.client import LinkClient
from headrace.config import Address
from headrace.spark import history, map_in_arrow, register, session
from headrace.spark.jobs import archive, replay
from headrace.spark.jobs.job import JobRun
from headrace.spark.options import HubOptions
from headrace.spark.source.planner_strategies import SETTING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 100
SIZES = "rows long, bytes long"
RATE = 1000
"""Messages a second, where it is latency that is measured."""
ARCHIVE = "the job archive, to Delta"
LEAST = {"headrace to noop": 0.8, ARCHIVE: 1.5, "headrace": 0.7}
"""How much of what it is held against each is to be."""


def main(argv: Sequence[str]) -> int:
    return bench.run("pipeline", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure source, sink, latency and matching with one core and with two."""
    subscriptions, copies = fleet.SIZES[0 if quick else 1]
    load = matching._load(matching.KINDS[0], subscriptions)
    with running(Headrace) as full, running(Headrace) as other, tempfile.TemporaryDirectory() as directory:
        for cores in (2,) if quick else (1, 2):
            spark = session(f"local[{cores}]", "bench", memory="2g", stateless=True, **{SETTING: True})
            register(spark)
            try:
                yield from pipeline(spark, full, other, Path(directory), cores, quick)
                yield fleet.fleet(spark, load, copies, cores, 1 if quick else 3)
            finally:
                spark.stop()


def pipeline(
    spark: SparkSession, full: Headrace, other: Headrace, directory: Path, cores: int, quick: bool
) -> Iterator[bench.Table]:
    """All tables of one session but matching's: ``full`` is read from, after it was filled; ``other`` is written to."""
    total = 20_000 if quick else 3_000_000
    servers = full.tube
    parquet = directory / "parquet"
    if not parquet.exists():
        uvloop.run(_fill(servers, total))
        full.seal()
        # In a session of Spark's own making: the files are as Spark writes them, from rows.
        reader = spark.newSession().read.format("headrace")
        reader.options(servers=servers, minPartitions=8).load().write.parquet(str(parquet))
    rounds = 1 if quick else 4
    yield sources(spark, servers, parquet, directory, cores, total, rounds)
    # What the table before wrote is not to be brought to the disk while the next one writes.
    os.sync()
    yield sinks(spark, other.tube, parquet, cores, total // 3, 2 * rounds)
    yield latency(spark, other.tube, cores, 1.5 if quick else 35)
    if cores == 2:
        yield one_batch(spark, 20 if quick else 2_000)
        yield from archiving(spark, directory, 20_000 if quick else 20_000_000, 1 if quick else 3)
        yield replaying(spark, servers, other.tube, directory, total)


def one_batch(spark: SparkSession, megabytes: int) -> bench.Table:
    """A large batch that one commit makes visible, as when a query begins with a long history."""
    table = bench.Table(
        f"sink: {megabytes:,} MB in one batch, local[2]",
        ("rows/s", "MB/s"),
        note="rows of 1,000 bytes; base: a bare writer of the same rows to a socket",
    )
    total = 1000 * megabytes
    rows = spark.range(0, total, numPartitions=4).selectExpr(
        "rpad(string(id), 1000, sha2(string(id), 512)) as payload"
    )
    with draining() as port, running(Headrace) as hub:
        spark.dataSource.register(_bare_writer())
        for name, write in (
            ("Arrow to a socket", rows.write.format("bare").options(port=port)),
            ("headrace, in one batch", rows.write.format("headrace").options(servers=hub.tube, topic="out")),
        ):
            begin = time.perf_counter()
            write.mode("append").save()
            rate = total / (time.perf_counter() - begin)
            table.add(name, rate, rate / 1000, base=None if "socket" in name else "Arrow to a socket")
        if (written := uvloop.run(_next(hub.tube)) - 1) != total:
            raise ValueError(f"{written} messages were written where {total} rows are")
    return table


def archiving(spark: SparkSession, directory: Path, total: int, rounds: int) -> Iterator[bench.Table]:
    """The job archive over a long log: how fast, what the driver does of it, how large the files are; their reading."""
    table = bench.Table(
        f"archive: {total:,} messages of {SIZE} bytes to Delta, local[2]",
        ("rows/s", "MB/s", "driver %", "JVM %", "files", "least MiB", "most MiB"),
        note="driver and JVM: their part of all processor time, the rest is Python tasks'; files: after merging",
    )
    place = Path(tempfile.mkdtemp(dir=directory))
    with running(Headrace) as hub:
        uvloop.run(_fill(hub.tube, total))
        hub.seal()
        before = _processor_seconds(spark)
        took = _archived(spark, hub.tube, place, total)
        driver, jvm, tasks = (now - then for now, then in zip(_processor_seconds(spark), before, strict=True))
    sizes = [file.size / (1 << 20) for file in open_table(str(place)).all_files()]
    rate, whole = total / took, (driver + jvm + tasks) / 100
    table.add(
        "archive", rate, rate * SIZE / 1e6, driver / whole, jvm / whole, len(sizes), min(sizes), max(sizes)
    )
    yield table
    yield history_read(spark, str(place), total, rounds)
    shutil.rmtree(place, ignore_errors=True)


def history_read(spark: SparkSession, place: str, total: int, rounds: int) -> bench.Table:
    """Spark's own reader over an archive."""
    table = bench.Table(
        f"history: {total:,} messages of {SIZE} bytes in an archive, read by Spark, local[2]",
        ("rows/s", "MB/s"),
        note="headrace.spark.history to noop; a figure is the median of all rounds but the first",
    )
    every = history(spark, place)
    for name, rows in (
        ("every column", every),
        ("payload alone", every.select("payload")),
        ("one of a hundred", few(every)),
    ):
        rates = []
        for _ in range(rounds):
            begin = time.perf_counter()
            rows.write.format("noop").mode("overwrite").save()
            rates.append(total / (time.perf_counter() - begin))
        rate = statistics.median(rates[1:] or rates)
        table.add(name, rate, rate * SIZE / 1e6)
    return table


def replaying(spark: SparkSession, servers: str, target: str, directory: Path, total: int) -> bench.Table:
    """The job replay of a whole archive: how long until the first message is at the hub, and how fast the rest."""
    table = bench.Table(
        f"replay: an archive of {total:,} messages of {SIZE} bytes to a hub, local[2]",
        ("first message s", "rows/s"),
        note="from the job's start to the first message in the hub's log; files are read in order, nothing is sorted",
    )
    place = Path(tempfile.mkdtemp(dir=directory))
    _archived(spark, servers, place, total)
    run = JobRun(spark, "replay", HubOptions(target), {"path": str(place)}, replay.PARAMETERS)
    with connect_sync(f"tube://{target}") as link:
        before, begin = link.head().head, time.perf_counter()
        playing = threading.Thread(target=replay.start, args=(run,))
        playing.start()
        while link.head().head == before and playing.is_alive():
            time.sleep(0.01)
        first = time.perf_counter() - begin
        playing.join()
        took = time.perf_counter() - begin
        if link.head().head < before + total:
            raise ValueError(f"{link.head().head - before} messages were replayed where {total} are archived")
    table.add("replay", first, total / took)
    shutil.rmtree(place, ignore_errors=True)
    return table


def _processor_seconds(spark: SparkSession) -> tuple[float, float, float]:
    """Processor time so far of this process, of the JVM, and of its Python workers."""
    context: Any = spark.sparkContext
    jvm = psutil.Process(int(context._jvm.java.lang.ProcessHandle.current().pid()))
    tasks = [_spent(each) for each in jvm.children(recursive=True)]
    return time.process_time(), _spent(jvm), sum(tasks)


def _spent(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def sources(
    spark: SparkSession, servers: str, parquet: Path, directory: Path, cores: int, total: int, rounds: int
) -> bench.Table:
    table = bench.Table(
        f"source: {total:,} rows of {SIZE}-byte payloads as a stream, local[{cores}]",
        ("rows/s", "MB/s"),
        note="MB are of payload; a figure is the median of all rounds but the first, which warms up",
    )
    files = spark.readStream.schema(spark.read.parquet(str(parquet)).schema).parquet(str(parquet))
    asked = {"servers": servers, "startingOffsets": "earliest", "minPartitions": str(2 * cores)}
    reader = spark.readStream.format("headrace").options(**asked)
    source, by_link = reader.load(), reader.options(files=False).load()
    sizes = _sizes()
    # What is compared is run by turns, and nothing else in between.
    families: list[list[tuple[str, DataFrame, str]]] = [
        [
            ("Parquet files to noop", files, "noop"),
            ("headrace to noop", source, "noop"),
            ("headrace, by the link alone, to noop", by_link, "noop"),
        ],
        [
            ("Parquet files, payload alone, to noop", files.select("payload"), "noop"),
            (
                "headrace, payload alone, to noop",
                spark.readStream.format("headrace").options(**asked, columns="payload").load(),
                "noop",
            ),
        ],
        [
            ("one of a hundred Parquet rows, to noop", few(files), "noop"),
            ("one of a hundred headrace rows, to noop", few(source), "noop"),
        ],
        [
            ("a field of JSON, in Parquet rows, to noop", devices(files), "noop"),
            ("a field of JSON, in headrace rows, to noop", devices(source), "noop"),
        ],
        [
            ("a function of Arrow batches, by mapInArrow", source.mapInArrow(sizes, SIZES), "noop"),
            ("the same, by headrace.spark.map_in_arrow", map_in_arrow(spark, sizes, SIZES, **asked), "noop"),
        ],
        [("Parquet files to Parquet", files, "parquet")],
    ]
    for family in families:
        rates: dict[str, list[float]] = {case[0]: [] for case in family}
        for _ in range(rounds):
            for name, rows, sink in family:
                bench.warm_memory(directory, 2 * SIZE * total)
                rates[name].append(total / _timed(rows, sink, directory, total))
        for name, each in rates.items():
            rate = statistics.median(each[1:] or each)
            base = family[0][0]
            table.add(
                name, rate, rate * SIZE / 1e6, base=None if name == base else base, least=LEAST.get(name)
            )
    archived = []
    for _ in range(rounds):
        bench.warm_memory(directory, 2 * SIZE * total)
        place = Path(tempfile.mkdtemp(dir=directory))
        archived.append(total / _archived(spark, servers, place, total))
        shutil.rmtree(place, ignore_errors=True)
    rate = statistics.median(archived[1:] or archived)
    table.add(ARCHIVE, rate, rate * SIZE / 1e6, base="Parquet files to Parquet", least=LEAST[ARCHIVE])
    return table


def sinks(
    spark: SparkSession, servers: str, parquet: Path, cores: int, total: int, rounds: int
) -> bench.Table:
    table = bench.Table(
        f"sink: {total:,} rows of {SIZE}-byte payloads, local[{cores}]",
        ("rows/s", "MB/s"),
        note="rows have a payload alone; headrace: staged by every task, then committed in one append; base: a bare"
        " writer to a socket. What is written to a file takes memory for it, which is dear where it is the host's",
    )
    rows = spark.read.parquet(str(parquet)).select("payload").limit(total).repartition(2 * cores).cache()
    rows.count()
    with draining() as port:
        spark.dataSource.register(_bare_writer())
        bare = rows.write.format("bare").mode("append")
        ways: dict[str, Callable[[], None]] = {
            "Arrow to a socket": lambda: bare.options(port=port).save(),
            "Arrow to files": lambda: bare.options(port="", directory=parquet.parent).save(),
            "headrace": lambda: (
                rows.write.format("headrace").options(servers=servers, topic="out").mode("append").save()
            ),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, write in ways.items():
                bench.warm_memory(parquet.parent, 4 * SIZE * total)
                begin = time.perf_counter()
                write()
                rates[name].append(total / (time.perf_counter() - begin))
    rows.unpersist()
    for name, each in rates.items():
        rate = statistics.median(each[1:] or each)
        base = None if name == "Arrow to a socket" else "Arrow to a socket"
        table.add(name, rate, rate * SIZE / 1e6, base=base, least=LEAST.get(name))
    return table


def latency(spark: SparkSession, servers: str, cores: int, seconds: float) -> bench.Table:
    table = bench.Table(
        f"hub to Spark to hub at {RATE:,} messages/s, local[{cores}], ms",
        ("p50", "p90", "p95", "p99", "most"),
        note="from before the publish to the delivery of the message that Spark made of it; in the shape of Spark's own"
        " harness for Kafka: everything after the first micro-batch counts. settled: of the last half",
    )
    # A number, not "latest": the query looks for that when it gets to it, and pings may be sent before.
    source = spark.readStream.format("headrace").options(
        servers=servers, topic="ping", startingOffsets=uvloop.run(_next(servers))
    )
    rows = source.load().selectExpr("payload", "'pong' as topic")
    kept = "spark.sql.streaming.numRecentProgressUpdates"
    spark.conf.set(kept, 100_000)  # The first is wanted at the end.
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = rows.writeStream.format("headrace").option("servers", servers)
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            delays = uvloop.run(_pings(servers, seconds))
            query.processAllAvailable()  # Spark reports a micro-batch some time after its rows are written.
            first = next(each["numInputRows"] for each in query.recentProgress if each["numInputRows"])
        finally:
            query.stop()
            spark.conf.unset(kept)
    for name, part in (("ping to pong", delays[first:] or delays), ("settled", delays[len(delays) // 2 :])):
        samples = sorted(part)
        table.add(
            name,
            *(1e3 * samples[int(len(samples) * share)] for share in (0.5, 0.9, 0.95, 0.99)),
            1e3 * samples[-1],
        )
    return table


def few(rows: DataFrame) -> DataFrame:
    """What most queries do: look at every row, and take few."""
    return rows.where("seq % 100 = 0")


def devices(rows: DataFrame) -> DataFrame:
    """What most payloads are there for."""
    return rows.selectExpr("get_json_object(string(payload), '$.device') as device").where("device like '%7'")


def _timed(rows: DataFrame, sink: str, directory: Path, total: int) -> float:
    """How long one query over everything takes; that it was everything is looked at."""
    place = Path(tempfile.mkdtemp(dir=directory))
    writer = rows.writeStream.format(sink).option("checkpointLocation", str(place / "checkpoint"))
    if sink == "parquet":
        writer = writer.option("path", str(place / "rows"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    took = sum(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000
    end = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
    # Where Spark is given ranges, it counts those.
    read = end["seq"] if "seq" in end else sum(progress["numInputRows"] for progress in query.recentProgress)
    if read < total:  # Entries of the log have numbers too.
        raise ValueError(f"{read} rows were read where {total} are")
    shutil.rmtree(place, ignore_errors=True)
    return took


def _sizes() -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function of Arrow batches, which Spark pickles by value: how many rows, and bytes of payload, each has."""

    def sizes(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            size = pc.sum(pc.binary_length(batch["payload"])).as_py()
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [size]})

    return sizes


def _archived(spark: SparkSession, servers: str, place: Path, total: int) -> float:
    """How long the job ``archive`` takes for everything."""
    run = JobRun(
        spark, "archive", HubOptions(servers), {"path": str(place)}, archive.PARAMETERS, available_now=True
    )
    started = archive.start(run)
    started.query.awaitTermination()
    facts = started.facts()
    through = int(str(facts["through"]))
    if through < total:  # The job's own hold is an entry behind them.
        raise ValueError(f"what is archived ends at {through} where {total} messages are")
    return sum(progress["durationMs"]["triggerExecution"] for progress in started.query.recentProgress) / 1000


def _bare_writer() -> Any:
    """A data source that Spark pickles by value, being a class of this function's."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def __init__(self, port: str, directory: str) -> None:
            self.port = port
            self.directory = directory

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            import socket as sockets
            import tempfile as files

            if not self.port:
                with files.TemporaryFile(dir=self.directory, buffering=0) as file:
                    for batch in iterator:
                        file.write(memoryview(batch.serialize()))
                return WriterCommitMessage()
            with sockets.create_connection(("127.0.0.1", int(self.port))) as sock:
                for batch in iterator:
                    sock.sendall(memoryview(batch.serialize()))
                sock.shutdown(sockets.SHUT_WR)
                sock.recv(1)
            return WriterCommitMessage()

    class Bare(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bare"

        def writer(self, schema: Any, overwrite: bool) -> Writer:
            return Writer(self.options["port"], self.options.get("directory", ""))

    return Bare


@contextmanager
def draining() -> Iterator[int]:
    """A port that takes whatever is written to it, and hangs up when the writer is done."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drain(sock: socket.socket) -> None:
        buffer = bytearray(1 << 20)
        with sock:
            while sock.recv_into(buffer):
                pass

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drain, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


async def _fill(servers: str, total: int) -> None:
    rng = random.Random(1)
    async with LinkClient([Address.parse(servers)]) as link:
        publisher = link.publisher()
        for begin in range(0, total, 1000):
            payloads = [_event(rng, number) for number in range(begin, begin + 1000)]
            await publisher.send(payloads, topic="in")
        await publisher.flush()


def _event(rng: random.Random, number: int) -> bytes:
    """What a device sends, :data:`SIZE` bytes long."""
    heat, pressure, state = rng.gauss(70, 9), rng.gauss(3, 0.4), rng.choice((b"idle", b"runs", b"halt"))
    event = b'{"id":%d,"at":%d,"device":"pump-%04d","heat":%.2f,"pressure":%.3f,"state":"%s"' % (
        number,
        1_763_280_000_000 + 7 * number + rng.randrange(7),
        rng.randrange(10_000),
        heat,
        pressure,
        state,
    )
    return event.ljust(SIZE - 1) + b"}"


async def _next(servers: str) -> int:
    async with LinkClient([Address.parse(servers)]) as link:
        return (await link.head()).head + 1


async def _pings(servers: str, seconds: float) -> list[float]:
    """Publish at a steady rate, and time what comes back."""
    count = int(seconds * RATE)
    delays: list[float] = []
    address = Address.parse(servers)
    async with LinkClient([address]) as writer, LinkClient([address]) as reader, asyncio.timeout(120):
        follow = reader.follow(topic="pong")
        await follow.begun()

        async def listen() -> None:
            async for message in follow:
                sent = float(message.payload)
                # What an earlier turn of this sent is not of this turn.
                if sent >= begin - 1e-5:
                    delays.append(time.perf_counter() - sent)
                    if len(delays) == count:
                        return

        begin = time.perf_counter()
        listening = asyncio.ensure_future(listen())
        publisher = writer.publisher()
        for number in range(count):
            await asyncio.sleep(max(0.0, begin + number / RATE - time.perf_counter()))
            await publisher.send(b"%.6f" % time.perf_counter(), topic="ping")
        await listening
        await follow.aclose()
    return delays


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
