"""Catching up: fetching the rest of a view's log, or another node's whole log.

A node in normal order that misses operations asks for them (GetState) and appends the answers (NewState), in turn;
whatever is lost on the way is asked for again. Any node in normal order in the same view can answer, since its log is
part of the same one. The primary is asked first, the others in turn when it is silent.

To *adopt* a log is to make this one the same: cut back to where the two agree, by their histories, and fetch the rest.
The three reasons to do so (starting a view as its primary, entering it as a backup, recovering) differ only in what
follows. Whatever was committed is in the log that a view starts from, and so is all that any node ever showed.

Order matters. The cut is durable before the new history is stored, and that before anything is appended: whenever the
power fails, the stored history describes the log. A node keeps its old ``last_normal`` until it has all of the adopted
log, synced if only synced operations count, so a half-fetched log never looks like a whole one.

A source that has trimmed what is asked for says so, and a snapshot is fetched instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.cluster.effects import FetchSnapshot, Serve, Status
from headrace.cluster.history import History
from headrace.cluster.replica_state import ReplicaState
from headrace.wire.parcel.body import GetState, NewState


@dataclass(frozen=True, slots=True)
class Target:
    """The log to adopt: that of ``source``, up to ``last``."""

    view: int
    source: int
    last: int
    lone: bool
    """Whether only ``source`` has it."""
    done: Callable[[], None]


class CatchUp:
    """Fetches what a replica lacks."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self.target: Target | None = None
        self.progressed = 0.0
        """When something last arrived."""
        self._wanted = 0
        self._source: int | None = None
        self._asked: int | None = None
        """The tail when the source was asked, until it answers: a repeated answer triggers no new question."""
        self._ask_again = 0.0
        self._known_commit = 0
        """The highest commit heard in this view: a snapshot beyond it belongs to another view."""
        self._snapshot: int | None = None
        self._tokens = 0

    def cancel(self) -> None:
        """Stop fetching."""
        self.target = None
        self._source = self._asked = None
        self._wanted = 0
        self._known_commit = 0
        self._snapshot = None

    def adopt(self, target: Target, history: History, *, commit: int) -> bool:
        """Make this log the same as another; False if the histories do not reach back to where they part."""
        state = self._state
        self.cancel()
        mine = state.history.upto(state.tail)
        agreed = mine.agreement(state.tail, history, target.last)
        if agreed == target.last and mine.spans and mine.spans[-1] == (target.view, target.last + 1):
            # It began anew behind a snapshot that was taken in this very view: all of its log is the view's.
            agreed = state.tail
        if agreed is None:
            if state.voter:
                return False
            # Without a vote, no other node relies on what is cut off here; what is committed is the same everywhere.
            # A log that no view has written, such as a lone hub's, is not the cluster's, whatever it has committed.
            agreed = min(state.commit, target.last) if state.joined else 0
        if agreed < state.commit:
            # Positions are for nodes to agree on and tell a person nothing: the driver knows the message's number.
            why = "this node has committed what the cluster has not"
            if not state.joined:
                why = "the messages here were not written by the cluster"
            state.halt(
                f"{why}: this log is of another history. Stop this node, and have `headrace cluster replace` set "
                "its log aside",
                agreed if state.joined else None,
            )
            return True
        state.cut_back(agreed)
        state.shown = target.last
        state.history = history
        state.joined = True
        state.persist()
        self.target = target
        self._wanted = target.last
        self._known_commit = commit
        self.progressed = state.now
        state.advance(min(commit, agreed))
        if not self.settle():
            self._ask(target.source)
        return True

    def hold(self, target: Target) -> None:
        """Keep this log as it is, once it is synced if only synced operations count."""
        self.cancel()
        self._state.shown = target.last
        self.target = target
        self.progressed = self._state.now
        self.settle()

    def lag(self, last: int) -> None:
        """Note that the view's log reaches ``last`` at least."""
        state = self._state
        self._wanted = max(self._wanted, last)
        if self._source is None and state.tail < self._wanted and state.primary is not None:
            self._ask(state.primary)

    def inquire(self) -> None:
        """Ask the other nodes in turn for news: the primary is silent."""
        if self._source is None:
            self._ask(self._after(self._state.primary))

    def settle(self) -> bool:
        """Finish adopting if the log has grown, or was synced, far enough; return whether nothing is being adopted."""
        state, target = self._state, self.target
        if target is None:
            return True
        if state.durable < target.last:
            return False
        self.cancel()
        target.done()
        return True

    def get_state(self, sender: int, body: GetState) -> None:
        """Serve what follows an operation to a node of the same view or, before a view starts, to its primary."""
        state = self._state
        if body.view != state.view:
            return
        frozen = state.status is Status.VIEW_CHANGE and sender == state.primary and self.target is None
        if (state.status is Status.NORMAL or frozen) and body.last <= state.tail:
            state.note(Serve(sender, body.view, body.last + 1, state.tail, state.commit))

    def new_state(self, sender: int, body: NewState) -> None:
        """Append what was asked for, and ask for more."""
        state, target = self._state, self.target
        if sender != self._source or body.view != (state.view if target is None else target.view):
            return
        if self._asked is None or body.first <= self._asked:
            return
        self._asked = None
        self._known_commit = max(self._known_commit, body.commit)
        if body.first > state.tail + 1:
            self._fetch_snapshot(sender)
            return
        last = body.last if target is None else min(body.last, target.last)
        news = last > state.tail
        if news:
            state.append(last)
            self.progressed = state.now
        state.advance(body.commit)
        self._go_on(sender if news else None)

    def fetched(self, token: int, op: int | None) -> None:
        """Install the fetched snapshot if it is still of use; go on without it if there is none."""
        state = self._state
        if token != self._snapshot:
            return
        self._snapshot = None
        self._ask_again = state.now + state.timing.beat
        if op is not None and state.tail < op <= self._known_commit:
            state.install(token, op)
            self.progressed = state.now
            self._go_on(self._source)
        else:
            self._go_on(None)

    def tick(self) -> None:
        """Ask again, another node if possible, if no answer came."""
        state = self._state
        if self._source is None or state.now < self._ask_again:
            return
        self._snapshot = None
        lone = self.target is not None and self.target.lone
        if self.target is None and state.tail >= self._wanted:
            self._source = None
        else:
            self._ask(self._source if lone else self._after(self._source))

    def next_timer(self) -> float | None:
        """When :meth:`tick` has something to do."""
        return None if self._source is None else self._ask_again

    def _go_on(self, source: int | None) -> None:
        """Ask ``source`` for more, if more is wanted; without one, the next in turn when the time comes."""
        self.settle()
        if self._source is None:
            return
        if self._state.tail < self._wanted:
            if source is not None:
                self._ask(source)
        elif self.target is None:
            self._source = None

    def _ask(self, source: int | None) -> None:
        state = self._state
        self._source = source
        if source is None:
            return
        view = state.view if self.target is None else self.target.view
        self._asked = state.tail
        state.send(source, GetState(view, state.tail))
        self._ask_again = state.now + state.timing.beat

    def _fetch_snapshot(self, source: int) -> None:
        if self._snapshot is None:
            state = self._state
            self._tokens += 1
            self._snapshot = self._tokens
            self._ask_again = state.now + state.timing.snapshot
            state.note(FetchSnapshot(self._snapshot, source, state.tail))

    def _after(self, node: int | None) -> int | None:
        """The next of the other nodes in turn."""
        others = [other for other in self._state.nodes if other != self._state.me]
        if not others:
            return None
        if node is None:
            return others[0]
        return next((other for other in others if other > node), others[0])
