"""One node's replica: every input comes here, is checked against view and sender, and goes to the rule it concerns."""

from __future__ import annotations

from random import Random
from typing import Final

from headrace.cluster.catchup import CatchUp
from headrace.cluster.durable_state import DurableState
from headrace.cluster.effects import Effect, Status
from headrace.cluster.normal_operation import NormalOperation
from headrace.cluster.recovery import Recovering
from headrace.cluster.replica_state import ReplicaState, Timing
from headrace.cluster.tied_ops import Spans
from headrace.cluster.views import Views
from headrace.errors import MalformedError, UsageError
from headrace.wire.parcel.body import (
    Commit,
    DoViewChange,
    GetState,
    NewState,
    Prepare,
    PrepareOk,
    Recovery,
    RecoveryResponse,
    Replication,
    StartView,
    StartViewChange,
)

MAX_VIEW: Final = 1 << 62
"""More views than there is time for. A peer that names a later one would leave no room for later views."""


class Replica:
    """Viewstamped Replication as functions of an input and the time; each returns the effects it asks for.

    What it counts are operations: messages and entries alike (:mod:`headrace.cluster.effects`).
    ``size`` is the number of nodes in the configured cluster, this one included. ``stored`` is the state saved last,
    None if there is none. ``commit`` is what the log knows to be committed (it was sealed, or is in a snapshot),
    ``tail`` its last operation, and ``intact`` whether nothing that was appended, or with ``synced_only`` nothing that
    was synced, has been lost.
    """

    state_class: type[ReplicaState] = ReplicaState
    catchup_class: type[CatchUp] = CatchUp
    normal_class: type[NormalOperation] = NormalOperation
    views_class: type[Views] = Views
    recovering_class: type[Recovering] = Recovering

    def __init__(
        self,
        me: int,
        size: int,
        *,
        stored: DurableState | None,
        commit: int,
        tail: int,
        intact: bool,
        synced_only: bool,
        random: Random,
        timing: Timing | None = None,
        tied: Spans = (),
    ) -> None:
        self.state = self.state_class(
            me,
            size,
            stored or DurableState(),
            commit,
            tail,
            synced_only=synced_only,
            timing=timing or Timing(),
            random=random,
            tied=tied,
        )
        """Read by the driver, changed by the rules alone."""
        # A log that ends before what it had on the disk has lost something, whatever the caller believes.
        self._intact = intact and tail >= (stored or DurableState()).commit
        self._catchup = self.catchup_class(self.state)
        self._normal = self.normal_class(self.state, self._catchup)
        self._views = self.views_class(self.state, self._catchup, self._normal)
        self._recovering = self.recovering_class(self.state, self._catchup, self._normal, self._views)

    def accepting(self, now: float) -> bool:
        """Whether this node may number messages now: it is primary, and a majority has answered it lately."""
        self.state.now = now
        return self.state.is_primary and self._normal.content()

    def present_primary(self, now: float) -> int | None:
        """The node that numbers messages now, if this node is in its view and the view works as far as it can see."""
        self.state.now = now
        works = self.state.status is Status.NORMAL and self._normal.content()
        return self.state.primary if works else None

    def start(self, now: float) -> list[Effect]:
        """Begin: the first input."""
        state = self.state
        state.now = now
        if state.size == 1:
            state.nodes = (state.me,)
            state.voter = True
            self._views.resume()
        elif state.voter and self._intact:
            self._views.resume()
        else:
            self._recovering.begin()
        return state.take_effects()

    def receive(
        self, sender: int, body: Replication, bulk: bytes, now: float, *, tied: Spans = ()
    ) -> list[Effect]:
        """Take a parcel from a node of the configured cluster, and which of its operations are tied to the next."""
        state = self.state
        state.now = now
        state.parcel_tied = tied
        if getattr(body, "view", 0) > MAX_VIEW:
            raise MalformedError("parcel", "view", getattr(body, "view", 0), f"is at most {MAX_VIEW}")
        known = not state.nodes or sender in state.nodes
        if known and sender != state.me and state.status is not Status.FAULTY:
            self._dispatch(sender, body, bulk)
        return state.take_effects()

    def appended(self, first: int, last: int, now: float, *, tied: Spans = ()) -> list[Effect]:
        """Send out operations ``first`` to ``last``, which this node, the primary, has numbered and appended."""
        state = self.state
        state.now = now
        if not state.is_primary or first != state.tail + 1:
            raise UsageError(f"operations {first} to {last} are not this node's to number")
        self._normal.appended(first, last, tied)
        return state.take_effects()

    def tell(self, node: int, now: float) -> list[Effect]:
        """Tell a node at once what is committed: somebody there waits for it."""
        state = self.state
        state.now = now
        if state.is_primary:
            self._normal.tell(node)
        return state.take_effects()

    def leave(self, now: float) -> list[Effect]:
        """Leave the view of which this node is primary: its log ends within a group that nobody will finish."""
        state = self.state
        state.now = now
        if state.is_primary:
            self._views.move_to(state.view + 1)
        return state.take_effects()

    def synced(self, token: int, last: int, now: float) -> list[Effect]:
        """Go on after the sync of this ``token``, which covers the log up to ``last``."""
        state = self.state
        state.now = now
        if state.synced_upto(token, last):
            if state.status is Status.NORMAL:
                self._normal.synced()
            elif state.status is not Status.FAULTY:
                self._catchup.settle()
        return state.take_effects()

    def fetched(self, token: int, op: int | None, now: float) -> list[Effect]:
        """Go on after fetching the snapshot of this ``token``, which is at ``op``; None if there was none."""
        state = self.state
        state.now = now
        if state.status is not Status.FAULTY:
            self._catchup.fetched(token, op)
        return state.take_effects()

    def vouch(self, now: float) -> list[Effect]:
        """Go on with what this node has, whatever it has lost, on an operator's word."""
        state = self.state
        state.now = now
        self._recovering.vouch()
        return state.take_effects()

    def tick(self, now: float) -> list[Effect]:
        """Do what depends on time."""
        state = self.state
        state.now = now
        if state.status is Status.FAULTY:
            return []
        self._catchup.tick()
        if state.status is Status.RECOVERING:
            self._recovering.tick()
        else:
            if state.status is Status.NORMAL:
                self._normal.tick()
            self._views.tick()
        return state.take_effects()

    def next_timer(self) -> float | None:
        """When :meth:`tick` wants to be called."""
        state = self.state
        if state.status is Status.FAULTY:
            return None
        timers = [self._catchup.next_timer()]
        if state.status is Status.RECOVERING:
            timers.append(self._recovering.next_timer())
        else:
            timers.append(self._views.next_timer())
            if state.status is Status.NORMAL:
                timers.append(self._normal.next_timer())
        return min(timer for timer in timers if timer is not None)

    def _dispatch(self, sender: int, body: Replication, bulk: bytes) -> None:
        state = self.state
        recovering = state.status is Status.RECOVERING
        match body:
            case Recovery():
                self._recovering.recovery(sender, body)
            case RecoveryResponse():
                self._recovering.recovery_response(sender, body, bulk)
            case NewState():
                self._new_state(sender, body)
            case _ if recovering:
                pass  # it does not vote, and takes no answers to what it may have said before
            case GetState():
                self._catchup.get_state(sender, body)
            case StartViewChange():
                self._views.start_view_change(sender, body)
            case DoViewChange():
                self._views.do_view_change(sender, body, bulk)
            case StartView():
                self._views.start_view(sender, body, bulk)
            case Prepare() | Commit() if sender == state.primary_of(body.view):
                self._from_primary(body)
            case PrepareOk() if state.is_primary and body.view == state.view:
                self._normal.prepare_ok(sender, body)
            case _:
                pass

    def _new_state(self, sender: int, body: NewState) -> None:
        state = self.state
        before = state.durable
        self._catchup.new_state(sender, body)
        if state.status is Status.NORMAL and state.durable > before and not state.is_primary:
            self._normal.confirm()

    def _from_primary(self, body: Prepare | Commit) -> None:
        state = self.state
        if body.view > state.view:
            # The view has started without this node: its report makes the primary send what the view started from.
            self._views.move_to(body.view)
        elif body.view == state.view and state.status is Status.NORMAL:
            if isinstance(body, Prepare):
                self._normal.prepare(body)
            else:
                self._normal.commit(body)
