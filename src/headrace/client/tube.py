"""The client of the link: publish with acknowledgement, read any range, follow from anywhere.

    async with headrace.connect("tube://127.0.0.1:8081") as link:
        first, last = await link.publish([b"hello", b"world"], topic="greetings")
        async for message in link.follow(from_seq=first, topic="greetings"):
            print(message.seq, message.payload)

Strategy: this is what a user meets, and no more. The tube is kept and replaced by a
:class:`~headrace.client.tube_connection.Connection`; publishing is done by a
:class:`~headrace.client.tube_publisher.Publisher`; rows are received batch by batch, and single messages made only when
asked for.

Invariants:

- A stream goes on behind the last row it had, whichever hub of the log it is continued with: no hole and no repeat.
- A task that is cancelled while it waits here has taken nothing: no row is lost with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from time import time
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, TypeVar

import msgspec
import pyarrow as pa

from headrace.client.tube_connection import Connection, Inbox, LostTubeError, Make
from headrace.client.tube_consumer import Consumer
from headrace.client.tube_publisher import WINDOW, Acknowledged, Publisher
from headrace.client.tube_rows import Publishable, published_rows, received_messages, received_rows
from headrace.config import Address
from headrace.errors import ClosedError, HeadraceError, MalformedError, UnexpectedError, UsageError
from headrace.message import MAX_SEQUENCE, Message
from headrace.wire import link_requests as ask
from headrace.wire.auth import Auth, parse_client_id, serialize_auth, sign
from headrace.wire.link import SUBSCRIPTIONS, Buffer, LinkMessage, body_of, rows_of
from headrace.wire.predicate import Predicate, serialize_field

DEFAULT_PORT: Final = 8081
WEBSOCKET_PORT: Final = 8080

_SCHEMES: Final = {"tcp": "tube", "websocket": "ws"}

R = TypeVar("R")
Where = Mapping[str, Predicate | Mapping[str, Any]]


class Options(TypedDict, total=False):
    """What :class:`LinkClient` takes besides its hosts."""

    transport: Literal["tcp", "websocket"]
    name: str
    timeout: float
    patience: float
    credit: int
    client_id: str | None
    key: str | None
    random: Random | None


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a log reaches. Times are µs since 1970; ``None`` in an empty log."""

    log: str
    first: int
    head: int
    first_time: int | None
    head_time: int | None
    message: int
    """The newest entry that is a message; ``head`` may be beyond it."""
    path: str
    """The directory of the log on the hub's machine."""
    reach: int | None = None
    """How far the bytes asked about reach, if that was asked."""


