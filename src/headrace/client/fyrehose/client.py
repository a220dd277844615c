"""The client of the backbone: publish, and receive the whole sequence, over TCP or UDP.

    async with headrace.connect("fyrehose://", from_seq=1) as client:
        await client.publish(b"hello")
        async for message in client:
            print(message.seq, message.payload)

Strategy: this class is only the user's side. A :class:`~headrace.client.fyrehose.subscription.Subscription`
decides what is received; a :class:`~headrace.client.fyrehose.connection.FyrehoseConnection` keeps the way to the hub
open. Messages come and go as batches; single ones are made here, from the batch at hand, when they are taken.

Invariants:

- When an iteration by batch or by message ends, however it ends, the next one begins with what it has left.
- A task that is cancelled while it waits here has taken nothing: no message is lost with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, Unpack

import numpy as np

from headrace.client.base import Client, Courtesy, Payload, Start, parse_url, starting_number
from headrace.client.fyrehose.connection import FyrehoseConnection
from headrace.client.fyrehose.journal import JournalBounds
from headrace.client.fyrehose.repair import LostRange
from headrace.client.fyrehose.subscription import Subscription
from headrace.client.fyrehose.tcp import FyrehoseTcp
from headrace.client.fyrehose.timing import TCP_TIMING, RepairTiming
from headrace.client.fyrehose.udp import FyrehoseUdp
from headrace.client.stats import FyrehoseStats
from headrace.client.tls import RenewedContext, TlsOptions, client_tls
from headrace.config import Address
from headrace.errors import LimitError, LostRangeError, UsageError
from headrace.message import MAX_SEQUENCE, Batch, Message, Run
from headrace.wire.numba_kernels import is_loaded

_PIECE_BYTES: Final = 256 << 10
"""Longer batches are sent in pieces of about this size, so that they are not in memory twice."""

_TURN_BYTES: Final = 1 << 20
_PUBLISH_COST: Final = 1 << 12
"""A task that publishes this many bytes without ever having to wait yields to others."""

FyrehoseCarrier: TypeAlias = Literal["tcp", "udp"]
OnLost: TypeAlias = Callable[[LostRangeError], object]
OnHollow: TypeAlias = Callable[[int], object]

logger = logging.getLogger("headrace.client")


class FyrehoseOptions(TlsOptions, total=False):
    """The options of a :class:`FyrehoseClient`."""

    transport: FyrehoseCarrier
    from_seq: Start | None
    subscribe: bool
    timeout: float
    on_lost: OnLost | None
    on_hollow: OnHollow | None
    repair_timeout: float | None
    buffer_bytes: int
    journal: JournalBounds | None
    translated: bool
    random: Random | None


class FyrehoseClient(Client):
    """A client of the backbone; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def echo(url):
    ...     async with headrace.connect(url, from_seq=1) as client:
    ...         await client.publish(b"hello")
    ...         async for message in client:
    ...             return message.seq, message.payload
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(echo(hub.url("fyrehose")))
    (1, b'hello')

    ``transport``
        ``"tcp"`` or ``"udp"``.
    ``from_seq``
        The first message wanted; ``"earliest"`` is the oldest that the hub still has. Without it, the first that the
        hub delivers after the client was opened.
    ``subscribe``
        With ``False``, the hub sends nothing until a message is first asked for: for clients that only publish.
        Otherwise the client receives everything published after it was opened.
    ``timeout``
        Seconds that the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``on_lost``
        Called with a :class:`~headrace.errors.LostRangeError` in place of messages that nobody could deliver.
        Without it the iteration raises that error, once, and the next one continues after them.
    ``on_hollow``
        Called with the number of each message that came without data, before it is handed out. It is empty, or too
        long for fyrehose (over 65,526 bytes on TCP, 65,498 on UDP), which looks the same; the link's ``read`` tells,
        and has the payload. Without it, the first one is a warning of the logger ``headrace.client``.
    ``repair_timeout``
        Seconds for which missing messages are asked for before they are lost: 30 on UDP; 5 on TCP, where a hub that
        has a message sends it at once.
    ``buffer_bytes``
        How much may wait for a slow consumer. Past it, TCP makes the hub wait; UDP drops, and asks again later.
    ``journal``
        Limits of what is kept on UDP to answer FORWARD with.
    ``translated``
        With ``True``, the client states 0.0.0.0:0 on UDP in place of its own address: for one behind an address
        translator, whose hub answers to where its datagrams come from.
    ``ca``, ``cert``, ``cert_key``, ``pin``
        Files for TLS, where the scheme says so: :class:`~headrace.client.tls.TlsOptions`.
    ``random``
        The source of randomness for delays.
    """

    DOORS: ClassVar = {"fyrehose": "fyrehose", "fyrehose+udp": "fyrehose", "fyrehose+tls": "fyrehose"}

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        transport: FyrehoseCarrier = "tcp",
        from_seq: Start | None = None,
        subscribe: bool = True,
        timeout: float = 10.0,
        on_lost: OnLost | None = None,
        on_hollow: OnHollow | None = None,
        repair_timeout: float | None = None,
        buffer_bytes: int = 8 << 20,
        journal: JournalBounds | None = None,
        translated: bool = False,
        random: Random | None = None,
        tls: RenewedContext | None = None,
    ) -> None:
        if transport not in ("tcp", "udp"):
            raise UsageError(f"transport {transport!r}: expected 'tcp' or 'udp'")
        first = starting_number(from_seq, MAX_SEQUENCE)
        stream = transport == "tcp"
        if tls is not None and not stream:
            raise UsageError("TLS needs TCP: leave transport out")
        carrier = FyrehoseTcp if stream else FyrehoseUdp
        timing = TCP_TIMING if stream else RepairTiming()
        random = random or Random()
        self.stats = FyrehoseStats()
        """Counts of what was received, repaired, lost, reconnected and so on."""
        self._subscription = Subscription(
            timing if repair_timeout is None else replace(timing, hole=repair_timeout),
            random,
            self.stats,
            from_seq=first,
            listening=subscribe,
            stream=stream,
            buffer_bytes=buffer_bytes,
            journal=None if stream else journal or JournalBounds(),
        )
        dial = (
            partial(FyrehoseTcp.dial, tls=tls) if stream else partial(FyrehoseUdp.dial, translated=translated)
        )
        self._connection = FyrehoseConnection(hosts, dial, self._subscription, self.stats, random)
        self._failover = self._connection.failover
        super().__init__(self._failover, timeout)
        self._on_lost = on_lost
        self._earliest = from_seq == "earliest"
        """Whether a beginning that is no longer kept is passed over."""
        self._on_hollow = on_hollow
        self._max_data = carrier.max_data
        self._courtesy = Courtesy(_TURN_BYTES, _PUBLISH_COST)
        self._taking = asyncio.Lock()
        self._batch: Batch | None = None
        self._messages: Iterator[Message] = iter(())
        self._message: Message | None = None

    @classmethod
    def at(
        cls, url: str = "fyrehose://", hosts: str | None = None, **options: Unpack[FyrehoseOptions]
    ) -> Self:
        """Make the client of a hub by its URL; see :func:`headrace.connect`."""
        scheme, addresses = parse_url(url, hosts, cls.DOORS)
        if scheme == "fyrehose+udp" and options.setdefault("transport", "udp") != "udp":
            raise UsageError(f"{url!r} says udp and transport={options['transport']!r} says otherwise")
        given: Any = options
        return cls(addresses, tls=client_tls(scheme, given), **given)

    async def open(self) -> Self:
        """Connect, and subscribe; ``async with`` does it."""
        if self._subscription.listening:
            await _load_kernels()
        return await super().open()

    async def close(self) -> None:
        """Close the connection once the hub has what was published; it may be called again.

        Messages received and not yet taken are dropped, and iterations end.
        """
        await super().close()

    async def publish(self, payload: Payload | Iterable[Payload] | Run) -> None:
        """Publish one or many messages, in order: each at most 65,526 bytes over TCP, 65,504 over UDP.

        If one is too long, none is sent. Waits while there is no connection or no room. The protocol does not
        acknowledge a PUSH: one that is on its way when a connection breaks, or a datagram, may be lost.
        """
        if isinstance(payload, bytes | bytearray | memoryview):
            self._check_length(len(payload))
            await self._send(Run.one(bytes(payload)))
            return
        run = payload if isinstance(payload, Run) else Run.of(_checked(payload))
        self._check_length(int(run.lengths.max(initial=0)))
        if len(run) > 1:
            await _load_kernels()
        for piece in _pieces(run):
            await self._send(piece)

    def __aiter__(self) -> AsyncIterator[Message]:
        self._failover.check()
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
        """The next message of the batch at hand, without waiting; ``None`` if there is none."""
        message = next(self._messages, None)
        if message is not None:
            self._message = message
        return message

    def batches(self) -> AsyncIterator[Batch]:
        """The messages as batches: ``batch.first`` is the number of the first, ``batch.run`` has the payloads."""
        self._failover.check()
        return _Batches(self._take_batch)

    def _check_length(self, longest: int) -> None:
        if longest > self._max_data:
            raise LimitError("fyrehose", "LENGTH", longest, self._max_data)

    async def _send(self, run: Run) -> None:
        connection = await self._failover.connection()
        await connection.push(run)
        self.stats.published += len(run)
        self.stats.published_bytes += run.size
        await self._courtesy.sent(run.size)

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
                if item.first == 1 and self._earliest:
                    continue
                self._lost(LostRangeError(item.first, item.last, self._subscription.gave_up))
            else:
                rest = item
                self._tell_of_hollow(item)
        return rest

    def _rest(self) -> Batch | None:
        """Take what an iteration by message has left of its batch."""
        batch, message = self._batch, self._message
        self._batch = self._message = None
        self._messages = iter(())
        if batch is None:
            return None
        taken = 0 if message is None else message.seq - batch.first + 1
        return batch.slice(taken, len(batch)) if taken < len(batch) else None

    def _tell_of_hollow(self, batch: Batch) -> None:
        hollow = _hollow(batch)
        if not hollow:
            return
        first_ever = not self.stats.hollow
        self.stats.hollow += len(hollow)
        if self._on_hollow is not None:
            # If it raises, the next iteration begins with this batch.
            self._batch = batch
            for seq in hollow:
                self._on_hollow(seq)
            self._batch = None
        elif first_ever:
            logger.warning(
                "message %d came without data: it is empty, or too long for fyrehose, and the link has it whole;"
                " such messages are counted (stats.hollow), and not reported again",
                hollow[0],
            )

    def _lost(self, error: LostRangeError) -> None:
        if self._on_lost is None:
            raise error
        self._on_lost(error)


class _Batches:
    """An iteration by batch; a generator would lose what it holds when it is abandoned."""

    def __init__(self, take: Callable[[], Awaitable[Batch]]) -> None:
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._take()


async def _load_kernels() -> None:
    """Load compiled code, which takes a third of a second, off the event loop."""
    from headrace.wire.fyrehose import kernels

    if not is_loaded(kernels.__name__):
        await asyncio.to_thread(kernels.warm)


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


def _hollow(batch: Batch) -> list[int]:
    """The numbers of the messages without data."""
    run = batch.run
    if run.lone is not None:
        return [] if run.lone else [batch.first]
    return [batch.first + row for row in np.flatnonzero(run.lengths == 0).tolist()]


def _checked(payloads: Iterable[Payload]) -> Iterator[Payload]:
    if not isinstance(payloads, Iterable):
        raise UsageError(f"a payload is bytes, not {type(payloads).__name__}")
    for payload in payloads:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise UsageError(f"a payload is bytes, not {type(payload).__name__}")
        yield payload


def _pieces(run: Run) -> Iterator[Run]:
    """Cut a run into parts of about :data:`_PIECE_BYTES`."""
    begin = 0
    while begin < len(run):
        most = int(run.offsets[begin]) + _PIECE_BYTES
        end = max(begin + 1, int(np.searchsorted(run.offsets, most, side="right")) - 1)
        yield run.slice(begin, end)
        begin = end
