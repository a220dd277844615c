"""The client of the link: publish with acknowledgement, read any range, follow from anywhere.

    async with headrace.connect("tube://127.0.0.1:8081") as link:
        first, last = await link.publish([b"hello", b"world"], topic="greetings")
        async for message in link.follow(from_seq=first, topic="greetings"):
            print(message.seq, message.payload)

Strategy: this is what a user meets, and no more. The tube is kept and replaced by a
:class:`~headrace.client.link.connection.Connection`; publishing is done by a
:class:`~headrace.client.link.publisher.Publisher`; rows come by :class:`~headrace.client.link.streams.Batches`, and
single messages are made only when asked for. What a hub keeps beside its messages is asked by the
:class:`~headrace.client.link.hub_state.StateRequests` that a client is as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict

from headrace.client.identity import signer
from headrace.client.link.connection import Connection
from headrace.client.link.consumer import Consumer
from headrace.client.link.hub_state import StateRequests
from headrace.client.link.publisher import WINDOW, Acknowledged, Publisher
from headrace.client.link.requests import Make
from headrace.client.link.rows import Publishable, published_rows
from headrace.client.link.streams import Batches, Chosen, Follow, Where, check_seq, check_time
from headrace.config import Address
from headrace.errors import UsageError
from headrace.message import MAX_SEQUENCE
from headrace.protocols import PORTS
from headrace.wire.link import requests as ask
from headrace.wire.link.message import Body, LinkMessage, body_of

__all__ = [
    "DEFAULT_PORT",
    "WEBSOCKET_PORT",
    "Batches",
    "Extent",
    "Follow",
    "LinkClient",
    "Options",
    "Where",
]

DEFAULT_PORT: Final = PORTS["tube_tcp"]
WEBSOCKET_PORT: Final = PORTS["tube_ws"]

_SCHEMES: Final = {"tcp": "tube", "websocket": "ws"}


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


class LinkClient(StateRequests):
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
        scheme = _SCHEMES[transport]
        super().__init__(Connection(hosts, name, proof, patience, random or Random(), scheme=scheme), credit)
        self._timeout = timeout
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
        answer = await self._connection.call(lambda n: ask.HeadRequest(id=n, first=first, bytes=size))
        head = answer.head
        told = ("first", "head", "first_time", "head_time", "message", "path", "reach")
        return Extent(self.log, *(head.get(each) for each in told))  # type: ignore[arg-type]

    async def first_at(self, time: int) -> int:
        """The first sequence number stamped at ``time`` (µs since 1970) or later; ``head + 1`` if all are older."""
        check_time("time", time)
        chosen = Chosen(None, None, None, True, 1)
        async with Batches(self._connection, chosen, cursor=None, time=time, follow=True) as stream:
            return await stream.begun()

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
        check_seq("first", first)
        if last is not None and not 0 <= last <= MAX_SEQUENCE:
            raise UsageError(f"last {last}: sequence numbers end at {MAX_SEQUENCE}")
        chosen = Chosen(topic, origin, where, entries, self._credit)
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
            check_seq("from_seq", from_seq)
        chosen = Chosen(topic, origin, where, entries, self._credit)
        at = None if from_time is None else int(check_time("from_time", from_time * 1_000_000))
        return Follow(Batches(self._connection, chosen, cursor=from_seq, time=at, follow=True))

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
            check_seq("from_seq", from_seq)
        chosen = Chosen(topic, origin, where, False, self._credit if credit is None else credit)
        terms = chosen.members()
        terms |= {"from_seq": from_seq, "ack_seconds": ack_seconds}
        terms |= {"max_tries": max_tries, "dead_letter": dead_letter}
        return Consumer(self._connection, name, terms, terms.pop("credit"))

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
            lambda n: ask.StageRequest(id=n, query=query, batch=batch, part=part), body
        )
        return str(answer.head["stage"])

    async def commit(
        self, query: str, batch: int, stages: Sequence[str], *, origin: str = "spark", services: bool = False
    ) -> Acknowledged:
        """Append all rows of some stages at once, unless that batch of the query is in the log already.

        With ``services``, each row is a change to the service that its topic names, which is created on first use.
        """
        answer = await self._connection.call(
            lambda n: ask.CommitRequest(
                id=n, query=query, batch=batch, stages=list(stages), origin=origin, services=services
            )
        )
        return Acknowledged(answer.head.get("first"), answer.head.get("last"))

    async def abort(self, stages: Sequence[str]) -> None:
        """Forget stages."""
        await self._connection.call(lambda n: ask.AbortRequest(id=n, stages=list(stages)))

    async def ask(self, make: Make[Any], body: Body | None = None) -> LinkMessage:
        """Ask anything that may be asked twice: ``make`` makes a request of the number it is given."""
        return await self._connection.call(make, body)
