"""A cluster of three: replicated, persisted, acknowledged publishing, beside a three-node JetStream stream (R3).

All nodes run on this machine, as processes of their own, and keep what they get in files: ours with ``fsync=interval``,
nats-server as it does by default. A publish is acknowledged when a majority has it. Publishers are client libraries as
a Python program uses them, each with acknowledgements in windows, connected to the node that numbers and to one
that does not. A figure is the median of its rounds, and in a round everybody has a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

import bench
from bench._peers import DEADLINE, Nats, available, found, free_port
from headrace.client.link.client import LinkClient
from headrace.config import DOORS, Address
from headrace.errors import UnreachableError

SIZE = 128
WINDOW = 4_000
"""Messages that may be unacknowledged, the same for everybody."""

NODES = 3
PEER = "nats-py, JetStream R3"


def main(argv: Sequence[str]) -> int:
    return bench.run("cluster", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure our cluster, and JetStream's where nats-server and nats-py are installed."""
    rounds, total, trips = (1, 1_000, 50) if quick else (3, 60_000, 2_000)
    rates: dict[str, list[float]] = {}
    delays: dict[str, list[float]] = {}
    for _ in range(rounds):
        with _headrace() as ports:
            for name, port, publish, times in (
                ("at the primary, batches", ports[0], _publish_batches, 10),
                ("at the primary, one at a time", ports[0], _publish_singly, 2),
                ("at another node, batches", ports[1], _publish_batches, 10),
                ("at another node, one at a time", ports[1], _publish_singly, 2),
            ):
                rates.setdefault(name, []).append(_rate(publish, port, total * (1 if quick else times)))
            for name, port in (("at the primary", ports[0]), ("at another node", ports[1])):
                delays.setdefault(name, []).extend(uvloop.run(_trips(port, trips)))
        if _has_nats():
            with _jetstream() as port:
                rates.setdefault(PEER, []).append(_rate(_publish_nats, port, total))
                delays.setdefault(PEER, []).extend(uvloop.run(_trips_nats(port, trips)))
    base = PEER if PEER in rates else None
    throughput = bench.Table(
        f"acknowledged publishing of {SIZE}-byte messages to three nodes, {WINDOW:,} unacknowledged at most",
        ("messages/s", "MB/s"),
        note="one at a time: a call and an acknowledgement for each message; batches: of 500",
    )
    for name, each in rates.items():
        rate = statistics.median(each)
        throughput.add(name, rate, rate * SIZE / 1e6, base=None if name == PEER else base, key=name != PEER)
    latency = bench.Table(
        "one message at a time, from publish to acknowledgement, µs",
        ("p50", "p99", "p99.9"),
        less_is_better=True,
    )
    for name, samples in delays.items():
        samples.sort()
        figures = (samples[int(len(samples) * part)] * 1e6 for part in (0.5, 0.99, 0.999))
        latency.add(name, *figures, base=None if name == PEER else base, key=name != PEER)
    return [throughput, latency]


def _rate(publish: Callable[[int, int], Awaitable[None]], port: int, count: int) -> float:
    begin = time.perf_counter()
    uvloop.run(publish(port, count))  # type: ignore[arg-type]
    return count / (time.perf_counter() - begin)


