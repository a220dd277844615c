"""The ``dispatcher`` door, and the connections that a dispatcher makes: to its connectors and to other dispatchers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from time import time

from headrace.config import Address, PeerAddress
from headrace.hub.access.principal import Action
from headrace.hub.routing.dispatcher import Dispatcher
from headrace.net.routing.outgoing_connections import Dialled, Dialling
from headrace.net.routing.push_stream import JoiningStream
from headrace.net.routing.roles import Routing
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.wire.attribute.messages import (
    ConnectorDecoder,
    ConnectorMessage,
    DispatcherDecoder,
    DispatcherMessage,
    DispatcherPush,
    Handshake,
    Heartbeat,
    MatcherPush,
    serialize,
)
from headrace.wire.attribute.push_parts import HeartbeatJoiner


class DispatcherDoor(TcpDoor["DispatcherStream"]):
    """The door, open on a TCP socket."""

    needs = Action.ADMIN

    def __init__(
        self, context: DoorContext, routing: Routing, dispatcher: Dispatcher, listening: socket.socket
    ) -> None:
        super().__init__(context, "dispatcher", listening)
        self.routing = routing
        self.dispatcher = dispatcher

    def connection(self) -> DispatcherStream:
        """The protocol of a new connection."""
        return DispatcherStream(self)


class DispatcherStream(JoiningStream[DispatcherDoor]):
    """A connection of a matcher or of another dispatcher."""

    def __init__(self, door: DispatcherDoor) -> None:
        super().__init__(door, DispatcherDecoder())
        self._feeder = door.routing.feeder()

    def take(self, frame: DispatcherMessage) -> None:
        """Pass on a push."""
        match frame:
            case MatcherPush():
                matched = self.join(frame)
                if matched is not None:
                    self.door.dispatcher.push(self._feeder, matched)
            case DispatcherPush():
                passed = self.join(frame)
                if passed is not None:
                    self.door.dispatcher.forward(self._feeder, passed)
            case Heartbeat() if frame.ends:
                self.send(self.door.dispatcher.heartbeat(int(time())))

    def closed(self) -> None:
        """Stop vouching for the pushes of this matcher."""
        self.door.dispatcher.lost(self._feeder)


class _Target(Dialled["Targets"]):
    """A connection that pushes are sent on."""

    def __init__(self, door: Targets, address: Address) -> None:
        super().__init__(door, ConnectorDecoder())
        self.connector = address.id.encode() if isinstance(address, PeerAddress) else b""
        """The id of the connector there, once it is known."""

    def pass_on(self, data: bytes) -> bool:
        """Send, unless too much waits already."""
        if not self.admitted:
            return False
        most = self.door.settings.dispatcher.queue_bytes
        if self.buffered and self.buffered + len(data) > most:
            self.refuse("full", f"{self.buffered} bytes wait for it (dispatcher.queue_bytes is {most})")
            return False
        self.send(data)
        return True

    def part(self, reason: str, detail: str) -> None:
        """Close the connection."""
        self.counters.refuse(self.door.name, reason, self.name, detail)
        self.close()

    def closed(self) -> None:
        """Forget the connection."""
        self.door.dispatcher.left(self)


class ConnectorLink(_Target):
    """A connection to a connector's router door."""

    def opened(self) -> None:
        """Introduce this dispatcher; a connector that the settings name is served without an answer."""
        self.send(serialize(Handshake(self.door.node)))
        if self.connector:
            self._join(self.connector, relying=False)

    def heartbeat(self) -> bytes:
        """Return a heartbeat, to which a live connector answers."""
        return serialize(Heartbeat(int(time())))

    def take(self, frame: ConnectorMessage) -> None:
        """Handle the connector's answers."""
        self.useful = True
        if isinstance(frame, Handshake):
            self._join(frame.node, relying=frame.relying)
        else:
            self.answers = True

    def judge(self, now: float) -> None:
        """Give up a connector whose id does not become known."""
        patience = self.limits.handshake_seconds
        if self.connector or self.reading_paused or now - self.since < patience:
            super().judge(now)
            return
        way = "a connector that never answers is named as ID@host:port in dispatcher.connectors"
        self.refuse("handshake", f"no answer to the handshake within {patience:g} s; {way}")

    def _join(self, connector: bytes, *, relying: bool) -> None:
        self.connector = connector
        self.is_called(connector.decode())
        self.door.dispatcher.joined(connector, self, relying=relying)


class DispatcherLink(_Target):
    """A connection to another dispatcher's door."""

    def __init__(self, door: Targets, address: Address) -> None:
        super().__init__(door, address)
        self._heartbeats = HeartbeatJoiner()

    def opened(self) -> None:
        """Ask what it has: dispatchers do not handshake each other, but answer heartbeats."""
        self.door.dispatcher.peers[self] = None
        self.send(self.heartbeat())

    def heartbeat(self) -> bytes:
        """Return a heartbeat, which names the connectors here."""
        return self.door.dispatcher.heartbeat(int(time()))

    def take(self, frame: ConnectorMessage) -> None:
        """Learn which connectors it has."""
        self.useful = self.answers = True
        if isinstance(frame, Heartbeat) and (whole := self._heartbeats.join(frame)) is not None:
            self.door.dispatcher.told(self, whole.connectors, whole.relying)


class Targets(Dialling[_Target]):
    """The connectors, or the other dispatchers, that a dispatcher passes messages to."""

    def __init__(
        self,
        context: DoorContext,
        dispatcher: Dispatcher,
        node: bytes,
        name: str,
        addresses: Sequence[Address],
        link: type[_Target],
    ) -> None:
        super().__init__(context, name, addresses, "router" if link is ConnectorLink else "dispatcher")
        self.dispatcher = dispatcher
        self.node = node
        self._link = link

    @classmethod
    def all_of(cls, context: DoorContext, dispatcher: Dispatcher, node: bytes) -> list[Targets]:
        """The connections that the settings name."""
        settings = context.settings.dispatcher
        return [
            cls(context, dispatcher, node, "to_connectors", settings.connectors, ConnectorLink),
            cls(context, dispatcher, node, "to_dispatchers", settings.peers, DispatcherLink),
        ]

    def connection(self, address: Address) -> _Target:
        """The protocol of a new connection."""
        return self._link(self, address)
