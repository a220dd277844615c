"""Durable consumers over the link: join, acknowledge, list, reset and remove.

A consumer in use has a :class:`~headrace.hub.consumers.group.ConsumerGroup`, which is kept until everything it knows is
in the log. Its members are streams of the link (:class:`Member`); threads read and filter the log for them. Every
change is a log entry, and is answered once the entry is committed.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.errors import (
    HeadraceError,
    LimitError,
    MalformedError,
    RefusedError,
    StorageError,
    TrimmedError,
)
from headrace.hub.access.principal import Action, Rights
from headrace.hub.consumers import cursors as consumers
from headrace.hub.consumers.cursors import (
    Consumer,
    ConsumerEvent,
    ConsumerRemoved,
    ConsumerReset,
    Consumers,
    Lag,
    RangesForgotten,
)
from headrace.hub.consumers.delivery import Assign
from headrace.hub.consumers.group import ConsumerFilter, ConsumerGroup, Found, WhenRead
from headrace.hub.consumers.outstanding import spans
from headrace.hub.consumers.settlements import TurnEntries
from headrace.hub.consumers.terms import Terms
from headrace.hub.filtered_read import read_passing
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.message import SCHEMA, Batch
from headrace.net.link.connection import LinkConnection
from headrace.net.link.streams.credit import CreditedStream, StreamTarget
from headrace.net.link.streams.row_bodies import MAX_BODY, MAX_LONE_BODY, MERGED_BYTES, SCAN_BYTES
from headrace.net.server.machine.reader_threads import ReaderThreads
from headrace.wire.link import requests as ask
from headrace.wire.link.message import ROWS_BYTES, Buffer, body_of

CONSUMERS_A_TIME: Final = 256

MOST_ROWS: Final = 4096
"""Approximate number of matching messages that are read for a member at a time."""

_NO_ROWS: Final = pa.RecordBatch.from_pylist([], SCHEMA)


class Member(CreditedStream):
    """A member of a durable consumer, which is a stream of its connection."""

    def __init__(
        self, stream_id: int, client: StreamTarget, group: ConsumerGroup, number: int, credit: int
    ) -> None:
        super().__init__(stream_id, client, credit)
        self.client = client
        self.number = number
        self.needs = 1
        self.reading = False
        self._group = group
        client.event({"id": stream_id, "event": "at", "seq": group.consumer.floor})

    # Called by its connection

    def close(self) -> None:
        """Leave the consumer in good order."""
        self._leave(tried=False)

    def lose(self) -> None:
        """Leave without notice, so that it is not known which messages the client has handled."""
        self._leave(tried=True)

    def pump(self) -> None:
        """Ask for more messages if there is room for them."""
        if self.able:
            self._group.ready(self)

    # Called by its group

    @property
    def able(self) -> bool:
        """Whether the member can take more messages."""
        return not (self._closed or self.reading or self.client.full) and self._credit.allows(self.needs)

    @property
    def room(self) -> int:
        """Bytes of free credit."""
        return self._credit.room

    def allows(self, size: int) -> bool:
        """Whether its credit allows an event of this size."""
        return self._credit.allows(size)

    def send(self, given: Assign, last: int, body: Buffer) -> None:
        """Send rows."""
        self._credit.spend(len(body))
        head = {"id": self.id, "event": "rows", "first": given.first, "last": last, "tries": given.tries}
        self.client.event(head, body)

    def end(self, error: HeadraceError) -> None:
        """End the stream with an error that is not the client's fault."""
        self._end(error)

    def _leave(self, *, tried: bool) -> None:
        if not self._closed:
            self._closed = True
            self._group.leave(self, tried=tried)


