"""Replicas with real hubs, logs and state files, driven as :mod:`headrace.cluster` says; only the network is played.

Operations go from log to log in the frames that nodes send one another. Entries stand between the messages, alone and
several at a time; a part of the hub's state notes each that it applies.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec
import pytest
from tests.log.content import flat, seal_all

from headrace.cluster.durable_state import StoredState, load, save
from headrace.cluster.effects import (
    Advance,
    Append,
    Become,
    Broadcast,
    CutBack,
    Effect,
    FetchSnapshot,
    Halt,
    Install,
    Persist,
    Send,
    Serve,
    Status,
    Sync,
)
from headrace.cluster.replica import Replica
from headrace.errors import HeadraceError
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.log.frame_file import HEADER_BYTES
from headrace.log.replication_frames import unpack
from headrace.log.snapshots import snapshot as snapshots
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import install
from headrace.message import NOT_A_MESSAGE, Batch, Run
from headrace.net.cluster import transfers
from headrace.wire.parcel.body import NewState, Prepare, Replication
from headrace.wire.parcel.stream import Parcel, ParcelDecoder, serialize

LOG_UUID = UUID(int=42)

Noted = tuple[int, int, bytes]
"""An entry as it was applied: its operation, the message it stands after, and its payload."""


class Notes:
    """A part of the state that keeps every entry it is given."""

    name = "notes"

    def __init__(self) -> None:
        self.kept: list[Noted] = []

    def apply(self, name: str, payload: bytes, seq: int, op: int) -> None:
        self.kept.append((op, seq, payload))

    def dump(self) -> bytes:
        return msgspec.msgpack.encode(self.kept)

    def load(self, section: bytes) -> None:
        self.kept = msgspec.msgpack.decode(section, type=list[Noted])


def said(*payloads: bytes) -> Batch:
    """Messages."""
    return Batch(Run.of(payloads), origin="tube")


def noted(*payloads: bytes) -> Batch:
    """Entries."""
    return Batch(Run.of(payloads), origin=NOT_A_MESSAGE, topic="notes/it")


class Node:
    """The smallest driver there is: everything is done at once, in order."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.id = number
        self.directory = cluster.directory / str(number)
        self.snapshots: dict[int, Snapshot] = {}
        self.cuts: list[int] = []
        self.open()

    def open(self, *, intact: bool = True) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        kept = load(self.directory / "cluster")
        committed = 0 if kept is None else kept.state.commit
        self._open_log(committed)
        self.replica = Replica(
            self.id,
            3,
            stored=None if kept is None else kept.state,
            commit=self.log.head_op,
            tail=self.log.tail_op,
            intact=intact and kept is not None and kept.log == str(self.log.uuid),
            synced_only=self.cluster.fsync == "always",
            random=Random(self.id),
        )
        self.do(self.replica.start(self.cluster.now))

    def _open_log(self, committed: int) -> None:
        self.log = Log.open(
            self.directory / "log", fsync=self.cluster.fsync, committed=committed, uuid=LOG_UUID
        )
        self.notes = Notes()
        self.hub = Hub(self.log, self.id, max_uncommitted=1 << 20, state=HubState(self.notes))
        self.hub.commit_by(self._appended)
        self._following = False

    def close(self) -> None:
        self.log.close()

    def lose_power(self, lost: int) -> None:
        """End, without the last bytes of what was written since the last snapshot, and start again."""
        newest, snapshot = self.log.segments[-1], self.log.snapshot
        self.close()
        # A snapshot syncs the log that it is of.
        if snapshot is None or snapshot.op < newest.first_op:
            size = newest.path.stat().st_size
            os.truncate(newest.path, max(size - lost, HEADER_BYTES))
        self.open(intact=False)

    def publish(self, *payloads: bytes) -> None:
        self.take(said(*payloads))

    def take(self, *batches: Batch) -> None:
        """Number and append batches in one turn."""
        for each in batches:
            self.hub.submit(each)
        self.hub.turn(int(self.cluster.now * 1e6))

    def _appended(self, tail: int) -> None:
        if not self._following:
            self.do(self.replica.appended(self.replica.state.tail + 1, tail, self.cluster.now))

    def receive(self, sender: int, parcel: Parcel) -> None:
        body, bulk = parcel.body, parcel.bulk
        batches: Sequence[Batch] = ()
        if isinstance(body, Prepare | NewState):
            if body.last >= body.first:
                uuid, batches = unpack(bulk, body.first, body.last)
                assert uuid == LOG_UUID
            bulk = b""
        self.do(self.replica.receive(sender, body, bulk, self.cluster.now), batches)  # type: ignore[arg-type]

    def do(self, effects: list[Effect], batches: Sequence[Batch] = ()) -> None:
        completed: list[Callable[[], list[Effect]]] = []
        for effect in effects:
            match effect:
                case Send(to, body, bulk):
                    self.cluster.send(self.id, to, body, bulk)
                case Broadcast(body):
                    bulk = transfers.numbered(self.hub, body) if isinstance(body, Prepare) else b""
                    for to in self.cluster.others(self.id):
                        self.cluster.send(self.id, to, body, bulk)
                case Append(first, last):
                    self._following = True
                    self.hub.follow(list(transfers.between(batches, first, last)))
                    self._following = False
                case CutBack(last):
                    self.hub.cut_back(last)
                    self.cuts.append(last)
                case Sync(token):
                    upto = self.log.sync()
                    completed.append(
                        lambda token=token, upto=upto: self.replica.synced(token, upto, self.cluster.now)
                    )
                case Persist(state):
                    save(self.directory / "cluster", StoredState(state, "boot", str(self.log.uuid)))
                case Advance(commit):
                    self.hub.committed(commit)
                case Serve(to):
                    self.cluster.send(self.id, to, *transfers.served(self.log, effect))
                case FetchSnapshot(token, source):
                    other = self.cluster.nodes[source].log
                    snapshot, _ = snapshots.newest(other.directory, other.uuid)
                    op = None
                    if snapshot is not None:
                        self.snapshots[token] = snapshot
                        op = snapshot.op
                    completed.append(
                        lambda token=token, op=op: self.replica.fetched(token, op, self.cluster.now)
                    )
                case Install(token):
                    self.log.close()
                    install(self.directory / "log", self.snapshots.pop(token), 0)
                    self._open_log(0)
                case Become() | Halt():
                    pass
        for completion in completed:
            self.do(completion())

    def sum_up(self) -> None:
        """Write a snapshot."""
        state = self.hub.state
        self.log.write_snapshot(state.op, state.seq, state.sections())


