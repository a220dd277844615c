"""A connector without a socket, for tests: its clients are lists of bytes, and its log is read when they say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from headrace.errors import StorageError
from headrace.hub.routing.client_session import ClientSession, PushSource
from headrace.hub.routing.client_session import MatcherPath as Way
from headrace.hub.routing.connector import Connector
from headrace.hub.routing.session_feed import Found, Then
from headrace.hub.routing.subscriptions import (
    Subscriptions,
)
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.matching import Matches
from headrace.message import Batch, Run
from headrace.wire.sdk.predicate import Equals

ALICE, BOB = bytes([0xA]) * 12, bytes([0xB]) * 12
HERE, THERE = b"here0001", b"there001"
WANTED = {"kind": Equals("wanted")}


class Wire:
    """An outlet that keeps what it is sent; ``free`` bytes of room at a time."""

    def __init__(self, free: int = 1 << 30) -> None:
        self.free = free
        self.sent = b""
        self.parted: str | None = None

    @property
    def room(self) -> int:
        return self.free

    def send(self, data: bytes) -> None:
        self.free -= len(data)
        self.sent += data

    def later(self) -> None:
        pass

    def part(self, reason: str, detail: str) -> None:
        self.parted = reason

    @property
    def got(self) -> list[int]:
        """The numbers of the pushes that were sent."""
        return [json.loads(line)["seq"] for line in self.sent.split(b"\r\n")[1::2]]


class Scene:
    """A hub with a connector whose log reads are done when the test says."""

    def __init__(self, directory: Path, **options: int) -> None:
        self.log = Log.open(directory, fsync="never")
        self.subscriptions = Subscriptions()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 30, state=HubState(self.subscriptions))
        self.reads: list[tuple[bytes, int, int, Then]] = []
        limits = {"max_subscriptions": 10, "max_predicates": 4, "max_tracks": 2, "replay": 1000, **options}
        self.connector = Connector(
            self.hub,
            self.subscriptions,
            lambda client, first, last, then: self.reads.append((client, first, last, then)),
            connector_id=HERE,
            keep_seconds=10.0,
            **limits,
        )
        self.source = PushSource()
        self.path = Way(self.source, 1, 0)
        self.source.paths[1] = self.path
        self.connector.find_path = lambda _client: self.path

    def commit(self, count: int = 0) -> Batch | None:
        """Commit what was submitted, and so many messages, all of which are for everyone."""
        batch = Batch(Run.of([b"m"] * count), origin="test") if count else None
        done: list[Batch | StorageError] = []
        if batch is not None:
            self.hub.submit(batch, done.append)
        self.hub.turn(1)
        return done[0] if done and isinstance(done[0], Batch) else None

    def match(self, batch: Batch | None, *clients: bytes) -> None:
        """This process's matcher has got so far."""
        if batch is not None:
            ids = np.frombuffer(b"".join(clients) * len(batch), np.uint8).reshape(-1, 12)
            self.connector.deliver(batch, Matches(np.arange(len(batch) + 1) * len(clients), ids))
        self.source.seen = self.path.upto = self.log.head
        self.connector.advance()

    def publish(self, count: int, *clients: bytes) -> list[int]:
        batch = self.commit(count)
        self.match(batch, *clients)
        assert batch is not None
        return list(range(batch.first, batch.last + 1))

    def read(self, most: int = 1 << 30) -> None:
        """Do one of the reads that are waiting, of so many messages."""
        _, first, last, then = self.reads.pop(0)
        found: Found = []
        for batch in self.log.scan(first, min(last, first + most - 1)):
            found.append((batch, dict.fromkeys(range(len(batch)), ())))
        then(found)

    def read_all(self) -> None:
        while self.reads:
            self.read()

    def subscribed(self, client: bytes = ALICE, wire: Wire | None = None, after: int | None = None) -> Wire:
        wire = wire or Wire()
        session = self.connector.join(client, wire, after=after)
        self.connector.subscribe(session, (WANTED,))
        self.commit()
        self.connector.advance()
        return wire

    def session(self, client: bytes = ALICE) -> ClientSession:
        return self.connector.sessions[client]