class LinkConsumers:
    """The durable consumers of one hub's link."""

    def __init__(self, hub: Hub, known: Consumers, readers: ReaderThreads) -> None:
        self._hub = hub
        self._log = hub.log
        self._known = known
        self._readers = readers
        self._groups: dict[str, ConsumerGroup] = {}
        self._members = 0
        self._entries = TurnEntries(hub.submit, lambda act: asyncio.get_running_loop().call_soon(act))
        known.observer = self._observe
        known.known_lag = self._lag
        known.members = self.members

    # Called by the door

    def deliver(self) -> None:
        """Continue all groups after a commit."""
        for group in self._groups.values():
            group.drive()

    def tick(self, now: float) -> None:
        """Enforce deadlines, and drop idle groups."""
        for name, group in list(self._groups.items()):
            group.tick(now)
            if group.idle:
                del self._groups[name]

    def stop(self) -> None:
        """Stop reading the log, since the hub is stopping."""
        for group in self._groups.values():
            group.stop()

    def members(self, name: str) -> int:
        """Return the number of a consumer's members."""
        group = self._groups.get(name)
        return 0 if group is None else group.members

    # Requests

    def follow(self, connection: LinkConnection, request: ask.FollowRequest, name: str) -> None:
        """Join a consumer, and create it if it does not exist."""
        if request.time is not None:
            raise RefusedError("conflict", "a consumer begins at a sequence number, not at a time")
        connection.streams.check_room()
        terms = _terms(request)
        consumer = self._known.get(name)
        if consumer is not None and terms == Terms():
            terms = consumer.terms
        terms = _with_rights(terms, connection.principal.rights(Action.READ))
        start = self._log.head + 1 if request.from_seq is None else request.from_seq
        if consumer is None:
            self._check_place("from", start)
        creation = self._known.creation(name, terms, start)
        if creation is None:
            self._join(connection, request, name)
            return

        def created(_: Batch) -> None:
            connection.streams.check_room()
            # Another client may have created it first, with other terms, or have removed it since.
            if self._known.creation(name, terms, start) is not None:
                raise RefusedError("missing", f"consumer {name!r} was removed")
            self._join(connection, request, name)

        connection.submit(request.id, creation, created)

    def ack(self, connection: LinkConnection, request: ask.AckRequest, _body: memoryview) -> None:
        """Acknowledge messages, or note that processing them failed."""
        ranges = request.seqs
        for first, last in ranges:
            if first > last:
                raise MalformedError(
                    "link", "seqs", [first, last], "a first number that is not above the last"
                )
        consumer = self._get(request.consumer)

        def reply(error: StorageError | None) -> None:
            if error is not None:
                connection.fail(request.id, error)
            elif request.nack:
                connection.answer(request.id)
            else:
                connection.answer(request.id, missed=consumer.missing(ranges))

        group = self._groups.get(consumer.name)
        if group is None:
            reply(None)
        elif request.nack:
            group.nack(connection, ranges, reply)
        else:
            group.ack(ranges, reply)

    def manage(self, connection: LinkConnection, request: ask.ConsumersRequest, _body: memoryview) -> None:
        """List consumers; show, reset or remove one."""
        if request.action == "list":
            principal = connection.principal
            later = (
                consumer
                for consumer in self._known
                if consumer.created > request.after and principal.may(Action.CONSUME, consumer.name)
            )
            described = [self.described(consumer) for consumer in islice(later, CONSUMERS_A_TIME)]
            connection.answer(request.id, consumers=described)
            return
        if request.consumer is None:
            raise RefusedError("malformed", f"{request.action}: name the consumer")
        consumer = self._get(request.consumer)
        if request.action == "show":
            self._show(connection, request.id, consumer)
            return
        if request.action == "remove":
            batch = consumers.remove(consumer.name)
        else:
            if request.to is None:
                raise RefusedError("malformed", "reset: give the position in 'to'")
            self._check_place("to", request.to)
            batch = consumers.reset(consumer.name, request.to)

        def done(_: Batch) -> None:
            left = self._known.get(consumer.name)
            if left is None:
                connection.answer(request.id, consumers=[])
            else:
                self._show(connection, request.id, left)

        connection.submit(request.id, batch, done)

    def described(self, consumer: Consumer) -> dict[str, Any]:
        """Describe a consumer."""
        return {
            "consumer": consumer.name,
            "created": consumer.created,
            "floor": consumer.floor,
            "gaps": len(consumer.done),
            **consumers.lag_facts(self._known.lag(consumer, self._log.head)),
            "members": self.members(consumer.name),
            "dead": consumer.dead,
            "lost": consumer.lost,
        }

    def _show(self, connection: LinkConnection, request_id: int, consumer: Consumer) -> None:
        terms = {**msgspec.structs.asdict(consumer.terms), "dead_letter": consumer.dead_letter}
        connection.answer(request_id, consumers=[{**self.described(consumer), "terms": terms}])

    def _get(self, name: str) -> Consumer:
        consumer = self._known.get(name)
        if consumer is None:
            raise RefusedError("missing", f"there is no consumer {name!r}")
        return consumer

    def _check_place(self, field: str, seq: int) -> None:
        if seq < self._log.first:
            raise TrimmedError(seq, self._log.first - 1, self._log.first)
        if seq > self._log.head + 1:
            raise MalformedError("link", field, seq, f"at most {self._log.head + 1}, the next one")

    def _join(self, connection: LinkConnection, request: ask.FollowRequest, name: str) -> None:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._group(self._get(name))
        member = Member(request.id, connection, group, self._members, request.credit)
        self._members += 1
        group.join(member)
        connection.stream(member)

    def _group(self, consumer: Consumer) -> ConsumerGroup:
        loop, wanted = asyncio.get_running_loop(), ConsumerFilter(consumer)

        def read(first: int, last: int, room: int, reply: WhenRead) -> None:
            def done(future: asyncio.Future[Found]) -> None:
                if not future.cancelled():
                    reply(future.exception() or future.result(), loop.time())

            share = self._readers.at(self._log, first)
            reading = loop.run_in_executor(share, find, self._log, first, last, wanted, room)
            reading.add_done_callback(done)

        return ConsumerGroup(consumer, self._hub, self._entries, read=read, soon=loop.call_soon)

    def _lag(self, consumer: Consumer, head: int) -> Lag | None:
        group = self._groups.get(consumer.name)
        return None if group is None else group.delivery.lag(head)

    def _observe(self, event: ConsumerEvent) -> None:
        group = self._groups.get(event.consumer.name)
        if group is None:
            return
        match event:
            case ConsumerReset():
                group.restart()
            case ConsumerRemoved(consumer):
                del self._groups[consumer.name]
                group.end(RefusedError("missing", f"consumer {consumer.name!r} was removed"))
            case RangesForgotten(_, settled):
                group.again(settled)


