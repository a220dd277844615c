"""What a cluster's node asks of its hub: cutting back, giving way, commits that reach into an earlier life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, LimitError, RefusedError, StorageError, UnavailableError
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


def make(log: Log, door: Door, *parts: PublisherNumbers | Queries) -> Hub:
    hub = Hub(log, 1, max_uncommitted=1 << 20, state=HubState(*parts), commit=lambda _: None)
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


def test_what_belongs_together_is_never_too_long_for_one_parcel(log: Log, door: Door) -> None:
    hub = make(log, door)
    hub.append_bytes = 100
    appends: list[int] = []
    hub.commit_by(appends.append)
    told: list[Result] = []
    for _ in range(3):
        hub.submit(batch(bytes(60)), told.append)
    hub.submit(batch(bytes(60)), tied=True)
    hub.submit(batch(bytes(60)), told.append)
    hub.turn(1)
    assert appends == [1, 2, 3]
    assert [str(each) for each in told] == ["120 bytes in one go: a cluster takes 100 at most"]


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


def test_a_commit_that_is_too_long_for_one_parcel_is_refused_and_holds_up_nothing(
    log: Log, door: Door, tmp_path: Path
) -> None:
    queries = Queries()
    hub = make(log, door, queries)
    hub.append_bytes = 100
    commits = StagedCommits(hub, queries, Staging(tmp_path / "stages"))
    told: list[object] = []
    commits.take("q", 1, [batch(bytes(60)), batch(bytes(60))], told.append, Commit())
    (error,) = told
    assert isinstance(error, LimitError)
    assert "120" in str(error)
    assert error.limit == 100
    commits.take("q", 1, [batch(bytes(60))], told.append, Commit())
    hub.turn(1)
    hub.committed(log.tail_op)
    assert told[1:] == [Published(1, 1, op=2)]
