"""The client of services: what is offered, live objects, and changes to them.

    async with headrace.connect("spp://") as client:
        async for offer in client.offers():
            print(offer.service)
        async with client.subscribe("fleet/42") as service:
            print(service.value)
            async for change in service:
                print(change, service.value)
        await client.publish({"speed": 61}, topic="fleet/42")

Strategy: this class is only the user's side. :class:`~headrace.client.spp.services.KnownServices` has what is known
of the hub's services, and keeps the way to it open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from headrace.client.base import AsyncContext, Client, Courtesy, Payload, parse_url
from headrace.client.identity import Identity, check_credentials
from headrace.client.spp.object_copy import NOTHING, CopyReader, Kind
from headrace.client.spp.services import KnownServices, Waiter
from headrace.client.tls import RenewedContext, TlsOptions, client_tls
from headrace.config import Address
from headrace.errors import ClosedError, UsageError
from headrace.wire.spp import Offer, Publish, Subscribe, serialize

_TURN_BYTES: Final = 64 << 10
_PUBLISH_COST: Final = 1 << 10
"""A task that publishes this many bytes without ever having to wait yields to others."""

Change: TypeAlias = Payload | str | Mapping[str, object]
"""A change to a service: a JSON merge patch as a mapping, text, or any bytes."""

Json: TypeAlias = dict[str, Any]
V = TypeVar("V")
"""A service's object, or a change to it: a ``dict`` for a ``json`` service, ``bytes`` for a ``last`` one."""


class SppOptions(TlsOptions, total=False):
    """The options of an :class:`SppClient`."""

    client_id: str | None
    key: str | None
    timeout: float
    random: Random | None


class SppClient(Client):
    """A client of services; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def speed(url):
    ...     async with headrace.connect(url) as client:
    ...         await client.publish({"speed": 61}, topic="fleet/42")
    ...         async with client.subscribe("fleet/42") as service:
    ...             return service.value
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(speed(hub.url("spp")))
    {'speed': 61}

    ``client_id``, ``key``
        Who this is, where the hub's ``auth.required`` is on.
    ``timeout``
        Seconds that the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``ca``, ``cert``, ``cert_key``, ``pin``
        Files for TLS, where the scheme says so: :class:`~headrace.client.tls.TlsOptions`.
    ``random``
        The source of randomness for delays.
    """

    DOORS: ClassVar = {"spp": "spp", "spp+tls": "spp"}

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        client_id: str | None = None,
        key: str | None = None,
        timeout: float = 10.0,
        random: Random | None = None,
        tls: RenewedContext | None = None,
    ) -> None:
        check_credentials(client_id, key)
        identity = None if client_id is None else Identity(client_id, key)
        self._services = KnownServices(hosts, identity, random or Random(), tls)
        super().__init__(self._services.failover, timeout)
        self._courtesy = Courtesy(_TURN_BYTES, _PUBLISH_COST)

    @classmethod
    def at(cls, url: str = "spp://", hosts: str | None = None, **options: Unpack[SppOptions]) -> Self:
        """Make the client of a hub by its URL; see :func:`headrace.connect`."""
        scheme, addresses = parse_url(url, hosts, cls.DOORS)
        given: Any = options
        return cls(addresses, tls=client_tls(scheme, given), **given)

    async def close(self) -> None:
        """Close the connection once the hub has what was published; it may be called again.

        Waiting iterations end.
        """
        await self._services.close()

    @property
    def offered(self) -> tuple[str, ...]:
        """The ids that are offered now, as far as the hub has announced them."""
        return self._services.offered()

    def offers(self) -> Offers:
        """Iterate over every service that is offered, in the order of creation, then each new one as it appears."""
        self._kept.check()
        return Offers(self._services)

    @overload
    def subscribe(self, service: str, kind: Literal["json"]) -> LiveService[Json]: ...

    @overload
    def subscribe(self, service: str, kind: Literal["last"]) -> LiveService[bytes]: ...

    @overload
    def subscribe(self, service: str, kind: None = None) -> LiveService[Json | bytes]: ...

    def subscribe(
        self, service: str, kind: Kind | None = None
    ) -> LiveService[Json] | LiveService[bytes] | LiveService[Json | bytes]:
        """Return a service's live object; ``async with`` subscribes, and waits until the service is offered.

        ``kind`` says what the object is if that is not obvious from it: ``"last"`` for JSON text that each change
        replaces, without merging.
        """
        self._kept.check()
        if kind not in (None, "json", "last"):
            raise UsageError(f"kind {kind!r}: expected 'json' or 'last'")
        serialize(Subscribe(service))  # An id that cannot be sent is our caller's mistake: raise it here.
        return LiveService(self._services, service, kind)

    async def publish(self, payload: Change, *, topic: str) -> None:
        """Change the service ``topic``, or create it: ``json`` if the first change is a JSON object, else ``last``.

        A mapping is sent as JSON, text as UTF-8, bytes as they are. Waits while there is no connection or no room.
        The protocol does not acknowledge a change: one that is on its way when a connection breaks may be lost.
        """
        frame = Publish(topic, _bytes(payload))
        if not topic:
            raise UsageError("a service's id is not empty")
        serialize(frame)
        await self._services.publish(frame)
        await self._courtesy.sent(len(frame.change))


