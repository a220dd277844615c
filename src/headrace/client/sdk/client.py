"""The client of content routing: say what messages must be about, and receive just those.

    async with headrace.connect("sdk://127.0.0.1:7253") as sdk:
        await sdk.subscribe(where(city="Praha", x=between(0, 10)))
        async for message in sdk:
            print(message.seq, message.payload)

Strategy: a :class:`~headrace.client.reconnect.Failover` keeps the way to the hub open. Each connection says who this
is, behind which message to go on, and what is subscribed; from then on pushes come. They wait here for whoever
iterates, up to a bound; past it nothing is read, so that they wait in the hub. A connection that is lost meanwhile is
replaced when there is room again.

Invariants:

- Numbers grow: what is not above the last number is a repeat, and dropped. If nothing but repeats comes, the hub serves
  another sequence, and the client ends.
- What was received is never asked for again: a new connection goes on behind it, also if nobody has taken it yet.
- A task that is cancelled while it waits here has taken nothing: no message is lost with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Self, TypedDict

from headrace.client.conditions import Condition, where
from headrace.client.identity import Identity
from headrace.client.reconnect import Failover
from headrace.client.sdk.tcp import Predicates, Pulse, SdkStream
from headrace.client.staleness import Staleness
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
from headrace.protocols import PORTS
from headrace.wire.sdk.commands import UNPLACED, Push, Subscribe, serialize

DEFAULT_PORT: Final = PORTS["sdk"]

_MESSAGE_COST: Final = 256
"""What a waiting message takes beside its payload, about."""

_BATCH: Final = 512
"""Messages that are taken from those that wait at a time."""

logger = logging.getLogger("headrace.client")


class Options(TypedDict, total=False):
    """What :class:`Sdk` takes besides its hosts."""

    client_id: str | None
    key: str | None
    after: int | None
    timeout: float
    heartbeat: float
    patience: float
    buffer_bytes: int
    random: Random | None


@dataclass(slots=True)
class SdkStats:
    """Counts since the client was made; they only grow."""

    received: int = 0
    """Messages for the consumer."""
    received_bytes: int = 0
    repeated: int = 0
    """Messages that came again, and were dropped."""


class Sdk:
    """A client of content routing; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def near(hub):
    ...     async with headrace.connect(hub.url("sdk")) as sdk, headrace.connect(hub.url("publisher")) as publisher:
    ...         await sdk.subscribe(headrace.where(x=headrace.between(0, 10)))
    ...         await publisher.publish({"x": 11}, b"far")
    ...         await publisher.publish({"x": 5}, b"near")
    ...         async for message in sdk:
    ...             return message.payload
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(near(hub))
    b'near'

    ``client_id``, ``key``
        Who this is: 24 hex digits, and what proves it where the hub's ``auth.required`` is on. Without an id the client
        makes one up, and keeps it for as long as it lives. One id is one connection: of two the hub keeps the newer.
    ``after``
        The number of the last message that was dealt with before: what is subscribed comes from behind it.
    ``timeout``
        How many seconds the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``heartbeat``, ``patience``
        How many seconds lie between heartbeats, and how many the hub may take to answer one before the connection is
        replaced.
    ``buffer_bytes``
        How much may wait for a slow consumer; past it, it waits in the hub.
    ``random``
        Where the randomness of delays comes from.
    """

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        client_id: str | None = None,
        key: str | None = None,
        after: int | None = None,
        timeout: float = 10.0,
        heartbeat: float = 15.0,
        patience: float = 15.0,
        buffer_bytes: int = 8 << 20,
        random: Random | None = None,
    ) -> None:
        if after is not None and not 0 <= after <= MAX_SEQUENCE:
            raise UsageError(f"after {after}: expected 0 to {MAX_SEQUENCE}")
        for name, seconds in (("heartbeat", heartbeat), ("patience", patience)):
            if not seconds > 0:
                raise UsageError(f"{name} {seconds}: expected more than 0 seconds")
        self.stats = SdkStats()
        """Counts of what was received."""
        self._identity = Identity(client_id, key)
        self._pulse = Pulse(heartbeat, patience)
        self._timeout = timeout
        self._failover: Failover[SdkStream] = Failover(hosts, self, random or Random())
        self._subscribing = asyncio.Lock()
        self._predicates: Predicates | None = None
        self._last = after
        self._stale = Staleness()
        self._waiting = _Waiting(buffer_bytes)
        self._taking = asyncio.Lock()
        self._batch: Iterator[Message] = iter(())

    async def open(self) -> Self:
        """Connect and say who this is; ``async with`` does it."""
        await self._failover.open(self._timeout)
        return self

    async def close(self) -> None:
        """End the connection; it may be called again.

        What was received and not yet taken is dropped, and iterations come to their end. The hub keeps the subscription
        of a given ``client_id`` for some time, and :meth:`unsubscribe` withdraws it; that of a made-up id is of no use
        to anybody, and is withdrawn.
        """
        await self._failover.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """Who this is to the hub, in hex digits."""
        return self._identity.client_id.hex()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; a lost one is replaced by itself."""
        return self._failover.current is not None

    @property
    def connects(self) -> int:
        """How many connections were made, the first one included."""
        return self._failover.connects

    @property
    def last(self) -> int | None:
        """The number of the last message received: what :class:`Sdk` takes as ``after`` to go on from here."""
        return self._last

    async def subscribe(self, conditions: Mapping[str, Condition]) -> None:
        """Receive what satisfies these conditions (see :func:`headrace.where`), instead of what was asked before.

        Returns when the hub has taken it, :class:`~headrace.errors.RefusedError` if it has not. When a full buffer
        keeps the answer from being read, it returns at once, and a refusal is raised by the iteration. Cancelled while
        it waits, the subscription may have changed or not.
        """
        predicates = where(conditions)
        if not predicates:
            raise UsageError(
                "a subscription names an attribute at least; `unsubscribe()` ends one,"
                " and the backbone (fyrehose://) delivers everything"
            )
        await self._subscribe(predicates)

    async def unsubscribe(self) -> None:
        """Withdraw the subscription. Messages that are on their way may still come."""
        await self._subscribe({})

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
        """The next message if nothing has to be waited for, else ``None``: the rest of a batch that has been begun."""
        return next(self._batch, None)

    async def dial(self, address: Address) -> SdkStream:
        """Connect, and resume; for the failover."""
        stream = SdkStream(address, self, self._pulse, withdraws=self._identity.made_up)
        try:
            await stream.open()
            await stream.authenticate(self._identity.claim(self._last))
            if self._predicates is not None:
                await stream.subscribe(self._predicates)
        except BaseException:
            stream.abort()
            raise
        stream.read(not self._waiting.full)
        return stream

    async def wanted(self) -> None:
        """Wait for room; for the failover."""
        await self._waiting.room()

    def ended(self) -> None:
        """Wake who waits; for the failover."""
        self._waiting.wake()

    def pushed(self, stream: SdkStream, push: Push) -> None:
        """Keep a message; for the stream."""
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
        self._waiting.put(Message(push.seq, push.payload))
        if self._waiting.full:
            stream.read(False)

    def refused(self, _stream: SdkStream, error: RefusedError) -> None:
        """End with an error that nobody waited for; for the stream."""
        self._failover.end(error)

    def lost(self, stream: SdkStream, reason: str) -> None:
        """Have it replaced; for the stream."""
        self._failover.lost(stream, reason)

    async def _subscribe(self, predicates: Predicates) -> None:
        self._failover.check()
        try:
            serialize(Subscribe(predicates))
        except WireError as error:
            raise UsageError(f"a subscription that cannot be sent: {error}") from None
        async with self._subscribing:
            before, self._predicates = self._predicates, predicates
            while True:
                stream = await self._failover.stream()
                if stream.subscribed is predicates:
                    return
                try:
                    await stream.subscribe(predicates)
                except RefusedError:
                    self._predicates = before
                    raise
                except UnreachableError:
                    # The next connection subscribes before anybody gets it.
                    continue
                return

    async def _take(self) -> Sequence[Message]:
        # With each batch whatever else waits gets its turn, and before anything is taken, so that a task that is
        # cancelled here loses nothing.
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


class _Waiting:
    """Messages that wait for their consumer, and how much memory they and those he has at hand take."""

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
        """Let who waits for something look why nothing comes."""
        self._arrived.set()
