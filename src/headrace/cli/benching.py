"""What ``bench`` does: a hub of its own in another process, and one measurement after another against it."""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from headrace.cli.output import console, print_json, wants_json
from headrace.cli.stderr import speak_briefly
from headrace.client.link.client import LinkClient
from headrace.config import DOORS
from headrace.errors import UnreachableError
from headrace.message import Run
from headrace.wire.fyrehose.stream import Keepalive, push_run, serialize

_START_SECONDS: Final = 90.0
"""The first start on a machine compiles the kernels."""

_BAR: Final = 30
_CHUNK: Final = 256 << 10
_DELIVER_HEADER: Final = 9
_KEEPALIVE: Final = serialize(Keepalive("0.0.0.0", 0))


class Figure(NamedTuple):
    """One measurement: so many a second, or so many microseconds."""

    what: str
    rate: float | None
    bytes_per_second: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None


Doors = dict[str, tuple[str, int]]
Measurement = Callable[[Doors, int, float], Coroutine[None, None, Figure]]


def measure(size: int, seconds: float, *, as_json: bool) -> None:
    """Measure, showing on a terminal what is being measured, and print the figures."""
    speak_briefly()
    found: list[Figure] = []
    out = console(stderr=True)
    looks = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*looks, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("starting a hub")
        with _hub() as doors:
            for description, measurement in _MEASUREMENTS:
                progress.update(task, description=description)
                found.append(asyncio.run(measurement(doors, size, seconds)))
    if wants_json(asked=as_json):
        print_json([figure._asdict() for figure in found])
    else:
        console().print(_table(found, size))


async def _deliver(doors: Doors, size: int, seconds: float) -> Figure:
    """One publisher as fast as it can, one subscriber, raw sockets: the hub's own speed."""
    loop = asyncio.get_running_loop()
    publisher, subscriber = _blocking(doors["fyrehose"]), _blocking(doors["fyrehose"])
    with publisher, subscriber:
        publisher.setblocking(False)
        subscriber.setblocking(False)
        await loop.sock_sendall(subscriber, _KEEPALIVE)
        await loop.sock_recv(subscriber, len(_KEEPALIVE))
        count = max(1, _CHUNK // (size + 3))
        chunk = push_run(Run.of([bytes(size)] * count))
        begun = loop.time()
        deadline, due = begun + seconds, begun + 1
        sent = 0

        async def push() -> None:
            nonlocal sent
            while loop.time() < deadline:
                await loop.sock_sendall(publisher, chunk)
                sent += count

        pushing = asyncio.ensure_future(push())
        got, buffer = 0, bytearray(1 << 20)
        while not (pushing.done() and got >= sent * (size + _DELIVER_HEADER)):
            got += await loop.sock_recv_into(subscriber, buffer)
            if loop.time() > due:
                # Its answer is seven bytes among all the others.
                await loop.sock_sendall(subscriber, _KEEPALIVE)
                got -= len(_KEEPALIVE)
                due += 1
        passed = loop.time() - begun
    return Figure("delivered by the backbone", sent / passed, sent * size / passed)


async def _publish(doors: Doors, size: int, seconds: float) -> Figure:
    """Batches, acknowledged once they are committed, several under way."""
    async with LinkClient.at(_url(doors)) as link:
        publisher = link.publisher()
        batch = [bytes(size)] * max(1, _CHUNK // size)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        acks = []
        while loop.time() < begun + seconds:
            acks.append(await publisher.send(batch))
        for ack in acks:
            await ack
        passed = loop.time() - begun
    total = len(acks) * len(batch)
    return Figure("published, acknowledged", total / passed, total * size / passed)


async def _read(doors: Doors, size: int, seconds: float) -> Figure:
    """Everything that the measurements before have left in the log, as Arrow batches."""
    async with LinkClient.at(_url(doors)) as link:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        rows = 0
        async with link.read() as stream:
            async for batch in stream:
                rows += batch.num_rows
                if loop.time() > begun + seconds:
                    break
        passed = loop.time() - begun
    return Figure("read from the log", rows / passed, rows * size / passed)


async def _latency(doors: Doors, size: int, seconds: float) -> Figure:
    """One message at a time, from push to delivery."""
    publisher, subscriber = _blocking(doors["fyrehose"]), _blocking(doors["fyrehose"])
    with publisher, subscriber:
        subscriber.sendall(_KEEPALIVE)
        subscriber.recv(len(_KEEPALIVE), socket.MSG_WAITALL)
        message = bytes(push_run(Run.of([bytes(size)])))
        times: list[float] = []
        begun = time.perf_counter()
        due = begun + 1
        while (now := time.perf_counter()) < begun + seconds:
            publisher.sendall(message)
            subscriber.recv(size + _DELIVER_HEADER, socket.MSG_WAITALL)
            times.append(time.perf_counter() - now)
            if now > due:
                subscriber.sendall(_KEEPALIVE)
                subscriber.recv(len(_KEEPALIVE), socket.MSG_WAITALL)
                due += 1
    ranked = statistics.quantiles(times, n=100)
    return Figure("one message, push to delivery", None, None, ranked[49] * 1e6, ranked[98] * 1e6)


_MEASUREMENTS: Final[tuple[tuple[str, Measurement], ...]] = (
    ("latency of one message at a time", _latency),
    ("delivering as fast as it goes", _deliver),
    ("publishing with acknowledgements", _publish),
    ("reading from the log", _read),
)


@contextmanager
def _hub() -> Iterator[Doors]:
    """A hub of our own, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        ready = Path(directory) / "ready.json"
        free = [part for door in DOORS for part in ("--set", f"listen.{door}=127.0.0.1:0")]
        command = [sys.executable, "-m", "headrace", "serve", "--data", directory, "--ready-file", str(ready)]
        hub = subprocess.Popen([*command, *free, "--log-level", "error"])  # noqa: S603 -- ourselves
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not ready.exists():
                if hub.poll() is not None or time.monotonic() > deadline:
                    raise UnreachableError("the hub", "it does not start here; try headrace serve")
                time.sleep(0.05)
            told = msgspec.json.decode(ready.read_bytes(), type=dict[str, int | str])
            yield {door: _address(str(where)) for door, where in told.items() if door != "pid"}
        finally:
            hub.terminate()
            hub.wait()


def _address(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    return host, int(port)


def _url(doors: Doors) -> str:
    host, port = doors["tube_tcp"]
    return f"tube://{host}:{port}"


def _blocking(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _table(found: list[Figure], size: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"{size}-byte messages", no_wrap=True)
    table.add_column("per second", justify="right", no_wrap=True)
    table.add_column("MB/s", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max(figure.rate or 0 for figure in found)
    for figure in found:
        if figure.rate is None:
            table.add_row(figure.what, "", "", f"p50 {figure.p50_us:,.0f} µs, p99 {figure.p99_us:,.0f} µs")
        else:
            bar = "█" * max(1, round(figure.rate / most * _BAR))
            speed = (figure.bytes_per_second or 0) / 1e6
            table.add_row(figure.what, f"{figure.rate:,.0f}", f"{speed:,.0f}", f"[cyan]{bar}[/cyan]")
    return table
