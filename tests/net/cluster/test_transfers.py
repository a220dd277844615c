"""What nodes send one another of their logs: operations as asked for; snapshots whole, and not too often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.effects import Serve
from headrace.cluster.tied_ops import TiedOps
from headrace.hub.holds import hold
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.log.replication_frames import unpack
from headrace.log.snapshots.snapshot import FrozenState, Snapshot, parse
from headrace.message import NOT_A_MESSAGE, Batch, Run
from headrace.net.cluster import transfers as module
from headrace.net.cluster.transfers import MAKE_SECONDS, Snapshots, between, served, tied_spans
from headrace.wire.parcel.body import GetSnapshot, Mode, NewState, NodeInfo, SnapshotPart


class Counting(HubState):
    """A state that knows how often a snapshot was made of it."""

    made = 0

    def freeze(self) -> FrozenState:
        self.made += 1
        return super().freeze()


class Line:
    """A connection of some node; what is posted is kept, or given to the other side."""

    def __init__(self, node: int) -> None:
        self.peer = NodeInfo(node, Mode.WRK, f"node{node}", "127.0.0.1")
        self.posted: list[tuple[Any, bytes]] = []

    def post(self, body: Any, bulk: bytes = b"", *, certain: bool = False) -> bool:
        assert not certain or isinstance(body, GetSnapshot), "pieces wait for whoever does not take them"
        self.posted.append((body, bulk))
        return True


class Scene:
    def __init__(self, directory: Path) -> None:
        self.now = 100.0
        self.log = Log.open(directory)
        self.state = Counting()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 20, state=self.state)
        self.fetched: list[Snapshot | None] = []
        self.snapshots = Snapshots(self.hub, lambda _, found: self.fetched.append(found), lambda: self.now)

    def publish(self) -> None:
        self.hub.submit(Batch(Run.of([b"x"]), origin="tube"))
        self.hub.turn(1)

    def ask(self, line: Any, after: int = 0, offset: int = 0) -> tuple[SnapshotPart, bytes]:
        """Ask as a node does; what is answered."""
        self.snapshots.asked(line, GetSnapshot(7, after, offset))
        part, piece = line.posted.pop()
        assert (part.token, part.offset) == (7, offset)
        return part, piece


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    scene.hub.submit(entry("hold", "mine", hold(1)))
    scene.publish()
    yield scene
    scene.log.close()


def test_it_comes_whole_in_pieces(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 16)
    there: Any = Line(2)
    asking: Any = Line(1)
    scene.snapshots.fetch(there, 7, 0)
    while not scene.fetched:
        ask, _ = there.posted.pop()
        part, piece = scene.ask(asking, ask.after, ask.offset)
        scene.snapshots.came(there, part, piece)
    (snapshot,) = scene.fetched
    assert snapshot is not None
    assert (snapshot.uuid, snapshot.op, snapshot.seq) == (scene.log.uuid, 2, 1)
    chain = scene.log.chain.at(1).serialize()
    assert snapshot.sections == {**HubState.sections(scene.state), "chain": chain}
    assert scene.state.made == 1


def test_who_asks_while_one_is_made_gets_it_when_it_is_there(scene: Scene) -> None:
    made: list[Any] = []
    scene.snapshots = Snapshots(
        scene.hub, lambda _, __: None, lambda: scene.now, lambda make, then: made.append((make, then))
    )
    lines: list[Any] = [Line(2), Line(3), Line(4)]
    for line in lines:
        scene.snapshots.asked(line, GetSnapshot(7, 0, 0))
    scene.publish()
    scene.snapshots.left(lines[2])
    assert [line.posted for line in lines] == [[], [], []]
    ((make, then),) = made
    then(make())
    # It is of the time when it was asked for.
    assert [parse(line.posted.pop()[1]).op for line in lines[:2]] == [2, 2]
    assert lines[2].posted == []
    assert scene.state.made == 1


def test_one_that_cannot_be_made_is_none(scene: Scene) -> None:
    scene.snapshots = Snapshots(scene.hub, lambda _, __: None, lambda: scene.now, lambda _, then: then(None))
    assert scene.ask(Line(2))[0].size == 0


def test_a_node_that_asks_again_and_again_has_one_made(scene: Scene) -> None:
    lines = [Line(node) for node in (2, 2, 3)]
    answers = {scene.ask(line) for line in lines for _ in range(100)}
    assert scene.state.made == 1
    ((part, piece),) = answers
    assert parse(piece).op == part.op == 2


def test_one_that_wants_the_next_at_once_waits(scene: Scene) -> None:
    scene.ask(Line(2))
    for _ in range(10):
        scene.publish()
        part, piece = scene.ask(Line(2), after=scene.log.head_op - 1)
        assert (part.size, piece) == (0, b"")
    assert scene.state.made == 1
    assert scene.hub.counters.get("snapshots_refused") == 10
    assert scene.ask(Line(3))[0].op == 2, "others are served meanwhile"
    scene.now += MAKE_SECONDS
    assert scene.ask(Line(2), after=scene.log.head_op - 1)[0].op == scene.log.head_op
    assert scene.state.made == 2


def test_who_has_all_of_it_costs_nothing(scene: Scene) -> None:
    assert scene.ask(Line(2), after=2)[0].size == 0
    assert (scene.state.made, scene.hub.counters.get("snapshots_refused")) == (0, 0)


def test_a_node_has_one_under_way_however_many_connections_it_has(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 16)
    lines: list[Any] = [Line(2) for _ in range(10)]
    for line in lines:
        scene.publish()
        scene.ask(line)
        scene.now += MAKE_SECONDS
    assert len(scene.snapshots._under_way) == 1
    assert scene.ask(lines[0], offset=16)[0].size == 0, "it has asked over another one since"
    part, piece = scene.ask(lines[-1], offset=16)
    assert (part.op, len(piece)) == (scene.log.head_op, 16)
    scene.snapshots.left(lines[0])
    assert scene.ask(lines[-1], offset=32)[0].size
    scene.snapshots.left(lines[-1])
    scene.snapshots.tick(scene.now + MAKE_SECONDS)
    assert not scene.snapshots._under_way
    assert not scene.snapshots._last.data, "an old one is not kept for nobody"


def batch(op: int, first: int, *payloads: bytes) -> Batch:
    return Batch(Run.of(payloads), op=op, first=first, time=first, origin="tube")


def entries(op: int, after: int, *payloads: bytes) -> Batch:
    return Batch(Run.of(payloads), op=op, first=after, time=after, origin=NOT_A_MESSAGE, topic="hold/mine")


MIXED = [
    entries(1, 0, b"1", b"2"),
    batch(3, 1, b"3", b"4", b"5"),
    entries(6, 3, b"6"),
    entries(7, 3, b"7", b"8"),
    batch(9, 4, b"9"),
]
"""Every payload is its operation's number."""
SEQS = [0, 0, 1, 2, 3, 3, 3, 3, 4]
"""Each operation's number, or that of the message it stands after."""


