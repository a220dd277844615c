from __future__ import annotations

import pytest

from headrace.hub.access import login_attempts
from headrace.hub.access.login_attempts import (
    FORGET_SECONDS,
    FREE,
    FREE_OF_ADDRESS,
    LONGEST_PAUSE,
    LoginAttempts,
    place_of,
)

HERE, THERE = "10.0.0.1", "10.0.0.2"


def test_some_failures_are_free_then_pauses_double_to_the_longest() -> None:
    attempts, now, pauses = LoginAttempts(), 0.0, []
    for _ in range(FREE + 8):
        attempts.failed("alice", HERE, now)
        pauses.append(attempts.pause("alice", HERE, now))
        now += pauses[-1]
    assert pauses[: FREE - 1] == [0.0] * (FREE - 1)
    assert pauses[FREE - 1 : FREE + 3] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE


def test_it_is_for_one_identity_at_one_address() -> None:
    attempts = LoginAttempts()
    for _ in range(FREE):
        attempts.failed("alice", HERE, 0.0)
    assert attempts.pause("alice", HERE, 0.0)
    assert not attempts.pause("alice", THERE, 0.0)
    assert not attempts.pause("bob", HERE, 0.0)


def test_who_fails_under_many_names_makes_its_address_wait_but_not_those_known_there() -> None:
    attempts = LoginAttempts()
    attempts.succeeded("bob", HERE)
    for number in range(FREE_OF_ADDRESS):
        attempts.failed(f"guess {number}", HERE, 0.0)
    assert attempts.pause("another guess", HERE, 0.0)
    assert not attempts.pause("bob", HERE, 0.0)
    assert not attempts.pause("another guess", THERE, 0.0)


def test_success_and_time_forgive() -> None:
    attempts = LoginAttempts()
    for _ in range(FREE - 1):
        attempts.failed("alice", HERE, 0.0)
    attempts.succeeded("alice", HERE)
    attempts.failed("alice", HERE, 0.0)
    assert not attempts.pause("alice", HERE, 0.0)
    for _ in range(FREE):
        attempts.failed("carol", HERE, 0.0)
    attempts.failed("carol", HERE, FORGET_SECONDS + 1)
    assert not attempts.pause("carol", HERE, FORGET_SECONDS + 1)


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    attempts = LoginAttempts()
    for _ in range(FREE + 20):
        attempts.failed("alice", HERE, 1e9)
    assert attempts.pause("alice", HERE, 0.0) == LONGEST_PAUSE


def test_memory_is_bounded_and_the_address_that_fills_it_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_attempts, "MAX_KEPT", 10)
    attempts = LoginAttempts()
    for number in range(1000):
        attempts.failed(f"guess {number}", HERE, 0.0)
        attempts.succeeded(f"client {number}", THERE)
    assert len(attempts) == 10
    assert attempts.pause("anyone", HERE, 0.0) == LONGEST_PAUSE


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_what_is_one_address(address: str, place: str) -> None:
    assert place_of(address) == place
