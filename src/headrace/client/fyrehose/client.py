"""The client of the backbone: publish, and receive the whole sequence, over TCP or UDP.

    async with headrace.connect("fyrehose://127.0.0.1:2323", from_seq=1) as backbone:
        await backbone.push(b"hello")
        async for message in backbone:
            print(message.seq, message.payload)

Strategy: this is what a user meets, and no more. Reception is decided by
:class:`~headrace.client.fyrehose.subscription.Subscription`; a
:class:`~headrace.client.fyrehose.connection.Connection` keeps the way to the hub open. Messages come and go as
batches; single ones are made here, from a batch at hand, when asked for.

Invariants:

- What a batch or message iteration leaves when it ends, however it ends, is what the next one begins with.
- A task that is cancelled while it waits here has taken nothing: no message is lost with it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from random import Random
from types import TracebackType
from typing import Final, Literal, Self, TypedDict

import numpy as np

from headrace.client.fyrehose.connection import Connection
from headrace.client.fyrehose.journal import JournalBounds
from headrace.client.fyrehose.repair import LostRange
from headrace.client.fyrehose.stats import Stats
from headrace.client.fyrehose.subscription import Subscription
from headrace.client.fyrehose.tcp import Stream
from headrace.client.fyrehose.timing import STREAM, Patience
from headrace.client.fyrehose.udp import Datagrams
from headrace.config import Address
from headrace.errors import LimitError, LostRangeError, UnreachableError, UsageError
from headrace.message import MAX_SEQUENCE, Batch, Message, Run
from headrace.protocols import PORTS

DEFAULT_PORT: Final = PORTS["fyrehose"]

_PIECE_BYTES: Final = 256 << 10
"""Longer batches are sent in pieces of about this size, so that they are not in memory twice."""

_TURN_BYTES: Final = 1 << 20
_PUSH_COST: Final = 1 << 12
"""A task that pushes so much without ever having to wait lets others have a turn."""

Transport = Literal["tcp", "udp"]
Payload = bytes | bytearray | memoryview
OnLost = Callable[[LostRangeError], object]


class Options(TypedDict, total=False):
    """What :class:`Backbone` takes besides its hosts."""

    transport: Transport
    from_seq: int | None
    subscribe: bool
    timeout: float
    on_lost: OnLost | None
    patience: float | None
    buffer_bytes: int
    journal: JournalBounds | None
    random: Random | None


class Backbone:
    """A client of the backbone; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def echo(url):
    ...     async with headrace.connect(url, from_seq=1) as backbone:
    ...         await backbone.push(b"hello")
    ...         async for message in backbone:
    ...             return message.seq, message.payload
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(echo(hub.url("fyrehose")))
    (1, b'hello')

    ``transport``
        ``"tcp"`` or ``"udp"``.
    ``from_seq``
        The first message wanted. Without it, the first that the hub delivers after the client was opened.
    ``subscribe``
        With ``False``, the hub sends nothing before somebody first asks for a message: for those who only publish. Else
        the client is subscribed once it is open, so that what anybody pushes from then on is received.
    ``timeout``
        How many seconds the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``on_lost``
        Called with a :class:`~headrace.errors.LostRangeError` in the place of messages that nobody could deliver.
        Without it the iteration raises that error, once, and the next one goes on behind them.
    ``patience``
        For how many seconds missing messages are asked for before they are lost: 30 on UDP; 5 on TCP, where a hub that
        has a message sends it at once.
    ``buffer_bytes``
        How much may wait for a slow consumer. After that TCP lets the hub wait; UDP drops, and asks again later.
    ``journal``
        What is kept on UDP to answer FORWARD with.
    ``random``
        Where the randomness of delays comes from.
    """

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        transport: Transport = "tcp",
        from_seq: int | None = None,
        subscribe: bool = True,
        timeout: float = 10.0,
        on_lost: OnLost | None = None,
        patience: float | None = None,
        buffer_bytes: int = 8 << 20,
        journal: JournalBounds | None = None,
        random: Random | None = None,
    ) -> None:
        if transport not in ("tcp", "udp"):
            raise UsageError(f"transport {transport!r}: expected 'tcp' or 'udp'")
        if from_seq is not None and not 0 <= from_seq <= MAX_SEQUENCE:
            raise UsageError(f"from_seq {from_seq}: expected 0 to {MAX_SEQUENCE}")
        stream = transport == "tcp"
        link = Stream if stream else Datagrams
        lasting = STREAM if stream else Patience()
        random = random or Random()
        self.stats = Stats()
        """Counts of what was received, repaired, lost, reconnected and so on."""
        self._subscription = Subscription(
            lasting if patience is None else replace(lasting, hole=patience),
            random,
            self.stats,
            from_seq=from_seq,
            listening=subscribe,
            stream=stream,
            buffer_bytes=buffer_bytes,
            journal=None if stream else journal or JournalBounds(),
        )
        self._connection = Connection(hosts, link.open, self._subscription, self.stats, random)
        self._timeout = timeout
        self._on_lost = on_lost
        self._max_data = link.max_data
        self._unyielding = 0
        self._taking = asyncio.Lock()
        self._batch: Batch | None = None
        self._messages: Iterator[Message] = iter(())
        self._message: Message | None = None

    async def open(self) -> Self:
        """Connect, and subscribe; ``async with`` does it."""
        if self._subscription.listening:
            await _load_kernels()
        try:
            await self._connection.open(self._timeout)
        except UnreachableError as error:
            raise UnreachableError(
                error.address, f"{error.reason}; is the hub running there? `headrace serve` starts one"
            ) from None
        return self

    async def close(self) -> None:
        """End the connection, once the hub has what was pushed; it may be called again.

        What was received and not yet taken is dropped, and iterations come to their end.
        """
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; a lost one is replaced by itself."""
        return self._connection.up

    async def push(self, message: Payload) -> None:
        """Publish a message: at most 65,526 bytes over TCP, 65,504 over UDP.

        Waits while there is no connection or no room. The protocol does not acknowledge a PUSH: one that is on its way
        when a connection breaks, or a datagram, may be lost.
        """
        _check_payload(message)
        if len(message) > self._max_data:
            raise LimitError("fyrehose", "LENGTH", len(message), self._max_data)
        await self._push(Run.one(bytes(message)))

    async def push_many(self, messages: Iterable[Payload] | Run) -> None:
        """Publish messages in order, with as few writes as may be; if one is too long, none is sent."""
        if not isinstance(messages, Run):
            messages = list(messages)
            for message in messages:
                _check_payload(message)
            messages = Run.of(messages)
        longest = int(messages.lengths.max(initial=0))
        if longest > self._max_data:
            raise LimitError("fyrehose", "LENGTH", longest, self._max_data)
        if len(messages) > 1:
            await _load_kernels()
        for piece in _pieces(messages):
            await self._push(piece)

    def __aiter__(self) -> AsyncIterator[Message]:
        self._connection.check()
        return self

    async def __anext__(self) -> Message:
        message = next(self._messages, None)
        if message is None:
            async with self._taking:
                # While this task waited for its turn, another may have begun a batch.
                while (message := next(self._messages, None)) is None:
                    batch = await self._next_batch()
                    self._batch, self._messages = batch, _messages(batch)
        self._message = message
        return message

    def at_hand(self) -> Message | None:
        """The next message if nothing has to be waited for, else ``None``: the rest of a batch that has been begun."""
        message = next(self._messages, None)
        if message is not None:
            self._message = message
        return message

    def batches(self) -> AsyncIterator[Batch]:
        """The messages as batches: ``batch.first`` is the number of the first, ``batch.run`` has the payloads."""
        self._connection.check()
        return _Batches(self._take_batch)

    async def _push(self, run: Run) -> None:
        link = await self._connection.link()
        await link.push(run)
        self.stats.pushed += len(run)
        self.stats.pushed_bytes += run.size
        self._unyielding += run.size + _PUSH_COST
        if self._unyielding >= _TURN_BYTES:
            self._unyielding = 0
            await asyncio.sleep(0)

    async def _take_batch(self) -> Batch:
        async with self._taking:
            return await self._next_batch()

    async def _next_batch(self) -> Batch:
        rest = self._rest()
        while rest is None:
            item = await self._connection.take()
            if item is None:
                raise StopAsyncIteration
            if isinstance(item, LostRange):
                self._lost(LostRangeError(item.first, item.last, self._subscription.gave_up))
            else:
                rest = item
        return rest

    def _rest(self) -> Batch | None:
        """What an iteration by message has left of its batch."""
        batch, message = self._batch, self._message
        self._batch = self._message = None
        self._messages = iter(())
        if batch is None:
            return None
        taken = 0 if message is None else message.seq - batch.first + 1
        return batch.slice(taken, len(batch)) if taken < len(batch) else None

    def _lost(self, error: LostRangeError) -> None:
        if self._on_lost is None:
            raise error
        self._on_lost(error)


