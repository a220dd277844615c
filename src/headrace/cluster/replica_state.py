"""Where one replica stands, and the few things it can do about it.

The rules (:mod:`~headrace.cluster.normal_operation`, :mod:`~headrace.cluster.views`, :mod:`~headrace.cluster.recovery`,
:mod:`~headrace.cluster.catchup`) share one :class:`ReplicaState`: they read it, and change it only by its methods, each
of which notes the effect that makes the change real. So what a replica believes and what its driver does cannot part.

Invariants:

- ``commit <= tail``, ``synced <= tail``, and a log is never cut below ``commit``.
- ``last_normal <= view``; they are equal just when the replica is in normal order, and its log then begins with the
  whole log that the view started from.
- ``history`` describes the log up to ``tail`` at least; while another's log is being taken over, all of that.
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
from headrace.errors import UsageError
from headrace.wire.parcel.body import Replication


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things may take, in seconds."""

    beat: float = 0.5
    """A primary with nothing to say says so this often; what is not answered is asked again as often."""
    patience: float = 2.0
    """A primary, or a view change, silent for this long (and up to half as much again, by chance) is given up."""
    snapshot: float = 60.0
    """A snapshot that is not here by then is asked for again."""


class ReplicaState:
    """One replica's memory of itself. ``now`` is the time of the input being worked on."""

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
    ) -> None:
        self.me = me
        self.size = size
        self.synced_only = synced_only
        """Whether a message counts as appended only once it is synced (``fsync=always``)."""
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
        """Whether the log has begun to be the cluster's, even if it does not reach the oldest span that is known."""
        self.tail = tail
        self.synced = tail
        self.commit = min(max(state.commit, commit), tail)
        self.sync_token = 0
        """Counts the cuts: a sync that began before one says nothing about what was appended after it."""
        self._effects: list[Effect] = []

    @property
    def majority(self) -> int:
        """How many nodes decide."""
        return self.size // 2 + 1

    @property
    def durable(self) -> int:
        """The last message that this node may vouch for."""
        return self.synced if self.synced_only else self.tail

    @property
    def primary(self) -> int | None:
        """Who numbers messages in this view."""
        return self.primary_of(self.view)

    @property
    def is_primary(self) -> bool:
        """Whether this node numbers messages now."""
        return self.status is Status.NORMAL and self.primary == self.me

    def primary_of(self, view: int) -> int | None:
        """A view's primary. View 0, in which every cluster begins, has none: it is only there to be left."""
        return self.nodes[view % len(self.nodes)] if view and self.nodes else None

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def note(self, effect: Effect) -> None:
        """Have something done."""
        self._effects.append(effect)

    def send(self, to: int, body: Replication, bulk: bytes = b"") -> None:
        """Send a parcel to one node."""
        self.note(Send(to, body, bulk))

    def broadcast(self, body: Replication) -> None:
        """Send a parcel to all other nodes."""
        if self.size > 1:
            self.note(Broadcast(body))

    def durable_state(self) -> DurableState:
        """What must not be forgotten."""
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
        """Have the state on the disk before whatever follows."""
        self.note(Persist(self.durable_state()))

    def testimony(self) -> bytes:
        """What others need to know of this node's log, as bulk."""
        return serialize_testimony(self.durable_state(), self.history.upto(self.tail))

    def merge(self, incarnations: Mapping[int, int]) -> None:
        """Learn of other nodes' losses of memory."""
        for node, count in incarnations.items():
            self.incarnations[node] = max(count, self.incarnations.get(node, 0))

    def append(self, last: int) -> None:
        """Have what follows the tail appended, up to ``last``, from the parcel just received."""
        self.note(Append(self.tail + 1, last))
        self.appended(last)

    def appended(self, last: int) -> None:
        """The log now ends at ``last``."""
        if last <= self.tail:
            raise UsageError(f"message {last} cannot be appended: the log ends at {self.tail}")
        self.tail = last
        if self.synced_only:
            self.note(Sync(self.sync_token, last))

    def synced_upto(self, token: int, last: int) -> bool:
        """A sync has ended; whether it tells anything new."""
        if token != self.sync_token or not self.synced < last <= self.tail:
            return False
        self.synced = last
        return True

    def cut_back(self, last: int) -> None:
        """Have the log end at ``last``."""
        if last < self.commit:
            raise UsageError(f"message {last + 1} is committed and cannot be cut off")
        if last < self.tail:
            self.tail = last
            self.synced = min(self.synced, last)
            self.sync_token += 1
            self.note(CutBack(last))

    def install(self, token: int, last: int) -> None:
        """Have the log begin anew behind a snapshot."""
        self.note(Install(token, last))
        self.sync_token += 1
        self.tail = self.synced = last
        self.advance(last)

    def advance(self, commit: int) -> None:
        """Everything up to ``commit`` is committed, as far as this log has it."""
        commit = min(commit, self.tail)
        if commit > self.commit:
            self.commit = commit
            self.note(Advance(commit))

    def become(self, status: Status) -> None:
        """Take up another part, or the same in another view."""
        self.status = status
        self.note(Become(status, self.view, self.primary))

    def halt(self, reason: str) -> None:
        """Give up for good."""
        self.status = Status.FAULTY
        self.note(Become(Status.FAULTY, self.view, None))
        self.note(Halt(reason))