class LinkClient:
    """A client of the link; make one with :func:`headrace.connect`, open it with ``async with``.

    >>> import asyncio, headrace, headrace.testing
    >>> async def publish(url):
    ...     async with headrace.connect(url) as link:
    ...         published = await link.publish(b"hello", topic="greetings")
    ...         return published.first, (await link.head()).head
    >>> with headrace.testing.Hub() as hub:
    ...     asyncio.run(publish(hub.url("tube")))
    (1, 1)

    ``transport``
        What carries the tube: ``"tcp"``, or ``"websocket"`` as ``ws://`` has it.
    ``name``
        What the hub may call this client.
    ``timeout``
        How many seconds the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``patience``
        For how many seconds a lost connection is tried to be replaced; then what waits fails with
        :class:`~headrace.errors.UnreachableError`.
    ``credit``
        How many bytes of a stream may be under way and waiting here.
    ``client_id``, ``key``
        Who this is, where the hub's ``auth.required`` is on.
    ``random``
        Where the randomness of delays comes from.
    """

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        transport: Literal["tcp", "websocket"] = "tcp",
        name: str = "",
        timeout: float = 10.0,
        patience: float = 30.0,
        credit: int = ask.DEFAULT_CREDIT,
        client_id: str | None = None,
        key: str | None = None,
        random: Random | None = None,
    ) -> None:
        if not 1 <= credit <= ask.MAX_CREDIT:
            raise UsageError(f"credit {credit}: expected 1 to {ask.MAX_CREDIT}")
        if (client_id is None) != (key is None):
            raise UsageError("client_id and key belong together")
        if transport not in _SCHEMES:
            raise UsageError(f"transport {transport!r}: expected 'tcp' or 'websocket'")
        proof = None if client_id is None or key is None else signer(client_id, key)
        self._connection = Connection(
            hosts, name, proof, patience, random or Random(), scheme=_SCHEMES[transport]
        )
        self._timeout = timeout
        self._credit = credit
        self._publishers: list[Publisher] = []
        self._own: Publisher | None = None

    async def open(self) -> Self:
        """Connect; ``async with`` does it."""
        await self._connection.open(self._timeout)
        return self

    async def close(self) -> None:
        """End the connection; it may be called again. What is not acknowledged yet fails: see :meth:`flush`."""
        for publisher in self._publishers:
            publisher.end()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; a lost one is replaced when it is next needed."""
        return self._connection.up

    @property
    def log(self) -> str:
        """The uuid of the log; every sequence number is one of its."""
        if self._connection.log is None:
            self._connection.check()
            raise UsageError("the client is not open yet")
        return self._connection.log

    # Looking

    async def head(self, *, first: int | None = None, size: int | None = None) -> Extent:
        """How far the log reaches; and, as ``reach``, how far about ``size`` bytes of it do from ``first`` on."""
        answer = await self._connection.call(lambda n: ask.Head(id=n, first=first, bytes=size))
        head = answer.head
        told = ("first", "head", "first_time", "head_time", "message", "path", "reach")
        return Extent(self.log, *(head.get(each) for each in told))  # type: ignore[arg-type]

    async def first_at(self, time: int) -> int:
        """The first sequence number stamped at ``time`` (µs since 1970) or later; ``head + 1`` if all are older."""
        _check_time("time", time)
        chosen = _Chosen(None, None, None, True, 1)
        async with Batches(self._connection, chosen, cursor=None, time=time, follow=True) as stream:
            return await stream.begun()

    async def status(self) -> dict[str, Any]:
        """What the hub knows about itself, as ``/api/status`` has it."""
        answer = await self._connection.call(lambda n: ask.Status(id=n))
        return dict(answer.head["status"])

    async def report(self, name: str, facts: Mapping[str, Any]) -> None:
        """Say what this program is doing; the hub's status shows it under ``name``, and it is in no log."""
        await self._connection.call(lambda n: ask.Report(id=n, name=name, facts=dict(facts)))

    async def lost(self, reader: str | None = None) -> dict[str, dict[str, Any]]:
        """What each reader, or one, found gone and passed over: ``messages``, and the newest ``ranges`` of them."""
        answer = await self._connection.call(lambda n: ask.Lost(id=n, reader=reader))
        return dict(answer.head["lost"])

    async def report_lost(self, reader: str, first: int, last: int) -> None:
        """Say that messages ``first`` to ``last`` were gone before ``reader`` had them; the hub's status shows it."""
        await self._connection.call(lambda n: ask.Lost(id=n, reader=reader, first=first, last=last))

    async def services(self) -> list[dict[str, Any]]:
        """The services there are: ``id``, ``kind``, ``created``, ``seq`` and ``bytes`` of each."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["created"] if found else 0
            answer = await self._connection.call(partial(_ask_services, after))
            more = answer.head["services"]
            found += more
            if not more:
                return found

    async def service(self, service: str) -> bytes:
        """The value of one service."""
        answer = await self._connection.call(lambda n: ask.Services(id=n, service=service))
        return bytes(answer.body)

    async def create_service(self, service: str, kind: Literal["json", "last"] = "json") -> None:
        """Create a service, or offer a removed one anew, empty; returns once that is in the log.

        One that is there stays as it is; if it is of the other kind, that is refused with ``conflict``.
        """
        await self._connection.call(lambda n: ask.Services(id=n, service=service, action="create", kind=kind))

    async def remove_service(self, service: str) -> bool:
        """Offer a service no longer; returns once that is in the log, ``False`` if it was removed before.

        Whoever has subscribed to it goes on getting what is published under its id.
        """
        answer = await self._connection.call(lambda n: ask.Services(id=n, service=service, action="remove"))
        return bool(answer.head.get("removed"))

    async def snapshot(self) -> bytes:
        """The hub's state, as a snapshot file has it."""
        while True:
            session = await self._connection.session()
            inbox = session.stream(lambda n: ask.Snapshot(id=n, credit=self._credit), self._credit)
            pieces = []
            try:
                while (message := await inbox.get()) is not None:
                    pieces.append(bytes(message.body))
            except LostTubeError:
                continue
            finally:
                inbox.cancel()
            return b"".join(pieces)

    async def subscriptions(self) -> pa.Table:
        """Every subscription by content: client, connector, the entry that says so, and its fields by attribute.

        The metadata of the table's schema has ``head``, the last log entry that it includes.
        """
        while True:
            session = await self._connection.session()
            inbox = session.stream(lambda n: ask.Subscriptions(id=n, credit=self._credit), self._credit)
            pieces = []
            try:
                while (message := await inbox.get()) is not None:
                    pieces.append(rows_of(message.body, SUBSCRIPTIONS))
            except LostTubeError:
                continue
            finally:
                inbox.cancel()
            table = pa.Table.from_batches(pieces, schema=SUBSCRIPTIONS)
            return table.replace_schema_metadata({"head": str(inbox.last.get("head", 0))})

    # Holds

    async def holds(self) -> dict[str, int]:
        """The holds there are: the first message that each keeps from being trimmed."""
        answer = await self._connection.call(lambda n: ask.Holds(id=n))
        return dict(answer.head["holds"])

    async def hold(self, name: str, seq: int) -> None:
        """Keep messages from ``seq`` on; returns once that is in the log."""
        await self._connection.call(lambda n: ask.Holds(id=n, name=name, seq=seq))

    async def release(self, name: str) -> None:
        """Let go of a hold."""
        await self._connection.call(lambda n: ask.Holds(id=n, name=name, release=True))

    # Reading

    def read(
        self,
        first: int = 1,
        last: int | None = None,
        *,
        topic: str | None = None,
        origin: str | Sequence[str] | None = None,
        where: Where | None = None,
        entries: bool = False,
    ) -> Batches:
        """Rows ``first`` to ``last`` (or to the head as it is now) as record batches in the envelope's schema.

        ``topic``, ``origin`` and ``where`` choose among them. With ``entries``, log entries that are no messages
        come too (unless something is chosen), and the sequence is whole.
        """
        _check_seq("first", first)
        if last is not None and not 0 <= last <= MAX_SEQUENCE:
            raise UsageError(f"last {last}: sequence numbers end at {MAX_SEQUENCE}")
        chosen = _Chosen(topic, origin, where, entries, self._credit)
        return Batches(self._connection, chosen, cursor=first, last=last, follow=False)

    def follow(
        self,
        from_seq: int | None = None,
        *,
        from_time: float | None = None,
        topic: str | None = None,
        origin: str | Sequence[str] | None = None,
        where: Where | None = None,
        entries: bool = False,
    ) -> Follow:
        """Messages from a sequence number or a time (seconds since 1970) on, or from now on, without end.

        Iterate for messages, or over :meth:`Follow.batches` for record batches.
        """
        if from_seq is not None:
            if from_time is not None:
                raise UsageError("a follow begins at a sequence number or at a time, not at both")
            _check_seq("from_seq", from_seq)
        chosen = _Chosen(topic, origin, where, entries, self._credit)
        at = None if from_time is None else int(_check_time("from_time", from_time * 1_000_000))
        return Follow(Batches(self._connection, chosen, cursor=from_seq, time=at, follow=True))

    # Durable consumers

    def consumer(
        self,
        name: str,
        *,
        from_seq: int | None = None,
        topic: str | None = None,
        origin: str | Sequence[str] | None = None,
        where: Where | None = None,
        ack_seconds: float | None = None,
        max_tries: int | None = None,
        dead_letter: str | None = None,
        credit: int | None = None,
    ) -> Consumer:
        """Take part in a durable consumer, which is created if it is not there, to begin at ``from_seq`` or now.

        The terms (``topic`` to ``dead_letter``) are fixed when it is created. Say the same ones or none to join it.
        ``credit`` is how many bytes of messages wait here at most; each message has ``ack_seconds`` from when it was
        sent, so that whoever is slow should have few.
        """
        if from_seq is not None:
            _check_seq("from_seq", from_seq)
        chosen = _Chosen(topic, origin, where, False, self._credit if credit is None else credit)
        terms = chosen.members()
        terms |= {"from_seq": from_seq, "ack_seconds": ack_seconds}
        terms |= {"max_tries": max_tries, "dead_letter": dead_letter}
        return Consumer(self._connection, name, terms, terms.pop("credit"))

    async def consumers(self) -> list[dict[str, Any]]:
        """The durable consumers there are, in the order of their creation, and how far each has come."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["created"] if found else 0
            answer = await self._connection.call(partial(_ask_consumers, after))
            more = answer.head["consumers"]
            found += more
            if not more:
                return found

    async def show_consumer(self, name: str) -> dict[str, Any]:
        """How far a consumer has come, and its terms."""
        answer = await self._connection.call(lambda n: ask.Consumers(id=n, consumer=name, action="show"))
        return dict(answer.head["consumers"][0])

    async def reset_consumer(self, name: str, to: int) -> None:
        """Have everything from ``to`` on delivered, again or after all; returns once that is in the log."""
        _check_seq("to", to)
        await self._connection.call(lambda n: ask.Consumers(id=n, consumer=name, action="reset", to=to))

    async def remove_consumer(self, name: str) -> None:
        """Remove a consumer; its members are told."""
        await self._connection.call(lambda n: ask.Consumers(id=n, consumer=name, action="remove"))

    # Publishing

    async def publish(
        self,
        rows: Publishable,
        *,
        topic: str = "",
        attributes: Mapping[str, str] | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> Acknowledged:
        """Publish one or many messages; returns the first and the last sequence number once they are committed."""
        if self._own is None:
            self._own = self.publisher()
        ack = await self._own.publish(rows, topic=topic, attributes=attributes, numbers=numbers)
        return await ack

    def publisher(self, name: str | None = None, *, window: int = WINDOW, origin: str = "tube") -> Publisher:
        """A publisher that sends ahead of the answers, up to ``window`` bytes.

        A ``name`` is for those who go on where they stopped: its numbers are kept in the log.
        """
        made = Publisher(self._connection, name, window, origin)
        self._publishers.append(made)
        return made

    async def flush(self) -> None:
        """Wait until everything published is acknowledged."""
        for publisher in self._publishers:
            await publisher.flush()

    # Stages

    async def stage(self, query: str, batch: int, rows: Publishable, *, part: int = 0) -> str:
        """Bring rows of a query's batch that nobody sees before :meth:`commit`; returns the stage's name."""
        body = body_of(published_rows(rows))
        answer = await self._connection.call(
            lambda n: ask.Stage(id=n, query=query, batch=batch, part=part), body
        )
        return str(answer.head["stage"])

    async def commit(
        self, query: str, batch: int, stages: Sequence[str], *, origin: str = "spark", services: bool = False
    ) -> Acknowledged:
        """Append all rows of some stages at once, unless that batch of the query is in the log already.

        With ``services``, each row is a change to the service that its topic names, which is created on first use.
        """
        answer = await self._connection.call(
            lambda n: ask.Commit(
                id=n, query=query, batch=batch, stages=list(stages), origin=origin, services=services
            )
        )
        return Acknowledged(answer.head.get("first"), answer.head.get("last"))

    async def abort(self, stages: Sequence[str]) -> None:
        """Forget stages."""
        await self._connection.call(lambda n: ask.Abort(id=n, stages=list(stages)))

    async def ask(self, make: Make[Any], body: Buffer | None = None) -> LinkMessage:
        """Ask anything that may be asked twice: ``make`` makes a request of the number it is given."""
        return await self._connection.call(make, body)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which rows a stream brings."""

    topic: str | None
    origin: str | Sequence[str] | None
    where: Where | None
    entries: bool
    credit: int

    def members(self) -> dict[str, Any]:
        origin = self.origin if self.origin is None or isinstance(self.origin, str) else list(self.origin)
        where = None
        if self.where is not None:
            where = {name: _field(predicate) for name, predicate in self.where.items()}
        return {"topic": self.topic, "origin": origin, "where": where, "credit": self.credit}

    @property
    def everything(self) -> bool:
        """Whether the hub is to send log entries as well, to be dropped here unless they are wanted."""
        return self.entries or self.origin is not None


