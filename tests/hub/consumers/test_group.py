"""A durable consumer's group without sockets or threads: reads are done, and turns taken, when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import DamagedError, HeadraceError, StorageError
from headrace.hub.consumers.cursors import Consumers, Lag, create
from headrace.hub.consumers.delivery import Assign
from headrace.hub.consumers.group import ConsumerFilter, ConsumerGroup, Found, WhenRead
from headrace.hub.consumers.outstanding import spans
from headrace.hub.consumers.settlements import TurnEntries
from headrace.hub.consumers.terms import Terms
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.message import Batch, Run, merge
from headrace.wire.link.message import Buffer, body_of


class Member:
    """A member that takes everything its credit allows."""

    def __init__(self, number: int, credit: int = 1 << 20) -> None:
        self.number = number
        self.client = object()
        self.needs = 1
        self.reading = False
        self.room = credit
        self.sent: list[tuple[int, int, int]] = []
        self.ended: HeadraceError | None = None

    @property
    def able(self) -> bool:
        return not self.reading and self.ended is None and self.allows(self.needs)

    def allows(self, size: int) -> bool:
        return size <= self.room

    def send(self, given: Assign, last: int, body: Buffer) -> None:
        self.room -= len(body)
        self.sent.append((given.first, last, given.tries))

    def end(self, error: HeadraceError) -> None:
        self.ended = error


class Scene:
    """A hub with one consumer and some messages."""

    def __init__(self, directory: Path, messages: int = 3, **terms: object) -> None:
        self.log = Log.open(directory, fsync="never")
        self.consumers = Consumers()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 20, state=HubState(self.consumers))
        self.publish(create("c", Terms(**terms), 1))  # type: ignore[arg-type]
        for number in range(messages):
            self.publish(Batch(Run.one(b"%d" % number), origin="tube"))
        self.consumer = self.consumers.get("c")
        assert self.consumer is not None
        self.reads: list[tuple[int, int, int, WhenRead]] = []
        self.turns: list[Callable[[], None]] = []
        self.now = 0.0
        self.entries = TurnEntries(self.hub.submit, lambda write: self.turns.append(write))
        self.group = ConsumerGroup(
            self.consumer,
            self.hub,
            self.entries,
            read=lambda *read: self.reads.append(read),
            soon=lambda turn: self.turns.append(turn),
        )

    def publish(self, batch: Batch) -> None:
        self.hub.submit(batch)
        self.hub.turn(0)

    def join(self, member: Member) -> Member:
        self.group.join(member)
        self.group.ready(member)
        return member

    def go_on(self, error: BaseException | None = None) -> None:
        """Do the reads, and take the turns, that are due now."""
        assert self.consumer is not None
        reads, self.reads = self.reads, []
        for first, last, _, told in reads:
            if error is not None:
                told(error, self.now)
                continue
            rows = ConsumerFilter(self.consumer).apply(merge(self.log.read(first, last)))
            body = body_of(rows) if rows.num_rows else None
            told(Found(last, rows, spans(rows.column("seq").to_numpy()), body), self.now)
        while self.turns:
            self.turns.pop(0)()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.log.close()


def test_an_acknowledgement_is_answered_once_its_entry_is_committed(scene: Scene) -> None:
    member = scene.join(Member(1))
    scene.go_on()
    assert member.sent == [(1, 3, 1)]
    told: list[StorageError | None] = []
    scene.group.ack([(1, 2)], told.append)
    scene.group.ack([(3, 3)], told.append)
    scene.go_on()
    assert told == []
    scene.hub.turn(0)
    assert told == [None, None]
    assert scene.consumer is not None
    assert scene.consumer.floor == 3
    assert (scene.log.head, scene.log.head_op) == (3, 5)


def test_an_entry_that_the_log_refuses_fails_those_who_wait_and_is_delivered_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = scene.join(Member(1))
    scene.go_on()
    told: list[StorageError | None] = []
    scene.group.ack([(1, 3)], told.append)
    scene.go_on()

    def fail(_: object) -> None:
        raise StorageError("no")

    with monkeypatch.context() as patch:
        patch.setattr(scene.log, "append", fail)
        scene.hub.turn(0)
    assert isinstance(told[0], StorageError)
    for _ in range(3):
        scene.go_on()
    assert member.sent == [(1, 3, 1), (1, 3, 1)]


def test_a_member_without_room_gives_its_range_to_another(scene: Scene) -> None:
    poor = scene.join(Member(1, credit=8))
    rich = Member(2)
    scene.go_on()
    assert (poor.sent, poor.needs > 8, poor.able) == ([], True, False)
    scene.join(rich)
    scene.go_on()
    scene.go_on()
    assert rich.sent == [(1, 2, 1), (3, 3, 1)]
    assert not scene.reads


def test_what_was_tried_too_often_is_buried_after_a_read_that_fails_first(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1, ack_seconds=1.0, max_tries=1)
    member = scene.join(Member(1))
    scene.go_on()
    assert member.sent == [(1, 1, 1)]
    scene.now = 10.0
    scene.group.tick(scene.now)
    scene.go_on(StorageError("not now"))
    assert scene.log.head_op == 2
    scene.group.tick(scene.now)
    scene.go_on()
    scene.hub.turn(0)
    written = scene.log.read_ops(3, scene.log.head_op)
    assert [(batch.topic, batch.last) for batch in written] == [("dead/c", 2), ("consumer/", 2)]
    assert scene.consumer is not None
    # The dead letter is not one of its messages: nothing is left to do.
    assert (scene.consumer.floor, scene.consumer.dead) == (2, 1)
    assert scene.consumers.lag(scene.consumer, scene.log.head) == Lag(0)
    scene.log.close()


def test_a_damaged_range_ends_the_member_and_a_stranger_error_is_raised(scene: Scene) -> None:
    member = scene.join(Member(1))
    damaged = DamagedError("file", 0, 1, 3, "rotten")
    scene.go_on(damaged)
    assert member.ended is damaged
    scene.join(Member(2))
    with pytest.raises(ZeroDivisionError):
        scene.go_on(ZeroDivisionError())


def test_a_group_that_knows_nothing_more_than_the_log_is_idle(scene: Scene) -> None:
    member = scene.join(Member(1))
    scene.go_on()
    assert not scene.group.idle
    scene.group.ack([(1, 3)], lambda _: None)
    scene.go_on()
    scene.group.leave(member, tried=False)
    assert not scene.group.idle
    scene.hub.turn(0)
    assert scene.group.idle


def test_what_was_passed_over_is_kept_when_the_last_member_leaves(tmp_path: Path) -> None:
    scene = Scene(tmp_path, topic="wanted")
    assert scene.consumer is not None
    first, second = scene.join(Member(1)), scene.join(Member(2))
    scene.go_on()
    scene.group.leave(first, tried=False)
    scene.go_on()
    scene.hub.turn(0)
    assert (scene.consumer.floor, scene.group.delivery.lag(3)) == (0, Lag(0))
    scene.group.leave(second, tried=False)
    scene.go_on()
    scene.hub.turn(0)
    assert (scene.consumer.floor, scene.consumer.lag(3)) == (3, Lag(0))
    assert scene.group.idle
    scene.log.close()


def test_a_burial_comes_after_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 2, ack_seconds=1.0, max_tries=1)
    member = scene.join(Member(1))
    scene.go_on()
    scene.group.nack(member.client, [(2, 2)], lambda _: None)
    scene.group.ack([(1, 1)], lambda _: None)
    scene.turns.pop(0)()
    assert scene.reads
    assert scene.turns, "what is done has been gathered, and not written yet"
    scene.go_on()
    scene.hub.turn(0)
    written = [(batch.topic, len(batch)) for batch in scene.log.read_ops(4, scene.log.head_op)]
    assert written == [("consumer/", 1), ("dead/c", 1), ("consumer/", 1)]
    assert scene.consumer is not None
    assert scene.consumer.floor == 3
    scene.log.close()