class Cluster:
    def __init__(self, directory: Path, fsync: str) -> None:
        self.directory = directory
        self.fsync = fsync
        self.now = 0.0
        self.away: set[int] = set()
        self._wire: deque[tuple[int, int, bytes]] = deque()
        self.nodes: dict[int, Node] = {}
        for number in (1, 2, 3):
            self.nodes[number] = Node(self, number)

    def others(self, number: int) -> list[int]:
        return [other for other in (1, 2, 3) if other != number]

    def send(self, source: int, to: int, body: Replication, bulk: bytes) -> None:
        self._wire.append((source, to, serialize(Parcel(source, body, bulk))))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            while self._wire:
                source, to, parcel = self._wire.popleft()
                if to in self.nodes and source in self.nodes and not self.away & {source, to}:
                    [decoded] = ParcelDecoder().feed(parcel)
                    self.nodes[to].receive(source, decoded)
            self.now += 0.05
            for node in list(self.nodes.values()):
                timer = node.replica.next_timer()
                if timer is not None and timer <= self.now:
                    node.do(node.replica.tick(self.now))

    @property
    def primary(self) -> Node:
        [node] = [each for each in self.nodes.values() if each.replica.accepting(self.now)]
        return node

    def check_same(self) -> None:
        """All logs are the same, messages have whole numbers, and each entry was applied once, in its place."""
        logs = [node.log for node in self.nodes.values()]
        assert len({(log.head, log.tail, log.head_op, log.tail_op) for log in logs}) == 1
        begin = max(log.first_op for log in logs)
        first, *others = [positions(log, begin) for log in logs]
        assert all(other == first for other in others), "the logs differ"
        for node in self.nodes.values():
            log = node.log
            numbers = [message.seq for message in flat(log.scan(log.first))]
            assert numbers == list(range(log.first, log.head + 1))
            assert [op for op, _, _, _ in positions(log, log.first_op)] == list(
                range(log.first_op, log.head_op + 1)
            )
            ops = [op for op, _, _ in node.notes.kept]
            assert ops == sorted(set(ops)), "applied twice, or out of order"
            entries = [(op, seq, payload) for op, seq, entry, payload in first if entry]
            assert [each for each in node.notes.kept if each[0] >= begin] == entries
        kept = [node.notes.kept for node in self.nodes.values()]
        assert kept[0] == kept[1] == kept[2]
        assert {node.replica.state.status for node in self.nodes.values()} == {Status.NORMAL}

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


