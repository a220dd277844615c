"""The middle of Headrace: everything that any door receives becomes one numbered, logged, committed sequence.

One turn of the event loop is one batch of work:

1. doors :meth:`~Hub.submit` what they received, and entries: changes of the hub's own state, which take no numbers;
2. :meth:`~Hub.turn` numbers everything, stamps it with one time and appends it to the log in one write. If another hub
   numbers messages (:attr:`Hub.sequencer`), the turn's work goes there, and :meth:`~Hub.follow` appends the answer;
3. the commit rule calls :meth:`~Hub.committed`: at once on a lone hub, after the sync under ``fsync=always``, after a
   majority has it in a cluster;
4. the state applies everything, and every door gets the newly committed messages, in order.

Commits, cutting back and other nodes treat messages and entries alike, so they count operations: see
:mod:`headrace.log.store`.

The hub owns no socket, thread or clock: :attr:`Hub.now` tells the time, and :attr:`Hub.wake` asks for a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, runtime_checkable

from msgspec.structs import replace

from headrace.errors import HeadraceError, StorageError, UnavailableError, UsageError
from headrace.hub.counters import Counters, ReceivedCounters
from headrace.hub.large_groups import PART_BYTES, parts_of
from headrace.hub.sequencer import Done, Sequencer, Submission, tied_groups
from headrace.hub.state import HubState
from headrace.hub.uncommitted import Uncommitted
from headrace.log import Log
from headrace.message import MAX_SEQUENCE, NOT_A_MESSAGE, Batch

CommitRule = Callable[[int], None]
"""Called after each append with the last operation; must call :meth:`Hub.committed` in time."""

WhenWritten = Callable[[HeadraceError | None], None]
WriteRule = Callable[[Sequence[Batch], WhenWritten], bool]
"""Appends batches and returns true. If it returns false, the hub is paused while they are being appended, and hears of
the outcome before it resumes."""

TURN_BYTES: Final = 256 << 10
"""Payload bytes of a full turn: enough to outweigh its overhead, few enough to keep readers and writers busy."""


@runtime_checkable
class CommitReceiver(Protocol):
    """A door that receives committed batches; it must be quick and keep as little as possible."""

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Take newly committed messages, in order and each once; called after every commit, even if it has none."""


