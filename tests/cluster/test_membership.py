from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.cluster.effects import Status
from headrace.cluster.membership import (
    MAX_STRANGERS,
    MODES,
    Discover,
    Heartbeat,
    Membership,
    MembershipEffect,
    ModeChanged,
    ModeEvent,
    NeighbourJoined,
    NeighbourRemoved,
    Refuse,
    Reply,
)
from headrace.wire.parcel.body import DscRes, Fault, Mode, NodeInfo, Ping, Prepare, SeqReq, SeqRes
from headrace.wire.parcel.stream import Parcel, serialize

A = NodeInfo(1, Mode.DSC, "a", "10.0.0.1")
B = NodeInfo(2, Mode.DSC, "b", "10.0.0.2:7001")
C = NodeInfo(3, Mode.WRK, "c", "10.0.0.3")
STRANGER = NodeInfo(9, Mode.DSC, "s", "10.0.0.9")

HOST_B, HOST_C = "10.0.0.2:7001", "10.0.0.3:7878"


def trio(**options: tuple[int, ...]) -> Membership:
    membership = Membership(A, [HOST_B, "10.0.0.3"], **options)
    assert membership.start(0.0) == [Discover(HOST_B), Discover(HOST_C)]
    return membership


def met(now: float = 0.0, **options: tuple[int, ...]) -> Membership:
    """Both peers have answered."""
    membership = trio(**options)
    membership.answered(HOST_B, DscRes((B,)), now)
    membership.answered(HOST_C, DscRes((C,)), now)
    return membership


def kinds(effects: list[MembershipEffect], kind: type[MembershipEffect]) -> list[MembershipEffect]:
    return [effect for effect in effects if isinstance(effect, kind)]


