"""A client's knowledge of the hub's services, and its subscribers.

Strategy: an :class:`~headrace.client.spp.object_copy.ObjectCopy` per service, shared by all subscribers of the id here,
so that there is one subscription on the wire. A Subscribe is sent whenever an id that somebody wants is offered: at
once, later, or on the next connection. On a new connection each copy gets the whole object afresh, and its readers see
what has changed since, if anything.

An id is subscribed once per connection. A change that was on its way when the id was unsubscribed cannot be told from
the whole object that answers a second Subscribe, so a second one gets a new connection.

Invariants:

- Packets of an earlier connection are ignored.
- A connection that is given up on purpose is closed all the way before the next is opened: what was published there
  does not come after what is published next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from weakref import WeakSet

from headrace.client.identity import Identity
from headrace.client.reconnect import Failover
from headrace.client.spp.connection import SppConnection
from headrace.client.spp.object_copy import CopyReader, Kind, ObjectCopy
from headrace.client.tls import RenewedContext
from headrace.config import Address
from headrace.errors import ClosedError, UsageError
from headrace.wire.spp import ClientFrame, Info, Offer, Removed, ServerFrame, Subscribe, Unsubscribe


class Waiter:
    """Waits for something to come, or for the client to end."""

    def __init__(self, services: KnownServices) -> None:
        self._services = services
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look again: there may be something."""
        self._woken.set()

    def offered(self, service: str) -> None:
        """Note that a service is offered that was not before."""

    async def _wait(self) -> bool:
        """Wait until woken; ``False`` if the client was closed, an error if it ended otherwise."""
        over = self._services.failover.over
        if isinstance(over, ClosedError):
            return False
        if over is not None:
            raise over
        self._woken.clear()
        await self._woken.wait()
        return True


class KnownServices:
    """The services that the hub offers, and the copies that this client keeps of some."""

    def __init__(
        self,
        hosts: Sequence[Address],
        identity: Identity | None,
        random: Random,
        tls: RenewedContext | None = None,
    ) -> None:
        self._tls = tls
        self.failover: Failover[SppConnection] = Failover(hosts, random, self._dial, on_end=self._ended)
        self.iterations: WeakSet[Waiter] = WeakSet()
        """Iterations over what is offered."""
        self._identity = identity
        self._views: set[Waiter] = set()
        self._copies: dict[str, ObjectCopy] = {}
        self._known: dict[str, None] = {}
        self._connection: SppConnection | None = None
        """The connection being listened to, even before it has proven useful."""
        # The rest holds for this connection only.
        self._offered: set[str] = set()
        self._subscribed: set[str] = set()
        self._unsubscribed: set[str] = set()

    def offered(self) -> tuple[str, ...]:
        """The ids that are offered, in the order of their creation."""
        return tuple(service for service in self._known if service in self._offered)

    async def close(self) -> None:
        """Unsubscribe everything, and disconnect."""
        self._take_leave()
        await self.failover.close()

    async def publish(self, frame: ClientFrame) -> None:
        """Send on this connection or the next, and wait until there is room for more."""
        connection = await self.failover.connection()
        connection.send(frame)
        await connection.room()

    def join(self, view: Waiter, service: str, kind: Kind | None) -> CopyReader:
        """Follow a service."""
        self.failover.check()
        copy = self._copies.get(service)
        if copy is None:
            copy = self._copies[service] = ObjectCopy(service, kind)
        elif kind not in (None, copy.wanted_kind):
            raise UsageError(f"{service!r} is subscribed already, and not as {kind!r}")
        reader = CopyReader(copy, view.wake)
        self._views.add(view)
        if service in self._unsubscribed:
            if self._take_leave():
                self.failover.renew()
        elif service in self._offered and service not in self._subscribed:
            self._subscribe(copy)
        return reader

    def leave(self, view: Waiter, reader: CopyReader) -> None:
        """Stop following a service; when its last reader leaves, it is unsubscribed."""
        copy = reader.copy
        reader.close()
        self._views.discard(view)
        if copy.readers:
            return
        del self._copies[copy.id]
        if copy.id in self._subscribed:
            self._subscribed.discard(copy.id)
            self._unsubscribed.add(copy.id)
            self._send(Unsubscribe(copy.id))

    async def _dial(self, address: Address) -> SppConnection:
        connection = self._connection = SppConnection(address, self)
        try:
            await connection.open(self._tls)
            if self._identity is not None:
                await connection.authenticate(self._identity)
        except BaseException:
            connection.abort()
            self._forget()
            raise
        return connection

    def _ended(self) -> None:
        self._forget()
        for waiting in (*self.iterations, *self._views):
            waiting.wake()

    # For the connection

    def received(self, connection: SppConnection, frame: ServerFrame) -> None:
        """Act on a packet."""
        if connection is not self._connection:
            return
        match frame:
            case Info(service, message):
                # "They should be ignored by the client": services that nobody here has subscribed to.
                if service in self._subscribed:
                    self._copies[service].inform(message)
            case Offer(service):
                self._take_offer(service)
            case Removed(service):
                self._offered.discard(service)
                self._known.pop(service, None)
                if service in self._copies:
                    self._copies[service].removed = True

    def lost(self, connection: SppConnection, reason: str) -> None:
        """Replace a connection that has ended by itself."""
        if connection is self._connection:
            self._forget()
            self.failover.lost(connection, reason)

    def _take_leave(self) -> bool:
        """Stop listening to the connection, which ends with an Unsubscribe per service; ``False`` if there is none."""
        connection = self.failover.current
        if connection is None:
            return False
        connection.farewell = tuple(Unsubscribe(service) for service in self._subscribed)
        self._forget()
        return True

    def _forget(self) -> None:
        """Forget the connection, and with it what the hub knew of this client."""
        self._connection = None
        self._offered.clear()
        self._subscribed.clear()
        self._unsubscribed.clear()

    def _take_offer(self, service: str) -> None:
        self._offered.add(service)
        if service not in self._known:
            self._known[service] = None
            for iteration in self.iterations:
                iteration.offered(service)
        copy = self._copies.get(service)
        if copy is None:
            return
        copy.removed = False
        if service in self._subscribed:
            # "Old subscribers move to the new object and get its snapshot", without asking for it.
            copy.expect_whole()
        else:
            self._subscribe(copy)

    def _subscribe(self, copy: ObjectCopy) -> None:
        self._subscribed.add(copy.id)
        copy.expect_whole()
        self._send(Subscribe(copy.id))

    def _send(self, frame: ClientFrame) -> None:
        """Send at once, or never: bytes meant for this connection mean nothing on the next."""
        if self._connection is not None:
            self._connection.send(frame)