@pytest.mark.parametrize("first", range(1, 10))
@pytest.mark.parametrize("last", range(1, 10))
def test_only_what_is_wanted_is_taken(first: int, last: int) -> None:
    taken = list(between(MIXED, first, last))
    rows = [(each.op + place, row) for each in taken for place, row in enumerate(each)]
    assert [row.payload for _, row in rows] == [b"%d" % op for op in range(first, last + 1)]
    assert [op for op, _ in rows] == list(range(first, last + 1))
    assert [row.seq for _, row in rows] == SEQS[first - 1 : last]


def test_a_node_serves_what_it_has_also_if_it_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path, committed=0)
    for each in MIXED:
        log.append([each])
    for first in range(1, 10):
        for size in (1 << 20, 1):
            monkeypatch.setattr(module, "SERVE_BYTES", size)
            body, bulk = served(log, Serve(20, 7, first, 9, 2))
            assert (body.view, body.first, body.commit) == (7, first, 2)
            assert body.last == 9 if size > 1 else first <= body.last
            check(log, body, bulk)
    assert served(log, Serve(20, 7, 10, 9, 2)) == (NewState(7, 10, 9, 2), b"")
    log.close()


def check(log: Log, body: NewState, bulk: bytes) -> None:
    uuid, batches = unpack(bulk, body.first, body.last)
    assert uuid == log.uuid
    rows = [(each.op + place, row) for each in batches for place, row in enumerate(each)]
    assert [(op, row.seq, row.payload) for op, row in rows] == [
        (op, SEQS[op - 1], b"%d" % op) for op in range(body.first, body.last + 1)
    ]


def test_a_sealed_log_is_served_with_its_entries_in_place_and_no_larger(tmp_path: Path) -> None:
    log = Log.open(tmp_path, committed=0)
    for each in MIXED:
        log.append([each])
    _, before = served(log, Serve(20, 7, 1, 9, 9))
    log.commit(9)
    log.rotate()
    assert log.seal_next() is not None
    for first in range(1, 10):
        body, bulk = served(log, Serve(20, 7, first, 9, 9))
        assert (body.first, body.last) == (first, 9)
        check(log, body, bulk)
    _, after = served(log, Serve(20, 7, 1, 9, 9))
    assert len(after) <= len(before)
    log.close()


def test_a_node_that_asks_for_what_was_trimmed_is_told_the_oldest_operation(tmp_path: Path) -> None:
    log = Log.open(tmp_path, committed=0)
    for each in MIXED[:3]:
        log.append([each])
    log.commit(6)
    log.rotate()
    log.seal_next()
    for each in MIXED[3:]:
        log.append([each])
    log.write_snapshot(6, 3, {})
    log.retain(0, retain_bytes=0, retain_us=None, holds={})
    assert served(log, Serve(20, 7, 2, 9, 6)) == (NewState(7, 7, 6, 6), b"")
    body, bulk = served(log, Serve(20, 7, 7, 9, 6))
    assert body == NewState(7, 7, 9, 6)
    check(log, body, bulk)
    log.close()


def test_a_node_is_served_a_sealed_segment_as_one_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was tied is not told by a sealed segment, so nobody shows a part of one."""
    monkeypatch.setattr(module, "SERVE_BYTES", 1)
    log = Log.open(tmp_path)
    log.append(MIXED[:2])
    log.append(MIXED[2:3])
    log.rotate()
    log.append(MIXED[3:])
    log.commit(9)
    assert log.seal_next() is not None
    tied: list[tuple[int, int]] = []
    op = 1
    while op <= 9:
        answer, bulk = served(log, Serve(2, 1, op, 9, 9))
        tied += tied_spans(unpack(bulk, answer.first, answer.last)[1])
        op = answer.last + 1
    spans = TiedOps(tied)
    assert [op for op in range(1, 10) if spans.whole(op) == op] == [6, 9]
    log.close()