class Batches:
    """A stream as record batches: ``async for rows in …``. Closing it ends it at the hub too."""

    def __init__(
        self,
        connection: Connection,
        chosen: _Chosen,
        *,
        cursor: int | None,
        follow: bool,
        last: int | None = None,
        time: int | None = None,
    ) -> None:
        self.cursor = cursor
        """The next sequence number; ``None`` while the hub has not said where a follow begins.

        After a read: where it ended. That is before the last that was asked for if the hub has not come that far.
        """
        self._connection = connection
        self._chosen = chosen
        self._members = chosen.members()
        self._follow = follow
        self._last = last
        self._time = time
        self._inbox: Inbox | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while True:
            rows: pa.RecordBatch | None = await self._next(received_rows)
            if rows is not None and rows.num_rows:
                return rows

    async def messages(self) -> Iterator[Message]:
        """The next batch, message by message; there may be none in it."""
        return await self._next(received_messages) or iter(())

    async def begun(self) -> int:
        """Wait until the hub has said where the stream begins, and return that sequence number."""
        if self.cursor is None:
            message = await self._next_event()
            if message is not None:
                self._take(message, received_rows)
        if self.cursor is None:
            raise ClosedError("the stream is closed")
        return self.cursor

    async def aclose(self) -> None:
        """End the stream."""
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

    def __del__(self) -> None:
        # A loop that was left early must not leave a stream behind at the hub.
        inbox = self._inbox
        if inbox is not None and not inbox.over:
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and so is the tube
                inbox.loop.call_soon_threadsafe(inbox.cancel)

    async def _next(self, read: Callable[..., R]) -> R | None:
        """The next event, as ``read`` reads rows; ``None`` if it has none."""
        message = await self._next_event()
        if message is None:
            raise StopAsyncIteration
        return self._take(message, read)

    async def _next_event(self) -> LinkMessage | None:
        while not self._over:
            try:
                if self._inbox is None:
                    session = await self._connection.session()
                    self._inbox = session.stream(self._request(), self._chosen.credit)
                message = await self._inbox.get()
            except LostTubeError:
                self._inbox = None
                continue
            except HeadraceError:
                self._over = True
                raise
            if message is None:
                self._over = True
                # Not behind the last row: what came after that may have been chosen against.
                self.cursor = self._inbox.last.get("next", self.cursor)
            return message
        return None

    def _request(self) -> Make[ask.Read | ask.Follow]:
        cursor, members = self.cursor, self._members
        if not self._follow:
            return lambda n: ask.Read(id=n, first=cursor or 1, last=self._last, **members)
        if cursor is None and self._time is not None:
            return lambda n: ask.Follow(id=n, time=self._time, **members)
        return lambda n: ask.Follow(id=n, from_seq=cursor, **members)

    def _take(self, message: LinkMessage, read: Callable[..., R]) -> R | None:
        head = message.head
        if head.get("event") == "at":
            self.cursor = head["seq"] + 1
            return None
        if head.get("event") != "rows":
            return None
        if self.cursor is not None and head.get("first") != self.cursor:
            raise UnexpectedError("link", "first", head.get("first"), f"must be {self.cursor}")
        rows = read(message, entries=self._chosen.everything)
        self.cursor = head["last"] + 1
        return rows


