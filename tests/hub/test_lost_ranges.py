"""What readers passed over: each message counted once, few ranges and few readers kept."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import uuid4

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.lost_ranges import MAX_NAME, MAX_RANGES, MAX_READERS, LostRanges, lose
from headrace.hub.state import entry
from headrace.hub.state_parts import StateParts
from headrace.log import Log
from headrace.log.snapshots.snapshot import Snapshot, parse, serialize
from headrace.message import Batch


def followed(*batches: Batch) -> StateParts:
    """What a hub knows that has followed these entries."""
    parts = StateParts()
    state = parts.state()
    for op, batch in enumerate(batches, 1):
        state.apply(batch.numbered(op, 0, 0, 0))
    return parts


def test_each_message_is_lost_once() -> None:
    losses = LostRanges()
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
    losses = LostRanges()
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
    losses, known = LostRanges(), set[int]()
    for first, more in told:
        numbers = set(range(first, first + more + 1))
        fresh = {n for begin, end in losses.add("a", first, first + more) for n in range(begin, end + 1)}
        assert fresh == numbers - known
        known |= numbers
    facts = losses.facts("a").get("a", {"messages": 0, "ranges": []})
    assert isinstance(facts, dict)
    assert facts["messages"] == len(known)
    assert {n for begin, end in facts["ranges"] for n in range(begin, end + 1)} == known


def test_they_are_a_function_of_the_log_and_its_snapshot(tmp_path: Path) -> None:
    known = {"a": {"messages": 14, "ranges": [[1, 9], [20, 24]]}}
    with closing(Log.open(tmp_path)) as log:
        log.append([lose("a", 1, 9).numbered(1, 0, 0, 0), lose("a", 20, 24).numbered(2, 0, 0, 0)])
        log.commit(2)
    with closing(Log.open(tmp_path)) as log:
        parts = StateParts()
        state = parts.state()
        state.restore(log)
        assert parts.losses.facts() == known
        snapshot = parse(serialize(Snapshot(log.uuid, state.op, state.seq, state.sections())))
    other = StateParts()
    other.state().load(snapshot)
    assert other.losses.facts() == known
    other.losses.add("a", 9, 10)
    assert other.losses.facts() == {"a": {"messages": 15, "ranges": [[20, 24], [1, 10]]}}, "it goes on"


def test_a_snapshot_from_before_they_were_kept_opens() -> None:
    state = followed(lose("a", 1, 9)).state()
    sections = {name: section for name, section in state.sections().items() if name != LostRanges.name}
    parts = StateParts()
    parts.state().load(parse(serialize(Snapshot(uuid4(), 7, 3, sections))))
    assert parts.losses.facts() == {}


def test_an_entry_that_no_reader_would_write_changes_nothing() -> None:
    def said(name: str, first: object, last: object) -> Batch:
        return entry("reader", name, msgspec.json.encode({"first": first, "last": last}))

    wrong = [
        said("a", 3, 2),
        said("a", 0, 2),
        said("a", 1, 1 << 60),
        said("a", "x", None),
        said("", 1, 2),
        said("n" * (MAX_NAME + 1), 1, 2),
        entry("reader", "a", b""),
    ]
    assert followed(*wrong).losses.facts() == {}


def test_who_looks_on_is_told_what_is_new() -> None:
    parts, told = StateParts(), []
    parts.losses.observer = lambda op, fresh: told.append((op, fresh))
    state = parts.state()
    for op, batch in enumerate([lose("a", 1, 9), lose("a", 1, 9), lose("a", 5, 12)], 1):
        state.apply(batch.numbered(op, 0, 0, 0))
    assert told == [(1, [(1, 9)]), (2, []), (3, [(10, 12)])]
