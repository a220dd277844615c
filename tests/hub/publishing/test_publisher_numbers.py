"""Publishers' numbers against a plain model."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.publishing.publisher_numbers import MAX_SPANS, PublisherNumbers
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
        assert publishers.known(name, number, 1) == (1, seq, seq)
    for name in {name for name, _ in places}:
        newest = max(number for who, number in places if who == name)
        assert publishers.newest(name) == newest
        assert publishers.known(name, newest + 1, 3).repeated == 0
        assert publishers.known(name, newest, 3).repeated == 1


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
        wanted = plain.known(batch.publisher, batch.number, len(batch))
        assert rows.known(batch.publisher, batch.number, len(batch)) == wanted


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
            assert each.known("f", number, 1) == (1, seq, seq)
            assert each.mark("f", number) == (10 + number if number < len(places) else 22 + number)
        assert each.mark("f", 99) is each.mark("nobody", 0) is None
        assert each.newest("f") == len(places) + 1


def test_messages_without_numbers_or_names_are_not_noted() -> None:
    publishers = PublisherNumbers()
    publishers.follow(Batch(Run.of([b"x"]), first=1, publisher="a"))
    publishers.follow(Batch(Run.of([b"x"]), first=2, number=5))
    assert publishers.newest("a") is None


def test_old_spans_are_forgotten_but_repeats_are_still_recognised() -> None:
    publishers = PublisherNumbers()
    for turn in range(MAX_SPANS + 10):
        # Every other sequence number is somebody else's, so that spans do not join.
        publishers.follow(Batch(Run.one(b"x"), first=1 + 2 * turn, publisher="a", number=turn))
    assert publishers.known("a", 0, 1) == (1, None, None)
    assert publishers.known("a", MAX_SPANS + 9, 1).first is not None


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
