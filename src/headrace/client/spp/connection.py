"""The streams to a hub's services: authenticated, replaced when they are lost, closed.

What packets mean is decided by the :class:`Owner`; which host is dialled when, by a
:class:`~headrace.client.reconnect.Failover`.

Invariants:

- Packets of an earlier stream are not heard.
- A stream that is given up on purpose is closed all the way before the next is opened: what was published there does
  not come after what is published next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Protocol

from headrace.client.identity import Identity
from headrace.client.reconnect import Failover
from headrace.client.spp.tcp import SppConnection
from headrace.config import Address
from headrace.errors import HeadraceError, RefusedError
from headrace.wire.sdk.auth import serialize_auth
from headrace.wire.spp import Auth, Authenticated, ClientFrame, ServerFrame


class Owner(Protocol):
    """Who uses a connection."""

    def received(self, frame: ServerFrame) -> None:
        """A packet has come; what it is answered with can be sent at once."""

    def disconnected(self) -> None:
        """The stream is gone, and with it whatever the hub knew of us."""

    def ended(self) -> None:
        """Nothing more will come: see :attr:`Connection.over`."""


class Connection:
    """The way to one of several hosts."""

    def __init__(
        self, hosts: Sequence[Address], identity: Identity | None, owner: Owner, random: Random
    ) -> None:
        self._identity = identity
        self._owner = owner
        self._failover: Failover[SppConnection] = Failover(hosts, self, random)
        self._stream: SppConnection | None = None
        """The one that is heard, from before it is known to be of use."""
        self._answer: asyncio.Future[bool] | None = None

    @property
    def over(self) -> HeadraceError | None:
        """Why there will be no stream any more."""
        return self._failover.over

    @property
    def up(self) -> bool:
        """Whether there is a stream."""
        return self._failover.current is not None

    async def open(self, seconds: float) -> None:
        """Connect to the first host that answers; each is tried once."""
        await self._failover.open(seconds)

    async def close(self, *farewell: ClientFrame) -> None:
        """Give up the stream once the hub has what was published; whoever waits is told."""
        self._take_leave(farewell)
        await self._failover.close()

    def renew(self, *farewell: ClientFrame) -> None:
        """Give up the stream for another one."""
        if self._take_leave(farewell):
            self._failover.renew()

    def send(self, frame: ClientFrame) -> None:
        """Send at once, or never: what is meant for this stream is nothing to the next."""
        if self._stream is not None:
            self._stream.send(frame)

    async def publish(self, frame: ClientFrame) -> None:
        """Send on this stream or the next, and wait until there is room for more."""
        stream = await self._failover.stream()
        stream.send(frame)
        await stream.room()

    def check(self) -> None:
        """Raise unless the connection is open."""
        self._failover.check()

    async def dial(self, address: Address) -> SppConnection:
        """Connect and authenticate; for the failover."""
        stream = self._stream = SppConnection(self)
        try:
            await stream.open(address)
            await self._authenticate(stream, address)
        except BaseException:
            stream.abort()
            self._forget()
            raise
        return stream

    async def wanted(self) -> None:
        """A lost stream is replaced at once; for the failover."""

    def ended(self) -> None:
        """Tell that nothing more will come; for the failover."""
        self._forget()
        self._owner.ended()

    def received(self, stream: SppConnection, frame: ServerFrame) -> None:
        """A packet has come; for the stream."""
        if stream is not self._stream:
            return
        if not isinstance(frame, Authenticated):
            self._owner.received(frame)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(frame.accepted)

    def lost(self, stream: SppConnection, reason: str) -> None:
        """A stream has ended by itself; for the stream."""
        if stream is not self._stream:
            return
        self._forget()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(reason))
        self._failover.lost(stream, reason)

    def _take_leave(self, farewell: Sequence[ClientFrame]) -> bool:
        """Hear no more of the stream, which ends with these words; ``False`` if there is none."""
        stream = self._failover.current
        if stream is None:
            return False
        stream.farewell = farewell
        self._forget()
        return True

    def _forget(self) -> None:
        self._stream = None
        self._owner.disconnected()

    async def _authenticate(self, stream: SppConnection, address: Address) -> None:
        if self._identity is None:
            return
        self._answer = asyncio.get_running_loop().create_future()
        try:
            stream.send(Auth(serialize_auth(self._identity.claim())))
            accepted = await self._answer
        finally:
            self._answer = None
        if not accepted:
            client = self._identity.client_id.hex()
            reason = f"{address} does not accept client {client}: check its id, its key and this clock"
            raise RefusedError("auth", reason)