def positions(log: Log, begin: int) -> list[tuple[int, int, bool, bytes]]:
    """Everything from an operation on: its position, its number or the one it stands after, its kind and content."""
    return [
        (batch.op + place, message.seq, batch.is_entries, message.payload)
        for batch in log.scan_ops(begin)
        for place, message in enumerate(batch)
    ]


@pytest.fixture(autouse=True)
def small_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catching up takes many steps."""
    monkeypatch.setattr(transfers, "SERVE_BYTES", 100)


@pytest.fixture(params=["always", "interval"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, request.param)
    made.run(5)
    yield made
    made.close()


def test_every_log_gets_every_message(cluster: Cluster) -> None:
    primary = cluster.primary
    for number in range(20):
        primary.publish(b"a%d" % number, b"b%d" % number)
    cluster.run(1)
    cluster.check_same()
    assert primary.log.head == 40


def test_what_a_lone_primary_numbered_is_cut_off(cluster: Cluster) -> None:
    old = cluster.primary
    old.publish(b"kept")
    cluster.run(1)
    cluster.away = {old.id}
    old.publish(b"lost", b"lost too")
    old.publish(b"lost as well")
    cluster.run(6)
    new = cluster.primary
    assert new is not old
    new.publish(b"instead")
    cluster.run(1)
    assert (new.log.head, old.log.head, old.log.tail) == (2, 1, 4)
    cluster.away = set()
    cluster.run(3)
    cluster.check_same()
    assert old.cuts == [1]
    assert [message.payload for message in flat(old.log.scan(1))] == [b"kept", b"instead"]


def test_all_stop_and_start_again(cluster: Cluster) -> None:
    cluster.primary.publish(b"before")
    cluster.run(1)
    views = [node.replica.state.view for node in cluster.nodes.values()]
    cluster.close()
    for node in cluster.nodes.values():
        node.open()
    cluster.run(6)
    assert cluster.primary.replica.state.view > max(views)
    cluster.primary.publish(b"after")
    cluster.run(1)
    cluster.check_same()
    assert cluster.primary.log.head == 2


def test_an_emptied_node_gets_a_snapshot_and_what_follows(cluster: Cluster) -> None:
    cluster.primary.take(noted(b"before all"))
    for number in range(30):
        cluster.primary.take(said(b"%d" % number), noted(b"after %d" % number))
    cluster.run(1)
    for node in cluster.nodes.values():
        assert (node.hub.state.op, node.hub.state.seq) == (61, 30)
        seal_all(node.log)
    cluster.primary.take(noted(b"more"), said(b"more"), noted(b"and more"))
    cluster.run(1)
    for node in cluster.nodes.values():
        node.log.write_snapshot(62, 30, HubState(held(node.notes, 62)).sections())
        node.log.retain(0, retain_bytes=0, retain_us=None, holds={})
        assert (node.log.first, node.log.first_op) == (31, 62)
    emptied = next(node for node in cluster.nodes.values() if node is not cluster.primary)
    emptied.close()
    shutil.rmtree(emptied.directory)
    emptied.open()
    assert not emptied.replica.state.voter
    cluster.run(6)
    assert emptied.replica.state.voter
    assert (emptied.log.first, emptied.log.head) == (31, 31)
    assert (emptied.log.first_op, emptied.log.head_op) == (63, 64)
    assert emptied.log.snapshot is not None
    assert (emptied.log.snapshot.op, emptied.log.snapshot.seq) == (62, 30)
    cluster.primary.publish(b"and on")
    cluster.run(1)
    cluster.check_same()
    assert len(emptied.notes.kept) == 33


def held(notes: Notes, op: int) -> Notes:
    """Notes as they were at an operation."""
    earlier = Notes()
    earlier.kept = [each for each in notes.kept if each[0] <= op]
    return earlier


def test_a_cut_between_entries_leaves_the_ones_before_it(cluster: Cluster) -> None:
    old = cluster.primary
    old.take(said(b"kept"), noted(b"kept, too"))
    cluster.run(1)
    cluster.away = {old.id}
    old.take(noted(b"lost"), said(b"lost"), noted(b"lost", b"as well"))
    cluster.run(6)
    new = cluster.primary
    new.take(noted(b"instead", b"of it"), said(b"instead"))
    cluster.run(1)
    assert (old.log.tail, old.log.tail_op, old.log.head_op) == (2, 6, 2)
    cluster.away = set()
    cluster.run(3)
    cluster.check_same()
    assert old.cuts == [2]
    assert old.notes.kept == [(2, 1, b"kept, too"), (3, 1, b"instead"), (4, 1, b"of it")]
    assert (old.log.head, old.log.head_op) == (2, 5)


def suffer(cluster: Cluster, random: Random, steps: int = 40) -> None:
    """Publish messages and entries in any order while nodes are cut off, end in every way, and put their logs away."""
    count = 0

    def some() -> Batch:
        nonlocal count
        payloads = [b"%d" % (count + each) for each in range(random.choice((1, 1, 2, 5)))]
        count += len(payloads)
        return (noted if random.random() < 0.5 else said)(*payloads)

    for _ in range(steps):
        for node in cluster.nodes.values():
            # One that is cut off may take something as well, and lose it.
            if node.replica.accepting(cluster.now):
                node.take(*(some() for _ in range(random.choice((1, 2, 4)))))
        cluster.run(random.choice((0.05, 0.05, 0.3, 3)))
        node = cluster.nodes[random.choice((1, 2, 3))]
        voters = all(each.replica.state.voter for each in cluster.nodes.values())
        match random.choice(
            ("nothing", "away", "back", "restart", "sum up", "seal", "trim", "empty", "torn")
        ):
            case "away":
                cluster.away = {node.id}
            case "back":
                cluster.away = set()
            case "restart":
                node.close()
                node.open()
            case "sum up":
                node.sum_up()
            case "seal":
                seal_all(node.log)
            case "trim":
                node.log.retain(0, retain_bytes=0, retain_us=None, holds={})
            case "torn" if voters and cluster.fsync != "always":
                cluster.away = set()
                node.lose_power(random.randrange(400))
                cluster.run(6)
            case "empty" if voters:
                cluster.away = set()
                node.close()
                shutil.rmtree(node.directory)
                node.open()
                cluster.run(6)
            case _:
                pass
    cluster.away = set()
    cluster.run(8)
    cluster.primary.take(said(b"last"), noted(b"last of all"))
    cluster.run(2)


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_entries_keep_their_place_whatever_happens(cluster: Cluster, seed: int) -> None:
    suffer(cluster, Random(seed))
    cluster.check_same()
    assert cluster.primary.log.head > 20
    assert len(cluster.primary.notes.kept) > 20


def applies_from_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that starts takes the newest message of its snapshot for its place, and applies entries twice."""

    def restore(self: HubState, log: Log) -> None:
        if log.snapshot is not None:
            self.load(log.snapshot)
        begin = log.op_of(self.seq) + 1 if self.seq >= log.first else max(log.first_op, self.op + 1)
        for each in log.scan_ops(begin):
            self.apply(each)

    monkeypatch.setattr(HubState, "restore", restore)


