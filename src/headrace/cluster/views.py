"""Changing the view: who is primary when the last one is silent, and which log the new view starts from.

In three steps, as in Viewstamped Replication:

1. **Wishing.** A node that is not content with its view says so (StartViewChange), again and again. A wish binds
   nobody: only when a majority has fresh wishes does a node move on. So a node that is cut off, or hears badly,
   disturbs nobody, and can come back.
2. **Moving.** The node stores the new view, which it can never leave for an older one, and tells the new view's primary
   how far its log goes and which view it was last in normal order in (DoViewChange). From here on it takes nothing from
   older views: they are fenced off.
3. **Starting.** With the reports of a majority, its own among them, the new primary chooses the log of the latest
   ``last_normal``, and of those the longest; it adopts that log if it is not its own, stores that it is in normal
   order, and tells the others (StartView), who adopt it likewise.

Whatever was committed is in the chosen log: a majority had it in normal order, any two majorities share a node, and
that node's report ranks no lower than what it knew. A report counts only if nobody in the same majority knows that its
sender has lost its memory since.

Views take no sequence number. A view is given up like a primary: when it has not started in good time.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cluster.catchup import CatchUp, Target
from headrace.cluster.durable_state import Testimony, hear
from headrace.cluster.effects import Status
from headrace.cluster.history import History
from headrace.cluster.normal_operation import Normal
from headrace.cluster.replica_state import Standing
from headrace.wire.parcel.body import DoViewChange, StartView, StartViewChange


@dataclass(frozen=True, slots=True)
class Report:
    """One node's DoViewChange."""

    node: int
    last_normal: int
    last: int
    commit: int
    testimony: Testimony

    @property
    def rank(self) -> tuple[int, int]:
        """What makes a log more up to date than another."""
        return self.last_normal, self.last


