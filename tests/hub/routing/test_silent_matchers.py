"""Who is silent goes off the ring, and who was never heard goes once."""

from __future__ import annotations

import pytest

from headrace.hub.routing import silent_matchers as module
from headrace.hub.routing.silent_matchers import Silence


def test_who_is_heard_no_more_is_gone() -> None:
    silence = Silence("me", 30.0)
    silence.heard("one", 100.0)
    ring = ("me", "one")
    assert silence.gone(ring, 129.9, all_here=False) == []
    assert "one" in silence
    assert silence.gone(ring, 130.0, all_here=True) == ["one"], (
        "also if its address answers under another name"
    )
    assert "one" not in silence


def test_who_is_on_no_ring_is_only_forgotten() -> None:
    silence = Silence("me", 30.0)
    silence.heard("one", 100.0)
    assert silence.gone(("me",), 130.0, all_here=False) == []
    assert "one" not in silence


def test_who_was_never_heard_has_as_long() -> None:
    silence = Silence("me", 30.0)
    assert silence.gone(("me", "one"), 100.0, all_here=False) == []
    assert silence.gone(("me", "one", "two"), 110.0, all_here=False) == []
    assert silence.gone(("me", "one", "two"), 130.0, all_here=False) == ["one"]
    assert silence.gone(("me", "two"), 140.0, all_here=False) == ["two"]
    assert silence.gone(("me",), 1000.0, all_here=False) == [], "never itself"


def test_where_all_that_are_dialled_are_here_others_are_left_alone() -> None:
    silence = Silence("me", 30.0)
    for now in (100.0, 200.0, 300.0):
        silence.heard("one", now)
        assert silence.gone(("me", "one", "elsewhere"), now, all_here=True) == []
    silence.heard("one", 301.0)
    assert silence.gone(("me", "one", "elsewhere"), 301.0, all_here=False) == ["elsewhere"]


def test_who_joins_again_unheard_is_left_alone() -> None:
    silence = Silence("me", 30.0)
    ring = ("me", "elsewhere")
    gone = [silence.gone(ring, float(now), all_here=False) for now in range(0, 300, 10)]
    assert gone == [[], [], [], ["elsewhere"], *[[]] * 26]


def test_one_that_could_not_be_taken_off_is_judged_anew() -> None:
    silence = Silence("me", 30.0)
    ring = ("me", "one")
    silence.gone(ring, 0.0, all_here=False)
    assert silence.gone(ring, 30.0, all_here=False) == ["one"]
    silence.stayed("one")
    assert silence.gone(ring, 31.0, all_here=False) == []
    assert silence.gone(ring, 61.0, all_here=False) == ["one"]


def test_who_is_heard_after_all_is_judged_by_that() -> None:
    silence = Silence("me", 30.0)
    ring = ("me", "late")
    assert silence.gone(ring, 0.0, all_here=False) == []
    silence.heard("late", 29.0)
    assert silence.gone(ring, 30.0, all_here=False) == []
    assert silence.gone(ring, 59.0, all_here=False) == ["late"]


def test_it_keeps_no_more_names_than_a_ring_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPARED", 4)
    silence = Silence("me", 1.0)
    for now in range(0, 100, 2):
        ring = (f"one {now}",)
        silence.gone(ring, float(now), all_here=False)
        assert silence.gone(ring, now + 1.0, all_here=False) == list(ring)
    assert (len(silence._spared), len(silence._unheard)) == (4, 0)
