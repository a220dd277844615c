"""Recovery: a node that has lost its memory, or part of its log, learns where the cluster is before it votes.

Such a node may have voted for what it no longer knows. It asks all others (Recovery), takes no part in anything, and
waits for answers (RecoveryResponse) from so many nodes in normal order that every majority it can have been part of has
one of them; in a cluster of odd size, that is a majority. The primary of the latest view among them must be one. All
that it can have vouched for is then in that primary's log, which it adopts. A node that is changing the view answers as
well, without a vote, so that the recovering node gets to know all nodes: an operator may then have to decide.

The same question starts a new cluster. Nodes without any memory answer that they have none. When *all* configured nodes
say so, or that nothing has ever been written, there is nothing to lose, and each begins in view 0. One absent node
keeps a new cluster from starting: it could be the one that remembers.

Votes that a node cast before it lost its memory may still be under way, or kept by a node that waits for more. So each
life of a node is numbered, its *incarnation*: a node that answers stores the number first and testifies it in later
view changes, where reports of an earlier incarnation are then recognised. An emptied node cannot know how often it was
emptied: if its number is too low, an answer says so, and it asks again with a higher one.

If a majority has lost something at once, no node can answer. Then only a person can decide that what is left is the
cluster's log: :meth:`Recovering.vouch`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.cluster.catchup import CatchUp, Target
from headrace.cluster.durable_state import Testimony, parse_testimony, serialize_testimony
from headrace.cluster.effects import Status
from headrace.cluster.history import History
from headrace.cluster.normal_operation import NormalOperation
from headrace.cluster.replica_state import ReplicaState
from headrace.cluster.views import Views
from headrace.errors import MalformedError, UsageError
from headrace.wire.parcel.body import Recovery, RecoveryResponse


@dataclass(frozen=True, slots=True)
class RecoveryAnswer:
    """One node's RecoveryResponse and its testimony."""

    view: int
    last: int
    commit: int
    testimony: Testimony

    @property
    def pristine(self) -> bool:
        """Whether the node has nothing that could be lost."""
        return not self.last and not self.view


