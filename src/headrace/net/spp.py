"""The ``spp`` door: services over TCP.

A connection is dull: it decodes what comes, hands subscriptions to its :class:`~headrace.hub.audience.Session` and
changes to :class:`~headrace.hub.changes.Changes`, and writes what the session gives it. All connections receive into
one buffer that belongs to the door.

Where ``auth.required`` is on, a connection is nobody until its AUTH is accepted: nothing is offered to it, what it asks
is counted and ignored, packets longer than an AUTH may be are refused, and it has ``limits.handshake_seconds``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from time import time
from typing import Final, cast

from headrace.errors import StorageError, WireError
from headrace.hub.audience import Audience, Session
from headrace.hub.changes import Change, Changes
from headrace.message import Batch
from headrace.net.door import House
from headrace.wire.auth import client_id_text, parse_auth
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

RECEIVE_BYTES: Final = 128 << 10
"""What one read may bring: some hundred changes for a batch, and never so many packets that others have to wait."""

_STRINGS: Final = 8


class SppDoor:
    """The door, open on a TCP socket: what its connections share."""

    def __init__(self, house: House, listening: socket.socket) -> None:
        self.hub = house.hub
        self.settings = house.settings
        self.connections = house.connections
        self.authentication = house.authentication
        self.audience = Audience(house.services, house.hub.counters)
        self.changes = Changes(house.hub, house.services)
        self.max_packet = min(MAX_PACKET, _STRINGS + MAX_SERVICE + house.settings.limits.message_bytes)
        self.view = memoryview(bytearray(RECEIVE_BYTES))
        self.streams: set[SppStream] = set()
        self.stopping = False
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()
        self._listening = listening
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: SppStream(self), sock=self._listening, backlog=1024)

    def deliver(self, _batches: Sequence[Batch]) -> None:
        """Send what the newly committed batches did to services; the state has followed them already."""
        self.audience.deliver()

    def tick(self, now: float) -> None:
        """Cut off those who take nothing, or do not say who they are."""
        for stream in tuple(self.streams):
            stream.tick(now)

    def relieved(self) -> None:
        """Read from publishers again."""
        for stream in self.streams:
            stream.resume_reading()

    def facts(self) -> dict[str, int]:
        """How many subscriptions there are."""
        return {"spp": sum(len(session.subscriptions) for session in self.audience.sessions)}

    def stop(self) -> None:
        """Accept and read nothing more."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for stream in self.streams:
            stream.pause_reading()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        for stream in tuple(self.streams):
            stream.close()
        await self.empty.wait()

    def abort(self) -> None:
        """Close every connection that is still open, whatever is buffered for it."""
        for stream in tuple(self.streams):
            stream.abort()


