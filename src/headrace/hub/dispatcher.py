"""The dispatcher: what matchers push goes to the connectors that have the clients.

A push names clients and the connector of each. It is grouped by connector and goes, split where it is too long for one
message, to the connector in this process, to a connector that this dispatcher has dialled, or to the dispatcher that
says it has that connector. What another dispatcher passes on goes no further than to an own connector, so that nothing
runs in circles. What has nowhere to go is counted with its sequence number.

**Marks.** A push to nobody says how far its matcher is: all up to its MsgId has been pushed, and all behind the first
such mark of a connection will be. Its MsgId has the matcher's node id. Marks go to connectors that said they rely on
them. These have to know when the chain breaks, so a dispatcher that loses a matcher's connection, or has no room for a
push, closes the connections that this concerns; on each new one, every matcher's place is told first, and that is never
before anything that was already pushed. A matcher that marks by another connection than before has begun anew: whoever
relied on the older one must know that, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from headrace.hub.counters import Counters
from headrace.hub.session import Source
from headrace.wire.attribute import (
    CLIENT_ID_BYTES,
    NODE_ID_BYTES,
    ROUTE_BYTES,
    DispatcherPush,
    Heartbeat,
    MatcherPush,
    Push,
    is_msg_id,
    msg_id,
    parse_msg_id,
    seq_of,
    serialize,
)
from headrace.wire.split import split

MAX_TOLD = 120
"""Connectors that a heartbeat can name, twice: more would not fit one message."""


class Target(Protocol):
    """A connection to a connector or to another dispatcher."""

    def pass_on(self, data: bytes) -> bool:
        """Send, or say that there is no room (and close)."""

    def part(self, reason: str, detail: str) -> None:
        """Close the connection."""


class Local(Protocol):
    """The connector in this process."""

    id: bytes
    relying: bool

    def pushed(self, source: Source, msg_id: bytes, payload: bytes, clients: bytes) -> None:
        """Push a message to clients."""

    def marked(self, source: Source, msg_id: bytes) -> None:
        """A matcher says how far it is."""

    def lost(self, source: Source) -> None:
        """A source is gone."""


class Feeder:
    """Who pushes: a matcher or a dispatcher, by one connection, or this process's own matcher."""

    __slots__ = ("marks", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        """What it is to the connector in this process."""
        self.marks: dict[int, bytes] = {}
        """How far each matcher is that speaks through it, as a MsgId, by node id."""


class Told(NamedTuple):
    """The connectors that another dispatcher has, and those of them that want marks."""

    connectors: frozenset[bytes]
    relying: frozenset[bytes]


class Dispatcher:
    """Routes by connector id."""

    def __init__(self, counters: Counters, local: Local | None) -> None:
        self.local = local
        self.connectors: dict[bytes, Target] = {}
        """Own connectors, by the id each has told."""
        self.relying: set[bytes] = set()
        """Those of them that want marks."""
        self.peers: dict[Target, Told | None] = {}
        """Other dispatchers, and what each says it has; ``None`` until it says."""
        self.feeders: dict[Feeder, None] = {}
        """Those who have sent marks."""
        self._newest = 0
        """The highest sequence number that was pushed or marked, by whomever."""
        self._counters = counters
        self._passed = counters.counter("dispatched")

    def push(self, feeder: Feeder, push: MatcherPush) -> None:
        """Take a whole push of a matcher."""
        if not push.clients:
            if is_msg_id(push.msg_id):
                self._mark(feeder, push.msg_id)
            return
        self._reached(push.msg_id)
        for connector, clients in _by_connector(push.clients):
            if not self._to_own(feeder, connector, push.msg_id, push.payload, clients):
                self._to_peers(connector, push.msg_id, push.payload, clients)

    def forward(self, feeder: Feeder, push: DispatcherPush) -> None:
        """Take a whole push of another dispatcher."""
        if not push.clients:
            if is_msg_id(push.msg_id):
                self._remember(feeder, push.msg_id)
                self._mark_connector(feeder, push.connector, push.msg_id)
            return
        self._reached(push.msg_id)
        if not self._to_own(feeder, push.connector, push.msg_id, push.payload, push.clients):
            self._cannot(push.msg_id, push.connector, "its dispatcher has lost it")

    def joined(self, connector: bytes, target: Target, *, relying: bool) -> None:
        """A connector has said who it is. The newer of two with one id stays."""
        older = self.connectors.get(connector)
        self.connectors[connector] = target
        if older is not None and older is not target:
            older.part("replaced", f"connector {connector.decode()} has connected again")
        if relying:
            self.relying.add(connector)
            for message in self._places():
                target.pass_on(serialize(Push(message)))

    def left(self, target: Target) -> None:
        """A connection to a connector or dispatcher is closed."""
        for connector in [name for name, one in self.connectors.items() if one is target]:
            del self.connectors[connector]
            self.relying.discard(connector)
        self.peers.pop(target, None)

    def told(self, peer: Target, connectors: bytes, relying: bytes) -> None:
        """Another dispatcher says which connectors it has."""
        before = self.peers.get(peer)
        told = self.peers[peer] = Told(frozenset(_ids(connectors)), frozenset(_ids(relying)))
        for connector in told.relying - (before.relying if before is not None else frozenset()):
            for message in self._places():
                peer.pass_on(serialize(DispatcherPush(message, connector)))

    def lost(self, feeder: Feeder) -> None:
        """A feeder's connection is closed: whoever relied on it must know."""
        if feeder not in self.feeders:
            return  # It never sent a mark, or is replaced.
        del self.feeders[feeder]
        if self.local is not None:
            self.local.lost(feeder.source)
        for target in (*self.connectors.values(), *self.peers):
            target.part("broken", "a matcher's connection is lost")

    def heartbeat(self, timestamp: int) -> bytes:
        """What tells others that we live, and which connectors are here."""
        ids, relying = sorted(self.connectors), sorted(self.relying)
        if self.local is not None:
            ids = [self.local.id, *ids]
            if self.local.relying:
                relying = [self.local.id, *relying]
        return serialize(Heartbeat(timestamp, b"".join(ids[:MAX_TOLD]), b"".join(relying[:MAX_TOLD])))

    def _places(self) -> list[bytes]:
        """From where each matcher will have pushed everything to somebody new, as MsgIds."""
        return [msg_id(self._newest, node) for feeder in self.feeders for node in feeder.marks]

    def _reached(self, message: bytes) -> None:
        if is_msg_id(message):
            self._newest = max(self._newest, seq_of(message))

    def _remember(self, feeder: Feeder, message: bytes) -> None:
        self._reached(message)
        self.feeders[feeder] = None
        _, node = parse_msg_id(message)
        feeder.marks[node] = message

    def _mark(self, feeder: Feeder, message: bytes) -> None:
        _, node = parse_msg_id(message)
        if node not in feeder.marks:
            for older in [each for each in self.feeders if node in each.marks]:
                self.lost(older)
                older.marks.clear()
            # What others pushed for the same matcher before is not pushed again.
            self._reached(message)
            message = msg_id(self._newest, node)
        self._remember(feeder, message)
        if self.local is not None:
            self.local.marked(feeder.source, message)
        for connector in tuple(self.relying):
            self.connectors[connector].pass_on(serialize(Push(message)))
        for peer, told in tuple(self.peers.items()):
            for connector in told.relying if told is not None else ():
                peer.pass_on(serialize(DispatcherPush(message, connector)))

    def _mark_connector(self, feeder: Feeder, connector: bytes, message: bytes) -> None:
        if self.local is not None and connector == self.local.id:
            self.local.marked(feeder.source, message)
        elif connector in self.relying:
            self.connectors[connector].pass_on(serialize(Push(message)))

    def _to_own(
        self, feeder: Feeder, connector: bytes, message: bytes, payload: bytes, clients: bytes
    ) -> bool:
        """Pass a message to an own connector; ``False`` if there is none with this id."""
        if self.local is not None and connector == self.local.id:
            self.local.pushed(feeder.source, message, payload, clients)
            self._passed.value += 1
            return True
        target = self.connectors.get(connector)
        if target is None:
            return False
        data = b"".join(map(serialize, split(Push(message, payload, clients))))
        if target.pass_on(data):
            self._passed.value += 1
        else:
            self._cannot(message, connector, "no room (dispatcher.queue_bytes)")
        return True

    def _to_peers(self, connector: bytes, message: bytes, payload: bytes, clients: bytes) -> None:
        """Pass a message to the dispatcher that has its connector, or to all that have not said what they have."""
        peers = [
            peer for peer, told in self.peers.items() if told is not None and connector in told.connectors
        ]
        if not peers:
            peers = [peer for peer, told in self.peers.items() if told is None]
        if not peers:
            self._cannot(message, connector, "nobody has it")
            return
        data = b"".join(map(serialize, split(DispatcherPush(message, connector, payload, clients))))
        for peer in peers:
            if peer.pass_on(data):
                self._passed.value += 1
            else:
                self._cannot(message, connector, "no room (dispatcher.queue_bytes)")

    def _cannot(self, message: bytes, connector: bytes, why: str) -> None:
        seq = seq_of(message)
        detail = f"for connector {connector.decode(errors='replace')}: {why}"
        self._counters.report("undeliverable", seq, seq, detail, at_will=True, door="dispatcher")


def _by_connector(routes: bytes) -> Iterator[tuple[bytes, bytes]]:
    """A matcher's client list as each connector and its clients."""
    entries = np.frombuffer(routes, np.uint8).reshape(-1, ROUTE_BYTES)
    ids = np.ascontiguousarray(entries[:, CLIENT_ID_BYTES:]).view(">u8").ravel()
    clients = entries[:, :CLIENT_ID_BYTES]
    if (ids == ids[0]).all():
        yield ids[:1].tobytes(), clients.tobytes()
        return
    for connector in np.unique(ids):
        yield int(connector).to_bytes(NODE_ID_BYTES), clients[ids == connector].tobytes()


def _ids(ids: bytes) -> list[bytes]:
    return [ids[at : at + NODE_ID_BYTES] for at in range(0, len(ids), NODE_ID_BYTES)]
