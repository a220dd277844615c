from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.fyrehose.reorder_buffer import ReorderBuffer
from headrace.message import Run

ROOMY = 1_000_000


def run(*payloads: bytes) -> Run:
    return Run.of(payloads)


def test_messages_come_back_in_one_run_when_their_turn_comes() -> None:
    early = ReorderBuffer(100, ROOMY)
    early.add(7, run(b"g"))
    early.add(5, run(b"e", b"f"))
    early.add(9, run(b"i"))
    assert early.take(4) is None
    assert early.take(5) == run(b"e", b"f", b"g")
    assert (early.count, early.last) == (1, 9)
    assert early.take(9) == run(b"i")
    assert (early.count, early.size, early.last) == (0, 0, 0)


def test_a_receive_buffer_is_not_kept() -> None:
    early = ReorderBuffer(100, ROOMY)
    received = run(*[b"x" * 1_000] * 60)
    early.add(5, received.slice(10, 11))
    kept = early.take(5)
    assert kept is not None
    assert len(kept.data) == 1_000


def test_the_newest_give_way() -> None:
    early = ReorderBuffer(4, ROOMY)
    assert early.add(8, run(b"h", b"i")) == (2, [])
    assert early.add(5, run(b"e", b"f")) == (2, [])
    assert early.add(3, run(b"c")) == (1, [(8, 9)])
    assert early.add(10, run(b"j", b"k")) == (1, [])
    assert early.add(20, run(b"t")) == (0, [])
    assert early.count == 4


def test_bytes_are_bounded_too() -> None:
    early = ReorderBuffer(1_000, 2_000)
    assert early.add(5, run(*[b"x" * 100] * 100)) == (14, [])
    assert early.size <= 2_000
    assert early.add(30, run(b"")) == (0, [])
    assert early.add(3, run(b"")) == (1, [(5, 18)])


def test_there_is_always_room_for_one_message() -> None:
    early = ReorderBuffer(1_000, 600)
    assert early.add(5, run(b"x" * 10_000, b"y")) == (1, [])
    assert early.add(6, run(b"y")) == (0, [])
    assert early.add(4, run(b"z" * 10_000)) == (1, [(5, 5)])


def test_a_full_copy_replaces_an_empty_one() -> None:
    early = ReorderBuffer(100, 2_000)
    early.add(5, run(b"", b"", b"c"))
    early.prefer(4, run(b"?", b"", b"full", b"other"))
    early.prefer(5, run(b"x" * 2_000))
    early.prefer(6, run(b"again"))
    assert early.take(5) == run(b"", b"full", b"c")
    assert early.size == 0


def test_what_was_taken_is_no_longer_replaced() -> None:
    early = ReorderBuffer(100, ROOMY)
    early.add(5, run(b""))
    early.take(5)
    early.prefer(5, run(b"late"))
    assert early.size == 0


def test_find_gives_the_oldest_of_a_range() -> None:
    early = ReorderBuffer(100, ROOMY)
    early.add(5, run(b"e", b"f"))
    early.add(9, run(b"i"))
    assert [getattr(early.find(first, 20), "first", None) for first in (1, 6, 7, 9, 10)] == [5, 5, 9, 9, None]
    assert early.find(7, 8) is None


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), max_size=30), st.integers(1, 12))
def test_the_lowest_are_kept_and_the_bounds_hold(added: list[tuple[int, int]], most: int) -> None:
    early = ReorderBuffer(most, 512 * 4)
    model: set[int] = set()
    for first, count in added:
        if model & set(range(first, first + count)):
            continue
        kept, evicted = early.add(first, run(*(bytes([seq]) for seq in range(first, first + count))))
        model.update(range(first, first + kept))
        for gone_first, gone_last in evicted:
            assert gone_first > first
            model.difference_update(range(gone_first, gone_last + 1))
        assert early.count == len(model) <= most
        assert early.size <= 512 * 4
        assert early.last == max(model)
        for seq in range(1, 40):
            assert (early.find(seq, seq) is not None) == (seq in model)