class _Batches:
    """An iteration by batch; no generator, which would take what it holds with it when it is abandoned."""

    def __init__(self, take: Callable[[], Awaitable[Batch]]) -> None:
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._take()


async def _load_kernels() -> None:
    """Batches need compiled code, which takes half a second to load: not on the event loop."""
    name = "headrace.wire.fyrehose.kernels"
    if name not in sys.modules:
        await asyncio.to_thread(import_module, name)


def _messages(batch: Batch) -> Iterator[Message]:
    seq, run = batch.first, batch.run
    if run.lone is not None:
        yield Message(seq, run.lone)
        return
    # Slices of one bytes object cost half of what slices of an array do.
    payloads = run.content.tobytes()
    for begin, end in pairwise((run.offsets - run.offsets[0]).tolist()):
        yield Message(seq, payloads[begin:end])
        seq += 1


def _check_payload(message: object) -> None:
    if not isinstance(message, bytes | bytearray | memoryview):
        raise UsageError(f"a message is bytes, not {type(message).__name__}")


def _pieces(run: Run) -> Iterator[Run]:
    """A run in parts of about :data:`_PIECE_BYTES`."""
    begin = 0
    while begin < len(run):
        most = int(run.offsets[begin]) + _PIECE_BYTES
        end = max(begin + 1, int(np.searchsorted(run.offsets, most, side="right")) - 1)
        yield run.slice(begin, end)
        begin = end
