"""One node's replica at work: the effects that the rules in :mod:`headrace.cluster` ask for, on a real log and disk.

Every input (a parcel, time, an append of the hub's own, a sync) goes to the :class:`~headrace.cluster.Replica`. The
effects that come back are carried out in order, each before the next; those of an input that comes meanwhile wait. An
effect that waits for the disk is a **step**, done by a thread (:mod:`~headrace.net.server.machine.log_disk`). Until it
is done, inputs wait and nothing is numbered here, but the event loop goes on.

While this node is primary, a majority answers it, and all that earlier views left is committed, its hub numbers
messages itself (``Hub.sequencer`` is ``None``). At all other times messages go to the primary, or wait for one
(:mod:`~headrace.hub.publishing.relaying.primary_client`). What was appended and not committed keeps its place when the
primary changes: the next view commits it, or it is cut off and its publisher is told.

A disk that fails an append stops the replica before it says anything about it; a new one begins from what is on the
disk. So does a disk that has not answered for as long as a view may be silent: the others go on without this node, and
it takes part again when its disk does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from headrace.cluster.durable_state import DurableState, StoredState, is_current, is_intact, remember
from headrace.cluster.effects import (
    Advance,
    Append,
    Become,
    Broadcast,
    CutBack,
    Effect,
    FetchSnapshot,
    Halt,
    Install,
    Persist,
    Send,
    Serve,
    Status,
    Sync,
)
from headrace.cluster.replica import Replica
from headrace.cluster.replica_state import Timing
from headrace.errors import HeadraceError, StorageError, WireError
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Sequencer
from headrace.message import Batch
from headrace.net.cluster.transfers import NOTHING, between, numbered, received, served, tied_spans
from headrace.net.server.machine.log_disk import LogDisk
from headrace.wire.parcel.body import NewState, Prepare, Replication

if TYPE_CHECKING:
    from headrace.net.cluster.node import ClusterNode

logger = logging.getLogger("headrace")

MAX_APPEND: Final = 48 << 20
"""Payload bytes of one Prepare: with everything else they fit a parcel's bulk. A larger group is sent in parts."""

_TICK_SECONDS: Final = 0.25
_CLOSE_ENOUGH: Final = 0.02
"""A timer this close to the right time is kept, unless that is sooner: each batch would set a new one."""
_RESTART_SECONDS: Final = 1.0
_NOTE_SECONDS: Final = 0.05
"""Seconds from a commit to noting it, with all that are committed meanwhile."""

_MAX_WAITING: Final = 64 << 20
"""Bytes of parcels that wait for a step; more are dropped, and asked for again."""

HUNG_SECONDS: Final = Timing().patience
"""A node whose disk is silent for longer takes no part, as if it were silent itself."""

T = TypeVar("T")
_Ask = Callable[[float], Sequence[Effect]]


