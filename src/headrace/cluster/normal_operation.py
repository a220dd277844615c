"""Normal order: the primary numbers, the backups append, a majority commits.

The primary streams each batch to every backup as soon as it is numbered (Prepare), without waiting for the ones before:
any number may be in flight. A backup appends what follows its tail and confirms how far its log reaches (PrepareOk).
What a majority has, the primary among them, is committed.

Nothing is sent twice. What is committed is told with the next Prepare. If there is none, it is told at once (Commit),
except while Prepares follow one another within :data:`LULL`: then the next one has that long to come. The primary
announces its tail regularly in the same way, and a backup that lacks something fetches it
(:mod:`~headrace.cluster.catchup`); the same heartbeat makes a backup repeat a PrepareOk that was lost.

A backup that hears nothing from the primary is not *content*. Nor is a primary that hears no PrepareOk from a majority,
even if it hears other parcels from them: a primary whose words do not arrive is of no use. What follows from that is
decided in :mod:`~headrace.cluster.views`.
"""

from __future__ import annotations

from typing import Final

from headrace.cluster.catchup import CatchUp
from headrace.cluster.effects import Status
from headrace.cluster.replica_state import ReplicaState
from headrace.cluster.tied_ops import Spans
from headrace.wire.parcel.body import Commit, Prepare, PrepareOk

LULL: Final = 0.002
"""Seconds after a Prepare in which another is expected, if that one came as soon after the one before it."""


class NormalOperation:
    """Normal order in one view, as primary or as backup."""

    def __init__(self, state: ReplicaState, catchup: CatchUp) -> None:
        self._state = state
        self._catchup = catchup
        self._acknowledged: dict[int, int] = {}
        """Primary: the last operation that each backup has in this view."""
        self._heard: dict[int, float] = {}
        """Primary: when each backup last confirmed. Backup: when the primary was last heard."""
        self._begun = 0.0
        self._until = 0.0
        """When this node is no longer content, unless it hears something before."""
        self._prepared = self._tell_at = 0.0
        """Primary: when the last batch was sent out, and when what was committed since has to be told."""
        self._untold = False
        """Primary: whether there is any."""
        self._beat = 0.0
        self._confirmed = 0.0
        self._patience = 0.0

    def begin(self) -> None:
        """Enter the view, whose log this node has."""
        state = self._state
        state.become(Status.NORMAL)
        self._acknowledged = {}
        self._begun = state.now
        self._heard = dict.fromkeys(state.nodes, state.now)
        self._beat = state.now + state.timing.beat
        self._patience = state.timing.patience * (1 + state.random.random() / 2)
        self._until = self._content_until()
        self._prepared = self._tell_at = state.now - LULL
        self._untold = False
        if state.is_primary:
            self._decide()
        else:
            self.confirm()

    def content(self) -> bool:
        """Whether the view works, as far as this node can see."""
        return self._state.now < self._until

    def appended(self, first: int, last: int, tied: Spans = ()) -> None:
        """Primary: send out a batch that was numbered and appended here."""
        state = self._state
        state.appended(last, tied)
        state.broadcast(Prepare(state.view, first, last, state.commit))
        self._tell_at = state.now + (LULL if state.now < self._prepared + LULL else 0)
        self._prepared = state.now
        self._untold = False
        self._beat = state.now + state.timing.beat
        self._decide()

    def prepare(self, body: Prepare) -> None:
        """Backup: append a batch."""
        state = self._state
        self._heard_primary(body.commit)
        if body.first > state.tail + 1:
            self._catchup.lag(body.last)
        elif body.last > state.tail:
            state.append(body.last)
            if not state.synced_only:
                self.confirm()
        else:
            self.confirm()
        state.advance(body.commit)

    def commit(self, body: Commit) -> None:
        """Backup: learn the primary's tail, and what is committed."""
        state = self._state
        self._heard_primary(body.commit)
        state.advance(body.commit)
        if body.last > state.tail:
            self._catchup.lag(body.last)
        if body.commit < state.tail or state.now >= self._confirmed + state.timing.beat / 2:
            self.confirm()

    def confirm(self) -> None:
        """Backup: tell the primary how far this log reaches."""
        state = self._state
        primary = state.primary
        if primary is not None:
            self._confirmed = state.now
            state.send(primary, PrepareOk(state.view, state.durable))

    def prepare_ok(self, sender: int, body: PrepareOk) -> None:
        """Primary: learn how far a backup's log reaches."""
        state = self._state
        if body.last > state.tail:
            return
        self._heard[sender] = state.now
        self._until = self._content_until()
        if body.last > self._acknowledged.get(sender, 0):
            self._acknowledged[sender] = body.last
            self._decide()

    def tell(self, node: int) -> None:
        """Primary: tell a backup what is committed, unless all have been told."""
        state = self._state
        if self._untold:
            state.send(node, Commit(state.view, state.tail, state.commit))

    def synced(self) -> None:
        """Go on: more of the log is synced."""
        if self._state.is_primary:
            self._decide()
        else:
            self.confirm()

    def tick(self) -> None:
        """Primary: send a heartbeat. Backup: ask the others if the primary is silent."""
        state = self._state
        if self._untold and state.now >= self._tell_at:
            self._tell_all()
        if state.now < self._beat:
            return
        self._beat = state.now + state.timing.beat
        if not state.is_primary:
            if not self.content():
                self._catchup.inquire()
        elif self.content():
            # A primary that is not content falls silent, so that the others look for another.
            self._tell_all()

    def next_timer(self) -> float:
        """When :meth:`tick` has something to do, or :meth:`content` changes."""
        soon = min(self._beat, self._tell_at) if self._untold else self._beat
        return min(soon, self._until) if self._state.now < self._until else soon

    def _heard_primary(self, commit: int) -> None:
        state = self._state
        state.hear_commit(commit)
        primary = state.primary
        if primary is not None:
            self._heard[primary] = state.now
            self._until = self._content_until()

    def _content_until(self) -> float:
        state = self._state
        primary = state.primary
        if primary is None:
            # View 0 is only there to be left. But not at once: nodes that lack just one answer before they begin would
            # be left behind and have to recover, and the next view would wait for them.
            return self._begun + 2 * state.timing.beat
        if primary != state.me:
            return self._heard.get(primary, 0.0) + self._patience
        others = sorted(
            [self._heard.get(node, 0.0) for node in state.nodes if node != state.me], reverse=True
        )
        needed = state.majority - 1
        return others[needed - 1] + self._patience if needed else float("inf")

    def _decide(self) -> None:
        """Commit what a majority has appended, but no part of a group."""
        state = self._state
        reached = [self._acknowledged.get(node, 0) for node in state.nodes if node != state.me]
        reached.append(state.durable)
        reached.sort(reverse=True)
        commit = state.tied.whole(reached[state.majority - 1])
        if commit > state.commit:
            state.advance(commit)
            if state.commit < state.tail:
                return  # Another Prepare has been sent: the answers to it commit more.
            self._untold = state.now < self._tell_at
            if not self._untold:
                self._tell_all()

    def _tell_all(self) -> None:
        """Primary: tell where the log ends, and what is committed."""
        state = self._state
        self._untold = False
        state.broadcast(Commit(state.view, state.tail, state.commit))
