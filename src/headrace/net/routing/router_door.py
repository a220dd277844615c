"""The ``router`` door: the connector's side toward dispatchers.

A dispatcher introduces itself and is answered with the connector's id; then it pushes messages with their clients. A
push in several parts counts once its Tail has arrived; parts that wait for it are bounded in bytes, pushes and seconds.
"""

from __future__ import annotations

import socket
from time import time

from headrace.hub.access.principal import Action
from headrace.hub.routing.client_session import PushSource
from headrace.net.routing.push_stream import JoiningStream
from headrace.net.routing.roles import Routing
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.wire.attribute.messages import (
    Handshake,
    Heartbeat,
    Push,
    RouterDecoder,
    RouterMessage,
    is_msg_id,
    serialize,
)


class RouterDoor(TcpDoor["RouterStream"]):
    """The door, open on a TCP socket."""

    needs = Action.ADMIN

    def __init__(self, context: DoorContext, routing: Routing, listening: socket.socket) -> None:
        super().__init__(context, "router", listening)
        self.routing = routing

    def connection(self) -> RouterStream:
        """The protocol of a new connection."""
        return RouterStream(self)


class RouterStream(JoiningStream[RouterDoor]):
    """One dispatcher."""

    def __init__(self, door: RouterDoor) -> None:
        super().__init__(door, RouterDecoder())
        self._source = PushSource()

    def take(self, frame: RouterMessage) -> None:
        """Do what a dispatcher asks."""
        match frame:
            case Handshake(node):
                self.is_called(node.decode())
                self.send(serialize(Handshake(self.door.routing.id, self.door.routing.relying)))
            case Heartbeat() if frame.ends:
                self.send(serialize(Heartbeat(int(time()))))
            case Push():
                whole = self.join(frame)
                if whole is not None:
                    self._push(whole)

    def closed(self) -> None:
        """Feed clients that relied on this dispatcher from the log."""
        self.door.routing.lost(self._source)

    def _push(self, push: Push) -> None:
        if push.clients:
            self.door.routing.pushed(self._source, push.msg_id, push.payload, push.clients)
        elif is_msg_id(push.msg_id):
            self.door.routing.marked(self._source, push.msg_id)
