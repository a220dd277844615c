"""The state that all rules of one replica share, and the few ways to change it.

The rules (:mod:`~headrace.cluster.normal_operation`, :mod:`~headrace.cluster.views`, :mod:`~headrace.cluster.recovery`,
:mod:`~headrace.cluster.catchup`) read one :class:`ReplicaState` and change it only by its methods, each of which notes
the effect that makes the change real. So what a replica believes and what its driver does cannot part.

Invariants:

- ``commit <= tail``, ``synced <= tail``, and a log is never cut below ``commit``.
- ``commit`` never ends within a group of tied operations (:mod:`~headrace.cluster.tied_ops`).
- ``last_normal <= view``; they are equal just when the replica is in normal order, and its log then begins with the
  whole log that the view started from.
- ``history`` describes the log up to ``tail`` at least; while another log is being adopted, all of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from headrace.cluster.durable_state import DurableState, serialize_testimony
from headrace.cluster.effects import (
    Advance,
    Append,
    Become,
    Broadcast,
    CutBack,
    Effect,
    Halt,
    Install,
    Persist,
    Send,
    Status,
    Sync,
)
from headrace.cluster.tied_ops import Spans, TiedOps
from headrace.errors import UsageError
from headrace.wire.parcel.body import Replication


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts, in seconds."""

    beat: float = 0.5
    """Interval of an idle primary's heartbeat, and of repeating what was not answered."""
    patience: float = 2.0
    """A primary, or a view change, is given up after this silence, and up to half as much again by chance."""
    snapshot: float = 60.0
    """A snapshot that has not arrived by then is asked for again."""


