"""The client of the link: publish with acknowledgement, read any range, follow from anywhere.

    async with headrace.connect() as link:
        first, last = await link.publish([b"hello", b"world"], topic="greetings")
        async for message in link.follow(from_seq=first, topic="greetings"):
            print(message.seq, message.payload)

Strategy: this is the interface, and little more. A :class:`~headrace.client.link.connection.LinkConnection` keeps the
tube open, a :class:`~headrace.client.link.publisher.LinkPublisher` publishes, and a
:class:`~headrace.client.link.streams.BatchStream` brings rows. The requests about the hub's state are inherited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, Unpack

import pyarrow as pa

from headrace.client.base import Attributes, Start, parse_url
from headrace.client.conditions import AnyConditions, Condition, alternatives_of
from headrace.client.identity import check_credentials, signer
from headrace.client.link.backtest import Backtest
from headrace.client.link.connection import LinkConnection
from headrace.client.link.consumer import Consumer
from headrace.client.link.hub_state import StateRequests
from headrace.client.link.publisher import WINDOW, Acknowledged, LinkPublisher
from headrace.client.link.requests import Make
from headrace.client.link.rows import Publishable, published_rows
from headrace.client.link.service_history import first_held, service_states
from headrace.client.link.streams import (
    BatchStream,
    EntryStream,
    MessageStream,
    RowSelection,
    Where,
    check_from_seq,
    check_time,
)
from headrace.client.tls import RenewedContext, TlsOptions, client_tls
from headrace.config import Address
from headrace.errors import RefusedError, UsageError
from headrace.hub.services.objects import Service
from headrace.matching import FENCE_WINDOW
from headrace.message import MAX_SEQUENCE
from headrace.wire.link import requests as ask
from headrace.wire.link.message import Body, LinkMessage, body_of


class LinkOptions(TlsOptions, total=False):
    """The options of a :class:`LinkClient`."""

    transport: Literal["tcp", "websocket"]
    name: str
    timeout: float
    reconnect_timeout: float
    credit: int
    client_id: str | None
    key: str | None
    random: Random | None


@dataclass(frozen=True, slots=True)
class Extent:
    """The range of a log. Times are µs since 1970; ``None`` in an empty log.

    >>> from headrace.testing import Hub
    >>> with Hub() as hub, hub.connect_sync("tube://") as link:
    ...     extent = link.head()
    >>> extent.first, extent.head, extent.head_time
    (1, 0, None)
    """

    log: str
    """The log's uuid."""
    first: int
    """The oldest sequence number that is kept."""
    head: int
    """The newest sequence number that is committed."""
    first_time: int | None
    head_time: int | None
    path: str
    """The directory of the log on the hub's machine."""
    reach: int | None = None
    """The last message within the bytes asked about, if any were."""
    history: tuple[str | None, ...] = ()
    """The fingerprints of the history that were asked for; ``None`` where the hub does not know it, or does not tell it
    to a client that may not read everything."""


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
        What carries the tube: ``"tcp"``, or ``"websocket"``, as with ``ws://``.
    ``name``
        The name by which the hub knows this client.
    ``timeout``
        Seconds that the first connection may take; then :class:`~headrace.errors.UnreachableError`.
    ``reconnect_timeout``
        Seconds for which the client tries to reconnect; then pending calls fail with
        :class:`~headrace.errors.UnreachableError`.
    ``credit``
        Most bytes of a stream on their way or waiting here.
    ``client_id``, ``key``
        Credentials, for a hub whose ``auth.required`` is on.
    ``ca``, ``cert``, ``cert_key``, ``pin``
        Files for TLS, where the scheme says so: :class:`~headrace.client.tls.TlsOptions`.
    ``random``
        The source of randomness for delays.
    """

    DOORS: ClassVar = {"tube": "tube_tcp", "ws": "tube_ws", "tube+tls": "tube_tcp", "wss": "tube_ws"}

    def __init__(
        self,
        hosts: Sequence[Address],
        *,
        transport: Literal["tcp", "websocket"] = "tcp",
        name: str = "",
        timeout: float = 10.0,
        reconnect_timeout: float = 30.0,
        credit: int = ask.DEFAULT_CREDIT,
        client_id: str | None = None,
        key: str | None = None,
        random: Random | None = None,
        tls: RenewedContext | None = None,
    ) -> None:
        if not 1 <= credit <= ask.MAX_CREDIT:
            raise UsageError(f"credit {credit}: expected 1 to {ask.MAX_CREDIT}")
        check_credentials(client_id, key)
        if transport not in ("tcp", "websocket"):
            raise UsageError(f"transport {transport!r}: expected 'tcp' or 'websocket'")
        proof = None if client_id is None or key is None else signer(client_id, key)
        scheme = "tube" if transport == "tcp" else "ws"
        random = random or Random()
        super().__init__(
            LinkConnection(hosts, name, proof, reconnect_timeout, random, scheme, tls), credit, timeout
        )
        self._publishers: list[LinkPublisher] = []
        self._own: LinkPublisher | None = None

    @classmethod
    def at(cls, url: str = "tube://", hosts: str | None = None, **options: Unpack[LinkOptions]) -> Self:
        """Make the client of a hub by its URL; see :func:`headrace.connect`."""
        scheme, addresses = parse_url(url, hosts, cls.DOORS)
        if scheme in ("ws", "wss") and options.setdefault("transport", "websocket") != "websocket":
            raise UsageError(f"{url!r} is a WebSocket and transport={options['transport']!r} says otherwise")
        given: Any = options
        return cls(addresses, tls=client_tls(scheme, given), **given)

    async def close(self) -> None:
        """Disconnect; it may be called again. Unacknowledged publishes fail: see :meth:`flush`."""
        for publisher in self._publishers:
            publisher.end()
        await super().close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close()

    @property
    def log(self) -> str:
        """The uuid of the log that all sequence numbers refer to."""
        if self._connection.log is None:
            self._connection.check()
            raise UsageError("the client is not open yet")
        return self._connection.log

    # Looking

    async def head(
        self, *, from_seq: int | None = None, size: int | None = None, history: Sequence[int] = ()
    ) -> Extent:
        """Return the log's range.

        ``reach`` is about how far ``size`` bytes from ``from_seq`` on go. ``history`` has a fingerprint of the messages
        up to each of those named, at most two: where it differs, two logs have different messages up to there.
        """
        answer = await self._connection.call(
            lambda n: ask.HeadRequest(id=n, first=from_seq, bytes=size, history=tuple(history))
        )
        fields = ("first", "head", "first_time", "head_time", "path", "reach")
        told = answer.head.get("history") or [None] * len(history)
        return Extent(self.log, *(answer.head.get(each) for each in fields), tuple(told))  # type: ignore[arg-type,call-arg]

    async def first_at(self, time: int) -> int:
        """Return the first sequence number stamped at ``time`` (µs since 1970) or later, or ``head + 1``."""
        check_time("time", time)
        selection = RowSelection(None, None, None, 1)
        async with BatchStream(self._connection, selection, cursor=None, time=time, follow=True) as stream:
            return await stream.begun()

    # Reading

    def read(
        self,
        from_seq: Start = 1,
        to_seq: int | None = None,
        *,
        topic: str | None = None,
        origin: str | Sequence[str] | None = None,
        where: Where | None = None,
    ) -> BatchStream:
        """Read messages ``from_seq`` to ``to_seq`` (or to the present head) as record batches in the envelope's schema.

        ``topic``, ``origin`` and ``where`` select among them.
        """
        check_from_seq(from_seq)
        if from_seq == "now":
            raise UsageError("a read from now on has nothing to read: follow what is to come")
        if to_seq is not None and not 0 <= to_seq <= MAX_SEQUENCE:
            raise UsageError(f"to_seq {to_seq}: sequence numbers end at {MAX_SEQUENCE}")
        selection = RowSelection(topic, origin, where, self._credit)
        return BatchStream(self._connection, selection, cursor=from_seq, last=to_seq, follow=False)

    def follow(
        self,
        from_seq: Start | None = None,
        *,
        from_time: float | None = None,
        topic: str | None = None,
        origin: str | Sequence[str] | None = None,
        where: Where | None = None,
    ) -> MessageStream:
        """Follow messages without end: from a number, the ``"earliest"`` kept or a time (seconds since 1970) on.

        Without any of these it begins now.
        Iterate for messages, or over :meth:`MessageStream.batches` for record batches.
        """
        if from_seq is not None:
            if from_time is not None:
                raise UsageError("a follow begins at a sequence number or at a time, not at both")
            check_from_seq(from_seq)
        selection = RowSelection(topic, origin, where, self._credit)
        at = None if from_time is None else int(check_time("from_time", from_time * 1_000_000))
        return MessageStream(BatchStream(self._connection, selection, cursor=from_seq, time=at, follow=True))

    def entries(
        self, first: int, last: int | None, *, topic: str | None = None, from_op: int | None = None
    ) -> EntryStream:
        """Read the log's entries, the hub's own bookkeeping, that stand after messages ``first`` to ``last``.

        Without ``last``, they are followed, without end. ``first`` may be 0, the beginning; entries that were removed
        together with a message before the oldest kept do not come. ``topic`` selects among them. ``from_op`` is the
        :attr:`~headrace.EntryStream.position` from which on to resume: if any since are no longer kept, that raises.
        """
        for name, seq in (("first", first), ("last", last)):
            if seq is not None and not 0 <= seq <= MAX_SEQUENCE:
                raise UsageError(f"{name} {seq}: sequence numbers end at {MAX_SEQUENCE}")
        return EntryStream(self._connection, first, last, topic, self._credit, position=from_op)

    async def match(
        self,
        conditions: Mapping[str, Condition] | AnyConditions,
        from_seq: Start = 1,
        to_seq: int | None = None,
        *,
        json_attributes: bool = False,
        fence_window: int = FENCE_WINDOW,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read what a content subscription would have delivered of messages ``from_seq`` to ``to_seq``, or to the head.

        The matcher's own engine judges them here, as if it had been subscribed just before ``from_seq``.
        ``json_attributes`` and ``fence_window`` are the hub's settings, ``matching.…``. With fences the rows have one
        more column, ``events``.
        """
        wanted = alternatives_of(conditions)
        if not wanted:
            raise UsageError("a subscription names an attribute at least")
        async with self.read(from_seq, to_seq) as stream:
            backtest = Backtest(wanted, json_attributes=json_attributes, window=fence_window)
            async for rows in stream:
                if (found := backtest.passing(rows)).num_rows:
                    yield found

    async def service_as_of(self, service: str, seq: int) -> bytes:
        """Return the value that a service had after a message, made again from the log.

        The log must still have everything from its beginning on; :class:`~headrace.errors.TrimmedError` if it has not.
        """
        found: Service | None = None
        async for _, state in self._service_states(service, seq):
            found = state
        if found is None:
            raise RefusedError("unknown", f"there was no service {service!r} after message {seq}")
        return found.snapshot

    async def service_bisect(
        self, service: str, conditions: Mapping[str, Condition] | AnyConditions
    ) -> tuple[int, bytes] | None:
        """Find the message after which a service first satisfied conditions on the top-level members of its object.

        Returns its number and the object then; ``None`` if they never held. The log must have everything from its
        beginning on.
        """
        found = await first_held(self._service_states(service, None), alternatives_of(conditions))
        return None if found is None else (found.seq, found.value or b"")

    def _service_states(self, service: str, last: int | None) -> AsyncIterator[tuple[int, Service | None]]:
        async def states() -> AsyncIterator[tuple[int, Service | None]]:
            head = (await self.head()).head
            upto = head if last is None else last
            if not 0 <= upto <= head:
                raise UsageError(f"there is no message {upto}: the newest is {head}")
            reading = service_states(
                service,
                lambda topic: self.read(1, upto, topic=topic),
                # From the first position on, so that entries that are gone are an error. What stands after the last
                # message came later: more may follow it, and the answer would not stay the same.
                lambda topic: self.entries(0, max(upto - 1, 0), topic=topic, from_op=1),
            )
            async for state in reading:
                yield state

        return states()

    def consumer(
        self,
        name: str,
        *,
        from_seq: Start | None = None,
        topic: str | None = None,
        origin: str | Sequence[str] | None = None,
        where: Where | None = None,
        ack_seconds: float | None = None,
        max_tries: int | None = None,
        dead_letter: str | None = None,
        credit: int | None = None,
    ) -> Consumer:
        """Join a durable consumer; if there is none of this name it is created, to begin at ``from_seq`` or now.

        The terms (``topic`` to ``dead_letter``) are fixed when it is created; later members pass the same ones, or
        none. ``credit`` is how many bytes of messages wait here at most. The ack timer (``ack_seconds``) starts when
        the hub sends a message, not when your loop reaches it, so a slow member should have few waiting.
        """
        if from_seq is not None:
            check_from_seq(from_seq)
        selection = RowSelection(topic, origin, where, self._credit if credit is None else credit)
        terms = selection.members()
        terms |= {"from_seq": from_seq, "ack_seconds": ack_seconds}
        terms |= {"max_tries": max_tries, "dead_letter": dead_letter}
        return Consumer(self._connection, name, terms, terms.pop("credit"))

    # Publishing

    async def publish(
        self,
        payload: Publishable,
        *,
        topic: str = "",
        attributes: Attributes | None = None,
        numbers: Mapping[str, float] | None = None,
    ) -> Acknowledged:
        """Publish one or many messages; returns the first and the last sequence number once they are committed.

        A message is bytes or a dictionary (:class:`~headrace.Row`); many are a list of them, or an Arrow table.
        Numbers among ``attributes`` are numbers to subscriptions and filters.
        """
        if self._own is None:
            self._own = self.publisher()
        return await self._own.publish(payload, topic=topic, attributes=attributes, numbers=numbers)

    def publisher(
        self, name: str | None = None, *, window: int = WINDOW, origin: str = "tube"
    ) -> LinkPublisher:
        """Make a publisher, which can send up to ``window`` bytes ahead of the acknowledgements.

        With a ``name`` it continues the numbers of an earlier publisher of that name, which are in the log. Its first
        publish opens the name: any other publisher that still uses it, in whatever process, is fenced, and its next
        publish raises :class:`~headrace.errors.RefusedError` with the code ``fenced``.
        """
        publisher = LinkPublisher(self._connection, name, window, origin)
        self._publishers.append(publisher)
        return publisher

    async def flush(self) -> None:
        """Wait until everything published is acknowledged."""
        for publisher in self._publishers:
            await publisher.flush()

    # Stages

    async def stage(self, query: str, batch: int, rows: Publishable, *, part: int = 0) -> str:
        """Stage rows of a query's batch, which nobody sees before :meth:`commit`; returns the stage's name."""
        body = body_of(published_rows(rows))
        answer = await self._connection.call(
            lambda n: ask.StageRequest(id=n, query=query, batch=batch, part=part), body
        )
        return str(answer.head["stage"])

    async def commit(
        self, query: str, batch: int, stages: Sequence[str], *, origin: str = "spark", services: bool = False
    ) -> Acknowledged:
        """Append all rows of some stages at once, unless that batch of the query is in the log already.

        With ``services``, each row changes the service that its topic names, which is created on first use.
        """
        answer = await self._connection.call(
            lambda n: ask.CommitRequest(
                id=n, query=query, batch=batch, stages=list(stages), origin=origin, services=services
            )
        )
        return Acknowledged(answer.head.get("first"), answer.head.get("last"))

    async def abort(self, stages: Sequence[str]) -> None:
        """Drop stages."""
        await self._connection.call(lambda n: ask.AbortRequest(id=n, stages=list(stages)))

    async def ask(self, make: Make[Any], body: Body | None = None) -> LinkMessage:
        """Send a request that may be repeated; ``make`` builds it from its id."""
        return await self._connection.call(make, body)
