from __future__ import annotations

import hashlib

import pytest

from headrace.hub.routing import matcher_ring as module
from headrace.hub.routing.matcher_ring import MatcherRing, SilentMatchers, join, leave
from headrace.message import Batch, node_id


def start(name: str) -> bytes:
    return hashlib.sha1(name.encode()).digest()


def take(matchers: MatcherRing, batch: Batch, seq: int) -> None:
    (message,) = batch
    kind, _, name = message.topic.partition("/")
    assert kind == matchers.name
    matchers.apply(name, message.payload, seq, seq)


def test_matchers_join_and_leave_by_entries() -> None:
    matchers, seqs = MatcherRing(), list[int]()
    matchers.changed = seqs.append
    assert matchers.owner(bytes(12)) is None
    take(matchers, join("one", start("one")), 1)
    assert matchers.owner(bytes(12)) == node_id("one")
    take(matchers, join("two", start("two")), 2)
    owners = {matchers.owner(n.to_bytes(12)) for n in range(100)}
    assert owners == {node_id("one"), node_id("two")}
    take(matchers, leave("one"), 3)
    assert {matchers.owner(n.to_bytes(12)) for n in range(100)} == {node_id("two")}
    assert seqs == [1, 2, 3]


def test_a_snapshot_brings_the_ring_back() -> None:
    one, other = MatcherRing(), MatcherRing()
    for name in ("a", "b", "c"):
        take(one, join(name, start(name)), 1)
    other.load(one.dump())
    assert other.ring.starts == one.ring.starts


@pytest.mark.parametrize("payload", [b"x", b'{"start": "zz"}', b'{"start": "00"}'])
def test_an_entry_that_says_nothing_is_passed_over(payload: bytes) -> None:
    matchers = MatcherRing()
    matchers.apply("one", payload, 1, 1)
    assert not len(matchers.ring)


def test_a_ring_has_so_many_whoever_wrote_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.hub.routing.matcher_ring.MAX_MATCHERS", 2)
    matchers = MatcherRing()
    for seq, name in enumerate(("one", "two", "three", "one"), 1):
        take(matchers, join(name, start(name)), seq)
    assert matchers.ring.matchers == ("one", "two")


def test_who_is_heard_no_more_is_gone() -> None:
    silence = SilentMatchers("me", 30.0)
    silence.heard("one", 100.0)
    ring = ("me", "one")
    assert silence.gone(ring, 129.9, all_here=False) == []
    assert "one" in silence
    assert silence.gone(ring, 130.0, all_here=True) == ["one"], (
        "also if its address answers under another name"
    )
    assert "one" not in silence


def test_who_is_on_no_ring_is_only_forgotten() -> None:
    silence = SilentMatchers("me", 30.0)
    silence.heard("one", 100.0)
    assert silence.gone(("me",), 130.0, all_here=False) == []
    assert "one" not in silence


def test_who_was_never_heard_has_as_long() -> None:
    silence = SilentMatchers("me", 30.0)
    assert silence.gone(("me", "one"), 100.0, all_here=False) == []
    assert silence.gone(("me", "one", "two"), 110.0, all_here=False) == []
    assert silence.gone(("me", "one", "two"), 130.0, all_here=False) == ["one"]
    assert silence.gone(("me", "two"), 140.0, all_here=False) == ["two"]
    assert silence.gone(("me",), 1000.0, all_here=False) == [], "never itself"


def test_where_all_that_are_dialled_are_here_others_are_left_alone() -> None:
    silence = SilentMatchers("me", 30.0)
    for now in (100.0, 200.0, 300.0):
        silence.heard("one", now)
        assert silence.gone(("me", "one", "elsewhere"), now, all_here=True) == []
    silence.heard("one", 301.0)
    assert silence.gone(("me", "one", "elsewhere"), 301.0, all_here=False) == ["elsewhere"]


def test_who_joins_again_unheard_is_left_alone() -> None:
    silence = SilentMatchers("me", 30.0)
    ring = ("me", "elsewhere")
    gone = [silence.gone(ring, float(now), all_here=False) for now in range(0, 300, 10)]
    assert gone == [[], [], [], ["elsewhere"], *[[]] * 26]


def test_one_that_could_not_be_taken_off_is_judged_anew() -> None:
    silence = SilentMatchers("me", 30.0)
    ring = ("me", "one")
    silence.gone(ring, 0.0, all_here=False)
    assert silence.gone(ring, 30.0, all_here=False) == ["one"]
    silence.stayed("one")
    assert silence.gone(ring, 31.0, all_here=False) == []
    assert silence.gone(ring, 61.0, all_here=False) == ["one"]


def test_who_is_heard_after_all_is_judged_by_that() -> None:
    silence = SilentMatchers("me", 30.0)
    ring = ("me", "late")
    assert silence.gone(ring, 0.0, all_here=False) == []
    silence.heard("late", 29.0)
    assert silence.gone(ring, 30.0, all_here=False) == []
    assert silence.gone(ring, 59.0, all_here=False) == ["late"]


def test_it_keeps_no_more_names_than_a_ring_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPARED", 4)
    silence = SilentMatchers("me", 1.0)
    for now in range(0, 100, 2):
        ring = (f"one {now}",)
        silence.gone(ring, float(now), all_here=False)
        assert silence.gone(ring, now + 1.0, all_here=False) == list(ring)
    assert (len(silence._spared), len(silence._unheard)) == (4, 0)