class SppStream(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, door: SppDoor) -> None:
        self._door = door
        self._counters = door.hub.counters
        self._decoder = ServerDecoder()
        self._address = ""
        self.name = ""
        """The peer, as its messages and the log name it: its address, or its client id once it has told."""
        self._session: Session | None = None
        self._authenticated = False
        self._changes: list[Change] = []
        self._awaited: set[str] = set()
        """Ids it has subscribed that are just being created."""
        self._reading_paused = False
        self._paying = False
        self._admitted = False
        self._since = 0.0
        self._sent = 0
        self._taken = 0
        self._taken_at = 0.0
        self._packet_at = 0
        """The packet that was unfinished at the last tick, and since when it has been so."""
        self._packet_since = 0.0
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse a new connection."""
        door = self._door
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._since = self._taken_at = self._loop.time()
        peer = transport.get_extra_info("peername")
        if peer is None:
            # It was gone before it was accepted.
            self._transport.abort()
            return
        self._address, self.name = peer[0], f"{peer[0]}:{peer[1]}"
        self._transport.set_write_buffer_limits(high=door.settings.limits.queue_bytes)
        # SPP has no heartbeat: without this, a subscriber that vanished would be one until something changes.
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        refused = "the hub is stopping" if door.stopping else door.connections.admit(self._address)
        if refused is not None:
            self._refuse("connections", refused)
            return
        self._admitted = True
        door.streams.add(self)
        door.empty.clear()
        if door.authentication.required:
            self._decoder.max_packet = _STRINGS + MAX_AUTH
        else:
            self._begin()

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection."""
        self._release()
        door = self._door
        door.streams.discard(self)
        if not door.streams:
            door.empty.set()

    def get_buffer(self, _size: int) -> memoryview:
        """Offer the door's buffer."""
        return self._door.view

    def buffer_updated(self, received: int) -> None:
        """Take what was received."""
        if not self._admitted:
            return
        error = None
        try:
            for frame in self._decoder.feed(self._door.view[:received]):
                self._take(frame)
                if self._transport.is_closing():
                    return
        except WireError as refusal:
            error = refusal
        # "Packets that came before the bad one have been acted on."
        if self._changes:
            self._publish()
        if error is not None:
            self._refuse(error.reason, error)
        elif self._door.hub.congested:
            self.pause_reading()

    def eof_received(self) -> bool:
        """The peer sends no more, but may go on reading what it has subscribed."""
        if self._decoder.unfinished:
            self._counters.refuse("spp", "cut_short", self.name, "the stream ended inside a packet")
        self._ended = True
        return self._session is not None and bool(self._session.subscriptions)

    def pause_writing(self) -> None:
        """The peer takes less than it is sent."""
        if self._session is not None:
            self._session.pause()

    def resume_writing(self) -> None:
        """The peer has room again."""
        if self._session is not None:
            self._session.resume()

    def send(self, data: bytes) -> None:
        """Send packets."""
        self._sent += len(data)
        self._transport.write(data)

    def later(self) -> None:
        """Go on sending after others have had their turn."""
        if not self._paying:
            self._paying = True
            self._loop.call_soon(self._pay)

    def overburdened(self, detail: str) -> None:
        """Cut off a peer that lags in more than can be kept for it."""
        self._refuse("lagging", detail)

    def tick(self, now: float) -> None:
        """Cut off a peer that takes nothing, does not finish a packet, or does not authenticate, for too long."""
        settings = self._door.settings
        if not self._admitted:
            return
        if self._session is None and now - self._since >= settings.limits.handshake_seconds:
            self._refuse("handshake", f"no AUTH within {settings.limits.handshake_seconds:g} s")
            return
        waiting = self._transport.get_write_buffer_size()
        taken = self._sent - waiting
        if taken != self._taken or not waiting:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at >= settings.limits.slow_seconds:
            self._refuse(
                "slow", f"took nothing for {settings.limits.slow_seconds:g} s; {waiting} bytes are lost"
            )
            return
        decoder = self._decoder
        if (
            decoder.packet_at != self._packet_at
            or not decoder.unfinished
            or self._reading_paused
            or self._ended
        ):
            self._packet_at, self._packet_since = decoder.packet_at, now
        elif now - self._packet_since >= settings.limits.slow_seconds:
            self._refuse("stalled", f"left a packet unfinished for {settings.limits.slow_seconds:g} s")

    def pause_reading(self) -> None:
        """Let what the peer sends wait."""
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again after backpressure."""
        if self._reading_paused and not (self._door.stopping or self._door.hub.congested):
            self._reading_paused = False
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()

    def close(self) -> None:
        """Send what is buffered and close."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _take(self, frame: ClientFrame | Ignored) -> None:
        session = self._session
        match frame:
            case Ignored():
                self._counters.add("ignored", door="spp")
            case Auth(json):
                self._authenticate(json)
            case _ if session is None:
                # Nothing has been offered yet, so whatever it names was never offered.
                self._counters.add("unauthenticated", door="spp")
            case Publish(service, change):
                self._changes.append(Change(service, change))
            case Subscribe(service):
                if not (session.subscribe(service) or self._subscribe_later(service)):
                    self._counters.add("not_offered", door="spp")
            case Unsubscribe(service):
                self._awaited.discard(service)
                session.unsubscribe(service)

    def _subscribe_later(self, service: str) -> bool:
        """Wait for a service that is being created: a PUBLISH and a Subscribe may come in one go."""
        if self._changes:
            self._publish()
        if service not in self._awaited:
            if not self._door.changes.when_created(service, lambda: self._subscribe_created(service)):
                return False
            self._awaited.add(service)
        return True

    def _subscribe_created(self, service: str) -> None:
        if service in self._awaited and self._session is not None:
            self._awaited.discard(service)
            if not self._session.subscribe(service):
                self._counters.add("not_offered", door="spp")

    def _authenticate(self, json: bytes) -> None:
        if self._authenticated:
            # One answer a connection: who sends many and reads none must not fill memory with them.
            self._counters.add("ignored", door="spp")
            return
        try:
            auth = parse_auth(json)
        except WireError as error:
            self._deny(error.reason, error)
            return
        denied = self._door.authentication.judge(auth, time())
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
        self._decoder.max_packet = self._door.max_packet
        self._session = self._door.audience.join(self)
        self._session.pay()

    def _deny(self, reason: str, detail: object) -> None:
        self._counters.refuse("spp", reason, self.name, detail)
        self.send(serialize(Authenticated(accepted=False)))
        self._release()
        self._transport.close()

    def _pay(self) -> None:
        self._paying = False
        if self._session is not None:
            self._session.pay()

    def _publish(self) -> None:
        changes, self._changes = self._changes, []
        rejected = self._door.changes.publish(changes, origin="spp", publisher=self.name, done=self._settled)
        for change, reason, detail in rejected:
            self._counters.refuse("spp", reason, self.name, f"a change of {change.service_id!r}: {detail}")
        if self._door.hub.full:
            self._door.hub.take_turn()

    def _settled(self, outcome: Batch | StorageError) -> None:
        if isinstance(outcome, StorageError) and not self._transport.is_closing():
            # Already counted where it was refused; the protocol has no error reply, so the connection closes.
            self._transport.abort()

    def _refuse(self, reason: str, detail: object) -> None:
        self._counters.refuse("spp", reason, self.name, detail)
        self._release()
        self._transport.abort()

    def _release(self) -> None:
        """Take nothing more from the connection, and owe it nothing."""
        if self._session is not None:
            self._session.close()
            self._session = None
        if self._admitted:
            self._admitted = False
            self._door.connections.release(self._address)
