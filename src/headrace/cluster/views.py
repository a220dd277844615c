"""View changes: which node is primary when the last one is silent, and which log the new view starts from.

In three steps, as in Viewstamped Replication:

1. **Wishing.** A node that is not content with its view says so (StartViewChange), again and again. A wish binds
   nobody: only when a majority has fresh wishes does a node move on. So a node that is cut off, or hears badly,
   disturbs no other, and can come back.
2. **Moving.** The node cuts off the group that its log ends in, if it ends within one. It stores the new view, which
   it can never leave for an older one, and reports to the new view's primary how far its log reaches and in which view
   it was last in normal order (DoViewChange). From here on it takes nothing from older views: they are fenced off.
3. **Starting.** With the reports of a majority, its own among them, the new primary chooses the log of the latest
   ``last_normal``, and of those the longest. It adopts that log if it is not its own, stores that it is in normal
   order, and tells the others (StartView), who adopt it likewise.

Whatever was committed is in the chosen log: a majority had it in normal order, any two majorities share a node, and
that node's report ranks no lower than what it knew. A report counts only if no node of the same majority knows that its
sender has lost its memory since.

Views take no operation of the log. A view that has not started in good time is given up, like a silent primary.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cluster.catchup import CatchUp, Target
from headrace.cluster.durable_state import Testimony, parse_testimony
from headrace.cluster.effects import Status
from headrace.cluster.history import History
from headrace.cluster.normal_operation import NormalOperation
from headrace.cluster.replica_state import ReplicaState
from headrace.wire.parcel.body import DoViewChange, StartView, StartViewChange


@dataclass(frozen=True, slots=True)
class ViewReport:
    """One node's report on its log (DoViewChange)."""

    node: int
    last_normal: int
    last: int
    commit: int
    testimony: Testimony

    @property
    def rank(self) -> tuple[int, int]:
        """Order by which a log is more up to date than another."""
        return self.last_normal, self.last


