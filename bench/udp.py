"""The backbone over UDP at a steady rate: how many messages arrive, and how many are lost.

UDP has no backpressure: a subscriber that cannot follow loses messages and asks for them again. So the question is not
how fast the hub can send but at which rate nothing is lost. A publisher sends over TCP at a given rate; a subscriber
counts what arrives at its socket, first one DELIVER in each datagram, then several, as our own client takes them.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.queues import Queue

import bench
from bench._peers import Headrace, running
from headrace.client.udp_offload import enable_segments, enlarge

SIZE = 128
DELIVER = 9 + SIZE
KEEPALIVE = b"\x10" + bytes(6)
TURNS_A_SECOND = 500

_spawn = multiprocessing.get_context("spawn")


def main(argv: Sequence[str]) -> int:
    return bench.run("udp", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Publish at several rates, and count what one UDP subscriber gets."""
    table = bench.Table(
        "messages of 128 bytes to one UDP subscriber, at a steady rate",
        ("delivered/s", "published/s", "lost"),
        note="published over TCP, log on",
    )
    seconds = 0.2 if quick else 4.0
    cases = [(False, 50_000), (False, 90_000), (True, 250_000), (True, 500_000), (True, 800_000)]
    for together, rate in cases[::3] if quick else cases:
        with running(Headrace) as server:
            delivered, published, lost = _at(server.port, rate, seconds, together=together)
        how = "several in a datagram" if together else "one in a datagram"
        table.add(f"{how}, {rate:,}/s", delivered, published, lost)
    yield table


def _at(port: int, rate: int, seconds: float, *, together: bool) -> tuple[float, float, float]:
    told: Queue[float] = _spawn.Queue()
    wanted = int(rate * seconds)
    reader = _spawn.Process(target=_count, args=(port, wanted, together, told))
    reader.start()
    told.get(timeout=60)
    begun = time.time()
    _publish(port, rate, wanted)
    published = wanted / (time.time() - begun)
    got, ended = told.get(timeout=120), told.get(timeout=10)
    reader.join()
    return got / (ended - begun), published, wanted - got


def _publish(port: int, rate: int, total: int) -> None:
    message = b"\x02" + SIZE.to_bytes(2) + bytes(SIZE)
    step = rate // TURNS_A_SECOND
    chunk = message * step
    with socket.create_connection(("127.0.0.1", port)) as sock:
        due = time.perf_counter()
        while total > 0:
            sock.sendall(chunk[: total * len(message)])
            total -= step
            due += 1 / TURNS_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))


def _count(port: int, wanted: int, together: bool, told: Queue[float]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        enlarge(sock, socket.SO_RCVBUF, 8 << 20)
        enable_segments(sock)
        sock.connect(("127.0.0.1", port))
        if together:
            # Who sends several packets in a datagram is answered in kind.
            sock.send(b"\x02\x00\x00" * 2)
        sock.send(KEEPALIVE)
        sock.settimeout(10)
        sock.recv(64)
        told.put(0.0)
        sock.settimeout(1)
        buffer = bytearray(1 << 16)
        got, at = 0, time.time()
        due = time.monotonic() + 1
        while got < wanted * DELIVER:
            try:
                size = sock.recvmsg_into([buffer], 64)[0]
            except TimeoutError:
                break
            if size >= DELIVER:
                got, at = got + size, time.time()
            if time.monotonic() > due:
                sock.send(KEEPALIVE)
                due += 1
        told.put(got / DELIVER)
        told.put(at)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
