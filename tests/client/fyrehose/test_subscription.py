"""What a subscriber decides between its connection and its consumer, with the time in the test's hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from headrace.client.fyrehose.journal import JournalBounds, SendDelivers
from headrace.client.fyrehose.repair import LostRange
from headrace.client.fyrehose.subscription import (
    HERE,
    KEEPALIVE_SECONDS,
    REST_SECONDS,
    SILENCE_SECONDS,
    Outgoing,
    Subscription,
)
from headrace.client.fyrehose.timing import TCP_TIMING, RepairTiming
from headrace.client.stats import FyrehoseStats
from headrace.errors import UnexpectedError
from headrace.message import MAX_SEQUENCE, Batch, Run
from headrace.wire.fyrehose.stream import DeliverRun, Forward, Keepalive, Request

KEEPALIVE = Keepalive(*HERE)
QUIET = replace(TCP_TIMING, probe=1e6, probe_most=1e6)
"""No probes, so that tests see what else is sent."""


def deliver(*seqs: int, size: int = 1) -> DeliverRun:
    return DeliverRun(np.array(seqs, np.int64), Run.of([b"x" * size] * len(seqs)))


def request(first: int, last: int = MAX_SEQUENCE) -> Request:
    return Request(*HERE, first, last)


class Subject:
    """A subscription, a clock, and shorthand."""

    def __init__(self, patience: RepairTiming = QUIET, **options: object) -> None:
        self.now = 100.0
        self.stats = FyrehoseStats()
        self.it = Subscription(patience, Random(1), self.stats, **options)  # type: ignore[arg-type]
        self.sent: list[Outgoing] = []

    def connects(self) -> list[Outgoing]:
        return self.it.connected(self.now)

    def gets(self, *seqs: int, size: int = 1, stranger: bool = False) -> list[Outgoing]:
        return self.it.received(deliver(*seqs, size=size), self.now, from_backbone=not stranger)

    def takes(self) -> Batch | LostRange | None:
        return self.it.take(self.now)

    def waits(self, seconds: float, *, heard: bool = True) -> list[Outgoing]:
        """Let time pass and tick when the timer says so; the hub acknowledges KEEPALIVEs if it is ``heard``."""
        until, sent = self.now + seconds, []
        while (timer := self.it.next_timer()) is not None and timer <= until:
            self.now = max(timer, self.now)
            work = self.it.tick(self.now)
            if heard and KEEPALIVE in work:
                self.it.heard(self.now)
            sent += work
        self.now = until
        return sent


def seqs(item: Batch | LostRange | None) -> range | LostRange | None:
    return range(item.first, item.last + 1) if isinstance(item, Batch) else item


class TestConnecting:
    def test_it_begins_with_a_keepalive(self) -> None:
        assert Subject().connects() == [KEEPALIVE]

    def test_and_asks_for_what_it_wants_of_the_past(self) -> None:
        assert Subject(from_seq=5).connects() == [KEEPALIVE, request(5)]

    def test_each_connection_goes_on_where_the_last_one_ended(self) -> None:
        subject = Subject()
        subject.connects()
        subject.gets(7, 8, 9)
        assert subject.connects() == [KEEPALIVE, request(10)]

    def test_a_keepalive_goes_out_every_second(self) -> None:
        subject = Subject()
        subject.connects()
        assert subject.waits(10.0) == [KEEPALIVE] * 10
        assert KEEPALIVE_SECONDS == 1.0

    def test_who_does_not_listen_sends_nothing(self) -> None:
        subject = Subject(listening=False)
        assert subject.connects() == []
        assert subject.waits(60.0) == []
        assert subject.it.listen(subject.now) == [KEEPALIVE]
        assert subject.it.listen(subject.now) == []

    def test_a_keepalive_that_was_late_asks_for_what_was_not_sent(self) -> None:
        subject = Subject()
        subject.connects()
        subject.gets(1)
        subject.now += 4.5  # The machine slept, or the event loop was busy.
        assert subject.it.tick(subject.now) == [KEEPALIVE, request(2)]


class TestSilence:
    def test_a_hub_that_says_nothing_is_silent(self) -> None:
        subject = Subject()
        subject.connects()
        subject.waits(SILENCE_SECONDS - 0.1, heard=False)
        assert not subject.it.silent(subject.now)
        subject.waits(0.1, heard=False)
        assert subject.it.silent(subject.now)

    def test_whatever_it_says_breaks_the_silence(self) -> None:
        subject = Subject()
        subject.connects()
        subject.waits(60.0)
        assert not subject.it.silent(subject.now)
        subject.waits(SILENCE_SECONDS, heard=False)
        subject.gets(1)
        assert not subject.it.silent(subject.now)

    def test_another_client_is_not_the_hub(self) -> None:
        subject = Subject(stream=False)
        subject.connects()
        subject.waits(SILENCE_SECONDS, heard=False)
        subject.gets(1, stranger=True)
        assert subject.it.silent(subject.now)
        assert subject.stats.unasked == 1

    def test_nothing_is_expected_of_it_where_nobody_listens_or_reads(self) -> None:
        subject = Subject(listening=False)
        subject.connects()
        subject.waits(60.0)
        assert not subject.it.silent(subject.now)
        subject = Subject(buffer_bytes=1000)
        subject.connects()
        subject.gets(1, size=1000)
        subject.waits(SILENCE_SECONDS + 1, heard=False)
        assert subject.it.full
        assert not subject.it.silent(subject.now)


class TestSlowConsumer:
    def full(self, **options: object) -> Subject:
        subject = Subject(buffer_bytes=10_160, **options)  # type: ignore[arg-type]
        subject.connects()
        for seq in range(1, 11):
            assert not subject.it.full
            subject.gets(seq, size=500)
        assert subject.it.full
        return subject

    def test_a_full_shelf_stops_the_reading_until_half_of_it_is_taken(self) -> None:
        subject = self.full()
        assert not subject.it.reads
        for seq in range(1, 6):
            assert subject.it.full
            assert seqs(subject.takes()) == range(seq, seq + 1)
        assert not subject.it.full
        assert subject.it.reads
        assert subject.it.relieved(subject.now) == []

    def test_what_a_stream_had_already_read_is_kept(self) -> None:
        subject = self.full()
        subject.gets(11)
        assert len(subject.it) == 11

    def test_datagrams_are_dropped_and_asked_for_later(self) -> None:
        subject = self.full(stream=False)
        assert subject.gets(11, 12) == []
        assert subject.stats.dropped == 2
        assert len(subject.it) == 10
        for _ in range(5):
            subject.takes()
        assert subject.it.relieved(subject.now) == [request(11)]

    def test_repair_knows_nothing_of_the_time_in_between(self) -> None:
        subject = Subject(replace(TCP_TIMING, probe=1.0, probe_most=1.0), buffer_bytes=1_000)
        subject.connects()
        subject.gets(1, size=1_000)
        assert subject.waits(5.0) == [KEEPALIVE] * 5, "no probe while nothing is read"
        subject.takes()
        subject.it.relieved(subject.now)
        assert subject.waits(0.4) == []
        assert request(2) in subject.waits(2.0)

    def test_nothing_is_lost_for_want_of_time_to_read(self) -> None:
        subject = Subject(replace(QUIET, hole=3.0), buffer_bytes=1_000)
        subject.connects()
        subject.gets(1, 2, 4)
        subject.gets(3, size=1_000)
        subject.gets(6)
        assert subject.it.full
        subject.waits(REST_SECONDS - 1)
        for _ in range(3):
            subject.takes()
        assert not subject.it.full
        assert request(5, 5) in subject.waits(0.1)
        subject.gets(5)
        subject.waits(10.0)
        assert subject.stats.lost == 0

    def test_a_connection_made_meanwhile_asks_when_there_is_room(self) -> None:
        subject = self.full()
        assert subject.connects() == [KEEPALIVE]
        for _ in range(5):
            subject.takes()
        assert subject.it.relieved(subject.now) == [request(11)]

    def test_a_shelf_that_stays_full_lets_the_subscription_rest(self) -> None:
        subject = self.full()
        assert subject.waits(REST_SECONDS + 1) == [KEEPALIVE] * (int(REST_SECONDS) - 1)
        assert subject.stats.rests == 1
        assert not subject.it.listening
        assert subject.it.reset is not None, "a range that was asked for would still come"
        assert subject.connects() == []
        assert subject.it.reset is None
        assert subject.it.reads
        assert subject.waits(60.0) == []

    def test_datagrams_that_come_in_its_rest_are_dropped(self) -> None:
        subject = self.full(stream=False)
        subject.waits(REST_SECONDS + 1)
        assert not subject.it.listening
        assert subject.it.reset is None
        assert subject.gets(11, 12) == []
        assert subject.stats.dropped == 2
        assert len(subject.it) == 10

    @pytest.mark.parametrize("stream", [True, False])
    def test_and_it_comes_back_without_a_hole(self, stream: bool) -> None:
        subject = self.full(stream=stream)
        subject.waits(REST_SECONDS + 60.0)
        taken = [seqs(subject.takes()) for _ in range(5)]
        assert subject.it.relieved(subject.now) == [KEEPALIVE, request(11)]
        subject.gets(*range(11, 20))
        while (item := subject.takes()) is not None:
            taken.append(seqs(item))
        assert [seq for some in taken if isinstance(some, range) for seq in some] == list(range(1, 20))

    def test_one_that_is_full_now_and_then_does_not_rest(self) -> None:
        subject = self.full()
        for first in range(11, 41, 5):
            subject.waits(REST_SECONDS - 1)
            for _ in range(5):
                subject.takes()
            subject.it.relieved(subject.now)
            for seq in range(first, first + 5):
                subject.gets(seq, size=500)
            assert subject.it.full
        assert subject.it.listening


class TestLoss:
    def test_a_lost_range_waits_in_its_place(self) -> None:
        subject = Subject(replace(QUIET, hole=2.0))
        subject.connects()
        subject.gets(1)
        subject.gets(4, 5)
        subject.waits(10.0)
        assert [seqs(subject.takes()) for _ in range(4)] == [range(1, 2), LostRange(2, 3), range(4, 6), None]
        assert subject.stats.lost == 2
        assert "within 2 s" in subject.it.gave_up
        assert subject.it.reset is None

    def test_a_stream_that_ran_ahead_of_a_lost_range_is_begun_anew(self) -> None:
        subject = Subject(replace(QUIET, hole=2.0, max_early=2), from_seq=1)
        subject.connects()
        subject.gets(4, 5, 6, 7, 8)
        assert subject.stats.dropped > 0
        subject.waits(10.0)
        assert subject.it.reset is not None
        work = subject.connects()
        assert subject.it.reset is None
        assert work[0] == KEEPALIVE


class TestAnotherHistory:
    def stale(self, subject: Subject) -> None:
        for seq in range(1, 13):
            subject.gets(seq)
            subject.waits(1.0)
            if subject.it.reset is not None:
                return

    def test_a_hub_that_sends_only_old_numbers_is_asked_anew_and_then_refused(self) -> None:
        subject = Subject(from_seq=1)
        subject.connects()
        subject.gets(*range(1, 101))
        self.stale(subject)
        assert subject.it.reset is not None
        assert subject.connects() == [KEEPALIVE, request(101)]
        with pytest.raises(UnexpectedError, match=r"SEQUENCE .* the next is 101"):
            self.stale(subject)

    def test_a_few_repeats_are_nothing(self) -> None:
        subject = Subject(from_seq=1)
        subject.connects()
        subject.gets(*range(1, 101))
        for _ in range(20):
            subject.gets(100)
            subject.waits(61.0)
        assert subject.it.reset is None
        assert subject.stats.repeated == 20

    def test_anything_new_clears_the_suspicion(self) -> None:
        subject = Subject(from_seq=1)
        subject.connects()
        subject.gets(*range(1, 101))
        self.stale(subject)
        subject.connects()
        subject.gets(101)
        self.stale(subject)
        assert subject.it.reset is not None


class TestForward:
    def test_what_was_delivered_is_sent_to_who_misses_it(self) -> None:
        subject = Subject(stream=False, journal=JournalBounds())
        subject.connects()
        subject.gets(1, 2, 3)
        frame = Forward("10.0.0.9", 99, 2, 7)
        [sent] = subject.it.forward(frame, subject.now, from_backbone=True)
        assert isinstance(sent, SendDelivers)
        assert (sent.to, sent.first, len(sent.run)) == (("10.0.0.9", 99), 2, 2)
        assert (subject.stats.forwards, subject.stats.forwarded) == (1, 2)

    def test_only_the_hub_may_ask(self) -> None:
        subject = Subject(stream=False, journal=JournalBounds())
        subject.connects()
        subject.gets(1, 2, 3)
        assert subject.it.forward(Forward("10.0.0.9", 99, 2, 7), subject.now, from_backbone=False) == []
        assert subject.stats.forwarded == 0

    def test_a_long_answer_goes_on_with_the_ticks(self) -> None:
        subject = Subject(stream=False, journal=JournalBounds())
        subject.connects()
        subject.gets(*range(1, 1001))
        work = subject.it.forward(Forward("10.0.0.9", 99, 1, 1000), subject.now, from_backbone=True)
        work += subject.waits(1.0)
        answered = [each for each in work if isinstance(each, SendDelivers)]
        assert len(answered) > 1
        assert sum(len(each.run) for each in answered) == 1000

    def test_a_stream_has_nothing_to_answer_with(self) -> None:
        subject = Subject()
        subject.connects()
        subject.gets(1)
        assert subject.it.forward(Forward("10.0.0.9", 99, 1, 1), subject.now, from_backbone=True) == []
