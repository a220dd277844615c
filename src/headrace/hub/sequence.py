"""The middle of Headrace: everything that comes in, by any door, becomes one numbered, logged, committed sequence.

One turn of the event loop is one batch of work:

1. doors :meth:`~Hub.submit` what they received, and entries: changes of the hub's own state, which take no numbers;
2. :meth:`~Hub.turn` numbers it all, stamps it with one time and appends it to the log in one write. If another hub
   numbers messages (:attr:`Hub.sequencer`), the turn's work goes there, and :meth:`~Hub.follow` appends the answer;
3. the commit rule calls :meth:`~Hub.committed`: at once on a lone hub, after the sync under ``fsync=always``, after a
   majority has it in a cluster;
4. the state takes in everything, and every door is handed the newly committed messages, in order.

What must agree on messages and entries alike (commit, cut back, other nodes) counts operations: see
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
from headrace.hub.counters import Counter, Counters
from headrace.hub.large_groups import PART_BYTES, parts_of
from headrace.hub.sequencer import Done, Sequencer, Submission, tied_groups
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.message import MAX_SEQUENCE, NOT_A_MESSAGE, Batch

CommitRule = Callable[[int], None]
"""Called after each append with the last operation; must call :meth:`Hub.committed` in time."""

WhenWritten = Callable[[HeadraceError | None], None]
WriteRule = Callable[[Sequence[Batch], WhenWritten], bool]
"""Appends batches and returns true. If it returns false the hub is paused: they are being appended, and how that ended
is told before the hub resumes."""

TURN_BYTES: Final = 256 << 10
"""Payload bytes of a full turn: enough to be worth its overhead, few enough to keep readers and writers busy."""


@runtime_checkable
class CommitReceiver(Protocol):
    """A door that receives committed batches: it must be quick, and keep as little as possible."""

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Take newly committed messages; called in sequence order, each once, and after every commit: if it brought
        only entries, there are none.
        """


