"""The dispatcher: passes the pushes of matchers to the connectors that have the clients.

A push names clients and the connector of each. The dispatcher groups it by connector, splits it if it is too long for
one message, and sends it to the connector in this process, to a connector that it has dialled, or to the dispatcher
that has the connector. A push from another dispatcher goes only to this dispatcher's own connectors, so that none runs
in circles. If it names no connector, as in the original protocol, it goes to each of them, and they skip unknown
clients. A push with nowhere to go is counted with its sequence number.

**Marks.** A push to nobody is a mark, which says how far its matcher is: everything up to its MsgId has been pushed,
and everything after the first mark of a connection will be. Its MsgId has the matcher's node id. Marks go to connectors
that said they rely on them. Those have to know when the chain breaks, so a dispatcher that loses a matcher's
connection, or has no room for a push, closes the connections concerned. Each new connection begins with every matcher's
mark, which is never before anything that was already pushed. A matcher that marks by another connection than before has
begun anew, and connectors that relied on the older connection must know that, too.

A mark must take the same way as the pushes: if it overtook them, it would claim that they had arrived. So a dispatcher
that passes a connector's messages to a peer marks by that peer, and when their way changes it withdraws the marks
(:data:`NOTHING`); a mark after that begins anew. Connectors that rely on marks get only marked pushes, since an
unmarked push cannot be distinguished from those that another matcher's marks cover.

A mark beyond what the sequence can have reached does not count. Connectors would wait until the sequence is there,
perhaps for ever, and feed their clients from the log until then. Nor may a push from there reach a connector that
relies on marks, for the next mark could then be before something that was pushed. So a feeder that names such a number
counts as lost for those connectors until it marks again. (To a dispatcher whose copy of the log is far behind, all
feeders seem to do this; when it has caught up, all begin anew.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from headrace.hub.counters import Counters
from headrace.hub.routing.client_session import NOTHING, PushSource
from headrace.wire.attribute.messages import (
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
from headrace.wire.attribute.push_parts import MAX_CONNECTORS, split, split_heartbeat


class DispatchTarget(Protocol):
    """A connection to a connector or to another dispatcher."""

    def pass_on(self, data: bytes) -> bool:
        """Send and return ``True``; without room, close and return ``False``."""

    def part(self, reason: str, detail: str) -> None:
        """Close the connection."""


class LocalConnector(Protocol):
    """The connector in this process."""

    id: bytes
    relying: bool

    def pushed(self, source: PushSource, msg_id: bytes, payload: bytes, clients: bytes) -> None:
        """Push a message to clients."""

    def marked(self, source: PushSource, msg_id: bytes) -> None:
        """Note how far a matcher is."""

    def lost(self, source: PushSource) -> None:
        """Stop relying on a source whose connection is closed."""


class Feeder:
    """A matcher or dispatcher that pushes by one connection, or this process's own matcher."""

    __slots__ = ("nodes", "passed", "source")

    def __init__(self, source: PushSource) -> None:
        self.source = source
        """Its identity to the connector in this process."""
        self.nodes: set[int] = set()
        """Node ids of the matchers that push and mark by it: one, unless it is another implementation's."""
        self.passed: dict[bytes, set[int]] = {}
        """Node ids of the matchers whose pushes and marks it passes on, by the own connector they are for."""

    def vouches_for(self, node: int, connector: bytes) -> bool:
        """Whether a matcher marks by it for a connector."""
        return node in self.nodes or node in self.passed.get(connector, ())


class PeerConnectors(NamedTuple):
    """The connectors that another dispatcher has, and which of them want marks."""

    connectors: frozenset[bytes]
    relying: frozenset[bytes]
    marked: frozenset[bytes] = frozenset()
    """The connectors that get marks by this peer."""


