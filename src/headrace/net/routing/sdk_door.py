"""The ``sdk`` door: the connector's side toward its clients.

A connection is dull: it decodes commands, asks the table of :mod:`headrace.wire.sdk.commands` which may come now, and
passes subscriptions to the :class:`~headrace.hub.routing.connector.Connector`, which gives it pushes to write. "After
`-command error` close": that is the answer to every invalid command, and the reason is counted.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from time import time
from typing import Final

from headrace.hub.access.accounts import Resource
from headrace.hub.access.principal import Action
from headrace.hub.access.readable import readable_rows
from headrace.hub.routing.client_session import ClientSession, ReadableRows
from headrace.hub.routing.connector import Connector
from headrace.hub.routing.pending_changes import NOTHING_USED, Usage
from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.wire.attribute.messages import CLIENT_ID_BYTES
from headrace.wire.sdk.auth import Auth, client_id_text
from headrace.wire.sdk.commands import (
    AuthSuccess,
    Command,
    CommandError,
    Heartbeat,
    HeartbeatReply,
    SdkEvent,
    SdkState,
    ServerDecoder,
    event_of,
    new_session,
    serialize,
)
from headrace.wire.sdk.predicate import split_events
from headrace.wire.sdk.subscribe import Subscribe

RETRY_SECONDS: Final = 0.001

_CHARGED: Final = (Resource.SUBSCRIPTIONS, Resource.TRACKS)
"""The resources that an account is charged for, ordered as :class:`~headrace.hub.routing.pending_changes.Usage` is."""


class SdkDoor(TcpDoor["SdkStream"]):
    """The door, open on a TCP socket."""

    has_login = True

    def __init__(self, context: DoorContext, connector: Connector, listening: socket.socket) -> None:
        super().__init__(context, "sdk", listening)
        self.connector = connector

    def connection(self) -> SdkStream:
        """The protocol of a new connection."""
        return SdkStream(self)


class SdkStream(DoorConnection[SdkDoor]):
    """One client."""

    def __init__(self, door: SdkDoor) -> None:
        super().__init__(door, ServerDecoder())
        self._machine = new_session(auth_required=door.context.authentication.required)
        self._session: ClientSession | None = None
        self._retrying = False
        self._charged = NOTHING_USED
        """What the peer's account is charged for this client."""

    def opened(self) -> None:
        """Require no ``auth`` of a client whose certificate has shown who it is."""
        required = self.door.context.authentication.required and not self.principal.known
        self._machine = new_session(auth_required=required)

    def take(self, frame: Command) -> None:
        """Perform a client's command."""
        if isinstance(frame, Auth) and self._machine.allows(SdkEvent.AUTH):
            context = self.door.context
            client, denied = context.authentication.judge(frame, time(), address=self.endpoint[0])
            if denied is not None:
                context.access.turned_away("sdk", self.name, client_id_text(frame.client_id), denied)
                self.refuse(denied, f"client {client_id_text(frame.client_id)}")
                return
            if client and (principal := context.access.principals.of_client_id(client)) is not None:
                self.identified(principal)
            if not context.access.may_be_called(self.principal, client_id_text(frame.client_id)):
                self.refuse("forbidden", f"client {client_id_text(frame.client_id)} is another's")
                return
        if not self._machine.allows(event_of(frame)) and not self.principal.known:
            self.door.context.access.turned_away("sdk", self.name, self.principal.name, "unknown")
        self._machine.step(event_of(frame))
        if isinstance(frame, Auth | Subscribe) and not self.may_any(Action.READ):
            self.refuse("forbidden", f"{self.principal.name} may not read")
            return
        match frame:
            case Auth():
                self.name = client_id_text(frame.client_id)
                # The reply precedes the first push.
                self.send(serialize(AuthSuccess()))
                self._session = self.door.connector.join(
                    frame.client_id, self, after=frame.after, reads=self._reads
                )
                self._charge()
            case Heartbeat():
                self.send(serialize(HeartbeatReply()))
            case Subscribe(_, name):
                if self._session is None:
                    guest = os.urandom(CLIENT_ID_BYTES)
                    self.is_called(guest.hex())
                    self._session = self.door.connector.join(guest, self, guest=True, reads=self._reads)
                connector, alternatives = self.door.connector, split_events(frame.alternatives)
                more = connector.more_usage(self._session, name, alternatives)
                for resource, amount in zip(_CHARGED, more, strict=True):
                    if amount and (detail := self.account.lacks(resource, amount)) is not None:
                        self.refuse(resource.value, detail)
                        return
                connector.subscribe(self._session, alternatives, name)
                self._charge()

    def account_changes(self) -> None:
        """Give back what the account is charged, before another account replaces it."""
        self._charge_for(NOTHING_USED)

    def _charge(self) -> None:
        """Charge what the client subscribes to the peer's account."""
        session = self._session
        self._charge_for(NOTHING_USED if session is None else self.door.connector.usage(session))

    def _charge_for(self, usage: Usage) -> None:
        for resource, now, before in zip(_CHARGED, usage, self._charged, strict=True):
            self.account.adjust(resource, now - before)
        self._charged = usage

    @property
    def _reads(self) -> ReadableRows | None:
        """The rows that the client may read; ``None`` if it may read everything."""
        return None if self.principal.reads_everything else partial(readable_rows, self.principal)

    def drained(self) -> None:
        """Resume pushing, since the client has room again."""
        if self._session is not None:
            self.door.connector.resume(self._session)

    def judge(self, now: float) -> None:
        """Cut off a client that does not authenticate in time, or was silent for too long."""
        locked = self._machine.state is SdkState.LOCKED
        if locked and now - self.since >= self.limits.handshake_seconds:
            self.refuse("handshake", f"no auth within {self.limits.handshake_seconds:g} s")
        else:
            self.judge_silence(now, self.limits.routing_idle_seconds)

    def later(self) -> None:
        """Resume when there is room: when the transport says so or, if it was never full, in a moment."""
        if not (self._full or self._retrying):
            self._retrying = True
            self.loop.call_later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        if self._session is not None and not self._full:
            self.door.connector.resume(self._session)

    def part(self, reason: str, detail: str) -> None:
        """Close the connection for a reason of the connector's."""
        if reason in ("lagging", "damaged"):
            self.cut_off(reason, detail)
        elif reason == "storage":
            self.refuse(reason, detail)
        else:
            self.counters.refuse(self.door.name, reason, self.name, detail)
            self.close()

    def refuse(self, reason: str, detail: object) -> None:
        """Answer "-command error" and close; a client that takes no answer gets none."""
        self.note_refusal(reason, detail)
        if not self.admitted or reason in _NO_ANSWER:
            self.abort()
            return
        self.send(serialize(CommandError()))
        self.close()

    def closed(self) -> None:
        """End the client's session."""
        if self._session is not None:
            self.door.connector.leave(self._session)
            self._session = None
            self._charge()


_NO_ANSWER = frozenset({"slow", "stalled", "idle", "handshake", "connections"})
