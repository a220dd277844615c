"""Publishers' numbers against a plain model."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.publishing import publisher_numbers
from headrace.hub.publishing.publisher_numbers import MAX_SPANS, NOBODY, PublisherNumbers, opening
from headrace.message import Batch, Run, merge


def batches_of(steps: list[tuple[int, int, int]]) -> list[Batch]:
    """Batches by publisher ``p<n>``: each step skips some numbers and then numbers some messages."""
    seq, numbers, made = 1, {}, []
    for who, skip, count in steps:
        number = numbers.get(who, 0) + skip
        made.append(Batch(Run.of([b"x"] * count), first=seq, publisher=f"p{who}", number=number))
        seq += count
        numbers[who] = number + count
    return made


steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=20)


@given(steps)
def test_every_number_in_the_log_is_known_at_its_place(given_steps: list[tuple[int, int, int]]) -> None:
    publishers, places = PublisherNumbers(), {}
    for batch in batches_of(given_steps):
        publishers.follow(batch)
        assert batch.number is not None
        places.update({(batch.publisher, batch.number + i): batch.first + i for i in range(len(batch))})
    for (name, number), seq in places.items():
        assert publishers.places(name, number, number + 1) == [(number, number + 1, seq, 0)]
    for name in {name for name, _ in places}:
        newest = max(number for who, number in places if who == name)
        assert publishers.newest(name) == newest
        assert publishers.places(name, newest, newest + 2) is None


@given(steps)
def test_rows_and_snapshots_give_the_same_state(given_steps: list[tuple[int, int, int]]) -> None:
    made = batches_of(given_steps)
    plain, rows, restored = PublisherNumbers(), PublisherNumbers(), PublisherNumbers()
    for batch in made:
        plain.follow(batch)
    rows.follow(Batch.over(merge(made)))
    restored.load(plain.dump())
    assert plain.dump() == restored.dump()
    for batch in made:
        assert batch.number is not None
        wanted = plain.places(batch.publisher, batch.number, batch.number + len(batch))
        assert wanted is not None
        assert rows.places(batch.publisher, batch.number, batch.number + len(batch)) == wanted


def test_a_mark_is_known_by_the_message_that_it_stands_after() -> None:
    """Several may stand after one message, and the numbers of the next go on."""
    publishers = PublisherNumbers()
    places = [0, 0, 1, 2, 2, 7, 7, 8]
    for number, seq in enumerate(places):
        publishers.follow(
            Batch(Run.one(b""), first=seq, op=10 + number, origin="log", publisher="f", number=number)
        )
    publishers.follow(
        Batch(Run.of([b""] * 2), first=8, op=30, origin="log", publisher="f", number=len(places))
    )
    again = PublisherNumbers()
    again.load(publishers.dump())
    for each in (publishers, again):
        for number, seq in enumerate([*places, 8, 8]):
            op = 10 + number if number < len(places) else 22 + number
            assert each.places("f", number, number + 1) == [(number, number + 1, seq, op)]
        assert each.places("f", 99, 100) is each.places("nobody", 0, 1) is None
        assert each.newest("f") == len(places) + 1


def test_messages_without_numbers_or_names_are_not_noted() -> None:
    publishers = PublisherNumbers()
    publishers.follow(Batch(Run.of([b"x"]), first=1, publisher="a"))
    publishers.follow(Batch(Run.of([b"x"]), first=2, number=5))
    assert publishers.newest("a") is None


def test_old_spans_are_forgotten_and_known_to_be() -> None:
    publishers = PublisherNumbers()
    for turn in range(MAX_SPANS + 10):
        # Every other sequence number is somebody else's, so that spans do not join.
        publishers.follow(Batch(Run.one(b"x"), first=1 + 2 * turn, publisher="a", number=turn))
    assert publishers.places("a", 0, 1) is None
    assert publishers.oldest("a") == 10
    assert publishers.places("a", MAX_SPANS + 9, MAX_SPANS + 10) is not None


def test_a_name_is_opened_once_for_each_holder() -> None:
    publishers = PublisherNumbers()
    for op, holder in enumerate(["one", "one", "two", "one"], 5):
        batch = opening("p", holder, f"client of {holder}", "somebody").numbered(op, 0, 1000 + op, 1)
        publishers.apply("p", batch.run[0], 0, op)
        publishers.follow(batch)
    assert publishers.holder("p") == (8, "one", "client of one", "somebody", 1008)
    again = PublisherNumbers()
    again.load(publishers.dump())
    assert again.holder("p") == publishers.holder("p")
    assert (again.newest("p"), again.oldest("p"), again.remembers("p")) == (None, None, True)
    assert again.holder("q") == NOBODY


def test_the_one_silent_for_longest_is_forgotten_and_up_to_where_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_numbers, "MAX_PUBLISHERS", 3)
    publishers = PublisherNumbers()
    for op, name in enumerate("abcadb", 1):
        publishers.follow(Batch(Run.one(b"x"), first=op, op=op, publisher=name, number=op))
    assert [publishers.remembers(name) for name in "abcd"] == [True, True, False, True]
    assert publishers.forgotten == 3
    again = PublisherNumbers()
    again.load(publishers.dump())
    assert again.forgotten == 3
    monkeypatch.setattr(publisher_numbers, "MAX_ALL_SPANS", 4)
    for each in (publishers, again):
        each.follow(Batch(Run.one(b"x"), first=9, op=9, publisher="d", number=9))
        each.follow(Batch(Run.one(b"x"), first=11, op=11, publisher="d", number=11))
    assert publishers.dump() == again.dump()
    # Too many spans: those silent for longest lose their oldest, and nobody is forgotten for it.
    assert [publishers.remembers(name) for name in "abcd"] == [True, True, False, True]
    assert [publishers.oldest(name) for name in "abd"] == [4, 6, 9]
    assert [publishers.newest(name) for name in "abd"] == [4, 6, 11]
    assert publishers.forgotten == 3


def test_names_that_are_only_opened_push_out_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_numbers, "MAX_PUBLISHERS", 6)
    monkeypatch.setattr(publisher_numbers, "MAX_UNUSED", 2)
    publishers, again = PublisherNumbers(), PublisherNumbers()
    op = 0

    def opens(each: PublisherNumbers, name: str) -> None:
        each.apply(name, opening(name, "h", "", "").run[0], 0, op)

    for op, name in enumerate("abc", 1):
        opens(publishers, name)
        publishers.follow(Batch(Run.one(b"x"), first=op, op=10 + op, publisher=name, number=0))
    for op in range(20, 23):
        opens(publishers, f"n{op}")
    again.load(publishers.dump())
    for op in range(23, 60):
        for each in (publishers, again):
            opens(each, f"n{op}")
    assert publishers.dump() == again.dump()
    assert all(publishers.remembers(name) for name in ("a", "b", "c", "n57", "n58", "n59"))
    assert publishers.forgotten == 0  # nothing that was published


def test_numbers_that_go_back_leave_the_newest_alone() -> None:
    publishers = PublisherNumbers()
    publishers.follow(Batch(Run.of([b"x"] * 5), first=1, publisher="a", number=10))
    publishers.follow(Batch(Run.of([b"x"]), first=6, publisher="a", number=3))
    assert publishers.newest("a") == 14


def test_a_batch_of_rows_without_numbers_is_passed_over() -> None:
    publishers = PublisherNumbers()
    rows = Batch(Run.of([b"x", b"y"]), first=1, publisher="a").to_arrow()
    assert isinstance(rows, pa.RecordBatch)
    publishers.follow(Batch.over(rows))
    assert publishers.newest("a") is None
