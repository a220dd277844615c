"""The driver of one durable consumer: read, send and submit what :mod:`~headrace.hub.consumers.delivery` decides.

A :class:`Member` is one stream of the link that takes part. A :class:`Driver` has all members of one consumer:

- who can take more is ready; what it is then assigned is read and filtered in a thread and sent as one ``rows`` event.
  A member whose credit is too small for what was read gives it back, so that nobody else waits for its client;
- whatever is newly done at the end of a turn of the event loop becomes one log entry, however many acknowledgements it
  took. An acknowledgement is answered when the newest entry of the consumer is committed: its numbers are then in that
  entry or in one before;
- what was tried too often is read again, bit by bit and one at a time, and buried.

The log may refuse an entry. Its numbers are then to be delivered again, and whoever waited for it is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ClosedError, HeadraceError, LimitError, StorageError, TrimmedError, WireError
from headrace.hub.consumers import cursors as consumers
from headrace.hub.consumers.cursors import Consumer, Settled
from headrace.hub.consumers.delivery import Assign, DeadLetter, Delivery, Expired
from headrace.hub.consumers.outstanding import spans
from headrace.hub.filters import Filter
from headrace.hub.sequence import Hub
from headrace.hub.sequence_ranges import Range
from headrace.log import Log
from headrace.message import Batch, merge
from headrace.net.link.row_bodies import MAX_BODY, MAX_LONE_BODY, beginning
from headrace.net.link.streams import Credit, StreamTarget
from headrace.wire.link.message import ROWS_BYTES, Buffer, body_of
from headrace.wire.link.requests import parse_where

Told = Callable[[StorageError | None], None]
"""Told that an entry is committed, or why it is not."""


class Concern:
    """Which messages concern a consumer: those that its terms choose, but for its own dead letters."""

    def __init__(self, consumer: Consumer) -> None:
        terms = consumer.terms
        self._filter = Filter(terms.topic, terms.origin, parse_where(terms.where or {}))
        self._dead_letter = consumer.dead_letter

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that concern it."""
        rows = self._filter.apply(rows)
        others = pc.not_equal(rows.column("topic"), self._dead_letter)
        return rows if pc.all(others).as_py() else rows.filter(others)


class Member:
    """One stream of a durable consumer; a stream of its connection."""

    def __init__(
        self, stream_id: int, outlet: StreamTarget, driver: Driver, number: int, credit: int
    ) -> None:
        self.id = stream_id
        self.outlet = outlet
        self.number = number
        """Its name at the delivery, which no other member ever has."""
        self.credit = Credit(credit)
        self.needs = 1
        """What its credit must have room for before more is read."""
        self.reading = False
        self._driver = driver
        self._closed = False
        outlet.event({"id": stream_id, "event": "at", "seq": driver.consumer.floor})

    def grant(self, size: int) -> None:
        """The client takes more."""
        self.credit.grant(size)
        self.pump()

    def close(self) -> None:
        """It leaves in good order."""
        self._leave(tried=False)

    def lose(self) -> None:
        """It is gone, and nobody knows how far it came with what it had."""
        self._leave(tried=True)

    def tick(self, now: float) -> None:
        """Deadlines are judged for all members at once."""

    @property
    def able(self) -> bool:
        """Whether there is room for more."""
        return not (self._closed or self.reading or self.outlet.full) and self.credit.allows(self.needs)

    def pump(self) -> None:
        """Be given more, if there is room for it."""
        if self.able:
            self._driver.ready(self)

    def send(self, given: Assign, last: int, body: Buffer) -> None:
        """Send rows."""
        self.needs = 1
        self.credit.spend(len(body))
        head = {"id": self.id, "event": "rows", "first": given.first, "last": last, "tries": given.tries}
        self.outlet.event(head, body)

    def end(self, error: HeadraceError) -> None:
        """End the stream, whose client has done nothing wrong."""
        self.close()
        self.outlet.stream_over(self.id, error)

    def _leave(self, *, tried: bool) -> None:
        if not self._closed:
            self._closed = True
            self._driver.leave(self, tried=tried)


