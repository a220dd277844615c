"""Decides which member of a durable consumer has which numbers, and until when; a restart may forget that.

Numbers up to the **frontier** have been handed out. A **piece** (a range of numbers in one state) is kept only for
those that are not done yet. A piece is *waiting* to be handed out again, *being read* for a member, *in flight* at a
member until a deadline, or *doomed*: tried too often, and about to become dead letters. Nothing here is per message as
long as members acknowledge whole ranges.

One round:

1. :meth:`~Delivery.ready` notes that a member can take one more range; :meth:`~Delivery.assign` gives ready members
   ranges to read, waiting ones before new ones, so that the floor moves;
2. the caller reads and filters the range and calls :meth:`~Delivery.delivered`, which returns what to send. Numbers
   that do not match are done then, or together with the match before them;
3. :meth:`~Delivery.ack`, :meth:`~Delivery.nack`, :meth:`~Delivery.expire` or :meth:`~Delivery.leave` ends it. At the
   end of a turn :meth:`~Delivery.collect` returns everything newly done, for one log entry.

Rules:

- A number is at one member at a time, unless its deadline has passed. The ack timer starts when rows are sent.
- New numbers reach a member in ascending order, except those that another member returned.
- Only numbers handed out since the hub started or the consumer was reset can be acknowledged, by any member, even after
  the deadline.
- A try counts once it is sent, however it ends, unless the member leaves in good order: it may not have begun. Tries
  are not in the log: a restarted hub counts from zero.
- Skipped numbers that do not match are worth a log entry only every :data:`PASSED` numbers, and when the last member
  leaves; without the entry, the next member would read them once more.

Bounds: with half of :attr:`DeliveryLimits.pieces`, nothing new is handed out until gaps close; with all of them, an
acknowledgement that would leave another gap is refused, and adjacent waiting pieces are joined. A member has at most
:attr:`DeliveryLimits.in_flight` messages and one more range.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import RefusedError
from headrace.hub.consumers.cursors import Consumer, Lag
from headrace.hub.consumers.outstanding import NOBODY, Matches, Piece, Pieces, clip, count
from headrace.hub.consumers.settlements import Settled
from headrace.hub.sequence_ranges import Range, Ranges

PASSED: Final = 65_536
"""Numbers without a match that are worth a log entry: otherwise a consumer of few messages would write many entries."""

TICKS: Final = 64
"""Deadlines are rounded up to a 64th of ``ack_seconds``, so that ranges sent within that time form one piece."""

_SPARSE: Final = 64
"""If fewer than one message in this many is the consumer's, more numbers are read at a time."""

_FURTHER: Final = 256
"""The most that this multiplies the numbers read at a time."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Limits of what one consumer may cost."""

    span: int = 4096
    """Numbers read for a member at a time; more where few of them are the consumer's."""
    in_flight: int = 16_384
    """Unacknowledged messages at which a member gets no more."""
    pieces: int = 1024
    """Ranges that are not done; the consumer's state has room for several times that."""
    members: int = 1024


class Assign(NamedTuple):
    """Read ``first`` to ``last`` for a member and call :meth:`Delivery.delivered`; ``tries`` includes this one."""

    member: int
    first: int
    last: int
    tries: int


class Expired(NamedTuple):
    """Numbers that a member did not acknowledge in time."""

    member: int
    first: int
    last: int
    tries: int


class DeadLetter(NamedTuple):
    """Numbers tried too often: read and filter them, then :meth:`Delivery.bury` them, at once or in parts."""

    first: int
    last: int
    tries: int


DeliveryWork: TypeAlias = Expired | DeadLetter


