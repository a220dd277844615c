"""The ``spp`` door: services over TCP.

A connection decodes packets, hands subscriptions to its :mod:`session <headrace.hub.services.subscribers>` and
changes to :mod:`headrace.hub.services.publish`, and writes what the session gives it. The changes of one read become
one batch.

Where ``auth.required`` is on, nothing is offered to a connection until its AUTH is accepted: what it asks is counted
and ignored, packets longer than an AUTH are refused, and it has ``limits.handshake_seconds``.
"""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Sequence
from time import time
from typing import Final

from headrace.errors import WireError
from headrace.hub.access.accounts import Resource
from headrace.hub.access.principal import Action
from headrace.hub.services.publish import ServiceChange, ServicePublishing
from headrace.hub.services.subscribers import ServiceSession, ServiceSubscribers
from headrace.message import Batch
from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.net.server.access.challenge import new_challenge
from headrace.tube.fair_turns import IN_A_TURN
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


class SppDoor(TcpDoor["SppConnection"]):
    """The door: the common part of its connections."""

    has_login = True

    def __init__(self, context: DoorContext, listening: socket.socket) -> None:
        super().__init__(context, "spp", listening)
        self.authentication = context.authentication
        self.audience = ServiceSubscribers(context.parts.services, context.hub.counters)
        self.changes = ServicePublishing(context.hub, context.parts.services)
        self.max_packet = min(MAX_PACKET, _STRINGS + MAX_SERVICE + context.settings.limits.message_bytes)

    def connection(self) -> SppConnection:
        """Make the protocol of a new connection."""
        return SppConnection(self)

    def deliver(self, _batches: Sequence[Batch]) -> None:
        """Send the changes of services by newly committed batches; the state has applied them already."""
        self.audience.deliver()

    def facts(self) -> dict[str, int]:
        """Return the number of subscriptions."""
        return {"spp": sum(len(session.subscriptions) for session in self.audience.sessions)}


