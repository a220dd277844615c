"""The messages that a subscriber keeps for others, and how it answers FORWARD with them.

    4. if a client receives a FORWARD MESSAGE packet and stores at least one of the requested sequences it
       must send them to the requester

Strategy: runs as they were delivered, in order, the oldest dropped when there are too many messages or bytes; and the
early messages that wait for their turn, since they are stored too. A FORWARD becomes an answer in a short queue; what
is stored of its range goes straight to the requester at this client's own pace, looked up as it goes, so that a queued
answer costs a few numbers.

FORWARD names any address and asks for a thousand times its own size, so only the backbone's are answered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

import numpy as np

from headrace.client.fyrehose.reorder_buffer import ReorderBuffer, Stretch
from headrace.hub.backbone.pacing import Pace, TokenBucket
from headrace.hub.backbone.udp_subscribers import Endpoint
from headrace.message import Run
from headrace.wire.fyrehose.stream import Forward

_DELIVER_HEADER = 9
"""TYPE, LENGTH and SEQUENCE."""


@dataclass(frozen=True, slots=True)
class SendDelivers:
    """DELIVER messages ``first, first + 1, …`` to ``to``, one in a datagram."""

    to: Endpoint
    first: int
    run: Run


class UnansweredReason(StrEnum):
    """Why a FORWARD is not answered."""

    NOT_THE_BACKBONE = "not-the-backbone"
    TOO_MANY = "too-many-forwards"
    BACKWARDS = "backwards"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A FORWARD that is not answered."""

    frame: Forward
    why: UnansweredReason


JournalEffect = SendDelivers | Unanswered


@dataclass(frozen=True, slots=True)
class JournalBounds:
    """Limits of what a UDP client keeps to answer FORWARD with, and of its answers.

    ``messages`` and ``size`` (bytes) bound what is kept, ``forward`` is how many messages answer one FORWARD (as many
    as the hub itself sends for a REQUEST), ``answers`` how many FORWARDs may wait, ``pace`` how fast they are answered.

    >>> import headrace
    >>> client = headrace.connect("fyrehose+udp://", journal=headrace.JournalBounds(messages=1_000))
    """

    messages: int = 65_536
    size: int = 16 * 1024 * 1024
    forward: int = 1_024
    answers: int = 64
    pace: Pace = field(default_factory=lambda: Pace(datagrams_per_second=20_000, bytes_per_second=16e6))


@dataclass(slots=True)
class _ForwardAnswer:
    to: Endpoint
    first: int
    last: int
    left: int


_GONE = Stretch(0, Run.of([]))
"""Takes the place of a dropped stretch until the list is next shortened."""


class Journal:
    """The messages last delivered, for other clients that missed them."""

    def __init__(self, bounds: JournalBounds, early: ReorderBuffer, now: float) -> None:
        self._bounds = bounds
        self._early = early
        self._bucket = TokenBucket(bounds.pace, now)
        self._delivered: list[Stretch] = []
        self._dropped = 0
        self._answers: deque[_ForwardAnswer] = deque()
        self.count = 0
        self.size = 0

    def store(self, first: int, run: Run) -> None:
        """Store messages, whose numbers are above all that were stored before."""
        if len(run.data) > 2 * run.size:
            # A few bytes of a large receive buffer would keep all of it.
            run = Run(run.content.copy(), run.offsets - run.offsets[0])
        stretch = Stretch(first, run)
        self._delivered.append(stretch)
        self.count += len(run)
        self.size += stretch.cost
        while self.count > self._bounds.messages or self.size > self._bounds.size:
            self._drop_oldest()

    def __contains__(self, seq: int) -> bool:
        return self._find(seq, seq) is not None

    def forward(self, frame: Forward, now: float, *, from_backbone: bool) -> list[JournalEffect]:
        """Begin to answer a FORWARD with the stored messages of its range."""
        if not from_backbone:
            return [Unanswered(frame, UnansweredReason.NOT_THE_BACKBONE)]
        if frame.first > frame.last:
            return [Unanswered(frame, UnansweredReason.BACKWARDS)]
        if self._find(frame.first, frame.last) is None:
            return []
        if len(self._answers) >= self._bounds.answers:
            return [Unanswered(frame, UnansweredReason.TOO_MANY)]
        to = (frame.address, frame.port)
        self._answers.append(_ForwardAnswer(to, frame.first, frame.last, self._bounds.forward))
        return self.tick(now)

    def tick(self, now: float) -> list[JournalEffect]:
        """Continue to answer, as far as the pace allows."""
        work: list[JournalEffect] = []
        while self._answers:
            datagrams, size = self._bucket.allowance(now)
            if not datagrams:
                break
            answer = self._answers[0]
            stored = self._find(answer.first, answer.last)
            if stored is None:
                self._answers.popleft()
                continue
            begin = max(answer.first, stored.first)
            most = min(answer.left, datagrams, min(answer.last, stored.last) - begin + 1)
            run = _within(stored.run.slice(begin - stored.first, begin - stored.first + most), size)
            work.append(SendDelivers(answer.to, begin, run))
            self._bucket.spend(len(run), run.size + _DELIVER_HEADER * len(run))
            answer.first = begin + len(run)
            answer.left -= len(run)
            if not answer.left or answer.first > answer.last:
                self._answers.popleft()
        return work

    def next_timer(self) -> float | None:
        """Return when to :meth:`tick`; a time in the past means now, ``None`` that nothing waits."""
        return self._bucket.ready() if self._answers else None

    def _find(self, first: int, last: int) -> Stretch | None:
        index = bisect_left(self._delivered, first, lo=self._dropped, key=attrgetter("last"))
        if index < len(self._delivered) and self._delivered[index].first <= last:
            return self._delivered[index]
        # Early messages come after all that was delivered.
        return self._early.find(first, last)

    def _drop_oldest(self) -> None:
        oldest = self._delivered[self._dropped]
        self.count -= len(oldest.run)
        self.size -= oldest.cost
        self._delivered[self._dropped] = _GONE
        self._dropped += 1
        if 2 * self._dropped > len(self._delivered):
            del self._delivered[: self._dropped]
            self._dropped = 0


def _within(run: Run, size: int) -> Run:
    """Return the first messages of a run that fit ``size`` bytes as DELIVERs, and at least one."""
    ends = run.offsets[1:] - run.offsets[0] + _DELIVER_HEADER * np.arange(1, len(run) + 1)
    return run.slice(0, max(1, int(np.searchsorted(ends, size, side="right"))))
