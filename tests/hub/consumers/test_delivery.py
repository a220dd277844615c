"""Who of a durable consumer's members gets what: by example, and against a plain model that counts every message."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf
from random import Random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import RefusedError
from headrace.hub.consumers import cursors as consumers
from headrace.hub.consumers import delivery
from headrace.hub.consumers.cursors import Consumer, Consumers, Lag
from headrace.hub.consumers.dead_letters import bury
from headrace.hub.consumers.delivery import Assign, DeadLetter, Delivery, DeliveryLimits, Expired
from headrace.hub.consumers.outstanding import Matches, Piece, spans
from headrace.hub.consumers.settlements import Settled
from headrace.hub.consumers.terms import Terms
from headrace.hub.state import HubState
from headrace.log.snapshots.snapshot import Snapshot
from headrace.message import Batch, Run, merge
from headrace.protocols import DEAD_LETTER

ACK = 10.0
TICK = ACK / delivery.TICKS


def fresh(
    *members: int,
    limits: DeliveryLimits | None = None,
    max_tries: int = 3,
    done: list[tuple[int, int]] | None = None,
) -> Delivery:
    consumer = Consumer("c", Terms(ack_seconds=ACK, max_tries=max_tries), 0, 1, 1)
    consumer.settle(done or [])
    made = Delivery(consumer, limits)
    for member in members:
        made.join(member)
        made.ready(member)
    return made


def send(made: Delivery, head: int, now: float = 0.0) -> list[Assign]:
    """Give ready members what there is, all of it matching, and have them ready again."""
    work = made.assign(head)
    for item in work:
        assert made.delivered(item, item.last, [(item.first, item.last)], now)
        made.ready(item.member)
    return work


def collected(made: Delivery) -> list[tuple[int, int]]:
    settled = made.collect()
    return [] if settled is None else list(settled.ranges)


def test_a_lone_member_gets_everything_in_one_range_and_in_order() -> None:
    made = fresh(1, limits=DeliveryLimits(span=100))
    assert [work[:3] for work in (send(made, 250) + send(made, 250) + send(made, 250))] == [
        (1, 1, 100), (1, 101, 200), (1, 201, 250),
    ]  # fmt: skip
    assert made.assign(250) == []
    assert made.pieces == 1, "what follows at once is one piece"
    assert made.ack([(1, 250)]) == 250
    assert (made.pieces, made._load[1], collected(made)) == (0, 0, [(1, 250)])
    assert collected(made) == []


def test_members_share_and_the_last_shares_are_small() -> None:
    made = fresh(1, 2, 3, 4)
    assert [work[:3] for work in send(made, 100)] == [(1, 1, 25), (2, 26, 44), (3, 45, 58), (4, 59, 69)]
    assert [made._load[member] for member in (1, 2, 3, 4)] == [25, 19, 14, 11]


def test_where_little_matches_more_is_read_at_a_time() -> None:
    made = fresh(1, limits=DeliveryLimits(span=100))
    sizes = []
    for _ in range(7):
        [work] = made.assign(10_000_000)
        sizes.append(work.last - work.first + 1)
        made.delivered(work, work.last, [], 0.0)
        made.ready(1)
    assert sizes == [100, 400, 1600, 6400, 25_600, 25_600, 25_600]
    [work] = made.assign(10_000_000)
    made.delivered(work, work.first + 99, [(work.first, work.first + 99)], 0.0)
    made.ready(1)
    [work] = made.assign(10_000_000)
    assert work.last - work.first + 1 == 100


def test_a_member_with_enough_is_passed_by() -> None:
    made = fresh(1, 2, limits=DeliveryLimits(span=10, in_flight=10))
    send(made, 100)
    assert made.assign(100) == []
    made.ack([(11, 20)])
    assert made.assign(100) == [Assign(2, 21, 30, 1)]


def test_what_is_not_acknowledged_in_time_goes_to_another() -> None:
    made = fresh(1)
    send(made, 10)
    made.ack([(1, 4)])
    made.join(2)
    made.ready(2)
    assert made.deadline == ACK
    assert made.expire(ACK - 0.001) == []
    assert made.expire(ACK) == [Expired(1, 5, 10, 1)]
    assert (made.deadline, made._load[1]) == (inf, 0)
    assert made.assign(10) == [Assign(1, 5, 7, 2), Assign(2, 8, 9, 2)]


def test_each_range_has_its_own_deadline() -> None:
    made = fresh(1)
    send(made, 5)
    send(made, 9, now=2.5)
    assert made.expire(ACK + 1) == [Expired(1, 1, 5, 1)]
    assert made.deadline == ACK + 2.5
    assert made.expire(ACK + 2.5) == [Expired(1, 6, 9, 1)]


def test_a_late_acknowledgement_counts() -> None:
    made = fresh(1)
    send(made, 10)
    made.expire(ACK)
    assert made.ack([(1, 5)]) == 5
    (again,) = made.assign(10)
    assert again == Assign(1, 6, 10, 2)
    assert made.ack([(7, 8)]) == 2
    assert made.delivered(again, 10, [(6, 10)], 20.0) == [(6, 6), (9, 10)]
    assert made._load[1] == 3


def test_only_what_was_handed_out_can_be_acknowledged() -> None:
    made = fresh(1)
    send(made, 10)
    assert made.ack([(5, 1000)]) == 6
    assert made.ack([(5, 1000)]) == 0
    assert collected(made) == [(5, 10)]
    assert made.assign(12) == [Assign(1, 11, 12, 1)]


def test_a_nack_has_it_again_at_once_and_counts_as_a_try() -> None:
    made = fresh(1, 2)
    send(made, 4)
    assert made.nack(2, 1, 4) == []
    assert made._load[1] == 2
    assert made.nack(1, 1, 1) == []
    assert made.assign(4)[0] == Assign(1, 1, 1, 2)


def test_a_member_that_crashed_has_tried_one_that_left_has_not() -> None:
    made = fresh(1, 2)
    first, second = send(made, 10)
    made.join(3)
    made.ready(3)
    made.leave(1, tried=True)
    made.leave(2, tried=False)
    assert made.assign(10) == [Assign(3, first.first, first.last, 2)]
    made.ready(3)
    assert made.assign(10) == [Assign(3, second.first, 10, 1)]


def test_what_was_being_read_for_a_member_that_leaves_was_not_tried() -> None:
    made = fresh(1)
    (assigned,) = made.assign(10)
    made.leave(1, tried=True)
    made.join(2)
    made.ready(2)
    assert made.assign(10) == [Assign(2, 1, 10, 1)]
    assert made.delivered(assigned, 10, [(1, 10)], 0.0) == []
    made.ready(1)
    assert made.assign(20) == []


def test_after_the_last_try_come_the_dead_letters() -> None:
    made = fresh(1, max_tries=2)
    send(made, 5)
    made.expire(ACK)
    send(made, 5, now=ACK)
    assert made.expire(2 * ACK + 1) == [Expired(1, 1, 5, 2), DeadLetter(1, 5, 2)]
    assert made.assign(5) == []
    assert made.ack([(2, 3)]) == 2
    assert made.bury(1, 4).ranges == ((1, 1), (4, 4))
    assert made.bury(1, 5).ranges == ((5, 5),)
    assert made.bury(1, 5).ranges == ()
    assert made.pieces == 0
    assert collected(made) == [(2, 3)]


def test_no_limit_of_tries() -> None:
    made = fresh(1, max_tries=0)
    for turn in range(50):
        assert send(made, 5, now=turn * 20.0) == [Assign(1, 1, 5, turn + 1)]
        assert made.expire(turn * 20.0 + 15) == [Expired(1, 1, 5, turn + 1)]


def test_what_does_not_match_goes_with_the_match_before_it() -> None:
    made = fresh(1)
    (assigned,) = made.assign(10)
    assert made.delivered(assigned, 10, [(3, 3), (6, 7)], 0.0) == [(3, 3), (6, 7)]
    assert made._load[1] == 3
    made.ack([(3, 3)])
    assert collected(made) == [(1, 5)]
    made.ack([(7, 7)])
    assert collected(made) == [(7, 10)]
    made.ack([(6, 6)])
    assert (collected(made), made._load[1], made.pieces) == ([(6, 6)], 0, 0)


def test_what_does_not_match_is_not_worth_an_entry_of_its_own() -> None:
    made = fresh(1, limits=DeliveryLimits(span=delivery.PASSED))
    (assigned,) = made.assign(10)
    made.delivered(assigned, 10, [], 0.0)
    assert made.collect() is None
    assert made.pieces == 0
    made.ready(1)
    (assigned,) = made.assign(delivery.PASSED)
    made.delivered(assigned, delivery.PASSED, [], 0.0)
    assert collected(made) == [(1, delivery.PASSED)]


def test_what_was_passed_over_is_worth_an_entry_when_the_last_member_leaves() -> None:
    made = fresh(1, 2)
    for assigned in made.assign(10):
        made.delivered(assigned, assigned.last, [], 0.0)
    made.leave(1, tried=False)
    assert made.collect() is None
    made.leave(2, tried=True)
    assert not made.idle
    assert collected(made) == [(1, 8)]
    assert made.idle


def test_behind_is_what_is_in_flight_and_what_is_still_to_be_read() -> None:
    made = fresh(1, limits=DeliveryLimits(span=10))
    assert made.lag(30) == Lag(30)
    send(made, 30)
    assert made.lag(30) == Lag(30)
    made.ack([(1, 4)])
    assert made.lag(30) == Lag(26)
    send(made, 30)
    send(made, 30)
    made.ack([(1, 30)])
    assert made.lag(30) == Lag(0)


def test_behind_of_a_consumer_that_selects_is_exact_once_all_was_read() -> None:
    made = Delivery(Consumer("c", Terms(topic="a", ack_seconds=ACK), 0, 1, 1), DeliveryLimits(span=10))
    made.join(1)
    made.ready(1)
    (assigned,) = made.assign(20)
    assert made.lag(20) == Lag(20, exact=False)
    made.delivered(assigned, 10, [(3, 3), (6, 7)], 0.0)
    assert made.lag(20) == Lag(13, exact=False)
    assert made.lag(10) == Lag(3)
    made.ready(1)
    (assigned,) = made.assign(20)
    made.delivered(assigned, 20, [], 0.0)
    assert made.lag(20) == Lag(3)
    made.expire(2 * ACK)
    assert made.lag(20) == Lag(3), "what waits for another try was read before"
    made.ack([(3, 3), (6, 7)])
    assert made.lag(20) == Lag(0)
    assert made.lag(21) == Lag(1, exact=False)


def test_what_had_no_room_goes_on_to_the_next() -> None:
    made = fresh(1, 2)
    first, second = made.assign(20)
    assert made.delivered(first, 4, [(1, 10)], 0.0) == [(1, 4)]
    assert made.delivered(second, second.last, [(11, second.last)], 0.0) == [(11, second.last)]
    made.ready(2)
    assert made.assign(10) == [Assign(2, 5, 7, 1)]
    lone = fresh(1)
    (assigned,) = lone.assign(20)
    lone.delivered(assigned, 0, [], 0.0)
    assert (lone.frontier, lone.pieces) == (1, 0)


def test_bits_of_a_filtered_sequence_are_one_piece_while_they_follow_closely() -> None:
    made = fresh(1)
    for seq in range(1, 1000):
        made.ready(1)
        (assigned,) = made.assign(seq)
        made.delivered(assigned, seq, [(seq, seq)] if seq % 3 == 1 else [], 0.0)
    assert made.pieces == 1
    assert made._load[1] == 333
    for seq in range(1, 1000, 3):
        assert made.ack([(seq, seq)]) == 3
    assert (made.pieces, made._load[1], collected(made)) == (0, 0, [(1, 999)])


@given(st.floats(0, 1e6), st.floats(0.001, 1e5))
def test_a_deadline_is_never_early_and_hardly_late(now: float, ack_seconds: float) -> None:
    made = Delivery(Consumer("c", Terms(ack_seconds=ack_seconds), 0, 1, 1))
    made.join(1)
    made.ready(1)
    send(made, 1, now)
    rounding = 1e-9 * (now + ack_seconds)
    assert now + ack_seconds - rounding <= made.deadline
    assert made.deadline <= now + ack_seconds * (1 + 1 / delivery.TICKS) + rounding


def test_an_entry_that_the_log_did_not_take() -> None:
    made = fresh(1)
    send(made, 10)
    made.ack([(2, 3)])
    settled = made.collect()
    assert settled is not None
    made.again(settled)
    assert made.assign(10) == [Assign(1, 2, 3, 1)]
    made.restart()
    made.again(Settled(((1, 5),), since=77))
    assert made.pieces == 0


def test_it_begins_with_the_gaps_that_the_cursor_has() -> None:
    made = fresh(1, done=[(1, 5), (8, 9), (12, 20)])
    assert [work[:3] for work in send(made, 30) + send(made, 30) + send(made, 30)] == [
        (1, 6, 7), (1, 10, 11), (1, 21, 30),
    ]  # fmt: skip


def test_what_retention_took_is_lost_but_not_what_is_in_flight() -> None:
    made = fresh(1, limits=DeliveryLimits(span=5))
    send(made, 100)
    (reading,) = made.assign(100)
    assert made.trimmed(21) == [(6, 10), (11, 20)]
    assert made.delivered(reading, 10, [(6, 10)], 0.0) == []
    assert made.collect() == Settled(((6, 20),), 1, lost=15)
    assert made.ack([(1, 5)]) == 5
    made.ready(1)
    assert made.assign(100) == [Assign(1, 21, 25, 1)]


def test_acknowledging_every_second_message_is_refused_before_it_costs_much() -> None:
    limits = DeliveryLimits(pieces=100)
    made = fresh(1, limits=limits)
    send(made, 4000)
    with pytest.raises(RefusedError) as raised:
        made.ack([(seq, seq) for seq in range(2, 4000, 2)])
    assert raised.value.code == "limit"
    assert made.pieces == limits.pieces
    done = collected(made)
    assert done == [(seq, seq) for seq in range(2, 200, 2)]
    with pytest.raises(RefusedError):
        made.nack(1, 1000, 1000)
    assert send(made, 5000) == [], "nothing new before gaps are closed"
    # Whoever fills the gaps in between goes on.
    assert made.ack([(seq, seq) for seq in range(1, 4001)]) == 4000 - len(done)
    assert made.pieces == 0
    assert send(made, 5000) == [Assign(1, 4001, 5000, 1)]


def test_pieces_that_come_back_again_and_again_are_joined() -> None:
    limits = DeliveryLimits(span=64, pieces=32)
    made = fresh(*range(8), limits=limits, max_tries=0, done=[(100_000, 100_000)])
    now = 0.0
    for _ in range(50):
        for _ in range(20):
            for assigned in made.assign(100_000):
                cut = max(assigned.first, assigned.last - 1)
                made.delivered(assigned, cut, [(assigned.first, cut)], now)
                made.ready(assigned.member)
        assert made.pieces <= limits.pieces + 8
        now += ACK + TICK
        made.expire(now)
    for member in range(8):
        made.leave(member, tried=False)


def test_many_members() -> None:
    members = range(1000)
    made = fresh(*members)
    seen = np.zeros(50_001, np.int64)
    while True:
        work = made.assign(50_000)
        if not work:
            break
        for assigned in work:
            made.delivered(assigned, assigned.last, [(assigned.first, assigned.last)], 0.0)
            seen[assigned.first : assigned.last + 1] += 1
        made.ack([(assigned.first, assigned.last) for assigned in work])
        for assigned in work:
            made.ready(assigned.member)
    assert (seen[1:] == 1).all()
    assert collected(made) == [(1, 50_000)]
    for member in range(1000, DeliveryLimits().members):
        made.join(member)
    with pytest.raises(RefusedError):
        made.join(DeliveryLimits().members)


def test_it_may_be_forgotten_when_there_is_nothing_to_remember() -> None:
    made = fresh(1)
    assert not made.idle
    send(made, 5)
    made.leave(1, tried=True)
    assert not made.idle, "tries are to be remembered"
    made.ack([(1, 5)])
    assert not made.idle
    made.collect()
    assert made.idle


def test_a_piece_joined_to_part_of_another_does_not_see_the_rest() -> None:
    whole = Piece(1, 9, matches=Matches([(1, 1), (4, 4), (8, 8)]))
    left = whole._replace(last=3)
    joined = left.joined(6, [(5, 5)])
    assert (joined.messages, joined.reach(1), joined.reach(5)) == (2, 4, 6)
    assert whole.messages == 3


@given(st.sets(st.integers(1, 100)))
def test_spans_are_the_numbers(numbers: set[int]) -> None:
    ranges = spans(np.array(sorted(numbers), np.int64))
    assert [seq for first, last in ranges for seq in range(first, last + 1)] == sorted(numbers)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


randoms = st.randoms(use_true_random=True)


def some(rng: Random, numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Some of the numbers, as ranges: few, most or all."""
    share = rng.choice((0.2, 0.8, 1.0))
    return spans(np.array([seq for seq in sorted(numbers) if rng.random() < share], np.int64))