class SppConnection(DoorConnection[SppDoor]):
    """One connection. Its name is the publisher of its messages."""

    max_frames = IN_A_TURN
    """Many, since the changes among them make one batch."""

    def __init__(self, door: SppDoor) -> None:
        self._packets = ServerDecoder(max_packet=_STRINGS + MAX_AUTH)
        super().__init__(door, self._packets)
        self._session: ServiceSession | None = None
        self._authenticated = False
        self._challenge: str | None = None
        """The challenge that the peer was given to sign."""
        self._changes: list[ServiceChange] = []
        self._charged = 0
        """Subscriptions that are charged to the peer's account."""
        self._awaited: set[str] = set()
        """Subscribed ids that are just being created."""
        self._postponed: dict[str, None] = {}
        """Ids to subscribe, in order, once the hub knows its head."""
        self._paying = False

    def opened(self) -> None:
        """Offer the services, unless the peer must authenticate first."""
        if self.principal.known:
            self._begin()

    def take(self, frame: ClientFrame | Ignored) -> None:
        """Act on the peer's packets, and gather its changes."""
        session = self._session
        match frame:
            case Ignored():
                self.counters.add("ignored", door="spp")
            case Auth(json):
                self._authenticate(json)
            case _ if session is None:
                # Nothing has been offered yet, so the id it names was not either.
                self.counters.add("unauthenticated", door="spp")
                self.door.context.access.turned_away("spp", self.name, self.principal.name, "unknown")
            case Publish(service, change):
                if not (self.principal.may_do_everything or self._may_use(service, Action.PUBLISH)):
                    return
                self._changes.append(ServiceChange(service, change))
            case Subscribe(service) if (
                detail := self.account.lacks(Resource.SUBSCRIPTIONS, 1 + len(self._postponed))
            ) is not None:
                self.counters.refuse("spp", "subscriptions", self.name, f"of {service!r}: {detail}")
            case Subscribe(service) if not (
                self.principal.may_do_everything or self._may_use(service, Action.READ)
            ):
                pass
            case Subscribe(service) if self.door.hub.head_doubt() is not None:
                # The object might be older than what the peer has seen: it is sent when the hub is sure.
                self._postponed[service] = None
            case Subscribe(service):
                if not (session.subscribe(service) or self._subscribe_later(service)):
                    self.counters.add("not_offered", door="spp")
                self._charge_subscriptions()
            case Unsubscribe(service):
                self._awaited.discard(service)
                self._postponed.pop(service, None)
                session.unsubscribe(service)
                self._charge_subscriptions()

    def done_taking(self) -> None:
        """Publish the changes, also those that came before a bad packet."""
        if not self._changes:
            return
        changes, self._changes = self._changes, []
        self.account.receive(0, len(changes), self.heard)
        rejected = self.door.changes.publish(
            changes, origin="spp", publisher=self.name, done=self.settled, client=self.account
        )
        for change, reason, detail in rejected:
            self.counters.refuse("spp", reason, self.name, f"a change of {change.service_id!r}: {detail}")
        if self.door.hub.full:
            self.door.hub.take_turn()

    def eof_received(self) -> bool:
        """Keep a peer that sends no more while it is subscribed."""
        super().eof_received()
        if self._session is None or not (self._session.subscriptions or self._postponed):
            return False
        # Whether it still reads shows only when it is sent something, which may be never: the kernel has to probe.
        if hasattr(socket, "TCP_KEEPIDLE"):
            seconds = min(max(int(self.limits.slow_seconds), 1), _LONGEST_KEEPIDLE)
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        return True

    def pause_writing(self) -> None:
        """Stop sending until there is room; the peer may still publish."""
        if self._session is not None:
            self._session.pause()

    def resume_writing(self) -> None:
        """Continue to send."""
        if self._session is not None:
            self._session.resume()

    def send(self, data: bytes | memoryview) -> None:
        """Send packets, including those that a peer is owed while its connection is closing."""
        self._sent += len(data)
        self._transport.write(data)

    def later(self) -> None:
        """Continue to send after others have had their turn."""
        if not self._paying:
            self._paying = True
            self.loop.call_soon(self._pay)

    def overburdened(self, detail: str) -> None:
        """Cut off a peer that lags in more than can be kept."""
        self.refuse("lagging", detail)

    def judge(self, now: float) -> None:
        """Cut off a peer that does not authenticate, and one that neither sends nor reads any more."""
        handshake = self.limits.handshake_seconds
        if self._session is None and now - self.since >= handshake:
            self.refuse("handshake", f"no AUTH within {handshake:g} s")
        elif self._ended and self._is_gone():
            self.abort()
        elif self._postponed and self.door.hub.head_doubt() is None:
            postponed, self._postponed = self._postponed, {}
            for service in postponed:
                self.take(Subscribe(service))

    def close(self) -> None:
        """Send what is buffered and owed, and close."""
        self._transport.close()

    def closed(self) -> None:
        """Forget what has not been sent to the peer."""
        if self._session is not None:
            self._session.close()
            self._charge_subscriptions()
            self._session = None

    def account_changes(self) -> None:
        """Give back what is charged to the account before another takes its place."""
        self.account.adjust(Resource.SUBSCRIPTIONS, -self._charged)
        self._charged = 0

    def _charge_subscriptions(self) -> None:
        count = 0 if self._session is None else len(self._session.subscriptions)
        if count != self._charged:
            self.account.adjust(Resource.SUBSCRIPTIONS, count - self._charged)
            self._charged = count

    def _may_use(self, service: str, action: Action) -> bool:
        access = self.door.context.access
        return access.may_use(self.principal, service, action, self.door.name, self.name)

    def _is_gone(self) -> bool:
        """Ask the system whether the connection is over; the event loop notices only when it reads or writes."""
        look = select.poll()
        look.register(self._transport.get_extra_info("socket"), 0)
        return bool(look.poll(0))

    def _subscribe_later(self, service: str) -> bool:
        """Wait for a service that is being created: a PUBLISH and a Subscribe may come together."""
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
            self._charge_subscriptions()

    def _authenticate(self, json: bytes) -> None:
        if self._authenticated:
            # One answer per connection: a peer that sends many AUTHs and reads nothing must not fill memory.
            self.counters.add("ignored", door="spp")
            return
        # Earlier changes are published first, under the name that the peer had then.
        self.done_taking()
        if not self.admitted:
            return
        try:
            auth = parse_auth(json)
        except WireError as error:
            self._deny(error.reason, error)
            return
        authentication = self.door.authentication
        if authentication.useful:
            if self._challenge is None and auth.challenge is None:
                # Nobody is refused yet: the answer asks for another AUTH, which signs the challenge.
                self._challenge = new_challenge(self.door.hub.log)
                self.send(serialize(Authenticated(accepted=False, challenge=self._challenge.encode())))
                return
            given = self._challenge or secrets.token_hex()
            client, denied = authentication.judge(auth, time(), address=self.endpoint[0], challenge=given)
            if denied is not None:
                access = self.door.context.access
                access.turned_away("spp", self.name, client_id_text(auth.client_id), denied)
                self._deny(denied, f"client {client_id_text(auth.client_id)}")
                return
            principals = self.door.context.access.principals
            if client and (principal := principals.of_client_id(client)) is not None:
                if self._session is not None and not (
                    self.principal.may_do_everything and principal.may_do_everything
                ):
                    # What it was offered while anonymous differs from what it is offered now.
                    self._session.close()
                    self._charge_subscriptions()
                    self._session = None
                self.identified(principal)
        # Where nobody must prove anything, a name that is somebody's must be proven all the same.
        if not self.door.context.access.may_be_called(self.principal, client_id_text(auth.client_id)):
            self._deny("forbidden", f"client {client_id_text(auth.client_id)} is another's")
            return
        self._authenticated = True
        self.name = client_id_text(auth.client_id)
        self.send(serialize(Authenticated(accepted=True)))
        if self._session is None:
            self._begin()

    def _begin(self) -> None:
        self._packets.max_packet = self.door.max_packet
        sees = None if self.principal.may_do_everything else self.principal.seen
        self._session = self.door.audience.join(self, sees)
        self._session.pay()

    def _deny(self, reason: str, detail: object) -> None:
        self.counters.refuse("spp", reason, self.name, detail)
        self.send(serialize(Authenticated(accepted=False)))
        super().close()

    def _pay(self) -> None:
        self._paying = False
        if self._session is not None:
            self._session.pay()
