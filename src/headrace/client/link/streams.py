"""A stream of the link: the rows that a read or a follow brings, as record batches or message by message.

Strategy: a stream is its choice of rows (:class:`RowSelection`) and its position (:attr:`BatchStream.cursor`). When its
tube is lost it asks the next hub for the rest. Messages are made from rows when they are taken.

Invariants:

- A stream continues after its last row, at whichever hub of the log: no hole and no repeat.
- A task that is cancelled while it waits has taken nothing: no row is lost with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa

from headrace.client.base import Start, check_start
from headrace.client.conditions import AnyConditions, Condition, where
from headrace.client.link.connection import LinkConnection
from headrace.client.link.requests import Inbox, LostTubeError, Make
from headrace.client.link.rows import received_messages, received_rows
from headrace.errors import ClosedError, HeadraceError, UnexpectedError, UsageError
from headrace.message import MAX_SEQUENCE, SCHEMA, Message
from headrace.wire.link import requests as ask
from headrace.wire.link.message import ENTRIES, LinkMessage, rows_of
from headrace.wire.sdk.predicate import serialize_field

R = TypeVar("R")
Where = Mapping[str, Condition | Mapping[str, Any]]
"""Conditions by attribute, as :func:`headrace.where` takes them; or the JSON of a subscription's field."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows a stream brings."""

    topic: str | None
    origin: str | Sequence[str] | None
    where: Where | None
    credit: int

    def members(self) -> dict[str, Any]:
        """Return the members of a request that select them."""
        origin = self.origin if self.origin is None or isinstance(self.origin, str) else list(self.origin)
        fields = None
        if isinstance(self.where, AnyConditions):
            raise UsageError(
                "this where has no alternatives: `match` reads them, and a client of sdk:// subscribes to them"
            )
        if self.where is not None and not isinstance(self.where, Mapping):
            raise UsageError(
                f"where takes conditions by attribute, as in where(city='Praha'), not {type(self.where).__name__}"
            )
        if self.where is not None:
            fields = {name: _field(name, condition) for name, condition in self.where.items()}
        return {"topic": self.topic, "origin": origin, "where": fields, "credit": self.credit}


class ResumedStream:
    """A stream that resumes over the next tube when its tube is lost; ``async with`` ends it at the hub too."""

    def __init__(self, connection: LinkConnection, credit: int) -> None:
        self._connection = connection
        self._credit = credit
        self._inbox: Inbox | None = None
        self._over = False

    async def aclose(self) -> None:
        """End the stream, also for tasks that wait for it."""
        self._over = True
        if self._inbox is not None:
            self._inbox.cancel()
            self._inbox = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _next_event(self) -> LinkMessage | None:
        """Take the next event; ``None`` at the stream's end."""
        while not self._over:
            try:
                # Another task may close the stream, and remove the inbox.
                inbox = self._inbox or await self._ask()
                if inbox is None:
                    break
                message = await self._take_from(inbox)
            except LostTubeError:
                self._inbox = None
                continue
            except HeadraceError:
                self._over = True
                raise
            self._over = self._over or message is None
            return message
        return None

    async def _take_from(self, inbox: Inbox) -> LinkMessage | None:
        return await inbox.get()

    async def _ask(self) -> Inbox | None:
        await self._find_start()
        session = await self._connection.session()
        if not self._over:
            self._inbox = session.stream(self._request(), self._credit)
        return self._inbox

    async def _find_start(self) -> None:
        """Find the message to begin with, where its number is not known yet."""

    def _request(self) -> Make[Any]:
        raise NotImplementedError

    def _cancel_unattended(self) -> None:
        """End the stream at the hub when it is garbage: a loop that was left early must not leave it open."""
        inbox = self._inbox
        if inbox is not None and not inbox.over:
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and so is the tube
                inbox.loop.call_soon_threadsafe(inbox.cancel)