class Driver:
    """One consumer's delivery, with members, threads and the log."""

    def __init__(self, consumer: Consumer, hub: Hub, readers: Executor) -> None:
        self.consumer = consumer
        self.delivery = Delivery(consumer)
        self._hub = hub
        self._delivered = hub.counters.counter("delivered", door="tube")
        self._log = hub.log
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self._concern = Concern(consumer)
        self._members: dict[int, Member] = {}
        self._doomed: deque[DeadLetter] = deque()
        self._burying = False
        self._unanswered: list[Told] = []
        """Who waits for the end of the turn."""
        self._newest: _Entry | None = None
        self._turn_due = False
        self._stopped = False

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if this were forgotten."""
        busy = self._members or self._doomed or self._burying or self._unanswered or self._newest
        return not busy and self.delivery.idle

    @property
    def members(self) -> int:
        """How many take part."""
        return len(self._members)

    # Members

    def join(self, member: Member) -> None:
        """Take a member in."""
        self.delivery.join(member.number)
        self._members[member.number] = member

    def leave(self, member: Member, *, tried: bool) -> None:
        """Let a member go; what it had is for others."""
        del self._members[member.number]
        self._bury(self.delivery.leave(member.number, tried=tried))
        self.drive()

    def ready(self, member: Member) -> None:
        """A member can take more."""
        self.delivery.ready(member.number)
        self.drive()

    def drive(self) -> None:
        """Give ready members what there is."""
        if self._stopped:
            return
        for given in self.delivery.assign(self._log.head):
            member = self._members[given.member]
            member.reading = True
            reading = self._read(given.first, given.last, member.credit.room)
            reading.add_done_callback(partial(self._was_read, given))

    # What members say

    def ack(self, ranges: Iterable[Range], told: Told) -> None:
        """Numbers are done with."""
        try:
            self.delivery.ack(ranges)
        finally:
            self._soon()
        self._unanswered.append(told)

    def nack(self, outlet: StreamTarget, ranges: Iterable[Range], told: Told) -> None:
        """A client's members have failed with some of what they have."""
        members = [number for number, member in self._members.items() if member.outlet is outlet]
        try:
            for first, last in sorted(ranges):
                for member in members:
                    self._bury(self.delivery.nack(member, first, last))
        finally:
            # Of those that are too many, what came before in ascending order counts.
            self._soon()
        self._unanswered.append(told)

    # What happens to the consumer

    def tick(self, now: float) -> None:
        """Take back what was not acknowledged in time."""
        if now >= self.delivery.deadline:
            work = self.delivery.expire(now)
            expired = sum(each.last - each.first + 1 for each in work if isinstance(each, Expired))
            self._hub.counters.add("consumer_expired", expired)
            self._bury([each for each in work if isinstance(each, DeadLetter)])
            self.drive()
        self._bury(())

    def restart(self) -> None:
        """The cursor was moved."""
        self._doomed.clear()
        self.delivery.restart()
        self._resume()

    def again(self, settled: Settled) -> None:
        """Numbers are not done after all."""
        self.delivery.again(settled)
        self._soon()

    def stop(self) -> None:
        """Read nothing more: whoever comes back finds what is not done, dead letters to be among it, once more."""
        self._stopped = True

    def end(self, error: HeadraceError) -> None:
        """The consumer is gone."""
        self._doomed.clear()
        for member in list(self._members.values()):
            member.end(error)
        self._doomed.clear()

    # Reading and sending

    def _resume(self) -> None:
        for member in self._members.values():
            if member.able:
                self.delivery.ready(member.number)
        self.drive()

    def _read(self, first: int, last: int, room: int) -> asyncio.Future[_Found]:
        return self._loop.run_in_executor(self._readers, _find, self._log, first, last, self._concern, room)

    def _was_read(self, given: Assign, done: asyncio.Future[_Found]) -> None:
        error = None if done.cancelled() else done.exception()
        member = self._members.get(given.member)
        if member is None or done.cancelled():
            return
        member.reading = False
        now = self._loop.time()
        if error is None:
            self._deliver(member, given, done.result(), now)
        else:
            self._unread(member, given, error, now)
        self._soon()

    def _unread(self, member: Member, given: Assign, error: BaseException, now: float) -> None:
        if isinstance(error, TrimmedError):
            self._trimmed(error)
        self.delivery.delivered(given, given.first - 1, (), now)
        if isinstance(error, StorageError | WireError | ClosedError):
            if not isinstance(error, TrimmedError):
                member.end(error)
        else:
            raise error

    def _deliver(self, member: Member, given: Assign, found: _Found, now: float) -> None:
        if found.body is not None and not member.credit.allows(len(found.body)):
            member.needs = len(found.body)
            self.delivery.delivered(given, given.first - 1, (), now)
            return
        wanted = self.delivery.delivered(given, found.last, found.matching, now)
        if wanted and found.body is not None:
            body = found.body
            if wanted != found.matching:
                body = body_of(_within(found.rows, wanted))
            member.send(given, found.last, body)
            self._delivered.value += sum(last - first + 1 for first, last in wanted)

    def _trimmed(self, error: TrimmedError) -> None:
        oldest = max(error.oldest, self._log.first)
        for first, last in self.delivery.trimmed(oldest):
            self._hub.counters.report("consumer_lost", first, last, f"not done by {self.consumer.name}")

    # Entries

    def _soon(self) -> None:
        """Settle and go on at the end of the turn."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        settled = self.delivery.collect()
        if settled is not None:
            self._submit(consumers.settle(self.consumer.name, settled), settled)
        told, self._unanswered = self._unanswered, []
        if self._newest is not None:
            self._newest.waiting += told
        else:
            for each in told:
                each(None)
        self._resume()

    def _submit(self, batch: Batch, settled: Settled) -> None:
        entry = self._newest = _Entry([])

        def done(result: Batch | StorageError) -> None:
            error = result if isinstance(result, StorageError) else None
            if self._newest is entry:
                self._newest = None
            if error is not None:
                self.again(settled)
            for told in entry.waiting:
                told(error)

        self._hub.submit(batch, done)

    # Dead letters

    def _bury(self, letters: Iterable[DeadLetter]) -> None:
        self._doomed.extend(letters)
        if self._doomed and not self._burying and not self._stopped:
            self._burying = True
            letter = self._doomed[0]
            reading = self._read(letter.first, letter.last, MAX_BODY)
            reading.add_done_callback(partial(self._was_exhumed, letter))

    def _was_exhumed(self, letter: DeadLetter, done: asyncio.Future[_Found]) -> None:
        self._burying = False
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or not self._doomed or self._doomed[0] is not letter:
            self._bury(())
            return
        if error is None:
            found = done.result()
            last = found.last
            settled = self.delivery.bury(letter.first, last)
            if settled.ranges:
                self._submit(consumers.bury(self.consumer, settled, found.rows, letter.tries), settled)
                self._hub.counters.add("consumer_dead", found.rows.num_rows)
        elif isinstance(error, TrimmedError):
            self._trimmed(error)
            last = max(error.oldest, self._log.first) - 1
        elif isinstance(error, StorageError | WireError | ClosedError):
            return  # The next tick tries again.
        else:
            raise error
        self._doomed.popleft()
        if last < letter.last:
            self._doomed.appendleft(letter._replace(first=last + 1))
        self._bury(())
        self._soon()


class _Entry:
    """A log entry on its way to the commit, and who waits for it."""

    __slots__ = ("waiting",)

    def __init__(self, waiting: list[Told]) -> None:
        self.waiting = waiting


class _Found(NamedTuple):
    """What was looked through up to ``last``: the rows that concern a consumer, and as a body if there are any."""

    last: int
    rows: pa.RecordBatch
    matching: list[Range]
    body: Buffer | None


def _find(log: Log, first: int, last: int, concern: Concern, room: int) -> _Found:
    """Read on until as much matches as there is room for, or enough; one row that matches is there, however long."""
    budget = min(ROWS_BYTES, room)
    found: list[pa.RecordBatch] = []
    at, size = first, 0
    while at <= last and size < budget:
        batches = beginning(log.read(at, last, ROWS_BYTES))
        rows = concern.apply(merge(batches))
        at = batches[-1].last + 1
        if rows.num_rows or not found:
            found.append(rows)
            size += rows.nbytes
    rows = found[0] if len(found) == 1 else pa.concat_batches(found)
    count = rows.num_rows
    if not count:
        return _Found(at - 1, rows, [], None)
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
    return _Found(at - 1, rows, spans(rows.column("seq").to_numpy()), body)


def _within(rows: pa.RecordBatch, ranges: Sequence[Range]) -> pa.RecordBatch:
    seqs = rows.column("seq").to_numpy()
    kept = np.zeros(len(seqs), np.bool_)
    for first, last in ranges:
        kept[np.searchsorted(seqs, first) : np.searchsorted(seqs, last, "right")] = True
    return rows.filter(pa.array(kept))
