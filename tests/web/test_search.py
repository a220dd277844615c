"""Searches of the log: they find what a plain loop finds, step by step, and end."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.web.logs import append

from headrace.hub.filters import Filter
from headrace.hub.state import entry
from headrace.log import Log
from headrace.message import Batch, Run
from headrace.web import search
from headrace.web.api.messages import SearchResult
from headrace.web.search import Search, SearchBackward, SearchForward

EVERYTHING = Filter()


def done(looking: Search) -> SearchResult:
    while not looking.step():
        pass
    return SearchResult.of(looking)


def newest(log: Log, wanted: Filter, before: int, count: int) -> SearchResult:
    return done(SearchBackward(log, wanted, log.first, before - 1, count))


def following(log: Log, wanted: Filter, first: int, count: int) -> SearchResult:
    return done(SearchForward(log, wanted, first, log.head, count))


def numbers(found: SearchResult) -> list[int]:
    return [message["seq"] for message in found.messages]


def topics(count: int) -> list[Batch]:
    return [
        Batch(Run.of([b"%d" % i]), origin="tube", topic="rare" if i % 1000 == 0 else "often")
        for i in range(count)
    ]


def test_of_an_empty_log(log: Log) -> None:
    assert newest(log, EVERYTHING, 1, 10) == SearchResult([], 1, 0)
    assert following(log, EVERYTHING, 1, 10) == SearchResult([], 1, 0)


def test_the_newest_in_their_order(log: Log) -> None:
    append(log, Batch(Run.of([b"x"] * 30), origin="fyrehose"))
    found = newest(log, EVERYTHING, log.head + 1, 10)
    assert numbers(found) == list(range(21, 31))
    assert (found.first, found.last) == (21, 30)
    older = newest(log, EVERYTHING, found.first, 100)
    assert numbers(older) == list(range(1, 21))
    assert older.first == 1


def test_those_that_follow(log: Log) -> None:
    append(log, Batch(Run.of([b"x"] * 30), origin="fyrehose"))
    found = following(log, EVERYTHING, 5, 3)
    assert (numbers(found), found.first, found.last) == ([5, 6, 7], 5, 7)
    assert numbers(following(log, EVERYTHING, 29, 10)) == [29, 30]
    assert numbers(following(log, EVERYTHING, 31, 10)) == []


def test_a_filter_looks_further_and_further_back(log: Log) -> None:
    append(log, *topics(9000))
    found = newest(log, Filter("rare"), log.head + 1, 5)
    assert numbers(found) == [4001, 5001, 6001, 7001, 8001]
    assert numbers(newest(log, Filter("rare"), log.head + 1, 50)) == [n * 1000 + 1 for n in range(9)]
    assert numbers(following(log, Filter("rare"), 2, 2)) == [1001, 2001]
    nothing = newest(log, Filter("never"), log.head + 1, 5)
    assert (nothing.messages, nothing.first, nothing.last) == ([], 1, 9000)


def test_a_search_ends(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MOST_BYTES", 2000 * 600)
    append(log, *topics(9000))
    found = newest(log, Filter(origins=["never"]), log.head + 1, 5)
    assert 3000 < found.first <= 8001
    further = newest(log, Filter("rare"), found.first, 1)
    assert numbers(further) == [(found.first - 2) // 1000 * 1000 + 1]


def test_entries_are_no_messages(log: Log) -> None:
    kept = entry("holds", "h", b"{}")
    append(
        log, kept, Batch(Run.of([b"a"]), origin="spp"), kept, kept, Batch(Run.of([b"b"]), origin="spp"), kept
    )
    for found in (
        newest(log, EVERYTHING, log.head + 1, 10),
        following(log, EVERYTHING, 1, 10),
    ):
        assert numbers(found) == [1, 2]
        assert (found.first, found.last) == (1, 2)
    assert newest(log, Filter(origins=["log"]), log.head + 1, 10).messages == []


def test_a_search_for_a_rare_topic_is_few_short_steps(log: Log) -> None:
    append(log, *topics(9000))
    log.rotate()
    assert log.seal_next()
    looking = SearchBackward(log, Filter("rare"), 1, log.head, 500)
    steps = 1
    while not looking.step():
        steps += 1
    assert len(looking.found) == 9
    assert steps < 12
    assert looking._cost < 3 << 20


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(
    wanted=st.lists(st.integers(1, 60), max_size=6),
    limit=st.sampled_from([70_000, 200_000, 1 << 20]),
    count=st.integers(1, 4),
    step=st.sampled_from([1, 700, 1 << 20]),
)
def test_one_search_after_another_finds_everything(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[int], limit: int, count: int, step: int
) -> None:
    """However little a search may read, its range leads on to the next."""
    log = Log.open(tmp_path_factory.mktemp("log"), fsync="never")
    append(log, *(Batch(Run.one(b"x"), topic="it" if n in wanted else "other") for n in range(1, 61)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MOST_BYTES", limit)
        patch.setattr(search, "STEP_BYTES", step)
        patch.setattr(search, "_FIRST_LOOK", 7)
        found: list[int] = []
        before = log.head + 1
        while before > 1:
            part = newest(log, Filter("it"), before, count)
            assert part.first < before
            found, before = numbers(part) + found, part.first
        assert found == sorted(set(wanted))
        found, first = [], 1
        while first <= log.head:
            part = following(log, Filter("it"), first, count)
            assert part.last >= first
            found, first = found + numbers(part), part.last + 1
        assert found == sorted(set(wanted))
    log.close()