class _Received(dict[str, Counter]):
    """Counters of received messages by origin, and of entries, each made when it is first needed."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self._counters = counters

    def __missing__(self, origin: str) -> Counter:
        entries = origin == NOT_A_MESSAGE
        counter = (
            self._counters.counter("entries")
            if entries
            else self._counters.counter("received", origin=origin)
        )
        self[origin] = counter
        return counter


class Hub:
    """Sequencer, commit point and fan-out."""

    def __init__(
        self,
        log: Log,
        node: int,
        *,
        max_uncommitted: int,
        state: HubState | None = None,
        commit: CommitRule | None = None,
    ) -> None:
        self.log = log
        self.node = node
        self.counters = Counters()
        self.state = state or HubState()
        self.state.restore(log)
        self.head_doubt: Callable[[], str | None] = lambda: None
        """Says why the log's head may be behind what this hub has shown before a restart, if so. Whoever asks for the
        head meanwhile waits, or is told why there is no answer."""
        self.doors: list[CommitReceiver] = []
        self.sequencer: Sequencer | None = None
        """The hub that numbers what is submitted here; ``None`` for this one."""
        self._commit: CommitRule = self.committed
        self._immediate = True
        if commit is not None:
            self.commit_by(commit)
        self.wake: Callable[[], object] = lambda: None
        """Asks for a turn soon: :meth:`take_turn`."""
        self.now: Callable[[], int] = lambda: 0
        """The time in µs; set by the owner, who has the clock."""
        self.relieved: Callable[[], None] = lambda: None
        """Called when :attr:`congested` becomes false: doors may read from publishers again."""
        self._max_uncommitted = max_uncommitted
        self._received = _Received(self.counters)
        self._submitted: list[Submission] = []
        self._waiting = 0
        self._appended: deque[Submission] = deque()
        self.append_bytes: int | None = None
        """Most payload bytes in one append; larger groups are appended in parts, and committed whole."""
        self.interrupted: Callable[[HeadraceError], None] = lambda _: None
        """Called if a group was appended in part and the rest cannot be: what is appended of it must be cut off."""
        self._parts: deque[list[Submission]] = deque()
        """The parts of a group that are not appended yet; nothing else is numbered before them."""
        self._begun = False
        """Whether a part of the group is appended."""
        self.write: WriteRule | None = None
        """Appends to the log what this hub numbers; by default that is done at once."""
        self.paused = False
        """Whether what this hub would number waits, since the disk has not answered yet."""
        self.failed: StorageError | None = None
        """The error after which nothing can be committed any more."""
        self.shortage: StorageError | None = None
        """Why messages are refused for now, if they are: the disk is nearly full. Entries are still taken."""
        self._uncommitted = 0
        self.short_of_memory = False
        """Whether publishers wait because the hub takes too much memory; its owner looks after that."""

    def commit_by(self, rule: CommitRule) -> None:
        """Let ``rule`` decide when appended messages are committed; the default is at once."""
        self._commit = rule
        self._immediate = False

    def give_way(self, sequencer: Sequencer) -> None:
        """Let another hub number messages from now on.

        This turn's submissions go there as well, except those with a publisher's number, which this hub has judged to
        be new: their publisher must send them again.
        """
        self.sequencer = sequencer
        # What is appended of the group is cut off when the view changes.
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

        This turn's submissions go to the sequencer first, after what waits there: they were submitted after it.
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
        """Whether too much is appended and not yet committed, or waits for the disk."""
        waiting = self._uncommitted + self._waiting if self.paused else self._uncommitted
        return waiting > self._max_uncommitted

    def resume(self) -> None:
        """Number messages again: the disk has answered."""
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
        """Whether a turn has enough to do: a door should :meth:`take_turn` before it reads more.

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
        """Take over batches that were appended to the log for another hub."""
        self.counters.add("followed", sum(len(batch) for batch in batches if not batch.is_entries))
        self._appended_now(batches, [None] * len(batches))

    def fail(self, error: StorageError) -> None:
        """Refuse everything that is not committed, now and later: the disk can no longer be trusted.

        What was appended stays in the log; whether it survives a restart is unknown.
        """
        self.failed = error
        refused, self._appended = [*self._appended, *self._take_parts()], deque()
        self._uncommitted = 0
        self.refuse(refused, error, "storage")
        self.relieved()

    @property
    def appended_op(self) -> int:
        """The last operation that this hub has appended; a thread may be about to append the next."""
        return self._appended[-1].batch.last_op if self._appended else self.log.head_op

    def appended_from(self, op: int) -> list[Batch]:
        """Return the batches from an operation on that are appended and not committed."""
        found: list[Batch] = []
        for submission in reversed(self._appended):
            if submission.batch.op < op:
                break
            found.append(submission.batch)
        return found[::-1]

    def cut_back(self, last: int) -> None:
        """Remove uncommitted operations after ``last`` from the log, and refuse them."""
        self.log.cut_back(last)
        self.was_cut_back(last)

    def was_cut_back(self, last: int) -> None:
        """Refuse uncommitted operations after ``last``, which were removed from the log."""
        was_congested = self.congested
        cut: list[Submission] = []
        while self._appended and self._appended[-1].batch.last_op > last:
            submission = self._appended.pop()
            self._uncommitted -= submission.batch.size
            cut.append(submission)
            kept = last - submission.batch.op + 1
            if kept > 0:
                batch = submission.batch.slice(0, kept)
                self._appended.append(Submission(batch))
                self._uncommitted += batch.size
        lost = UnavailableError("the cluster has gone on without it: it was not taken, try again")
        _reject(reversed(cut), lost)
        if was_congested and not self.congested:
            self.relieved()

    def abandon(self, error: StorageError) -> None:
        """Refuse what is appended and not committed, since its fate is unknown."""
        waiting = [each for each in self._appended if each.done is not None]
        self._appended = deque(Submission(each.batch) for each in self._appended)
        self.refuse(waiting, error, "cluster")

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
        """Append the next part of a group; the one after it has to wait for the next turn."""
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
            # Numbers never wrap around: 48 bits last for years, and then nothing more is taken.
            error = StorageError(f"sequence numbers end at {MAX_SEQUENCE}")
            self._refuse_group(submitted, error, "sequence")
            return
        if self.append_bytes is not None and (len(numbered) > 1 or self._parts):
            # What is appended together is committed together, at every node.
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
        if self._immediate and not self._appended:
            self._hand_out(op - 1, numbered, [submission.done for submission in submitted])
            return
        for batch, (_, done, _) in zip(numbered, submitted, strict=True):
            self._appended.append(Submission(batch, done))
            self._uncommitted += batch.size
        self._begun = bool(self._parts)
        self._commit(op - 1)
        self._let_go()

    def _append_each(self, groups: Sequence[Sequence[Submission]], now: int) -> None:
        """Append groups one by one; those that have to wait for the disk wait before all others."""
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
        """Go on after an append, or after it has failed."""
        if self.failed is not None:
            # A sync has failed while it was written: nobody would commit it, or somebody would.
            self.refuse(submitted, self.failed, "storage")
        elif error is None:
            self._appended_now(numbered, [submission.done for submission in submitted])
        elif isinstance(error, StorageError):
            self._refuse_group(submitted, error, "storage")
        elif not isinstance(error, UsageError):
            raise error
        else:
            # Doors submit only what can be written. If one fails to, only the unfit group is refused.
            groups = tied_groups(submitted)
            if len(groups) == 1:
                self._refuse_group(submitted, StorageError(f"it cannot be written: {error}"), "unfit")
            else:
                self._append_each(groups, now)

    def _refuse_group(self, submitted: Sequence[Submission], error: StorageError, reason: str) -> None:
        """Refuse submissions, and the parts that should follow them; if some are before them, that is for the owner."""
        rest = self._take_parts()
        begun, self._begun = self._begun, False
        self.refuse([*submitted, *rest], error, reason)
        if begun:
            self.interrupted(error)

    def _without_messages(self, submitted: Sequence[Submission], error: StorageError) -> Sequence[Submission]:
        """Refuse the messages, and what is tied to them; return the rest."""
        kept: list[Submission] = []
        for group in tied_groups(submitted):
            if all(each.batch.is_entries for each in group):
                kept += group
            else:
                self.refuse(group, error, "storage")
        return kept

    def _appended_now(self, batches: Sequence[Batch], dones: Sequence[Done | None]) -> None:
        """Commit what was just appended, or leave that to the commit rule."""
        if self._immediate and not self._appended:
            self._hand_out(self.log.tail_op, batches, dones)
            return
        for batch, done in zip(batches, dones, strict=True):
            self._appended.append(Submission(batch, done))
            self._uncommitted += batch.size
        self._begun = bool(self._parts)
        self._commit(self.log.tail_op)
        self._let_go()

    def _let_go(self) -> None:
        """Let go of the beginning of a large group that is not committed yet: it is read from the log when it is."""
        if self._uncommitted <= self._max_uncommitted:
            return
        was_congested = self.congested
        while self._uncommitted > self._max_uncommitted and len(self._appended) > 1:
            batch, done, _ = self._appended[0]
            if not batch.tied or done is not None:
                break
            self._appended.popleft()
            self._uncommitted -= batch.size
        if was_congested and not self.congested:
            self.relieved()

    def committed(self, upto: int) -> None:
        """Commit operations up to ``upto``, and hand the newly committed messages to the doors."""
        was_crowded = self._uncommitted > self._max_uncommitted
        self._hand_out_unread(upto)
        batches: list[Batch] = []
        dones: list[Done | None] = []
        while self._appended and self._appended[0].batch.last_op <= upto:
            batch, done, _ = self._appended.popleft()
            self._uncommitted -= batch.size
            batches.append(batch)
            dones.append(done)
        self._hand_out(upto, batches, dones)
        if was_crowded and not self.congested:
            self.relieved()

    def _hand_out_unread(self, upto: int) -> None:
        """Commit what is not in memory, from before this hub started or of a large group, a piece at a time."""
        log = self.log
        unread = self._appended[0].batch.op - 1 if self._appended else log.tail_op
        while log.head_op < min(upto, unread):
            batches = log.read_ops(log.head_op + 1, min(upto, unread), uncommitted=True)
            self._hand_out(batches[-1].last_op, batches, [None] * len(batches))

    def _hand_out(self, upto: int, batches: Sequence[Batch], dones: Sequence[Done | None]) -> None:
        """Commit operations up to ``upto``: the state has them first, then readers, then those who wait for them.

        Only what another hub has numbered is answered before readers have it: its publisher has waited for two hubs.
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
        """Count what was committed of what came by one of this hub's doors."""
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
