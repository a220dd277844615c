"""The checker finds what is wrong with a history: each test breaks a sound one in one way."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.checker import violations
from tests.faults.history import History

READERS = ("link", "fyrehose", "log")


def history(
    log: list[bytes] | None = None,
    *,
    tail: list[int] | None = None,
    head: int = 6,
    readers: tuple[str, ...] = READERS,
) -> History:
    """Two publishers, whose messages are numbers 1 to 5 and one that was not answered; what all read in the end."""
    told = History()
    first = told.invoked("a", [b"a1", b"a2"])
    second = told.invoked("b", [b"b1"])
    told.acknowledged(first, 1, 2, "hub")
    third = told.invoked("a", [b"a3"])
    told.acknowledged(second, 3, 3, "hub")
    told.acknowledged(third, 4, 4, "hub")
    fourth = told.invoked("b", [b"b2"])
    told.acknowledged(fourth, 5, 5, "hub")
    told.failed(told.invoked("a", [b"a4"]), "unreachable")
    told.told("watch", "hub", 5, since=len(told))
    everything = [b"a1", b"a2", b"b1", b"a3", b"b2", b"a4"] if log is None else log
    for seq in tail or []:
        told.saw("tail", seq, everything[seq - 1])
    for reader in readers:
        for seq, payload in enumerate(everything, 1):
            told.saw(reader, seq, payload)
        told.read_all(reader, 1, len(everything))
    told.told("watch", "hub", head, since=len(told))
    return told


def rules(told: History) -> set[str]:
    return {violation.rule for violation in violations(told)}


def test_a_sound_history_breaks_no_rule() -> None:
    assert list(violations(history(tail=[2, 3, 4, 5, 6]))) == []


def test_what_was_not_acknowledged_may_be_missing() -> None:
    assert rules(history([b"a1", b"a2", b"b1", b"a3", b"b2"], head=5)) == set()


def test_a_lost_message_is_found() -> None:
    assert rules(history([b"a1", b"a2", b"b1", b"a3"])) == {"lost"}


def test_a_doubled_message_is_found() -> None:
    assert rules(history([b"a1", b"a2", b"b1", b"a3", b"b2", b"a4", b"b2"])) == {"doubled"}


def test_an_unacknowledged_message_that_is_there_twice_is_found() -> None:
    assert rules(history([b"a1", b"a2", b"b1", b"a3", b"b2", b"a4", b"a4"])) == {"doubled"}


def test_changed_bytes_are_found() -> None:
    assert rules(history([b"a1", b"a2", b"B1", b"a3", b"b2"])) == {"invented", "other message"}


def test_another_message_under_an_acknowledged_number_is_found() -> None:
    assert "other message" in rules(history([b"a1", b"a2", b"a3", b"b1", b"b2"]))


def test_copies_that_differ_are_found() -> None:
    told = history(readers=("one node",))
    for seq, payload in enumerate([b"a1", b"a2", b"b1", b"a3", b"a4", b"b2"], 1):
        told.saw("another node", seq, payload)
    assert "other message" in rules(told)


def test_messages_out_of_order_are_found() -> None:
    told = History()
    for payload in (b"1", b"2"):
        told.failed(told.invoked("a", [payload]), "unreachable")
    told.saw("log", 1, b"2")
    told.saw("log", 2, b"1")
    assert rules(told) == {"order"}


@pytest.mark.parametrize("numbers", [[1, 2, 4], [1, 2, 2, 3], [3, 4, 2]], ids=["hole", "repeat", "back"])
def test_a_reader_whose_numbers_are_not_whole_is_found(numbers: list[int]) -> None:
    assert rules(history(tail=numbers)) == {"hole"}


def test_a_consumer_may_be_given_a_message_again_but_misses_none() -> None:
    told = history()
    for seq, payload in [(1, b"a1"), (3, b"b1"), (2, b"a2"), (3, b"b1"), (4, b"a3"), (5, b"b2"), (6, b"a4")]:
        told.saw("consumer", seq, payload, whole=False)
    told.read_all("consumer", 1, 6)
    assert rules(told) == set()
    told.read_all("consumer", 1, 7)
    assert rules(told) == {"hole"}


def test_a_hole_in_what_is_read_at_the_end_is_found() -> None:
    told = history()
    told.saw("late", 6, b"a4")
    told.read_all("late", 5, 6)
    assert rules(told) == {"hole", "lost"}


def test_an_answer_with_numbers_of_somebody_else_is_found() -> None:
    told = history()
    told.acknowledged(told.invoked("c", [b"c1"]), 3, 3)
    assert "other message" in rules(told)


def test_an_answer_with_too_few_numbers_is_found() -> None:
    told = history()
    told.acknowledged(told.invoked("c", [b"c1", b"c2"]), 7, 7)
    assert rules(told) == {"other message"}


def test_a_repeat_whose_numbers_are_forgotten_is_there_all_the_same() -> None:
    told = History()
    told.acknowledged(told.invoked("a", [b"1"]), None, None)
    told.read_all("log", 1, 0)
    assert rules(told) == {"lost"}


def test_something_refused_that_is_there_is_found() -> None:
    told = History()
    told.failed(told.invoked("a", [b"1"]), "fenced", refused=True)
    assert rules(told) == set()
    told.saw("log", 1, b"1")
    assert rules(told) == {"refused"}


def test_a_head_that_falls_is_found() -> None:
    assert rules(history(head=4)) == {"went back"}


def test_a_head_before_what_was_acknowledged_is_found() -> None:
    told = History()
    told.acknowledged(told.invoked("a", [b"1"]), 1, 1, "hub")
    told.told("watch", "hub", 0, since=len(told))
    assert rules(told) == {"went back"}
    # One that was asked before may be answered after.
    earlier = History(told.events[:2])
    earlier.told("watch", "hub", 0, since=1)
    assert rules(earlier) == set()


def test_a_power_failure_may_take_the_end_and_nothing_else() -> None:
    told = history(readers=())
    told.forgot(3)
    # Number 4 is another message now, and the one that had it is tried again.
    told.failed(told.invoked("b", [b"b3"]), "unreachable")
    for seq, payload in enumerate([b"a1", b"a2", b"b1", b"a4", b"b3"], 1):
        told.saw("log", seq, payload)
    told.read_all("log", 1, 5)
    assert rules(told) == set()
    told.saw("tail", 3, b"a4")
    assert rules(told) == {"other message", "doubled"}


def test_a_power_failure_that_takes_more_is_found() -> None:
    told = history(readers=())
    told.forgot(3)
    for seq, payload in enumerate([b"a1", b"a2"], 1):
        told.saw("log", seq, payload)
    told.read_all("log", 1, 2)
    assert rules(told) == {"lost"}


def test_a_history_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    told = history(tail=[1, 2])
    told.forgot(9)
    told.save(tmp_path / "history.jsonl")
    assert History.load(tmp_path / "history.jsonl").events == told.events