def find(log: Log, first: int, last: int, wanted: ConsumerFilter, room: int) -> Found:
    """Read until there are enough matching rows or no more room; one matching row always fits."""
    budget = min(ROWS_BYTES, room)
    found: list[pa.RecordBatch] = []
    at, size, count, scanned = first, 0, 0, 0
    while at <= last and size < budget and count < MOST_ROWS and scanned < SCAN_BYTES:
        passing, upto, cost = read_passing(log, at, last, wanted, ROWS_BYTES, MERGED_BYTES)
        at, scanned = upto + 1, scanned + cost
        found += passing
        size += sum(rows.nbytes for rows in passing)
        count += sum(rows.num_rows for rows in passing)
    if not found:
        return Found(at - 1, _NO_ROWS, [], None)
    rows = found[0] if len(found) == 1 else pa.concat_batches(found)
    if size > budget:
        count = max(1, count * budget // size)
    body = body_of(rows.slice(0, count))
    while body.nbytes > min(room, MAX_BODY) and count > 1:
        count //= 2
        body = body_of(rows.slice(0, count))
    if body.nbytes > MAX_LONE_BODY:
        raise LimitError("link", f"message {rows.column('seq')[0].as_py()}", body.nbytes, MAX_LONE_BODY)
    if count < rows.num_rows:
        rows = rows.slice(0, count)
        at = rows.column("seq")[count - 1].as_py() + 1
    return Found(at - 1, rows, spans(rows.column("seq").to_numpy()), body)


def _with_rights(terms: Terms, rights: Rights) -> Terms:
    """Restrict terms to what a member may read; the order in which its rights are written does not matter."""
    everything = rights.allowed is None or "**" in rights.allowed
    return msgspec.structs.replace(
        terms,
        readable=None if everything else tuple(sorted(set(rights.allowed or ()))),
        denied=tuple(sorted(set(rights.denied))),
    )


def _terms(request: ask.FollowRequest) -> Terms:
    """Return the terms that a follow gives, in the form in which they are read back from a log entry."""
    given: dict[str, Any] = {"topic": request.topic, "dead_letter": request.dead_letter}
    if request.origin is not None:
        origins = [request.origin] if isinstance(request.origin, str) else request.origin
        given["origin"] = tuple(sorted(set(origins)))
    if request.where is not None:
        ask.parse_where(request.where)
        given["where"] = msgspec.json.decode(msgspec.json.encode(request.where))
    if request.ack_seconds is not None:
        given["ack_seconds"] = request.ack_seconds
    if request.max_tries is not None:
        given["max_tries"] = request.max_tries
    return Terms(**given)