class BatchStream(ResumedStream):
    """A stream of record batches: ``async for rows in …``. Closing it ends it at the hub too.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     _ = link.publish([b"a", b"b"])
    ...     [payload for rows in link.read() for payload in rows.column("payload").to_pylist()]
    [b'a', b'b']
    """

    def __init__(
        self,
        connection: LinkConnection,
        selection: RowSelection,
        *,
        cursor: Start | None,
        follow: bool,
        last: int | None = None,
        time: int | None = None,
    ) -> None:
        self._earliest = cursor == "earliest"
        self.cursor = cursor if isinstance(cursor, int) else None
        """The next sequence number; ``None`` until the hub has sent the beginning of a follow.

        After a read, its end: before the last row asked for, if the log does not reach that.
        """
        super().__init__(connection, selection.credit)
        self._members = selection.members()
        self._follow = follow
        self._last = last
        self._time = time

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while True:
            rows: pa.RecordBatch | None = await self._next(received_rows)
            if rows is not None and rows.num_rows:
                return rows

    async def to_arrow(self) -> pa.Table:
        """Read to the end, and return everything as one Arrow table in the envelope's schema.

        >>> from headrace.testing import Hub
        >>> with Hub() as hub, hub.connect_sync("tube://") as link:
        ...     _ = link.publish([b"a", b"b"], topic="letters")
        ...     link.read().to_arrow().num_rows
        2
        """
        if self._follow:
            raise UsageError("a follow has no end: read a range, as in link.read(1, 1000).to_arrow()")
        return pa.Table.from_batches([rows async for rows in self], SCHEMA)

    async def to_pandas(self) -> Any:
        """Read to the end, and return everything as a pandas ``DataFrame``; pandas must be installed."""
        return (await self.to_arrow()).to_pandas()

    async def messages(self) -> Iterator[Message]:
        """Return the messages of the next batch; there may be none in it."""
        return await self._next(received_messages) or iter(())

    async def begun(self) -> int:
        """Wait for the sequence number at which the stream begins."""
        if self.cursor is None:
            message = await self._next_event()
            if message is not None:
                self._take(message, received_rows)
        if self.cursor is None:
            raise ClosedError("the stream is closed")
        return self.cursor

    def __del__(self) -> None:
        self._cancel_unattended()

    async def _next(self, read: Callable[..., R]) -> R | None:
        """Take the next event, as ``read`` reads rows; ``None`` if it has none."""
        message = await self._next_event()
        if message is None:
            raise StopAsyncIteration
        return self._take(message, read)

    async def _find_start(self) -> None:
        if self._earliest and self.cursor is None:
            self.cursor = await number_of(self._connection, "earliest")

    async def _take_from(self, inbox: Inbox) -> LinkMessage | None:
        message = await inbox.get()
        if message is None:
            # As the hub sends it: rows after the last one received may have been filtered out.
            self.cursor = inbox.last.get("next", self.cursor)
        return message

    def _request(self) -> Make[ask.ReadRequest | ask.FollowRequest]:
        cursor, members = self.cursor, self._members
        if not self._follow:
            return lambda n: ask.ReadRequest(id=n, first=cursor or 1, last=self._last, **members)
        if cursor is None and self._time is not None:
            return lambda n: ask.FollowRequest(id=n, time=self._time, **members)
        return lambda n: ask.FollowRequest(id=n, from_seq=cursor, **members)

    def _take(self, message: LinkMessage, read: Callable[..., R]) -> R | None:
        head = message.head
        if head.get("event") == "at":
            self.cursor = head["seq"] + 1
            return None
        if head.get("event") != "rows":
            return None
        if self.cursor is not None and head.get("first") != self.cursor:
            raise UnexpectedError("link", "first", head.get("first"), f"must be {self.cursor}")
        rows = read(message)
        self.cursor = head["last"] + 1
        return rows


