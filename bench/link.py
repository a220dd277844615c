"""The link: reading, following and acknowledged publishing, beside a raw socket, nats-py and redis-py.

The hub runs as a process of its own with its log on (``fsync=interval``); so do nats-server (JetStream in files) and
redis-server (append-only file, everysec). What is measured here are client libraries as a Python program uses
them, each with acknowledgements in windows. A figure is the median of its rounds, and in a round everybody has a turn,
so that what else the machine does is shared.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.queues import Queue
from typing import Any, NamedTuple

import uvloop

import bench
from bench._peers import Headrace, Nats, Peer, Redis, available, running
from bench.backbone import ceilings
from headrace.client.link.client import LinkClient
from headrace.config import Address

SIZE = 128
WINDOW = 4_000
"""Messages that may be unacknowledged, the same for everybody."""

_COLD = 100

_spawn = multiprocessing.get_context("spawn")


def main(argv: Sequence[str]) -> int:
    return bench.run("link", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure the link, and whichever of nats-py and redis-py (with their servers) are installed."""
    rounds = 1 if quick else 3
    return [read(rounds, quick), latency(quick), *publish(rounds, quick), ceilings(quick)]


def read(rounds: int, quick: bool) -> bench.Table:
    table = bench.Table(
        f"read of {SIZE}-byte messages by another process, as validated Arrow record batches",
        ("messages/s", "MB/s"),
        note="MB are of payload; the ceilings below have the raw loopback socket of this machine",
    )
    total = 2_000 if quick else 2_000_000
    with running(Headrace) as server:
        uvloop.run(fill(_address(server), total))
        for name in ("from the open tail", "from sealed segments"):
            if "sealed" in name:
                server.seal()
            rate = statistics.median(_apart(_reader, _address(server), total) for _ in range(rounds))
            table.add(name, rate, rate * SIZE / 1e6)
    return table


def latency(quick: bool) -> bench.Table:
    table = bench.Table(
        "one message at a time, from publish to delivery (follow) or acknowledgement, µs",
        ("p50", "p99", "p99.9"),
        note="publisher and follower in one process, the hub in another; the raw socket goes there and back",
    )
    count = 200 if quick else 5_000
    with running(Headrace) as server:
        for name, samples in (
            ("raw loopback socket", _raw_round_trips(count)),
            ("link, follow", uvloop.run(round_trips(_address(server), count))),
            ("link, acknowledged", uvloop.run(_lone_publishes(_address(server), count))),
        ):
            samples.sort()
            table.add(name, *(samples[int(len(samples) * part)] * 1e6 for part in (0.5, 0.99, 0.999)))
    return table


class _Way(NamedTuple):
    """One way to publish with acknowledgements."""

    name: str
    peer: type[Peer]
    module: str | None
    publish: Callable[[Any, int], Awaitable[None]]
    times: int
    """How much more of it is needed for as long a run."""


WAYS = (
    _Way("link, one at a time", Headrace, None, lambda *given: _publish_singly(*given), 2),
    _Way("link, batches", Headrace, None, lambda *given: _publish_batches(*given), 10),
    _Way("nats-py JetStream async", Nats, "nats", lambda *given: _publish_nats(*given), 1),
    _Way("redis-py XADD pipelines", Redis, "redis", lambda *given: _publish_redis(*given), 1),
)


def publish(rounds: int, quick: bool) -> list[bench.Table]:
    """Acknowledged publishing: a table for each peer there is, with the link's figures of the same rounds."""
    total = 2_000 if quick else 100_000
    ways = [way for way in WAYS if _installed(way)]
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            count = total if quick else total * way.times
            with running(way.peer, **({"persist": True} if way.peer is Redis else {})) as server:
                begin = time.perf_counter()
                uvloop.run(way.publish(server, count))  # type: ignore[arg-type]
                rates[way.name].append(count / (time.perf_counter() - begin))
    figures = {name: statistics.median(each) for name, each in rates.items()}
    mine = [way.name for way in ways if way.module is None]
    peers = [way.name for way in ways if way.module is not None]
    tables = []
    for peer in peers or [None]:
        table = bench.Table(
            f"acknowledged publishing of {SIZE}-byte messages, {WINDOW:,} unacknowledged at most"
            + ("" if peer is None else f", beside {peer}"),
            ("messages/s", "MB/s"),
            note="one at a time: a call and an acknowledgement for each message; batches: of 500",
        )
        for name in [*mine, *([] if peer is None else [peer])]:
            base = None if name == peer else peer
            table.add(name, figures[name], figures[name] * SIZE / 1e6, base=base, key=base is not None)
        tables.append(table)
    return tables


