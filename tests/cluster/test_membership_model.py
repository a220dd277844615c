"""Membership against a plain account of who was heard when."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.cluster.effects import Status
from headrace.cluster.membership import (
    MAX_STRANGERS,
    SILENCE_SECONDS,
    Membership,
    MembershipEffect,
    ModeChanged,
    NeighbourJoined,
    NeighbourRemoved,
    Refuse,
)
from headrace.wire.parcel.body import DscRes, Mode, NodeInfo

ME = NodeInfo(0, Mode.DSC, "me", "10.0.0.100")
STATUSES = st.sampled_from(Status)
STRANGERS = range(1_000, 1_000 + MAX_STRANGERS + 6)


def host(number: int) -> str:
    return f"10.{number >> 8}.{number & 255}.1:7878"


def info(number: int) -> NodeInfo:
    return NodeInfo(number, Mode.DSC, f"n{number}", host(number))


class MembershipMachine(RuleBasedStateMachine):
    @initialize(others=st.integers(1, 6))
    def begin(self, others: int) -> None:
        self.now = 0.0
        self.peers = range(1, others + 1)
        self.heard: dict[int, float] = {}
        self.bound: set[int] = set()
        self.mode = Mode.DSC
        self.membership = Membership(ME, [host(number) for number in self.peers])
        self.take(self.membership.start(self.now))

    def take(self, effects: list[MembershipEffect]) -> None:
        """Neighbours and mode as the effects tell them."""
        for effect in effects:
            match effect:
                case NeighbourJoined(node):
                    assert node.id not in self.heard
                    self.heard[node.id] = self.now
                case NeighbourRemoved(node):
                    assert self.now >= self.heard.pop(node.id) + SILENCE_SECONDS
                case ModeChanged(mode):
                    assert mode is not self.mode
                    self.mode = mode

    @rule(data=st.data())
    def answered(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.peers))
        self.bound.add(number)
        if number in self.heard:
            self.heard[number] = self.now
        self.take(self.membership.answered(host(number), DscRes((info(number),)), self.now))

    @rule(number=st.sampled_from(STRANGERS))
    def asked(self, number: int) -> None:
        effects = self.membership.asked(info(number), self.now)
        strangers = sum(each in STRANGERS for each in self.heard)
        refused = any(isinstance(effect, Refuse) for effect in effects)
        assert refused == (number not in self.heard and strangers >= MAX_STRANGERS)
        if number in self.heard:
            self.heard[number] = self.now
        self.take(effects)

    @rule(data=st.data())
    def parcel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.peers, STRANGERS[0], 77]))
        if number in self.heard:
            self.heard[number] = self.now
        self.take(self.membership.heard(number, self.now))

    @rule(status=STATUSES)
    def replica_is(self, status: Status) -> None:
        self.take(self.membership.replica_is(status, self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.membership.tick(self.now))

    @invariant()
    def the_neighbours_are_those_heard_lately(self) -> None:
        assert {node.id for node in self.membership.neighbours} == set(self.heard)
        assert all(self.now < heard + SILENCE_SECONDS for heard in self.heard.values())
        order = [self.heard[node.id] for node in self.membership.neighbours]
        assert order == sorted(order, reverse=True)

    @invariant()
    def only_a_majority_works(self) -> None:
        assert self.membership.mode is self.mode
        there = 1 + len(self.bound & set(self.heard))
        if self.mode is Mode.WRK:
            assert 2 * there > len(self.peers) + 1


TestMembership = MembershipMachine.TestCase
TestMembership.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
