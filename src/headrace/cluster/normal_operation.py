"""Normal order: the primary numbers, the backups append, a majority commits.

The primary streams each batch to every backup as soon as it is numbered (Prepare), without waiting for the ones
before: any number may be in flight. A backup appends what follows its tail and says how far it has come
(PrepareOk). What a majority has, the primary among them, is committed.

Nothing is sent twice. A primary says regularly how far its log goes (Commit), and a backup that lacks something
fetches it (:mod:`~headrace.cluster.catchup`); the same heartbeat makes a backup repeat a PrepareOk that was lost.

A backup that hears nothing from the primary is not *content*; nor is a primary that hears no PrepareOk from a
majority, even if it hears other things from them: a primary whose words do not arrive is no use. What follows
from that is for :mod:`~headrace.cluster.views`.
"""

from __future__ import annotations

from headrace.cluster.catchup import CatchUp
from headrace.cluster.effects import Status
from headrace.cluster.replica_state import Standing
from headrace.wire.parcel.body import Commit, Prepare, PrepareOk


class Normal:
    """One view's normal order, from either side."""

    def __init__(self, standing: Standing, catchup: CatchUp) -> None:
        self._standing = standing
        self._catchup = catchup
        self._acknowledged: dict[int, int] = {}
        """Primary: how far each backup has come in this view."""
        self._heard: dict[int, float] = {}
        """Primary: when each backup last said so. Backup: when the primary was last heard."""
        self._begun = 0.0
        self._beat = 0.0
        self._confirmed = 0.0
        self._patience = 0.0

    def begin(self) -> None:
        """Take part in the view, whose log this node has."""
        standing = self._standing
        standing.become(Status.NORMAL)
        self._acknowledged = {}
        self._begun = standing.now
        self._heard = dict.fromkeys(standing.nodes, standing.now)
        self._beat = standing.now + standing.timing.beat
        self._patience = standing.timing.patience * (1 + standing.random.random() / 2)
        if standing.is_primary:
            self._decide()
        else:
            self.confirm()

    def content(self) -> bool:
        """Whether the view does its work, as far as this node can see."""
        return self._standing.now < self._content_until()

    def appended(self, first: int, last: int) -> None:
        """The primary has numbered and appended a batch."""
        standing = self._standing
        standing.appended(last)
        standing.broadcast(Prepare(standing.view, first, last, standing.commit))
        self._beat = standing.now + standing.timing.beat
        self._decide()

    def prepare(self, body: Prepare) -> None:
        """A backup gets a batch."""
        standing = self._standing
        self._heard_primary()
        if body.first > standing.tail + 1:
            self._catchup.lag(body.last)
        elif body.last > standing.tail:
            standing.append(body.last)
            if not standing.synced_only:
                self.confirm()
        else:
            self.confirm()
        standing.advance(body.commit)

    def commit(self, body: Commit) -> None:
        """A backup hears how far the primary's log goes, and how much of it is committed."""
        standing = self._standing
        self._heard_primary()
        standing.advance(body.commit)
        if body.last > standing.tail:
            self._catchup.lag(body.last)
        if body.commit < standing.tail or standing.now >= self._confirmed + standing.timing.beat / 2:
            self.confirm()

    def confirm(self) -> None:
        """A backup says how far it has come."""
        standing = self._standing
        if standing.primary is not None:
            self._confirmed = standing.now
            standing.send(standing.primary, PrepareOk(standing.view, standing.durable))

    def prepare_ok(self, sender: int, body: PrepareOk) -> None:
        """The primary hears how far a backup has come."""
        standing = self._standing
        if body.last > standing.tail:
            return
        self._heard[sender] = standing.now
        if body.last > self._acknowledged.get(sender, 0):
            self._acknowledged[sender] = body.last
            self._decide()

    def synced(self) -> None:
        """More of the log is on the disk."""
        if self._standing.is_primary:
            self._decide()
        else:
            self.confirm()

    def tick(self) -> None:
        """Say that there is nothing to say; or, hearing nothing, ask around."""
        standing = self._standing
        if standing.now < self._beat:
            return
        self._beat = standing.now + standing.timing.beat
        if not standing.is_primary:
            if not self.content():
                self._catchup.inquire()
        elif self.content():
            # One that is not content falls silent, so that the others look for another.
            standing.broadcast(Commit(standing.view, standing.tail, standing.commit))

    def next_timer(self) -> float:
        """When :meth:`tick` has something to do, or :meth:`content` changes."""
        until = self._content_until()
        return min(self._beat, until) if self._standing.now < until else self._beat

    def _heard_primary(self) -> None:
        standing = self._standing
        if standing.primary is not None:
            self._heard[standing.primary] = standing.now

    def _content_until(self) -> float:
        standing = self._standing
        if standing.primary is None:
            # View 0 has nothing to stay for. But who leaves it at once leaves those behind who have just one answer to
            # get before they begin as well: they would have to recover, and a view that waits for them to start anew.
            return self._begun + 2 * standing.timing.beat
        if standing.primary != standing.me:
            return self._heard.get(standing.primary, 0.0) + self._patience
        others = sorted(
            (self._heard.get(node, 0.0) for node in standing.nodes if node != standing.me), reverse=True
        )
        needed = standing.majority - 1
        return others[needed - 1] + self._patience if needed else float("inf")

    def _decide(self) -> None:
        """What a majority has appended is committed."""
        standing = self._standing
        reached = [self._acknowledged.get(node, 0) for node in standing.nodes if node != standing.me]
        reached.append(standing.durable)
        reached.sort(reverse=True)
        commit = reached[standing.majority - 1]
        if commit > standing.commit:
            standing.advance(commit)
            if standing.commit == standing.tail:
                # Under load the next Prepare says it; when there is none, nobody should wait for the heartbeat.
                standing.broadcast(Commit(standing.view, standing.tail, standing.commit))