class Follow:
    """A stream as messages: ``async for message in …``."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._messages: Iterator[Message] = iter(())

    def batches(self) -> Batches:
        """The same stream as record batches. Use one or the other."""
        return self._batches

    @property
    def cursor(self) -> int | None:
        """The sequence number behind the last batch received, where a new follow would go on."""
        return self._batches.cursor

    async def begun(self) -> int:
        """Wait until the hub has said where the stream begins: what is published from then on is received."""
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _ask_services(after: int, request_id: int) -> ask.Services:
    return ask.Services(id=request_id, after=after)


def _ask_consumers(after: int, request_id: int) -> ask.Consumers:
    return ask.Consumers(id=request_id, after=after)


def _field(predicate: Predicate | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(predicate, Mapping):
        return predicate
    decoded: Mapping[str, Any] = msgspec.json.decode(serialize_field(predicate))
    return decoded


def _check_seq(name: str, seq: int) -> None:
    if not 1 <= seq <= MAX_SEQUENCE + 1:
        raise UsageError(f"{name} {seq}: sequence numbers begin at 1 and end at {MAX_SEQUENCE}")


def _check_time(name: str, micros: float) -> float:
    """A hub drops a connection on which a number comes that it cannot read, and would be asked again and again."""
    if not 0 <= micros <= ask.MAX_NUMBER:
        raise UsageError(f"{name}: no message is of {micros:.0f} µs since 1970")
    return micros


def signer(client_id: str, key: str) -> Callable[[], Mapping[str, Any]]:
    """Makes the auth of each hello, for whoever has this id and key."""
    try:
        binary = parse_client_id(client_id)
    except MalformedError as error:
        raise UsageError(f"client_id {client_id!r}: expected {error.limit}") from None

    def made() -> Mapping[str, Any]:
        timestamp = f"{time():.6f}"
        auth = Auth(binary, timestamp, sign(key.encode(), binary, timestamp))
        decoded: Mapping[str, Any] = msgspec.json.decode(serialize_auth(auth))
        return decoded

    return made