def _installed(way: _Way) -> bool:
    if way.module is not None and importlib.util.find_spec(way.module) is None:
        package = {"nats": "nats-py"}.get(way.module, way.module)
        print(f"SKIPPED {way.name}: {package} is not installed; pip install {package}")
        return False
    return available(way.peer)


async def _publish_singly(server: Headrace, count: int) -> None:
    payload = bytes(SIZE)
    async with LinkClient([_address(server)]) as link:
        publisher = link.publisher(window=WINDOW * (SIZE + 32))
        acks = [await publisher.send(payload) for _ in range(count)]
        for ack in acks:
            await ack


async def _publish_batches(server: Headrace, count: int) -> None:
    payloads = [bytes(SIZE)] * 500
    async with LinkClient([_address(server)]) as link:
        publisher = link.publisher(window=WINDOW * (SIZE + 32))
        acks = [await publisher.send(payloads) for _ in range(count // len(payloads))]
        for ack in acks:
            await ack


async def _publish_nats(server: Nats, count: int) -> None:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{server.port}")
    stream = connection.jetstream(publish_async_max_pending=WINDOW)
    await stream.add_stream(name="B", subjects=["b"])
    payload = bytes(SIZE)
    acks = [await stream.publish_async("b", payload, wait_stall=60) for _ in range(count)]
    for ack in acks:
        await ack
    await connection.close()


async def _publish_redis(server: Redis, count: int) -> None:
    import redis.asyncio

    connection = redis.asyncio.Redis(port=server.port)
    payload = bytes(SIZE)
    for begin in range(0, count, WINDOW):
        pipeline = connection.pipeline(transaction=False)
        for _ in range(min(WINDOW, count - begin)):
            pipeline.xadd("s", {"p": payload})
        await pipeline.execute()
    await connection.aclose()


async def fill(address: Address, total: int) -> None:
    async with LinkClient([address]) as link:
        publisher = link.publisher()
        payloads = [b"%0*d" % (SIZE, number) for number in range(1000)]
        for _ in range(total // 1000):
            await publisher.send(payloads)
        await publisher.flush()


async def round_trips(address: Address, count: int) -> list[float]:
    times = []
    async with LinkClient([address]) as writer, LinkClient([address]) as reader:
        follow = reader.follow()
        await follow.begun()
        publisher = writer.publisher()
        # The first ones find everything cold: modules to be imported, memory to be touched.
        for number in range(-_COLD, count):
            begin = time.perf_counter()
            await publisher.send(b"%0*d" % (SIZE, number))
            message = await anext(follow)
            times.append(time.perf_counter() - begin)
            if int(message.payload) != number:
                raise ValueError(f"message {message.seq} came where {number} was published")
    return times[_COLD:]


async def _lone_publishes(address: Address, count: int) -> list[float]:
    times, payload = [], bytes(SIZE)
    async with LinkClient([address]) as link:
        publisher = link.publisher()
        for _ in range(_COLD + count):
            begin = time.perf_counter()
            await publisher.publish(payload)
            times.append(time.perf_counter() - begin)
    return times[_COLD:]


def _raw_round_trips(count: int) -> list[float]:
    """How long a message and its echo take over plain sockets: what no hub can be quicker than."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = _spawn.Process(target=_echo, args=(listening.getsockname(),), daemon=True)
        process.start()
        sock, _ = listening.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(count):
                begin = time.perf_counter()
                sock.sendall(bytes(SIZE))
                left = SIZE
                while left:
                    left -= len(sock.recv(left))
                times.append(time.perf_counter() - begin)
        process.join()
    return times


def _echo(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := sock.recv(4096):
            sock.sendall(data)


def _reader(address: Address, total: int, told: Queue[float]) -> None:
    async def work() -> float:
        async with LinkClient([address], credit=32 << 20) as link:
            begin = time.perf_counter()
            count = 0
            async for rows in link.read(1):
                count += rows.num_rows
            if count != total:
                raise ValueError(f"{count} messages where {total} were published")
            return total / (time.perf_counter() - begin)

    told.put(uvloop.run(work()))


def _apart(function: Callable[..., None], address: Address, total: int) -> float:
    """What a function measures in a process of its own."""
    told: Queue[float] = _spawn.Queue()
    process = _spawn.Process(target=function, args=(address, total, told))
    process.start()
    rate = told.get(timeout=120)
    process.join()
    return rate


def _address(server: Headrace) -> Address:
    return Address.parse(server.tube)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
