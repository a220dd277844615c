"""``bench``: measure how fast Headrace is on this machine, with a hub in a process of its own."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from headrace.cli.terminal.options import Json
from headrace.cli.terminal.output import console, plain_table, print_json, wants_json
from headrace.errors import UnreachableError

if TYPE_CHECKING:
    from rich.table import Table


EXAMPLES: Final = (
    ("About half a minute:", "headrace bench"),
    ("For a script:", "headrace bench --json | jq '.[] | {what, rate}'"),
    ("Larger messages, a shorter look:", "headrace bench --size 1024 --seconds 2"),
)


_BAR: Final = 30
_CHUNK: Final = 256 << 10
_DELIVER_HEADER: Final = 9


class Measurement(NamedTuple):
    """One result: a rate, or a latency in microseconds."""

    what: str
    rate: float | None
    bytes_per_second: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None


Doors = dict[str, str]
Measure = Callable[[Doors, int, float], Coroutine[None, None, Measurement]]


def bench(
    size: Annotated[
        int, typer.Option("--size", min=1, max=65_000, metavar="BYTES", help="The size of each message.")
    ] = 128,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.1, max=60.0, metavar="S", help="The time for each measurement."),
    ] = 5.0,
    as_json: Json = False,
) -> None:
    """Measure how fast Headrace is on this machine, in about half a minute.

    It starts a hub of its own on free ports, with its log in a temporary directory, and measures messages delivered by
    the backbone, acknowledged publishes, reading from the log, and the latency of one message at a time. Publisher,
    hub and subscriber share this machine, and other programs on it disturb the figures.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from headrace.cli.terminal.stderr import log_briefly

    log_briefly()
    found: list[Measurement] = []
    out = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    # The hub is forked first: the display has a thread.
    with (
        _hub() as ready_doors,
        Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress,
    ):
        from headrace.cli.terminal.event_loop import run_until_done

        task = progress.add_task("starting a hub")
        doors = ready_doors()
        for description, measure in _MEASUREMENTS:
            progress.update(task, description=description)
            found.append(run_until_done(partial(measure, doors, size, seconds)))
    if wants_json(asked=as_json):
        print_json([each._asdict() for each in found])
    else:
        console().print(_table(found, size))