class Hub:
    """Sequencer, commit point and fan-out."""

    def __init__(self, log: Log, node: int, *, max_uncommitted: int, state: HubState | None = None) -> None:
        self.log = log
        self.node = node
        self.counters = Counters()
        self.state = state or HubState()
        self.state.restore(log)
        self.head_doubt: Callable[[], str | None] = lambda: None
        """Returns why the log's head may be lower than what this hub has shown before a restart, if so. Requests for
        the head then wait, or are refused with that reason."""
        self.doors: list[CommitReceiver] = []
        self.sequencer: Sequencer | None = None
        """The hub that numbers what is submitted here; ``None`` for this one."""
        self._commit: CommitRule = self.committed
        self._immediate = True
        self.wake: Callable[[], object] = lambda: None
        """Asks the owner to call :meth:`take_turn` soon."""
        self.now: Callable[[], int] = lambda: 0
        """The time in µs; set by the owner, who has the clock."""
        self.relieved: Callable[[], None] = lambda: None
        """Called when :attr:`congested` becomes false: doors may read from publishers again."""
        self._max_uncommitted = max_uncommitted
        self._received = ReceivedCounters(self.counters)
        self._submitted: list[Submission] = []
        self._waiting = 0
        self._uncommitted = Uncommitted()
        self.append_bytes: int | None = None
        """Most payload bytes in one append; larger groups are appended in parts, and committed whole."""
        self.interrupted: Callable[[HeadraceError], None] = lambda _: None
        """Called if only a part of a group could be appended: that part must be cut off."""
        self._parts: deque[list[Submission]] = deque()
        """The parts of a group that are not appended yet; they are numbered before everything else."""
        self._begun = False
        """Whether a part of the group has been appended."""
        self.write: WriteRule | None = None
        """Appends the batches that this hub numbers; by default they are appended at once."""
        self.paused = False
        """Whether this hub numbers nothing for now, since the disk has not answered yet."""
        self.failed: StorageError | None = None
        """The error after which nothing can be committed any more."""
        self.shortage: StorageError | None = None
        """Why messages are refused for now, if the disk is nearly full; entries are still taken."""
        self.short_of_memory = False
        """Whether publishers wait because the hub takes too much memory; set by its owner."""

    def commit_by(self, rule: CommitRule) -> None:
        """Let ``rule`` decide when appended messages are committed; the default is at once."""
        self._commit = rule
        self._immediate = False

    def give_way(self, sequencer: Sequencer) -> None:
        """Let another hub number messages from now on.

        This turn's submissions go there as well. But publishers must send those with their own numbers again, since
        this hub has judged them to be new.
        """
        self.sequencer = sequencer
        # The appended part of the group is cut off when the view changes.
        _reject(self._take_parts(), _moved())
        self._begun = False
        submitted, self._submitted = self._submitted, []
        self._waiting = 0
        for group in tied_groups(submitted):
            if len(group) > 1 or group[0].batch.number is not None:
                _reject(group, _moved())
            else:
                for submission in group:
                    self.submit(submission.batch, submission.done)

    def take_over(self) -> None:
        """Number messages here from now on.

        This turn's submissions first go to the sequencer, where they queue after earlier ones.
        """
        sequencer, self.sequencer = self.sequencer, None
        submitted, self._submitted = self._submitted, []
        self._waiting = 0
        if sequencer is not None and submitted:
            sequencer.order(submitted)

    @property
    def congested(self) -> bool:
        """Whether publishers must wait, here or at the hub that numbers what they send."""
        return (
            self.crowded or self.short_of_memory or (self.sequencer is not None and self.sequencer.congested)
        )

    @property
    def crowded(self) -> bool:
        """Whether too many bytes are not committed yet or wait for the disk."""
        size = self._uncommitted.size + self._waiting if self.paused else self._uncommitted.size
        return size > self._max_uncommitted

    def resume(self) -> None:
        """Number messages again, since the disk has answered."""
        was_congested, self.paused = self.congested, False
        if self._submitted or self._parts:
            self.wake()
        if was_congested and not self.congested:
            self.relieved()

    def submit(self, batch: Batch, done: Done | None = None, *, tied: bool = False) -> None:
        """Queue messages for this turn; the first asks for a turn.

        With ``tied``, this batch and the next are appended together, or neither is.
        """
        if not self._submitted:
            self.wake()
        self._submitted.append(Submission(batch, done, tied))
        self._waiting += batch.size

    @property
    def full(self) -> bool:
        """Whether a turn has enough to do, so that a door should :meth:`take_turn` before it reads more.

        An event loop may read one busy socket many times in a row. Without a bound, a turn would be megabytes long, and
        publisher, hub and subscribers would wait for one another instead of working side by side.
        """
        return self._waiting >= TURN_BYTES

    def take_turn(self) -> None:
        """Take the turn at once."""
        self.turn(self.now())

    def turn(self, now: int) -> None:
        """Number and append what was submitted since the last turn, or pass it to the sequencer; ``now`` in µs."""
        if self.paused and self.sequencer is None:
            return
        if self._parts:
            self._append_part(now)
            return
        submitted, self._submitted = self._submitted, []
        self._waiting = 0
        if not submitted:
            return
        if self.sequencer is None:
            self._append(submitted, now)
        else:
            self.sequencer.order(submitted)

    def follow(self, batches: Sequence[Batch]) -> None:
        """Append batches that another hub has numbered, entries included; the commit rule applies as usual.

        If the disk fails, the error is raised, and the caller retries with the same batches.
        """
        self.log.append(batches)
        self.followed(batches)

    def followed(self, batches: Sequence[Batch]) -> None:
        """Take over batches that another hub has numbered and that are in the log already."""
        self.counters.add("followed", sum(len(batch) for batch in batches if not batch.is_entries))
        self._appended_now(batches, [None] * len(batches))

    def fail(self, error: StorageError) -> None:
        """Refuse everything that is not committed, now and later, since the disk can no longer be trusted.

        What was appended stays in the log; whether it survives a restart is unknown.
        """
        self.failed = error
        self.refuse([*self._uncommitted.take_all(), *self._take_parts()], error, "storage")
        self.relieved()

    @property
    def appended_op(self) -> int:
        """The last operation that this hub has appended; a thread may be about to append the next."""
        return self._uncommitted.last_op or self.log.head_op

    def appended_from(self, op: int) -> list[Batch]:
        """Return the uncommitted batches from an operation on."""
        return self._uncommitted.batches_from(op)

    def cut_back(self, last: int) -> None:
        """Remove uncommitted operations after ``last`` from the log, and refuse them."""
        self.log.cut_back(last)
        self.was_cut_back(last)

    def was_cut_back(self, last: int) -> None:
        """Refuse uncommitted operations after ``last``, which were removed from the log."""
        was_congested = self.congested
        lost = UnavailableError("the cluster has gone on without it: it was not taken, try again")
        _reject(self._uncommitted.cut(last), lost)
        if was_congested and not self.congested:
            self.relieved()

    def abandon(self, error: StorageError) -> None:
        """Refuse everything that is not committed, since its fate is unknown."""
        self.refuse(self._uncommitted.take_waiting(), error, "cluster")

    def _append(self, submitted: Sequence[Submission], now: int) -> None:
        if self.failed is not None:
            self.refuse(submitted, self.failed, "storage")
            return
        if self.shortage is not None:
            submitted = self._without_messages(submitted, self.shortage)
            if not submitted:
                return
        if (
            self.append_bytes is not None
            and sum(each.batch.run.size for each in submitted) > self.append_bytes
        ):
            groups = tied_groups(submitted)
            if len(groups) > 1:
                self._append_each(groups, now)
            else:
                self._parts.extend(parts_of(submitted, min(self.append_bytes, PART_BYTES)))
                self._begun = False
                self._append_part(now)
            return
        self._append_now(submitted, now)

    def _append_part(self, now: int) -> None:
        """Append the next part of a group; the part after it has to wait for the next turn."""
        part = self._parts.popleft()
        self._append_now(part, now)
        if (self._parts or self._submitted) and not self.paused:
            self.wake()

    def _take_parts(self) -> list[Submission]:
        parts, self._parts = self._parts, deque()
        return [each for part in parts for each in part]

    def _append_now(self, submitted: Sequence[Submission], now: int) -> None:
        """Number submissions and append them in one write."""
        # Time never decreases, whatever the machine's clock does.
        time = max(now, self.log.last_time)
        op, seq = self.log.tail_op + 1, self.log.tail
        numbered: list[Batch] = []
        for batch, _, _ in submitted:
            count = batch.run.count
            if batch.is_entries:
                numbered.append(batch.numbered(op, seq, time, self.node))
            else:
                numbered.append(batch.numbered(op, seq + 1, time, self.node))
                seq += count
            op += count
        if seq > MAX_SEQUENCE:
            # Numbers never wrap around: 48 bits last for years, and then everything is refused.
            error = StorageError(f"sequence numbers end at {MAX_SEQUENCE}")
            self._refuse_group(submitted, error, "sequence")
            return
        if self.append_bytes is not None and (len(numbered) > 1 or self._parts):
            # Batches that are appended together are committed together, at every node.
            last = len(numbered) if self._parts else len(numbered) - 1
            numbered[:last] = [replace(batch, tied=True) for batch in numbered[:last]]
        try:
            if self.write is None:
                self.log.append(numbered)
            elif not self.write(numbered, partial(self._written, submitted, numbered, now)):
                return
        except HeadraceError as error:
            self._written(submitted, numbered, now, error)
            return
        self._appended_now(numbered, [submission.done for submission in submitted])

    def _append_each(self, groups: Sequence[Sequence[Submission]], now: int) -> None:
        """Append groups one by one; if the disk is slow, the rest waits in front of all other submissions."""
        for place, group in enumerate(groups):
            if self.paused or self._parts:
                rest = [each for later in groups[place:] for each in later]
                self._submitted = [*rest, *self._submitted]
                self._waiting += sum(each.batch.size for each in rest)
                return
            self._append(group, now)

    def _written(
        self,
        submitted: Sequence[Submission],
        numbered: Sequence[Batch],
        now: int,
        error: HeadraceError | None,
    ) -> None:
        """Continue after an append that has succeeded or failed."""
        if self.failed is not None:
            # A sync failed during the append, so it is not known whether this will be committed.
            self.refuse(submitted, self.failed, "storage")
        elif error is None:
            self._appended_now(numbered, [submission.done for submission in submitted])
        elif isinstance(error, StorageError):
            self._refuse_group(submitted, error, "storage")
        elif not isinstance(error, UsageError):
            raise error
        else:
            # Doors should submit only what can be written. If one does not, only its group is refused.
            groups = tied_groups(submitted)
            if len(groups) == 1:
                self._refuse_group(submitted, StorageError(f"it cannot be written: {error}"), "unfit")
            else:
                self._append_each(groups, now)

    def _refuse_group(self, submitted: Sequence[Submission], error: StorageError, reason: str) -> None:
        """Refuse submissions and the parts that should follow; if earlier parts were appended, tell the owner."""
        rest = self._take_parts()
        begun, self._begun = self._begun, False
        self.refuse([*submitted, *rest], error, reason)
        if begun:
            self.interrupted(error)

    def _without_messages(self, submitted: Sequence[Submission], error: StorageError) -> Sequence[Submission]:
        """Refuse messages and everything tied to them; return the rest."""
        kept: list[Submission] = []
        for group in tied_groups(submitted):
            if all(each.batch.is_entries for each in group):
                kept += group
            else:
                self.refuse(group, error, "storage")
        return kept

    def _appended_now(self, batches: Sequence[Batch], dones: Sequence[Done | None]) -> None:
        """Commit what was just appended, or leave that to the commit rule."""
        if self._immediate and not self._uncommitted:
            self._hand_out(self.log.tail_op, batches, dones)
            return
        for batch, done in zip(batches, dones, strict=True):
            self._uncommitted.add(batch, done)
        self._begun = bool(self._parts)
        self._commit(self.log.tail_op)
        self._let_go()

    def _let_go(self) -> None:
        """Forget the beginning of a large group that is not committed yet; its commit reads it from the log."""
        if self._uncommitted.size <= self._max_uncommitted:
            return
        was_congested = self.congested
        self._uncommitted.let_go(self._max_uncommitted)
        if was_congested and not self.congested:
            self.relieved()

    def committed(self, upto: int) -> None:
        """Commit operations up to ``upto``, and hand the newly committed messages to the doors."""
        was_crowded = self._uncommitted.size > self._max_uncommitted
        self._hand_out_unread(upto)
        self._hand_out(upto, *self._uncommitted.take(upto))
        if was_crowded and not self.congested:
            self.relieved()

    def _hand_out_unread(self, upto: int) -> None:
        """Commit operations that are not in memory (from before a start, or of a large group), a piece at a time."""
        log = self.log
        first = self._uncommitted.first_op
        unread = log.tail_op if first is None else first - 1
        while log.head_op < min(upto, unread):
            batches = log.read_ops(log.head_op + 1, min(upto, unread), uncommitted=True)
            self._hand_out(batches[-1].last_op, batches, [None] * len(batches))

    def _hand_out(self, upto: int, batches: Sequence[Batch], dones: Sequence[Done | None]) -> None:
        """Commit operations up to ``upto``: first apply them to the state, then give them to readers, then to waiters.

        Messages that another hub has numbered are answered first, since their publishers have waited for two hubs.
        """
        for batch in batches:
            if self.sequencer is None:
                self._received[batch.origin].value += batch.run.count
            self.state.apply(batch)
        self.log.commit(upto)
        if not batches:
            return
        if self.sequencer is not None:
            self.sequencer.committed(self.log.head_op)
        messages = [batch for batch in batches if batch.origin != NOT_A_MESSAGE]
        for door in self.doors:
            door.deliver(messages)
        for batch, done in zip(batches, dones, strict=True):
            if done is not None:
                done(batch)

    def received(self, batch: Batch) -> None:
        """Count committed messages that one of this hub's doors received."""
        self._received[batch.origin].value += len(batch)

    def refuse(self, submitted: Iterable[Submission], error: StorageError, reason: str) -> None:
        """Refuse submissions with an error, and count them."""
        for submission in submitted:
            batch = submission.batch
            self.counters.add("refused_messages", len(batch), origin=batch.origin, reason=reason)
            self.counters.refuse(batch.origin, reason, batch.publisher, error)
            if submission.done is not None:
                submission.done(error)


def _moved() -> UnavailableError:
    return UnavailableError("another node numbers messages now: try again")


def _reject(submitted: Iterable[Submission], error: StorageError) -> None:
    """Pass submitters the error; not counted as refused, since another hub may take their batches."""
    for submission in submitted:
        if submission.done is not None:
            submission.done(error)
