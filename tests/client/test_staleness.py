"""When what comes again is no coincidence any more."""

from __future__ import annotations

from headrace.client.staleness import Staleness


def test_some_old_messages_over_ten_seconds_are_no_coincidence() -> None:
    stale = Staleness()
    assert [stale.old(now) for now in (0.0, 1.0, 9.9, 10.0)] == [False, False, False, True]


def test_two_are_not_enough_and_many_at_once_neither() -> None:
    assert not any(map(Staleness().old, (0.0, 30.0)))
    assert not any(map(Staleness().old, [5.0] * 1000))


def test_a_new_message_or_a_long_pause_explains_it() -> None:
    stale = Staleness()
    assert not any(map(stale.old, (0.0, 5.0, 9.0)))
    stale.progress()
    assert not any(map(stale.old, (10.0, 11.0, 19.0)))
    assert not any(map(stale.old, (80.0, 81.0, 82.0)))
    assert stale.old(90.0)
