"""The sequencer: what is submitted in a turn is numbered, stamped, appended once, committed, handed out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.log.content import columns

from headrace.errors import FullError, StorageError, UsageError
from headrace.hub.holds import hold
from headrace.hub.sequence import TURN_BYTES, Hub
from headrace.hub.sequencer import Done, Submission
from headrace.hub.state import entry
from headrace.log import Log
from headrace.message import MAX_SEQUENCE, Batch, Run


class Door:
    """Keeps what it is handed, and what the log's head was then."""

    def __init__(self, log: Log | MemoryLog) -> None:
        self._log = log
        self.seen: list[tuple[int, bytes]] = []
        self.calls: list[tuple[int, int, int]] = []

    def deliver(self, batches: Sequence[Batch]) -> None:
        if batches:
            self.calls.append((batches[0].first, batches[-1].last, self._log.head))
        for batch in batches:
            assert not batch.is_entries
            self.seen += enumerate(batch.run, batch.first)


class MemoryLog:
    """A log without a disk, which can be told to be full."""

    def __init__(self, tail: int = 0) -> None:
        self.tail = self.head = self.tail_op = self.head_op = tail
        self.last_time = 0
        self.snapshot = None
        self.appended: list[list[Batch]] = []
        self.error: StorageError | UsageError | None = None

    def append(self, batches: Sequence[Batch]) -> None:
        if self.error is not None:
            raise self.error
        for batch in batches:
            assert batch.first == (self.tail if batch.is_entries else self.tail + 1)
            assert batch.op == self.tail_op + 1
            assert batch.time >= self.last_time
            self.tail, self.tail_op, self.last_time = batch.last, batch.last_op, batch.time
        self.appended.append(list(batches))

    def commit(self, op: int) -> None:
        assert self.head_op <= op <= self.tail_op
        self.head_op = op
        for batch in (each for appended in self.appended for each in appended if each.op <= op):
            self.head = batch.last if batch.is_entries else min(batch.last, batch.first + op - batch.op)

    def scan_ops(self, _first: int) -> Iterator[Batch]:
        return iter(())


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def hub(log: MemoryLog) -> Hub:
    return make(log)


def make(log: MemoryLog, max_uncommitted: int = 1000) -> Hub:
    return Hub(log, 77, max_uncommitted=max_uncommitted)  # type: ignore[arg-type]


def batch(*payloads: bytes, origin: str = "spp") -> Batch:
    return Batch(Run.of(payloads), origin=origin, publisher="alice", number=5, topic="t")


class TestTurn:
    def test_numbers_start_at_1_and_have_no_holes(self, hub: Hub, log: MemoryLog) -> None:
        hub.submit(batch(b"a", b"b"))
        hub.submit(batch(b"c"))
        hub.turn(10)
        hub.submit(batch(b"d"))
        hub.turn(20)
        assert [[(each.first, each.last) for each in batches] for batches in log.appended] == [
            [(1, 2), (3, 3)],
            [(4, 4)],
        ]
        assert log.head == 4

    def test_all_of_a_turn_is_one_append(self, hub: Hub, log: MemoryLog) -> None:
        for number in range(50):
            hub.submit(batch(b"%d" % number))
        hub.turn(0)
        assert len(log.appended) == 1

    def test_nothing_submitted_appends_nothing(self, hub: Hub, log: MemoryLog) -> None:
        hub.turn(0)
        assert log.appended == []

    def test_what_the_sequencer_stamps_and_what_it_leaves(self, hub: Hub, log: MemoryLog) -> None:
        hub.submit(batch(b"a"))
        hub.turn(123)
        ((stamped,),) = log.appended
        assert (stamped.first, stamped.time, stamped.node) == (1, 123, 77)
        assert (stamped.origin, stamped.publisher, stamped.number, stamped.topic) == ("spp", "alice", 5, "t")

    def test_what_a_publisher_claims_to_be_is_not_believed(self, hub: Hub, log: MemoryLog) -> None:
        columns = pa.record_batch(
            {
                "seq": pa.array([99], pa.int64()),
                "node": pa.array([1], pa.int32()),
                "topic": pa.array(["own"]),
            }
        )
        hub.submit(Batch(Run.of([b"a"]), origin="tube", columns=columns))
        hub.turn(5)
        ((stamped,),) = log.appended
        (message,) = stamped
        assert (message.seq, message.node, message.topic, message.time) == (1, 77, "own", 5)

    def test_time_never_decreases(self, hub: Hub, log: MemoryLog) -> None:
        for now in (100, 50, 99, 101):
            hub.submit(batch(b"a"))
            hub.turn(now)
        assert [batches[0].time for batches in log.appended] == [100, 100, 100, 101]

    def test_it_goes_on_behind_what_the_log_has(self) -> None:
        log = MemoryLog(tail=41)
        log.last_time = 1000
        hub = make(log)
        hub.submit(batch(b"a"))
        hub.turn(5)
        assert (log.appended[0][0].first, log.appended[0][0].time) == (42, 1000)

    def test_the_first_submission_of_a_turn_asks_for_it(self, hub: Hub) -> None:
        asked: list[int] = []
        hub.wake = lambda: asked.append(1)
        for _ in range(3):
            hub.submit(batch(b"a"))
        assert len(asked) == 1
        hub.turn(0)
        hub.submit(batch(b"b"))
        assert len(asked) == 2

    def test_what_a_door_submits_while_it_is_handed_something_is_for_the_next_turn(
        self, hub: Hub, log: MemoryLog
    ) -> None:
        asked: list[int] = []
        hub.wake = lambda: asked.append(1)

        class Echo:
            def deliver(self, batches: Sequence[Batch]) -> None:
                if batches[0].first == 1:
                    hub.submit(batch(b"echo"))

        hub.doors.append(Echo())
        hub.submit(batch(b"a"))
        hub.turn(0)
        assert (log.tail, len(asked)) == (1, 2)
        hub.turn(0)
        assert log.tail == 2