class Offers(Waiter, AsyncIterator[Offer]):
    """An iteration over the services that are offered; :meth:`SppClient.offers` makes one.

    >>> import asyncio, headrace, headrace.testing
    >>> async def first(url):
    ...     async with headrace.connect(url) as client:
    ...         await client.publish({"speed": 61}, topic="fleet/42")
    ...         return await anext(client.offers())
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(first(hub.url("spp"))).service
    'fleet/42'
    """

    def __init__(self, services: KnownServices) -> None:
        super().__init__(services)
        self._offers = deque(services.offered())
        services.iterations.add(self)

    def offered(self, service: str) -> None:
        """Note another service."""
        self._offers.append(service)
        self.wake()

    async def __anext__(self) -> Offer:
        while not self._offers:
            if not await self._wait():
                raise StopAsyncIteration
        return Offer(self._offers.popleft())


class LiveService(Waiter, AsyncContext, AsyncIterator[V], Generic[V]):
    """A service's object, kept current; :meth:`SppClient.subscribe` makes one.

    >>> import asyncio, headrace, headrace.testing
    >>> async def watch(url):
    ...     async with headrace.connect(url) as client:
    ...         await client.publish({"speed": 61}, topic="fleet/42")
    ...         async with client.subscribe("fleet/42") as service:
    ...             await client.publish({"gear": 2}, topic="fleet/42")
    ...             return await anext(service), service.value
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(watch(hub.url("spp")))
    ({'gear': 2}, {'speed': 61, 'gear': 2})

    Iterating gives each change: for a ``json`` service the merge patch, for a ``last`` service the new value. ``value``
    may be ahead of it. A reader that is slower than the changes gets one change in place of those that wait. A lost
    connection shows as one change, if anything has changed since.
    """

    def __init__(self, services: KnownServices, service: str, kind: Kind | None) -> None:
        super().__init__(services)
        self.id = service
        self._wanted_kind = kind
        self._reader: CopyReader | None = None
        self._closed = False

    async def open(self) -> Self:
        """Subscribe and wait for the object; ``async with`` does it."""
        if self._closed:
            raise ClosedError(f"the subscription of {self.id!r} is closed: make another one")
        if self._reader is None:
            self._reader = self._services.join(self, self.id, self._wanted_kind)
            try:
                while self.value is None:
                    if not await self._wait():
                        raise ClosedError("the client was closed before the service was offered")
            except BaseException:
                await self.close()
                raise
        return self

    async def close(self) -> None:
        """Unsubscribe; it may be called again. Waiting iterations end."""
        self._closed = True
        reader, self._reader = self._reader, None
        if reader is not None:
            self._services.leave(self, reader)
            self.wake()

    @property
    def value(self) -> V | None:
        """The object: a ``dict`` (not to be changed) or ``bytes``; ``None`` before it is known."""
        if self._reader is None or self._reader.copy.value is NOTHING:
            return None
        return cast("V", self._reader.copy.value)

    @property
    def kind(self) -> Kind | None:
        """The kind of the object: ``"json"`` or ``"last"``; ``None`` before it is known."""
        return None if self._reader is None else self._reader.copy.kind

    @property
    def removed(self) -> bool:
        """Whether the hub no longer offers the service; changes may still come."""
        return self._reader is not None and self._reader.copy.removed

    @property
    def conflated(self) -> int:
        """The number of changes merged with others because too many waited."""
        return 0 if self._reader is None else self._reader.conflated

    async def __anext__(self) -> V:
        if not self._closed:
            await self.open()
        while self._reader is not None:
            change = self._reader.take()
            if change is not NOTHING:
                return cast("V", change)
            if not await self._wait():
                break
        raise StopAsyncIteration


def _bytes(change: Change) -> bytes:
    match change:
        case bytes() | bytearray() | memoryview():
            return bytes(change)
        case str() | Mapping():
            try:
                return change.encode() if isinstance(change, str) else msgspec.json.encode(dict(change))
            except (TypeError, ValueError, RecursionError) as error:
                raise UsageError(f"a change that cannot be sent: {error}") from None
    raise UsageError(f"a change is bytes, text or a mapping, not {type(change).__name__}")
