"""A subscriber's decisions, between its connection and its consumer: no sockets, and time is an argument.

Strategy: DELIVERs pass through :class:`~headrace.client.fyrehose.repair.Repair` into a queue, from which the consumer
takes batches. Each call returns what to send. A subscription outlives connections: it keeps its position in the
sequence, and each new connection begins with a KEEPALIVE and a REQUEST for what was published since.

The queue is bounded. While it is full, a stream is not read and datagrams are dropped, to be asked for later. Repair's
clock stands still meanwhile: nothing is asked for, probed or given up because of a slow consumer.

When the queue stays full for :data:`REST_SECONDS`, the subscription *rests*: no more KEEPALIVEs, and on a stream a new
connection, on which nothing is asked for. The position stays, and once there is room again everything since is asked
for. So a client need not consume to stay connected.

Invariants:

- The consumer gets each number once, in order, as a message or within a :class:`LostRange`.
- Memory is the queue, what came early, and the journal, each with its bound.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from headrace.client.fyrehose.journal import Journal, JournalBounds, JournalEffect, SendDelivers, Unanswered
from headrace.client.fyrehose.repair import (
    Ask,
    Delivered,
    Discarded,
    DiscardReason,
    Gap,
    LostRange,
    Repair,
    Repaired,
    RepairEvent,
)
from headrace.client.fyrehose.timing import RepairTiming
from headrace.client.staleness import Staleness
from headrace.client.stats import FyrehoseStats
from headrace.errors import UnexpectedError
from headrace.message import Batch
from headrace.wire.fyrehose.stream import DeliverRun, Forward, Keepalive, Request

KEEPALIVE_SECONDS: Final = 1.0
"""Rule 1: "the client has to send a KEEPALIVE to the backbone every one second"."""

SILENCE_SECONDS: Final = 5.0
"""A hub that is silent for this long is gone, or no longer knows us."""

REST_SECONDS: Final = 10.0
"""Well within the 30 s after which a hub cuts off a client that reads nothing."""

_DOUBTFUL_SECONDS: Final = 4.0
"""KEEPALIVEs this far apart may have let the subscription lapse, which lasts 5 s: then the hub sent nothing."""

_BATCH_COST: Final = 512
_MESSAGE_COST: Final = 4
"""Bytes that a batch costs besides its payloads: two arrays and the objects around them, and an offset a message."""

HERE: Final = ("0.0.0.0", 0)
"""ADDR and PORT that stand for the packet's own source; over UDP the transport states its address instead."""

Outgoing = Keepalive | Request | SendDelivers

logger = logging.getLogger("headrace.client")