class ReplicaState:
    """One replica's state; ``now`` is the time of the present input."""

    def __init__(
        self,
        me: int,
        size: int,
        state: DurableState,
        commit: int,
        tail: int,
        *,
        synced_only: bool,
        timing: Timing,
        random: Random,
        tied: Spans = (),
    ) -> None:
        self.me = me
        self.size = size
        self.synced_only = synced_only
        """Whether only synced operations count as appended (``fsync=always``)."""
        self.timing = timing
        self.random = random
        self.now = 0.0
        self.status = Status.RECOVERING
        self.view = state.view
        self.last_normal = state.last_normal
        self.voter = state.voter
        self.nodes = state.nodes
        self.incarnations: dict[int, int] = dict(state.incarnations)
        self.history = state.history.upto(tail)
        self.joined = bool(state.history.spans)
        """Whether the log is the cluster's, even if it does not reach the oldest known span."""
        self.tail = tail
        self.synced = tail
        self.commit = min(max(state.commit, commit), tail)
        self.shown: int | None = None
        """Nothing after this operation was shown as committed before this replica began; None while that is not known.
        The log's end is no bound: a node shows what others have synced though it has not, and a power failure may take
        that from it."""
        self.tied = TiedOps(tied)
        self.parcel_tied: Spans = ()
        """The tied operations of the parcel that is being received."""
        self.sync_token = 0
        """Number of cuts: a sync that began before one says nothing about what was appended after it."""
        self._effects: list[Effect] = []

    @property
    def majority(self) -> int:
        """Number of nodes that decide."""
        return self.size // 2 + 1

    @property
    def durable(self) -> int:
        """Last operation that this node may vouch for."""
        return self.synced if self.synced_only else self.tail

    def is_no_step_back(self, head: int) -> bool:
        """Whether a log that shows all up to ``head`` shows at least what this node ever did.

        A node that is started again has noted about how much was committed, and may have shown more. The primary of its
        view tells it, or the log that the next view starts from.
        """
        return self.status is not Status.RECOVERING and self.shown is not None and head >= self.shown

    def hear_commit(self, commit: int) -> None:
        """Note what the primary of this view has committed: at least all that this node has shown in this view.

        What it has shown in earlier ones is in the log that the view started from.
        """
        if self.shown is None:
            self.shown = max(commit, self.history.start - 1)

    @property
    def primary(self) -> int | None:
        """The node that numbers messages in this view."""
        return self.primary_of(self.view)

    @property
    def is_primary(self) -> bool:
        """Whether this node numbers messages now."""
        return self.status is Status.NORMAL and self.primary == self.me

    def primary_of(self, view: int) -> int | None:
        """The primary of a view. View 0, in which every cluster begins, has none: it is only there to be left."""
        return self.nodes[view % len(self.nodes)] if view and self.nodes else None

    def take_effects(self) -> list[Effect]:
        """Return the effects noted since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def note(self, effect: Effect) -> None:
        """Note an effect."""
        self._effects.append(effect)

    def send(self, to: int, body: Replication, bulk: bytes = b"") -> None:
        """Send a parcel to one node."""
        self.note(Send(to, body, bulk))

    def broadcast(self, body: Replication) -> None:
        """Send a parcel to all other nodes."""
        if self.size > 1:
            self.note(Broadcast(body))

    def durable_state(self) -> DurableState:
        """The part of this state that must not be forgotten."""
        return DurableState(
            self.view,
            self.last_normal,
            min(self.commit, self.durable),
            self.voter,
            self.nodes,
            dict(self.incarnations),
            self.history,
        )

    def persist(self) -> None:
        """Save the state before anything that follows."""
        self.note(Persist(self.durable_state()))

    def testimony(self) -> bytes:
        """Make bulk of what others need to know about this node's log."""
        return serialize_testimony(self.durable_state(), self.history.upto(self.tail))

    def merge(self, incarnations: Mapping[int, int]) -> None:
        """Learn how often other nodes have lost their memory."""
        for node, count in incarnations.items():
            self.incarnations[node] = max(count, self.incarnations.get(node, 0))

    def append(self, last: int) -> None:
        """Append up to ``last`` from the parcel just received."""
        self.note(Append(self.tail + 1, last))
        self.appended(last, self.parcel_tied)

    def appended(self, last: int, tied: Spans = ()) -> None:
        """Note that the log now ends at ``last``, and which of the new operations are tied to the next."""
        if last <= self.tail:
            raise UsageError(f"operation {last} cannot be appended: the log ends at {self.tail}")
        self.tied.add(tied, self.tail, last)
        self.tail = last
        if self.synced_only:
            self.note(Sync(self.sync_token, last))

    def synced_upto(self, token: int, last: int) -> bool:
        """Note that a sync has ended; return whether it covers anything new."""
        if token != self.sync_token or not self.synced < last <= self.tail:
            return False
        self.synced = last
        return True

    def cut_back(self, last: int) -> None:
        """Cut the log back to ``last``."""
        if last < self.commit:
            raise UsageError(f"operation {last + 1} is committed and cannot be cut off")
        if last < self.tail:
            self.tail = last
            self.tied.cut_back(last)
            self.synced = min(self.synced, last)
            self.sync_token += 1
            self.note(CutBack(last))
            if self.synced_only and self.synced < last:
                # A sync under way no longer counts, and nothing else may ever be appended.
                self.note(Sync(self.sync_token, last))

    @property
    def ends_within_group(self) -> bool:
        """Whether the log ends with an operation that is tied to one which is not there."""
        return self.tied.whole(self.tail) < self.tail

    def cut_to_whole(self) -> None:
        """Cut off the group that the log ends in, if it ends within one."""
        self.cut_back(self.tied.whole(self.tail))

    def install(self, token: int, last: int) -> None:
        """Begin the log anew after a snapshot."""
        self.note(Install(token, last))
        self.sync_token += 1
        self.tail = self.synced = last
        self.tied = TiedOps()
        self.advance(last)

    def advance(self, commit: int) -> None:
        """Commit everything up to ``commit``, as far as this log has it whole."""
        commit = self.tied.whole(min(commit, self.tail))
        if commit > self.commit:
            self.commit = commit
            self.tied.committed(commit)
            self.note(Advance(commit))

    def become(self, status: Status) -> None:
        """Change the status, or enter another view with the same."""
        self.status = status
        self.note(Become(status, self.view, self.primary))

    def halt(self, reason: str, after: int | None = None) -> None:
        """Stop for good; ``after`` is the last operation that this log and the cluster's have in common."""
        self.status = Status.FAULTY
        self.note(Become(Status.FAULTY, self.view, None))
        self.note(Halt(reason, after))