class Recovering:
    """Both sides of recovery: asking and answering."""

    def __init__(self, state: ReplicaState, catchup: CatchUp, normal: NormalOperation, views: Views) -> None:
        self._state = state
        self._catchup = catchup
        self._normal = normal
        self._views = views
        self._nonce: int | None = None
        self._answers: dict[int, RecoveryAnswer] = {}
        self._beat = 0.0
        self._adopting: RecoveryAnswer | None = None
        self._asked: dict[int, tuple[int, int]] = {}
        """The incarnation and nonce with which each node last asked."""

    @property
    def enough(self) -> int:
        """Number of answers such that every majority includes one of them, or the recovering node."""
        return self._state.size - self._state.majority + 1

    def begin(self) -> None:
        """Ask from the beginning, as a new incarnation."""
        state = self._state
        self._catchup.cancel()
        state.voter = False
        state.incarnations[state.me] = state.incarnations.get(state.me, 0) + 1
        state.become(Status.RECOVERING)
        state.persist()
        self._nonce = state.random.getrandbits(64)
        self._answers = {}
        self._adopting = None
        self._ask()

    def vouch(self) -> None:
        """Trust this node's disk as it is, on an operator's word; to be done on a majority of nodes."""
        state = self._state
        if state.status is not Status.RECOVERING:
            raise UsageError("only a node that recovers can be vouched for")
        if not state.nodes:
            self._meet()
        self._nonce = None
        self._adopting = None
        state.voter = True
        self._views.move_to(state.view + 1)

    def recovery(self, sender: int, body: Recovery) -> None:
        """Answer a recovering node."""
        state = self._state
        if state.status is Status.FAULTY:
            return
        known = state.incarnations.get(sender, 0)
        if body.incarnation > known:
            state.incarnations[sender] = body.incarnation
            self._asked[sender] = (body.incarnation, body.nonce)
            state.persist()
        response = RecoveryResponse(state.view, body.nonce, state.tail, state.commit)
        if self._asked.get(sender) == (body.incarnation, body.nonce):
            told = state.durable_state()
            if state.status is Status.VIEW_CHANGE:
                # It knows the cluster's nodes and that something was written, but not yet what the log is.
                told = replace(told, voter=False)
            state.send(sender, response, serialize_testimony(told, state.history.upto(state.tail)))
        else:
            # An earlier incarnation had that number or a higher one: the answer only says that it is taken.
            told = replace(state.durable_state(), incarnations={sender: known + 1})
            state.send(sender, response, serialize_testimony(told, History()))

    def recovery_response(self, sender: int, body: RecoveryResponse, bulk: bytes) -> None:
        """Take an answer."""
        state = self._state
        if state.status is not Status.RECOVERING or body.nonce != self._nonce or self._adopting is not None:
            return
        heard = parse_testimony(bulk)
        if heard.voter and (len(heard.nodes) != state.size or state.me not in heard.nodes):
            rule = f"must be {state.size} nodes, {state.me} among them: check cluster.peers on both"
            raise MalformedError("parcel", "nodes", heard.nodes, rule)
        mine = state.incarnations[state.me]
        if heard.incarnations.get(state.me, 0) > mine:
            state.incarnations[state.me] = heard.incarnations[state.me]
            self.begin()
            return
        known = self._answers.get(sender)
        if heard.voter or known is None or not known.testimony.voter:
            # A node's answer in normal order stays valid, even if the node has left that since.
            self._answers[sender] = RecoveryAnswer(body.view, body.last, body.commit, heard)
        self._weigh_answers()

    def tick(self) -> None:
        """Ask again; start over if the adopted log does not arrive."""
        state = self._state
        if state.now < self._beat:
            return
        if self._nonce is None:
            self.begin()
        elif self._adopting is None:
            self._ask()
        else:
            self._beat = state.now + state.timing.beat
            if state.now >= self._catchup.progressed + state.timing.patience:
                self.begin()

    def next_timer(self) -> float:
        """When :meth:`tick` has something to do."""
        return self._beat

    def _ask(self) -> None:
        state = self._state
        self._beat = state.now + state.timing.beat
        if self._nonce is not None:
            state.broadcast(Recovery(self._nonce, state.incarnations[state.me]))

    def _weigh_answers(self) -> None:
        state = self._state
        voters = {node: answer for node, answer in self._answers.items() if answer.testimony.voter}
        if len(voters) >= self.enough:
            view = max(answer.view for answer in voters.values())
            for node, answer in voters.items():
                nodes = answer.testimony.nodes
                if answer.view == view and view and nodes[view % len(nodes)] == node:
                    self._adopt(node, answer)
                    return
        pristine = not state.tail and not state.view
        if pristine and self._all_answered and all(each.pristine for each in self._answers.values()):
            self._found()

    def _adopt(self, primary: int, answer: RecoveryAnswer) -> None:
        state = self._state
        state.nodes = answer.testimony.nodes
        for each in self._answers.values():
            state.merge(each.testimony.incarnations)
        self._adopting = answer
        target = Target(answer.view, primary, answer.last, False, self._recovered)
        self._catchup.adopt(target, answer.testimony.history, commit=answer.commit)

    def _recovered(self) -> None:
        state = self._state
        answer, self._adopting, self._nonce = self._adopting, None, None
        if answer is None:
            raise UsageError("nothing was being recovered")
        state.view = state.last_normal = answer.view
        state.voter = True
        state.persist()
        self._normal.begin()

    @property
    def _all_answered(self) -> bool:
        return len(self._answers) == self._state.size - 1

    def _found(self) -> None:
        """Found a new cluster together with all the others."""
        state = self._state
        self._meet()
        self._nonce = None
        state.voter = True
        state.persist()
        self._normal.begin()

    def _meet(self) -> None:
        """Learn the cluster's nodes from the answers."""
        state = self._state
        if not self._all_answered:
            missing = state.size - 1 - len(self._answers)
            raise UsageError(f"not every node of the cluster has been heard from yet: {missing} missing")
        for each in self._answers.values():
            state.merge(each.testimony.incarnations)
        state.nodes = tuple(sorted([state.me, *self._answers]))
        state.history = History([(0, 1)])
