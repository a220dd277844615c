"""A replica's driver by itself: a real log and hub, and a disk and neighbours that are played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs
from tests.net.cluster.test_node import until

from headrace.cluster.durable_state import (
    STATE_FILE,
    DurableState,
    StoredState,
    load,
    remember,
    serialize_testimony,
)
from headrace.cluster.effects import Status
from headrace.cluster.history import History
from headrace.errors import HeadraceError, StorageError
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.publishing.query_marks import Queries
from headrace.hub.publishing.relaying.primary_client import PrimaryClient
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState
from headrace.log import Log, watermark
from headrace.log.replication_frames import pack
from headrace.log.watermark import COMMITTED
from headrace.message import NOT_A_MESSAGE, Batch, Run
from headrace.net.cluster import replica_driver
from headrace.net.cluster.replica_driver import ReplicaDriver
from headrace.net.server.machine.log_disk import LogDisk
from headrace.wire.parcel.body import (
    Commit,
    GetState,
    NewState,
    Prepare,
    PrepareOk,
    Recovery,
    Replication,
    StartView,
)

NODES = (10, 20, 30)
"""View 1 has primary 20, view 2 has 30, view 3 has 10."""


class Around:
    """What is around a node: nobody answers, and all that it says is kept."""

    def __init__(self) -> None:
        self.posted: list[Replication] = []
        self.given_up: list[str] = []
        self.full = False

    def takes(self, _to: int) -> bool:
        return not self.full

    @property
    def streams(self) -> dict[int, Around]:
        return dict.fromkeys(NODES, self)

    def post(self, body: Replication, _bulk: bytes) -> None:
        self.posted.append(body)

    def broadcast(self, body: Replication, _bulk: bytes) -> None:
        self.posted.append(body)

    def halted(self, reason: str) -> None:
        self.given_up.append(reason)

    def fetch_snapshot(self, token: int, source: int, after: int) -> None: ...
    def install(self) -> None: ...
    def is_now(self, status: Status, view: int, primary: int | None) -> None: ...
    def numbers_here(self) -> None: ...
    def settled(self) -> None: ...


class Slow(Executor):
    """A disk that has done nothing until it is told to go on."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[..., Any]]] = []

    def submit(self, work: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, work))
        return future

    def go_on(self) -> None:
        work, self.work = self.work, []
        for future, each in work:
            try:
                future.set_result(each())
            except HeadraceError as error:
                future.set_exception(error)


