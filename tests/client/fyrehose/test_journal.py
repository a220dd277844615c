from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.fyrehose.journal import (
    Journal,
    JournalBounds,
    JournalEffect,
    SendDelivers,
    Unanswered,
    UnansweredReason,
)
from headrace.client.fyrehose.reorder_buffer import ReorderBuffer
from headrace.hub.backbone.pacing import Pace
from headrace.message import Run
from headrace.wire.fyrehose.stream import Forward

DAVE = ("10.0.1.4", 5000)
FAST = Pace(1e6, 1e9, 100_000, 100_000_000)


def run(first: int, last: int) -> Run:
    return Run.of(b"%d" % seq for seq in range(first, last + 1))


def forward(first: int, last: int) -> Forward:
    return Forward(*DAVE, first, last)


def make(early: ReorderBuffer | None = None, **bounds: object) -> Journal:
    settings = {"pace": FAST} | bounds
    return Journal(JournalBounds(**settings), early or ReorderBuffer(100, 100_000), 0)  # type: ignore[arg-type]


def sent(effects: list[JournalEffect]) -> list[int]:
    """The numbers that are sent, each with the right bytes."""
    seqs: list[int] = []
    for effect in effects:
        assert isinstance(effect, SendDelivers)
        assert effect.to == DAVE
        last = effect.first + len(effect.run) - 1
        assert effect.run == run(effect.first, last)
        seqs += range(effect.first, last + 1)
    return seqs


def test_what_is_stored_of_a_range_is_sent_in_bulk() -> None:
    journal = make()
    journal.store(10, run(10, 19))
    journal.store(25, run(25, 29))
    effects = journal.forward(forward(15, 27), 0, from_backbone=True)
    assert effects == [SendDelivers(DAVE, 15, run(15, 19)), SendDelivers(DAVE, 25, run(25, 27))]
    assert journal.next_timer() is None


def test_nothing_stored_is_nothing_sent() -> None:
    journal = make()
    assert journal.forward(forward(1, 9), 0, from_backbone=True) == []
    journal.store(10, run(10, 19))
    assert journal.forward(forward(1, 9), 0, from_backbone=True) == []
    assert journal.forward(forward(20, 30), 0, from_backbone=True) == []


def test_only_the_backbone_is_answered() -> None:
    journal = make()
    journal.store(1, run(1, 9))
    frame = forward(1, 9)
    assert journal.forward(frame, 0, from_backbone=False) == [
        Unanswered(frame, UnansweredReason.NOT_THE_BACKBONE)
    ]


def test_backwards_is_not_answered() -> None:
    journal = make()
    journal.store(1, run(1, 9))
    frame = forward(5, 4)
    assert journal.forward(frame, 0, from_backbone=True) == [Unanswered(frame, UnansweredReason.BACKWARDS)]


def test_early_messages_are_stored_too() -> None:
    early = ReorderBuffer(100, 100_000)
    journal = make(early)
    journal.store(1, run(1, 3))
    early.add(7, run(7, 9))
    assert sent(journal.forward(forward(2, 8), 0, from_backbone=True)) == [2, 3, 7, 8]
    assert 3 in journal
    assert 4 not in journal
    assert 9 in journal


def test_at_most_so_many_messages_for_one_forward() -> None:
    journal = make()
    journal.store(1, run(1, 3_000))
    assert sent(journal.forward(forward(5, 3_000), 0, from_backbone=True)) == list(range(5, 5 + 1_024))


def test_answers_are_paced_in_datagrams() -> None:
    journal = make(pace=Pace(100, 1e9, 4, 100_000))
    journal.store(1, run(1, 10))
    assert sent(journal.forward(forward(1, 10), 0, from_backbone=True)) == [1, 2, 3, 4]
    assert journal.next_timer() == pytest.approx(0.01)
    assert journal.tick(0) == []
    assert sent(journal.tick(0.02)) == [5, 6]
    assert sent(journal.tick(1)) == [7, 8, 9, 10]
    assert journal.next_timer() is None


def test_answers_are_paced_in_bytes() -> None:
    journal = make(pace=Pace(1e6, 1_000, 1_000, 35))
    journal.store(1, run(1, 9))
    assert sent(journal.forward(forward(1, 9), 0, from_backbone=True)) == [1, 2, 3, 4]
    assert journal.tick(0) == []
    assert sent(journal.tick(1)) == [5, 6, 7, 8]


def test_waiting_answers_are_bounded() -> None:
    journal = make(pace=Pace(1, 1e9, 1, 100_000), answers=2)
    journal.store(1, run(1, 9))
    for _ in range(2):
        journal.forward(forward(1, 9), 0, from_backbone=True)
    frame = forward(1, 9)
    assert journal.forward(frame, 0, from_backbone=True) == [Unanswered(frame, UnansweredReason.TOO_MANY)]


def test_what_is_dropped_while_an_answer_waits_is_passed_over() -> None:
    journal = make(pace=Pace(1, 1e9, 1, 100_000), messages=10)
    journal.store(1, run(1, 5))
    journal.store(6, run(6, 10))
    assert sent(journal.forward(forward(1, 10), 0, from_backbone=True)) == [1]
    journal.store(11, run(11, 15))
    assert sent(journal.tick(1)) == [6]
    journal.store(16, run(16, 25))
    assert journal.tick(2) == []
    assert journal.next_timer() is None


def test_a_receive_buffer_is_not_kept() -> None:
    journal = make()
    journal.store(1, Run.of([b"x" * 1_000] * 60).slice(3, 4))
    (effect,) = journal.forward(forward(1, 1), 0, from_backbone=True)
    assert isinstance(effect, SendDelivers)
    assert len(effect.run.data) == 1_000


def test_a_run_larger_than_the_journal_leaves_it_empty() -> None:
    journal = make(messages=5)
    journal.store(1, run(1, 9))
    assert (journal.count, journal.size) == (0, 0)
    assert 5 not in journal


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=40), st.integers(1, 20), st.data())
def test_it_holds_the_newest_and_no_more_than_it_may(
    stored: list[tuple[int, int]], most: int, data: st.DataObject
) -> None:
    journal = make(messages=most, size=4_000)
    seq = 1
    kept: list[list[int]] = []
    for lost, count in stored:
        first = seq + lost
        seq = first + count
        journal.store(first, run(first, seq - 1))
        kept.append(list(range(first, seq)))
        assert journal.count <= most
        assert journal.size <= 4_000
        while sum(map(len, kept)) > journal.count:
            kept.pop(0)
        assert sum(map(len, kept)) == journal.count
    first = data.draw(st.integers(1, seq))
    last = data.draw(st.integers(first, seq))
    expected = [each for stretch in kept for each in stretch if first <= each <= last]
    assert sent(journal.forward(forward(first, last), 0, from_backbone=True)) == expected
