"""The client of services: what is offered, live objects, and changes to them.

    async with headrace.connect("spp://127.0.0.1:3002") as spp:
        async for offer in spp.offers():
            print(offer.service)
        async with spp.subscribe("fleet/42") as service:
            print(service.value)
            async for change in service:
                print(change, service.value)
        await spp.publish("fleet/42", {"speed": 61})

Strategy: what is known of a service is a :class:`~headrace.client.spp.object_copy.Replica`, shared by all who
subscribe the id here, so there is one subscription on the wire. A Subscribe is sent whenever an id that somebody
wants is offered: at once, later, or on the next connection. A :class:`~headrace.client.spp.connection.Connection`
keeps the way to the hub open; on a new one replicas get the whole object afresh, and whoever reads them sees what has
changed meanwhile, if anything.

An id is subscribed once on a connection. A change that was on its way when the id was unsubscribed cannot be told from
the whole object that answers a second Subscribe, so for that there is a new connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypedDict
from weakref import WeakSet

import msgspec

from headrace.client.identity import Identity
from headrace.client.spp.connection import Connection
from headrace.client.spp.object_copy import NOTHING, Kind, Reader, Replica
from headrace.config import Address
from headrace.errors import ClosedError, UsageError
from headrace.wire.spp import (
    PORT,
    Info,
    Offer,
    Publish,
    Removed,
    ServerFrame,
    Subscribe,
    Unsubscribe,
    serialize,
)

DEFAULT_PORT: Final = PORT

_TURN_BYTES: Final = 64 << 10
_PUBLISH_COST: Final = 1 << 10
"""A task that publishes so much without ever having to wait lets others have a turn."""

Value = bytes | bytearray | memoryview | str | Mapping[str, Any]


class Options(TypedDict, total=False):
    """What :class:`Spp` takes besides its hosts."""

    client_id: str | None
    key: str | None
    timeout: float
    random: Random | None


class Spp:
    """A client of services; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def speed(url):
    ...     async with headrace.connect(url) as spp:
    ...         await spp.publish("fleet/42", {"speed": 61})
    ...         async with spp.subscribe("fleet/42") as service:
    ...             return service.value
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(speed(hub.url("spp")))
    {'speed': 61}

    ``client_id``, ``key``
        Who this is, where the hub's ``auth.required`` is on.
    ``timeout``
        How many seconds the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``random``
        Where the randomness of delays comes from.
    """

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        client_id: str | None = None,
        key: str | None = None,
        timeout: float = 10.0,
        random: Random | None = None,
    ) -> None:
        if (client_id is None) != (key is None):
            raise UsageError("client_id and key belong together")
        identity = None if client_id is None else Identity(client_id, key)
        self._services = _Services(hosts, identity, random or Random())
        self._timeout = timeout
        self._unyielding = 0

    async def open(self) -> Self:
        """Connect; ``async with`` does it."""
        await self._services.connection.open(self._timeout)
        return self

    async def close(self) -> None:
        """End the connection, once the hub has what was published; it may be called again.

        Iterations that wait come to their end.
        """
        await self._services.connection.close(*self._services.farewell())

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; a lost one is replaced by itself."""
        return self._services.connection.up

    @property
    def offered(self) -> tuple[str, ...]:
        """The ids that are offered now, as far as the hub has told."""
        return self._services.offered()

    def offers(self) -> Offers:
        """Every service that is offered, in the order of their creation, and then each new one as it appears."""
        self._services.connection.check()
        return Offers(self._services)

    def subscribe(self, service: str, kind: Kind | None = None) -> LiveService:
        """A service's live object, to be opened with ``async with``, which waits until the service is offered.

        ``kind`` says what the object is where that cannot be seen from it: ``"last"`` for JSON text that is replaced
        with each change, not merged.
        """
        self._services.connection.check()
        if kind not in (None, "json", "last"):
            raise UsageError(f"kind {kind!r}: expected 'json' or 'last'")
        serialize(
            Subscribe(service)
        )  # An id that cannot be is our caller's mistake: here, not in the background.
        return LiveService(self._services, service, kind)

    async def publish(self, service: str, change: Value) -> None:
        """Change a service, or create it: ``json`` if the first change is a JSON object, ``last`` otherwise.

        A mapping is sent as JSON, text as UTF-8, bytes as they are. Waits while there is no connection or no room.
        The protocol does not acknowledge a change: one that is on its way when a connection breaks may be lost.
        """
        frame = Publish(service, _bytes(change))
        if not service:
            raise UsageError("a service's id is not empty")
        serialize(frame)
        await self._services.connection.publish(frame)
        self._unyielding += len(frame.change) + _PUBLISH_COST
        if self._unyielding >= _TURN_BYTES:
            self._unyielding = 0
            await asyncio.sleep(0)


