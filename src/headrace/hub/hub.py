"""The middle of Headrace: whatever comes in, by any door, becomes one numbered, logged, committed sequence.

One turn of the event loop is one batch of work:

1. doors :meth:`~Hub.submit` what they received;
2. :meth:`~Hub.turn` numbers it all, stamps it with one time and appends it to the log in one write;
3. the commit rule decides when it is committed: at once on a lone hub, after the sync under ``fsync=always``,
   after a majority has it in a cluster; whoever decides calls :meth:`~Hub.committed`;
4. every door is handed the newly committed batches, in order.

The hub owns no socket, thread or clock: ``now`` is an argument, and :attr:`Hub.wake` is how it asks for a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from headrace.errors import StorageError, UsageError
from headrace.hub.counters import Counter, Counters
from headrace.hub.state import State
from headrace.log import Log
from headrace.message import MAX_SEQUENCE, Batch

Done = Callable[[Batch | StorageError], None]
"""Told how a submitted batch ended: the batch as it was numbered once it is committed, or why it was not taken."""

CommitRule = Callable[[int], None]
"""Called after each append with the new tail; sees to it that :meth:`Hub.committed` is called in time."""


TURN_BYTES: Final = 256 << 10
"""Payload bytes that make a turn long enough to be worth its overhead, and short enough to keep everyone busy."""


class Door(Protocol):
    """What the hub wants of a door: take what was committed, quickly, and keep no more than it must."""

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Take newly committed batches; called in sequence order, each once."""


class Submission(NamedTuple):
    """A batch waiting for the end of the turn."""

    batch: Batch
    done: Done | None


class _Received(dict[str, Counter]):
    """Messages received, by origin; an origin's counter is made when it is first needed."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self._counters = counters

    def __missing__(self, origin: str) -> Counter:
        counter = self[origin] = self._counters.counter("received", origin=origin)
        return counter


class Hub:
    """Sequencer, commit point and fan-out."""

    def __init__(
        self,
        log: Log,
        node: int,
        *,
        max_uncommitted: int,
        state: State | None = None,
        commit: CommitRule | None = None,
    ) -> None:
        self.log = log
        self.node = node
        self.counters = Counters()
        self.state = state or State()
        self.state.restore(log)
        self.doors: list[Door] = []
        self._commit: CommitRule = self.committed
        self._immediate = True
        if commit is not None:
            self.commit_by(commit)
        self.wake: Callable[[], None] = lambda: None
        self.take_turn: Callable[[], None] = lambda: None
        """Takes the turn at once, by whoever has the clock."""
        self.relieved: Callable[[], None] = lambda: None
        """Called when :attr:`congested` becomes false: doors may read from their publishers again."""
        self._max_uncommitted = max_uncommitted
        self._received = _Received(self.counters)
        self._submitted: list[Submission] = []
        self._waiting = 0
        self._appended: deque[Submission] = deque()
        self.failed: StorageError | None = None
        """Why nothing can be committed any more, if so."""
        self._uncommitted = 0

    def commit_by(self, rule: CommitRule) -> None:
        """Leave it to ``rule`` when what is appended is committed; without one, it is at once."""
        self._commit = rule
        self._immediate = False

    @property
    def congested(self) -> bool:
        """Whether publishers must wait: more is appended and not yet committed than the hub wants to hold."""
        return self._uncommitted > self._max_uncommitted

    def submit(self, batch: Batch, done: Done | None = None) -> None:
        """Take messages for this turn; the first of a turn asks for one."""
        if not self._submitted:
            self.wake()
        self._submitted.append(Submission(batch, done))
        self._waiting += batch.run.size

    @property
    def full(self) -> bool:
        """Whether a turn has enough to do: a door that reads on should :attr:`take_turn` first.

        An event loop may read one busy socket many times before it calls anyone else. Without a bound, a turn
        would then be megabytes long, and publisher, hub and subscribers would wait for one another instead of
        working side by side.
        """
        return self._waiting >= TURN_BYTES

    def turn(self, now: int) -> None:
        """Number and append everything submitted since the last turn; ``now`` in µs."""
        submitted, self._submitted = self._submitted, []
        self._waiting = 0
        if submitted:
            self._append(submitted, now)

    def fail(self, error: StorageError) -> None:
        """Refuse whatever is not committed, and everything from now on: it can no longer be promised.

        What was appended stays in the log; whether it is found there after a restart, nobody knows now.
        """
        self.failed = error
        refused, self._appended = self._appended, deque()
        self._uncommitted = 0
        self._refuse(refused, error, "storage")
        self.relieved()

    def _append(self, submitted: Sequence[Submission], now: int) -> None:
        if self.failed is not None:
            self._refuse(submitted, self.failed, "storage")
            return
        # Time never decreases, whatever the machine's clock does.
        time = max(now, self.log.last_time)
        first = self.log.tail + 1
        numbered: list[Batch] = []
        for submission in submitted:
            batch = submission.batch.numbered(first, time, self.node)
            first = batch.last + 1
            numbered.append(batch)
        if first - 1 > MAX_SEQUENCE:
            # Numbers never wrap around: 48 bits last for years, and then nothing more is taken.
            self._refuse(submitted, StorageError(f"sequence numbers end at {MAX_SEQUENCE}"), "sequence")
            return
        try:
            self.log.append(numbered)
        except StorageError as error:
            self._refuse(submitted, error, "storage")
            return
        except UsageError as error:
            # Doors see to it that what they submit can be written. If one slips, only what is unfit is refused.
            if len(submitted) == 1:
                self._refuse(submitted, StorageError(f"it cannot be written: {error}"), "unfit")
            else:
                for submission in submitted:
                    self._append([submission], now)
            return
        if self._immediate and not self._appended:
            self.log.commit(self.log.tail)
            self._hand_out(numbered, [submission.done for submission in submitted])
            return
        for submission, batch in zip(submitted, numbered, strict=True):
            self._appended.append(Submission(batch, submission.done))
            self._uncommitted += batch.run.size
        self._commit(self.log.tail)

    def committed(self, upto: int) -> None:
        """Move the head to ``upto`` and hand everything newly committed to the doors."""
        self.log.commit(upto)
        was_congested = self.congested
        batches: list[Batch] = []
        dones: list[Done | None] = []
        while self._appended and self._appended[0].batch.last <= upto:
            batch, done = self._appended.popleft()
            self._uncommitted -= batch.run.size
            batches.append(batch)
            dones.append(done)
        if batches:
            self._hand_out(batches, dones)
        if was_congested and not self.congested:
            self.relieved()

    def _hand_out(self, batches: Sequence[Batch], dones: Sequence[Done | None]) -> None:
        for batch in batches:
            self._received[batch.origin].value += len(batch)
            self.state.apply(batch)
        for door in self.doors:
            door.deliver(batches)
        for batch, done in zip(batches, dones, strict=True):
            if done is not None:
                done(batch)

    def _refuse(self, submitted: Iterable[Submission], error: StorageError, reason: str) -> None:
        for submission in submitted:
            batch = submission.batch
            self.counters.add("refused_messages", len(batch), origin=batch.origin, reason=reason)
            self.counters.refuse(batch.origin, reason, batch.publisher, error)
            if submission.done is not None:
                submission.done(error)
