"""Comparing what comes again with the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, RefusedError
from headrace.hub.publishing.idempotent import IdempotentPublishing
from headrace.hub.publishing.publisher_numbers import PublisherNumbers, Span
from headrace.hub.publishing.relaying.publishes import PublishRelay
from headrace.hub.publishing.same_rows import Comparisons, Difference, WhenCompared, check_same
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Claim, Opening, Published
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.message import Batch, Run


def test_a_place_past_the_end_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log", fsync="never")
    try:
        with pytest.raises(RefusedError, match="ends at message 0") as refused:
            check_same(log, Batch(Run.of([b"x"]), publisher="p", number=0), [Span(0, 1, 5)])
        assert refused.value.code == "unknown"
    finally:
        log.close()


class Threads:
    """What was given to threads, which the test runs."""

    def __init__(self) -> None:
        self.given: list[tuple[Callable[[], Difference], WhenCompared]] = []

    def __call__(self, work: Callable[[], Difference], done: WhenCompared) -> None:
        self.given.append((work, done))

    def run(self) -> None:
        while self.given:
            work, done = self.given.pop(0)
            done(work())


class Publishing:
    """A hub that has numbers 0 to 4 of publisher ``p``, and compares in threads."""

    def __init__(self, directory: Path) -> None:
        self.log = Log.open(directory, fsync="never")
        self.publishers = PublisherNumbers()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 20, state=HubState(self.publishers))
        self.threads = Threads()
        self.idempotent = IdempotentPublishing(self.hub, self.publishers, self.threads)
        self.told: list[tuple[str, Published | HeadraceError]] = []
        for number in range(5):
            self.publish(f"{number}", number)
        self.hub.turn(1)
        self.told.clear()

    def publish(self, payload: str, number: int, claim: Claim = Claim()) -> None:  # noqa: B008
        batch = Batch(Run.of([payload.encode()]), origin="tube", publisher="p", number=number)
        self.idempotent.publish(batch, lambda result: self.told.append((payload, result)), claim=claim)

    @property
    def outcomes(self) -> list[tuple[str, int | str | None]]:
        return [
            (payload, result.first if isinstance(result, Published) else str(getattr(result, "code", result)))
            for payload, result in self.told
        ]


@pytest.fixture
def publishing(tmp_path: Path) -> Iterator[Publishing]:
    made = Publishing(tmp_path / "log")
    yield made
    made.log.close()


def test_what_is_compared_elsewhere_is_answered_in_order(publishing: Publishing) -> None:
    publishing.publish("2", 2)
    publishing.publish("other", 3)
    publishing.publish("5", 5)
    publishing.hub.turn(2)
    assert publishing.told == []
    assert len(publishing.threads.given) == 1
    publishing.threads.run()
    assert publishing.outcomes == [("2", 3), ("other", "conflict")]
    publishing.hub.turn(3)
    assert publishing.outcomes == [("2", 3), ("other", "conflict"), ("5", 6)]
    assert not publishing.idempotent._lines


def test_one_is_compared_at_a_time(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log", fsync="never")
    threads, done = Threads(), []
    comparisons = Comparisons(log, threads)
    for number in range(3):
        batch = Batch(Run.of([b"x"]), publisher="p", number=number)
        comparisons.compare(batch, [Span(number, number + 1, number + 1)], lambda found: done.append(found))
        assert len(threads.given) == 1
    threads.run()
    assert [error is not None and error.code for error in done] == ["unknown"] * 3
    log.close()


def test_who_is_fenced_is_told_so_without_a_comparison(publishing: Publishing) -> None:
    publishing.idempotent.open("p", Opening("somebody", "", "else"), lambda _: None)
    publishing.hub.turn(2)
    publishing.publish("2", 2, Claim(epoch=1))
    assert publishing.outcomes == [("2", "fenced")]
    assert not publishing.threads.given
    # Unless it says that it sends it again: what was taken is told.
    publishing.publish("3", 3, Claim(epoch=1, retry=1))
    publishing.threads.run()
    assert publishing.outcomes == [("2", "fenced"), ("3", 4)]


def test_what_is_being_compared_when_another_hub_takes_over_is_judged_there(publishing: Publishing) -> None:
    other = PublishRelay(publishing.hub, name=lambda: "here", patience=1.0, most=1 << 20, now=0.0)
    publishing.publish("2", 2)
    publishing.publish("5", 5)
    publishing.hub.sequencer = other
    publishing.threads.run()
    other.connected()
    assert [request.number for request in other.due()] == [2, 5]
    assert publishing.told == []
    assert not publishing.idempotent._lines