class _Services:
    """What is known of the hub's services, and who wants to know."""

    def __init__(self, hosts: Sequence[Address], identity: Identity | None, random: Random) -> None:
        self.connection = Connection(hosts, identity, self, random)
        self.iterations: WeakSet[Offers] = WeakSet()
        self._views: set[LiveService] = set()
        self._replicas: dict[str, Replica] = {}
        self._known: dict[str, None] = {}
        # What is so on this connection only.
        self._offered: set[str] = set()
        self._subscribed: set[str] = set()
        self._unsubscribed: set[str] = set()

    def offered(self) -> tuple[str, ...]:
        return tuple(service for service in self._known if service in self._offered)

    def farewell(self) -> tuple[Unsubscribe, ...]:
        return tuple(Unsubscribe(service) for service in self._subscribed)

    def join(self, view: LiveService) -> tuple[Replica, Reader]:
        self.connection.check()
        replica = self._replicas.get(view.id)
        if replica is None:
            replica = self._replicas[view.id] = Replica(view.id, view.wanted_kind)
        elif view.wanted_kind not in (None, replica.wanted_kind):
            raise UsageError(f"{view.id!r} is subscribed already, and not as {view.wanted_kind!r}")
        reader = Reader(replica, view.wake)
        self._views.add(view)
        if view.id in self._unsubscribed:
            self.connection.renew(*self.farewell())
        elif view.id in self._offered and view.id not in self._subscribed:
            self._subscribe(replica)
        return replica, reader

    def leave(self, view: LiveService, replica: Replica, reader: Reader) -> None:
        reader.close()
        self._views.discard(view)
        if replica.readers:
            return
        del self._replicas[view.id]
        if view.id in self._subscribed:
            self._subscribed.discard(view.id)
            self._unsubscribed.add(view.id)
            self.connection.send(Unsubscribe(view.id))

    def received(self, frame: ServerFrame) -> None:
        match frame:
            case Info(service, message):
                # "They should be ignored by the client": what nobody here has subscribed.
                if service in self._subscribed:
                    self._replicas[service].inform(message)
            case Offer(service):
                self._take_offer(service)
            case Removed(service):
                self._offered.discard(service)
                self._known.pop(service, None)
                if service in self._replicas:
                    self._replicas[service].removed = True

    def disconnected(self) -> None:
        self._offered.clear()
        self._subscribed.clear()
        self._unsubscribed.clear()

    def ended(self) -> None:
        for waiting in (*self.iterations, *self._views):
            waiting.wake()

    def _take_offer(self, service: str) -> None:
        self._offered.add(service)
        if service not in self._known:
            self._known[service] = None
            for offers in self.iterations:
                offers.add(service)
        replica = self._replicas.get(service)
        if replica is None:
            return
        replica.removed = False
        if service in self._subscribed:
            # "Old subscribers move to the new object and get its snapshot", without asking for it.
            replica.expect_whole()
        else:
            self._subscribe(replica)

    def _subscribe(self, replica: Replica) -> None:
        self._subscribed.add(replica.id)
        replica.expect_whole()
        self.connection.send(Subscribe(replica.id))