class Delivery:
    """One consumer's members and the messages in their hands. A member's id is never reused."""

    def __init__(self, consumer: Consumer, limits: DeliveryLimits | None = None) -> None:
        self.consumer = consumer
        self._limits = limits or DeliveryLimits()
        self._span = self._limits.span
        self._load: dict[int, int] = {}
        """Unacknowledged messages by member."""
        self._ready: dict[int, None] = {}
        self.restart()

    def restart(self) -> None:
        """Forget all current deliveries and begin at the consumer's cursor; members stay."""
        self._since = self.consumer.since
        self._waiting = Pieces()
        self._taken = Pieces()
        # These are bounded, too, since there is a piece between any two of them.
        self._done = Ranges(sys.maxsize)
        self._worthwhile = False
        self._lost = 0
        self.deadline = inf
        """Time at which to call :meth:`expire`; infinite if nothing is in flight."""
        self._load = dict.fromkeys(self._load, 0)
        self.frontier = self.consumer.floor + 1
        """First number not handed out yet."""
        for first, last in self.consumer.done:
            self._waiting.add(Piece(self.frontier, first - 1))
            self.frontier = last + 1

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return len(self._waiting) + len(self._taken)

    @property
    def idle(self) -> bool:
        """Whether this can be forgotten without losing anything, tries included."""
        return not (self._load or self.pieces or self._worthwhile)

    def lag(self, head: int) -> Lag:
        """Count messages that are not done: those handed out, which are known to match, and all still to be read."""
        pieces = [*self._waiting, *self._taken]
        unread = [(piece.first, piece.last) for piece in pieces if not piece.counted]
        if self.frontier <= head:
            unread.append((self.frontier, head))
        # Dead letters are done as soon as they are in the log.
        done = self.consumer.done
        left = sum(count([each]) - count(clip(done, *each)) for each in unread)
        behind = left + sum(piece.messages for piece in pieces if piece.counted)
        return Lag(behind, exact=not (left and self.consumer.selects))

    def join(self, member: int) -> None:
        """Add a member."""
        if len(self._load) >= self._limits.members:
            raise RefusedError("limit", f"consumer {self.consumer.name!r} has {len(self._load)} members")
        self._load[member] = 0

    def ready(self, member: int) -> None:
        """Note that a member can take one more range: it has room, and its last one was delivered."""
        if member in self._load:
            self._ready[member] = None

    def leave(self, member: int, *, tried: bool) -> list[DeadLetter]:
        """Remove a member and return its pieces to the others; ``tried`` unless it left in good order."""
        del self._load[member]
        self._ready.pop(member, None)
        if not self._load and self._done:
            self._worthwhile = True
        returned = self._taken.carve(1, sys.maxsize, lambda piece: piece.member == member)
        return self._give_back(
            piece if tried and piece.in_flight else piece._replace(tries=piece.tries - 1)
            for piece in returned
        )

    def assign(self, head: int) -> list[Assign]:
        """Assign ranges to ready members, in the order in which they became ready."""
        work: list[Assign] = []
        for member in list(self._ready):
            if self._load[member] >= self._limits.in_flight:
                continue
            piece = self._next(head)
            if piece is None:
                break
            del self._ready[member]
            self._taken.add(piece._replace(tries=piece.tries + 1, member=member))
            work.append(Assign(member, piece.first, piece.last, piece.tries + 1))
        return work

    def delivered(self, given: Assign, last: int, matching: Sequence[Range], now: float) -> list[Range]:
        """Take the matches of a range that was read up to ``last``; return the ranges to send.

        Those are fewer if some were acknowledged late during the read, and none if the range is no longer the member's.
        Numbers that were not read, all of them if ``last`` is before the first, go to the next ready member.
        """
        reading = self._taken.carve(
            given.first, given.last, lambda piece: piece.member == given.member and not piece.in_flight
        )
        tick = self.consumer.terms.ack_seconds / TICKS
        deadline = (ceil(now / tick) + TICKS) * tick
        # Reading skips what the log's index of topics rules out, at almost no cost.
        sparse = count(matching) * _SPARSE < last - given.first + 1
        self._span = min(self._span * 4, self._limits.span * _FURTHER) if sparse else self._limits.span
        wanted: list[Range] = []
        for piece in reading:
            if piece.last > last:
                unread = piece._replace(first=max(piece.first, last + 1), tries=piece.tries - 1)
                self._put_back(unread)
                if piece.first > last:
                    continue
            end = min(piece.last, last)
            wanted += self._send(piece, end, clip(matching, piece.first, end), deadline)
        return wanted

    def ack(self, ranges: Iterable[Range]) -> int:
        """Mark numbers as done; return how many are newly done.

        Refused if that would leave too many gaps; the ranges before the refused one, in ascending order, count.
        """
        count = 0
        for first, last in sorted(ranges):
            if self.pieces >= self._limits.pieces and any(
                each.tears(first, last) for each in (self._taken, self._waiting)
            ):
                raise RefusedError("limit", f"{self.pieces} gaps: acknowledge what is missing before {first}")
            for piece in (*self._carve_taken(first, last), *self._waiting.carve(first, last)):
                count += piece.size
                self._done.add(piece.first, piece.last)
                self._worthwhile = True
        return count

    def nack(self, member: int, first: int, last: int) -> list[DeadLetter]:
        """Give messages that a member failed to process to the others; refuse that if there are too many gaps."""
        if self.pieces >= self._limits.pieces:
            raise RefusedError("limit", f"{self.pieces} gaps: acknowledge what is missing before {first}")
        return self._give_back(
            self._carve_taken(first, last, lambda piece: piece.member == member and piece.in_flight)
        )

    def expire(self, now: float) -> list[DeliveryWork]:
        """Take back messages that were not acknowledged in time."""
        if now < self.deadline:
            return []
        work: list[DeliveryWork] = []
        overdue = self._carve_taken(1, sys.maxsize, lambda piece: piece.deadline <= now)
        work += [Expired(piece.member, piece.first, piece.last, piece.tries) for piece in overdue]
        work += self._give_back(overdue)
        # The deadline may be that of a piece that was acknowledged in time, so look again.
        self.deadline = min((piece.deadline for piece in self._taken), default=inf)
        return work

    def bury(self, first: int, last: int) -> Settled:
        """Remove the rest of a dead letter's range and return it: some may be acknowledged by now."""
        doomed = self._taken.carve(first, last, lambda piece: piece.member == NOBODY)
        return Settled(tuple((piece.first, piece.last) for piece in doomed), self._since)

    def trimmed(self, oldest: int) -> list[Range]:
        """Drop numbers before ``oldest``, where the log now begins, that are still to be read; return them."""
        below = oldest - 1
        gone = self._waiting.carve(1, below)
        gone += self._taken.carve(1, below, lambda piece: not piece.in_flight)
        if self.frontier < oldest:
            gone.append(Piece(self.frontier, below))
            self.frontier = oldest
        for piece in gone:
            self._done.add(piece.first, piece.last)
            self._worthwhile = True
            self._lost += piece.size
        return [(piece.first, piece.last) for piece in gone]

    def collect(self) -> Settled | None:
        """Return everything newly done, if it is worth a log entry."""
        if not self._worthwhile and count(self._done) < PASSED:
            return None
        settled = Settled(tuple(self._done), self._since, self._lost)
        self._done = Ranges(sys.maxsize)
        self._worthwhile = False
        self._lost = 0
        return settled

    def again(self, settled: Settled) -> None:
        """Deliver the numbers of an entry again that could not be appended."""
        if settled.since == self._since:
            for first, last in settled.ranges:
                self._waiting.add(Piece(first, last))

    def _next(self, head: int) -> Piece | None:
        """Take the next piece to read: the lowest waiting one, or new numbers."""
        half = self._limits.pieces // 2
        if len(self._taken) >= half:
            return None
        if self.pieces >= self._limits.pieces:
            self._waiting.coalesce()
        if self._waiting:
            piece = self._waiting.pop()
            most = self._share(piece.size)
            if piece.size > most:
                self._waiting.add(piece._replace(first=piece.first + most))
            return piece._replace(last=min(piece.last, piece.first + most - 1))
        available = head - self.frontier + 1
        if available <= 0 or self.pieces >= half:
            return None
        piece = Piece(self.frontier, self.frontier + self._share(available) - 1)
        self.frontier = piece.last + 1
        return piece

    def _share(self, available: int) -> int:
        """One member's share; smaller towards the end, so that the members finish together."""
        return min(self._span, -(-available // len(self._load)))

    def _send(self, piece: Piece, last: int, matching: list[Range], deadline: float) -> list[Range]:
        """Put the part of a piece that was read in flight, from its first match on."""
        before = self._taken.pop_before(piece.first)
        if before is not None:
            if before[2:5] == (piece.tries, piece.member, deadline):
                self._taken.add(before.joined(last, matching))
                self._load[piece.member] += count(matching)
                return matching
            self._taken.add(before)
        first = matching[0][0] if matching else last + 1
        if first > piece.first:
            self._done.add(piece.first, first - 1)
        if matching:
            matches = None if matching == [(first, last)] else Matches(matching.copy())
            self._taken.add(Piece(first, last, piece.tries, piece.member, deadline, matches))
            self._load[piece.member] += count(matching)
            self.deadline = min(self.deadline, deadline)
        return matching

    def _carve_taken(
        self, first: int, last: int, wanted: Callable[[Piece], bool] | None = None
    ) -> list[Piece]:
        carved = self._taken.carve(first, last, wanted)
        for piece in carved:
            if piece.in_flight:
                self._load[piece.member] -= piece.messages
        return carved

    def _give_back(self, pieces: Iterable[Piece]) -> list[DeadLetter]:
        """Queue pieces for another try; doom those that had their last try."""
        work: list[DeadLetter] = []
        most = self.consumer.terms.max_tries
        for piece in pieces:
            if most and piece.tries >= most:
                self._taken.add(piece._replace(member=NOBODY, deadline=inf))
                work.append(DeadLetter(piece.first, piece.last, piece.tries))
            else:
                self._put_back(piece)
        return work

    def _put_back(self, piece: Piece) -> None:
        if piece.tries == 0 and piece.last == self.frontier - 1:
            self.frontier = piece.first  # Treat it as if it had never been handed out.
        else:
            self._waiting.add(piece._replace(member=NOBODY, deadline=inf))