class TestModes:
    def test_alone_goes_straight_to_work(self) -> None:
        membership = Membership(A, [])
        assert membership.start(0.0) == [ModeChanged(Mode.WRK)]
        assert membership.tick(100.0) == []
        assert membership.mode is Mode.WRK
        assert membership.size == 1

    def test_work_begins_when_the_log_is_there_and_a_majority_is_heard(self) -> None:
        membership = trio()
        assert membership.replica_is(Status.NORMAL, 0.0) == []
        effects = membership.answered(HOST_B, DscRes((B,)), 1.0)
        assert ModeChanged(Mode.WRK) in effects
        assert membership.me == replace(A, mode=Mode.WRK)

    def test_a_view_change_is_no_work(self) -> None:
        membership = met()
        membership.replica_is(Status.NORMAL, 0.0)
        assert membership.replica_is(Status.VIEW_CHANGE, 1.0) == [ModeChanged(Mode.DSC)]
        assert membership.replica_is(Status.NORMAL, 2.0) == [ModeChanged(Mode.WRK)]

    def test_a_node_that_hears_no_majority_is_in_error_until_it_does(self) -> None:
        membership = met()
        membership.replica_is(Status.NORMAL, 0.0)
        assert membership.mode is Mode.WRK
        membership.heard(2, 3.0)
        assert not kinds(membership.tick(6.0), ModeChanged)
        assert membership.sees_majority(7.9)
        assert kinds(membership.tick(8.0), ModeChanged) == [ModeChanged(Mode.ERR)]
        effects = membership.answered(HOST_C, DscRes((C,)), 9.0)
        assert kinds(effects, ModeChanged) == [ModeChanged(Mode.DSC), ModeChanged(Mode.WRK)]

    def test_a_node_that_never_hears_one_is_in_error_after_a_while(self) -> None:
        membership = trio()
        assert not kinds(membership.tick(4.9), ModeChanged)
        assert kinds(membership.tick(5.0), ModeChanged) == [ModeChanged(Mode.ERR)]

    def test_strangers_are_no_majority(self) -> None:
        membership = trio()
        membership.replica_is(Status.NORMAL, 0.0)
        for number in range(10, 20):
            membership.asked(NodeInfo(number, Mode.WRK, f"n{number}", f"10.0.1.{number}"), 1.0)
        assert not membership.sees_majority(1.0)
        assert membership.mode is Mode.DSC

    def test_a_fault_stays(self) -> None:
        membership = met()
        assert membership.failed("its log is of another history") == [ModeChanged(Mode.ERR)]
        membership.replica_is(Status.NORMAL, 1.0)
        membership.heard(2, 1.0)
        membership.tick(2.0)
        assert membership.mode is Mode.ERR
        assert membership.fault == "its log is of another history"

    @pytest.mark.parametrize(("size", "needed"), [(2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
    def test_what_a_majority_is(self, size: int, needed: int) -> None:
        hosts = [f"10.0.0.{number}:7878" for number in range(2, size + 1)]
        membership = Membership(A, hosts)
        membership.start(0.0)
        for count, host in enumerate(hosts, 1):
            membership.answered(host, DscRes((NodeInfo(10 + count, Mode.WRK, host, host),)), 0.0)
            assert membership.sees_majority(0.0) == (count >= needed)

    def test_every_mode_can_be_left_and_every_event_matters(self) -> None:
        assert {mode for mode, _ in MODES} == set(Mode)
        assert {event for _, event in MODES} == set(ModeEvent)


class TestDiscovery:
    def test_a_request_is_answered_with_whom_one_knows(self) -> None:
        membership = met()
        membership.heard(3, 1.0)
        effects = membership.asked(STRANGER, 2.0)
        assert effects[0] == NeighbourJoined(STRANGER, member=False)
        [answer] = kinds(effects, Reply)
        assert isinstance(answer, Reply)
        assert answer.parcel == Parcel(1, DscRes((A, C, B)))
        again = membership.asked(STRANGER, 3.0)
        assert not kinds(again, NeighbourJoined)

    def test_an_answer_fits_however_many_there_are(self) -> None:
        membership = trio()
        for number in range(10, 60):
            effects = membership.asked(NodeInfo(number, Mode.WRK, f"node {number}", f"10.0.1.{number}"), 1.0)
            [answer] = kinds(effects, Reply)
            assert isinstance(answer, Reply)
            assert len(serialize(answer.parcel)) <= 256

    def test_the_neighbours_of_a_neighbour_are_asked_not_believed(self) -> None:
        membership = trio()
        effects = membership.answered(HOST_B, DscRes((B, A, STRANGER, replace(STRANGER, id=8))), 1.0)
        assert effects == [NeighbourJoined(B, member=True), Discover("10.0.0.9")]
        assert membership.neighbours == (B,)

    def test_an_answer_that_lists_nobody_is_refused(self) -> None:
        [refused] = trio().answered(HOST_B, DscRes(()), 1.0)
        assert refused == Refuse(Fault.BAD_RES, "a DscRes lists its sender first")

    def test_whoever_is_missing_is_asked_each_second(self) -> None:
        membership = trio()
        membership.answered(HOST_B, DscRes((B,)), 0.5)
        assert membership.tick(0.9) == []
        assert membership.tick(1.0) == [Heartbeat((2,)), Discover(HOST_C)]

    def test_sequence_recovery(self) -> None:
        membership = met()
        assert membership.sequence_asked(2, 1000, 1.0)[-1] == Reply(Parcel(1, SeqRes(1000)))
        assert next(node for node in membership.neighbours if node.id == 2).mode is Mode.WRK
        assert membership.sequence_asked(77, 1000, 1.0)[-1] == Reply(Parcel(1, SeqRes(1000)))
        assert len(membership.neighbours) == 2


class TestSilence:
    def test_who_is_silent_for_more_than_five_seconds_is_removed(self) -> None:
        membership = met()
        membership.heard(3, 4.0)
        assert not kinds(membership.tick(4.9), NeighbourRemoved)
        assert kinds(membership.tick(5.0), NeighbourRemoved) == [NeighbourRemoved(B)]
        assert membership.neighbours == (C,)

    def test_removal_leaves_the_cluster_as_large_as_it_was(self) -> None:
        membership = met()
        membership.tick(50.0)
        assert membership.neighbours == ()
        assert membership.members == {2, 3}
        assert membership.size == 3

    def test_heartbeats_go_to_everyone_in_every_mode(self) -> None:
        membership = met()
        membership.asked(STRANGER, 0.0)
        for now, mode in [(1.0, Mode.DSC), (2.0, Mode.WRK)]:
            if mode is Mode.WRK:
                membership.replica_is(Status.NORMAL, now)
            assert membership.mode is mode
            [beat] = kinds(membership.tick(now), Heartbeat)
            assert isinstance(beat, Heartbeat)
            assert set(beat.to) == {2, 3, 9}
        membership.failed("broken")
        [beat] = kinds(membership.tick(3.0), Heartbeat)


class TestClaims:
    def test_nobody_takes_this_nodes_id(self) -> None:
        [refused] = trio().asked(replace(B, id=1), 0.0)
        assert isinstance(refused, Refuse)
        assert "taken by a" in refused.reason

    @pytest.mark.parametrize("second", [replace(B, name="x"), replace(B, host="10.0.0.77")])
    def test_a_second_claimant_is_refused_while_the_first_is_there(self, second: NodeInfo) -> None:
        membership = met()
        assert membership.asked(second, 1.0) == [Refuse(Fault.BAD_REQ, "id 2 is taken by b at 10.0.0.2:7001")]
        membership.tick(6.0)
        assert not kinds(membership.asked(second, 6.0), Refuse)

    def test_a_node_that_restarts_is_the_same(self) -> None:
        membership = met()
        assert not kinds(membership.asked(replace(B, mode=Mode.ERR), 1.0), Refuse)

    def test_one_node_at_two_configured_addresses(self) -> None:
        membership = trio()
        membership.answered(HOST_B, DscRes((B,)), 0.0)
        [refused] = membership.answered(HOST_C, DscRes((B,)), 0.0)
        assert isinstance(refused, Refuse)
        assert "two addresses" in refused.reason

    def test_another_node_at_a_configured_address_of_a_cluster_that_has_begun(self) -> None:
        membership = trio(nodes=(1, 2, 3))
        [refused] = membership.answered(HOST_C, DscRes((STRANGER,)), 0.0)
        assert isinstance(refused, Refuse)
        assert "not of this cluster" in refused.reason
        assert membership.members == {2, 3}

    def test_strangers_are_bounded_members_are_not_kept_out(self) -> None:
        membership = trio(nodes=(1, 2, 3))
        for number in range(MAX_STRANGERS):
            stranger = NodeInfo(100 + number, Mode.WRK, f"n{number}", f"10.0.1.{number}")
            assert not kinds(membership.asked(stranger, 0.0), Refuse)
        assert kinds(membership.asked(STRANGER, 0.0), Refuse)
        assert not kinds(membership.asked(B, 0.0), Refuse)
        assert len(membership.neighbours) == MAX_STRANGERS + 1

    def test_what_an_answer_makes_one_ask_is_bounded(self) -> None:
        listed = [NodeInfo(1000 + n, Mode.WRK, f"n{n}", f"10.1.{n >> 8}.{n & 255}") for n in range(500)]
        effects = trio().answered(HOST_B, DscRes((B, *listed)), 0.0)
        assert len(kinds(effects, Discover)) <= MAX_STRANGERS + 3


class TestRefusals:
    def test_who_may_send_what(self) -> None:
        membership = met()
        membership.asked(STRANGER, 0.0)
        prepare = Prepare(1, 1, 1, 0)
        assert membership.refusal(2, prepare) is None
        assert membership.refusal(9, Ping()) is None
        assert membership.refusal(9, prepare) == "id 9 is not of this cluster"
        assert membership.refusal(77, Ping()) == "id 77 has not introduced itself by DscReq"
        assert membership.refusal(77, SeqReq()) is None
        assert membership.refusal(1, prepare) == "id 1 is this node's own"

    def test_the_members_are_known_once_the_cluster_has_begun(self) -> None:
        membership = trio()
        membership.asked(B, 0.0)
        assert membership.refusal(2, Prepare(1, 1, 1, 0)) is not None
        membership.began((1, 2, 3))
        assert membership.refusal(2, Prepare(1, 1, 1, 0)) is None


class TestHello:
    def test_who_says_hello_has_its_id_and_who_does_not_gives_way(self) -> None:
        membership = trio()
        assert not kinds(membership.asked(replace(B, name="x"), 0.0, hello=False), Refuse)
        assert not membership.is_node(2)
        assert not kinds(membership.answered(HOST_B, DscRes((B,)), 0.0), Refuse)
        assert membership.is_node(2)
        assert membership.neighbours == (B,)
        membership.tick(50.0)
        assert membership.is_node(2)  # it answers at a configured address: it is of the cluster
        assert not membership.is_node(9)

    def test_those_who_say_none_do_not_fill_the_places_of_those_who_do(self) -> None:
        membership = trio()
        for number in range(MAX_STRANGERS):
            stranger = NodeInfo(100 + number, Mode.WRK, f"n{number}", f"10.0.1.{number}")
            assert not kinds(membership.asked(stranger, 0.0, hello=False), Refuse)
        assert kinds(membership.asked(STRANGER, 0.0, hello=False), Refuse)
        # The cluster has not begun, so who is of it is not known yet.
        assert not kinds(membership.asked(B, 0.0), Refuse)

    def test_who_is_not_proven_is_answered_and_not_added(self) -> None:
        membership = trio(nodes=(1, 2, 3))
        effects = membership.asked(B, 0.0, proven=False)
        assert [type(effect) for effect in effects] == [Reply]
        assert membership.neighbours == ()
        assert membership.proved(B, 1.0) == [NeighbourJoined(B, member=True)]
        assert membership.age(2, 1.0) == 0.0
        [refused] = membership.proved(replace(B, host="10.0.0.77"), 1.0)
        assert isinstance(refused, Refuse)

    def test_a_node_that_dials_itself_is_told_so(self) -> None:
        [refused] = trio().asked(replace(A, mode=Mode.WRK), 0.0)
        assert isinstance(refused, Refuse)
        assert "cluster.address" in refused.reason


class TestDocument:
    def test_who_came_from_the_host_it_names_gets_a_dsc_req_each_second(self) -> None:
        membership = met()
        joined, _ = membership.asked(STRANGER, 0.0, hello=False, source="10.0.0.9")
        assert joined == NeighbourJoined(STRANGER, member=False, hello=False)
        for now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
            membership.heard(2, now)
            membership.heard(3, now)
            assert membership.tick(now) == [Heartbeat((2, 3)), Discover("10.0.0.9", heartbeat=True)]
            membership.answered("10.0.0.9", DscRes((STRANGER,)), now, hello=False)
        assert membership.document_node_at("10.0.0.9") == STRANGER
        assert NeighbourRemoved(STRANGER) in membership.tick(11.0)
        assert membership.document_node_at("10.0.0.9") is None

    @pytest.mark.parametrize(("host", "dialled"), [("10.0.0.9", False), (HOST_B, True), (A.host, False)])
    def test_who_came_from_elsewhere_is_dialled_only_at_a_configured_address(
        self, host: str, dialled: bool
    ) -> None:
        membership = trio()
        source = A.address[0] if host == A.host else "10.0.0.8"
        membership.asked(replace(STRANGER, host=host), 0.0, hello=False, source=source)
        beats = [effect for effect in membership.tick(1.0) if effect == Discover(host, heartbeat=True)]
        assert bool(beats) is dialled

    def test_a_configured_one_never_votes_and_keeps_no_place(self) -> None:
        membership = trio(nodes=(1, 2, 3))
        effects = membership.answered(HOST_B, DscRes((STRANGER,)), 0.0, hello=False)
        assert effects == [NeighbourJoined(STRANGER, member=False, hello=False)]
        assert membership.at(HOST_B) is None
        assert membership.members == {2, 3}
        assert membership.document_node_at(HOST_B) == STRANGER
        assert Discover(HOST_B, heartbeat=True) in membership.tick(1.0)
        assert not kinds(membership.answered(HOST_B, DscRes((B,)), 2.0), Refuse)
        assert membership.at(HOST_B) == 2

    def test_one_that_says_hello_gets_pings(self) -> None:
        membership = trio()
        membership.answered(HOST_B, DscRes((B,)), 0.0, hello=False)
        membership.asked(B, 0.5)
        assert membership.document_node_at(HOST_B) is None
        assert kinds(membership.tick(1.0), Heartbeat) == [Heartbeat((2,))]

    def test_the_answers_of_a_stranger_to_heartbeats_make_nobody_else_be_dialled(self) -> None:
        membership = trio()
        membership.asked(STRANGER, 0.0, hello=False, source="10.0.0.9")
        victim = replace(STRANGER, id=10, host="10.0.0.10")
        assert not kinds(
            membership.answered("10.0.0.9", DscRes((STRANGER, victim)), 1.0, hello=False), Discover
        )
        named = membership.answered(HOST_B, DscRes((replace(B, id=12), victim)), 1.0, hello=False)
        assert kinds(named, Discover) == [Discover("10.0.0.10")]
