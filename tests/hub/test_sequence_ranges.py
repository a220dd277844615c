from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.sequence_ranges import Ranges

pairs = st.tuples(st.integers(1, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def numbers(ranges: Ranges) -> list[int]:
    return [seq for first, last in ranges for seq in range(first, last + 1)]


def test_overlapping_and_adjoining_ranges_merge() -> None:
    ranges = Ranges(10)
    for first, last in [(5, 6), (1, 2), (3, 4), (20, 30), (25, 40), (10, 10)]:
        assert ranges.add(first, last)
    assert list(ranges) == [(1, 6), (10, 10), (20, 40)]


def test_a_full_queue_takes_only_what_meets_a_queued_range() -> None:
    ranges = Ranges(1)
    assert ranges.add(5, 6)
    assert not ranges.add(8, 9)
    assert ranges.add(7, 9)
    assert list(ranges) == [(5, 9)]


def test_take_gives_the_lowest_first_and_no_more_than_asked() -> None:
    ranges = Ranges(10)
    ranges.add(8, 9)
    ranges.add(1, 5)
    assert [ranges.take(3), ranges.take(3), ranges.take(3)] == [(1, 3), (4, 5), (8, 9)]
    assert not ranges


@given(st.lists(pairs), st.integers(1, 70))
def test_it_is_a_set_of_numbers(added: list[tuple[int, int]], cut: int) -> None:
    ranges = Ranges(1_000)
    model: set[int] = set()
    for first, last in added:
        ranges.add(first, last)
        model.update(range(first, last + 1))
    assert numbers(ranges) == sorted(model)
    edges = [edge for pair in ranges for edge in pair]
    assert edges == sorted(edges)
    assert all(after > before + 1 for before, after in zip(edges[1::2], edges[2::2], strict=False))

    removed = [seq for first, last in ranges.cut_below(cut) for seq in range(first, last + 1)]
    assert removed == sorted(seq for seq in model if seq < cut)
    assert numbers(ranges) == sorted(seq for seq in model if seq >= cut)
