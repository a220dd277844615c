from __future__ import annotations

import resource

import pytest

from headrace.net.server.accepting.admission import Admission, room_for


def test_so_many_of_one_address() -> None:
    connections = Admission(per_address=2, total=10)
    assert [connections.admit("a"), connections.admit("a")] == [None, None]
    assert connections.admit("a") == "2 connections from a are open (limits.connections_per_address)"
    assert connections.admit("b") is None
    assert len(connections) == 3


def test_each_door_has_its_own_slots() -> None:
    connections = Admission(per_address=2, total=10)
    for door in ("spp", "sdk"):
        assert [connections.admit("a", door), connections.admit("a", door)] == [None, None]
    refusal = connections.admit("a", "spp")
    assert refusal == "2 connections from a are open at spp (limits.connections_per_address)"
    connections.release("a", "spp")
    assert connections.admit("a", "spp") is None


def test_an_address_gets_half_of_all() -> None:
    connections = Admission(per_address=2, total=10)
    taken = [connections.admit("a", str(number)) for number in range(10)]
    assert taken[:5] == [None] * 5
    assert taken[5] == "5 connections from a are open: half of limits.connections"
    assert connections.admit("b") is None
    for number in range(5):
        connections.release("a", str(number))
    connections.release("b")
    assert not connections._of_address


def test_so_many_in_all() -> None:
    connections = Admission(per_address=2, total=3)
    for address in "abc":
        assert connections.admit(address) is None
    assert connections.admit("d") == "3 connections are open (limits.connections)"


def test_who_goes_makes_room() -> None:
    connections = Admission(per_address=1, total=2)
    connections.admit("a")
    connections.admit("b")
    connections.release("a")
    assert len(connections) == 1
    assert connections.admit("a") is None
    assert connections.admit("a") is not None


def test_a_refusal_takes_no_room() -> None:
    connections = Admission(per_address=1, total=5)
    connections.admit("a")
    for _ in range(10):
        assert connections.admit("a") is not None
    assert len(connections) == 1
    connections.release("a")
    assert len(connections) == 0


def test_addresses_that_have_gone_are_forgotten() -> None:
    connections = Admission(per_address=1, total=5)
    for number in range(1000):
        connections.admit(str(number))
        connections.release(str(number))
    assert not connections._open


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "room", "raised"),
    [
        (20_000, 20_000, 10_000, 10_000, None),
        (1024, 20_000, 10_000, 10_000, 10_256),
        (1024, resource.RLIM_INFINITY, 10_000, 10_000, 10_256),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10_000, 10_000, None),
        (1024, 4096, 10_000, 3840, 4096),
        (64, 64, 10_000, 32, 64),
    ],
)
def test_connections_leave_files_for_the_log(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: int, room: int, raised: int | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert room_for(asked) == room
    assert limits == ([] if raised is None else [(raised, hard)])


def test_a_limit_that_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: int, _limit: tuple[int, int]) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert room_for(10_000) == 768
