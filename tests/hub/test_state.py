"""The hub's state: a snapshot, and every entry since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from uuid import UUID

import pytest

from headrace.hub.holds import MAX_HOLDS, hold
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState, entry
from headrace.hub.state_parts import StateParts
from headrace.log import Log
from headrace.log.snapshots.snapshot import Snapshot
from headrace.message import NOT_A_MESSAGE, Batch, Run


class Notes:
    """A part that keeps everything it is told."""

    def __init__(self, name: str = "note") -> None:
        self.name = name
        self.entries: list[tuple[str, bytes, int, int]] = []
        self.loaded: bytes | None = None

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        self.entries.append((name, payload, seq, op))

    def dump(self) -> bytes:
        return b"dumped"

    def load(self, section: bytes) -> None:
        self.loaded = section


class MessageNotes(Notes):
    """A part that follows messages, too."""

    def __init__(self, name: str = "note") -> None:
        super().__init__(name)
        self.batches: list[tuple[int, int]] = []

    def follow(self, batch: Batch) -> None:
        self.batches.append((batch.op, batch.last_op))


def placed(batch: Batch, op: int, seq: int = 0) -> Batch:
    """An entry as operation ``op``, after message ``seq``."""
    return batch.numbered(op, seq, 0, 0)


def messages(first: int, *payloads: bytes) -> Batch:
    return Batch(Run.of(payloads), first=first, origin="spp", op=first)


class TestEntries:
    def test_an_entry_is_no_message_and_names_its_part(self) -> None:
        batch = entry("note", "a/b", b"payload")
        assert (batch.origin, batch.topic, list(batch.run)) == (NOT_A_MESSAGE, "note/a/b", [b"payload"])

    def test_they_reach_the_part_they_name(self) -> None:
        one, other = Notes("one"), Notes("other")
        state = HubState(one, other)
        state.apply(placed(entry("one", "x", b"1"), 1))
        state.apply(placed(entry("other", "y/z", b"2"), 2))
        state.apply(placed(entry("one", "", b""), 5, 2))
        assert one.entries == [("x", b"1", 0, 1), ("", b"", 2, 5)]
        assert other.entries == [("y/z", b"2", 0, 2)]

    def test_several_in_one_batch(self) -> None:
        notes = Notes("note")
        batch = Batch(Run.of([b"1", b"2"]), origin=NOT_A_MESSAGE, topic="note/x")
        state = HubState(notes)
        state.apply(placed(batch, 7, 4))
        assert notes.entries == [("x", b"1", 4, 7), ("x", b"2", 4, 8)]
        assert (state.op, state.seq) == (8, 4)

    def test_of_a_part_that_is_not_here_they_are_passed_over(self) -> None:
        state = HubState()
        state.apply(placed(entry("future", "x", b"1"), 1))
        assert (state.op, state.seq) == (1, 0)

    def test_a_message_is_no_entry_whatever_its_topic(self) -> None:
        notes = Notes()
        state = HubState(notes)
        state.apply(Batch(Run.of([b'{"seq": 1}']), first=1, origin="spp", topic="hold/job"))
        state.apply(Batch(Run.of([b"x"]), first=2, origin="spp", topic="note/x"))
        assert (state.holds, notes.entries, state.seq) == ({}, [], 2)

    def test_messages_reach_the_parts_that_follow_them(self) -> None:
        listening = MessageNotes("listening")
        state = HubState(Notes("deaf"), listening)
        state.apply(messages(1, b"a", b"b"))
        state.apply(messages(3, b"c"))
        assert listening.batches == [(1, 2), (3, 3)]


class TestHolds:
    def test_keep_and_let_go(self) -> None:
        state = HubState()
        for seq, (name, at) in enumerate([("a", 5), ("b/c", 7), ("a", 9)], 1):
            state.apply(placed(entry("hold", name, hold(at)), seq))
        assert state.holds == {"a": 9, "b/c": 7}
        state.apply(placed(entry("hold", "a", hold(None)), 4))
        state.apply(placed(entry("hold", "never there", hold(None)), 5))
        assert state.holds == {"b/c": 7}

    def test_there_are_so_many_whoever_wrote_the_entries(self) -> None:
        state = HubState()
        for number in range(MAX_HOLDS + 2):
            state.apply(placed(entry("hold", f"h{number}", hold(1)), number + 1))
        assert (len(state.holds), state.unread) == (MAX_HOLDS, 2)
        state.apply(placed(entry("hold", "h0", hold(7)), 300))
        assert state.holds["h0"] == 7, "those that are there move as ever"

    def test_through_a_snapshot(self) -> None:
        state = HubState()
        state.apply(placed(entry("hold", "a", hold(5)), 3, 2))
        again = HubState()
        again.load(Snapshot(UUID(int=1), state.op, state.seq, state.sections()))
        assert (again.holds, again.op, again.seq) == ({"a": 5}, 3, 2)


class TestSnapshot:
    def test_a_section_for_each_part(self) -> None:
        assert HubState(Notes()).sections().keys() == {"hold", "note"}

    def test_each_part_takes_its_own(self) -> None:
        notes = Notes()
        HubState(notes).load(Snapshot(UUID(int=1), 3, 2, {"note": b"kept"}))
        assert notes.loaded == b"kept"

    def test_sections_of_parts_that_are_not_here_are_passed_over(self) -> None:
        state = HubState()
        state.load(Snapshot(UUID(int=1), 3, 2, {"future": b"whatever"}))
        assert (state.op, state.seq) == (3, 2)


class TestRestore:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Callable[[], Log]:
        return lambda: Log.open(tmp_path / "log")

    def fill(self, log: Log) -> Hub:
        hub = Hub(log, 1, max_uncommitted=1 << 20)
        hub.submit(entry("hold", "a", hold(1)))
        hub.submit(messages(0, b"x", b"y"))
        hub.submit(entry("hold", "b", hold(2)))
        hub.turn(5)
        return hub

    def test_from_the_log_alone(self, log: Callable[[], Log]) -> None:
        first = log()
        self.fill(first)
        first.close()
        again = log()
        state = HubState()
        state.restore(again)
        assert (state.holds, state.op, state.seq) == ({"a": 1, "b": 2}, 4, 2)
        again.close()

    def test_from_a_snapshot_and_what_follows_it(self, log: Callable[[], Log]) -> None:
        first = log()
        hub = self.fill(first)
        first.write_snapshot(hub.state.op, hub.state.seq, hub.state.sections())
        hub.submit(entry("hold", "a", hold(None)))
        hub.turn(6)
        first.close()
        again = log()
        notes = MessageNotes()
        state = HubState(notes)
        state.restore(again)
        assert (state.holds, state.op, state.seq) == ({"b": 2}, 5, 2)
        assert notes.batches == [(5, 5)]  # what the snapshot has is not read again
        again.close()

    def test_over_sealed_segments(self, log: Callable[[], Log]) -> None:
        # Sealing puts entries and messages into different files.
        first = log()
        self.fill(first)
        first.rotate()
        assert first.seal_next() is not None
        first.close()
        again = log()
        state = HubState()
        state.restore(again)
        assert (state.holds, state.op, state.seq) == ({"a": 1, "b": 2}, 4, 2)
        again.close()

    def test_of_an_empty_log(self, log: Callable[[], Log]) -> None:
        empty = log()
        state = HubState()
        state.restore(empty)
        assert (state.holds, state.seq) == ({}, 0)
        empty.close()


@pytest.mark.parametrize(
    "payload",
    [b'{"seq": "\xff"}', b'{"time": 1, "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"\xff", b""],
    ids=["no text", "deep", "no json", "empty"],
)
def test_no_payload_of_an_entry_breaks_the_hub(payload: bytes) -> None:
    parts = StateParts()
    state = parts.state()
    names = [part.name for part in (getattr(parts, each.name) for each in fields(parts))]
    for op, name in enumerate([*names, "hold"], 1):
        state.apply(placed(entry(name, "a", payload), op))
    assert state.op == len(names) + 1
