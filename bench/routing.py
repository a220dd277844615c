"""Content routing end to end against Redis pub/sub, where clients filter for themselves.

Each server runs on this machine in turn, Headrace with all roles in one process and its log on (``fsync=interval``).
Every client has a subscription of its own: one of four cities and a tenth of a range. Publisher and clients are raw
sockets in one process. Headrace gets messages at its publisher door and pushes to each client what is for it. Redis
sends every message to every client, which parses it and looks whether it is for itself: that is what routing by content
costs where a server does not do it. A round is over when every client has all that is its.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import bench
from bench._peers import Headrace, Redis, available, receive_until, running

CLIENTS = 1_000
MESSAGES = 2_000
"""Messages of one round; a tenth of a quarter of the clients get each."""
SIZE = 64
CITIES = tuple(f"city-{n}" for n in range(4))
DOMAIN = 1_000.0
PATIENCE = 120.0
"""Seconds that a round may take."""


@dataclass(frozen=True, slots=True)
class Client:
    """What a client asks for."""

    city: str
    low: float
    high: float

    def wants(self, message: Message) -> bool:
        return message.city == self.city and self.low <= message.x <= self.high


@dataclass(frozen=True, slots=True)
class Message:
    city: str
    x: float
    payload: str


class Routing(Headrace):
    """The hub's publisher and sdk doors."""

    name = "headrace"

    def wait(self) -> None:
        super().wait()
        doors = json.loads((self.directory / "ready.json").read_text())
        self.port = int(doors["sdk"].rpartition(":")[2])
        self.publisher_port = int(doors["publisher"].rpartition(":")[2])

    def publisher(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.publisher_port))

    def wire(self, message: Message) -> bytes:
        attributes = json.dumps({"city": message.city, "x": message.x}).encode()
        payload = message.payload.encode()
        items = (
            b"\x01" + len(attributes).to_bytes(2) + attributes + b"\x02" + len(payload).to_bytes(2) + payload
        )
        return b"\x01" + len(items).to_bytes(2) + b"\x00" + items

    def enter(self, sock: socket.socket, number: int, client: Client) -> None:
        claim = {"client_id": f"{number:024x}", "timestamp": "1", "token": ""}
        city = {"use": 1, "strval": client.city}
        x = {"use": 2, "low": client.low, "high": client.high}
        sock.sendall(_command("auth", json.dumps(claim)))
        sock.sendall(_command("sub", "city", json.dumps(city), "x", json.dumps(x)))
        # The answer to a heartbeat behind the sub says that the sub was taken.
        sock.sendall(_command("hb"))
        receive_until(sock, b"+h\r\n")

    def count(self, data: bytes, _client: Client) -> tuple[int, bytes]:
        """How many messages for the client are whole in ``data``, and what is left."""
        end = data.rfind(b"}\r\n")
        if end < 0:
            return 0, data
        return data.count(b'"seq":', 0, end), data[end + 3 :]


