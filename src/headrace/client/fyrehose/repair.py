"""Rebuild the whole sequence from whatever arrives: in order, each message once, nothing skipped silently.

Strategy: ``next`` is the number that must come next. A run that continues there passes through as it is, with
no work per message, which is nearly always the case. Anything else goes the slow way. A number below ``next`` is a
repeat. A message above it is kept (:mod:`headrace.client.fyrehose.reorder_buffer`), and the numbers between are
*holes*. A hole is requested after a moment (it may only have been overtaken), and again with randomised, growing
delays for as long as nothing of it comes. When it is filled, all that waited for it follows.

Nothing that arrives shows that the newest message was lost, so silence is probed too: a REQUEST from ``next``
to the highest possible number brings whatever there is.

A hole that makes no progress for ``RepairTiming.hole`` seconds becomes a :class:`LostRange` in its place in the order.
Time in which the backbone is silent does not count, since silence is not a no; nor does time in which the hole was
not asked for.

Invariants:

- :class:`Delivered` and :class:`LostRange` together are ``next, next + 1, …`` without hole or repeat.
- ``next`` and everything up to the highest number known is either kept or in exactly one hole; the first hole
  begins at ``next``. So a message that can be delivered never waits.
- Only the backbone makes a number known. DELIVERs of other clients only fill holes that were asked for.
- Memory is bounded: holes are as many as kept stretches and a few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, pairwise
from operator import attrgetter
from random import Random

import numpy as np
import numpy.typing as npt

from headrace.client.fyrehose.reorder_buffer import ReorderBuffer
from headrace.client.fyrehose.timing import RepairTiming
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.fyrehose.stream import DeliverRun

_WINDOW = 64
"""Holes requested at a time, the lowest first: as many ranges as the hub queues for a subscriber."""

_AHEAD = 4
"""Maximum REQUESTs under way for one long hole."""

_NEARBY = 3
"""Holes this few messages apart are requested together: a REQUEST costs about as much as the repeats do."""

_NARROW_ATTEMPTS = 2
"""How often the beginning of a hole is requested before all of it is. A REQUEST is answered with the oldest
messages of its range, so asking for all of it shows where a log begins that no longer holds the beginning."""

_MAX_DOUBLINGS = 32

_NOT_BEGUN = 0
"""The value of ``next`` before the first message: sequence numbers start at 1."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages ``first, first + 1, …``: the next ones."""

    first: int
    run: Run

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.first + len(self.run) - 1


@dataclass(frozen=True, slots=True)
class _Messages:
    first: int
    last: int


class LostRange(_Messages):
    """The next messages, ``first`` to ``last``, which nobody could deliver."""


class Ask(_Messages):
    """Send a REQUEST for messages ``first`` to ``last``."""


class Gap(_Messages):
    """A later message has come and messages ``first`` to ``last`` have not."""


class Repaired(_Messages):
    """Messages ``first`` to ``last`` came after they had been requested."""