class Subscription:
    """One consumer's position in the sequence.

    ``stream`` means that messages not read now can still be read later. ``buffer_bytes`` bounds the queue, ``journal``
    what is stored to answer FORWARD with.
    """

    def __init__(
        self,
        timing: RepairTiming,
        random: Random,
        stats: FyrehoseStats,
        *,
        from_seq: int | None = None,
        listening: bool = True,
        stream: bool = True,
        buffer_bytes: int = 8 << 20,
        journal: JournalBounds | None = None,
    ) -> None:
        self.listening = listening
        """Whether the hub is to send: not before a message is wanted, and not while resting."""
        self.full = False
        """Whether the queue is full; it stays so until half of it has been taken."""
        self.reset: str | None = None
        """The reason to exchange this connection for another, if there is one."""
        self._stats = stats
        self._stream = stream
        self._buffer_bytes = buffer_bytes
        self._hole_seconds = timing.hole
        self._repair = Repair(timing, random, from_seq)
        self._journal = None if journal is None else Journal(journal, self._repair.early, 0.0)
        self._clock = _Clock()
        self._stale = Staleness()
        self._queue: deque[Batch | LostRange] = deque()
        self._size = 0
        self._full_since = 0.0
        self._heard = 0.0
        self._kept_alive = 0.0
        self._missed = False
        self._crowded = False

    @property
    def reads(self) -> bool:
        """Whether a stream should be read."""
        return not (self.full and self.listening)

    @property
    def gave_up(self) -> str:
        """The reason a range is lost, for a person."""
        return f"nobody delivered them within {self._hole_seconds:g} s of being asked"

    def __len__(self) -> int:
        """The number of batches and lost ranges that wait for the consumer."""
        return len(self._queue)

    def connected(self, now: float) -> list[Outgoing]:
        """Begin on a new connection."""
        self._heard = now
        self.reset = None
        self._crowded = False
        return self._subscribe(now) if self.listening else []

    def listen(self, now: float) -> list[Outgoing]:
        """Subscribe, unless subscribed already: the consumer wants messages."""
        if self.listening:
            return []
        self.listening = True
        self._heard = now
        return self._subscribe(now)

    def heard(self, now: float) -> None:
        """Note a KEEPALIVE-ACK."""
        self._heard = now
        self._repair.heard(self._clock.read(now))

    def received(self, delivered: DeliverRun, now: float, *, from_backbone: bool) -> list[Outgoing]:
        """Pass DELIVERs through repair into the queue."""
        if from_backbone:
            self._heard = now
        if not self.listening or (self.full and not self._stream):
            self._missed = True
            self._stats.dropped += len(delivered.run)
            return []
        events = self._repair.receive(delivered, self._clock.read(now), from_backbone=from_backbone)
        return self._follow(events, now)

    def forward(self, frame: Forward, now: float, *, from_backbone: bool) -> list[Outgoing]:
        """Rule 4: send the requester those of its missing messages that are stored."""
        self._stats.forwards += 1
        if self._journal is None:
            return []
        return self._answer(self._journal.forward(frame, now, from_backbone=from_backbone))

    def tick(self, now: float) -> list[Outgoing]:
        """Do what is due: keep the subscription alive, or let it rest; repair; continue to answer FORWARD."""
        work: list[Outgoing] = []
        if self.listening and self.full and now - self._full_since >= REST_SECONDS:
            self._rest()
        if self.listening:
            since = now - self._kept_alive
            if since >= KEEPALIVE_SECONDS:
                self._kept_alive = now
                work.append(Keepalive(*HERE))
            if since >= _DOUBTFUL_SECONDS:
                self._missed = True
            if not self.full:
                work += self._catch_up(now)
        if self._journal is not None:
            work += self._answer(self._journal.tick(now))
        return work

    def next_timer(self) -> float | None:
        """Return when to :meth:`tick`; a time in the past means now."""
        times: list[float | None] = []
        if self.listening:
            times.append(self._kept_alive + KEEPALIVE_SECONDS)
            if not self.full and (repair := self._repair.next_timer()) is not None:
                times.append(self._clock.when(repair))
        if self._journal is not None:
            times.append(self._journal.next_timer())
        return min((time for time in times if time is not None), default=None)

    def silent(self, now: float) -> bool:
        """Whether the hub has been silent for too long."""
        reading = self.listening and (self.reads or not self._stream)
        return reading and now - self._heard >= SILENCE_SECONDS

    def take(self, now: float) -> Batch | LostRange | None:
        """Return what is next for the consumer; call :meth:`relieved` if the queue is no longer full."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        self._size -= _cost(item)
        if self.full and 2 * self._size <= self._buffer_bytes:
            self.full = False
            self._clock.start(now)
        return item

    def relieved(self, now: float) -> list[Outgoing]:
        """Continue, or begin again after a rest: there is room in the queue."""
        if not self.listening:
            return self.listen(now)
        self._heard = now
        return self._catch_up(now) if self._missed else []

    def _subscribe(self, now: float) -> list[Outgoing]:
        self._kept_alive = now
        self._missed = True
        return [Keepalive(*HERE), *([] if self.full else self._catch_up(now))]

    def _catch_up(self, now: float) -> list[Outgoing]:
        """Request what is due, or at once everything that may have been missed."""
        time = self._clock.read(now)
        if self._missed:
            self._missed = False
            self._repair.reconnected(time)
        return self._follow(self._repair.tick(time), now)

    def _follow(self, events: Iterable[RepairEvent], now: float) -> list[Outgoing]:
        stats = self._stats
        work: list[Outgoing] = []
        for event in events:
            match event:
                case Delivered(first, run):
                    stats.received += len(run)
                    stats.received_bytes += run.size
                    self._stale.progress()
                    if self._journal is not None:
                        self._journal.store(first, run)
                    self._enqueue(Batch(run, first), now)
                case Ask(first, last):
                    stats.requests += 1
                    work.append(Request(*HERE, first, last))
                case LostRange(first, last):
                    stats.lost += last - first + 1
                    logger.warning("messages %d to %d are lost: %s", first, last, self.gave_up)
                    self._enqueue(event, now)
                    if self._crowded and self._stream:
                        self.reset = "there was no room for what is on its way"
                case Gap(first, last):
                    stats.missing += last - first + 1
                    logger.info("messages %d to %d are missing", first, last)
                case Repaired(first, last):
                    stats.repaired += last - first + 1
                    logger.info("messages %d to %d were repaired", first, last)
                case Discarded():
                    self._discarded(event, now)
        return work

    def _rest(self) -> None:
        self.listening = False
        self._missed = True
        self._stats.rests += 1
        logger.info("no room for messages for %g s: unsubscribing until there is", REST_SECONDS)
        if self._stream:
            # The hub keeps sending a requested range, subscribed or not.
            self.reset = "to receive nothing for now"

    def _enqueue(self, item: Batch | LostRange, now: float) -> None:
        self._queue.append(item)
        self._size += _cost(item)
        if self._size >= self._buffer_bytes and not self.full:
            self.full = True
            self._full_since = now
            self._clock.stop(now)

    def _discarded(self, event: Discarded, now: float) -> None:
        count = event.last - event.first + 1
        logger.debug("messages %d to %d came and were not taken: %s", event.first, event.last, event.why)
        match event.why:
            case DiscardReason.UNASKED:
                self._stats.unasked += count
            case DiscardReason.NO_ROOM:
                self._stats.dropped += count
                self._crowded = True
            case DiscardReason.REPEATED:
                self._stats.repeated += count
                following = self._repair.next
                if following is not None and event.last < following and self._stale.old(now):
                    self._suspect(event.last, following)

    def _suspect(self, seq: int, following: int) -> None:
        """React to a run of old messages: a new connection, which begins with a REQUEST for new ones, shows why."""
        if self._stale.suspected:
            raise UnexpectedError(
                "fyrehose",
                "SEQUENCE",
                seq,
                f"the next is {following}, and this hub keeps sending older ones: it serves another sequence",
            )
        self._stale.suspected = True
        self.reset = "only old messages come"

    def _answer(self, effects: Iterable[JournalEffect]) -> list[Outgoing]:
        work: list[Outgoing] = []
        for effect in effects:
            match effect:
                case SendDelivers(to, first, run):
                    self._stats.forwarded += len(run)
                    logger.debug(
                        "forwarding messages %d to %d to %s:%d", first, first + len(run) - 1, to[0], to[1]
                    )
                    work.append(effect)
                case Unanswered(frame, why):
                    logger.debug("FORWARD of %d to %d is not answered: %s", frame.first, frame.last, why)
        return work


@dataclass(slots=True)
class _Clock:
    """A clock that can be stopped."""

    _stopped: float | None = None
    _behind: float = 0.0

    def read(self, now: float) -> float:
        return (now if self._stopped is None else self._stopped) - self._behind

    def when(self, reading: float) -> float:
        return reading + self._behind

    def stop(self, now: float) -> None:
        self._stopped = now

    def start(self, now: float) -> None:
        if self._stopped is not None:
            self._behind += now - self._stopped
            self._stopped = None


def _cost(item: Batch | LostRange) -> int:
    if isinstance(item, LostRange):
        return _BATCH_COST
    return _BATCH_COST + _MESSAGE_COST * len(item.run) + item.run.size