class TestFull:
    def test_a_turn_that_has_enough_to_do(self, hub: Hub, log: MemoryLog) -> None:
        assert not hub.full
        hub.submit(batch(bytes(TURN_BYTES - batch(b"").size - 1)))
        assert not hub.full
        hub.submit(batch(b"x"))
        assert hub.full
        hub.turn(0)
        assert not hub.full
        assert log.tail == 2

    def test_a_turn_that_is_refused_is_over_too(self, hub: Hub, log: MemoryLog) -> None:
        log.error = FullError("log", "no space left on device")
        hub.submit(batch(bytes(TURN_BYTES)))
        hub.turn(0)
        assert not hub.full


class TestCommit:
    def test_at_once_on_a_lone_hub(self, hub: Hub, log: MemoryLog) -> None:
        door = Door(log)
        hub.doors.append(door)
        outcomes: list[Batch | StorageError] = []
        hub.submit(batch(b"a", b"b"), outcomes.append)
        hub.submit(batch(b"c"))
        hub.turn(0)
        assert door.seen == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert door.calls == [(1, 3, 3)]  # the head is there before the door is told
        (outcome,) = outcomes
        assert isinstance(outcome, Batch)
        assert (outcome.first, outcome.last) == (1, 2)

    def test_failed_for_good(self, log: MemoryLog) -> None:
        hub = make(log, max_uncommitted=2)
        hub.commit_by(lambda _tail: None)
        door = Door(log)
        hub.doors.append(door)
        relieved: list[bool] = []
        hub.relieved = lambda: relieved.append(hub.congested)
        outcomes: list[object] = []
        hub.submit(batch(b"waits", b"too"), outcomes.append)
        hub.turn(0)
        assert hub.congested
        error = StorageError("the disk failed")
        hub.fail(error)
        hub.submit(batch(b"later"), outcomes.append)
        hub.turn(0)
        assert outcomes == [error, error]
        assert relieved == [False]
        assert (log.head, log.tail, door.seen) == (0, 2, [])

    def test_by_a_rule(self, log: MemoryLog) -> None:
        tails: list[int] = []
        hub = make(log)
        hub.commit_by(tails.append)
        door = Door(log)
        hub.doors.append(door)
        outcomes: list[object] = []
        for payload in (b"a", b"b", b"c"):
            hub.submit(batch(payload), outcomes.append)
            hub.turn(0)
        assert (tails, log.head, door.seen, outcomes) == ([1, 2, 3], 0, [], [])
        hub.committed(2)
        assert (door.seen, len(outcomes)) == ([(1, b"a"), (2, b"b")], 2)
        hub.committed(3)
        assert door.seen == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert door.calls == [(1, 2, 2), (3, 3, 3)]

    def test_in_the_middle_of_a_batch_the_batch_waits(self, log: MemoryLog) -> None:
        hub = make(log)
        hub.commit_by(lambda _tail: None)
        door = Door(log)
        hub.doors.append(door)
        hub.submit(batch(b"a", b"b", b"c"))
        hub.turn(0)
        hub.committed(2)
        assert (log.head, door.seen) == (2, [])
        hub.committed(3)
        assert door.seen == [(1, b"a"), (2, b"b"), (3, b"c")]

    def test_once_more_for_what_is_committed_already(self, log: MemoryLog) -> None:
        hub = make(log)
        hub.commit_by(lambda _tail: None)
        door = Door(log)
        hub.doors.append(door)
        hub.submit(batch(b"a"))
        hub.turn(0)
        hub.committed(1)
        hub.committed(1)
        assert door.calls == [(1, 1, 1)]

    def test_the_state_follows_what_is_committed(self, log: MemoryLog) -> None:
        hub = make(log)
        hub.commit_by(lambda _tail: None)
        hub.submit(entry("hold", "job", hold(1)))
        hub.turn(0)
        assert hub.state.holds == {}
        hub.committed(1)
        assert (hub.state.holds, hub.state.op, hub.state.seq) == ({"job": 1}, 1, 0)

    def test_entries_take_no_numbers_and_come_to_no_door(self, hub: Hub, log: MemoryLog) -> None:
        door = Door(log)
        hub.doors.append(door)
        outcomes: list[Batch | StorageError] = []
        hub.submit(entry("hold", "a", hold(1)), outcomes.append)
        hub.submit(batch(b"a"), outcomes.append)
        hub.submit(entry("hold", "b", hold(1)), outcomes.append)
        hub.submit(batch(b"b", b"c"), outcomes.append)
        hub.turn(0)
        assert door.seen == [(1, b"a"), (2, b"b"), (3, b"c")]
        places = [(each.first, each.last, each.op) for each in outcomes if isinstance(each, Batch)]
        assert places == [(0, 0, 1), (1, 1, 2), (1, 1, 3), (2, 3, 4)]
        assert (log.head, log.head_op) == (3, 5)

    def test_doors_are_called_after_a_commit_of_entries_alone(self, hub: Hub) -> None:
        calls: list[Sequence[Batch]] = []

        class Listening:
            def deliver(self, batches: Sequence[Batch]) -> None:
                calls.append(batches)

        hub.doors.append(Listening())
        hub.submit(entry("hold", "a", hold(1)))
        hub.turn(0)
        assert [list(each) for each in calls] == [[]]

    def test_messages_are_counted_by_origin(self, hub: Hub) -> None:
        hub.submit(batch(b"a", b"b"))
        hub.submit(batch(b"c", origin="tube"))
        hub.turn(0)
        hub.submit(batch(b"d"))
        hub.turn(0)
        assert hub.counters.get("received", origin="spp") == 3
        assert hub.counters.get("received", origin="tube") == 1