class Dispatcher:
    """Routes by connector id."""

    def __init__(self, counters: Counters, local: LocalConnector | None) -> None:
        self.local = local
        self.connectors: dict[bytes, DispatchTarget] = {}
        """Own connectors, by id."""
        self.relying: set[bytes] = set()
        """The own connectors that want marks."""
        self.peers: dict[DispatchTarget, PeerConnectors | None] = {}
        """Other dispatchers and their connectors; ``None`` until known."""
        self.feeders: dict[Feeder, None] = {}
        """The feeders that have sent marks."""
        self.reach: Callable[[], int] = lambda: NOTHING - 1
        """Returns the highest sequence number that may have been pushed by now."""
        self._newest = 0
        """The highest sequence number that any feeder pushed or marked."""
        self._counters = counters
        self._passed = counters.counter("dispatched")
        self._unvouched = counters.counter("unvouched", door="dispatcher")

    def push(self, feeder: Feeder, push: MatcherPush) -> None:
        """Handle a complete push of a matcher."""
        if not push.clients:
            if is_msg_id(push.msg_id):
                self._mark(feeder, push.msg_id)
            return
        vouched = not is_msg_id(push.msg_id) or (self._reached(feeder, push.msg_id) and self._marks(feeder))
        for connector, clients in _by_connector(push.clients):
            if not self._to_own(feeder, connector, push.msg_id, push.payload, clients, vouched):
                self._to_peers(connector, push.msg_id, push.payload, clients, vouched)

    def forward(self, feeder: Feeder, push: DispatcherPush) -> None:
        """Handle a complete push of another dispatcher, for one own connector or, if it names none, for all of them."""
        if not push.clients:
            if push.connector and is_msg_id(push.msg_id):
                self._pass_mark(feeder, push.connector, push.msg_id)
            return
        reached = not is_msg_id(push.msg_id) or self._reached(feeder, push.msg_id)
        connectors = [push.connector] if push.connector else self._own()
        if not connectors:
            self._cannot(push.msg_id, b"(any)", "this dispatcher has none")
        for connector in connectors:
            vouched = not is_msg_id(push.msg_id) or (reached and bool(feeder.passed.get(connector)))
            if not self._to_own(feeder, connector, push.msg_id, push.payload, push.clients, vouched):
                self._cannot(push.msg_id, connector, "its dispatcher has lost it")

    def joined(self, connector: bytes, target: DispatchTarget, *, relying: bool) -> None:
        """Note a connector's id. Of two connections with one id, or two ids on one connection, the newer stays."""
        self._forget(target, but=connector)
        # A heartbeat can name one more, which is the connector in this process.
        if connector not in self.connectors and len(self.connectors) >= MAX_CONNECTORS - 1:
            target.part("limit", f"a dispatcher has {MAX_CONNECTORS - 1} connectors at most")
            return
        older = self.connectors.get(connector)
        self.connectors[connector] = target
        if older is not None and older is not target:
            older.part("replaced", f"connector {connector.decode()} has connected again")
        if not relying:
            self._mark_no_more(connector)
        else:
            self.relying.add(connector)
            passed = (node for feeder in self.feeders for node in feeder.passed.get(connector, ()))
            for node in dict.fromkeys((*self._nodes(), *passed)):
                target.pass_on(serialize(Push(msg_id(self._newest, node))))
        self._mark_by_peers()

    def left(self, target: DispatchTarget) -> None:
        """Forget a closed connection to a connector or dispatcher."""
        self._forget(target)
        self.peers.pop(target, None)
        self._mark_by_peers()

    def told(self, peer: DispatchTarget, connectors: bytes, relying: bytes) -> None:
        """Note which connectors another dispatcher has."""
        before = self.peers.get(peer)
        ids = frozenset(_ids(connectors))
        # The peer also names connectors elsewhere that rely on marks, but their messages do not go that way.
        known = PeerConnectors(
            ids, ids.intersection(_ids(relying)), before.marked if before is not None else frozenset()
        )
        self.peers[peer] = known
        self._mark_by_peers()

    def lost(self, feeder: Feeder) -> None:
        """Break the connections to everything that relied on a feeder whose connection is closed.

        Connectors that do not rely on marks stay connected, since they could not make up for what they miss anyway.
        """
        if feeder not in self.feeders:
            return  # It never sent a mark, or was replaced.
        del self.feeders[feeder]
        if self.local is not None:
            self.local.lost(feeder.source)
        relying = [self.connectors[connector] for connector in self.relying]
        marked = [peer for peer, known in self.peers.items() if known is not None and known.marked]
        for target in (*relying, *marked):
            target.part("broken", "a matcher's connection is lost")

    def heartbeat(self, timestamp: int) -> bytes:
        """Make a heartbeat with the connectors that are here, and which of them rely on marks.

        A matcher marks if any connector relies on it. If none does here, the heartbeat names one of another dispatcher.
        """
        ids, relying = self._own(), sorted(self.relying)
        if self.local is not None and self.local.relying:
            relying = [self.local.id, *relying]
        if not relying:
            relying = sorted(one for known in self.peers.values() if known for one in known.relying)[:1]
        return b"".join(
            map(serialize, split_heartbeat(Heartbeat(timestamp, b"".join(ids), b"".join(relying))))
        )

    def _forget(self, target: DispatchTarget, but: bytes | None = None) -> None:
        """Remove a connection's connectors, except ``but``."""
        for connector in [name for name, one in self.connectors.items() if one is target and name != but]:
            del self.connectors[connector]
            self._mark_no_more(connector)

    def _mark_no_more(self, connector: bytes) -> None:
        self.relying.discard(connector)
        for feeder in self.feeders:
            feeder.passed.pop(connector, None)

    def _nodes(self) -> list[int]:
        """Return the node ids of the matchers that push here."""
        return [node for feeder in self.feeders for node in feeder.nodes]

    def _marks(self, feeder: Feeder) -> bool:
        """Whether a feeder's pushes are marked, by itself or by another of the same source."""
        return bool(feeder.nodes) or any(
            other.nodes for other in self.feeders if other.source is feeder.source
        )

    def _reached(self, feeder: Feeder, message: bytes) -> bool:
        """Note a MsgId's place; if the sequence cannot have reached it, its feeder counts as lost."""
        seq, _ = parse_msg_id(message)
        if seq <= (most := self.reach()):
            self._newest = max(self._newest, seq)
            return True
        detail = f"pushed, where the sequence can be at {most}"
        self._counters.report("ahead", seq, seq, detail, at_will=True, door="dispatcher")
        self.lost(feeder)
        feeder.nodes.clear()
        feeder.passed.clear()
        return False

    def _own(self) -> list[bytes]:
        """Return the ids of the connectors here, that of this process first."""
        return [*(() if self.local is None else (self.local.id,)), *sorted(self.connectors)]

    def _is_own(self, connector: bytes) -> bool:
        return connector in self.connectors or (self.local is not None and connector == self.local.id)

    def _mark_by_peers(self) -> None:
        """Begin or withdraw marks by each peer for its connectors, where their way has changed."""
        for peer in tuple(self.peers):
            known = self.peers.get(peer)
            if known is None:
                continue
            wanted = frozenset(connector for connector in known.relying if not self._is_own(connector))
            if wanted == known.marked:
                continue
            self.peers[peer] = known._replace(marked=wanted)
            for place, connectors in (
                (NOTHING, known.marked - wanted),
                (self._newest, wanted - known.marked),
            ):
                for connector in connectors:
                    for node in self._nodes():
                        peer.pass_on(serialize(DispatcherPush(msg_id(place, node), connector)))

    def _mark(self, feeder: Feeder, message: bytes) -> None:
        seq, node = parse_msg_id(message)
        # A feeder that has not marked has nothing to withdraw.
        if node not in feeder.nodes if seq == NOTHING else not self._reached(feeder, message):
            return
        if node not in feeder.nodes:
            for older in tuple(self.feeders):
                if node in older.nodes or any(node in nodes for nodes in older.passed.values()):
                    self.lost(older)
                    older.nodes.clear()
                    older.passed.clear()
            # Pushes of this matcher by another feeder are not repeated.
            message = msg_id(self._newest, node)
            feeder.nodes.add(node)
        self.feeders[feeder] = None
        if self.local is not None:
            self.local.marked(feeder.source, message)
        for connector in tuple(self.relying):
            self._mark_connector(feeder, connector, message)
        for peer, known in tuple(self.peers.items()):
            for connector in known.marked if known is not None else ():
                peer.pass_on(serialize(DispatcherPush(message, connector)))

    def _pass_mark(self, feeder: Feeder, connector: bytes, message: bytes) -> None:
        """Pass on a matcher's mark for an own connector that relies on it."""
        seq, node = parse_msg_id(message)
        if (seq != NOTHING and not self._reached(feeder, message)) or not self._relies(connector):
            return
        self.feeders[feeder] = None
        passed = feeder.passed.setdefault(connector, set())
        if seq == NOTHING:
            passed.discard(node)
        elif node not in passed:
            for other in self.feeders:
                if other is not feeder and other.vouches_for(node, connector):
                    # The matcher's messages came another way before.
                    other.passed.get(connector, set()).discard(node)
                    self._mark_connector(other, connector, msg_id(NOTHING, node))
            passed.add(node)
        self._mark_connector(feeder, connector, message)

    def _relies(self, connector: bytes) -> bool:
        if self.local is not None and connector == self.local.id:
            return self.local.relying
        return connector in self.relying

    def _mark_connector(self, feeder: Feeder, connector: bytes, message: bytes) -> None:
        if self.local is not None and connector == self.local.id:
            self.local.marked(feeder.source, message)
        elif connector in self.relying:
            self.connectors[connector].pass_on(serialize(Push(message)))

    def _to_own(
        self, feeder: Feeder, connector: bytes, message: bytes, payload: bytes, clients: bytes, vouched: bool
    ) -> bool:
        """Pass a message to an own connector; ``False`` if there is none with this id."""
        if self.local is not None and connector == self.local.id:
            self.local.pushed(feeder.source, message, payload, clients)
            self._passed.value += 1
            return True
        target = self.connectors.get(connector)
        if target is None:
            return False
        if not vouched and connector in self.relying:
            self._unvouched.value += 1
            return True
        data = b"".join(map(serialize, split(Push(message, payload, clients))))
        if target.pass_on(data):
            self._passed.value += 1
        else:
            self._cannot(message, connector, "no room (dispatcher.queue_bytes)")
        return True

    def _to_peers(
        self, connector: bytes, message: bytes, payload: bytes, clients: bytes, vouched: bool
    ) -> None:
        """Pass a message to the dispatcher that has its connector, or to all whose connectors are unknown."""
        peers = [
            peer for peer, known in self.peers.items() if known is not None and connector in known.connectors
        ]
        if not peers:
            peers = [peer for peer, known in self.peers.items() if known is None]
        if not peers:
            self._cannot(message, connector, "nobody has it")
            return
        data = b"".join(map(serialize, split(DispatcherPush(message, connector, payload, clients))))
        for peer in peers:
            known = self.peers.get(peer)
            if not vouched and known is not None and connector in known.relying:
                self._unvouched.value += 1
            elif peer.pass_on(data):
                self._passed.value += 1
            else:
                self._cannot(message, connector, "no room (dispatcher.queue_bytes)")

    def _cannot(self, message: bytes, connector: bytes, why: str) -> None:
        detail = f"for connector {connector.decode(errors='replace')}: {why}"
        seq = seq_of(message)
        if seq is None:
            self._counters.report_foreign("undeliverable", message, detail, door="dispatcher")
        else:
            self._counters.report("undeliverable", seq, seq, detail, at_will=True, door="dispatcher")


def _by_connector(routes: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Group a matcher's client list by connector."""
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
