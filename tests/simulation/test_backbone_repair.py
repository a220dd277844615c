"""Sequence numbers are whole at every subscriber of the backbone, whatever is lost or repeated on UDP.

Each seed is a world: see :mod:`tests.simulation.backbone`. A seed that fails is named in the failure and runs
alone with ``HEADRACE_SEED=<seed>``; ``HEADRACE_SOAK=1`` runs many more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import pytest
from tests.simulation.backbone import BrokenPromiseError, Rules, simulate

from headrace.client.fyrehose.repair import Ask, Delivered, DiscardReason, Repair, RepairEvent
from headrace.client.fyrehose.timing import RepairTiming
from headrace.hub.backbone.rules import Backbone, BackboneEffect, Reason, Unserved
from headrace.hub.backbone.udp_subscribers import Endpoint, UdpBounds, UdpSubscriber
from headrace.message import MAX_SEQUENCE
from headrace.wire.fyrehose.stream import DeliverRun, Request

_BLOCK = 20

if "HEADRACE_SEED" in os.environ:
    _SEED = int(os.environ["HEADRACE_SEED"])
    BLOCKS = [range(_SEED, _SEED + 1)]
else:
    _SEEDS = 20_000 if os.environ.get("HEADRACE_SOAK") == "1" else 100
    BLOCKS = [range(begin, begin + _BLOCK) for begin in range(0, _SEEDS, _BLOCK)]


@cache
def happened(seed: int) -> Counter[str]:
    return simulate(seed).happened


@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda seeds: f"seeds-{seeds.start}-to-{seeds.stop - 1}")
def test_every_subscriber_gets_the_whole_sequence(seeds: range) -> None:
    for seed in seeds:
        happened(seed)


def test_a_long_history_is_fetched_in_seconds() -> None:
    world = simulate(
        13,
        worst=0.1,
        history=6_000,
        retain=1_000_000,
        subscribers=3,
        restarts=0,
        departures=0,
        bounds=UdpBounds(),
        patience=RepairTiming(),
    )
    late = [subscriber for subscriber in world.subscribers if subscriber.from_seq == 1]
    assert late
    assert all(subscriber.finished < 5.0 for subscriber in late)


def test_a_seed_always_gives_the_same_world() -> None:
    first, second = simulate(7), simulate(7)
    assert first.network.now == second.network.now
    assert first.network.sent == second.network.sent
    assert first.log.history == second.log.history


def test_the_seeds_meet_every_rule() -> None:
    met = sum(map(happened, range(60)), Counter[str]())
    hub = {"Acknowledge", "Subscribed", "Lapsed", "SendRange", "SendForward", "Skipped", "Unserved"}
    refusals = {Reason.NOT_SUBSCRIBED, Reason.TOO_MANY_RANGES}
    subscriber = {"Delivered", "LostRange", "Ask", "Gap", "Repaired", "SendDelivers", *DiscardReason}
    assert met.keys() >= hub | refusals | subscriber


class NeverProbes(Repair):
    """A lost last message is never noticed."""

    def tick(self, now: float) -> list[RepairEvent]:
        return [
            event
            for event in super().tick(now)
            if not (isinstance(event, Ask) and event.last == MAX_SEQUENCE)
        ]


class AsksOnce(Repair):
    """A lost REQUEST is never repeated."""

    def tick(self, now: float) -> list[RepairEvent]:
        before = [hole.attempts for hole in self._holes]
        events = super().tick(now)
        return [event for event in events if not (isinstance(event, Ask) and any(before))]


class TakesRepeats(Repair):
    """A message that comes twice is delivered twice."""

    def receive(self, delivered: DeliverRun, now: float, *, from_backbone: bool) -> list[RepairEvent]:
        first = int(delivered.seqs[0])
        repeated = self.next is not None and first < self.next
        events = super().receive(delivered, now, from_backbone=from_backbone)
        return [*events, Delivered(first, delivered.run)] if repeated else events


class TrustsEveryone(Repair):
    """Anybody can make a message known."""

    def receive(self, delivered: DeliverRun, now: float, *, from_backbone: bool) -> list[RepairEvent]:
        return super().receive(delivered, now, from_backbone=True)


class NeverForwards(Backbone):
    """What the hub has trimmed is not asked of those who still have it."""

    def _forward(
        self, requester: UdpSubscriber, first: int, last: int, source: Endpoint, now: float
    ) -> BackboneEffect:
        return Unserved(requester.endpoint, first, last)


class NeverAnswers(Backbone):
    """What was lost on the way is not sent again."""

    def request(self, frame: Request, source: Endpoint, now: float) -> list[BackboneEffect]:
        return []


MUTATIONS = {
    "never probes": (Rules(repair=NeverProbes), "there wait"),
    "asks once": (Rules(repair=AsksOnce), "there wait|reports .* lost"),
    "takes repeats": (Rules(repair=TakesRepeats), "was next"),
    "trusts everyone": (Rules(repair=TrustsEveryone), "nobody published|reports .* lost"),
    "never forwards": (Rules(backbone=NeverForwards), "reports .* lost, and .* has it"),
    "never answers": (Rules(backbone=NeverAnswers), "there wait|reports .* lost"),
}


@pytest.mark.parametrize(("rules", "caught"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_broken_rule_is_caught(rules: Rules, caught: str) -> None:
    with pytest.raises(BrokenPromiseError, match=caught):
        simulate_all(range(100), rules)


def simulate_all(seeds: range, rules: Rules) -> None:
    for seed in seeds:
        simulate(seed, rules)