class TestCongestion:
    def test_more_than_the_hub_wants_to_hold(self, log: MemoryLog) -> None:
        hub = make(log, max_uncommitted=2 * batch(b"12345").size)
        hub.commit_by(lambda _tail: None)
        relieved: list[bool] = []
        hub.relieved = lambda: relieved.append(hub.congested)
        for payload in (b"12345", b"67890"):
            hub.submit(batch(payload))
            hub.turn(0)
        assert not hub.congested
        hub.submit(batch(b"x"))
        hub.turn(0)
        assert hub.congested
        hub.committed(1)
        assert relieved == [False]
        hub.committed(3)
        assert relieved == [False]

    def test_attributes_count_as_payloads_do(self, log: MemoryLog) -> None:
        hub = make(log, max_uncommitted=10_000)
        hub.commit_by(lambda _tail: None)
        for _ in range(6):
            own = columns(attributes=[{"key": "v" * 2000}])
            hub.submit(Batch(Run.of([b""]), origin="attribute", columns=own))
            hub.turn(0)
        assert hub.congested
        hub.committed(6)
        assert not hub.congested
        assert hub._uncommitted.size == 0

    @pytest.mark.parametrize(
        "small",
        [
            Batch(Run.of([b""]), origin="spp"),
            Batch(Run.of([b""] * 100_000), origin="fyrehose"),
            Batch(Run.of([b""]), origin="spp", topic="t" * 60_000),
        ],
        ids=["empty", "many", "topic"],
    )
    def test_messages_without_payload_count(self, log: MemoryLog, small: Batch) -> None:
        hub = make(log, max_uncommitted=1 << 20)
        hub.commit_by(lambda _tail: None)
        for _ in range(10_000):
            hub.submit(small)
            hub.turn(0)
            if hub.congested:
                break
        assert hub.congested
        hub.committed(log.tail)
        assert (hub.congested, hub._uncommitted.size) == (False, 0)

    def test_relief_comes_once_it_is_enough(self, log: MemoryLog) -> None:
        hub = make(log, max_uncommitted=batch(b"12345").size)
        hub.commit_by(lambda _tail: None)
        relieved: list[int] = []
        hub.relieved = lambda: relieved.append(log.head)
        for _ in range(4):
            hub.submit(batch(b"12345"))
            hub.turn(0)
        for seq in (1, 2, 3, 4):
            hub.committed(seq)
        assert relieved == [3]

    def test_a_lone_hub_is_never_congested(self, hub: Hub) -> None:
        hub.submit(batch(bytes(100_000)))
        hub.turn(0)
        assert not hub.congested


