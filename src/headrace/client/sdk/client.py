"""The client of content routing: subscribe by content, and receive just the messages that match.

    async with headrace.connect("sdk://") as client:
        await client.subscribe(where(city="Praha", x=between(0, 10)))
        async for message in client:
            print(message.seq, message.payload)

A client may have many subscriptions, each with a name: ``subscribe("near", where(…))``; then ``message.subs`` says
which of them a message satisfies.

Strategy: a :class:`~headrace.client.reconnect.Failover` keeps the way to the hub open. Each connection says who this
is, after which message to continue, and what is subscribed; from then on pushes come. They wait here for the consumer,
up to a bound; past it nothing is read, so that they wait in the hub. A connection that is lost while the buffer is full
is replaced when there is room again.

Invariants:

- Numbers grow: a message that is not above the last number is a repeat, and dropped. If nothing but repeats comes, the
  hub serves another sequence, and the client ends.
- Received messages are never requested again: a new connection continues after them, even before they are taken.
- A task that is cancelled while it waits here has taken nothing: no message is lost with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final, Self, TypeAlias, Unpack

from headrace.client.base import Client, Start, parse_url, starting_number
from headrace.client.conditions import AnyConditions, Condition, alternatives_of, where
from headrace.client.identity import Identity
from headrace.client.reconnect import Failover
from headrace.client.sdk.connection import Pulse, SdkConnection, subscribe_command
from headrace.client.staleness import Staleness
from headrace.client.stats import SdkStats
from headrace.client.tls import RenewedContext, TlsOptions, client_tls
from headrace.config import Address
from headrace.errors import (
    ClosedError,
    RefusedError,
    UnexpectedError,
    UnreachableError,
    UsageError,
    WireError,
)
from headrace.message import MAX_SEQUENCE, Message
from headrace.wire.sdk.commands import UNPLACED, Push, serialize
from headrace.wire.sdk.predicate import Alternatives

_MESSAGE_COST: Final = 256
"""Approximate bytes that a waiting message takes besides its payload."""

_BATCH: Final = 512
"""Messages that are taken from those that wait at a time."""

logger = logging.getLogger("headrace.client")

Wanted: TypeAlias = Mapping[str, Condition] | AnyConditions
"""Conditions, or alternatives of them."""


class SdkOptions(TlsOptions, total=False):
    """The options of an :class:`SdkClient`."""

    client_id: str | None
    key: str | None
    from_seq: Start | None
    timeout: float
    heartbeat: float
    heartbeat_timeout: float
    buffer_bytes: int
    random: Random | None


class SdkClient(Client):
    """A client of content routing; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def near(hub):
    ...     async with hub.connect("sdk") as client, hub.connect("publisher") as publisher:
    ...         await client.subscribe(headrace.where(x=headrace.between(0, 10)))
    ...         await publisher.publish(b"far", attributes={"x": 11})
    ...         await publisher.publish(b"near", attributes={"x": 5})
    ...         async for message in client:
    ...             return message.payload
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(near(hub))
    b'near'

    ``client_id``, ``key``
        Who this is: 24 hex digits, and what proves it where the hub's ``auth.required`` is on. Without an id the client
        makes one up, and keeps it for as long as it lives. One id is one connection: of two the hub keeps the newer.
    ``from_seq``
        The first message wanted of those subscribed: where an earlier client's :attr:`cursor` was, or ``"earliest"``,
        as far back as the hub looks (``matching.replay``). Without it, those published from now on.
    ``timeout``
        Seconds that the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``heartbeat``, ``heartbeat_timeout``
        Seconds between heartbeats, and how many the hub has to answer one before the connection is replaced.
    ``buffer_bytes``
        How much may wait for a slow consumer; past it, it waits in the hub.
    ``ca``, ``cert``, ``cert_key``, ``pin``
        Files for TLS, where the scheme says so: :class:`~headrace.client.tls.TlsOptions`.
    ``random``
        The source of randomness for delays.
    """

    DOORS: ClassVar = {"sdk": "sdk", "sdk+tls": "sdk"}

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        client_id: str | None = None,
        key: str | None = None,
        from_seq: Start | None = None,
        timeout: float = 10.0,
        heartbeat: float = 15.0,
        heartbeat_timeout: float = 15.0,
        buffer_bytes: int = 8 << 20,
        random: Random | None = None,
        tls: RenewedContext | None = None,
    ) -> None:
        self._tls = tls
        first = starting_number(from_seq, MAX_SEQUENCE + 1)
        for name, seconds in (("heartbeat", heartbeat), ("heartbeat_timeout", heartbeat_timeout)):
            if not seconds > 0:
                raise UsageError(f"{name} {seconds}: expected more than 0 seconds")
        self.stats = SdkStats()
        """Counts of what was received."""
        self._identity = Identity(client_id, key)
        self._pulse = Pulse(heartbeat, heartbeat_timeout)
        self._waiting = _Buffer(buffer_bytes)
        self._failover: Failover[SdkConnection] = Failover(
            hosts, random or Random(), self._dial, wanted=self._waiting.room, on_end=self._waiting.wake
        )
        super().__init__(self._failover, timeout)
        self._subscribing = asyncio.Lock()
        self._wanted: dict[str, Alternatives] = {}
        """The subscriptions of each connection, by name; an empty one withdraws."""
        self._last = None if first is None else max(0, first - 1)
        self._stale = Staleness()
        self._taking = asyncio.Lock()
        self._batch: Iterator[Message] = iter(())

    @classmethod
    def at(cls, url: str = "sdk://", hosts: str | None = None, **options: Unpack[SdkOptions]) -> Self:
        """Make the client of a hub by its URL; see :func:`headrace.connect`."""
        scheme, addresses = parse_url(url, hosts, cls.DOORS)
        given: Any = options
        return cls(addresses, tls=client_tls(scheme, given), **given)

    async def close(self) -> None:
        """Disconnect; it may be called again.

        Messages received and not yet taken are dropped, and iterations end. The hub keeps the subscription of a given
        ``client_id`` for some time, and :meth:`unsubscribe` withdraws it; that of a made-up id is of no use to anybody,
        and is withdrawn.
        """
        await super().close()

    @property
    def client_id(self) -> str:
        """Who this is to the hub, in hex digits."""
        return self._identity.client_id.hex()

    @property
    def cursor(self) -> int | None:
        """The number after the last message received: another client continues here with this ``from_seq``."""
        return None if self._last is None else self._last + 1

    async def subscribe(self, first: str | Wanted, second: Wanted | None = None, /) -> None:
        """Receive messages that satisfy these conditions (see :func:`headrace.where`), instead of the earlier ones.

        ``subscribe("name", conditions)`` adds a subscription beside others, or replaces the one of that name. What
        satisfies several comes once, and its ``subs`` are their names.

        Returns once the hub has accepted it; :class:`~headrace.errors.RefusedError` if it has not. When a full buffer
        keeps the answer from being read, it returns at once, and the iteration raises a refusal. If it is cancelled
        while it waits, the subscription may have changed or not.
        """
        name, conditions = (first, second) if isinstance(first, str) else ("", first)
        if conditions is None or (name == "" and isinstance(first, str)):
            raise UsageError("a subscription is conditions, or a name that is not empty and conditions")
        wanted = alternatives_of(conditions)
        if not wanted:
            raise UsageError(
                "a subscription names an attribute at least; `unsubscribe()` ends one,"
                " and the backbone (fyrehose://) delivers everything"
            )
        await self._subscribe(name, wanted)

    async def unsubscribe(self, name: str = "", /) -> None:
        """Withdraw the subscription of a name, or the unnamed one. Messages that are on their way may still come."""
        await self._subscribe(name, ())

    @property
    def subscriptions(self) -> Mapping[str, AnyConditions]:
        """This client's subscriptions, by name; the unnamed one's name is empty."""
        return {name: AnyConditions(map(where, wanted)) for name, wanted in self._wanted.items() if wanted}

    def __aiter__(self) -> AsyncIterator[Message]:
        self._failover.check()
        return self

    async def __anext__(self) -> Message:
        message = next(self._batch, None)
        if message is None:
            async with self._taking:
                # While this task waited for its turn, another may have begun a batch.
                while (message := next(self._batch, None)) is None:
                    self._batch = iter(await self._take())
        return message

    def at_hand(self) -> Message | None:
        """The next message of the batch at hand, without waiting; ``None`` if there is none."""
        return next(self._batch, None)

    async def _dial(self, address: Address) -> SdkConnection:
        connection = SdkConnection(
            address,
            self._pulse,
            on_push=self._pushed,
            on_refusal=self._failover.end,
            on_lost=self._failover.lost,
            withdraws=self._identity.made_up,
        )
        try:
            await connection.open(self._tls)
            await connection.authenticate(self._identity.claim(self._last))
            if self._wanted:
                await connection.subscribe(self._wanted)
        except BaseException:
            connection.abort()
            raise
        connection.read(not self._waiting.full)
        return connection

    def _pushed(self, connection: SdkConnection, push: Push) -> None:
        if push.seq != UNPLACED:
            if self._last is not None and push.seq <= self._last:
                self.stats.repeated += 1
                logger.debug("dropped %d, which was received already", push.seq)
                if self._stale.old(asyncio.get_running_loop().time()):
                    self._failover.end(_other_sequence(push.seq, self._last))
                return
            self._last = push.seq
            self._stale.progress()
        self.stats.received += 1
        self.stats.received_bytes += len(push.payload)
        self._waiting.put(Message(push.seq, push.payload, subs=push.subs, events=push.events))
        if self._waiting.full:
            connection.read(False)

    async def _subscribe(self, name: str, wanted: Alternatives) -> None:
        self._failover.check()
        try:
            serialize(subscribe_command(name, wanted))
        except WireError as error:
            raise UsageError(f"a subscription that cannot be sent: {error}") from None
        async with self._subscribing:
            before = self._wanted.get(name)
            self._wanted[name] = wanted
            while True:
                connection = await self._failover.connection()
                if connection.subscribed.get(name) is wanted:
                    break
                try:
                    await connection.subscribe({name: wanted})
                except RefusedError:
                    self._forget(name, before)
                    raise
                except UnreachableError:
                    # The next connection subscribes before anybody gets it.
                    continue
                break
            if name and not wanted:
                # The hub knows: later connections need not say it again.
                self._forget(name, None)

    def _forget(self, name: str, before: Alternatives | None) -> None:
        if before is None:
            self._wanted.pop(name, None)
        else:
            self._wanted[name] = before

    async def _take(self) -> Sequence[Message]:
        # Yield once per batch, and before anything is taken: a task that is cancelled here loses nothing.
        await asyncio.sleep(0)
        while True:
            over = self._failover.over
            if isinstance(over, ClosedError):
                raise StopAsyncIteration
            was_full = self._waiting.full
            batch = self._waiting.take(_BATCH)
            if was_full and not self._waiting.full and self._failover.current is not None:
                self._failover.current.read(True)
            if batch:
                return batch
            self._failover.check()
            await self._waiting.arrival()


def _other_sequence(seq: int, last: int) -> UnexpectedError:
    reason = f"the last was {last}, and only older ones come: this hub serves another sequence"
    return UnexpectedError("sdk", "seq", seq, reason)


class _Buffer:
    """Messages that wait for their consumer, and the memory that they and its current batch take."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._messages: deque[Message] = deque()
        self._size = 0
        self._at_hand = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def full(self) -> bool:
        """Whether no more should come."""
        return self._size > self._most

    def put(self, message: Message) -> None:
        """Add one."""
        self._messages.append(message)
        self._size += len(message.payload) + _MESSAGE_COST
        self._arrived.set()
        if self.full:
            self._room.clear()

    def take(self, most: int) -> list[Message]:
        """Take some, once those that were taken before are used up."""
        self._size -= self._at_hand
        batch = [self._messages.popleft() for _ in range(min(most, len(self._messages)))]
        self._at_hand = sum(len(message.payload) + _MESSAGE_COST for message in batch)
        if not self.full:
            self._room.set()
        return batch

    async def arrival(self) -> None:
        """Wait until there may be something."""
        self._arrived.clear()
        await self._arrived.wait()

    async def room(self) -> None:
        """Wait until it is not full."""
        await self._room.wait()

    def wake(self) -> None:
        """Wake those who wait for a message, so that they notice why none comes."""
        self._arrived.set()