def cuts_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut goes back to a message, and takes the entries that stand after it along."""
    cut_back = Hub.cut_back

    def cut(self: Hub, last: int) -> None:
        seq = self.log.seq_of(last)
        cut_back(self, self.log.op_of(seq) if seq >= self.log.first else self.log.first_op - 1)

    monkeypatch.setattr(Hub, "cut_back", cut)


def serves_entries_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are served before the message that they stand after, and both take one another's place."""
    read_ops = Log.read_ops

    def read(self: Log, *args: int, **kwargs: bool) -> list[Batch]:
        found = read_ops(self, *args, **kwargs)
        for place in range(len(found) - 1):
            before, after = found[place : place + 2]
            if kwargs.get("uncommitted") and after.is_entries and not before.is_entries:
                moved = after.numbered(before.op, before.first - 1, before.time, before.node)
                found[place : place + 2] = [
                    moved,
                    before.numbered(moved.last_op + 1, before.first, before.time, before.node),
                ]
        return found

    monkeypatch.setattr(Log, "read_ops", read)


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (applies_from_the_message, "applied twice"),
        (cuts_messages, "cannot cut back to .* is committed|cannot commit|cannot follow"),
        (serves_entries_first, "the logs differ|cannot follow message"),
    ],
)
def test_an_entry_out_of_place_is_noticed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[pytest.MonkeyPatch], None],
    noticed: str,
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, HeadraceError), match=noticed):  # noqa: PT012 -- which seed shows it is chance
        for seed in range(20):
            cluster = Cluster(tmp_path / str(seed), "interval")
            try:
                cluster.run(5)
                suffer(cluster, Random(seed))
                cluster.check_same()
            finally:
                cluster.close()