class ReplicaDriver:
    """Runs one node's replica."""

    def __init__(
        self,
        me: int,
        size: int,
        hub: Hub,
        stored: StoredState | None,
        node: ClusterNode,
        relay: Sequencer,
        disk: LogDisk,
    ) -> None:
        self._me = me
        self._size = size
        self._hub = hub
        self.stored = stored
        self._node = node
        self._relay = relay
        self._disk = disk
        self._random = Random()
        self._now = asyncio.get_running_loop().time
        self.replica: Replica | None = None
        self._trouble: str | None = None
        self._stepping = False
        """Whether the disk has to answer before anything else is done."""
        self._inputs: deque[tuple[_Ask, Sequence[Batch], UUID | None, int]] = deque()
        """What has come meanwhile, with its size."""
        self._waiting = 0
        self._noted = 0
        self._noting = False
        self._queue: deque[tuple[Effect, Sequence[Batch], UUID | None]] = deque()
        self._working = False
        self._following = False
        self._began = 0
        """The log's last operation when this node became primary."""
        self._sync_token: int | None = None
        self._syncing = False
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._looked = 0.0
        self._closed = False
        self._ticked: Callable[[float], None] = lambda _: None
        hub.append_bytes = MAX_APPEND
        hub.interrupted = self._leave
        hub.commit_by(self._appended)
        hub.write = disk.append
        disk.pause, disk.resume = self._pause, self._resume

    def start(self, ticked: Callable[[float], None]) -> None:
        """Take part; ``ticked`` is called a few times a second."""
        self._ticked = ticked
        self._begin()
        self._tick()

    def close(self) -> None:
        """Stop taking part."""
        self._note()
        self._closed = True
        self.replica = None
        self._queue.clear()
        self._inputs.clear()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def trouble(self) -> str | None:
        """A problem that this node is recovering from, if any."""
        if self._disk.silent >= HUNG_SECONDS:
            return f"the disk has not answered for {self._disk.silent:.0f} s: this node waits for it"
        return self._trouble

    @property
    def caught_up_with_itself(self) -> bool:
        """Whether the log shows at least what this node showed before it was started."""
        return self.replica is not None and self.replica.state.is_no_step_back(self._hub.log.head_op)

    @property
    def primary(self) -> int | None:
        """The node that numbers messages in this view, which may have fallen silent since."""
        replica = self.replica
        return (
            replica.state.primary if replica is not None and replica.state.status is Status.NORMAL else None
        )

    @property
    def status(self) -> Status:
        """What the replica is doing; one that is gone has to begin anew."""
        return Status.RECOVERING if self.replica is None else self.replica.state.status

    @property
    def present_primary(self) -> int | None:
        """The node that numbers messages now, if it is heard, or answered if it is this one."""
        return None if self.replica is None else self.replica.present_primary(self._now())

    def receive(self, sender: int, body: Replication, bulk: bytes) -> None:
        """Take a parcel of replication from a node of the cluster; a malformed one raises."""
        replica = self.replica
        if replica is None:
            return
        came, size = NOTHING, len(bulk)
        if isinstance(body, Prepare | NewState):
            came, bulk = received(body, bulk), b""
            # In normal order the logs are the same one. Otherwise this log may end in operations that no other
            # node took over: they are cut off before anything is appended.
            in_order = replica.state.status is Status.NORMAL and body.view == replica.state.view
            # While something is still to be done to the log, that is judged when it is appended.
            settled = not self._stepping and not self._queue
            if in_order and settled and came.uuid is not None and not self._is_ours(came.uuid):
                return
        self._run(partial(replica.receive, sender, body, bulk, tied=came.tied), came.batches, came.uuid, size)

    def fetched(self, token: int, op: int | None, uuid: UUID | None) -> None:
        """Go on after a fetch: with a snapshot at ``op``, or without."""
        if self.replica is not None and (uuid is None or self._is_ours(uuid)):
            self._run(partial(self.replica.fetched, token, op))

    def tell(self, node: int) -> None:
        """Tell a node what is committed, if this one is primary and would do so later."""
        if self.replica is not None:
            self._run(partial(self.replica.tell, node))

    def vouch(self) -> None:
        """Go on with what this node has, whatever it has lost, on an operator's word."""
        if self.replica is not None:
            self._run(self.replica.vouch)

    def sync_failed(self, error: StorageError) -> None:
        """Take no part any more, and take nothing: it is not known what is on the disk."""
        self._give_up(f"the disk failed to sync, this node takes no part any more: {error}")
        self._hub.fail(error)

    # Inputs

    def _begin(self) -> None:
        """Begin, or begin anew after trouble, from what is on the disk."""
        log, stored = self._hub.log, self.stored
        intact = is_intact(log, stored)
        if intact and stored is not None and not is_current(log, stored):
            # Before anything is appended: after a crash it counts how the log was written, not what is set then. A node
            # that is not intact saves its state in any case, when it begins to recover.
            self._save(stored.state)
        self.replica = Replica(
            self._me,
            self._size,
            stored=None if stored is None else stored.state,
            commit=log.head_op,
            tail=log.tail_op,
            intact=intact,
            synced_only=log.fsync == "always",
            random=self._random,
            tied=log.tied_after(log.head_op),
        )
        self._run(self.replica.start)

    def _appended(self, tail: int) -> None:
        """Tell the replica what the hub has numbered and appended."""
        replica = self.replica
        if not self._following and replica is not None:
            first = replica.state.tail + 1
            # What is tied to the next operation is appended with it, so never alone.
            tied = [] if first == tail else tied_spans(self._hub.appended_from(first))
            self._run(partial(replica.appended, first, tail, tied=tied))

    def _tick(self) -> None:
        self._timer = None
        if self._closed:
            return
        now = self._now()
        # The replica may ask for its tick sooner.
        look = now >= self._looked + _TICK_SECONDS / 2
        if look:
            self._looked = now
            self._disk.look(now)
        if self.replica is not None:
            if self._disk.silent >= HUNG_SECONDS:
                self._break_off(StorageError(f"the disk has not answered for {self._disk.silent:.1f} s"))
            elif not self._stepping:
                self._run(self.replica.tick)
        if look:
            self._ticked(now)
        self._settle()

    def _run(
        self,
        ask: _Ask,
        batches: Sequence[Batch] = (),
        uuid: UUID | None = None,
        size: int = 0,
    ) -> None:
        """Hand an input to the replica, and carry out the effects in order; ``size`` is that of its parcel."""
        if self._closed:
            return
        if self._stepping:
            if self._waiting + size > _MAX_WAITING:
                self._hub.counters.add("parcels_dropped")
                return
            self._waiting += size
            self._inputs.append((ask, batches, uuid, size))
            return
        self._take(ask, batches, uuid)
        self._work()

    def _take(self, ask: _Ask, batches: Sequence[Batch], uuid: UUID | None) -> None:
        now = self._now()
        self._queue.extend((effect, batches, uuid) for effect in ask(now))
        if self._hub.sequencer is None and not self._accepting(now):
            # First of all: whatever is cut off below is for the next primary to judge.
            self._hub.give_way(self._relay)

    def _work(self) -> None:
        """Carry out effects, and take the inputs that have waited, until there are none or the disk has to answer."""
        if self._working:
            return
        self._working = True
        try:
            while not self._stepping:
                if self._queue:
                    self._do(*self._queue.popleft())
                elif self._inputs:
                    ask, batches, uuid, size = self._inputs.popleft()
                    self._waiting -= size
                    try:
                        self._take(ask, batches, uuid)
                    except WireError as error:
                        # Its connection would have been closed, and may be by now.
                        logger.warning("a parcel that had waited for the disk is dropped: %s", error)
                        self._hub.counters.add("parcels_dropped")
                else:
                    break
        except HeadraceError as error:
            self._break_off(error)
        finally:
            self._working = False
        self._settle()

    def _step(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Have the disk do something; ``then`` takes note of it, and what follows waits for that."""
        self._stepping = self._hub.paused = True
        self._disk.in_order(work, self._ending(then))

    def _pause(self) -> None:
        """Begin a step: an append takes long."""
        self._stepping = self._hub.paused = True

    def _resume(self, tell: Callable[[], None]) -> None:
        """End that step."""
        self._stepping = False
        tell()
        self._work()

    def _ending(self, then: Callable[[T], None]) -> Callable[[Future[T]], None]:
        """Return what ends a step."""

        def ended(done: Future[T]) -> None:
            self._stepping = False
            error = done.exception()
            if error is None:
                then(done.result())
            elif self.replica is not None and not self._closed:
                if not isinstance(error, HeadraceError):
                    raise error
                self._break_off(error)
            self._work()

        return ended

    def _break_off(self, error: HeadraceError) -> None:
        """Drop the replica, and begin anew: the disk did not do what the replica believes."""
        logger.error("this node stops taking part for a moment: %s", error)
        self._hub.counters.add("cluster_failures")
        self._queue.clear()
        self._inputs.clear()
        self._waiting = 0
        self._sync_token = None
        view = 0 if self.replica is None else self.replica.state.view
        self.replica = None
        self._trouble = f"the disk does not do its part: {error}"
        # The others must not take this node for one that works.
        self._node.is_now(Status.RECOVERING, view, None)

        loop, log = asyncio.get_running_loop(), self._hub.log
        if log.failure is not None:
            self.sync_failed(StorageError(log.failure))
            return

        def again() -> None:
            if self._closed or log.failure is not None:
                return
            if self._stepping or self._disk.silent >= HUNG_SECONDS:
                loop.call_later(_RESTART_SECONDS, again)
                return
            if log.fsync == "always" and log.dirty:
                # A replica assumes that the whole log is on the disk, and vouches for it.
                self._sync()
                loop.call_later(_RESTART_SECONDS, again)
                return
            self._trouble = None
            self._begin()

        loop.call_later(_RESTART_SECONDS, again)

    # Effects

    def _do(self, effect: Effect, batches: Sequence[Batch], uuid: UUID | None) -> None:
        hub, node = self._hub, self._node
        match effect:
            case Send(to, body, bulk):
                # Without a connection it is dropped: what matters is asked for again.
                if (stream := node.streams.get(to)) is not None:
                    stream.post(body, bulk)
            case Broadcast(body):
                node.broadcast(body, numbered(hub, body) if isinstance(body, Prepare) else b"")
            case Serve(to):
                # The log is not read for a node that does not take what it is sent.
                if node.takes(to):
                    node.streams[to].post(*served(hub.log, effect))
            case Append(first, last):
                self._append(first, last, batches, uuid)
            case CutBack(last):
                self._cut_back(last)
            case Sync(token):
                self._sync_token = token
                self._sync()
            case Persist(state):
                self._save(state)
            case Advance(commit):
                hub.committed(commit)
                if not self._noting:
                    self._note_soon()
            case Become(status, view, primary):
                if status is Status.NORMAL and primary == self._me:
                    self._began = hub.log.tail_op
                node.is_now(status, view, primary)
            case Halt(reason, after):
                parted = "" if after is None else f" (the two part after message {hub.log.seq_of(after)})"
                self._give_up(f"{reason}{parted}")
            case FetchSnapshot(token, source, after):
                node.fetch_snapshot(token, source, after)
            case Install():
                # The hub's state would jump under its doors: the whole hub begins anew.
                self._queue.clear()
                self._inputs.clear()
                self.replica = None
                self._trouble = "this node begins anew behind a snapshot"
                node.install()

    def _append(self, first: int, last: int, batches: Sequence[Batch], uuid: UUID | None) -> None:
        log, stored = self._hub.log, self.stored
        whole = bool(batches) and batches[0].op == first and batches[-1].last_op == last
        appended = batches if whole else list(between(batches, first, last))

        def followed(error: HeadraceError | None = None) -> None:
            if error is not None:
                if self.replica is not None and not self._closed:
                    self._break_off(error)
                return
            self._following = True
            try:
                self._hub.followed(appended)
            finally:
                self._following = False

        def join(uuid: UUID) -> StoredState | None:
            log.adopt(uuid)
            return None if stored is None else remember(log, stored.state)

        def joined(stored: StoredState | None) -> None:
            self.stored = stored

        if uuid is not None and uuid != log.uuid:
            if self._is_ours(uuid):
                self._queue.appendleft((Append(first, last), batches, uuid))
                self._step(partial(join, uuid), joined)
        elif self._disk.append(appended, followed):
            followed()

    def _leave(self, error: HeadraceError) -> None:
        """Leave the view: a group was appended in part, and the rest cannot be."""
        logger.error("this node leaves the view, to cut off what it could not append whole: %s", error)
        self._hub.counters.add("cluster_failures")
        if self.replica is not None:
            self._run(self.replica.leave)

    def _cut_back(self, last: int) -> None:
        log = self._hub.log
        kept, tail = log.seq_of(last), log.tail

        def cut(_: None) -> None:
            if kept < tail:
                self._hub.counters.report("cut_back", kept + 1, tail, "the cluster went on without them")
            self._hub.was_cut_back(last)

        self._step(partial(log.cut_back, last), cut)

    def _note_soon(self) -> None:
        self._noting = True
        asyncio.get_running_loop().call_later(_NOTE_SECONDS, self._note)

    def _note(self) -> None:
        """Note how much is committed, of what this node may vouch for."""
        log = self._hub.log
        commit = min(log.head_op, log.synced_op) if log.fsync == "always" else log.head_op

        def done() -> None:
            if log.head_op > self._noted and not self._closed:
                self._note_soon()
            else:
                self._noting = False

        if commit > self._noted and not self._closed:
            self._noted = commit
            self._disk.note_committed(commit, done)
        else:
            done()

    def _sync(self) -> None:
        if self._syncing:
            return
        self._syncing = True
        token, self._sync_token = self._sync_token, None
        self._disk.beside(self._hub.log.sync, partial(self._synced, self.replica, token or 0))

    def _synced(self, replica: Replica | None, token: int, done: Future[int]) -> None:
        self._syncing = False
        if done.cancelled() or self._closed:
            return
        error = done.exception()
        if error is not None:
            # After a failed sync it is not known what is on the disk: this node vouches for nothing more.
            self._hub.counters.add("sync_failures")
            self.sync_failed(error if isinstance(error, StorageError) else StorageError(str(error)))
            return
        # The next replica counts tokens from the beginning.
        if replica is not None and replica is self.replica:
            self._run(partial(replica.synced, token, done.result()))
        if self._sync_token is not None:
            self._sync()

    def _save(self, state: DurableState) -> None:
        def saved(stored: StoredState) -> None:
            self.stored = stored

        self._step(partial(remember, self._hub.log, state), saved)

    def _give_up(self, reason: str) -> None:
        self._queue.clear()
        self._inputs.clear()
        self.replica = None
        if self._hub.sequencer is None:
            self._hub.give_way(self._relay)
        self._hub.counters.add("cluster_failures")
        logger.critical("%s", reason)
        self._node.halted(reason)

    # Numbering

    def _accepting(self, now: float) -> bool:
        return self.replica is not None and self.replica.accepting(now)

    def _settle(self) -> None:
        """Number messages here if and only if this node may, and set the timer."""
        if self._closed:
            return
        hub, now = self._hub, self._now()
        if not self._accepting(now):
            if hub.sequencer is None:
                hub.give_way(self._relay)
        elif (
            hub.sequencer is not None
            and hub.log.head_op >= self._began
            and not self._queue
            and not self._stepping
        ):
            if self.replica is not None and self.replica.state.ends_within_group:
                # Messages were not numbered here for a moment, in which the rest of a group was refused.
                self._run(self.replica.leave)
                return
            hub.take_over()
            self._node.numbers_here()
        if hub.paused and not self._stepping:
            hub.resume()
        self._node.settled()
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        timer = None if self.replica is None or self._stepping else self.replica.next_timer()
        when = now + _TICK_SECONDS
        if timer is not None:
            when = min(when, max(timer, now))
        if self._timer is not None:
            # It is never put off: under load, each input would do so, and there would be no tick at all.
            if self._when <= when + min(_CLOSE_ENOUGH, when - now):
                return
            self._timer.cancel()
        self._when = when
        self._timer = asyncio.get_running_loop().call_at(when, self._tick)

    def _is_ours(self, uuid: UUID) -> bool:
        """Whether operations belong to this node's log; an empty log joins theirs."""
        log = self._hub.log
        if uuid == log.uuid or not log.tail_op:
            return True
        self._give_up(
            f"{log.directory} has the log {log.uuid}, the cluster the log {uuid}:"
            " stop this node, and have `headrace cluster replace` set its log aside"
        )
        return False