class EntryStream(ResumedStream):
    """A stream of log entries as record batches: ``async for rows in …``. Closing it ends it at the hub too.

    Entries are the hub's own bookkeeping and have no sequence numbers: ``seq`` is the message that an entry stands
    after, ``op`` tells entries after the same message apart.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     _ = link.publish(b"kept")
    ...     link.hold("billing", 1)
    ...     [rows.select(["seq", "topic"]).to_pylist() for rows in link.entries(1, 1, topic="hold/*")]
    [[{'seq': 1, 'topic': 'hold/billing'}]]
    """

    def __init__(
        self,
        connection: LinkConnection,
        first: int,
        last: int | None,
        topic: str | None,
        credit: int,
        *,
        position: int | None = None,
    ) -> None:
        self.position = position
        """The position in the log to resume at; ``None`` until the hub has sent one. At the end, the one after."""
        super().__init__(connection, credit)
        self._first = first
        self._last = last
        self._topic = topic

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while True:
            message = await self._next_event()
            if message is None:
                raise StopAsyncIteration
            head = message.head
            if type(head.get("next")) is not int:
                raise UnexpectedError("link", "next", head.get("next"), "must be a position in the log")
            self.position = head["next"]
            if head.get("event") == "rows":
                return rows_of(message.body, ENTRIES)

    def __del__(self) -> None:
        self._cancel_unattended()

    async def _take_from(self, inbox: Inbox) -> LinkMessage | None:
        message = await inbox.get()
        if message is None:
            self.position = inbox.last.get("next", self.position)
        return message

    def _request(self) -> Make[ask.EntriesRequest]:
        position = self.position
        return lambda n: ask.EntriesRequest(
            id=n,
            first=self._first,
            last=self._last,
            topic=self._topic,
            credit=self._credit,
            from_op=position,
        )


class MessageStream:
    """A stream of messages: ``async for message in …``.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link, link.follow(from_seq=1) as stream:
    ...     _ = link.publish(b"hello", topic="greetings")
    ...     next(stream).topic
    'greetings'
    """

    def __init__(self, batches: BatchStream) -> None:
        self._batches = batches
        self._messages: Iterator[Message] = iter(())

    def batches(self) -> BatchStream:
        """Return the same stream as record batches. Use one or the other."""
        return self._batches

    @property
    def cursor(self) -> int | None:
        """The sequence number after the last batch received: the ``from_seq`` of a follow that continues this one."""
        return self._batches.cursor

    async def begun(self) -> int:
        """Wait for the sequence number at which the stream begins: all that is published from then on will come."""
        return await self._batches.begun()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while (message := next(self._messages, None)) is None:
            self._messages = await self._batches.messages()
        return message

    async def aclose(self) -> None:
        """End the stream."""
        await self._batches.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def check_seq(name: str, seq: int) -> None:
    """Refuse what is no sequence number."""
    if not 1 <= seq <= MAX_SEQUENCE + 1:
        raise UsageError(f"{name} {seq}: sequence numbers begin at 1 and end at {MAX_SEQUENCE}")


def check_from_seq(start: Start) -> None:
    """Refuse what is no place to begin."""
    if isinstance(start, str):
        check_start(start)
    else:
        check_seq("from_seq", start)


async def number_of(connection: LinkConnection, start: Start) -> int:
    """Return the number of the message to begin with."""
    if isinstance(start, int):
        return start
    head = (await connection.call(lambda n: ask.HeadRequest(id=n))).head
    return int(head["first"] if start == "earliest" else head["head"] + 1)


def check_time(name: str, micros: float) -> float:
    """Refuse a time that no message can have, for which a hub would drop the connection."""
    if not 0 <= micros <= ask.MAX_NUMBER:
        raise UsageError(f"{name}: no message is of {micros:.0f} µs since 1970")
    return micros


def _field(name: str, condition: Condition | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(condition, Mapping):
        return condition
    decoded: Mapping[str, Any] = msgspec.json.decode(serialize_field(where({name: condition})[name]))
    return decoded
