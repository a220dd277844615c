"""How cost grows: delivered messages by subscribers, publishers and size, and latency by subscribers, beside NATS and
this machine's own limit.

A crowd of raw sockets in one process subscribes, another publishes, each through one selector; everything is encoded
beforehand. A system that grows well keeps its bytes per second, whatever they are made of: the last column compares
what all sockets got with what one loopback stream can carry here.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.queues import Queue

import bench
from bench._peers import Headrace, Nats, Peer, available, receive_until, running, versions
from bench.backbone import CHUNK, MAX_DATA, at, ceilings

SIZE = 128
PACE = 1_000
"""Messages a second where latency is measured: far less than anybody's limit."""
BYTES = 256 << 20
"""About what all sockets of a round get together."""

_spawn = multiprocessing.get_context("spawn")
_TIME = struct.Struct("<d")


def main(argv: Sequence[str]) -> int:
    return bench.run("growth", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure Headrace and, if it is installed, NATS."""
    peers: list[type[Peer]] = [peer for peer in (Headrace, Nats) if available(peer)]
    (limit,) = (row.values[0] for row in ceilings(quick).rows if row.name.startswith("loopback"))
    many = (1, 3) if quick else (1, 10, 100, 1000)
    sizes = (16, 128) if quick else (16, 128, 1024, 8192, MAX_DATA)
    cases = {
        "subscribers": [(1, count, SIZE) for count in many],
        "publishers": [(count, 1, SIZE) for count in many],
        "bytes in a message": [(1, 1, size) for size in sizes],
    }
    for what, each in cases.items():
        table = bench.Table(
            f"delivered messages/s by {what}",
            ("messages/s", "MB/s", "% of loopback"),
            note=f"{SIZE} bytes to one subscriber unless said otherwise; {versions(peers)}",
        )
        for case in each:
            name = f"{case[2] if 'bytes' in what else max(case[:2]):,}"
            for peer, rates in _rates(peers, case, quick).items():
                rate = statistics.median(rates)
                speed = rate * case[2] / 1e6
                base = f"{Nats.name} {name}" if Nats in peers and peer is not Nats else None
                table.add(
                    f"{peer.name} {name}",
                    rate,
                    speed,
                    speed / (limit or 1) * 100,
                    base=base,
                    key=base is not None,
                )
        yield table
    yield _latencies(peers, many, quick)


def _latencies(peers: Sequence[type[Peer]], many: Sequence[int], quick: bool) -> bench.Table:
    table = bench.Table(
        f"latency at {PACE:,} messages/s by subscribers, µs",
        ("p99", "p50"),
        note=f"{SIZE} bytes, from the publisher's send to each subscriber's read; {versions(peers)}",
        less_is_better=True,
    )
    for count in (each for each in many if each <= 100):

        def once(peer: type[Peer], count: int = count) -> tuple[float, float]:
            with running(peer) as server:
                return paced(server, count, 0.1 if quick else 3.0)

        for peer, found in bench.in_turns(peers, once, 1 if quick else 3).items():
            p99, p50 = (statistics.median(each) for each in zip(*found, strict=True))
            base = f"{Nats.name} {count}" if Nats in peers and peer is not Nats else None
            table.add(f"{peer.name} {count}", p99, p50, base=base, key=base is not None and count == 100)
    return table


def paced(server: Peer, subscribers: int, seconds: float) -> tuple[float, float]:
    """Publish one message at a time at a steady pace; p99 and p50 of all deliveries, in µs."""
    told: Queue[object] = _spawn.Queue()
    wanted = int(PACE * seconds)
    reader = _spawn.Process(target=_clock, args=(type(server), server.port, subscribers, wanted, told))
    reader.start()
    told.get(timeout=120)
    with server.connect() as sock:
        due = time.perf_counter()
        for _ in range(wanted):
            due += 1 / PACE
            time.sleep(max(0.0, due - time.perf_counter()))
            # The clock is the system's: the subscribers' process reads the same.
            sock.sendall(server.publication(_TIME.pack(time.perf_counter()).ljust(SIZE, b"\0")))
        p99, p50 = told.get(timeout=120), told.get(timeout=10)
    reader.join()
    assert isinstance(p99, float)
    assert isinstance(p50, float)
    return p99, p50


def _clock(peer: type[Peer], port: int, count: int, wanted: int, told: Queue[object]) -> None:
    server = at(peer, port)
    how = server.subscribing(SIZE)
    # A message's frame ends with its payload, and a line end where the protocol has one.
    place = how.message_bytes - SIZE - (2 if peer is Nats else 0)
    times: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        rest: dict[socket.socket, bytes] = {}
        for _ in range(count):
            sock = stack.enter_context(server.connect())
            sock.sendall(how.hello)
            receive_until(sock, how.greeting)
            selector.register(sock, selectors.EVENT_READ)
            rest[sock] = b""
        told.put(None)
        while len(times) < wanted * count:
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data = rest[sock] + sock.recv(1 << 16)
                now = time.perf_counter()
                whole = len(data) - len(data) % how.message_bytes
                times += (
                    now - _TIME.unpack_from(data, begin + place)[0]
                    for begin in range(0, whole, how.message_bytes)
                )
                rest[sock] = data[whole:]
    times.sort()
    told.put(times[int(len(times) * 0.99)] * 1e6)
    told.put(times[len(times) // 2] * 1e6)


def _rates(
    peers: Sequence[type[Peer]], case: tuple[int, int, int], quick: bool
) -> dict[type[Peer], list[float]]:
    publishers, subscribers, size = case

    def once(peer: type[Peer]) -> float:
        with running(peer) as server:
            each = 20 if quick else max(1, BYTES // (size + 32) // subscribers // publishers)
            return _delivered(server, publishers, subscribers, size, each)

    return bench.in_turns(peers, once, 1 if quick else 3)


def _delivered(server: Peer, publishers: int, subscribers: int, size: int, each: int) -> float:
    """Messages per second at all subscribers together, of ``each`` messages by each publisher."""
    # Times are told by two processes: one queue each, or the end could come before the beginning.
    received: Queue[float] = _spawn.Queue()
    published: Queue[float] = _spawn.Queue()
    peer, port = type(server), server.port
    wanted = publishers * each
    reader = _spawn.Process(target=_receive, args=(peer, port, subscribers, size, wanted, received))
    reader.start()
    received.get(timeout=120)
    writer = _spawn.Process(target=_publish, args=(peer, port, publishers, size, each, published))
    writer.start()
    begin = published.get(timeout=120)
    end = received.get(timeout=300)
    for process in (reader, writer):
        process.join()
    return subscribers * wanted / (end - begin)


def _receive(peer: type[Peer], port: int, count: int, size: int, wanted: int, told: Queue[float]) -> None:
    server = at(peer, port)
    how = server.subscribing(size)
    buffer = bytearray(1 << 20)
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        missing = {}
        for _ in range(count):
            sock = stack.enter_context(server.connect())
            sock.sendall(how.hello)
            receive_until(sock, how.greeting)
            selector.register(sock, selectors.EVENT_READ)
            missing[sock] = wanted * how.message_bytes
        told.put(0.0)
        due = time.monotonic() + 1
        while missing:
            for key, _ in selector.select(0.1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                got = sock.recv_into(buffer)
                if not got:
                    raise ConnectionError("a subscriber was cut off")
                missing[sock] -= got
                if missing[sock] <= 0:
                    selector.unregister(sock)
                    del missing[sock]
            if how.keepalive and time.monotonic() > due:
                for sock in missing:
                    sock.sendall(how.keepalive)
                    missing[sock] += how.keepalive_answer
                due += 1
        told.put(time.time())


def _publish(peer: type[Peer], port: int, count: int, size: int, each: int, told: Queue[float]) -> None:
    server = at(peer, port)
    message = server.publication(bytes(size))
    chunk = memoryview(message * max(1, CHUNK // len(message)))
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        publishers = [stack.enter_context(server.connect()) for _ in range(count)]
        left = dict.fromkeys(publishers, each * len(message))
        for sock in publishers:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_WRITE)
        told.put(time.time())
        while left:
            for key, _ in selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                # The chunk repeats a message, so that what was sent of the last one is cut off its front.
                begin = -left[sock] % len(message)
                left[sock] -= sock.send(chunk[begin : begin + left[sock]])
                if not left[sock]:
                    selector.unregister(sock)
                    del left[sock]
        if peer is Nats:
            # It forgets what it has not yet read when a publisher goes.
            for sock in publishers:
                sock.setblocking(True)
                sock.sendall(b"PING\r\n")
                receive_until(sock, b"PONG\r\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
