"""The log's past: a hub whose log begins at 10 million serves the rest from its archive; what do others feel of it?

The archive is a Delta table that this benchmark writes, on the local disk. Readers run in a process of their own, and
so does the hub. The latency of others is measured while nobody reads, while somebody reads as many sealed messages of
the log, and while somebody reads the archive: two cores are shared by three processes in the last two.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.synchronize
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from multiprocessing.queues import Queue
from queue import Empty
from uuid import uuid4

import pyarrow as pa
import uvloop

import bench
from bench._peers import Headrace, running
from bench.link import SIZE, fill, round_trips
from headrace.archive.appending import append, ledger_for
from headrace.archive.ledger import Writer
from headrace.client.link.client import LinkClient
from headrace.config import Address
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import begin
from headrace.message import Batch, Run

_BATCH = 10_000

_spawn = multiprocessing.get_context("spawn")


class ArchivedHub(Headrace):
    """A hub whose log begins after an archive of ``archived`` messages."""

    archived = 0

    def command(self) -> list[str]:
        return [*super().command(), "--set", f"log.archive={self.directory / 'archive'}"]

    def start(self) -> None:
        log = uuid4()
        begin(self.directory / "data" / "log", Snapshot(log, self.archived, self.archived, {}), sync=False)
        ledger = ledger_for(str(self.directory / "archive"), str(log))
        append(ledger, _rows(self.archived), Writer("bench", 0))
        super().start()


def main(argv: Sequence[str]) -> int:
    return bench.run("past", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure the rates of readers, then the latency of others."""
    total = 20_000 if quick else 10_000_000
    ArchivedHub.archived = total
    with running(ArchivedHub) as hub:
        address = Address.parse(hub.tube)
        uvloop.run(fill(address, total // 2))
        hub.seal()
        yield _rates(address, total, 1)
        yield _latency(address, total, 100 if quick else 3_000)


def _rates(address: Address, total: int, rounds: int) -> bench.Table:
    table = bench.Table(
        f"{total:,} messages of {SIZE} bytes to another process, as validated Arrow record batches",
        ("messages/s", "MB/s"),
        note=f"the first row reads {total // 2:,} messages of the log's own sealed segments",
    )
    sealed, archived = "read of sealed segments", "read from the archive"
    ways: list[tuple[str, Callable[..., None], int, int]] = [
        (sealed, _read, total + 1, total + total // 2),
        (archived, _read, 1, total),
        ("follow from message 1", _follow, 1, total),
        ("durable consumer from message 1", _consume, 1, total),
    ]
    for name, work, first, last in ways:
        rate = statistics.median(_apart(work, address, first, last) for _ in range(rounds))
        table.add(name, rate, rate * SIZE / 1e6, base=None if name == sealed else sealed)
    return table


def _latency(address: Address, total: int, count: int) -> bench.Table:
    table = bench.Table(
        "from publish to delivery of one message at a time to others, µs",
        ("p50", "p99", "p99.9"),
        note="hub, reader and this pair of clients share the machine's cores",
    )
    quiet, sealed = "nobody reads", "somebody reads sealed segments"
    for name, first, last, base in (
        (quiet, 0, 0, None),
        (sealed, total + 1, total + total // 2, quiet),
        ("somebody reads the archive", 1, total, sealed),
    ):
        stop = _spawn.Event()
        reader = _spawn.Process(target=_read_on, args=(address, first, last, stop), daemon=True)
        if last:
            reader.start()
        samples = sorted(uvloop.run(round_trips(address, count)))
        stop.set()
        if last:
            reader.join()
        table.add(name, *(samples[int(len(samples) * part)] * 1e6 for part in (0.5, 0.99, 0.999)), base=base)
    return table


def _rows(total: int) -> Iterator[pa.RecordBatch]:
    run = Run.of([b"%0*d" % (SIZE, number) for number in range(_BATCH)])
    now = time.time_ns() // 1000
    for first in range(1, total + 1, _BATCH):
        yield Batch(
            run, first=first, time=now, origin="tube", publisher="bench", number=first, topic="past"
        ).to_arrow()


def _read(address: Address, first: int, last: int, told: Queue[float]) -> None:
    told.put(uvloop.run(_count(address, first, last, lambda link: link.read(first, last))))


def _follow(address: Address, first: int, last: int, told: Queue[float]) -> None:
    told.put(uvloop.run(_count(address, first, last, lambda link: link.follow(first).batches())))


def _consume(address: Address, first: int, last: int, told: Queue[float]) -> None:
    async def acknowledged(link: LinkClient) -> AsyncIterator[pa.RecordBatch]:
        consumer = link.consumer(f"bench-{uuid4().hex}", from_seq=first, credit=32 << 20)
        async for rows in consumer.batches():
            yield rows
            await consumer.ack(rows)

    told.put(uvloop.run(_count(address, first, last, acknowledged)))


async def _count(
    address: Address, first: int, last: int, open_: Callable[[LinkClient], AsyncIterator[pa.RecordBatch]]
) -> float:
    """Take batches up to ``last``, which must follow one another; return how many messages a second came."""
    async with LinkClient([address], credit=32 << 20) as link:
        begun = time.perf_counter()
        following = first
        async for rows in open_(link):
            if rows.column("seq")[0].as_py() != following:
                raise ValueError(f"message {rows.column('seq')[0]} came where {following} was next")
            following += rows.num_rows
            if following > last:
                break
        return (last - first + 1) / (time.perf_counter() - begun)


def _read_on(address: Address, first: int, last: int, stop: multiprocessing.synchronize.Event) -> None:
    async def work() -> None:
        async with LinkClient([address], credit=32 << 20) as link:
            while not stop.is_set():
                async for _ in link.read(first, last):
                    if stop.is_set():
                        return

    uvloop.run(work())


def _apart(work: Callable[..., None], address: Address, first: int, last: int) -> float:
    told: Queue[float] = _spawn.Queue()
    process = _spawn.Process(target=work, args=(address, first, last, told))
    process.start()
    while True:
        with contextlib.suppress(Empty):
            rate = told.get(timeout=1)
            break
        if not process.is_alive():
            raise RuntimeError(f"{work.__name__} has failed")
    process.join()
    return rate


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
