"""Durable consumers over the link: joining one, acknowledging, looking at them, moving and removing them.

Each consumer that somebody uses has a :class:`~headrace.net.link.consumer_driver.Driver`, which is kept until it
knows nothing that the log does not. Here requests find theirs, are checked, and are answered. What they change is an
entry of the log, and the answer comes once that is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Final

import msgspec

from headrace.errors import HeadraceError, MalformedError, RefusedError, StorageError, TrimmedError
from headrace.hub.consumers import cursors as consumers
from headrace.hub.consumers.cursors import Consumer, Consumers, Event, Forgotten, Removed, Reset, Terms
from headrace.hub.consumers.outstanding import clip
from headrace.hub.sequence import Hub
from headrace.hub.sequence_ranges import Range
from headrace.message import Batch
from headrace.net.link.connection import LinkConnection
from headrace.net.link.consumer_driver import Driver, Member
from headrace.wire.link import requests as ask

CONSUMERS_A_TIME: Final = 256


class LinkConsumers:
    """The durable consumers of one hub's link."""

    def __init__(self, hub: Hub, known: Consumers, readers: Executor) -> None:
        self._hub = hub
        self._log = hub.log
        self._known = known
        self._readers = readers
        self._drivers: dict[str, Driver] = {}
        self._members = 0
        known.observer = self._observe

    # What the door asks

    def deliver(self) -> None:
        """Something was committed."""
        for driver in self._drivers.values():
            driver.drive()

    def tick(self, now: float) -> None:
        """Judge deadlines, and forget drivers that are of no more use."""
        for name, driver in list(self._drivers.items()):
            driver.tick(now)
            if driver.idle:
                del self._drivers[name]

    def stop(self) -> None:
        """The hub is going down: the log is not read any more."""
        for driver in self._drivers.values():
            driver.stop()

    def members(self, name: str) -> int:
        """How many members a consumer has."""
        driver = self._drivers.get(name)
        return 0 if driver is None else driver.members

    # What clients ask

    def follow(self, connection: LinkConnection, request: ask.FollowRequest, name: str) -> None:
        """Join a consumer, which is created if it is not there."""
        if request.time is not None:
            raise RefusedError("conflict", "a consumer begins at a sequence number, not at a time")
        connection.check_room_for_stream()
        terms = _terms(request)
        consumer = self._known.get(name)
        if consumer is not None and terms == Terms():
            terms = consumer.terms
        start = self._log.head + 1 if request.from_seq is None else request.from_seq
        if consumer is None:
            self._check_place("from", start)
        creation = self._known.creation(name, terms, start)
        if creation is None:
            self._join(connection, request, name)
            return

        def created(_: Batch) -> None:
            connection.check_room_for_stream()
            # Another one's creation may have come first, on other terms, or its removal since.
            if self._known.creation(name, terms, start) is not None:
                raise RefusedError("missing", f"consumer {name!r} was removed")
            self._join(connection, request, name)

        self._submit(connection, request.id, creation, created)

    def ack(self, connection: LinkConnection, request: ask.AckRequest, _body: memoryview) -> None:
        """Messages are done with, or have failed."""
        ranges = request.seqs
        for first, last in ranges:
            if first > last:
                raise MalformedError("link", "seqs", [first, last], "the first not behind the last")
        consumer = self._get(request.consumer)

        def told(error: StorageError | None) -> None:
            if error is not None:
                connection.fail(request.id, error)
            elif request.nack:
                connection.answer(request.id)
            else:
                connection.answer(request.id, None, missed=missed(consumer, ranges))

        driver = self._drivers.get(consumer.name)
        if driver is None:
            told(None)
        elif request.nack:
            driver.nack(connection, ranges, told)
        else:
            driver.ack(ranges, told)

    def manage(self, connection: LinkConnection, request: ask.ConsumersRequest, _body: memoryview) -> None:
        """Look at consumers, move or remove one."""
        if request.action == "list":
            later = (consumer for consumer in self._known if consumer.created > request.after)
            described = [self.described(consumer) for consumer in islice(later, CONSUMERS_A_TIME)]
            connection.answer(request.id, None, consumers=described)
            return
        if request.consumer is None:
            raise RefusedError("malformed", f"{request.action}: say which consumer")
        consumer = self._get(request.consumer)
        if request.action == "show":
            self._show(connection, request.id, consumer)
            return
        if request.action == "remove":
            batch = consumers.remove(consumer.name)
        else:
            if request.to is None:
                raise RefusedError("malformed", "reset: say where to")
            self._check_place("to", request.to)
            batch = consumers.reset(consumer.name, request.to)

        def done(_: Batch) -> None:
            left = self._known.get(consumer.name)
            if left is None:
                connection.answer(request.id, None, consumers=[])
            else:
                self._show(connection, request.id, left)

        self._submit(connection, request.id, batch, done)

    def described(self, consumer: Consumer) -> dict[str, Any]:
        """A consumer's facts."""
        return {
            "consumer": consumer.name,
            "created": consumer.created,
            "floor": consumer.floor,
            "gaps": len(consumer.done),
            "behind": max(0, self._log.head - consumer.floor),
            "members": self.members(consumer.name),
            "dead": consumer.dead,
            "lost": consumer.lost,
        }

    def _show(self, connection: LinkConnection, request_id: int, consumer: Consumer) -> None:
        terms = {**msgspec.structs.asdict(consumer.terms), "dead_letter": consumer.dead_letter}
        connection.answer(request_id, None, consumers=[{**self.described(consumer), "terms": terms}])

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
        driver = self._drivers.get(name)
        if driver is None:
            driver = self._drivers[name] = Driver(self._get(name), self._hub, self._readers)
        member = Member(request.id, connection, driver, self._members, request.credit)
        self._members += 1
        driver.join(member)
        connection.stream(member)

    def _submit(
        self, connection: LinkConnection, request_id: int, batch: Batch, then: Callable[[Batch], None]
    ) -> None:
        def done(result: Batch | StorageError) -> None:
            if isinstance(result, StorageError):
                connection.fail(request_id, result)
                return
            try:
                then(result)
            except HeadraceError as error:
                connection.fail(request_id, error)

        self._hub.submit(batch, done)

    def _observe(self, event: Event) -> None:
        driver = self._drivers.get(event.consumer.name)
        if driver is None:
            return
        match event:
            case Reset():
                driver.restart()
            case Removed(consumer):
                del self._drivers[consumer.name]
                driver.end(RefusedError("missing", f"consumer {consumer.name!r} was removed"))
            case Forgotten(_, settled):
                driver.again(settled)


def missed(consumer: Consumer, ranges: Sequence[Range]) -> int:
    """How many numbers of some ranges are not done: they were not handed out, or the consumer was reset since."""
    count, done = 0, consumer.done
    for first, last in ranges:
        first = max(first, consumer.floor + 1)
        if first <= last:
            count += last - first + 1
            count -= sum(until - start + 1 for start, until in clip(done, first, last))
    return count


def _terms(request: ask.FollowRequest) -> Terms:
    """What a follow says of its consumer, in the form that a log entry gives back."""
    said: dict[str, Any] = {"topic": request.topic, "dead_letter": request.dead_letter}
    if request.origin is not None:
        origins = [request.origin] if isinstance(request.origin, str) else request.origin
        said["origin"] = tuple(sorted(set(origins)))
    if request.where is not None:
        ask.parse_where(request.where)
        said["where"] = msgspec.json.decode(msgspec.json.encode(request.where))
    if request.ack_seconds is not None:
        said["ack_seconds"] = request.ack_seconds
    if request.max_tries is not None:
        said["max_tries"] = request.max_tries
    return Terms(**said)