async def _deliver(doors: Doors, size: int, seconds: float) -> Measurement:
    """Measure the hub's own speed, over raw sockets: one publisher as fast as it can, one subscriber."""
    import asyncio

    from headrace.message import Run
    from headrace.wire.fyrehose.stream import push_run

    keepalive = _keepalive()
    loop = asyncio.get_running_loop()
    publisher, subscriber = _blocking(doors["fyrehose"]), _blocking(doors["fyrehose"])
    with publisher, subscriber:
        publisher.setblocking(False)
        subscriber.setblocking(False)
        await loop.sock_sendall(subscriber, keepalive)
        await loop.sock_recv(subscriber, len(keepalive))
        count = max(1, _CHUNK // (size + 3))
        chunk = push_run(Run.of([bytes(size)] * count))
        begun = loop.time()
        sent = answers = 0

        async def push() -> None:
            nonlocal sent
            while loop.time() < begun + seconds:
                sent += count
                await loop.sock_sendall(publisher, chunk)

        async def stay_subscribed() -> None:
            nonlocal answers
            while True:
                await asyncio.sleep(1)
                # Its answer is seven bytes among all the others.
                answers += len(keepalive)
                await loop.sock_sendall(subscriber, keepalive)

        pushing, staying = asyncio.ensure_future(push()), asyncio.ensure_future(stay_subscribed())
        got, buffer = 0, bytearray(1 << 20)
        while not pushing.done() or got < sent * (size + _DELIVER_HEADER) + answers:
            if got < sent * (size + _DELIVER_HEADER) + answers:
                got += await loop.sock_recv_into(subscriber, buffer)
            else:
                # Nothing comes before the publisher has had its turn.
                await asyncio.sleep(0)
        staying.cancel()
        passed = loop.time() - begun
    return Measurement("delivered by the backbone", sent / passed, sent * size / passed)


async def _publish(doors: Doors, size: int, seconds: float) -> Measurement:
    """Measure batches that are acknowledged once committed, several under way."""
    import asyncio

    from headrace.client.link.client import LinkClient

    async with LinkClient.at(f"tube://{doors['tube_tcp']}") as link:
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
    return Measurement("published, acknowledged", total / passed, total * size / passed)


async def _read(doors: Doors, size: int, seconds: float) -> Measurement:
    """Measure reading the log of the earlier measurements, as Arrow batches."""
    import asyncio

    from headrace.client.link.client import LinkClient

    async with LinkClient.at(f"tube://{doors['tube_tcp']}") as link:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        rows = 0
        async with link.read() as stream:
            async for batch in stream:
                rows += batch.num_rows
                if loop.time() > begun + seconds:
                    break
        passed = loop.time() - begun
    return Measurement("read from the log", rows / passed, rows * size / passed)


async def _latency(doors: Doors, size: int, seconds: float) -> Measurement:
    """Measure one message at a time, from push to delivery, with blocking sockets."""
    import asyncio
    import statistics

    from headrace.message import Run
    from headrace.wire.fyrehose.stream import push_run

    keepalive = _keepalive()
    publisher, subscriber = _blocking(doors["fyrehose"]), _blocking(doors["fyrehose"])
    with publisher, subscriber:
        subscriber.sendall(keepalive)
        subscriber.recv(len(keepalive), socket.MSG_WAITALL)
        message = bytes(push_run(Run.of([bytes(size)])))
        times: list[float] = []
        begun = time.perf_counter()
        due, breath = begun + 1, begun
        while (now := time.perf_counter()) < begun + seconds:
            publisher.sendall(message)
            subscriber.recv(size + _DELIVER_HEADER, socket.MSG_WAITALL)
            times.append(time.perf_counter() - now)
            if now > due:
                subscriber.sendall(keepalive)
                subscriber.recv(len(keepalive), socket.MSG_WAITALL)
                due += 1
            if now > breath:
                # Ctrl-C is noticed here.
                await asyncio.sleep(0)
                breath += 0.1
    ranked = statistics.quantiles(times, n=100)
    return Measurement("one message, push to delivery", None, None, ranked[49] * 1e6, ranked[98] * 1e6)


_MEASUREMENTS: Final[tuple[tuple[str, Measure], ...]] = (
    ("latency of one message at a time", _latency),
    ("delivering as fast as it goes", _deliver),
    ("publishing with acknowledgements", _publish),
    ("reading from the log", _read),
)


@contextmanager
def _hub() -> Iterator[Callable[[], Doors]]:
    """Run a hub for as long as the block runs; give a function that waits for its doors."""
    import tempfile

    from headrace.cli.terminal.child_process import ChildProcess

    hub = ChildProcess("bench-hub")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        ready = Path(directory) / "ready.json"

        def doors() -> Doors:
            if (found := hub.wait_until_ready(ready)) is None:
                raise UnreachableError("the hub", "it does not start; try headrace serve")
            return found.doors

        hub.start(_run_hub, directory, ready)
        try:
            yield doors
        finally:
            hub.signal(signal.SIGTERM)
            hub.wait()


def _run_hub(directory: str, ready: Path) -> None:
    from headrace.cli.run.serve import run_hub
    from headrace.cli.terminal.exits import exit_with_code
    from headrace.cli.terminal.options import load_settings
    from headrace.cli.terminal.stderr import LogFormat, LogLevel, log_to_stderr
    from headrace.config import DOORS

    log_to_stderr(LogFormat.TEXT, LogLevel.ERROR)
    with exit_with_code():
        free = [f"listen.{door}=127.0.0.1:0" for door in DOORS]
        settings = load_settings(None, Path(directory), free)
        run_hub(settings, ready, take_free_ports=False, banner=False)


def _keepalive() -> bytes:
    from headrace.wire.fyrehose.stream import Keepalive, serialize

    return serialize(Keepalive("0.0.0.0", 0))


def _blocking(where: str) -> socket.socket:
    from headrace.config import Address

    address = Address.parse(where)
    sock = socket.create_connection((address.host, address.port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _table(found: list[Measurement], size: int) -> Table:
    table = plain_table(f"{size}-byte messages", ">per second", ">MB/s", "", fold=False)
    most = max(each.rate or 0 for each in found)
    for each in found:
        if each.rate is None:
            table.add_row(each.what, "", "", f"p50 {each.p50_us:,.0f} µs, p99 {each.p99_us:,.0f} µs")
        else:
            bar = "█" * max(1, round(each.rate / most * _BAR))
            speed = (each.bytes_per_second or 0) / 1e6
            table.add_row(each.what, f"{each.rate:,.0f}", f"{speed:,.0f}", f"[cyan]{bar}[/cyan]")
    return table
