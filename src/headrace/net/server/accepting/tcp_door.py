"""TCP doors, and the open connections of each kind as a group.

A :class:`TcpDoor` accepts through the hub's entrance, and admits each connection or says why not. A
:class:`ConnectionGroup` without a door holds connections that the hub has dialled itself.
"""

from __future__ import annotations

import asyncio
import socket
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from headrace.client.tls import RenewedContext
from headrace.hub.access.accounts import UNLIMITED, Account
from headrace.hub.access.principal import EVERYTHING, Action, Principal
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.entrance import Endpoint, Listening, Refusal

if TYPE_CHECKING:
    from headrace.net.server.accepting.connection import DoorConnection

RECEIVE_BYTES: Final = 128 << 10
"""Bytes of one read: some hundred messages for a batch, but not so many that others have to wait."""

OWN: Final = Principal("this hub", EVERYTHING)
OWN_ACCOUNT: Final = Account("this hub", UNLIMITED)
"""A peer that this hub has dialled itself, as its settings say."""

S = TypeVar("S", bound="DoorConnection[Any]")


class ConnectionGroup(Generic[S]):
    """The open connections of one kind, and their common part."""

    has_login: ClassVar[bool] = True
    """Whether a peer may still prove who it is; elsewhere an unknown one is refused at once."""
    needs: ClassVar[Action | None] = None
    """The action that every peer must be allowed."""

    def __init__(self, context: DoorContext, name: str, receive_bytes: int = RECEIVE_BYTES) -> None:
        self.context = context
        self.hub = context.hub
        self.settings = context.settings
        self.counters = context.hub.counters
        self.name = name
        """The door's name in counters and log lines."""
        self.view = memoryview(bytearray(receive_bytes))
        self.connections: set[S] = set()
        self.stopping = False
        self.silent_seconds = inf
        """Seconds that a peer may be connected without sending anything."""
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()

    def admit(self, _address: str) -> Refusal | None:
        """Count a new connection, or return why it is refused."""
        return Refusal("connections", "the hub is stopping") if self.stopping else None

    def release(self, _address: str) -> None:
        """Forget an admitted connection that is over."""

    def principal_of(self, _address: str, _certificate: str) -> Principal:
        """Identify a new connection's peer, as far as its address and certificate tell."""
        return OWN

    def account_of(self, principal: Principal, address: str) -> Account:
        """Return the account that a peer's connection is charged to."""
        return OWN_ACCOUNT if principal is OWN else self.context.accounts.of(principal, address)

    def tick(self, now: float) -> None:
        """Enforce every connection's deadlines."""
        for connection in tuple(self.connections):
            connection.tick(now)

    def relieved(self) -> None:
        """Read from publishers again."""
        for connection in tuple(self.connections):
            connection.resume_reading()

    def facts(self) -> dict[str, int]:
        """Return the number of open connections."""
        return {self.name: len(self.connections)}

    def stop(self) -> None:
        """Accept and read nothing more; committed messages are still sent."""
        self.stopping = True
        for connection in self.connections:
            connection.pause_reading()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        for connection in tuple(self.connections):
            connection.close()
        await self.empty.wait()

    def abort(self) -> None:
        """Close every connection at once, and drop what is buffered."""
        for connection in tuple(self.connections):
            connection.abort()


class TcpDoor(ConnectionGroup[S]):
    """A door that accepts connections; a subclass makes the protocol of each."""

    has_login: ClassVar[bool] = False

    def __init__(
        self,
        context: DoorContext,
        name: str,
        listening: socket.socket,
        *,
        receive_bytes: int = RECEIVE_BYTES,
        tls: RenewedContext | None = None,
    ) -> None:
        """``tls`` replaces the hub's own."""
        super().__init__(context, name, receive_bytes)
        self.silent_seconds = self.settings.limits.silent_seconds
        self._listening = listening
        self._tls = tls
        self._server: Listening | None = None

    def connection(self) -> S:
        """Make the protocol of a new connection."""
        raise NotImplementedError

    async def open(self) -> None:
        """Accept connections."""
        entrance = self.context.entrance
        self._server = await entrance.listen(self.name, self._listening, self._connection_of, tls=self._tls)

    def admit(self, address: str) -> Refusal | None:
        """Count a new connection, or return why it is refused."""
        if (refusal := super().admit(address)) is not None:
            return refusal
        detail = self.context.admission.admit(address, self.name)
        return None if detail is None else Refusal("connections", detail)

    def release(self, address: str) -> None:
        """Forget an admitted connection that is over."""
        self.context.admission.release(address, self.name)

    def principal_of(self, address: str, certificate: str) -> Principal:
        """Identify a new connection's peer by its certificate; or, at a door without a login, by its address."""
        return self.context.access.principals.of_peer("" if self.has_login else address, certificate)

    def stop(self) -> None:
        """Accept and read nothing more."""
        if self._server is not None:
            self._server.close()
        super().stop()

    def _connection_of(self, origin: Endpoint | None) -> S:
        connection = self.connection()
        if origin is not None:
            connection.endpoint = origin
        return connection
