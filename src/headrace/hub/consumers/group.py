"""One durable consumer at work: its members, the log entries about it, and its dead letters.

:mod:`~headrace.hub.consumers.delivery` decides which member gets which numbers; a :class:`ConsumerGroup` decides the
rest:

- a member that can take more is ready. The range it is assigned is read and filtered elsewhere
  (:attr:`ConsumerGroup.read`) and sent as one event. A member whose credit is too small for that returns the range, so
  that no other member waits for its client;
- all numbers newly done at the end of a turn become one log entry, which shares a batch with those of other consumers.
  An acknowledgement is answered when the consumer's newest entry is committed: its numbers are in that one or an
  earlier one;
- messages that were tried too often are read again, one range at a time, and buried as dead letters.

If an entry cannot be appended, its numbers are delivered again, and acknowledgements that wait for it get the error.

Nothing here has a socket, a thread or a clock: a driver supplies :attr:`~ConsumerGroup.read` and
:attr:`~ConsumerGroup.soon`, and passes the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ClosedError, HeadraceError, StorageError, TrimmedError, WireError
from headrace.hub.consumers.cursors import Consumer
from headrace.hub.consumers.dead_letters import Burial, bury, within
from headrace.hub.consumers.delivery import Assign, DeadLetter, Delivery, Expired
from headrace.hub.consumers.outstanding import count
from headrace.hub.consumers.settlements import Settled, TurnEntries
from headrace.hub.filters import Filter
from headrace.hub.sequence import Hub
from headrace.hub.sequence_ranges import Range
from headrace.message import Batch
from headrace.wire.link.message import MAX_HEAD, MAX_MESSAGE, Buffer, body_of
from headrace.wire.link.requests import parse_where

_BURIED_BYTES: Final = MAX_MESSAGE - MAX_HEAD
"""Bytes of dead letters read at a time."""

WhenStored: TypeAlias = Callable[[StorageError | None], None]
"""Called when an entry is committed, or with the reason why it cannot be."""


class Found(NamedTuple):
    """The rows up to ``last`` that match a consumer's filter, and their body if there are any."""

    last: int
    rows: pa.RecordBatch
    matching: list[Range]
    body: Buffer | None


WhenRead: TypeAlias = Callable[[Found | BaseException, float], None]
"""Called with the messages found, or the error, and the time."""

Read: TypeAlias = Callable[[int, int, int, WhenRead], None]
"""Reads numbers from a first to a last, within a number of bytes, in the background, and calls back."""


class ConsumerFilter:
    """Selects a consumer's messages: those that its terms choose, except its own dead letters.

    Messages that its members may not read are skipped as well.
    """

    def __init__(self, consumer: Consumer) -> None:
        terms = consumer.terms
        where = parse_where(terms.where or {})
        self._filter = Filter(terms.topic, terms.origin, where, readable=terms.readable, denied=terms.denied)
        self.topics = self._filter.topics
        self._dead_letter = consumer.dead_letter

    def passes(self, batch: Batch) -> bool | None:
        """Whether no message of a batch is the consumer's (``False``), or each has to be checked."""
        return None if self._filter.passes(batch) is not False else False

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the consumer's rows."""
        rows = self._filter.apply(rows)
        others = pc.not_equal(rows.column("topic"), self._dead_letter)
        return rows if pc.all(others).as_py() else rows.filter(others)


class GroupMember(Protocol):
    """A member of the group, which is a stream of a client."""

    number: int
    """Its id in the delivery, never reused."""
    needs: int
    """Credit it must have before more is read for it."""
    reading: bool
    """Whether a range is being read for it."""

    @property
    def client(self) -> object:
        """The connection that it belongs to."""

    @property
    def able(self) -> bool:
        """Whether the member can take more messages."""

    @property
    def room(self) -> int:
        """Bytes of free credit."""

    def allows(self, size: int) -> bool:
        """Whether its credit allows an event of this size."""

    def send(self, given: Assign, last: int, body: Buffer) -> None:
        """Send rows."""

    def end(self, error: HeadraceError) -> None:
        """End the stream with an error that is not the client's fault."""


