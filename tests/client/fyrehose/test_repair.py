"""One subscriber's view of the sequence: what arrives in, what is delivered, asked for and lost out."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.fyrehose.repair import (
    Ask,
    Delivered,
    Discarded,
    DiscardReason,
    Gap,
    LostRange,
    Repair,
    Repaired,
    RepairEvent,
)
from headrace.client.fyrehose.timing import TCP_TIMING, RepairTiming
from headrace.message import MAX_SEQUENCE, Run
from headrace.wire.fyrehose.stream import DeliverRun


def payload(seq: int) -> bytes:
    return b"%d" % seq


def run(first: int, last: int) -> Run:
    return Run.of(payload(seq) for seq in range(first, last + 1))


def deliver(*seqs: int) -> DeliverRun:
    return DeliverRun(np.array(seqs, np.int64), Run.of(map(payload, seqs)))


def deliver_as(seq: int, data: bytes) -> DeliverRun:
    return DeliverRun(np.array([seq], np.int64), Run.of([data]))


class Subject:
    """A :class:`Repair` whose every event is checked for order, with shorthand for tests."""

    def __init__(self, patience: RepairTiming | None = None, from_seq: int | None = None) -> None:
        self.repair = Repair(patience or RepairTiming(), Random(1), from_seq)
        self.now = 0.0
        self.next = from_seq
        self.delivered: list[bytes] = []

    def gets(self, *seqs: int, stranger: bool = False) -> list[RepairEvent]:
        return self.check(self.repair.receive(deliver(*seqs), self.now, from_backbone=not stranger))

    def waits(self, seconds: float) -> list[RepairEvent]:
        """Let time pass and tick when the timer says so."""
        until = self.now + seconds
        events: list[RepairEvent] = []
        while (timer := self.repair.next_timer()) is not None and timer <= until:
            self.now = max(self.now, timer)
            events += self.check(self.repair.tick(self.now))
        self.now = until
        return events

    def listens(self, seconds: int) -> list[RepairEvent]:
        """The same, while the backbone acknowledges a KEEPALIVE each second."""
        events: list[RepairEvent] = []
        for _ in range(seconds):
            self.repair.heard(self.now)
            events += self.waits(1.0)
        return events

    def check(self, events: list[RepairEvent]) -> list[RepairEvent]:
        for event in events:
            match event:
                case Delivered(first, messages):
                    assert self.next in (None, first)
                    self.next = event.last + 1
                    self.delivered += messages
                case LostRange(first, last):
                    assert self.next == first
                    self.next = last + 1
        check_invariants(self.repair)
        return events


def check_invariants(repair: Repair) -> None:
    """``next`` up to the highest number known is either kept or in exactly one hole."""
    holes = [(hole.first, hole.last) for hole in repair._holes]
    kept = [(stretch.first, stretch.last) for stretch in repair.early._stretches]
    covered = sorted(holes + kept)
    assert not covered or covered[0] == holes[0]
    following = repair.next or 1
    for first, last in covered:
        assert first == following
        assert last >= first
        following = last + 1
    assert following in (repair._known + 1, repair.next)
    assert repair.early.count == sum(last - first + 1 for first, last in kept)


def asks(events: list[RepairEvent]) -> list[tuple[int, int]]:
    return [(event.first, event.last) for event in events if isinstance(event, Ask)]


class TestInOrder:
    def test_a_run_passes_through_as_it_is(self) -> None:
        repair = Repair(RepairTiming(), Random(1))
        delivered = deliver(5, 6, 7)
        (event,) = repair.receive(delivered, 0, from_backbone=True)
        assert isinstance(event, Delivered)
        (event,) = repair.receive(more := deliver(8, 9), 0, from_backbone=True)
        assert isinstance(event, Delivered)
        assert event.run is more.run
        assert repair.next == 10

    def test_the_first_message_sets_the_start(self) -> None:
        subject = Subject()
        assert subject.repair.next is None
        assert subject.repair.next_timer() is None
        assert subject.gets(42) == [Delivered(42, run(42, 42))]
        assert subject.gets(41) == [Discarded(41, 41, DiscardReason.REPEATED)]

    def test_nothing_is_nothing(self) -> None:
        assert Subject().gets() == []

    def test_repeats_are_dropped(self) -> None:
        subject = Subject()
        subject.gets(1, 2, 3)
        assert subject.gets(2, 3, 4) == [Discarded(2, 3, DiscardReason.REPEATED), Delivered(4, run(4, 4))]
        assert subject.gets(4, 4) == [Discarded(4, 4, DiscardReason.REPEATED)] * 2

    def test_a_hub_whose_head_is_lower_than_it_was_only_repeats(self) -> None:
        subject = Subject()
        subject.gets(100)
        assert subject.gets(1, 2, 3) == [Discarded(1, 3, DiscardReason.REPEATED)]

    def test_one_datagram_out_of_order_in_itself(self) -> None:
        subject = Subject(from_seq=1)
        subject.gets(3, 1, 2, 2, 5, 4)
        assert subject.delivered == [payload(seq) for seq in range(1, 6)]


class TestHoles:
    def test_a_message_that_was_only_overtaken_is_not_asked_for(self) -> None:
        subject = Subject(from_seq=1)
        assert subject.gets(2) == [Gap(1, 1)]
        assert subject.waits(0.001) == []
        assert subject.gets(1) == [Delivered(1, run(1, 1)), Delivered(2, run(2, 2))]
        assert asks(subject.waits(0.1)) == []

    def test_nothing_is_asked_for_before_its_time(self) -> None:
        subject = Subject()
        subject.gets(1)
        subject.gets(3)
        assert subject.repair.tick(subject.now) == []

    def test_a_hole_is_asked_for_and_what_waited_follows_it(self) -> None:
        subject = Subject()
        subject.gets(1)
        assert subject.gets(5, 6) == [Gap(2, 4)]
        assert asks(subject.waits(0.01)) == [(2, 4)]
        assert subject.gets(2, 3, 4) == [Repaired(2, 4), Delivered(2, run(2, 4)), Delivered(5, run(5, 6))]

    def test_it_is_asked_for_again_with_growing_random_delays(self) -> None:
        subject = Subject(RepairTiming(hole=1_000))
        subject.gets(1)
        subject.gets(3)
        times = []
        for _ in range(12):
            timer = subject.repair.next_timer()
            assert timer is not None
            times.append(timer)
            assert asks(subject.repair.tick(timer)) == [(2, 2)]
        delays = [after - before for before, after in pairwise(times)]
        for attempt, delay in enumerate(delays):
            nominal = min(1.0, 0.05 * 2**attempt)
            assert 0.5 * nominal <= delay <= 1.5 * nominal
        assert len(set(delays)) == len(delays)

    def test_nearby_holes_are_asked_for_together(self) -> None:
        subject = Subject()
        subject.gets(1)
        subject.gets(3, 5, 6, 7, 9, 10, 11, 12, 20)
        assert asks(subject.waits(0.01)) == [(2, 8), (13, 19)]

    def test_a_request_asks_for_no_more_than_is_served(self) -> None:
        subject = Subject()
        subject.gets(1)
        subject.gets(10_000)
        expected = [(2, 1_025), (1_026, 2_049), (2_050, 3_073), (3_074, 4_097)]
        assert asks(subject.waits(0.01)) == expected

    def test_the_rest_of_a_long_hole_is_asked_for_when_what_was_asked_for_is_there(self) -> None:
        subject = Subject(RepairTiming(max_request=10))
        subject.gets(1)
        subject.gets(100)
        assert asks(subject.waits(0.01))[-1] == (32, 41)
        subject.gets(*range(2, 41))
        assert asks(subject.waits(0.001)) == []
        subject.gets(41)
        assert asks(subject.waits(0)) == [(42, 51), (52, 61), (62, 71), (72, 81)]

    def test_while_an_answer_comes_in_it_is_not_asked_for_again(self) -> None:
        subject = Subject()
        subject.gets(1)
        subject.gets(1_000)
        assert asks(subject.waits(0.01)) == [(2, 999)]
        for seq in range(2, 900):
            subject.gets(seq)
            assert asks(subject.waits(0.01)) == []
        assert asks(subject.waits(0.1)) == [(900, 999)]

    def test_an_unanswered_request_is_widened_to_the_whole_hole(self) -> None:
        subject = Subject(RepairTiming(max_request=10))
        subject.gets(1)
        subject.gets(1_000)
        asked = asks(subject.waits(1))
        assert asked[:8] == [(2, 11), (12, 21), (22, 31), (32, 41)] * 2
        assert asked[8:] == [(2, 999)] * len(asked[8:]) != []

    def test_on_a_stream_a_hole_is_asked_for_whole_and_at_once(self) -> None:
        subject = Subject(TCP_TIMING)
        subject.gets(1)
        subject.gets(10_000_000)
        assert asks(subject.waits(0)) == [(2, 9_999_999)]

    def test_few_holes_are_asked_for_at_a_time(self) -> None:
        subject = Subject()
        subject.gets(1)
        subject.gets(*(seq for seq in range(3, 2_000) if seq % 10))
        assert len(asks(subject.waits(0.01))) == 64


class TestLost:
    def test_what_nobody_has_is_reported_in_its_place(self) -> None:
        subject = Subject(RepairTiming(hole=30))
        subject.gets(1)
        subject.gets(5)
        assert not any(isinstance(event, LostRange) for event in subject.listens(29))
        events = [event for event in subject.listens(3) if not isinstance(event, Ask)]
        assert events == [LostRange(2, 4), Delivered(5, run(5, 5))]
        assert subject.gets(3) == [Discarded(3, 3, DiscardReason.REPEATED)]

    def test_progress_starts_the_wait_again(self) -> None:
        subject = Subject(RepairTiming(hole=30))
        subject.gets(1)
        subject.gets(5)
        subject.listens(25)
        subject.gets(3)
        assert not any(isinstance(event, LostRange) for event in subject.listens(25))

    def test_holes_wait_together(self) -> None:
        subject = Subject(RepairTiming(hole=30))
        subject.gets(1)
        subject.gets(3, 5, 7, 9)
        lost = [event for event in subject.listens(33) if isinstance(event, LostRange)]
        assert lost == [LostRange(2, 2), LostRange(4, 4), LostRange(6, 6), LostRange(8, 8)]

    def test_time_without_the_backbone_does_not_count(self) -> None:
        subject = Subject(RepairTiming(hole=30))
        subject.gets(1)
        subject.gets(3)
        subject.listens(20)
        assert not any(isinstance(event, LostRange) for event in subject.waits(1_000))
        assert not any(isinstance(event, LostRange) for event in subject.listens(5))
        assert any(isinstance(event, LostRange) for event in subject.listens(10))

    def test_time_in_which_it_was_not_asked_for_does_not_count(self) -> None:
        subject = Subject(RepairTiming(hole=30))
        subject.gets(1)
        subject.gets(3)
        subject.waits(1)
        for _ in range(100):
            subject.now += 1
            subject.repair.heard(subject.now)
        assert not any(isinstance(event, LostRange) for event in subject.listens(29))


class TestProbes:
    def test_silence_is_probed_with_growing_delays(self) -> None:
        subject = Subject(RepairTiming(probe=0.2, probe_most=2.0))
        subject.gets(7)
        assert asks(subject.waits(0.19)) == []
        events = subject.waits(60)
        assert set(asks(events)) == {(8, MAX_SEQUENCE)}
        assert 20 <= len(events) <= 60

    def test_no_probe_while_messages_come(self) -> None:
        subject = Subject()
        for seq in range(1, 100):
            subject.gets(seq)
            assert subject.waits(0.1) == []

    def test_a_lost_last_message_is_found(self) -> None:
        subject = Subject()
        subject.gets(1)
        assert asks(subject.waits(0.3)) == [(2, MAX_SEQUENCE)]
        assert subject.gets(2) == [Delivered(2, run(2, 2))]

    def test_the_next_probe_follows_a_full_answer_at_once(self) -> None:
        subject = Subject(RepairTiming(max_request=10), from_seq=1)
        assert asks(subject.waits(0)) == [(1, MAX_SEQUENCE)]
        subject.gets(*range(1, 10))
        assert asks(subject.waits(0)) == []
        subject.gets(10)
        assert asks(subject.waits(0)) == [(11, MAX_SEQUENCE)]
        subject.gets(11)
        assert asks(subject.waits(0.1)) == []


class TestFromSeq:
    @pytest.mark.parametrize(("from_seq", "first"), [(0, 1), (1, 1), (50, 50)])
    def test_it_asks_at_once(self, from_seq: int, first: int) -> None:
        repair = Repair(RepairTiming(), Random(1), from_seq)
        assert repair.next == first
        assert repair.tick(0.0) == [Ask(first, MAX_SEQUENCE)]

    def test_what_lies_between_is_a_hole(self) -> None:
        subject = Subject(from_seq=10)
        assert subject.gets(5) == [Discarded(5, 5, DiscardReason.REPEATED)]
        assert subject.gets(12) == [Gap(10, 11)]

    def test_a_log_that_begins_later_shows_where(self) -> None:
        subject = Subject(RepairTiming(hole=30), from_seq=1)
        subject.waits(0)
        subject.gets(*range(1_000_001, 1_001_025))
        events = subject.listens(33)
        assert (1, 1_000_000) in asks(events)
        assert LostRange(1, 1_000_000) in events
        assert subject.repair.next == 1_001_025


class TestReconnect:
    def test_it_resumes_behind_the_last_message(self) -> None:
        subject = Subject()
        subject.gets(1, 2)
        subject.waits(60)
        subject.repair.reconnected(subject.now)
        assert asks(subject.waits(0)) == [(3, MAX_SEQUENCE)]

    def test_holes_are_asked_for_at_once(self) -> None:
        subject = Subject()
        subject.gets(1)
        subject.gets(3)
        subject.waits(4)
        subject.repair.reconnected(subject.now)
        assert asks(subject.waits(0)) == [(2, 2)]


class TestStrangers:
    def test_what_was_asked_for_is_taken_from_anyone(self) -> None:
        subject = Subject()
        subject.gets(1)
        subject.gets(5)
        assert subject.gets(2, stranger=True) == [Discarded(2, 2, DiscardReason.UNASKED)]
        subject.waits(0.01)
        assert subject.gets(2, 3, 4, stranger=True)[1:] == [Delivered(2, run(2, 4)), Delivered(5, run(5, 5))]

    def test_nothing_else_is(self) -> None:
        subject = Subject()
        assert subject.gets(1, stranger=True) == [Discarded(1, 1, DiscardReason.UNASKED)]
        assert subject.repair.next is None
        subject.gets(1)
        assert subject.gets(2, stranger=True) == [Discarded(2, 2, DiscardReason.UNASKED)]
        subject.waits(1)
        assert subject.gets(1, 2, 3, stranger=True) == [
            Discarded(1, 1, DiscardReason.REPEATED),
            Discarded(2, 3, DiscardReason.UNASKED),
        ]

    def test_only_the_part_that_was_asked_for(self) -> None:
        subject = Subject(RepairTiming(max_request=1))
        subject.gets(1)
        subject.gets(10)
        assert asks(subject.waits(0.01))[-1] == (5, 5)
        assert subject.gets(4, 5, 6, 7, stranger=True) == [
            Repaired(4, 5),
            Discarded(6, 7, DiscardReason.UNASKED),
        ]

    def test_a_stranger_is_not_the_backbone_being_heard(self) -> None:
        subject = Subject(RepairTiming(hole=30))
        subject.gets(1)
        subject.gets(5)
        for _ in range(40):
            subject.gets(1, stranger=True)
            assert not any(isinstance(event, LostRange) for event in subject.waits(1))


class TestHollow:
    def test_the_copy_that_is_not_empty_is_preferred_while_there_is_a_choice(self) -> None:
        repair = Repair(RepairTiming(), Random(1), 1)
        repair.receive(deliver_as(2, b""), 0, from_backbone=True)
        repair.receive(deliver_as(2, b"whole"), 0, from_backbone=True)
        repair.receive(deliver_as(2, b""), 0, from_backbone=True)
        events = repair.receive(deliver_as(1, b"one"), 0, from_backbone=True)
        assert events[-1] == Delivered(2, Run.of([b"whole"]))

    def test_an_empty_one_is_delivered_when_its_turn_comes(self) -> None:
        repair = Repair(RepairTiming(), Random(1), 1)
        assert repair.receive(deliver_as(1, b""), 0, from_backbone=True) == [Delivered(1, Run.of([b""]))]

    def test_a_strangers_copy_is_not(self) -> None:
        repair = Repair(RepairTiming(), Random(1), 1)
        repair.receive(deliver_as(2, b""), 0, from_backbone=True)
        repair.receive(deliver_as(2, b"forged"), 0, from_backbone=False)
        events = repair.receive(deliver_as(1, b"one"), 0, from_backbone=True)
        assert events[-1] == Delivered(2, Run.of([b""]))


class TestRoom:
    def test_the_newest_are_dropped_and_asked_for_when_there_is_room(self) -> None:
        subject = Subject(RepairTiming(max_early=4))
        subject.gets(1)
        assert subject.gets(3, 4, 5, 6, 7, 8) == [Gap(2, 2), Discarded(7, 8, DiscardReason.NO_ROOM)]
        assert asks(subject.waits(0.01)) == [(2, 2)]
        subject.gets(2)
        assert subject.repair.next == 7
        assert asks(subject.waits(0)) == [(7, 8)]

    def test_an_older_message_takes_the_room_of_a_newer_one(self) -> None:
        subject = Subject(RepairTiming(max_early=2))
        subject.gets(1)
        subject.gets(9)
        subject.gets(8)
        assert subject.gets(3) == [Discarded(9, 9, DiscardReason.NO_ROOM)]
        subject.gets(*range(2, 10))
        assert subject.repair.next == 10

    def test_a_message_whose_turn_it_is_needs_no_room(self) -> None:
        subject = Subject(RepairTiming(max_early=1, max_early_bytes=1))
        subject.gets(1)
        subject.gets(3)
        subject.gets(4, 5, 6)
        subject.gets(2)
        assert subject.repair.next == 4

    def test_a_flood_past_the_room_costs_no_memory(self) -> None:
        subject = Subject(RepairTiming(max_early=10))
        subject.gets(1)
        for seq in range(3, 2_000, 2):
            subject.repair.receive(deliver(seq), 0, from_backbone=True)
        check_invariants(subject.repair)
        assert len(subject.repair._holes) <= 12
        assert subject.repair.early.count == 10


arrivals = st.lists(
    st.tuples(
        st.lists(st.integers(1, 24), min_size=1, max_size=6),
        st.booleans(),
        st.booleans(),
        st.sampled_from([0.0, 0.004, 0.1, 2.0]),
    ),
    max_size=40,
)


@given(
    arrivals,
    st.sampled_from([None, 1, 5]),
    st.integers(1, 8),
    st.integers(1, 5_000),
    st.integers(1, 4),
)
def test_whatever_arrives_comes_out_in_order_and_once(
    happenings: list[tuple[list[int], bool, bool, float]],
    from_seq: int | None,
    max_early: int,
    max_bytes: int,
    max_request: int,
) -> None:
    patience = RepairTiming(hole=6, max_early=max_early, max_early_bytes=max_bytes, max_request=max_request)
    subject = Subject(patience, from_seq)
    for seqs, consecutive, stranger, wait in happenings:
        numbers = range(seqs[0], seqs[0] + len(seqs)) if consecutive else seqs
        for event in subject.gets(*numbers, stranger=stranger):
            if isinstance(event, Delivered):
                assert list(event.run) == [payload(seq) for seq in range(event.first, event.last + 1)]
        assert subject.repair.early.count <= max_early
        subject.waits(wait)
    subject.gets(*range(1, 40))
    while subject.next is not None and subject.next < 40:
        subject.gets(*range(subject.next, 40))
    assert subject.repair.next == 40
