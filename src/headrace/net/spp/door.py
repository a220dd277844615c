"""The ``spp`` door: services over TCP.

A connection is dull: it decodes what comes, hands subscriptions to its
:class:`~headrace.hub.services.subscribers.Session` and changes to :class:`~headrace.hub.services.publish.Changes`,
and writes what the session gives it. The changes of one read become one batch.

Where ``auth.required`` is on, a connection is nobody until its AUTH is accepted: nothing is offered to it, what it asks
is counted and ignored, packets longer than an AUTH may be are refused, and it has ``limits.handshake_seconds``.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from time import time
from typing import Final

from headrace.errors import WireError
from headrace.hub.services.publish import Change, Changes
from headrace.hub.services.subscribers import Audience, Session
from headrace.message import Batch
from headrace.net.server.connection import RECEIVE_BYTES, DoorConnection, TcpDoor
from headrace.net.server.door import DoorContext
from headrace.wire.sdk.auth import client_id_text, parse_auth
from headrace.wire.spp import (
    MAX_AUTH,
    MAX_PACKET,
    MAX_SERVICE,
    Auth,
    Authenticated,
    ClientFrame,
    Ignored,
    Publish,
    ServerDecoder,
    Subscribe,
    Unsubscribe,
    serialize,
)

_STRINGS: Final = 8

_LONGEST_KEEPIDLE: Final = 32_767
"""Seconds; the kernel takes no more."""


class SppDoor(TcpDoor["SppStream"]):
    """The door, open on a TCP socket: what its connections share."""

    def __init__(self, context: DoorContext, listening: socket.socket) -> None:
        super().__init__(context, "spp", listening)
        self.authentication = context.authentication
        self.audience = Audience(context.parts.services, context.hub.counters)
        self.changes = Changes(context.hub, context.parts.services)
        self.max_packet = min(MAX_PACKET, _STRINGS + MAX_SERVICE + context.settings.limits.message_bytes)

    def connection(self) -> SppStream:
        """The protocol of a new connection."""
        return SppStream(self)

    def deliver(self, _batches: Sequence[Batch]) -> None:
        """Send what the newly committed batches did to services; the state has followed them already."""
        self.audience.deliver()

    def facts(self) -> dict[str, int]:
        """How many subscriptions there are."""
        return {"spp": sum(len(session.subscriptions) for session in self.audience.sessions)}


class SppStream(DoorConnection[SppDoor]):
    """One connection. Its name is what its messages have as their publisher."""

    max_frames = RECEIVE_BYTES
    """All that one read brings, so that its changes make one batch."""

    def __init__(self, door: SppDoor) -> None:
        self._packets = ServerDecoder(max_packet=_STRINGS + MAX_AUTH)
        super().__init__(door, self._packets)
        self._session: Session | None = None
        self._authenticated = False
        self._changes: list[Change] = []
        self._awaited: set[str] = set()
        """Ids it has subscribed that are just being created."""
        self._paying = False

    def opened(self) -> None:
        """Offer the services, unless the peer has to say first who it is."""
        if not self.door.authentication.required:
            self._begin()

    def take(self, frame: ClientFrame | Ignored) -> None:
        """Do what the peer asks; its changes gather."""
        session = self._session
        match frame:
            case Ignored():
                self.counters.add("ignored", door="spp")
            case Auth(json):
                self._authenticate(json)
            case _ if session is None:
                # Nothing has been offered yet, so whatever it names was never offered.
                self.counters.add("unauthenticated", door="spp")
            case Publish(service, change):
                self._changes.append(Change(service, change))
            case Subscribe(service):
                if not (session.subscribe(service) or self._subscribe_later(service)):
                    self.counters.add("not_offered", door="spp")
            case Unsubscribe(service):
                self._awaited.discard(service)
                session.unsubscribe(service)

    def done_taking(self) -> None:
        """Publish the changes; those that came before a bad packet, too."""
        if not self._changes:
            return
        changes, self._changes = self._changes, []
        rejected = self.door.changes.publish(changes, origin="spp", publisher=self.name, done=self.settled)
        for change, reason, detail in rejected:
            self.counters.refuse("spp", reason, self.name, f"a change of {change.service_id!r}: {detail}")
        if self.door.hub.full:
            self.door.hub.take_turn()

    def eof_received(self) -> bool:
        """The peer sends no more, but may go on reading what it has subscribed."""
        super().eof_received()
        if self._session is None or not self._session.subscriptions:
            return False
        # Whether it does shows only when it is sent something, which may be never: the kernel has to ask.
        if hasattr(socket, "TCP_KEEPIDLE"):
            seconds = min(max(int(self.limits.slow_seconds), 1), _LONGEST_KEEPIDLE)
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        return True

    def pause_writing(self) -> None:
        """The peer takes less than it is sent: it is owed the rest, and may publish all the same."""
        if self._session is not None:
            self._session.pause()

    def resume_writing(self) -> None:
        """The peer has room again."""
        if self._session is not None:
            self._session.resume()

    def send(self, data: bytes | memoryview) -> None:
        """Send packets; also what a peer is owed while its connection is closing."""
        self._sent += len(data)
        self._transport.write(data)

    def later(self) -> None:
        """Go on sending after others have had their turn."""
        if not self._paying:
            self._paying = True
            self.loop.call_soon(self._pay)

    def overburdened(self, detail: str) -> None:
        """Cut off a peer that lags in more than can be kept for it."""
        self.refuse("lagging", detail)

    def judge(self, now: float) -> None:
        """Cut off a peer that does not say who it is, and forget one that ended and reads no more either."""
        handshake = self.limits.handshake_seconds
        if self._session is None and now - self.since >= handshake:
            self.refuse("handshake", f"no AUTH within {handshake:g} s")
        elif self._ended and self._is_gone():
            self.abort()

    def close(self) -> None:
        """Send what is buffered, and what the peer is owed, and close."""
        self._transport.close()

    def closed(self) -> None:
        """The peer is owed nothing any more."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _is_gone(self) -> bool:
        """Whether the connection is over; the event loop does not look, where there is nothing to read or write."""
        look = select.poll()
        look.register(self._transport.get_extra_info("socket"), 0)
        return bool(look.poll(0))

    def _subscribe_later(self, service: str) -> bool:
        """Wait for a service that is being created: a PUBLISH and a Subscribe may come in one go."""
        self.done_taking()
        if service not in self._awaited:
            if not self.door.changes.when_created(service, lambda: self._subscribe_created(service)):
                return False
            self._awaited.add(service)
        return True

    def _subscribe_created(self, service: str) -> None:
        if service in self._awaited and self._session is not None:
            self._awaited.discard(service)
            if not self._session.subscribe(service):
                self.counters.add("not_offered", door="spp")

    def _authenticate(self, json: bytes) -> None:
        if self._authenticated:
            # One answer a connection: who sends many and reads none must not fill memory with them.
            self.counters.add("ignored", door="spp")
            return
        # What came before is published, and under the name that the peer had then, whether it came in one read or not.
        self.done_taking()
        if not self.admitted:
            return
        try:
            auth = parse_auth(json)
        except WireError as error:
            self._deny(error.reason, error)
            return
        denied = self.door.authentication.judge(auth, time())
        if denied is not None:
            self._deny(denied, f"client {client_id_text(auth.client_id)}")
            return
        self._authenticated = True
        self.name = client_id_text(auth.client_id)
        self.send(serialize(Authenticated(accepted=True)))
        if self._session is None:
            self._begin()

    def _begin(self) -> None:
        """Offer the services to a peer that may see them."""
        self._packets.max_packet = self.door.max_packet
        self._session = self.door.audience.join(self)
        self._session.pay()

    def _deny(self, reason: str, detail: object) -> None:
        self.counters.refuse("spp", reason, self.name, detail)
        self.send(serialize(Authenticated(accepted=False)))
        super().close()

    def _pay(self) -> None:
        self._paying = False
        if self._session is not None:
            self._session.pay()
