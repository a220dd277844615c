"""What a turn of the backbone costs the hub itself: a read, its messages in the log, their DELIVERs, and no socket.

Connections are driven as the event loop drives them, with transports that take everything. The hub, its log and its
doors are real. Without sockets and other processes the figures repeat within a few percent, on a busy machine too: a
change to the way of a message is judged here first.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bench
from headrace.config import DOORS, Settings
from headrace.net.fyrehose.door import FyrehoseDoor
from headrace.net.fyrehose.tcp import FyrehoseConnection
from headrace.net.server.process import Server
from headrace.platforms import new_event_loop
from headrace.wire.fyrehose import kernels

KEEPALIVE = b"\x10" + bytes(6)
READ_BYTES = 256 << 10


def main(argv: Sequence[str]) -> int:
    return bench.run("turn", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure turns of one message, of a full read, and to many subscribers."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        yield runner.run(_measure(quick))


async def _measure(quick: bool) -> bench.Table:
    table = bench.Table(
        "processor time of a turn, µs",
        ("a turn", "a message"),
        note="log on, no sockets",
        less_is_better=True,
    )
    kernels.warm()
    many = 3 if quick else 1000
    cases = [(1, 128, 1), (1, 128, many), (2_000, 128, 1), (2_000, 128, 8), (250, 1024, 1), (250, 1024, many)]
    for messages, size, subscribers in cases:
        with tempfile.TemporaryDirectory(prefix="bench-turn-") as directory:
            took = await _turns(Path(directory), messages, size, subscribers, quick)
        name = f"{messages:,} x {size} B to {subscribers:,}"
        table.add(name, took * 1e6, took / messages * 1e6)
    return table


async def _turns(directory: Path, messages: int, size: int, subscribers: int, quick: bool) -> float:
    """Seconds of processor time for one turn: the median of short rounds."""
    listen = {f"listen.{door}": "127.0.0.1:0" for door in DOORS}
    settings = Settings().override({"node.data": str(directory), **listen}, source="bench")
    server = Server(settings)
    await server.start()
    # As serve does.
    gc.collect()
    gc.freeze()
    try:
        (door,) = (each for each in server.hub.doors if isinstance(each, FyrehoseDoor))
        with _Transport() as transport:
            for _ in range(subscribers):
                _receive(_connected(door, transport), KEEPALIVE)
            publisher = _connected(door, transport)
            data = (b"\x02" + size.to_bytes(2) + bytes(size)) * messages
            # Short rounds, between which the loop lives: else the thread that watches it would wake up.
            turns = 3 if quick else max(3, min(200, (8 << 20) // len(data), 10_000 // subscribers))
            rounds = []
            for _ in range(1 if quick else 40):
                begin = time.process_time()
                for _ in range(turns):
                    _receive(publisher, data)
                    server.hub.take_turn()
                took = time.process_time() - begin
                if not server.hub.paused:
                    # Otherwise the disk was slow, and turns were put off.
                    rounds.append(took / turns)
                await asyncio.sleep(0.005)
            for connection in tuple(door.connections):
                connection.connection_lost(None)
    finally:
        await server.drain()
    return statistics.median(rounds)


def _connected(door: FyrehoseDoor, transport: _Transport) -> FyrehoseConnection:
    connection = door.connection()
    connection.connection_made(transport)
    return connection


def _receive(connection: FyrehoseConnection, data: bytes) -> None:
    """Have a connection receive bytes as from the event loop."""
    for at in range(0, len(data), READ_BYTES):
        part = data[at : at + READ_BYTES]
        connection.get_buffer(-1)[: len(part)] = part
        connection.buffer_updated(len(part))


class _Transport(asyncio.Transport):
    """Takes whatever it is given."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        super().__init__({"peername": ("127.0.0.1", 1), "socket": self._socket})

    def __enter__(self) -> _Transport:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    abort = close


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