class ConsumerGroup:
    """One consumer's members, entries and dead letters."""

    def __init__(
        self,
        consumer: Consumer,
        hub: Hub,
        entries: TurnEntries,
        *,
        read: Read,
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.consumer = consumer
        self.delivery = Delivery(consumer)
        self.read = read
        self.soon = soon
        """Calls a function at the end of the turn."""
        self._hub = hub
        self._entries = entries
        self._delivered = hub.counters.counter("delivered", door="tube")
        self._log = hub.log
        self._members: dict[int, GroupMember] = {}
        self._doomed: deque[DeadLetter] = deque()
        self._burying = False
        self._unanswered: list[WhenStored] = []
        """Acknowledgements that wait for the end of the turn."""
        self._newest: list[WhenStored] | None = None
        """Acknowledgements that wait for the newest entry to be committed."""
        self._turn_due = False
        self._stopped = False

    @property
    def idle(self) -> bool:
        """Whether this can be forgotten without losing anything."""
        busy = self._members or self._doomed or self._burying or self._unanswered
        return not busy and self._newest is None and self.delivery.idle

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self._members)

    # Members

    def join(self, member: GroupMember) -> None:
        """Add a member."""
        self.delivery.join(member.number)
        self._members[member.number] = member

    def leave(self, member: GroupMember, *, tried: bool) -> None:
        """Remove a member and return its messages to the others."""
        del self._members[member.number]
        self._bury(self.delivery.leave(member.number, tried=tried))
        self.drive()
        if not (self._members or self._stopped):
            self._turn_soon()

    def ready(self, member: GroupMember) -> None:
        """Note that a member can take more."""
        self.delivery.ready(member.number)
        self.drive()

    def drive(self) -> None:
        """Start reads for ready members."""
        if self._stopped:
            return
        for given in self.delivery.assign(self._log.head):
            member = self._members[given.member]
            member.reading = True
            self.read(given.first, given.last, member.room, partial(self._was_read, given))

    # Requests of members

    def ack(self, ranges: Iterable[Range], reply: WhenStored) -> None:
        """Mark numbers as done."""
        try:
            self.delivery.ack(ranges)
        finally:
            self._turn_soon()
        self._unanswered.append(reply)

    def nack(self, client: object, ranges: Iterable[Range], reply: WhenStored) -> None:
        """Take back numbers that a client's members failed with."""
        members = [number for number, member in self._members.items() if member.client is client]
        try:
            for first, last in sorted(ranges):
                for member in members:
                    self._bury(self.delivery.nack(member, first, last))
        finally:
            # If a range is refused, the lower ones still count.
            self._turn_soon()
        self._unanswered.append(reply)

    # Events

    def tick(self, now: float) -> None:
        """Take back messages that were not acknowledged in time."""
        if now >= self.delivery.deadline:
            work = self.delivery.expire(now)
            expired = count((each.first, each.last) for each in work if isinstance(each, Expired))
            self._hub.counters.add("consumer_expired", expired)
            self._bury([each for each in work if isinstance(each, DeadLetter)])
            self.drive()
        self._bury(())

    def restart(self) -> None:
        """Restart at the cursor, which was moved."""
        self._doomed.clear()
        self.delivery.restart()
        self._resume()

    def again(self, settled: Settled) -> None:
        """Deliver numbers again that could not be marked as done."""
        self.delivery.again(settled)
        self._turn_soon()

    def stop(self) -> None:
        """Stop reading. Everything not done, even pending dead letters, is delivered again after a restart."""
        self._stopped = True

    def end(self, error: HeadraceError) -> None:
        """End every member, since the consumer is gone."""
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

    def _was_read(self, given: Assign, found: Found | BaseException, now: float) -> None:
        member = self._members.get(given.member)
        if member is None:
            return
        member.reading = False
        if isinstance(found, Found):
            self._deliver(member, given, found, now)
        else:
            self._unread(member, given, found, now)
        self._turn_soon()

    def _unread(self, member: GroupMember, given: Assign, error: BaseException, now: float) -> None:
        if isinstance(error, TrimmedError):
            self._trimmed(error)
        self.delivery.delivered(given, given.first - 1, (), now)
        if not isinstance(error, StorageError | WireError | ClosedError):
            raise error
        if not isinstance(error, TrimmedError):
            member.end(error)

    def _deliver(self, member: GroupMember, given: Assign, found: Found, now: float) -> None:
        if found.body is not None and not member.allows(len(found.body)):
            member.needs = len(found.body)
            self.delivery.delivered(given, given.first - 1, (), now)
            return
        wanted = self.delivery.delivered(given, found.last, found.matching, now)
        if wanted and found.body is not None:
            body = found.body if wanted == found.matching else body_of(within(found.rows, wanted))
            member.needs = 1
            member.send(given, found.last, body)
            self._delivered.value += count(wanted)

    def _trimmed(self, error: TrimmedError) -> None:
        oldest = max(error.oldest, self._log.first)
        for first, last in self.delivery.trimmed(oldest):
            self._hub.counters.report("consumer_lost", first, last, f"not done by {self.consumer.name}")

    # Entries

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.soon(self._turn)

    def _turn(self) -> None:
        """Append an entry for settled messages, answer acknowledgements once it is committed, and continue."""
        self._turn_due = False
        settled = self.delivery.collect()
        if settled is not None:
            self._entries.add(settled, self._when_stored(settled))
        reply, self._unanswered = self._unanswered, []
        if self._newest is not None:
            self._newest += reply
        else:
            for each in reply:
                each(None)
        self._resume()

    def _when_stored(self, settled: Settled) -> WhenStored:
        """Make the callback for when the newest entry is committed, or cannot be."""
        waiting: list[WhenStored] = []
        self._newest = waiting

        def stored(error: StorageError | None) -> None:
            if self._newest is waiting:
                self._newest = None
            if error is not None:
                self.again(settled)
            for reply in waiting:
                reply(error)

        return stored

    # Dead letters

    def _bury(self, letters: Iterable[DeadLetter]) -> None:
        self._doomed.extend(letters)
        if self._doomed and not self._burying and not self._stopped:
            self._burying = True
            letter = self._doomed[0]
            self.read(letter.first, letter.last, _BURIED_BYTES, partial(self._was_exhumed, letter))

    def _was_exhumed(self, letter: DeadLetter, found: Found | BaseException, _now: float) -> None:
        self._burying = False
        if not self._doomed or self._doomed[0] is not letter:
            self._bury(())
            return
        if isinstance(found, Found):
            last = found.last
            settled = self.delivery.bury(letter.first, last)
            if settled.ranges:
                self._submit(bury(self.consumer, settled, found.rows, letter.tries), settled)
                self._hub.counters.add("consumer_dead", found.rows.num_rows)
        elif isinstance(found, TrimmedError):
            self._trimmed(found)
            last = max(found.oldest, self._log.first) - 1
        elif isinstance(found, StorageError | WireError | ClosedError):
            return  # The next tick tries again.
        else:
            raise found
        self._doomed.popleft()
        if last < letter.last:
            self._doomed.appendleft(letter._replace(first=last + 1))
        self._bury(())
        self._turn_soon()

    def _submit(self, burial: Burial, settled: Settled) -> None:
        stored = self._when_stored(settled)

        def done(result: Batch | StorageError) -> None:
            stored(result if isinstance(result, StorageError) else None)

        self._entries.write()
        if burial.letters is not None:
            self._hub.submit(burial.letters, tied=True)
        self._hub.submit(burial.entry, done)
