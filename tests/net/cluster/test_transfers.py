"""What nodes send one another of their logs: messages as asked for; snapshots whole, and not too often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.effects import Serve
from headrace.hub.holds import hold
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState, entry
from headrace.log import Log
from headrace.log.replication_frames import unpack
from headrace.log.snapshot import Snapshot, parse
from headrace.message import Batch, Run
from headrace.net.cluster import transfers as module
from headrace.net.cluster.transfers import MAKE_SECONDS, Snapshots, between, served
from headrace.wire.parcel.body import GetSnapshot, Mode, NewState, NodeInfo, SnapshotPart


class Counting(HubState):
    """A state that knows how often a snapshot was made of it."""

    made = 0

    def sections(self) -> dict[str, bytes]:
        self.made += 1
        return super().sections()


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
    assert (snapshot.uuid, snapshot.seq) == (scene.log.uuid, 2)
    assert snapshot.sections == HubState.sections(scene.state)
    assert scene.state.made == 1


def test_a_node_that_asks_again_and_again_has_one_made(scene: Scene) -> None:
    lines = [Line(node) for node in (2, 2, 3)]
    answers = {scene.ask(line) for line in lines for _ in range(100)}
    assert scene.state.made == 1
    ((part, piece),) = answers
    assert parse(piece).seq == part.seq == 2


def test_one_that_wants_the_next_at_once_waits(scene: Scene) -> None:
    scene.ask(Line(2))
    for _ in range(10):
        scene.publish()
        part, piece = scene.ask(Line(2), after=scene.log.head - 1)
        assert (part.size, piece) == (0, b"")
    assert scene.state.made == 1
    assert scene.hub.counters.get("snapshots_refused") == 10
    assert scene.ask(Line(3))[0].seq == 2, "others are served meanwhile"
    scene.now += MAKE_SECONDS
    assert scene.ask(Line(2), after=scene.log.head - 1)[0].seq == scene.log.head
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
    assert (part.seq, len(piece)) == (scene.log.head, 16)
    scene.snapshots.left(lines[0])
    assert scene.ask(lines[-1], offset=32)[0].size
    scene.snapshots.left(lines[-1])
    scene.snapshots.tick(scene.now + MAKE_SECONDS)
    assert not scene.snapshots._under_way
    assert not scene.snapshots._last.data, "an old one is not kept for nobody"


def batch(first: int, *payloads: bytes) -> Batch:
    return Batch(Run.of(payloads), first=first, time=first, origin="tube")


TWO = [batch(1, b"1", b"2", b"3"), batch(4, b"4", b"5")]


@pytest.mark.parametrize("first", range(1, 6))
@pytest.mark.parametrize("last", range(1, 6))
def test_only_what_is_wanted_is_taken(first: int, last: int) -> None:
    taken = [message.payload for each in between(TWO, first, last) for message in each]
    assert taken == [b"%d" % seq for seq in range(first, last + 1)]


def test_a_node_serves_what_it_has_also_if_it_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path, committed=0)
    log.append([TWO[0]])
    log.append([TWO[1]])
    for size, first, last in ((1 << 20, 1, 5), (1 << 20, 3, 5), (1, 1, 3), (1, 4, 5)):
        monkeypatch.setattr(module, "SERVE_BYTES", size)
        body, bulk = served(log, Serve(20, 7, first, 5, 2))
        assert body == NewState(7, first, last, 2)
        uuid, batches = unpack(bulk, first, last)
        assert uuid == log.uuid
        assert [message.seq for each in batches for message in each] == list(range(first, last + 1))
    assert served(log, Serve(20, 7, 6, 5, 2)) == (NewState(7, 6, 5, 2), b"")
    log.close()