class Prompt(Slow):
    """A disk that has done everything when it is told to, unless it hangs."""

    hangs = False

    def submit(self, work: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        future = super().submit(work)
        if not self.hangs:
            self.go_on()
        return future

    def wait(self, future: Future[Any], _seconds: float) -> bool:
        return future.done()


class Node:
    """One of three, as it is when it starts again."""

    def __init__(self, me: int, log: Log, state: DurableState, **kept_as: Any) -> None:
        self.log = log
        publishers = PublisherNumbers()
        self.hub = Hub(log, me, max_uncommitted=1 << 20, state=HubState(publishers))
        self.disk = Slow()
        self.around = Around()
        intake = PublishIntake(self.hub, publishers, Queries(), log.directory / "stages")
        now = asyncio.get_running_loop().time()
        passing = PrimaryClient(self.hub, intake, patience=5, name=lambda: "name", now=now)
        self.hub.sequencer = passing
        kept: StoredState = replace(remember(log, state), **kept_as)
        self.writer = Prompt()
        self.ticks = 0
        disk = LogDisk(log, self.disk, self.writer)
        disk.keep_note()
        self.driver = ReplicaDriver(me, 3, self.hub, kept, self.around, passing, disk)
        self.driver.start(self._ticked)

    def _ticked(self, _now: float) -> None:
        self.ticks += 1

    def hears(self, sender: int, body: Replication, bulk: bytes) -> None:
        self.driver.receive(sender, body, bulk)

    @property
    def confirmed(self) -> int:
        """How far it has said that it has come."""
        return max((body.last for body in self.around.posted if isinstance(body, PrepareOk)), default=0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with_always = Log.open(tmp_path, fsync="always", committed=0)
    yield with_always
    with_always.close()


@pytest.fixture
async def start(log: Log) -> Any:
    nodes: list[Node] = []

    def begin(me: int, *, kept_as: dict[str, Any] | None = None, **state: Any) -> Node:
        known = {"view": 1, "last_normal": 1, "voter": True, "nodes": NODES, "history": History([(1, 1)])}
        nodes.append(Node(me, log, DurableState(**{**known, **state}), **(kept_as or {})))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.driver.close()


Begin = Callable[..., Node]


def batch(first: int, *payloads: bytes) -> Batch:
    """Messages of a log that has nothing else."""
    return Batch(Run.of(payloads), op=first, first=first, time=first, origin="tube")


def entries(op: int, after: int, *payloads: bytes) -> Batch:
    return Batch(Run.of(payloads), op=op, first=after, time=after, origin=NOT_A_MESSAGE, topic="hold/mine")


async def test_what_nobody_else_got_is_cut_off_also_if_it_was_the_first_of_all(
    log: Log, start: Begin
) -> None:
    """It was of a log that this node began; the others have begun another one since, and numbers arrive at once."""
    log.append([batch(1, b"nobody got this")])
    node, theirs = start(20), uuid4()
    bulk = pack(theirs, [batch(1, b"this one was taken")])
    node.hears(30, Prepare(2, 1, 1, 0), bulk)
    assert node.around.given_up == []
    node.hears(
        30, StartView(2, 0, 0), serialize_testimony(DurableState(voter=True, nodes=NODES), History([(2, 1)]))
    )
    node.hears(30, Prepare(2, 1, 1, 0), bulk)
    assert payloads(log) == [b"this one was taken"]
    assert log.uuid == theirs
    assert node.around.given_up == []


async def test_a_node_in_order_is_never_sent_another_log(log: Log, start: Begin) -> None:
    log.append([batch(1, b"mine")])
    node = start(10)
    node.hears(20, Prepare(1, 1, 1, 0), pack(uuid4(), [batch(1, b"theirs")]))
    assert "headrace cluster replace" in node.around.given_up[0]
    assert payloads(log) == [b"mine"]


async def test_nor_is_one_that_catches_up(log: Log, start: Begin) -> None:
    log.append([batch(1, b"mine")])
    node = start(10, last_normal=1)
    node.hears(
        30,
        StartView(2, 2, 0),
        serialize_testimony(DurableState(voter=True, nodes=NODES), History([(1, 1), (2, 3)])),
    )
    node.hears(30, NewState(2, 2, 2, 0), pack(uuid4(), [batch(2, b"theirs")]))
    assert "headrace cluster replace" in node.around.given_up[0]
    assert payloads(log) == [b"mine"]


async def test_one_that_begins_anew_vouches_for_nothing_that_is_not_on_the_disk(
    log: Log, start: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_driver, "_RESTART_SECONDS", 0.0)
    node = start(10)
    node.hears(20, Prepare(1, 1, 1, 0), pack(log.uuid, [batch(1, b"under way to the disk")]))
    node.driver._break_off(StorageError("no space"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert node.confirmed == 0
    node.disk.go_on()
    await until("it takes part again", lambda: node.confirmed == 1)


async def test_the_log_is_not_read_for_one_that_does_not_take_what_it_is_sent(
    log: Log, start: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([batch(1, b"one", b"two")])
    node = start(10)
    node.hears(20, GetState(1, 0), b"")
    assert [(body.first, body.last) for body in node.around.posted if isinstance(body, NewState)] == [(1, 2)]
    node.around.full = True
    monkeypatch.setattr(Log, "read_ops", lambda *_, **__: pytest.fail("it was read"))
    for _ in range(10):
        node.hears(20, GetState(1, 0), b"")
    assert sum(isinstance(body, NewState) for body in node.around.posted) == 1


async def test_what_is_cut_off_is_told_in_messages(
    log: Log, start: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    log.append(
        [batch(1, b"one"), entries(2, 1, b"a", b"b"), structs.replace(batch(2, b"two", b"three"), op=4)]
    )
    log.append([entries(6, 3, b"c")])
    node = start(20)
    node.hears(
        30,
        StartView(2, 3, 0),
        serialize_testimony(DurableState(voter=True, nodes=NODES), History([(1, 1), (2, 4)])),
    )
    assert (log.tail, log.tail_op) == (1, 3)
    assert node.hub.counters.get("cut_back") == 2
    assert "cut_back: messages 2 to 3: the cluster went on without them" in caplog.text


async def test_that_entries_alone_are_cut_off_is_no_loss_of_messages(log: Log, start: Begin) -> None:
    log.append([batch(1, b"one"), entries(2, 1, b"a", b"b")])
    node = start(20)
    node.hears(
        30,
        StartView(2, 1, 0),
        serialize_testimony(DurableState(voter=True, nodes=NODES), History([(1, 1), (2, 2)])),
    )
    assert (log.tail, log.tail_op) == (1, 1)
    assert node.hub.counters.get("cut_back") == 0


async def test_a_log_of_another_history_is_told_by_the_message_after_which_it_parts(
    log: Log, start: Begin
) -> None:
    log.append(
        [
            entries(1, 0, b"a"),
            structs.replace(batch(1, b"one"), op=2),
            entries(3, 1, b"b"),
            entries(4, 1, b"c"),
        ]
    )
    log.commit(4)
    node = start(20, commit=4)
    other = History([(1, 1), (2, 4), (5, 9)])
    node.hears(30, StartView(5, 8, 8), serialize_testimony(DurableState(voter=True, nodes=NODES), other))
    assert "this node has committed what the cluster has not" in node.around.given_up[0]
    assert "the two part after message 1" in node.around.given_up[0]


@pytest.mark.parametrize("written", ["interval", "never"])
async def test_a_log_that_was_written_with_less_does_not_vote_after_a_power_failure(
    log: Log, start: Begin, written: str
) -> None:
    """What is set now, ``always``, says nothing about what was lost: the node may have vouched for more."""
    log.append([batch(1, b"all that is left")])
    node = start(10, kept_as={"fsync": written, "boot": "an earlier one"})
    node.hears(30, StartView(2, 0, 0), serialize_testimony(DurableState(voter=True, nodes=NODES), History()))
    assert node.driver.replica is not None
    assert node.driver.replica.state.status is Status.RECOVERING
    assert {type(body) for body in node.around.posted} == {Recovery}


async def test_a_log_that_was_synced_votes_and_tells_how_it_is_written_from_now_on(
    log: Log, start: Begin
) -> None:
    node = start(10, kept_as={"boot": "an earlier one"})
    assert node.driver.replica is not None
    assert node.driver.replica.state.status is Status.NORMAL
    stored = load(log.directory / STATE_FILE)
    assert stored is not None
    assert (stored.fsync, stored.boot) == ("always", remember(log, stored.state).boot)


async def test_the_commit_number_outlives_the_process(log: Log, start: Begin) -> None:
    """Else a node that is started again would cut off, without a word, what it had shown and acknowledged."""
    log.append([batch(1, b"one", b"two", b"three")])
    log.sync()
    node = start(10)
    node.hears(20, Commit(1, 3, 2), b"")
    assert log.head_op == 2
    await until("it is noted", lambda: (node.disk.go_on(), watermark.read(log.directory, COMMITTED))[1])
    assert watermark.read(log.directory, COMMITTED) == (log.uuid, 2)


async def test_a_commit_number_that_counts_only_once_synced_is_not_noted_before(
    log: Log, start: Begin
) -> None:
    node = start(10)
    node.hears(20, Prepare(1, 1, 1, 0), pack(log.uuid, [batch(1, b"not on the disk yet")]))
    node.hears(20, Commit(1, 1, 1), b"")
    assert log.head_op == 1
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert watermark.read(log.directory, COMMITTED) is None
    await until("it is noted", lambda: (node.disk.go_on(), watermark.read(log.directory, COMMITTED))[1])


async def test_what_waits_for_the_disk_holds_up_what_follows_and_nothing_else(log: Log, start: Begin) -> None:
    log.append([batch(1, b"one"), batch(2, b"two")])
    node = start(10)
    node.around.posted.clear()
    node.writer.hangs = True
    told = serialize_testimony(DurableState(voter=True, nodes=NODES), History([(1, 1), (2, 2)]))
    node.hears(30, StartView(2, 1, 0), told)
    bulk = pack(log.uuid, [batch(2, b"another two")])
    node.hears(30, Prepare(2, 2, 2, 0), bulk)
    assert node.around.posted == [], "it says nothing before the view is stored"
    ticks = node.ticks
    await until("its heartbeats go on", lambda: node.ticks > ticks + 1)
    assert payloads(log) == [b"one", b"two"]
    for _ in range(6):  # to store the view, to cut back, to store that, to store that it has entered it
        node.writer.go_on()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert payloads(log) == [b"one", b"another two"]
    node.disk.go_on()
    await until("it confirms", lambda: node.confirmed == 2)
    assert not node.hub.paused


async def test_a_node_whose_disk_hangs_takes_no_part_until_it_answers(
    log: Log, start: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_driver, "HUNG_SECONDS", 0.5)
    monkeypatch.setattr(replica_driver, "_RESTART_SECONDS", 0.0)
    node = start(10)
    node.hears(20, Prepare(1, 1, 1, 0), pack(log.uuid, [batch(1, b"on its way to the disk")]))
    await until("it waits", lambda: node.driver.replica is None)
    assert "the disk has not answered for" in str(node.driver.trouble)
    assert node.driver.present_primary is None
    ticks = node.ticks
    await until("its heartbeats go on", lambda: node.ticks > ticks + 1)
    assert node.confirmed == 0
    await until("it takes part again", lambda: (node.disk.go_on(), node.confirmed == 1)[1])
    assert node.driver.trouble is None


async def test_a_slow_disk_is_appended_to_by_a_thread_in_order(log: Log, start: Begin) -> None:
    node = start(10)
    node.driver._disk.slow = True
    node.writer.hangs = True
    for first in (1, 2, 3):
        node.hears(20, Prepare(1, first, first, 0), pack(log.uuid, [batch(first, b"%d" % first)]))
    assert payloads(log) == []
    for _ in range(3):
        node.driver._disk.slow = True
        node.writer.go_on()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert payloads(log) == [b"1", b"2", b"3"]


async def test_what_waits_for_a_slow_disk_is_bounded(
    log: Log, start: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_driver, "_MAX_WAITING", 1000)
    node = start(10)
    node.driver._disk.slow = True
    node.writer.hangs = True
    for first in range(1, 20):
        node.hears(20, Prepare(1, first, first, 0), pack(log.uuid, [batch(first, bytes(100))]))
    assert node.hub.counters.get("parcels_dropped") > 10


async def test_a_view_without_a_primary_is_not_shown_as_one(log: Log, start: Begin) -> None:
    node = start(10, view=0, last_normal=0, history=History([(0, 1)]))
    assert node.driver.status is Status.NORMAL
    assert node.driver.present_primary is None


async def test_a_primary_that_has_fallen_silent_is_not_there(log: Log, start: Begin) -> None:
    node = start(10)
    replica = node.driver.replica
    assert replica is not None
    assert node.driver.present_primary == 20
    assert replica.present_primary(asyncio.get_running_loop().time() + 4) is None
    node.hears(20, Commit(1, 0, 0), b"")
    assert node.driver.present_primary == 20


def payloads(log: Log) -> list[bytes]:
    return [message.payload for each in log.read_ops(1, uncommitted=True) for message in each]
