"""Messages for people: found by number and filter, cut to what is looked at."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.hub.filters import Filter
from headrace.hub.state import entry
from headrace.log import Log
from headrace.message import Batch, Message, Run
from headrace.web import messages

EVERYTHING = Filter()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log.open(tmp_path / "log", fsync="never")
    yield log
    log.close()


def append(log: Log, *batches: Batch) -> None:
    for batch in batches:
        first = log.tail + (0 if batch.is_entries else 1)
        log.append([batch.numbered(log.tail_op + 1, first, 1, 7)])
    log.commit(log.tail_op)


def numbers(found: messages.SearchResult) -> list[int]:
    return [message["seq"] for message in found.messages]


def topics(count: int) -> list[Batch]:
    return [
        Batch(Run.of([b"%d" % i]), origin="tube", topic="rare" if i % 1000 == 0 else "often")
        for i in range(count)
    ]


def test_of_an_empty_log(log: Log) -> None:
    assert messages.newest(log, EVERYTHING, 1, 10).messages == []
    assert messages.following(log, EVERYTHING, 1, 10).messages == []
    assert messages.one(log, 1) is None
    assert messages.one(log, 0) is None


def test_the_newest_in_their_order(log: Log) -> None:
    append(log, Batch(Run.of([b"x"] * 30), origin="fyrehose"))
    found = messages.newest(log, EVERYTHING, log.head + 1, 10)
    assert numbers(found) == list(range(21, 31))
    assert (found.first, found.last) == (21, 30)
    older = messages.newest(log, EVERYTHING, found.first, 100)
    assert numbers(older) == list(range(1, 21))
    assert older.first == 1


def test_those_that_follow(log: Log) -> None:
    append(log, Batch(Run.of([b"x"] * 30), origin="fyrehose"))
    found = messages.following(log, EVERYTHING, 5, 3)
    assert (numbers(found), found.first, found.last) == ([5, 6, 7], 5, 7)
    assert numbers(messages.following(log, EVERYTHING, 29, 10)) == [29, 30]
    assert numbers(messages.following(log, EVERYTHING, 31, 10)) == []


def test_a_filter_looks_further_and_further_back(log: Log) -> None:
    append(log, *topics(9000))
    found = messages.newest(log, Filter("rare"), log.head + 1, 5)
    assert numbers(found) == [4001, 5001, 6001, 7001, 8001]
    assert numbers(messages.newest(log, Filter("rare"), log.head + 1, 50)) == [n * 1000 + 1 for n in range(9)]
    assert numbers(messages.following(log, Filter("rare"), 2, 2)) == [1001, 2001]
    nothing = messages.newest(log, Filter("never"), log.head + 1, 5)
    assert (nothing.messages, nothing.first, nothing.last) == ([], 1, 9000)


def test_a_search_ends(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_FURTHEST", 2000)
    append(log, *topics(9000))
    found = messages.newest(log, Filter("never"), log.head + 1, 5)
    assert 1 < found.first <= 7001
    further = messages.newest(log, Filter("rare"), found.first, 1)
    assert numbers(further) == [(found.first - 2) // 1000 * 1000 + 1]


def test_entries_are_no_messages(log: Log) -> None:
    kept = entry("holds", "h", b"{}")
    append(
        log, kept, Batch(Run.of([b"a"]), origin="spp"), kept, kept, Batch(Run.of([b"b"]), origin="spp"), kept
    )
    for found in (
        messages.newest(log, EVERYTHING, log.head + 1, 10),
        messages.following(log, EVERYTHING, 1, 10),
    ):
        assert numbers(found) == [1, 2]
        assert (found.first, found.last) == (1, 2)
    assert messages.newest(log, Filter(origins=["log"]), log.head + 1, 10).messages == []
    second = messages.one(log, 2)
    assert second is not None
    assert second["payload"] == "b"
    assert messages.one(log, 3) is None


def test_text_and_bytes() -> None:
    assert messages.shown(Message(1, "žluť".encode()))["payload"] == "žluť"
    assert b64decode(messages.shown(Message(1, b"\xff\x00"))["payload_base64"]) == b"\xff\x00"


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_cut_through_a_character_is_still_text(limit: int) -> None:
    shown = messages.shown(Message(1, "aěšč€x😀".encode()), limit)
    assert "aěšč€x😀".startswith(shown["payload"])
    assert shown["size"] == len("aěšč€x😀".encode())


def test_infinities_are_words() -> None:
    shown = messages.shown(Message(1, b"", numbers={"a": float("inf"), "b": float("nan"), "c": 1.5}))
    assert shown["numbers"] == {"a": "inf", "b": "nan", "c": 1.5}
