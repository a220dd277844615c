"""A member of a durable consumer: each message is redelivered until acknowledged.

    async with link.consumer("billing", topic="orders/**", ack_seconds=60) as consumer:
        async for message in consumer:
            await handle(message)
            await consumer.ack(message)

The hub keeps all state; a member keeps none. When its tube is lost it joins again. The hub gives its unacknowledged
messages to any member, so rows that still wait here are dropped.

A member that leaves gives its unacknowledged messages back, which does not count as a try. If an exception ends the
``async with``, the message that was being handled is given back as failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.client.link.connection import LinkConnection
from headrace.client.link.requests import Inbox, LostTubeError, Make
from headrace.client.link.rows import received_rows
from headrace.client.link.streams import ResumedStream, number_of
from headrace.errors import ClosedError, HeadraceError, UsageError
from headrace.hub.consumers.outstanding import spans
from headrace.hub.sequence_ranges import Range
from headrace.message import Message, messages
from headrace.wire.link import requests as ask
from headrace.wire.link.message import LinkMessage

Handled: TypeAlias = Message | int | pa.RecordBatch | Iterable[Message | int]
"""A message or its number, several of them (a ``range`` of numbers too), or a record batch."""

MAX_RANGES: Final = 4096
"""Ranges that one request carries: a head has room for 128 KiB."""


class Consumer(ResumedStream):
    """A member of a durable consumer; ``async with`` joins and leaves, ``async for`` gives messages.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     with link.consumer("billing", topic="orders/*") as consumer:
    ...         _ = link.publish(b"one mill wheel", topic="orders/1")
    ...         message = next(consumer)
    ...         message.payload, consumer.ack(message)
    (b'one mill wheel', True)
    """

    def __init__(self, connection: LinkConnection, name: str, terms: Mapping[str, Any], credit: int) -> None:
        super().__init__(connection, credit)
        self.name = name
        self._terms = dict(terms)
        self._joined = False
        self._messages: Iterator[Message] = iter(())
        self._handling: int | None = None

    async def join(self) -> Self:
        """Join; ``async with`` does it. The consumer is created if there is none of this name."""
        if not self._joined:
            message = await self._next_event()
            # The first event is the consumer's position, which needs no action, or rows.
            if message is not None and message.head.get("event") == "rows":
                self._messages = messages(received_rows(message))
        return self

    async def leave(self) -> None:
        """Leave: what is not acknowledged goes to other members at once, and iterations end."""
        self._messages = iter(())
        await self.aclose()

    async def __aenter__(self) -> Self:
        return await self.join()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, Exception) and self._handling is not None and self._connection.up:
                with contextlib.suppress(HeadraceError):
                    await self.nack(self._handling)
        finally:
            await self.leave()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        self._handling = None
        while True:
            if self._stale:
                self._messages = iter(())
            elif (message := next(self._messages, None)) is not None:
                self._handling = message.seq
                return message
            self._messages = messages(await self._next_rows())

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over record batches instead of messages. Use one or the other."""
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield await self._next_rows()

    async def ack(self, handled: Handled) -> bool:
        """Acknowledge messages; returns once that is in the log.

        ``False`` if some of them will be redelivered nevertheless: the hub was restarted since it sent them, or the
        consumer was reset.
        """
        missed = 0
        for ranges in _requests(handled):
            answer = await self._connection.call(self._ack(ranges, nack=False))
            missed += answer.head.get("missed", 0)
        if self._handling is not None and _covers(handled, self._handling):
            self._handling = None
        return not missed

    async def nack(self, handled: Handled) -> None:
        """Report that messages failed: they are redelivered at once, to this member or another, or given up."""
        for ranges in _requests(handled):
            await self._connection.call(self._ack(ranges, nack=True))
        if self._handling is not None and _covers(handled, self._handling):
            self._handling = None

    @property
    def _stale(self) -> bool:
        """Whether the hub has given the messages that wait here to others."""
        return self._inbox is not None and self._inbox.over

    def _ack(self, ranges: Sequence[Range], *, nack: bool) -> Callable[[int], ask.AckRequest]:
        return lambda n: ask.AckRequest(id=n, consumer=self.name, seqs=list(ranges), nack=nack)

    async def _next_rows(self) -> pa.RecordBatch:
        while (message := await self._next_event()) is not None:
            if message.head.get("event") == "rows":
                rows = received_rows(message)
                if rows.num_rows:
                    return rows
        raise StopAsyncIteration

    async def _next_event(self) -> LinkMessage | None:
        message = await super()._next_event()
        if message is None and not self._joined:
            raise ClosedError("this member has left: make another one")
        self._joined = True
        return message

    async def _take_from(self, inbox: Inbox) -> LinkMessage | None:
        if inbox.lost:  # The hub redelivers what waits here.
            raise LostTubeError
        return await inbox.get()

    async def _find_start(self) -> None:
        if isinstance(start := self._terms["from_seq"], str):
            self._terms["from_seq"] = (
                None if start == "now" else await number_of(self._connection, "earliest")
            )

    def _request(self) -> Make[ask.FollowRequest]:
        return lambda n: ask.FollowRequest(id=n, consumer=self.name, credit=self._credit, **self._terms)


def _requests(handled: Handled) -> Iterator[Sequence[Range]]:
    """Yield the ranges of what was handled, as many at a time as a request takes."""
    ranges = spans(_numbers(handled))
    for begin in range(0, len(ranges), MAX_RANGES):
        yield ranges[begin : begin + MAX_RANGES]


def _numbers(handled: Handled) -> np.ndarray[Any, np.dtype[np.int64]]:
    found: Any
    match handled:
        case Message():
            found = [handled.seq]
        case int():
            found = [handled]
        case pa.RecordBatch():
            found = handled.column("seq").to_numpy()
        case range():
            found = np.arange(handled.start, handled.stop, handled.step)
        case str() | bytes():
            raise UsageError("acknowledge messages, their numbers or a record batch of them")
        case _:
            found = [each if isinstance(each, int) else each.seq for each in handled]
    return np.unique(np.asarray(found, np.int64))


def _covers(handled: Handled, seq: int) -> bool:
    return bool(np.isin(seq, _numbers(handled)))