class TestRefusal:
    def test_a_full_disk_refuses_the_turn_and_the_next_goes_on(
        self, hub: Hub, log: MemoryLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        door = Door(log)
        hub.doors.append(door)
        log.error = FullError("log", "no space left on device")
        outcomes: list[object] = []
        hub.submit(batch(b"a", b"b"), outcomes.append)
        hub.submit(batch(b"c", origin="tube"), outcomes.append)
        hub.submit(batch(b"d"))
        hub.turn(0)
        assert outcomes == [log.error, log.error]
        assert (log.tail, door.seen) == (0, [])
        assert hub.counters.get("refused_messages", origin="spp", reason="storage") == 3
        assert hub.counters.get("refused_messages", origin="tube", reason="storage") == 1
        assert hub.counters.get("refused", door="spp", reason="storage") == 2
        assert "no space left on device" in caplog.text
        log.error = None
        hub.submit(batch(b"e"))
        hub.turn(0)
        assert door.seen == [(1, b"e")]

    def test_what_cannot_be_written_is_refused_and_the_next_turn_goes_on(
        self, hub: Hub, log: MemoryLog
    ) -> None:
        outcomes: list[object] = []
        log.error = UsageError("an empty batch has no first number")
        hub.submit(batch(b"a"), outcomes.append)
        hub.turn(0)
        (error,) = outcomes
        assert isinstance(error, StorageError)
        assert "an empty batch" in str(error)
        assert hub.counters.get("refused", door="spp", reason="unfit") == 1
        log.error = None
        hub.submit(batch(b"b"))
        hub.turn(0)
        assert log.head == 1

    def test_what_cannot_be_written_takes_nothing_else_with_it(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        hub = Hub(log, 1, max_uncommitted=1 << 20)
        outcomes: list[object] = []
        for topic in ("a", "x" * 70_000, "b"):
            hub.submit(Batch(Run.of([topic[:1].encode()]), origin="tube", topic=topic), outcomes.append)
        hub.turn(0)
        assert [isinstance(outcome, StorageError) for outcome in outcomes] == [False, True, False]
        assert [message.payload for each in log.scan(1) for message in each] == [b"a", b"b"]
        log.close()

    def test_numbers_end_at_48_bits(self) -> None:
        log = MemoryLog(tail=MAX_SEQUENCE - 2)
        hub = make(log)
        outcomes: list[object] = []
        hub.submit(batch(b"a", b"b", b"c"), outcomes.append)
        hub.turn(0)
        (error,) = outcomes
        assert isinstance(error, StorageError)
        assert str(MAX_SEQUENCE) in str(error)
        assert log.tail == MAX_SEQUENCE - 2
        hub.submit(batch(b"a", b"b"))
        hub.turn(0)
        assert log.head == MAX_SEQUENCE
        hub.submit(batch(b"a"), outcomes.append)
        hub.turn(0)
        assert log.head == MAX_SEQUENCE
        assert hub.counters.get("refused", door="spp", reason="sequence") == 2


class TestRealLog:
    def test_what_is_handed_out_is_what_the_log_has(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path / "log")
        hub = Hub(log, 1, max_uncommitted=1 << 20)
        door = Door(log)
        hub.doors.append(door)
        for number in range(20):
            for part in range(number % 3 + 1):
                hub.submit(batch(*[b"%d %d" % (number, part)] * (part + 1)))
            hub.turn(number)
        read = [(message.seq, message.payload) for each in log.scan(1) for message in each]
        assert door.seen == read
        assert [seq for seq, _ in read] == list(range(1, len(read) + 1))
        log.close()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.integers(1, 4)),
            st.tuples(st.just("entry"), st.integers(1, 9)),
            st.tuples(st.just("turn"), st.integers(0, 50)),
            st.tuples(st.just("commit"), st.integers(0, 10)),
            st.tuples(st.just("full"), st.booleans()),
        )
    )
)
def test_whatever_happens_every_door_sees_the_same_whole_sequence(script: list[tuple[str, int]]) -> None:
    log = MemoryLog()
    hub = make(log, max_uncommitted=1500)
    hub.commit_by(lambda _tail: None)
    doors = [Door(log), Door(log)]
    hub.doors += doors
    ended: list[int] = []
    submitted = 0
    for what, amount in script:
        match what:
            case "submit":
                hub.submit(batch(*[b"%d" % submitted] * amount), lambda _, at=submitted: ended.append(at))
                submitted += 1
            case "entry":
                hub.submit(
                    entry("hold", f"h{amount}", hold(amount)), lambda _, at=submitted: ended.append(at)
                )
                submitted += 1
            case "turn":
                hub.turn(amount)
            case "commit":
                hub.committed(min(log.tail_op, log.head_op + amount))
            case "full":
                log.error = FullError("log", "full") if amount else None
        seen = doors[0].seen
        assert doors[1].seen == seen
        assert [seq for seq, _ in seen] == list(range(1, len(seen) + 1))
        assert len(seen) <= log.head
        assert hub.congested == (hub._uncommitted.size > 1500)
    log.error = None
    hub.turn(99)
    hub.committed(log.tail_op)
    assert sorted(ended) == list(range(submitted))
    assert len(doors[0].seen) == log.head == log.tail
    assert hub._uncommitted.size == 0


