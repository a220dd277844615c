"""The backbone's rules, each where it can be read: a frame in, effects out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.hub.access.addresses import Addresses
from headrace.hub.backbone.pacing import Pace
from headrace.hub.backbone.rules import (
    Acknowledge,
    Backbone,
    BackboneAccess,
    BackboneEffect,
    Lapsed,
    OwnDoor,
    Reason,
    Refused,
    SendChallenge,
    SendForward,
    ServeRange,
    Subscribed,
    Unserved,
)
from headrace.hub.backbone.udp_subscribers import LEASE, Endpoint, Lease, SendRange, Skipped, UdpBounds
from headrace.message import MAX_SEQUENCE
from headrace.wire.fyrehose.stream import (
    Challenge,
    Forward,
    Keepalive,
    KeepaliveAck,
    Proof,
    Request,
    serialize,
)

HUB = ("10.0.0.1", 2323)
DOOR = OwnDoor(frozenset({HUB[0]}), HUB[1])
ALICE = ("10.0.1.1", 5000)
BOB = ("10.0.1.2", 5000)
CAROL = ("10.0.1.3", 5000)
OWN = Keepalive("0.0.0.0", 0)
EVERYBODY = Addresses([IPv4Network("0.0.0.0/0")])


def no_cookie() -> bytes:
    raise AssertionError("nobody is challenged here")


@dataclass
class Log:
    first: int = 1
    head: int = 0


def make(log: Log | None = None, access: BackboneAccess | None = None, **bounds: object) -> Backbone:
    # Who must prove that it receives has tests of its own.
    access = replace(access or BackboneAccess(), trusted=EVERYBODY)
    return Backbone(log or Log(), DOOR, access, UdpBounds(**bounds), no_cookie)  # type: ignore[arg-type]


def subscribe(backbone: Backbone, *endpoints: Endpoint, now: float = 0.0) -> None:
    for endpoint in endpoints:
        backbone.keepalive(OWN, endpoint, now)


def ask(first: int, last: int, address: str = "0.0.0.0", port: int = 0) -> Request:
    return Request(address, port, first, last)


def ranges(effects: list[BackboneEffect]) -> list[tuple[Endpoint, int, int]]:
    return [(effect.to, effect.first, effect.last) for effect in effects if isinstance(effect, SendRange)]


def settle(backbone: Backbone, effects: list[BackboneEffect]) -> list[tuple[Endpoint, int, int]]:
    """Send everything granted, ten bytes a message."""
    for effect in effects:
        if isinstance(effect, SendRange):
            count = effect.last - effect.first + 1
            backbone.sent(effect, effect.last, count, 10 * count)
    return ranges(effects)


class TestKeepalive:
    def test_it_is_acknowledged_to_its_source_with_the_same_address_and_port(self) -> None:
        effects = make().keepalive(Keepalive("10.0.1.1", 6000), ALICE, 0)
        assert effects == [
            Acknowledge(ALICE, KeepaliveAck("10.0.1.1", 6000)),
            Subscribed(("10.0.1.1", 6000), 1),
        ]

    @pytest.mark.parametrize(
        ("frame", "endpoint"),
        [
            (Keepalive("0.0.0.0", 0), ALICE),
            (Keepalive("0.0.0.0", 7), (ALICE[0], 7)),
            (Keepalive(ALICE[0], 0), ALICE),
            (Keepalive(ALICE[0], 9), (ALICE[0], 9)),
        ],
    )
    def test_zeros_mean_the_source(self, frame: Keepalive, endpoint: Endpoint) -> None:
        effects = make().keepalive(frame, ALICE, 0)
        assert effects == [
            Acknowledge(ALICE, KeepaliveAck(frame.address, frame.port)),
            Subscribed(endpoint, 1),
        ]

    def test_a_foreign_address_is_acknowledged_and_nothing_more(self) -> None:
        backbone = make()
        effects = backbone.keepalive(Keepalive(BOB[0], 5000), ALICE, 0)
        assert effects == [
            Acknowledge(ALICE, KeepaliveAck(BOB[0], 5000)),
            Refused(Reason.FOREIGN_ADDRESS, ALICE),
        ]
        assert len(backbone) == 0

    def test_a_foreign_address_that_is_allowed_is_subscribed(self) -> None:
        backbone = make(access=BackboneAccess(allow={BOB[0]}))
        assert Subscribed(BOB, 1) in backbone.keepalive(Keepalive(*BOB), ALICE, 0)

    def test_an_allowed_source_does_not_vouch_for_others(self) -> None:
        backbone = make(access=BackboneAccess(allow={ALICE[0]}))
        assert Refused(Reason.FOREIGN_ADDRESS, ALICE) in backbone.keepalive(Keepalive(*BOB), ALICE, 0)

    def test_the_hubs_own_door_is_never_subscribed(self) -> None:
        backbone = make()
        effects = backbone.keepalive(OWN, HUB, 0)
        assert effects == [Acknowledge(HUB, KeepaliveAck("0.0.0.0", 0)), Refused(Reason.OWN_DOOR, HUB)]
        assert len(backbone) == 0

    @pytest.mark.parametrize(
        ("endpoint", "own"),
        [
            (("10.0.0.1", 2323), True),
            (("10.0.0.1", 2324), False),
            (("10.0.0.9", 2323), False),
            ("nonsense", False),
        ],
    )
    def test_a_door_is_its_addresses_at_its_port(self, endpoint: object, own: bool) -> None:
        assert (endpoint in OwnDoor(frozenset({"10.0.0.1", "10.0.0.2"}), 2323)) is own

    def test_with_auth_required_only_the_allowed_are_served(self) -> None:
        backbone = make(access=BackboneAccess(allow={ALICE[0]}, required=True))
        assert backbone.keepalive(OWN, BOB, 0) == [Refused(Reason.NOT_ALLOWED, BOB)]
        assert backbone.request(ask(1, 1), BOB, 0) == [Refused(Reason.NOT_ALLOWED, BOB)]
        assert Subscribed(ALICE, 1) in backbone.keepalive(OWN, ALICE, 0)
        assert backbone.admits(ALICE[0])
        assert not backbone.admits(BOB[0])

    def test_without_it_everybody_is(self) -> None:
        assert make().admits(BOB[0])

    def test_it_lasts_five_seconds(self) -> None:
        log = Log()
        backbone = make(log)
        subscribe(backbone, ALICE)
        assert backbone.next_timer() == LEASE == 5.0
        log.head = 1
        assert settle(backbone, backbone.due(4.999)) == [(ALICE, 1, 1)]
        log.head = 2
        assert backbone.due(5.0) == [Lapsed(ALICE, 2)]
        assert backbone.next_timer() is None

    def test_renewal_keeps_the_place(self) -> None:
        log = Log()
        backbone = make(log)
        subscribe(backbone, ALICE)
        log.head = 3
        assert backbone.keepalive(OWN, ALICE, 1.0) == [Acknowledge(ALICE, KeepaliveAck("0.0.0.0", 0))]
        assert ranges(backbone.due(5.5)) == [(ALICE, 1, 3)]

    def test_coming_back_after_a_lapse_begins_at_the_head(self) -> None:
        log = Log(head=3)
        backbone = make(log)
        subscribe(backbone, ALICE)
        log.head = 9
        effects = backbone.keepalive(OWN, ALICE, 6.0)
        assert effects[0] == Lapsed(ALICE, 4)
        assert effects[-1] == Subscribed(ALICE, 10)

    def test_the_table_is_bounded(self) -> None:
        backbone = make(subscribers=2)
        subscribe(backbone, ALICE, BOB)
        effects = backbone.keepalive(OWN, CAROL, 0)
        assert effects == [Acknowledge(CAROL, KeepaliveAck("0.0.0.0", 0)), Refused(Reason.TABLE_FULL, CAROL)]
        assert Refused(Reason.TABLE_FULL, CAROL) not in backbone.keepalive(OWN, CAROL, 5.0)

    def test_one_address_cannot_fill_the_table(self) -> None:
        backbone = make(per_address=2)
        for port in (1, 2, 3):
            backbone.keepalive(Keepalive("0.0.0.0", port), ALICE, 0)
        assert len(backbone) == 2
        subscribe(backbone, BOB)
        assert len(backbone) == 3
        backbone.due(5.0)
        backbone.keepalive(Keepalive("0.0.0.0", 3), ALICE, 5.0)
        assert len(backbone) == 1

    def test_a_lease_is_the_same_for_a_connection(self) -> None:
        lease = Lease()
        assert not lease.holds(0)
        assert lease.renew(0)
        assert not lease.renew(4)
        assert lease.holds(8.9)
        assert not lease.holds(9)
        assert lease.renew(9)


class TestLiveFeed:
    def test_everyone_gets_what_is_committed_after_they_joined(self) -> None:
        log = Log(head=10)
        backbone = make(log)
        subscribe(backbone, ALICE)
        log.head = 12
        subscribe(backbone, BOB)
        assert settle(backbone, backbone.due(0)) == [(ALICE, 11, 12)]
        log.head = 15
        assert settle(backbone, backbone.due(0)) == [(ALICE, 13, 15), (BOB, 13, 15)]
        assert backbone.due(0) == []

    def test_nobody_is_nothing(self) -> None:
        assert make(Log(head=10)).due(0) == []

    def test_a_grant_is_answered_before_the_next(self) -> None:
        log = Log()
        backbone = make(log)
        subscribe(backbone, ALICE)
        log.head = 1
        (grant,) = backbone.due(0)
        log.head = 2
        assert backbone.due(0) == []
        assert backbone.next_timer() == LEASE
        assert isinstance(grant, SendRange)
        backbone.sent(grant, 1, 1, 10)
        assert ranges(backbone.due(0)) == [(ALICE, 2, 2)]

    def test_what_did_not_go_out_is_due_again(self) -> None:
        log = Log()
        backbone = make(log)
        subscribe(backbone, ALICE)
        log.head = 9
        (grant,) = backbone.due(0)
        assert isinstance(grant, SendRange)
        backbone.sent(grant, 4, 4, 400)
        (grant,) = backbone.due(0)
        assert isinstance(grant, SendRange)
        assert (grant.first, grant.last) == (5, 9)
        backbone.sent(grant, 0, 0, 0)
        assert ranges(backbone.due(0)) == [(ALICE, 5, 9)]

    def test_an_answer_for_somebody_who_left_is_ignored(self) -> None:
        log = Log()
        backbone = make(log)
        subscribe(backbone, ALICE)
        log.head = 9
        (grant,) = backbone.due(0)
        assert isinstance(grant, SendRange)
        backbone.due(6)
        backbone.sent(grant, 1, 1, 1)
        subscribe(backbone, ALICE, now=6)
        backbone.sent(grant, 1, 1, 1)
        assert ranges(backbone.due(6)) == []

    def test_it_is_paced_in_datagrams(self) -> None:
        log = Log()
        backbone = make(log, pace=Pace(100, 1e9, 4, 10_000))
        subscribe(backbone, ALICE)
        log.head = 10
        assert settle(backbone, backbone.due(0)) == [(ALICE, 1, 4)]
        assert backbone.due(0) == []
        assert backbone.next_timer() == pytest.approx(0.01)
        assert settle(backbone, backbone.due(0.02)) == [(ALICE, 5, 6)]
        assert settle(backbone, backbone.due(1)) == [(ALICE, 7, 10)]

    def test_a_grant_says_how_many_bytes_may_go(self) -> None:
        log = Log(head=0)
        backbone = make(log, pace=Pace(100, 1_000, 4, 500))
        subscribe(backbone, ALICE)
        log.head = 3
        (grant,) = backbone.due(0)
        assert isinstance(grant, SendRange)
        assert (grant.datagrams, grant.size) == (4, 500)
        backbone.sent(grant, 1, 1, 1_500)
        assert backbone.due(0.9) == []
        assert ranges(backbone.due(1.2)) == [(ALICE, 2, 3)]

    def test_who_falls_too_far_behind_is_skipped_ahead(self) -> None:
        log = Log()
        backbone = make(log, lag=10)
        subscribe(backbone, ALICE)
        log.head = 10
        assert ranges(backbone.due(0)) == [(ALICE, 1, 10)]
        log.head = 30
        assert backbone.due(0) == [Skipped(ALICE, 11, 25)]

    def test_a_log_that_was_trimmed_skips_too(self) -> None:
        log = Log()
        backbone = make(log)
        subscribe(backbone, ALICE)
        log.first, log.head = 5, 6
        skipped, grant = backbone.due(0)
        assert skipped == Skipped(ALICE, 1, 4)
        assert ranges([grant]) == [(ALICE, 5, 6)]

    def test_a_skip_while_a_grant_is_out_is_not_undone(self) -> None:
        log = Log()
        backbone = make(log, lag=10)
        subscribe(backbone, ALICE)
        log.head = 10
        (grant,) = backbone.due(0)
        log.head = 30
        backbone.due(0)
        assert isinstance(grant, SendRange)
        backbone.sent(grant, 3, 3, 30)
        assert ranges(backbone.due(0)) == [(ALICE, 26, 30)]


class TestCoalescing:
    @pytest.fixture
    def log(self) -> Log:
        return Log()

    def grant(self, backbone: Backbone, log: Log) -> SendRange:
        log.head += 3
        (grant,) = backbone.due(0)
        assert isinstance(grant, SendRange)
        return grant

    def test_not_toward_a_client_that_has_not_done_it(self, log: Log) -> None:
        backbone = make(log)
        subscribe(backbone, ALICE)
        backbone.coalesced(BOB)
        assert not self.grant(backbone, log).coalesce

    def test_toward_a_subscriber_that_has(self, log: Log) -> None:
        backbone = make(log)
        subscribe(backbone, ALICE)
        backbone.coalesced(ALICE)
        assert self.grant(backbone, log).coalesce

    def test_toward_one_that_did_before_it_subscribed(self, log: Log) -> None:
        backbone = make(log)
        backbone.coalesced(ALICE)
        backbone.keepalive(Keepalive("0.0.0.0", 9), ALICE, 0)
        assert self.grant(backbone, log).coalesce

    def test_toward_an_address_that_is_configured(self, log: Log) -> None:
        backbone = make(log, BackboneAccess(coalesce={ALICE[0]}))
        subscribe(backbone, ALICE)
        assert self.grant(backbone, log).coalesce

    def test_a_coalesced_grant_is_bounded_by_bytes(self, log: Log) -> None:
        backbone = make(log, pace=Pace(1, 1, 1, 90))
        subscribe(backbone, ALICE)
        backbone.coalesced(ALICE)
        log.head = 100
        assert ranges(backbone.due(0)) == [(ALICE, 1, 10)]

    def test_what_is_remembered_of_strangers_is_bounded(self, log: Log) -> None:
        backbone = make(log, subscribers=2)
        for source in (ALICE, BOB, CAROL):
            backbone.coalesced(source)
        subscribe(backbone, ALICE)
        assert not self.grant(backbone, log).coalesce


class TestRequest:
    @pytest.fixture
    def log(self) -> Log:
        return Log(first=1, head=5_000)

    @pytest.fixture
    def backbone(self, log: Log) -> Backbone:
        backbone = make(log, pace=Pace(1e6, 1e9, 10_000, 10_000_000))
        subscribe(backbone, ALICE)
        return backbone

    @pytest.mark.parametrize(
        ("asked", "served"),
        [
            ((7, 9), (7, 9)),
            ((0, 3), (1, 3)),
            ((4_990, MAX_SEQUENCE), (4_990, 5_000)),
            ((1, 5_000), (1, 1_024)),
            ((5_000, 5_000), (5_000, 5_000)),
        ],
    )
    def test_it_is_served_from_the_log(
        self, backbone: Backbone, asked: tuple[int, int], served: tuple[int, int]
    ) -> None:
        assert ranges(backbone.request(ask(*asked), ALICE, 0)) == [(ALICE, *served)]

    @pytest.mark.parametrize("asked", [(5_001, 5_001), (6_000, MAX_SEQUENCE), (0, 0)])
    def test_what_is_not_there_yet_is_nothing_to_send_and_no_refusal(
        self, backbone: Backbone, asked: tuple[int, int]
    ) -> None:
        assert backbone.request(ask(*asked), ALICE, 0) == []

    def test_backwards_is_refused(self, backbone: Backbone) -> None:
        assert backbone.request(ask(9, 8), ALICE, 0) == [Refused(Reason.BACKWARDS, ALICE)]
        assert backbone.request(ask(7_000, 6_000), ALICE, 0) == [Refused(Reason.BACKWARDS, ALICE)]

    def test_only_its_own_address_may_ask(self, backbone: Backbone) -> None:
        effects = backbone.request(ask(1, 2, *ALICE), BOB, 0)
        assert effects == [Refused(Reason.FOREIGN_ADDRESS, BOB)]

    def test_an_allowed_address_may_be_asked_for_by_another_as_in_a_keepalive(self, log: Log) -> None:
        backbone = make(log, BackboneAccess(allow={BOB[0]}))
        assert backbone.request(ask(1, 2, *BOB), ALICE, 0) == [Refused(Reason.NOT_SUBSCRIBED, ALICE)]
        backbone.keepalive(Keepalive(*BOB), ALICE, 0)
        assert ranges(backbone.request(ask(1, 2, *BOB), ALICE, 0)) == [(BOB, 1, 2)]

    def test_only_a_subscriber_may_ask(self, backbone: Backbone) -> None:
        assert backbone.request(ask(1, 2), BOB, 0) == [Refused(Reason.NOT_SUBSCRIBED, BOB)]
        assert backbone.request(ask(1, 2, ALICE[0], 77), ALICE, 0) == [Refused(Reason.NOT_SUBSCRIBED, ALICE)]

    def test_another_port_of_the_same_address_may_ask_for_a_subscriber(self, backbone: Backbone) -> None:
        assert ranges(backbone.request(ask(1, 2, *ALICE), (ALICE[0], 9), 0)) == [(ALICE, 1, 2)]

    def test_a_lapsed_subscriber_may_not(self, backbone: Backbone) -> None:
        effects = backbone.request(ask(1, 2), ALICE, 5.0)
        assert effects == [Lapsed(ALICE, 5_001), Refused(Reason.NOT_SUBSCRIBED, ALICE)]

    def test_overlapping_requests_are_served_once(self, backbone: Backbone) -> None:
        (grant,) = backbone.request(ask(1, 10), ALICE, 0)
        backbone.request(ask(20, 30), ALICE, 0)
        backbone.request(ask(25, 40), ALICE, 0)
        backbone.request(ask(18, 19), ALICE, 0)
        settle(backbone, [grant])
        assert settle(backbone, backbone.due(0)) == [(ALICE, 18, 40)]
        assert backbone.due(0) == []

    def test_queued_ranges_are_bounded(self, log: Log) -> None:
        backbone = make(log, ranges=2)
        subscribe(backbone, ALICE)
        for first in (10, 20, 30):
            backbone.request(ask(first, first), ALICE, 0)
        assert backbone.request(ask(40, 40), ALICE, 0) == [Refused(Reason.TOO_MANY_RANGES, ALICE)]

    def test_what_the_live_feed_will_bring_is_not_sent_twice(self, log: Log, backbone: Backbone) -> None:
        log.head = 5_010
        assert backbone.request(ask(5_001, MAX_SEQUENCE), ALICE, 0)[0] == backbone_grant(ALICE, 5_001, 5_010)

    def test_it_is_paced(self, log: Log) -> None:
        backbone = make(log, pace=Pace(100, 1e9, 4, 100_000))
        subscribe(backbone, ALICE)
        assert settle(backbone, backbone.request(ask(1, 1_000), ALICE, 0)) == [(ALICE, 1, 4)]
        assert backbone.due(0) == []
        assert settle(backbone, backbone.due(0.02)) == [(ALICE, 5, 6)]

    def test_repairs_and_the_live_feed_take_turns(self, log: Log) -> None:
        backbone = make(log, pace=Pace(100, 1e9, 4, 100_000))
        subscribe(backbone, ALICE)
        settle(backbone, backbone.request(ask(1, 1_000), ALICE, 0))
        log.head += 100
        sent = [settle(backbone, backbone.due(now))[0][1] for now in (1, 2, 3, 4)]
        assert sent == [5_001, 5, 5_005, 9]

    def test_what_of_a_repair_did_not_go_out_is_due_again(self, backbone: Backbone) -> None:
        (grant,) = backbone.request(ask(1, 10), ALICE, 0)
        assert isinstance(grant, SendRange)
        backbone.sent(grant, 6, 6, 60)
        assert settle(backbone, backbone.due(0)) == [(ALICE, 7, 10)]

    def test_a_queued_range_that_is_trimmed_meanwhile_is_skipped(self, log: Log, backbone: Backbone) -> None:
        (grant,) = backbone.request(ask(1, 10), ALICE, 0)
        backbone.request(ask(100, 200), ALICE, 0)
        log.first = 151
        settle(backbone, [grant])
        effects = backbone.due(0)
        assert effects[0] == Skipped(ALICE, 100, 150)
        assert ranges(effects) == [(ALICE, 151, 200)]


def backbone_grant(to: Endpoint, first: int, last: int) -> SendRange:
    return SendRange(to, first, last, live=True, coalesce=False, datagrams=10_000, size=10_000_000)


class TestForward:
    @pytest.fixture
    def log(self) -> Log:
        return Log(first=101, head=200)

    def test_what_is_below_the_log_is_forwarded_and_the_rest_is_served(self, log: Log) -> None:
        backbone = make(log)
        subscribe(backbone, ALICE, BOB)
        forward, grant = backbone.request(ask(50, 110), ALICE, 0)
        assert forward == SendForward(BOB, Forward(*ALICE, 50, 100))
        assert ranges([grant]) == [(ALICE, 101, 110)]

    def test_a_request_that_begins_below_the_log_is_served_from_where_the_log_begins(self, log: Log) -> None:
        log.first, log.head = 100_001, 200_000
        backbone = make(log, pace=Pace(1e6, 1e9, 10_000, 10_000_000))
        subscribe(backbone, ALICE, BOB)
        forward, grant = backbone.request(ask(1, MAX_SEQUENCE), ALICE, 0)
        assert forward == SendForward(BOB, Forward(*ALICE, 1, 100_000))
        assert ranges([grant]) == [(ALICE, 100_001, 101_024)]

    def test_round_robin_and_never_the_requester(self, log: Log) -> None:
        backbone = make(log)
        subscribe(backbone, ALICE, BOB, CAROL)
        asked = [backbone.request(ask(1, 9), ALICE, 0)[0] for _ in range(4)]
        assert [effect.to for effect in asked if isinstance(effect, SendForward)] == [BOB, CAROL, BOB, CAROL]
        (effect,) = backbone.request(ask(1, 9), BOB, 0)
        assert isinstance(effect, SendForward)
        assert effect.to == ALICE

    def test_not_to_one_that_has_lapsed(self, log: Log) -> None:
        backbone = make(log)
        subscribe(backbone, BOB)
        subscribe(backbone, ALICE, now=4)
        effects = backbone.request(ask(1, 9), ALICE, 5)
        assert effects == [Lapsed(BOB, 201), Unserved(ALICE, 1, 9)]

    def test_it_is_counted_if_there_is_nobody_to_ask(self, log: Log) -> None:
        backbone = make(log)
        subscribe(backbone, ALICE)
        assert backbone.request(ask(1, 9), ALICE, 0) == [Unserved(ALICE, 1, 9)]

    def test_an_empty_log_forwards_up_to_its_head(self, log: Log) -> None:
        log.first = 201
        backbone = make(log)
        subscribe(backbone, ALICE, BOB)
        assert backbone.request(ask(1, MAX_SEQUENCE), ALICE, 0) == [SendForward(BOB, Forward(*ALICE, 1, 200))]

    def test_one_requester_cannot_make_the_others_busy(self, log: Log) -> None:
        backbone = make(log, forwards=Pace(1, 1e9, 2, 1_000))
        subscribe(backbone, ALICE, BOB)
        effects = [backbone.request(ask(1, 9), ALICE, 0)[0] for _ in range(3)]
        assert effects[2] == Refused(Reason.TOO_MANY_FORWARDS, ALICE)
        assert isinstance(backbone.request(ask(1, 9), ALICE, 1)[0], SendForward)


class TestStreamRequest:
    @pytest.mark.parametrize(
        ("asked", "effects"),
        [
            ((101, 200), [ServeRange(101, 200)]),
            ((0, MAX_SEQUENCE), [Unserved(ALICE, 1, 100), ServeRange(101, 5_000)]),
            ((3, 4), [Unserved(ALICE, 3, 4)]),
            ((5_001, 5_002), []),
            ((0, 0), []),
            ((2, 1), [Refused(Reason.BACKWARDS, ALICE)]),
        ],
    )
    def test_the_whole_range_is_served_and_nothing_is_forwarded(
        self, asked: tuple[int, int], effects: list[BackboneEffect]
    ) -> None:
        backbone = make(Log(first=101, head=5_000))
        subscribe(backbone, BOB, CAROL)
        assert backbone.stream_request(ask(*asked), ALICE) == effects


steps = st.one_of(
    st.tuples(st.just("keepalive"), st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("request"), st.integers(0, 60), st.integers(0, 60)),
    st.tuples(st.just("commit"), st.integers(1, 20), st.integers(0, 20)),
    st.tuples(st.just("wait"), st.integers(0, 300), st.just(0)),
    st.tuples(st.just("sent"), st.integers(0, 5), st.integers(0, 20)),
)


@given(st.lists(steps, max_size=60))
def test_whatever_happens_grants_stay_within_the_log_the_table_and_the_pace(
    happenings: list[tuple[str, int, int]],
) -> None:
    log = Log()
    bounds = UdpBounds(
        subscribers=4, per_address=2, request=8, ranges=2, lag=10, pace=Pace(100, 1e4, 3, 1_000)
    )
    backbone = Backbone(log, DOOR, BackboneAccess(trusted=EVERYBODY), bounds, no_cookie)
    now = 0.0
    subscribed: dict[Endpoint, float] = {}
    out: dict[Endpoint, SendRange] = {}
    for what, one, two in happenings:
        source = (f"10.0.1.{one % 3}", 5000 + two % 3)
        effects: list[BackboneEffect] = []
        match what:
            case "keepalive":
                effects = backbone.keepalive(OWN, source, now)
            case "request":
                effects = backbone.request(ask(one, two), source, now)
            case "commit":
                log.head += one
                log.first = max(log.first, log.head - two + 1)
                effects = backbone.due(now)
            case "wait":
                now += one / 100
                effects = backbone.due(now)
            case "sent" if out:
                _, grant = out.popitem()
                count = min(two, grant.last - grant.first + 1)
                backbone.sent(grant, grant.first + count - 1, count, 10 * count)
        for effect in effects:
            match effect:
                case Subscribed(endpoint):
                    subscribed[endpoint] = now
                case Lapsed(endpoint):
                    del subscribed[endpoint]
                    out.pop(endpoint, None)
                case SendRange(to, first, last):
                    assert to in subscribed
                    assert to not in out
                    assert log.first <= first <= last <= log.head
                    assert last - first < 3
                    out[to] = effect
                case Skipped(to, first, last):
                    assert to in subscribed
                    assert first <= last
        assert len(backbone) == len(subscribed) <= 4
        timer = backbone.next_timer()
        assert (timer is None) == (not subscribed)


class TestProof:
    """An address that is not trusted gets messages once it has sent back what it was sent."""

    @staticmethod
    def backbone(log: Log | None = None, **bounds: object) -> Backbone:
        numbers = count(1)
        access = BackboneAccess(trusted=Addresses([IPv4Network("10.0.1.2/32")]))
        cookies = (number.to_bytes(8) for number in numbers)
        return Backbone(log or Log(), DOOR, access, UdpBounds(**bounds), lambda: next(cookies))  # type: ignore[arg-type]

    def test_every_keepalive_is_answered_by_the_same_challenge_until_the_proof(self) -> None:
        log = Log()
        backbone = self.backbone(log)
        challenge = SendChallenge(ALICE, Challenge(bytes(7) + b"\x01"))
        assert challenge in backbone.keepalive(OWN, ALICE, 0.0)
        assert challenge in backbone.keepalive(OWN, ALICE, 1.0)
        log.head = 3
        assert backbone.due(1.5) == []
        assert backbone.next_timer() == 1.0 + LEASE
        # What came since it subscribed is not lost to it.
        assert ranges(backbone.proof(Proof(challenge.frame.cookie), ALICE, 2.0)) == [(ALICE, 1, 3)]
        assert challenge not in backbone.keepalive(OWN, ALICE, 2.5)
        assert backbone.proof(Proof(challenge.frame.cookie), ALICE, 2.6) == []

    def test_less_than_three_times_what_it_sent(self) -> None:
        log = Log(1, 9)
        backbone = self.backbone(log)
        effects = [*backbone.keepalive(OWN, ALICE, 0.0), *backbone.request(ask(1, 9), ALICE, 0.0)]
        log.head += 9
        effects += backbone.due(0.1)
        sent = [effect.frame for effect in effects if isinstance(effect, Acknowledge | SendChallenge)]
        assert sum(len(serialize(frame)) for frame in sent) == 16 <= 3 * (7 + 19)
        assert ranges(effects) == []
        assert Refused(Reason.UNPROVEN, ALICE) in effects

    def test_a_proof_may_come_from_another_port_and_not_from_another_address(self) -> None:
        backbone = self.backbone()
        backbone.keepalive(Keepalive(ALICE[0], 7000), ALICE, 0.0)
        proof = Proof(bytes(7) + b"\x01")
        assert backbone.proof(proof, CAROL, 0.0) == [Refused(Reason.UNPROVEN, CAROL)]
        assert backbone.proof(proof, ALICE, 0.0) == []

    def test_a_wrong_cookie_and_one_of_a_lapsed_subscription_prove_nothing(self) -> None:
        backbone = self.backbone()
        backbone.keepalive(OWN, ALICE, 0.0)
        assert backbone.proof(Proof(bytes(8)), ALICE, 0.0) == [Refused(Reason.UNPROVEN, ALICE)]
        late = backbone.proof(Proof(bytes(7) + b"\x01"), ALICE, LEASE + 1)
        assert late == [Lapsed(ALICE, 1), Refused(Reason.UNPROVEN, ALICE)]
        assert backbone._challenged == {}

    def test_who_is_trusted_need_not_prove_anything(self) -> None:
        log = Log()
        backbone = self.backbone(log)
        assert not any(isinstance(effect, SendChallenge) for effect in backbone.keepalive(OWN, BOB, 0.0))
        log.head = 1
        assert ranges(backbone.due(0.0)) == [(BOB, 1, 1)]

    def test_nobody_unproven_is_asked_to_forward(self) -> None:
        backbone = self.backbone(Log(5, 9))
        subscribe(backbone, ALICE, BOB)
        assert Unserved(BOB, 1, 4) in backbone.request(ask(1, 9), BOB, 0.0)
        backbone.proof(Proof(bytes(7) + b"\x01"), ALICE, 0.0)
        assert SendForward(ALICE, Forward(*BOB, 1, 4)) in backbone.request(ask(1, 9), BOB, 0.0)
