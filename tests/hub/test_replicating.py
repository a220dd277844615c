"""What a cluster's node asks of its hub: cutting back, giving way, commits that reach into an earlier life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, RefusedError, StorageError, UnavailableError
from headrace.hub.publishing.idempotent import IdempotentPublishing
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.query_marks import Queries
from headrace.hub.publishing.staged_commits import StagedCommits
from headrace.hub.publishing.staging import Staging
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import (
    Claim,
    Commit,
    Opening,
    Published,
    Submission,
    WhenNewest,
    WhenOpened,
    WhenPublished,
)
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.message import Batch, Run

Result = Batch | StorageError


class Elsewhere:
    """A sequencer that keeps what it is given."""

    def __init__(self) -> None:
        self.congested = False
        self.ordered: list[Submission] = []
        self.published: list[tuple[Batch, WhenPublished]] = []

    def order(self, submitted: Sequence[Submission]) -> None:
        self.ordered += submitted

    def publish(
        self,
        batch: Batch,
        reply: WhenPublished,
        *,
        follows: bool,
        preceding: Sequence[Batch],
        claim: Claim,
    ) -> None:
        self.published.append((batch, reply))

    def commit(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
    ) -> None:
        raise AssertionError

    def newest(self, publisher: str, reply: WhenNewest) -> None:
        raise AssertionError

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        raise AssertionError

    def committed(self, head: int) -> None:
        pass


class Door:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def deliver(self, batches: Sequence[Batch]) -> None:
        self.seen += [message.seq for batch in batches for message in batch]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log.open(tmp_path / "log", fsync="never")
    yield log
    log.close()


@pytest.fixture
def door() -> Door:
    return Door()


def make(log: Log, door: Door, *parts: PublisherNumbers | Queries, max_uncommitted: int = 1 << 20) -> Hub:
    hub = Hub(log, 1, max_uncommitted=max_uncommitted, state=HubState(*parts))
    hub.commit_by(lambda _: None)
    hub.doors.append(door)
    return hub


def batch(*payloads: bytes, **options: object) -> Batch:
    return Batch(Run.of(payloads), origin="tube", **options)  # type: ignore[arg-type]


def test_what_is_cut_off_is_told_and_the_rest_goes_on(log: Log, door: Door) -> None:
    hub = make(log, door)
    told: list[Result] = []
    for payload in (b"a", b"b", b"c"):
        hub.submit(batch(payload), told.append)
        hub.turn(1)
    assert [each.first for each in hub.appended_from(2)] == [2, 3]
    hub.cut_back(1)
    assert [type(each) for each in told] == [UnavailableError, UnavailableError]
    assert log.tail == 1
    hub.follow([batch(b"other", first=2, time=5)])
    hub.committed(2)
    assert door.seen == [1, 2]
    assert [type(each) for each in told] == [UnavailableError, UnavailableError, Batch]
    assert [message.payload for each in log.scan(1) for message in each] == [b"a", b"other"]


def test_a_cut_inside_of_a_batch(log: Log, door: Door) -> None:
    hub = make(log, door)
    told: list[Result] = []
    hub.submit(batch(b"a", b"b", b"c"), told.append)
    hub.turn(1)
    hub.cut_back(2)
    assert isinstance(told[0], UnavailableError)
    hub.committed(2)
    assert door.seen == [1, 2]


def test_nobody_waits_for_ever(log: Log, door: Door) -> None:
    hub = make(log, door)
    told: list[Result] = []
    hub.submit(batch(b"a"), told.append)
    hub.turn(1)
    hub.abandon(UnavailableError("no majority"))
    assert isinstance(told[0], UnavailableError)
    hub.committed(1)
    assert (door.seen, len(told)) == ([1], 1)


def test_what_an_earlier_life_appended_is_read_when_it_is_committed(log: Log, door: Door) -> None:
    for number in range(1, 50):
        log.append(
            [
                Batch(
                    Run.one(bytes(1000)),
                    first=number,
                    time=number,
                    origin="tube",
                    publisher="p",
                    number=number,
                )
            ]
        )
    log.commit(3)
    publishers = PublisherNumbers()
    hub = make(log, door, publishers)
    assert publishers.newest("p") == 3
    hub.follow([batch(b"new", first=50, time=60, op=50)])
    hub.committed(20)
    assert (door.seen, publishers.newest("p")) == (list(range(4, 21)), 20)
    hub.committed(50)
    assert (door.seen, log.head) == (list(range(4, 51)), 50)


def test_giving_way_in_the_middle_of_a_turn(log: Log, door: Door) -> None:
    hub, elsewhere = make(log, door), Elsewhere()
    told: list[Result] = []
    hub.submit(batch(b"plain"))
    hub.submit(batch(b"judged", publisher="p", number=0), told.append)
    hub.submit(batch(b"tied"), tied=True)
    hub.submit(batch(b"mark"), told.append)
    hub.give_way(elsewhere)
    hub.turn(1)
    assert [list(each.batch.run) for each in elsewhere.ordered] == [[b"plain"]]
    assert [type(each) for each in told] == [UnavailableError, UnavailableError]
    assert log.tail == 0


def test_taking_over_in_the_middle_of_a_turn(log: Log, door: Door) -> None:
    hub, elsewhere = make(log, door), Elsewhere()
    hub.give_way(elsewhere)
    hub.submit(batch(b"first"))
    hub.turn(1)
    hub.submit(batch(b"second"))
    hub.take_over()
    # It waits behind the first, which is to be numbered here now: nothing overtakes it.
    assert [list(each.batch.run) for each in elsewhere.ordered] == [[b"first"], [b"second"]]
    hub.submit(batch(b"third"))
    hub.turn(2)
    assert (log.tail, hub.sequencer) == (1, None)


def test_a_publish_that_was_cut_off_is_for_the_next_primary_to_judge(log: Log, door: Door) -> None:
    publishers, elsewhere = PublisherNumbers(), Elsewhere()
    hub = make(log, door, publishers)
    publishing = IdempotentPublishing(hub, publishers)
    told: list[Published | HeadraceError] = []
    first = batch(b"a", publisher="p", number=0)
    publishing.publish(first, told.append)
    hub.turn(1)
    publishing.publish(first, told.append)  # a repeat, which waits for the first
    hub.give_way(elsewhere)
    hub.cut_back(0)
    assert told == []
    assert [each for each, _ in elsewhere.published] == [first, first]
    for _, answer in elsewhere.published:
        answer(Published(7, 7))
    assert told == [Published(7, 7), Published(7, 7)]


def large_group(hub: Hub) -> tuple[list[int], list[Result]]:
    """Submit a group that is too large for one append, and others around it; return the appends and answers to be."""
    hub.append_bytes = 100
    appends: list[int] = []
    hub.commit_by(appends.append)
    told: list[Result] = []
    for _ in range(3):
        hub.submit(batch(bytes(60)), told.append)
    hub.submit(batch(bytes(60), bytes(60), bytes(60)), tied=True)
    hub.submit(batch(bytes(60)), told.append)
    hub.submit(batch(b"after"), told.append)
    return appends, told


def test_what_is_too_large_for_one_parcel_is_appended_in_parts(log: Log, door: Door) -> None:
    hub = make(log, door)
    appends, told = large_group(hub)
    woken: list[None] = []
    hub.wake = lambda: woken.append(None)
    # Between two parts others have a turn, but nothing else is numbered.
    ends = [[1, 2, 3, 4], [5], [6], [7], [8]]
    for turn, each in enumerate(ends, 1):
        hub.turn(turn)
        assert appends == each
        assert len(woken) == (turn if turn < len(ends) else turn - 1)
        appends.clear()
    assert [message.payload for each in hub.appended_from(1) for message in each][-1] == b"after"
    assert [bool(each.tied) for each in hub.appended_from(1)] == [False] * 3 + [True] * 3 + [False] * 2
    assert log.tied_after(0) == [(4, 4), (5, 5), (6, 6)]
    hub.committed(8)
    assert len(told) == 5


def test_a_group_whose_rest_cannot_be_appended_is_refused_and_told(log: Log, door: Door) -> None:
    hub = make(log, door)
    _, told = large_group(hub)
    interrupted: list[HeadraceError] = []
    hub.interrupted = interrupted.append
    hub.turn(1)
    hub.turn(2)
    problem = StorageError("the disk is full")

    def fail(*_: object) -> bool:
        raise problem

    hub.write = fail
    hub.turn(3)
    assert (told, interrupted) == ([problem], [problem])
    hub.write = None
    hub.cut_back(3)
    hub.turn(4)
    assert log.tail == 4
    # If it fails with the first part, there is nothing to be cut off.
    hub.submit(batch(bytes(60)), tied=True)
    hub.submit(batch(bytes(60)), told.append)
    hub.write = fail
    hub.turn(5)
    assert (told[1:], len(interrupted), log.tail) == ([problem], 1, 4)


def test_a_group_that_another_hub_should_finish_is_refused(log: Log, door: Door) -> None:
    hub = make(log, door)
    _, told = large_group(hub)
    hub.turn(1)
    elsewhere = Elsewhere()
    hub.give_way(elsewhere)
    assert isinstance(told[0], UnavailableError)
    hub.turn(2)
    hub.take_over()
    hub.turn(3)
    assert log.tail == 4


def test_a_large_group_waits_in_the_log_and_not_in_memory(log: Log, door: Door) -> None:
    hub = make(log, door, max_uncommitted=8_000)
    hub.append_bytes = 100
    hub.commit_by(lambda _: None)
    told: list[Result] = []
    hub.submit(batch(*([bytes(60)] * 100)), tied=True)
    hub.submit(batch(b"mark"), told.append)
    while log.tail < 101:
        hub.turn(1)
    assert not hub.congested
    assert len(hub.appended_from(1)) < 50
    hub.committed(101)
    assert len(told) == 1
    assert door.seen == list(range(1, 102))


def test_commits_of_other_nodes(log: Log, door: Door, tmp_path: Path) -> None:
    queries = Queries()
    hub = make(log, door, queries)
    commits = StagedCommits(hub, queries, Staging(tmp_path / "stages"))
    told: list[object] = []
    one, other = Commit(digest=1, token=1), Commit(digest=1, token=2)
    commits.take("q", 1, [batch(b"a", b"b")], told.append, one)
    commits.take("q", 1, [batch(b"a", b"b")], told.append, other)
    hub.turn(1)
    hub.committed(log.tail_op)
    assert told == [Published(1, 2, op=3), Published(1, 2, op=3)]
    commits.take("q", 1, [batch(b"a", b"b")], told.append, one)
    assert (told[2:], log.tail) == ([Published(1, 2, op=3)], 2)
    for number, terms in ((1, Commit(digest=2)), (1, Commit()), (0, one)):
        commits.take("q", number, [batch(b"a", b"b")], told.append, terms)
        assert isinstance(told[-1], RefusedError)
        assert (told[-1].code, log.tail) == ("conflict", 2)


def test_a_commit_that_has_waited_here_is_for_the_next_primary_to_take(
    log: Log, door: Door, tmp_path: Path
) -> None:
    """It waits for another of the same query, which is not appended, since this node is the primary no longer."""
    queries = Queries()
    hub = make(log, door, queries)
    commits = StagedCommits(hub, queries, Staging(tmp_path / "stages"))
    told: list[object] = []
    for token in (1, 2):
        commits.take("q", token, [batch(b"a")], told.append, Commit(token=token))
    hub.give_way(Elsewhere())
    assert [type(each) for each in told] == [UnavailableError, UnavailableError]
    assert (log.tail, hub.sequencer is not None) == (0, True)


def test_a_commit_that_is_too_large_for_one_parcel_is_committed_whole(
    log: Log, door: Door, tmp_path: Path
) -> None:
    queries = Queries()
    hub = make(log, door, queries)
    hub.append_bytes = 100
    commits = StagedCommits(hub, queries, Staging(tmp_path / "stages"))
    told: list[object] = []
    commits.take("q", 1, [batch(bytes(60)), batch(bytes(60))], told.append, Commit())
    for _ in range(3):
        hub.turn(1)
    assert log.tied_after(0) == [(1, 1), (2, 2)]
    hub.committed(log.tail_op)
    assert told == [Published(1, 2, op=3)]


def test_a_node_that_becomes_primary_takes_the_commit_that_it_has_relayed(
    log: Log, door: Door, tmp_path: Path
) -> None:
    """It waited for itself: the commit was under way here, at the primary that was asked."""
    queries = Queries()
    hub = make(log, door, queries)
    commits = StagedCommits(hub, queries, Staging(tmp_path / "stages"))
    relayed: list[WhenPublished] = []

    class Primary(Elsewhere):
        def commit(
            self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit
        ) -> None:
            relayed.append(reply)

    hub.give_way(Primary())
    told: list[object] = []
    commits.begin("q", 1, (), lambda: None, Commit(token=7))
    commits.append("q", 1, [batch(b"a")], (), told.append, Commit(token=7))
    hub.take_over()
    commits.take("q", 1, [batch(b"a")], relayed[0], Commit(token=7))
    hub.turn(1)
    hub.committed(log.tail_op)
    assert told == [Published(1, 1, op=2)]