class PubSub(Redis):
    """Redis, whose clients filter."""

    name = "redis, clients filter"

    def publisher(self) -> socket.socket:
        return self.connect()

    def wire(self, message: Message) -> bytes:
        text = json.dumps({"city": message.city, "x": message.x, "payload": message.payload}).encode()
        return b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nb\r\n$%d\r\n%b\r\n" % (len(text), text)

    def enter(self, sock: socket.socket, _number: int, _client: Client) -> None:
        sock.sendall(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nb\r\n")
        receive_until(sock, b":1\r\n")

    def count(self, data: bytes, client: Client) -> tuple[int, bytes]:
        found = 0
        while True:
            end = data.find(b"}\r\n")
            if end < 0:
                return found, data
            said = json.loads(data[data.index(b"{") : end + 1])
            found += said["city"] == client.city and client.low <= said["x"] <= client.high
            data = data[end + 3 :]


Server = Routing | PubSub


def main(argv: Sequence[str]) -> int:
    return bench.run("routing", measure, argv)


def measure(quick: bool) -> list[bench.Table]:
    """Measure the hub and, if it is installed, Redis."""
    count = 20 if quick else CLIENTS
    rates = bench.Table(
        f"{count:,} clients, each with a subscription of its own",
        ("messages/s", "deliveries/s"),
        note=f"payloads of {SIZE} bytes, until every client has what is for it",
    )
    delays = bench.Table(
        "from one message to its last client, µs", ("p50", "p99"), note="one message at a time"
    )
    chance = random.Random(7)
    clients = [_client(chance) for _ in range(count)]
    peers: list[type[Server]] = [Routing]
    if available(PubSub):
        peers.append(PubSub)
    for peer in reversed(peers):
        rounds = [_round(peer, clients, quick) for _ in range(1 if quick else 3)]
        base = PubSub.name if peer is not PubSub and PubSub in peers else None
        rates.add(peer.name, *_medians(rounds, "messages", "deliveries"), base=base)
        delays.add(peer.name, *_medians(rounds, "p50", "p99"), base=base)
    return [rates, delays]


@dataclass(frozen=True, slots=True)
class Figures:
    messages: float
    deliveries: float
    p50: float
    p99: float


def _medians(rounds: Sequence[Figures], *names: str) -> list[float]:
    return [statistics.median(getattr(each, name) for each in rounds) for name in names]


def _round(peer: type[Server], clients: Sequence[Client], quick: bool) -> Figures:
    chance = random.Random(11)
    with running(peer) as server:
        assert isinstance(server, Routing | PubSub)
        with _entered(server, clients) as readers, server.publisher() as publisher:
            _deliver(server, publisher, readers, [_message(chance) for _ in range(50)])
            many = [_message(chance) for _ in range(50 if quick else MESSAGES)]
            begin = time.perf_counter()
            delivered = _deliver(server, publisher, readers, many)
            seconds = time.perf_counter() - begin
            delays = []
            while len(delays) < (5 if quick else 300):
                message = _message(chance)
                if any(client.wants(message) for client in clients):
                    begin = time.perf_counter()
                    _deliver(server, publisher, readers, [message])
                    delays.append((time.perf_counter() - begin) * 1e6)
    delays.sort()
    return Figures(
        len(many) / seconds,
        delivered / seconds,
        delays[len(delays) // 2],
        delays[len(delays) * 99 // 100],
    )


class _Readers:
    """Every client's socket, and how many of its messages it has got."""

    def __init__(self, server: Server, socks: Sequence[socket.socket], clients: Sequence[Client]) -> None:
        self.clients = clients
        self._server = server
        self._got = [0] * len(socks)
        self._rest = [b""] * len(socks)
        self._selector = selectors.EpollSelector()
        for index, sock in enumerate(socks):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, index)

    def read_until(self, more: Sequence[int]) -> None:
        """Read until each client has got so many more."""
        wanted = [got + count for got, count in zip(self._got, more, strict=True)]
        missing = sum(got < want for got, want in zip(self._got, wanted, strict=True))
        deadline = time.monotonic() + PATIENCE
        while missing:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{missing} clients miss messages")
            for key, _ in self._selector.select(1.0):
                index = key.data
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if not data:
                    raise ConnectionError("a client was cut off")
                found, self._rest[index] = self._server.count(self._rest[index] + data, self.clients[index])
                before = self._got[index]
                self._got[index] += found
                missing -= before < wanted[index] <= self._got[index]


@contextmanager
def _entered(server: Server, clients: Sequence[Client]) -> Iterator[_Readers]:
    with ExitStack() as stack:
        socks = []
        for number, client in enumerate(clients):
            sock = stack.enter_context(server.connect())
            server.enter(sock, number, client)
            socks.append(sock)
        yield _Readers(server, socks, clients)


def _deliver(server: Server, publisher: socket.socket, readers: _Readers, messages: Sequence[Message]) -> int:
    """Publish messages and wait until all have what is for them; return how many deliveries that were."""
    more = [sum(map(client.wants, messages)) for client in readers.clients]
    publisher.sendall(b"".join(map(server.wire, messages)))
    readers.read_until(more)
    return sum(more)


def _client(chance: random.Random) -> Client:
    low = chance.uniform(0, 0.9 * DOMAIN)
    return Client(chance.choice(CITIES), low, low + 0.1 * DOMAIN)


def _message(chance: random.Random) -> Message:
    return Message(chance.choice(CITIES), chance.uniform(0, DOMAIN), "x" * SIZE)


def _command(*elements: str) -> bytes:
    body = b"*%d\r\n" % len(elements)
    for element in elements:
        body += b"$%d\r\n%b\r\n" % (len(element), element.encode())
    return b"#%d\r\n%b" % (len(body), body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
