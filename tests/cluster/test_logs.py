"""Replicas with real logs and real state files, driven as :mod:`headrace.cluster` says; only the network is played."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tests.log.content import batch, flat, seal_all

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
from headrace.log import Log
from headrace.log.snapshot import Snapshot
from headrace.log.start_after_snapshot import install
from headrace.message import Batch
from headrace.wire.parcel.body import NewState, Prepare, Replication
from headrace.wire.parcel.stream import Parcel, ParcelDecoder, serialize

LOG_UUID = UUID(int=42)


class Node:
    """The smallest driver there is: everything is done at once, in order."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.id = number
        self.directory = cluster.directory / str(number)
        self.snapshots: dict[int, Snapshot] = {}
        self.cuts: list[int] = []
        self.open()

    def open(self) -> None:
        self.directory.mkdir(exist_ok=True)
        kept = load(self.directory / "cluster")
        committed = 0 if kept is None else kept.state.commit
        self.log = Log.open(
            self.directory / "log", fsync=self.cluster.fsync, committed=committed, uuid=LOG_UUID
        )
        self.replica = Replica(
            self.id,
            3,
            stored=None if kept is None else kept.state,
            commit=self.log.head,
            tail=self.log.tail,
            intact=kept is not None and kept.log == str(self.log.uuid),
            synced_only=self.cluster.fsync == "always",
            random=Random(self.id),
        )
        self.do(self.replica.start(self.cluster.now))

    def close(self) -> None:
        self.log.close()

    def publish(self, *payloads: bytes) -> None:
        numbered = batch(
            self.log.tail + 1, *payloads, time=max(self.log.last_time, int(self.cluster.now * 1e6))
        )
        self.log.append([numbered])
        self.do(self.replica.appended(numbered.first, numbered.last, self.cluster.now), [numbered])

    def receive(self, sender: int, parcel: Parcel, batches: Sequence[Batch]) -> None:
        self.do(self.replica.receive(sender, parcel.body, parcel.bulk, self.cluster.now), batches)  # type: ignore[arg-type]

    def do(self, effects: list[Effect], batches: Sequence[Batch] = ()) -> None:
        completed: list[Callable[[], list[Effect]]] = []
        for effect in effects:
            match effect:
                case Send(to, body, bulk):
                    self.cluster.send(self.id, to, body, bulk)
                case Broadcast(body):
                    for to in self.cluster.others(self.id):
                        self.cluster.send(
                            self.id, to, body, b"", batches if isinstance(body, Prepare) else ()
                        )
                case Append(first, last):
                    self.log.append(list(cut(batches, first, last)))
                case CutBack(last):
                    self.log.cut_back(last)
                    self.cuts.append(last)
                case Sync(token):
                    upto = self.log.sync()
                    completed.append(
                        lambda token=token, upto=upto: self.replica.synced(token, upto, self.cluster.now)
                    )
                case Persist(state):
                    save(self.directory / "cluster", StoredState(state, "boot", str(self.log.uuid)))
                case Advance(commit):
                    self.log.commit(commit)
                case Serve(to, view, first, last, commit):
                    self._serve(to, view, first, last, commit)
                case FetchSnapshot(token, source):
                    snapshot = self.cluster.nodes[source].log.snapshot
                    seq = None
                    if snapshot is not None:
                        self.snapshots[token] = snapshot
                        seq = snapshot.seq
                    completed.append(
                        lambda token=token, seq=seq: self.replica.fetched(token, seq, self.cluster.now)
                    )
                case Install(token):
                    self.log.close()
                    install(self.directory / "log", self.snapshots.pop(token), 0)
                    self.log = Log.open(self.directory / "log", fsync=self.cluster.fsync)
                case Become() | Halt():
                    pass
        for completion in completed:
            self.do(completion())

    def _serve(self, to: int, view: int, first: int, last: int, commit: int) -> None:
        if first < self.log.first:
            self.cluster.send(self.id, to, NewState(view, self.log.first, self.log.first - 1, commit), b"")
            return
        found = self.log.read(first, last, 100, uncommitted=True)
        reached = found[-1].last if found else first - 1
        self.cluster.send(self.id, to, NewState(view, first, reached, commit), b"", found)


def cut(batches: Sequence[Batch], first: int, last: int) -> Iterator[Batch]:
    for each in batches:
        begin, end = max(first, each.first), min(last, each.last)
        if begin <= end:
            yield each.slice(begin - each.first, end - each.first + 1)


class Cluster:
    def __init__(self, directory: Path, fsync: str) -> None:
        self.directory = directory
        self.fsync = fsync
        self.now = 0.0
        self.away: set[int] = set()
        self._wire: deque[tuple[int, int, bytes, Sequence[Batch]]] = deque()
        self.nodes: dict[int, Node] = {}
        for number in (1, 2, 3):
            self.nodes[number] = Node(self, number)

    def others(self, number: int) -> list[int]:
        return [other for other in (1, 2, 3) if other != number]

    def send(
        self, source: int, to: int, body: Replication, bulk: bytes, batches: Sequence[Batch] = ()
    ) -> None:
        self._wire.append((source, to, serialize(Parcel(source, body, bulk)), batches))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            while self._wire:
                source, to, parcel, batches = self._wire.popleft()
                if to in self.nodes and source in self.nodes and not self.away & {source, to}:
                    [decoded] = ParcelDecoder().feed(parcel)
                    self.nodes[to].receive(source, decoded, batches)
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
        logs = [node.log for node in self.nodes.values()]
        assert len({(log.head, log.tail) for log in logs}) == 1
        begin = max(log.first for log in logs)
        first, *others = [flat(log.scan(begin)) for log in logs]
        assert all(other == first for other in others)
        assert {node.replica.state.status for node in self.nodes.values()} == {Status.NORMAL}

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


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
    for number in range(30):
        cluster.primary.publish(b"%d" % number)
    cluster.run(1)
    for node in cluster.nodes.values():
        node.log.write_snapshot(20, {"services": b"at 20"})
        seal_all(node.log)
    cluster.primary.publish(b"more")
    cluster.run(1)
    for node in cluster.nodes.values():
        node.log.write_snapshot(30, {"services": b"at 30"})
        node.log.retain(0, retain_bytes=0, retain_us=None, holds={})
        assert node.log.first == 31
    emptied = next(node for node in cluster.nodes.values() if node is not cluster.primary)
    emptied.close()
    shutil.rmtree(emptied.directory)
    emptied.open()
    assert not emptied.replica.state.voter
    cluster.run(6)
    assert emptied.replica.state.voter
    assert (emptied.log.first, emptied.log.head) == (31, 31)
    assert emptied.log.snapshot is not None
    assert emptied.log.snapshot.sections == {"services": b"at 30"}
    cluster.primary.publish(b"and on")
    cluster.run(1)
    cluster.check_same()