class Sharing(RuleBasedStateMachine):
    """A hub with one consumer of topic ``a``, and a model that knows each message's fate."""

    limits = DeliveryLimits(span=8, in_flight=12, pieces=16, members=4)
    max_tries = 3

    @initialize(rng=randoms)
    def begin(self, rng: Random) -> None:
        self.batches: list[Batch] = []
        self.snapshot: Snapshot | None = None
        self.burials = 0
        self.consumers = Consumers()
        self.state = HubState(self.consumers)
        self.matching: set[int] = set()
        self.acknowledged: set[int] = set()  # by anyone, at any time
        self.buried: set[int] = set()
        self.now = 0.0
        self.joined = 0
        self.skipped = 0  # up to here a reset has passed over messages
        self.submit(consumers.create("c", Terms(topic="a", ack_seconds=ACK, max_tries=self.max_tries), 1))
        self.start()
        self.live(rng)

    def start(self) -> None:
        consumer = self.consumers.get("c")
        assert consumer is not None
        self.consumer = consumer
        self.delivery = Delivery(consumer, self.limits)
        self.members: set[int] = set()
        self.forget()
        for _ in range(2):
            self.join()

    def forget(self) -> None:
        self.reading: list[Assign] = []
        self.read: dict[int, int] = {}  # number to the member it is read for
        self.doomed: list[DeadLetter] = []
        self.flying: dict[int, tuple[int, float]] = {}  # number to member and when it was sent
        self.tries: dict[int, int] = {}
        self.sent: set[int] = set()
        self.finished: set[int] = set()  # may not be sent again

    def submit(self, batch: Batch) -> Batch:
        seq = self.state.seq
        numbered = batch.numbered(self.state.op + 1, seq if batch.is_entries else seq + 1, 0, 1)
        self.batches.append(numbered)
        self.state.apply(numbered)
        return numbered

    def messages(self, first: int, last: int) -> list[int]:
        return [seq for seq in range(first, last + 1) if seq in self.matching]

    def durable(self) -> set[int]:
        ranges = [(1, self.consumer.floor), *self.consumer.done]
        return {seq for first, last in ranges for seq in range(first, last + 1)}

    @rule(rng=randoms)
    def flow(self, rng: Random) -> None:
        """Messages come, and members get them, but for some that are still being read."""
        for _ in range(rng.randrange(5)):
            matching = rng.random() < 0.7
            run = Run.of([b"x"] * rng.randint(1, 6))
            batch = self.submit(Batch(run, origin="tube", topic="a" if matching else "b"))
            if matching:
                self.matching.update(range(batch.first, batch.last + 1))
        self.assign()
        left = rng.randrange(3)
        while len(self.reading) > left:
            self.deliver(self.reading.pop(0), inf)

    @precondition(lambda self: len(self.members) < self.limits.members)
    @rule()
    def join(self) -> None:
        self.joined += 1
        self.members.add(self.joined)
        self.delivery.join(self.joined)
        self.delivery.ready(self.joined)

    @precondition(lambda self: self.members)
    @rule(rng=randoms)
    def leave(self, rng: Random) -> None:
        member, tried = rng.choice(sorted(self.members)), rng.random() < 0.5
        self.members.discard(member)
        for seq, (who, _) in list(self.flying.items()):
            if who == member:
                del self.flying[seq]
                self.tries[seq] -= not tried
        self.dying(self.delivery.leave(member, tried=tried))
        self.reading = [assigned for assigned in self.reading if assigned.member != member]
        self.read = {seq: who for seq, who in self.read.items() if who != member}

    def assign(self) -> None:
        work = self.delivery.assign(self.state.seq)
        assert len({assigned.member for assigned in work}) == len(work)
        self.reading += work
        for assigned in work:
            for seq in self.messages(assigned.first, assigned.last):
                assert seq not in self.read, "a message is read for two members"
                self.read[seq] = assigned.member

    @precondition(lambda self: self.reading)
    @rule(rng=randoms)
    def deliver_some(self, rng: Random) -> None:
        assigned = self.reading.pop(rng.randrange(len(self.reading)))
        self.deliver(assigned, rng.randint(assigned.first - 1, assigned.last))

    def deliver(self, assigned: Assign, cut: float) -> None:
        last = int(min(assigned.last, cut))
        mine = [
            s for s in self.messages(assigned.first, assigned.last) if self.read.get(s) == assigned.member
        ]
        for seq in mine:
            del self.read[seq]
        matched = self.messages(assigned.first, last)
        ranges = self.delivery.delivered(assigned, last, spans(np.array(matched, np.int64)), self.now)
        self.delivery.ready(assigned.member)
        sent = [seq for first, until in ranges for seq in range(first, until + 1)]
        assert sent == [seq for seq in mine if seq <= last]
        for seq in sent:
            assert seq not in self.flying, "sent while another had it"
            assert seq not in self.finished, "sent again after it was acknowledged"
            self.flying[seq] = assigned.member, self.now
            self.tries[seq] = self.tries.get(seq, 0) + 1
            assert self.tries[seq] <= self.max_tries
        self.sent.update(sent)

    @precondition(lambda self: self.sent)
    @rule(rng=randoms)
    def ack(self, rng: Random) -> None:
        for first, last in some(rng, self.sent if rng.random() < 0.3 else self.flying):
            try:
                self.delivery.ack([(first, last)])
            except RefusedError:
                assert self.delivery.pieces >= self.limits.pieces
                continue
            for seq in range(first, last + 1):
                self.acknowledged.add(seq)
                self.flying.pop(seq, None)
                self.read.pop(seq, None)
                if seq < self.delivery.frontier:
                    self.finished.add(seq)

    @precondition(lambda self: self.flying)
    @rule(rng=randoms)
    def nack(self, rng: Random) -> None:
        member = rng.choice(sorted({member for member, _ in self.flying.values()}))
        for first, last in some(rng, self.flying):
            try:
                self.dying(self.delivery.nack(member, first, last))
            except RefusedError:
                assert self.delivery.pieces >= self.limits.pieces
                continue
            for seq in range(first, last + 1):
                if self.flying[seq][0] == member:
                    del self.flying[seq]

    @rule(rng=randoms)
    def wait(self, rng: Random) -> None:
        self.now += rng.choice([0.1, 1.0, 5.0, ACK])
        work = self.delivery.expire(self.now)
        expired = [item for item in work if isinstance(item, Expired)]
        for item in expired:
            for seq in range(item.first, item.last + 1):
                if seq in self.flying:
                    member, since = self.flying.pop(seq)
                    assert member == item.member
                    assert since + ACK <= self.now + 1e-6, "taken back too early"
        self.dying([item for item in work if isinstance(item, DeadLetter)])
        assert all(self.now < since + ACK + TICK + 1e-6 for _, since in self.flying.values())
        assert self.delivery.deadline > self.now

    @rule(rng=randoms)
    def turn(self, rng: Random) -> None:
        settled = self.delivery.collect()
        if settled is None:
            return
        if rng.random() < 0.2:
            self.fail(settled)
        else:
            self.submit(consumers.settle(settled))

    @precondition(lambda self: self.doomed)
    @rule(rng=randoms)
    def bury(self, rng: Random) -> None:
        dead = self.doomed.pop(rng.randrange(len(self.doomed)))
        settled = self.delivery.bury(dead.first, dead.last)
        if not settled.ranges:
            return
        if rng.random() < 0.2:
            self.fail(settled)
            return
        numbers = {seq for first, last in settled.ranges for seq in range(first, last + 1)}
        messages = [batch for batch in self.batches if not batch.is_entries]
        rows = merge([batch for batch in messages if dead.first <= batch.last and batch.first <= dead.last])
        mask = [
            seq in self.matching and dead.first <= seq <= dead.last for seq in rows.column("seq").to_pylist()
        ]
        burial = bury(self.consumer, settled, rows.filter(mask), dead.tries)
        letters: set[int] = set()
        if burial.letters is not None:
            batch = self.submit(burial.letters)
            assert {message.origin for message in batch} == {DEAD_LETTER}
            letters = {int(message.attributes["dead.seq"]) for message in batch}
            self.burials += 1
        self.submit(burial.entry)
        assert letters == numbers & self.matching
        assert numbers <= self.durable(), "dead letters and what is done came apart"
        self.buried |= letters
        self.finished |= letters

    @rule(rng=randoms)
    def live(self, rng: Random) -> None:
        """Much of all that happens often."""
        for _ in range(20):
            if self.reading:
                rng.choice((self.flow, self.deliver_some))(rng)
            else:
                self.flow(rng)
            if self.flying:
                rng.choices((self.ack, self.nack, self.wait), (6, 2, 1))[0](rng)
            if self.doomed:
                self.bury(rng)
            self.turn(rng)
            self.nothing_is_done_that_nobody_did()
            self.memory_is_bounded()
            self.members_have_what_the_model_says()
            if rng.random() < 0.05 and len(self.members) > 1:
                self.leave(rng)
                self.join()

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = Snapshot(UUID(int=1), self.state.op, self.state.seq, self.state.sections())

    @rule(rng=randoms)
    def crash(self, rng: Random) -> None:
        self.consumers, self.state = self.restored()
        self.start()
        self.live(rng)

    @rule(rng=randoms)
    def reset(self, rng: Random) -> None:
        stale = self.delivery.collect()
        to = rng.randint(1, self.state.seq + 1)
        self.skipped = max(self.skipped, to - 1)
        self.submit(consumers.reset("c", to))
        if stale is not None:
            floor = self.consumer.floor
            self.submit(consumers.settle(stale))
            assert (self.consumer.floor, self.consumer.done) == (floor, [])
        self.delivery.restart()
        for assigned in self.reading:
            self.delivery.ready(assigned.member)
        self.forget()
        self.live(rng)

    def fail(self, settled: Settled) -> None:
        self.delivery.again(settled)
        for first, last in settled.ranges:
            for seq in range(first, last + 1):
                self.finished.discard(seq)
                self.tries.pop(seq, None)

    def dying(self, work: list[DeadLetter]) -> None:
        for item in work:
            assert item.tries == self.max_tries
        self.doomed += work

    def restored(self) -> tuple[Consumers, HubState]:
        restored = Consumers()
        state = HubState(restored)
        if self.snapshot is not None:
            state.load(self.snapshot)
        for batch in self.batches:
            if batch.op > state.op:
                state.apply(batch)
        return restored, state

    @invariant()
    def the_state_is_what_the_log_says(self) -> None:
        replayed = Consumers()
        state = HubState(replayed)
        for batch in self.batches:
            state.apply(batch)
        assert replayed.dump() == self.consumers.dump() == self.restored()[0].dump()

    @invariant()
    def nothing_is_done_that_nobody_did(self) -> None:
        done = {seq for seq in self.durable() if seq > self.skipped}
        assert done & self.matching <= self.acknowledged | self.buried

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.delivery.pieces <= 2 * self.limits.pieces + self.limits.members
        # Each dead letter is done where it stands.
        assert len(self.consumer.done) <= 2 * self.limits.pieces + self.limits.members + self.burials

    @invariant()
    def behind_is_what_is_not_done(self) -> None:
        head = self.state.seq
        pieces = [*self.delivery._waiting, *self.delivery._taken, Piece(self.delivery.frontier, head)]
        left = sum(len(self.messages(piece.first, piece.last)) for piece in pieces)
        lag = self.delivery.lag(head)
        assert lag.behind >= left
        assert lag.behind == left or not lag.exact
        assert self.consumer.lag(head).behind >= len(self.matching - self.durable())

    @invariant()
    def members_have_what_the_model_says(self) -> None:
        for member in self.members:
            assert self.delivery._load[member] == sum(who == member for who, _ in self.flying.values())

    def teardown(self) -> None:
        """Let a good member have everything: in the end all of it is done."""
        if not hasattr(self, "batches"):
            return
        head = self.state.seq
        self.now += 3 * ACK
        self.dying([item for item in self.delivery.expire(self.now) if isinstance(item, DeadLetter)])
        for member in sorted(self.members):
            self.dying(self.delivery.leave(member, tried=False))
        self.joined += 1
        self.delivery.join(self.joined)
        for _ in range(2 * head + 10):
            for dead in self.doomed:
                settled = self.delivery.bury(dead.first, dead.last)
                self.submit(consumers.settle(settled))
                self.buried |= {seq for first, last in settled.ranges for seq in range(first, last + 1)}
            self.doomed = []
            self.delivery.ready(self.joined)
            for assigned in self.delivery.assign(head):
                ranges = spans(np.array(self.messages(assigned.first, assigned.last), np.int64))
                sent = self.delivery.delivered(assigned, assigned.last, ranges, self.now)
                self.delivery.ack(sent)
                self.acknowledged |= {seq for first, last in sent for seq in range(first, last + 1)}
            settled_now = self.delivery.collect()
            if settled_now is not None:
                self.submit(consumers.settle(settled_now))
        self.the_state_is_what_the_log_says()
        assert self.delivery.pieces == 0
        assert self.delivery.lag(head) == Lag(0)
        assert {seq for seq in self.matching if seq <= head} <= self.durable(), "a message was lost"


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=40, stateful_step_count=10, deadline=None)