class Views:
    """One replica's part in changing views."""

    def __init__(self, state: ReplicaState, catchup: CatchUp, normal: NormalOperation) -> None:
        self._state = state
        self._catchup = catchup
        self._normal = normal
        self._wishes: dict[int, tuple[int, float]] = {}
        """The view that each other node last wished for, and when."""
        self._reports: dict[int, ViewReport] = {}
        self._entered = 0.0
        self._patience = 0.0
        self._beat = 0.0
        self._committed = 0
        """The highest commit in the reports that the view starts from."""

    def resume(self) -> None:
        """Start again where a voter that lost nothing was."""
        state = self._state
        if state.last_normal < state.view:
            self.move_to(state.view)
        elif state.primary == state.me or state.size == 1:
            # It may have sent more than its own log has: those operations are not numbered again.
            self.move_to(state.view + 1)
        else:
            self._normal.begin()

    def content(self) -> bool:
        """Whether this node has no wish for another view."""
        if self._state.status is Status.NORMAL:
            return self._normal.content()
        return self._state.now < self._content_until()

    def move_to(self, view: int) -> None:
        """Move to ``view``, and take part in none before it."""
        state = self._state
        self._catchup.cancel()
        state.cut_to_whole()
        state.view = view
        state.become(Status.VIEW_CHANGE)
        state.persist()
        self._reports = {}
        self._entered = state.now
        self._patience = state.timing.patience * (1 + state.random.random() / 2)
        self._beat = state.now + state.timing.beat
        self._report()

    def start_view_change(self, sender: int, body: StartViewChange) -> None:
        """Note another node's wish for a view; it is in the one before that."""
        state = self._state
        self._wishes[sender] = (body.view, state.now)
        if body.view - 1 > state.view:
            # It moved there by a majority's wishes and cannot come back.
            self.move_to(body.view - 1)
        self._weigh_wishes()

    def do_view_change(self, sender: int, body: DoViewChange, bulk: bytes) -> None:
        """Take a report, as the primary of its view."""
        state = self._state
        if state.primary_of(body.view) != state.me or body.view < state.view:
            return
        report = ViewReport(sender, body.last_normal, body.last, body.commit, parse_testimony(bulk))
        state.merge(report.testimony.incarnations)
        if body.view > state.view:
            self.move_to(body.view)
        if state.status is Status.NORMAL:
            self._welcome(sender)
        elif state.status is Status.VIEW_CHANGE and self._catchup.target is None:
            self._reports[sender] = report
            self._choose()

    def start_view(self, sender: int, body: StartView, bulk: bytes) -> None:
        """Enter the view that its primary has started."""
        state = self._state
        if sender != state.primary_of(body.view) or body.view < state.view:
            return
        if body.view == state.view and state.status is not Status.VIEW_CHANGE:
            return
        heard = parse_testimony(bulk)
        if body.view > state.view:
            self.move_to(body.view)
        elif self._catchup.target is not None:
            return
        state.merge(heard.incarnations)
        target = Target(body.view, sender, body.last, False, self._enter)
        self._adopt(target, heard.history, body.commit)

    def tick(self) -> None:
        """Repeat the report; wish for another view when it is time."""
        state = self._state
        if state.now < self._beat:
            return
        self._beat = state.now + state.timing.beat
        if state.status is Status.VIEW_CHANGE and self._catchup.target is None:
            self._report()
        if not self.content():
            state.broadcast(StartViewChange(state.view + 1))
            self._weigh_wishes()

    def next_timer(self) -> float:
        """When :meth:`tick` has something to do."""
        return self._beat

    def _content_until(self) -> float:
        return max(self._entered, self._catchup.progressed) + self._patience

    def _weigh_wishes(self) -> None:
        """Move to the highest view that a majority wishes to reach."""
        state = self._state
        stale = state.now - state.timing.patience
        wishes = [view for view, heard in self._wishes.values() if heard > stale]
        if not self.content():
            wishes.append(state.view + 1)
        if len(wishes) >= state.majority:
            view = sorted(wishes, reverse=True)[state.majority - 1]
            if view > state.view:
                # A node that has moved wishes no more. If its last wish was not sent, the others would hear of the view
                # only when it is given up.
                state.broadcast(StartViewChange(view))
                self.move_to(view)

    def _report(self) -> None:
        state = self._state
        bulk = state.testimony()
        if state.primary == state.me:
            self._reports[state.me] = ViewReport(
                state.me, state.last_normal, state.tail, state.commit, parse_testimony(bulk)
            )
            self._choose()
        elif state.primary is not None:
            body = DoViewChange(state.view, state.last_normal, state.tail, state.commit)
            state.send(state.primary, body, bulk)

    def _choose(self) -> None:
        """With a majority's reports, start from the most up-to-date log among them."""
        state = self._state
        reports = self._valid_reports()
        if state.me not in reports or len(reports) < state.majority:
            return
        self._committed = max(report.commit for report in reports.values())
        best = self._best(reports)
        target = Target(state.view, best.node, best.last, True, self._start)
        if best.node == state.me:
            self._catchup.hold(target)
        else:
            self._adopt(target, best.testimony.history, best.commit)

    def _valid_reports(self) -> dict[int, ViewReport]:
        """The reports whose senders have not lost their memory since, as far as any reporting node knows.

        A node's own always counts. A higher number that others know of it is of an incarnation that ended before it had
        recovered, and so before it voted: had it voted, the next recovery would have heard of it. Adopting the number
        from any report makes this node's later reports count for the others.
        """
        state = self._state
        return {
            node: report
            for node, report in self._reports.items()
            if node == state.me
            or report.testimony.incarnations.get(node, 0) >= state.incarnations.get(node, 0)
        }

    def _best(self, reports: dict[int, ViewReport]) -> ViewReport:
        mine = reports[self._state.me]
        return max(reports.values(), key=lambda report: (report.rank, report is mine))

    def _adopt(self, target: Target, history: History, commit: int) -> None:
        state = self._state
        if not self._catchup.adopt(target, history, commit=commit):
            # It was away too long to know what to cut off, and must not vote until it has the log again.
            state.voter = False
            state.persist()
            state.become(Status.RECOVERING)

    def _start(self) -> None:
        """Start the view, as its primary, from the log that is now complete here."""
        state = self._state
        state.last_normal = state.view
        state.history = state.history.upto(state.tail).began(state.view, state.tail + 1)
        state.persist()
        state.advance(self._committed)
        self._normal.begin()
        for node in state.nodes:
            if node != state.me:
                self._welcome(node)

    def _enter(self) -> None:
        """Enter the view, as a backup, with the log that it started from."""
        state = self._state
        state.last_normal = state.view
        state.persist()
        self._normal.begin()

    def _welcome(self, node: int) -> None:
        """Send a node the log's end and history that this view started from."""
        state = self._state
        body = StartView(state.view, state.history.start - 1, state.commit)
        state.send(node, body, state.testimony())