class Elsewhere:
    """A sequencer that keeps what it is given."""

    def __init__(self) -> None:
        self.congested = False
        self.ordered: list[list[Batch]] = []
        self.heads: list[int] = []

    def order(self, submitted: Sequence[Submission]) -> None:
        self.ordered.append([each.batch for each in submitted])

    def committed(self, head: int) -> None:
        self.heads.append(head)


class TestSequencer:
    """Another hub numbers."""

    def test_a_turn_goes_there_and_not_into_the_log(self, hub: Hub, log: MemoryLog) -> None:
        elsewhere = Elsewhere()
        hub.sequencer = elsewhere  # type: ignore[assignment]
        hub.submit(batch(b"a"))
        hub.submit(batch(b"b"))
        hub.turn(5)
        hub.turn(6)
        assert [[list(each.run) for each in turn] for turn in elsewhere.ordered] == [[[b"a"], [b"b"]]]
        assert log.tail == 0

    def test_what_comes_from_there_is_kept_as_it_is(self, hub: Hub, log: MemoryLog) -> None:
        elsewhere, door = Elsewhere(), Door(log)
        hub.sequencer = elsewhere  # type: ignore[assignment]
        hub.doors.append(door)
        numbered = [batch(b"a", b"b").numbered(1, 1, 70, 3), batch(b"c").numbered(3, 3, 71, 4)]
        hub.follow(numbered)
        assert log.appended == [numbered]
        assert door.calls == [(1, 3, 3)]
        assert (hub.state.seq, elsewhere.heads) == (3, [3])
        assert hub.counters.as_dict()["followed"] == 3
        assert "received" not in hub.counters.as_dict()

    def test_the_commit_rule_holds_there_too(self, log: MemoryLog) -> None:
        hub, elsewhere = make(log), Elsewhere()
        hub.sequencer = elsewhere  # type: ignore[assignment]
        hub.commit_by(lambda _tail: None)
        hub.follow([batch(b"a").numbered(1, 1, 70, 3)])
        assert (log.tail, log.head, elsewhere.heads) == (1, 0, [])
        hub.committed(1)
        assert (log.head, elsewhere.heads) == (1, [1])

    def test_an_error_of_the_disk_is_the_callers(self, hub: Hub, log: MemoryLog) -> None:
        log.error = FullError("log", "no space")
        with pytest.raises(FullError):
            hub.follow([batch(b"a").numbered(1, 1, 70, 3)])
        assert hub.state.seq == 0

    def test_its_congestion_is_the_hubs(self, hub: Hub) -> None:
        elsewhere = Elsewhere()
        hub.sequencer = elsewhere  # type: ignore[assignment]
        assert not hub.congested
        elsewhere.congested = True
        assert (hub.congested, hub.crowded) == (True, False)


def test_what_is_tied_together_is_refused_together(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never")
    hub = Hub(log, 77, max_uncommitted=1000)
    ended: list[tuple[str, bool]] = []

    def told(name: str) -> Done:
        return lambda result: ended.append((name, isinstance(result, Batch)))

    unfit = Batch(Run.of([b"x"]), origin="spp", topic="t" * 70_000)
    hub.submit(batch(b"before"), told("before"))
    hub.submit(unfit, told("unfit"), tied=True)
    hub.submit(batch(b"behind it"), told("behind it"))
    hub.submit(batch(b"after"), told("after"))
    hub.turn(5)
    assert ended == [("before", True), ("unfit", False), ("behind it", False), ("after", True)]
    assert [payload for each in log.scan(1) for payload in each.run] == [b"before", b"after"]
    log.close()