class DiscardReason(StrEnum):
    """The reason why messages that came were not taken."""

    REPEATED = "repeated"
    UNASKED = "unasked"
    """Messages from another client that were not requested."""
    NO_ROOM = "no-room"
    """Messages too far ahead of the missing ones; to be requested again."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """Messages ``first`` to ``last`` came and were not taken."""

    first: int
    last: int
    why: DiscardReason


RepairEvent = Delivered | LostRange | Ask | Gap | Repaired | Discarded


@dataclass(slots=True)
class _Hole:
    first: int
    last: int
    since: float
    """When it was first requested, or last made progress, by the clock that stops in silence."""
    due: float
    """When it is to be requested (again)."""
    attempts: int = 0
    asked: int = 0
    """The highest number requested; 0 if none was."""


class Repair:
    """One subscriber's view of the sequence.

    ``from_seq`` is where to begin; without it, the first message that comes is the first.
    """

    def __init__(self, timing: RepairTiming, random: Random, from_seq: int | None = None) -> None:
        self._timing = timing
        self._random = random
        self._next = _NOT_BEGUN if from_seq is None else max(from_seq, 1)
        self._known = max(self._next - 1, 0)
        self._holes: list[_Hole] = []
        self.early = ReorderBuffer(timing.max_early, timing.max_early_bytes)
        """The messages that came before their turn."""
        self._crowded = False
        self._heard: float | None = None
        self._unheard = 0.0
        self._probe_due = float("-inf")
        self._probes = 0
        self._probe_full = MAX_SEQUENCE + 1

    @property
    def next(self) -> int | None:
        """The number that must come next; ``None`` before the first message, where any may."""
        return self._next or None

    def receive(self, delivered: DeliverRun, now: float, *, from_backbone: bool) -> list[RepairEvent]:
        """Take DELIVERs; return what can be delivered now, and what they show."""
        seqs, run = delivered.seqs, delivered.run
        if not len(seqs):
            return []
        if from_backbone:
            self.heard(now)
        first = int(seqs[0])
        if first == self._next and not self._holes and from_backbone and _consecutive(seqs):
            self._next = first + len(seqs)
            self._known = self._next - 1
            self._moved(now)
            return [Delivered(first, run)]
        if self._next == _NOT_BEGUN and from_backbone:
            self._next = first
            self._known = first - 1
        events: list[RepairEvent] = []
        for begin, end in _stretches(seqs):
            self._take(int(seqs[begin]), run.slice(begin, end), now, events, from_backbone=from_backbone)
        return events

    def heard(self, now: float) -> None:
        """Note that the backbone has sent something, if only a KEEPALIVE-ACK."""
        if self._heard is not None and now - self._heard > self._timing.silence:
            self._unheard += now - self._heard
        self._heard = now

    def reconnected(self, now: float) -> None:
        """Ask at once for what is missing: there is a new connection to the backbone."""
        self.heard(now)
        for hole in self._holes:
            hole.due, hole.attempts = now, 0
        self._probe_due, self._probes = now, 0

    def tick(self, now: float) -> list[RepairEvent]:
        """Do what is due: give up what is lost, ask for what is missing, probe silence."""
        events: list[RepairEvent] = []
        while self._lost(now):
            hole = self._holes.pop(0)
            self._next = hole.last + 1
            events.append(LostRange(hole.first, hole.last))
            self._follow(now, events)
        if self._holes:
            events += self._ask(now)
        elif self._next != _NOT_BEGUN and now >= self._probe_due:
            events.append(Ask(self._next, MAX_SEQUENCE))
            self._probe_full = self._next + self._timing.max_request
            self._probes += 1
            wait = _doubled(self._timing.probe, self._timing.probe_most, self._probes)
            self._probe_due = now + self._jitter() * wait
        return events

    def next_timer(self) -> float | None:
        """Return when to :meth:`tick`; a time in the past means now."""
        if self._holes:
            # Giving up needs no timer of its own: a hole is requested until it is given up.
            return min(hole.due for hole in self._wanted())
        return None if self._next == _NOT_BEGUN else self._probe_due

    def _take(
        self, first: int, run: Run, now: float, events: list[RepairEvent], *, from_backbone: bool
    ) -> None:
        """Take consecutive messages that are not simply the next ones."""
        last = first + len(run) - 1
        if from_backbone and last > self._known:
            self._learn(first, last, now, events)
        at = first
        while at <= last:
            index = bisect_left(self._holes, at, key=attrgetter("last"))
            hole = self._holes[index] if index < len(self._holes) else None
            if hole is None or at < hole.first:
                until = min(last, self._known if hole is None else hole.first - 1)
            elif from_backbone:
                until = min(last, hole.last)
            else:
                until = min(last, hole.last, hole.asked)
            if until < at:
                # From another client, and not requested: unknown, or in the part of a hole that is yet to be requested.
                until = last if hole is None else min(last, hole.last)
                events.append(Discarded(at, until, DiscardReason.UNASKED))
            elif hole is None or at < hole.first:
                if from_backbone:
                    # Any copy will do, but an empty one may stand for a message that was too long for its
                    # datagram: a full one is better while there is still a choice.
                    self.early.prefer(at, run.slice(at - first, until - first + 1))
                events.append(Discarded(at, until, DiscardReason.REPEATED))
            else:
                self._fill(index, at, run.slice(at - first, until - first + 1), now, events)
            at = until + 1

    def _learn(self, first: int, last: int, now: float, events: list[RepairEvent]) -> None:
        """Note that messages up to ``last`` exist: the new ones are a hole, or the end of the last one."""
        beyond = self._known + 1
        if first > beyond:
            events.append(Gap(beyond, first - 1))
        if self._holes and self._holes[-1].last == self._known:
            self._holes[-1].last = last
        else:
            due = now + self._jitter() * self._timing.reorder
            self._holes.append(_Hole(beyond, last, since=self._clock(now), due=due))
        self._known = last

    def _fill(self, index: int, first: int, run: Run, now: float, events: list[RepairEvent]) -> None:
        last = first + len(run) - 1
        if first == self._next:
            self._shrink(index, first, last, now, events)
            self._next = last + 1
            events.append(Delivered(first, run))
            self._follow(now, events)
            return
        kept, evicted = self.early.add(first, run)
        if kept:
            self._shrink(index, first, first + kept - 1, now, events)
        if kept < len(run):
            self._crowded = True
            events.append(Discarded(first + kept, last, DiscardReason.NO_ROOM))
        if evicted:
            self._crowded = True
            events += [Discarded(*sequences, DiscardReason.NO_ROOM) for sequences in evicted]
            self._reopen(evicted[0][0], now)

    def _shrink(self, index: int, first: int, last: int, now: float, events: list[RepairEvent]) -> None:
        """Take messages ``first`` to ``last`` out of a hole, which leaves up to two holes."""
        hole = self._holes[index]
        before = after = hole
        if hole.attempts:
            if first <= hole.asked:
                events.append(Repaired(first, min(last, hole.asked)))
            # An answer is coming in: wait for the rest of it, then ask again as for the first time. Messages
            # past everything requested so far are requested at once.
            due = now + self._jitter() * self._backoff(1)
            since = self._clock(now)
            before = _Hole(0, 0, since, due, 1, hole.asked)
            after = before if last < hole.asked else _Hole(0, 0, since, due=now)
        left: list[_Hole] = []
        if hole.first < first:
            left.append(replace(before, first=hole.first, last=first - 1))
        if hole.last > last:
            left.append(replace(after, first=last + 1, last=hole.last))
        self._holes[index : index + 1] = left

    def _reopen(self, first: int, now: float) -> None:
        """Note that everything from ``first`` to the highest known number is missing again."""
        while self._holes and self._holes[-1].first > first:
            self._holes.pop()
        self._holes.append(_Hole(first, self._known, since=self._clock(now), due=now))

    def _follow(self, now: float, events: list[RepairEvent]) -> None:
        """Deliver the kept messages whose turn has come."""
        run = self.early.take(self._next)
        if run is not None:
            events.append(Delivered(self._next, run))
            self._next += len(run)
        if self._crowded and self.early.half_empty:
            self._crowded = False
        self._moved(now)

    def _moved(self, now: float) -> None:
        """Restart the wait before a probe, since ``next`` moved; after a full answer to one, probe at once."""
        self._probes = 0
        if self._next >= self._probe_full:
            self._probe_full = MAX_SEQUENCE + 1
            self._probe_due = now
        else:
            self._probe_due = now + self._timing.probe

    def _lost(self, now: float) -> bool:
        """Whether the first hole has waited long enough while the backbone was not silent."""
        if not self._holes or self._heard is None or now - self._heard > self._timing.silence:
            return False
        hole = self._holes[0]
        if not hole.attempts or self._neglected(hole, now):
            return False
        return self._clock(now) - hole.since >= self._timing.hole

    def _clock(self, now: float) -> float:
        """The time, not counting the backbone's silence."""
        return now - self._unheard

    def _neglected(self, hole: _Hole, now: float) -> bool:
        """Whether it was not requested when it should have been, so that its wait proves nothing."""
        return now - hole.due > self._timing.retry_most

    def _wanted(self) -> Iterator[_Hole]:
        """The holes to request: the lowest ones, as long as there is room for what follows them."""
        for index, hole in enumerate(islice(self._holes, _WINDOW)):
            if index and self._crowded and hole.first > self.early.last:
                return
            yield hole

    def _ask(self, now: float) -> list[RepairEvent]:
        """Ask for the holes that are due, and along with them for those that soon will be."""
        wanted = list(self._wanted())
        if min(hole.due for hole in wanted) > now:
            return []
        most = self._timing.max_request
        jitter = self._jitter()
        asks: list[RepairEvent] = []
        spans: list[tuple[int, int]] = []
        for hole in wanted:
            if hole.due > now + self._timing.retry / 2:
                continue
            if not hole.attempts or self._neglected(hole, now):
                hole.since = self._clock(now)
            if hole.attempts < _NARROW_ATTEMPTS or hole.last - hole.first < most:
                last = min(hole.last, hole.first + _AHEAD * most - 1)
                nearby = spans and hole.first - spans[-1][1] <= _NEARBY + 1
                if nearby and last - spans[-1][0] < most:
                    spans[-1] = (spans[-1][0], last)
                else:
                    spans.append((hole.first, last))
            else:
                last = hole.last
                asks.append(Ask(hole.first, last))
            hole.attempts += 1
            hole.asked = last
            hole.due = now + jitter * self._backoff(hole.attempts)
        for first, last in spans:
            asks += [Ask(begin, min(begin + most - 1, last)) for begin in range(first, last + 1, most)]
        return asks

    def _backoff(self, attempts: int) -> float:
        return _doubled(self._timing.retry, self._timing.retry_most, attempts)

    def _jitter(self) -> float:
        """Return a factor for a delay, so that clients that lost the same datagram do not all ask at once."""
        return self._random.uniform(0.5, 1.5)


def _doubled(shortest: float, longest: float, attempts: int) -> float:
    """Return the delay after ``attempts`` attempts: each twice the one before, up to the longest."""
    return min(longest, shortest * 2.0 ** min(attempts - 1, _MAX_DOUBLINGS))


def _consecutive(seqs: npt.NDArray[np.int64]) -> bool:
    count = len(seqs)
    if count == 1:
        return True
    # Numbers that rise from a to a + count - 1 in as many steps can only rise by one.
    return bool(seqs[-1] - seqs[0] == count - 1 and (seqs[1:] > seqs[:-1]).all())


def _stretches(seqs: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return where consecutive numbers begin and end."""
    if _consecutive(seqs):
        return [(0, len(seqs))]
    ends = (np.flatnonzero(seqs[1:] - seqs[:-1] != 1) + 1).tolist()
    return list(pairwise([0, *ends, len(seqs)]))
