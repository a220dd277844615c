"""Services against Redis pub/sub: one service to 1,000 subscribers, in one run.

Each server runs on this machine in turn, Headrace with its log on (``fsync=interval``). Publisher and subscribers are
raw sockets in one process. The publisher sends a chunk of changes, and the next one when every subscriber has every
change of the last but one: so nobody lags, nothing is conflated or dropped, and each server does the whole work. A
figure is the median of its rounds.

The same load is given to a ``last`` service (any bytes) and to a ``json`` service, where each change is a JSON Merge
Patch that the hub applies. Redis keeps neither a log nor an object.
"""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import bench
from bench._peers import Headrace, Peer, Redis, Subscribing, available, receive_until, running

SUBSCRIBERS = 1_000
SIZE = 128
CHUNK = 50
"""Changes that the publisher sends at once."""

_SERVICE = b"b"
_PUBLISH = 0x48520002


class Services(Headrace):
    """The hub's spp door and one service of kind ``last``."""

    name = "headrace last"

    def wait(self) -> None:
        super().wait()
        doors = json.loads((self.directory / "ready.json").read_text())
        self.port = int(doors["spp"].rpartition(":")[2])
        with self.connect() as sock:
            sock.sendall(self.publication(self.payload(0)))
            receive_until(sock, _packet(1, _SERVICE))

    def payload(self, size: int) -> bytes:
        """A change of about this size."""
        return b"x" * size

    def publication(self, payload: bytes) -> bytes:
        return _packet(_PUBLISH, _SERVICE, payload)

    def subscribing(self, size: int) -> Subscribing:
        snapshot = _packet(16, _SERVICE, self.payload(0))
        return Subscribing(_packet(1, _SERVICE), snapshot, len(_packet(16, _SERVICE, self.payload(size))))


class JsonService(Services):
    """The same with a service of kind ``json``."""

    name = "headrace json"

    def payload(self, size: int) -> bytes:
        empty = b'{"value":""}'
        return empty[:-2] + b"x" * (size - len(empty)) + b'"}'


class PubSub(Redis):
    """Redis, whose messages need no particular form."""

    name = "redis"

    def payload(self, size: int) -> bytes:
        return b"x" * size


@dataclass(frozen=True, slots=True)
class Figures:
    delivered: float
    """Messages per second, all subscribers together."""
    p50: float
    p99: float
    """Microseconds from one change to its last subscriber."""


def main(argv: Sequence[str]) -> int:
    return bench.run("services", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure both kinds of service and, if it is installed, Redis."""
    subscribers = 20 if quick else SUBSCRIBERS
    table = bench.Table(
        f"one service to {subscribers:,} subscribers, changes of {SIZE} bytes",
        ("delivered/s", "MB/s", "changes/s"),
        note="until every subscriber has every change",
    )
    delays = bench.Table(
        f"from one change to the last of {subscribers:,} subscribers, µs",
        ("p50", "p99"),
        note="one change at a time",
        less_is_better=True,
    )
    peers: list[type[Services] | type[PubSub]] = [Services, JsonService]
    if available(PubSub):
        peers.append(PubSub)
    figures: dict[type[Services] | type[PubSub], list[Figures]] = {peer: [] for peer in reversed(peers)}
    for _ in range(1 if quick else 5):
        for peer, rounds in figures.items():
            # What is on its way to a thousand sockets takes memory.
            bench.warm_memory(Path(tempfile.gettempdir()), 256 << 20)
            rounds.append(_round(peer, subscribers, quick))
    for peer, rounds in figures.items():
        delivered = statistics.median(each.delivered for each in rounds)
        base = PubSub.name if peer is not PubSub and PubSub in peers else None
        table.add(
            peer.name,
            delivered,
            delivered * SIZE / 1e6,
            delivered / subscribers,
            base=base,
            key=base is not None,
        )
        p50, p99 = (statistics.median(getattr(each, name) for each in rounds) for name in ("p50", "p99"))
        delays.add(peer.name, p50, p99, base=base, key=base is not None)
    return [table, delays]


def _round(peer: type[Services] | type[PubSub], subscribers: int, quick: bool) -> Figures:
    with running(peer) as server:
        assert isinstance(server, Services | PubSub)
        how = server.subscribing(SIZE)
        with _subscribed(server, how, subscribers) as readers, server.connect() as publisher:
            change = server.publication(server.payload(SIZE))
            _deliver(readers, publisher, change * CHUNK, how.message_bytes * CHUNK, 2)
            chunks = 2 if quick else 100
            begin = time.perf_counter()
            _deliver(readers, publisher, change * CHUNK, how.message_bytes * CHUNK, chunks)
            rate = chunks * CHUNK * subscribers / (time.perf_counter() - begin)
            delays = []
            for _ in range(5 if quick else 200):
                begin = time.perf_counter()
                _deliver(readers, publisher, change, how.message_bytes, 1)
                delays.append((time.perf_counter() - begin) * 1e6)
    delays.sort()
    return Figures(rate, delays[len(delays) // 2], delays[len(delays) * 99 // 100])


class _Readers:
    """Many sockets, and how many bytes each has received."""

    def __init__(self, socks: Sequence[socket.socket]) -> None:
        self._selector = selectors.EpollSelector()
        self._buffer = bytearray(1 << 20)
        self.received = [0] * len(socks)
        self.behind = 0
        for index, sock in enumerate(socks):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, index)

    def read_until(self, total: int) -> None:
        """Read until each has received ``total`` bytes."""
        received, buffer = self.received, self._buffer
        missing = sum(count < total for count in received)
        while missing:
            for key, _ in self._selector.select():
                count = received[key.data]
                got = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
                if not got:
                    raise ConnectionError("a subscriber was cut off")
                received[key.data] = count + got
                missing -= count < total <= count + got


@contextmanager
def _subscribed(server: Peer, how: Subscribing, count: int) -> Iterator[_Readers]:
    with ExitStack() as stack:
        socks = [stack.enter_context(server.connect()) for _ in range(count)]
        for sock in socks:
            sock.sendall(how.hello)
        for sock in socks:
            receive_until(sock, how.greeting)
        yield _Readers(socks)


def _deliver(readers: _Readers, publisher: socket.socket, chunk: bytes, expected: int, chunks: int) -> None:
    """Send chunks, at most two of them under way, until all have been received."""
    done = readers.received[0]
    publisher.sendall(chunk)
    for number in range(1, chunks + 1):
        if number < chunks:
            publisher.sendall(chunk)
        readers.read_until(done + number * expected)
    _discard(publisher)


def _discard(sock: socket.socket) -> None:
    """Forget the answers to publications, if there are any."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        pass
    finally:
        sock.setblocking(True)


def _packet(msgtype: int, *strings: bytes) -> bytes:
    data = b"".join(len(string).to_bytes(4) + string for string in strings)
    return msgtype.to_bytes(4) + len(data).to_bytes(4) + data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