class Views:
    """One replica's part in choosing views."""

    def __init__(self, standing: Standing, catchup: CatchUp, normal: Normal) -> None:
        self._standing = standing
        self._catchup = catchup
        self._normal = normal
        self._wishes: dict[int, tuple[int, float]] = {}
        """The view each other node last wished for, and when."""
        self._reports: dict[int, Report] = {}
        self._entered = 0.0
        self._patience = 0.0
        self._beat = 0.0
        self._committed = 0
        """The highest commit number of the reports that the view starts from."""

    def resume(self) -> None:
        """A voter that kept everything starts again where it was."""
        standing = self._standing
        if standing.last_normal < standing.view:
            self.move_to(standing.view)
        elif standing.primary == standing.me or standing.size == 1:
            # What it sent before it was ended may be further than its own log: those numbers are not given again.
            self.move_to(standing.view + 1)
        else:
            self._normal.begin()

    def content(self) -> bool:
        """Whether this node has no reason to wish for another view."""
        if self._standing.status is Status.NORMAL:
            return self._normal.content()
        return self._standing.now < self._content_until()

    def move_to(self, view: int) -> None:
        """Take part in starting ``view``, and in nothing before it."""
        standing = self._standing
        self._catchup.cancel()
        standing.view = view
        standing.become(Status.VIEW_CHANGE)
        standing.persist()
        self._reports = {}
        self._entered = standing.now
        self._patience = standing.timing.patience * (1 + standing.random.random() / 2)
        self._beat = standing.now + standing.timing.beat
        self._report()

    def start_view_change(self, sender: int, body: StartViewChange) -> None:
        """Somebody wishes for a view, and so is in the one before it."""
        standing = self._standing
        self._wishes[sender] = (body.view, standing.now)
        if body.view - 1 > standing.view:
            # It moved on with a majority's wishes and cannot come back.
            self.move_to(body.view - 1)
        self._weigh_wishes()

    def do_view_change(self, sender: int, body: DoViewChange, bulk: bytes) -> None:
        """A report to the primary of a view."""
        standing = self._standing
        if standing.primary_of(body.view) != standing.me or body.view < standing.view:
            return
        report = Report(sender, body.last_normal, body.last, body.commit, hear(bulk))
        standing.merge(report.testimony.incarnations)
        if body.view > standing.view:
            self.move_to(body.view)
        if standing.status is Status.NORMAL:
            self._welcome(sender)
        elif standing.status is Status.VIEW_CHANGE and self._catchup.target is None:
            self._reports[sender] = report
            self._choose()

    def start_view(self, sender: int, body: StartView, bulk: bytes) -> None:
        """The primary of a view has started it."""
        standing = self._standing
        if sender != standing.primary_of(body.view) or body.view < standing.view:
            return
        if body.view == standing.view and standing.status is not Status.VIEW_CHANGE:
            return
        heard = hear(bulk)
        if body.view > standing.view:
            self.move_to(body.view)
        elif self._catchup.target is not None:
            return
        standing.merge(heard.incarnations)
        target = Target(body.view, sender, body.last, False, self._enter)
        self._adopt(target, heard.history, body.commit)

    def tick(self) -> None:
        """Repeat what was not answered; wish for another view when it is time."""
        standing = self._standing
        if standing.now < self._beat:
            return
        self._beat = standing.now + standing.timing.beat
        if standing.status is Status.VIEW_CHANGE and self._catchup.target is None:
            self._report()
        if not self.content():
            standing.broadcast(StartViewChange(standing.view + 1))
            self._weigh_wishes()

    def next_timer(self) -> float:
        """When :meth:`tick` has something to do."""
        return self._beat

    def _content_until(self) -> float:
        return max(self._entered, self._catchup.progressed) + self._patience

    def _weigh_wishes(self) -> None:
        """Move to the highest view that a majority wishes for, or for a higher one."""
        standing = self._standing
        stale = standing.now - standing.timing.patience
        wishes = [view for view, heard in self._wishes.values() if heard > stale]
        if not self.content():
            wishes.append(standing.view + 1)
        if len(wishes) >= standing.majority:
            view = sorted(wishes, reverse=True)[standing.majority - 1]
            if view > standing.view:
                # This node's own wish may be untold, and whoever moves wishes no more: without it the others would
                # hear of the view only when it is given up.
                standing.broadcast(StartViewChange(view))
                self.move_to(view)

    def _report(self) -> None:
        standing = self._standing
        bulk = standing.testimony()
        if standing.primary == standing.me:
            self._reports[standing.me] = Report(
                standing.me, standing.last_normal, standing.tail, standing.commit, hear(bulk)
            )
            self._choose()
        elif standing.primary is not None:
            body = DoViewChange(standing.view, standing.last_normal, standing.tail, standing.commit)
            standing.send(standing.primary, body, bulk)

    def _choose(self) -> None:
        """With a majority's reports, start from the most up-to-date log among them."""
        standing = self._standing
        reports = self._valid_reports()
        if standing.me not in reports or len(reports) < standing.majority:
            return
        self._committed = max(report.commit for report in reports.values())
        best = self._best(reports)
        target = Target(standing.view, best.node, best.last, True, self._start)
        if best.node == standing.me:
            self._catchup.hold(target)
        else:
            self._adopt(target, best.testimony.history, best.commit)

    def _valid_reports(self) -> dict[int, Report]:
        """The reports whose senders have not lost their memory since, as far as anybody who reports knows.

        One's own always counts. A higher number that others know of this node is of a life that ended before it had
        recovered, and so before it voted: one that had voted would have been heard of in the next recovery. Taking the
        number over, from any report, makes this node's later reports count with them.
        """
        standing = self._standing
        return {
            node: report
            for node, report in self._reports.items()
            if node == standing.me
            or report.testimony.incarnations.get(node, 0) >= standing.incarnations.get(node, 0)
        }

    def _best(self, reports: dict[int, Report]) -> Report:
        mine = reports[self._standing.me]
        return max(reports.values(), key=lambda report: (report.rank, report is mine))

    def _adopt(self, target: Target, history: History, commit: int) -> None:
        standing = self._standing
        if not self._catchup.adopt(target, history, commit=commit):
            # It has been away for too long to know what to cut off. It must not vote until it has the log again.
            standing.voter = False
            standing.persist()
            standing.become(Status.RECOVERING)

    def _start(self) -> None:
        """The new primary has the log that its view starts from."""
        standing = self._standing
        standing.last_normal = standing.view
        standing.history = standing.history.upto(standing.tail).began(standing.view, standing.tail + 1)
        standing.persist()
        standing.advance(self._committed)
        self._normal.begin()
        for node in standing.nodes:
            if node != standing.me:
                self._welcome(node)

    def _enter(self) -> None:
        """A backup has the log that its view started from."""
        standing = self._standing
        standing.last_normal = standing.view
        standing.persist()
        self._normal.begin()

    def _welcome(self, node: int) -> None:
        """Tell a node the log that this view started from."""
        standing = self._standing
        body = StartView(standing.view, standing.history.start - 1, standing.commit)
        standing.send(node, body, standing.testimony())