async def _publish_batches(port: int, count: int) -> None:
    payloads = [bytes(SIZE)] * 500
    async with LinkClient([Address("127.0.0.1", port)]) as link:
        publisher = link.publisher(window=WINDOW * (SIZE + 32))
        for ack in [await publisher.send(payloads) for _ in range(count // len(payloads))]:
            await ack


async def _publish_singly(port: int, count: int) -> None:
    payload = bytes(SIZE)
    async with LinkClient([Address("127.0.0.1", port)]) as link:
        publisher = link.publisher(window=WINDOW * (SIZE + 32))
        for ack in [await publisher.send(payload) for _ in range(count)]:
            await ack


async def _trips(port: int, count: int) -> list[float]:
    samples = []
    async with LinkClient([Address("127.0.0.1", port)]) as link:
        publisher = link.publisher()
        for _ in range(count):
            begin = time.perf_counter()
            await publisher.publish(bytes(SIZE))
            samples.append(time.perf_counter() - begin)
    return samples


async def _publish_nats(port: int, count: int) -> None:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = connection.jetstream(publish_async_max_pending=WINDOW)
    payload = bytes(SIZE)
    for ack in [await stream.publish_async("b", payload, wait_stall=60) for _ in range(count)]:
        await ack
    await connection.close()


async def _trips_nats(port: int, count: int) -> list[float]:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = connection.jetstream()
    samples = []
    for _ in range(count):
        begin = time.perf_counter()
        await stream.publish("b", bytes(SIZE))
        samples.append(time.perf_counter() - begin)
    await connection.close()
    return samples


@contextlib.contextmanager
def _headrace() -> Iterator[list[int]]:
    """Three nodes; the ports of their links, the primary's first."""
    with _directory() as directory:
        parcels = [free_port() for _ in range(NODES)]
        peers = ",".join(f"127.0.0.1:{port}" for port in parcels)
        commands = []
        for number, parcel in enumerate(parcels):
            sets = [f"listen.{door}=127.0.0.1:0" for door in DOORS if door != "parcel"]
            sets += [f"listen.parcel=127.0.0.1:{parcel}", f"node.name=node{number}", "log.retain_bytes=off"]
            commands.append([
                sys.executable, "-m", "headrace", "serve", "--data", str(directory / f"{number}"), "--log-level",
                "error", "--peers", peers, "--ready-file", str(directory / f"{number}.json"),
                *(part for setting in sets for part in ("--set", setting)),
            ])  # fmt: skip
        with _processes(commands):
            doors = [_eventually(lambda number=number: _ready(directory, number)) for number in range(NODES)]
            primary = _eventually(lambda: _primary(doors))
            ports = [int(each["tube_tcp"].rpartition(":")[2]) for each in doors]
            for port in ports:
                _eventually(lambda port=port: uvloop.run(_served(port)))
            yield [ports[primary], *(port for number, port in enumerate(ports) if number != primary)]


def _ready(directory: Path, number: int) -> dict[str, str] | None:
    path = directory / f"{number}.json"
    doors: dict[str, str] | None = json.loads(path.read_text()) if path.exists() else None
    return doors


def _primary(doors: Sequence[dict[str, str]]) -> int | None:
    """Which node is primary, once all work."""
    found = set()
    for each in doors:
        with urllib.request.urlopen(f"http://{each['http']}/api/status") as answer:
            status: dict[str, Any] = json.load(answer)
        found.add(status["cluster"]["primary"] if status["mode"] == "WRK" else None)
    name = found.pop()
    return None if found or name is None else int(name.removeprefix("node"))


async def _served(port: int) -> bool | None:
    """Whether a node serves clients: a new one does so once it has the cluster's first entry."""
    try:
        async with LinkClient([Address("127.0.0.1", port)]):
            return True
    except UnreachableError:
        return None


@contextlib.contextmanager
def _jetstream() -> Iterator[int]:
    """Three nats-servers with one stream, three times replicated; the port of the node that leads it."""
    with _directory() as directory:
        clients, routes = ([free_port() for _ in range(NODES)] for _ in range(2))
        urls = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        commands = [
            [
                found(Nats), "-a", "127.0.0.1", "-p", str(client), "-js", "-sd", str(directory / f"{number}"),
                "-n", f"node{number}", "--cluster_name", "bench", "--cluster", f"nats://127.0.0.1:{route}",
                "--routes", urls,
            ]
            for number, (client, route) in enumerate(zip(clients, routes, strict=True))
        ]  # fmt: skip
        with _processes(commands):
            leader = uvloop.run(_make_stream(clients))
            yield clients[int(leader.removeprefix("node"))]


async def _make_stream(ports: Sequence[int]) -> str:
    import nats
    from nats.errors import Error

    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            connection = await nats.connect(f"nats://127.0.0.1:{ports[0]}", max_reconnect_attempts=0)
            try:
                stream = connection.jetstream()
                await stream.add_stream(name="B", subjects=["b"], num_replicas=NODES)
                info = await stream.stream_info("B")
                if (
                    info.cluster is not None
                    and info.cluster.leader
                    and len(info.cluster.replicas or ()) == NODES - 1
                ):
                    return str(info.cluster.leader)
            finally:
                await connection.close()
        except (Error, OSError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _processes(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # One by one: whatever was started before another fails is ended.
            running.append(process)
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(DEADLINE)


def _eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster did not come up")
        time.sleep(0.05)
    return found


def _has_nats() -> bool:
    if importlib.util.find_spec("nats") is None:
        print(f"SKIPPED {PEER}: nats-py is not installed; pip install nats-py")
        return False
    return available(Nats)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