class _Waiting:
    """Somebody who waits for something to come, or for the client to come to its end."""

    def __init__(self, services: _Services) -> None:
        self._services = services
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be something."""
        self._woken.set()

    async def _wait(self) -> bool:
        """Wait until woken; ``False`` if the client was closed, an error if it ended otherwise."""
        over = self._services.connection.over
        if isinstance(over, ClosedError):
            return False
        if over is not None:
            raise over
        self._woken.clear()
        await self._woken.wait()
        return True


class Offers(_Waiting, AsyncIterator[Offer]):
    """An iteration over what is offered; made by :meth:`Spp.offers`."""

    def __init__(self, services: _Services) -> None:
        super().__init__(services)
        self._offers = deque(services.offered())
        services.iterations.add(self)

    def add(self, service: str) -> None:
        """Another one is offered."""
        self._offers.append(service)
        self.wake()

    async def __anext__(self) -> Offer:
        while not self._offers:
            if not await self._wait():
                raise StopAsyncIteration
        return Offer(self._offers.popleft())


class LiveService(_Waiting, AsyncIterator[Any]):
    """A service's object, kept current; made by :meth:`Spp.subscribe`.

    Iterating gives each change: for a ``json`` service the merge patch, for a ``last`` service the new value. ``value``
    may be ahead of it. Who takes changes more slowly than they come gets one change in place of those that wait. A lost
    connection shows as one change, if anything has changed meanwhile.
    """

    def __init__(self, services: _Services, service: str, kind: Kind | None) -> None:
        super().__init__(services)
        self.id = service
        self.wanted_kind = kind
        self._followed: tuple[Replica, Reader] | None = None
        self._closed = False

    async def open(self) -> Self:
        """Subscribe and wait for the object; ``async with`` does it."""
        if self._closed:
            raise ClosedError(f"the subscription of {self.id!r} is closed: make another one")
        if self._followed is None:
            self._followed = self._services.join(self)
            try:
                while self.value is None:
                    if not await self._wait():
                        raise ClosedError("the client was closed before the service was offered")
            except BaseException:
                await self.close()
                raise
        return self

    async def close(self) -> None:
        """Unsubscribe; it may be called again. Iterations that wait come to their end."""
        self._closed = True
        followed, self._followed = self._followed, None
        if followed is not None:
            self._services.leave(self, *followed)
            self.wake()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def value(self) -> Any:
        """The object: a ``dict`` (not to be changed) or ``bytes``; ``None`` before it is known."""
        if self._followed is None or self._followed[0].value is NOTHING:
            return None
        return self._followed[0].value

    @property
    def kind(self) -> Kind | None:
        """What the object is: ``"json"`` or ``"last"``; ``None`` before it is known."""
        return None if self._followed is None else self._followed[0].kind

    @property
    def removed(self) -> bool:
        """Whether the hub offers the service no longer; changes may come all the same."""
        return self._followed is not None and self._followed[0].removed

    @property
    def conflated(self) -> int:
        """How many changes came as one change with others, because they waited for too long."""
        return 0 if self._followed is None else self._followed[1].conflated

    async def __anext__(self) -> Any:
        if not self._closed:
            await self.open()
        while self._followed is not None:
            change = self._followed[1].take()
            if change is not NOTHING:
                return change
            if not await self._wait():
                break
        raise StopAsyncIteration


def _bytes(change: Value) -> bytes:
    match change:
        case bytes() | bytearray() | memoryview():
            return bytes(change)
        case str() | Mapping():
            try:
                return change.encode() if isinstance(change, str) else msgspec.json.encode(dict(change))
            except (TypeError, ValueError, RecursionError) as error:
                raise UsageError(f"a change that cannot be sent: {error}") from None
    raise UsageError(f"a change is bytes, text or a mapping, not {type(change).__name__}")
