"""Peers take turns: nobody waits for more than a few frames of each other, whatever each has sent."""

from __future__ import annotations

from collections.abc import Callable

from headrace.tube.fair_turns import AT_ONCE, FEW_READS, IN_A_TURN, READERS, TURN_SECONDS, FairTurns


class Scene:
    """Turns that begin when a test says so, and a clock that only work moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = FairTurns(lambda: self.now)
        self.due: list[Callable[[], None]] = []
        self.turns.call_soon = self.due.append
        self.done: list[str] = []

    def peer(self, name: str, origin: str, goes: int, seconds: float) -> None:
        """Let a peer wait in line with work for so many goes, each of which takes so long."""

        def go_on() -> None:
            self.now += seconds
            self.done.append(name)
            if (left := goes - self.done.count(name)) > 0:
                assert left < goes
                self.turns.wait(origin, go_on)

        self.turns.wait(origin, go_on)

    def turn(self) -> list[str]:
        """Let a turn begin; return who went on in it."""
        assert len(self.due) == 1
        self.done.clear()
        self.due.pop()()
        return self.done


def test_a_turn_ends_when_its_time_is_over() -> None:
    scene = Scene()
    for number in range(10):
        scene.peer(f"{number}", f"10.0.0.{number}", 1, TURN_SECONDS / 4)
    assert scene.turn() == ["0", "1", "2", "3"]
    assert scene.turn() == ["4", "5", "6", "7"]
    assert scene.turn() == ["8", "9"]
    assert not scene.due


def test_what_was_spent_is_forgotten_with_the_turn() -> None:
    scene = Scene()
    scene.turns.spend(IN_A_TURN - 1)
    scene.turns.spend(1)
    assert scene.turns.left == 0
    scene.turn()
    assert scene.turns.left == IN_A_TURN


def test_who_costs_more_than_a_turn_goes_on_all_the_same() -> None:
    scene = Scene()
    scene.peer("a", "10.0.0.1", 1, 1.0)
    scene.peer("b", "10.0.0.2", 1, 1.0)
    assert scene.turn() == ["a"]
    assert scene.turn() == ["b"]


def test_an_address_with_many_connections_waits_for_itself() -> None:
    scene = Scene()
    for number in range(100):
        scene.peer(f"greedy {number}", "10.0.0.1", 3, TURN_SECONDS / 4)
    scene.peer("other", "10.0.0.2", 2, TURN_SECONDS / 4)
    assert scene.turn() == ["greedy 0", "other", "greedy 1", "other"]


def test_a_read_takes_some_frames_and_one_when_the_turn_has_brought_enough() -> None:
    scene = Scene()
    turns = scene.turns
    assert (turns.at_once(), turns.at_once(5)) == (AT_ONCE, 5)
    turns.left -= IN_A_TURN - 3
    assert turns.at_once() == 3
    turns.left -= 30
    assert turns.at_once() == 1
    assert scene.turn() == []
    assert turns.at_once() == AT_ONCE


def test_in_a_turn_that_took_long_enough_what_is_read_waits() -> None:
    scene = Scene()
    turns = scene.turns
    turns.reads = FEW_READS
    assert not turns.over  # It begins with this read.
    scene.now += TURN_SECONDS / 2
    assert not turns.over
    scene.now += TURN_SECONDS / 2
    assert (turns.over, turns.left) == (True, 0)
    scene.turn()
    assert (turns.over, turns.left) == (False, IN_A_TURN)


def test_who_comes_now_and_then_asks_for_no_turn() -> None:
    scene = Scene()
    scene.turns.reads = FEW_READS - 1
    assert not scene.turns.over
    assert not scene.due


def test_few_are_read_from_again_in_one_turn() -> None:
    scene = Scene()

    def read_again() -> bool:
        scene.done.append("reads")
        return True

    for _ in range(READERS + 1):
        scene.turns.wait("10.0.0.1", read_again)
    assert len(scene.turn()) == READERS
    assert len(scene.turn()) == 1
