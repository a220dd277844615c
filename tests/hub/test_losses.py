"""What readers passed over: each message counted once, few ranges and few readers kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.losses import MAX_RANGES, MAX_READERS, Losses


def test_each_message_is_lost_once() -> None:
    losses = Losses()
    assert losses.add("a", 1, 36) == [(1, 36)]
    assert losses.add("a", 1, 36) == []
    assert losses.add("a", 1, 50) == [(37, 50)]
    assert losses.add("a", 100, 109) == [(100, 109)]
    assert losses.add("a", 40, 110) == [(51, 99), (110, 110)]
    assert losses.add("b", 5, 5) == [(5, 5)]
    assert losses.facts() == {
        "a": {"messages": 110, "ranges": [[1, 110]]},
        "b": {"messages": 1, "ranges": [[5, 5]]},
    }
    assert losses.facts("b") == {"b": {"messages": 1, "ranges": [[5, 5]]}}
    assert losses.facts("c") == {}


def test_the_newest_are_kept_and_all_are_counted() -> None:
    losses = Losses()
    for first in range(10, 10 + 10 * (MAX_RANGES + 3), 10):
        losses.add("a", first, first + 4)
    (lost,) = losses.facts("a").values()
    assert lost == {
        "messages": 5 * (MAX_RANGES + 3),
        "ranges": [[first, first + 4] for first in range(40, 40 + 10 * MAX_RANGES, 10)],
    }
    for number in range(MAX_READERS - 1):
        losses.add(f"r{number}", 1, 1)
    losses.add("a", 1, 1)
    losses.add("another", 1, 1)
    assert len(losses.facts()) == MAX_READERS
    assert "r0" not in losses.facts()
    assert {"a", "another"} <= set(losses.facts())


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=MAX_RANGES))
def test_ranges_are_a_set_of_numbers(told: list[tuple[int, int]]) -> None:
    losses, known = Losses(), set[int]()
    for first, more in told:
        numbers = set(range(first, first + more + 1))
        fresh = {n for begin, end in losses.add("a", first, first + more) for n in range(begin, end + 1)}
        assert fresh == numbers - known
        known |= numbers
    facts = losses.facts("a").get("a", {"messages": 0, "ranges": []})
    assert isinstance(facts, dict)
    assert facts["messages"] == len(known)
    assert {n for begin, end in facts["ranges"] for n in range(begin, end + 1)} == known
