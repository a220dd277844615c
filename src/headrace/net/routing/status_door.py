"""The ``status`` door: tells other matchers, and anyone who connects, where this matcher is on the ring.

A new connection is sent this matcher's node and vnode information at once, and again in answer to each node information
that it sends. Matchers dial one another (``matching.peers``); the others take a matcher that was not heard for
``limits.idle_seconds`` off the ring (:mod:`headrace.hub.routing.matcher_ring`), and it joins again when it is back.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from functools import partial

from headrace.config import Address
from headrace.errors import StorageError
from headrace.hub.access.principal import Action
from headrace.hub.routing.matcher_ring import MatcherRing, SilentMatchers, leave
from headrace.hub.routing.roles import role_name
from headrace.matching import Ring
from headrace.message import Batch
from headrace.net.routing.outgoing_connections import Dialled, Dialling
from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.wire.attribute.messages import NodeInfo, StatusDecoder, StatusMessage, VnodeInfo, serialize


class RingPosition:
    """This matcher's place on the ring, and its addresses."""

    def __init__(self, context: DoorContext, doors: Callable[[], dict[str, str]]) -> None:
        self.name = role_name(context.settings)
        alone = Ring(self.name)
        self._start = alone.starts[self.name]
        self._vnodes = b"".join(alone.vnodes(self.name))
        self._doors = doors

    def told(self) -> bytes:
        """The node and vnode information."""
        return self.node() + serialize(VnodeInfo(platform.node(), self.name, self._vnodes))

    def node(self) -> bytes:
        """The node information alone."""
        doors = self._doors()
        bound, asked = doors.get("status", ""), doors.get("tube_tcp", "")
        return serialize(NodeInfo(platform.node(), bound, asked, self._start, self.name))


class StatusDoor(TcpDoor["StatusStream"]):
    """The door, open on a TCP socket."""

    needs = Action.ADMIN

    def __init__(self, context: DoorContext, place: RingPosition, listening: socket.socket) -> None:
        super().__init__(context, "status", listening)
        self.place = place

    def connection(self) -> StatusStream:
        """The protocol of a new connection."""
        return StatusStream(self)


class StatusStream(DoorConnection[StatusDoor]):
    """Another matcher, or any other listener."""

    def __init__(self, door: StatusDoor) -> None:
        super().__init__(door, StatusDecoder())

    def opened(self) -> None:
        """Send our place on the ring."""
        self.send(self.door.place.told())

    def take(self, frame: StatusMessage) -> None:
        """Answer another matcher's node information with our own."""
        if isinstance(frame, NodeInfo):
            self.send(self.door.place.node())

    def judge(self, now: float) -> None:
        """Close a connection that has been silent for too long."""
        self.judge_silence(now, self.limits.idle_seconds)


class ToMatchers(Dialling["MatcherPeer"]):
    """Connections to the other matchers, and which of these answer."""

    def __init__(self, context: DoorContext, place: RingPosition, matchers: MatcherRing) -> None:
        super().__init__(context, "to_matchers", context.settings.matching.peers, "status")
        self.place = place
        self.silence = SilentMatchers(place.name, context.settings.limits.idle_seconds)
        self._matchers = matchers

    def connection(self, _address: Address) -> MatcherPeer:
        """The protocol of a new connection."""
        return MatcherPeer(self)

    def tick(self, now: float) -> None:
        """Take matchers that are gone off the ring."""
        super().tick(now)
        names = {stream.node for stream in self.connections if stream.node is not None}
        all_here = len(names) >= len(self.settings.matching.peers)
        for name in self.silence.gone(self._matchers.ring.matchers, now, all_here=all_here):
            self.counters.refuse(self.name, "gone", name, "not heard of: its share goes to the others")
            self.hub.submit(leave(name), partial(self._left, name))

    def _left(self, name: str, outcome: Batch | StorageError) -> None:
        if isinstance(outcome, StorageError):
            self.silence.stayed(name)


class MatcherPeer(Dialled[ToMatchers]):
    """A connection to another matcher's status door."""

    answers = True

    def __init__(self, door: ToMatchers) -> None:
        super().__init__(door, StatusDecoder())
        self.node: str | None = None
        """Its name, once it has said so."""

    def opened(self) -> None:
        """Send our place on the ring."""
        self.send(self.door.place.told())

    def heartbeat(self) -> bytes:
        """Return a heartbeat: our node information."""
        return self.door.place.node()

    def take(self, frame: StatusMessage) -> None:
        """Note that the other matcher lives."""
        self.useful = True
        if isinstance(frame, NodeInfo):
            self.node = frame.node
            self.door.silence.heard(frame.node, self.loop.time())
