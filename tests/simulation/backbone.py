"""A hub, its subscribers and its publishers on a simulated network, and what must be true of them.

Every rule and every byte is the real one; only sockets, clock and disk are played. :func:`simulate` builds a world
from a seed, lets it run, and raises :class:`BrokenPromiseError` if a subscriber's sequence is not whole: with the wrong
bytes, out of order, twice, not in time, or reported lost while somebody who could have been asked had it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

import numpy as np
from tests.simulation.network import Network

from headrace.client.fyrehose.journal import Journal, JournalBounds, SendDelivers
from headrace.client.fyrehose.journal import JournalEffect as Answer
from headrace.client.fyrehose.repair import Ask, Delivered, Discarded, LostRange, Repair, RepairEvent
from headrace.client.fyrehose.timing import RepairTiming
from headrace.hub.backbone.pacing import Pace
from headrace.hub.backbone.rules import (
    Acknowledge,
    Backbone,
    BackboneAccess,
    BackboneEffect,
    OwnDoor,
    Refused,
    SendChallenge,
    SendForward,
)
from headrace.hub.backbone.udp_subscribers import Endpoint, SendRange, UdpBounds
from headrace.message import Run
from headrace.wire.fyrehose import stream as fyrehose

HUB = ("10.0.0.1", 2323)
KEEPALIVE_SECONDS = 1.0
SETTLE_SECONDS = 90.0
"""How long after the last message everybody must have everything. Each range reported lost adds as much: those
that do not fit into the room for early messages together are waited for one after the other."""


class BrokenPromiseError(AssertionError):
    """A promise was not kept."""


class MemoryLog:
    """The log's interface, and all that was ever appended."""

    def __init__(self) -> None:
        self.history: list[bytes] = []
        self.first = 1

    @property
    def head(self) -> int:
        return len(self.history)

    def append(self, payload: bytes, retain: int) -> None:
        self.history.append(payload)
        self.first = max(self.first, self.head + 1 - retain)

    def read(self, seq: int) -> bytes:
        if not self.first <= seq <= self.head:
            raise BrokenPromiseError(f"the hub reads {seq}, but its log holds {self.first} to {self.head}")
        return self.carried(seq)

    def carried(self, seq: int) -> bytes:
        """A message as DELIVER carries it in a datagram, however long it was."""
        payload = self.history[seq - 1]
        return payload if len(payload) <= fyrehose.MAX_DELIVER_DATAGRAM else b""


@dataclass
class Rules:
    """The classes under test, so that a test can put a broken one in their place."""

    repair: type[Repair] = Repair
    backbone: type[Backbone] = Backbone


@dataclass(frozen=True)
class Scenario:
    """What a seed chooses."""

    worst: float
    subscribers: int
    publishers: int
    messages: int
    seconds: float
    history: int
    retain: int
    restarts: int
    departures: int
    forgeries: int
    coalesce: bool
    bounds: UdpBounds
    patience: RepairTiming
    journal: JournalBounds

    @classmethod
    def of(cls, random: Random) -> Scenario:
        def sometimes(chance: float, value: int, otherwise: int) -> int:
            return value if random.random() < chance else otherwise

        request = sometimes(0.5, random.randint(1, 20), 1_024)
        return cls(
            worst=random.choice([0.0, 0.05, 0.3, 0.3]),
            subscribers=random.randint(1, 5),
            publishers=random.randint(1, 3),
            messages=random.randint(1, 60),
            seconds=random.choice([0.05, 1.0, 10.0]),
            history=sometimes(0.3, random.randint(1, 80), 0),
            retain=sometimes(0.4, random.randint(1, 30), 1_000_000),
            restarts=sometimes(0.3, random.randint(1, 2), 0),
            departures=sometimes(0.2, 1, 0),
            forgeries=sometimes(0.2, 5, 0),
            coalesce=random.random() < 0.3,
            bounds=UdpBounds(
                request=request,
                ranges=sometimes(0.3, random.randint(1, 4), 64),
                lag=sometimes(0.3, random.randint(1, 10), 65_536),
                pace=random.choice([Pace(), Pace(200.0, 1e6, 4, 100_000), Pace(1e4, 3e5, 16, 2_000)]),
            ),
            patience=RepairTiming(
                retry_most=0.25,
                hole=60.0,
                max_request=request,
                max_early=sometimes(0.3, random.randint(1, 20), 65_536),
                max_early_bytes=sometimes(0.2, random.randint(600, 100_000), 16 * 1024 * 1024),
            ),
            journal=JournalBounds(forward=request, messages=sometimes(0.2, random.randint(5, 60), 65_536)),
        )


class Hub:
    """What the hub's UDP driver does: decode, ask the rules, do as they say."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._network = world.network
        self._log = world.log
        door = OwnDoor(frozenset({HUB[0]}), HUB[1])
        # Nobody is trusted: every subscriber proves over this network that it receives.
        numbers = count(1)
        self.backbone = world.rules.backbone(
            world.log, door, BackboneAccess(), world.scenario.bounds, lambda: next(numbers).to_bytes(8)
        )

    def receive(self, datagram: bytes, source: Endpoint, now: float) -> None:
        packets = fyrehose.parse_datagram(datagram)
        if len(packets) > 1:
            self.backbone.coalesced(source)
        for packet in packets:
            match packet:
                case fyrehose.Keepalive():
                    self._do(self.backbone.keepalive(packet, source, now))
                case fyrehose.Request():
                    self._do(self.backbone.request(packet, source, now))
                case fyrehose.Proof():
                    self._do(self.backbone.proof(packet, source, now))
                case fyrehose.Push(data):
                    self._log.append(data, self._world.scenario.retain)
        self._do(self.backbone.due(now))

    def tick(self, now: float) -> None:
        self._do(self.backbone.due(now))

    def next_timer(self) -> float | None:
        return self.backbone.next_timer()

    def _do(self, effects: list[BackboneEffect]) -> None:
        for effect in effects:
            self._world.note(effect)
            match effect:
                case Acknowledge(to, frame) | SendForward(to, frame) | SendChallenge(to, frame):
                    self._network.send(fyrehose.serialize(frame), HUB, to)
                case SendRange():
                    self._send(effect)

    def _send(self, grant: SendRange) -> None:
        datagrams: list[bytes] = []
        size, last = 0, grant.first - 1
        for seq in range(grant.first, grant.last + 1):
            packet = fyrehose.serialize(fyrehose.Deliver(seq, self._log.read(seq)))
            joins = grant.coalesce and datagrams and len(datagrams[-1]) + len(packet) <= fyrehose.MAX_DATAGRAM
            if last >= grant.first and (
                size + len(packet) > grant.size or (not joins and len(datagrams) >= grant.datagrams)
            ):
                break
            if joins:
                datagrams[-1] += packet
            else:
                datagrams.append(packet)
            size += len(packet)
            last = seq
        for datagram in datagrams:
            self._network.send(datagram, HUB, grant.to)
        self.backbone.sent(grant, last, len(datagrams), size)


@dataclass
class Subscriber:
    """What a client's UDP driver does, and a diary of what it was given."""

    world: World
    endpoint: Endpoint
    repair: Repair
    journal: Journal
    from_seq: int | None
    expected: int = 0
    start: int | None = None
    lost: list[tuple[int, int]] = field(default_factory=list)
    finished: float = 0.0
    _keepalive: float = 0.0

    def receive(self, datagram: bytes, source: Endpoint, now: float) -> None:
        packets = fyrehose.parse_client_datagram(datagram)
        from_backbone = source == HUB
        match packets:
            case [fyrehose.KeepaliveAck()]:
                self.repair.heard(now)
            case [fyrehose.Challenge(cookie)] if from_backbone:
                self._send(fyrehose.Proof(cookie))
            case [fyrehose.Forward() as forward]:
                self._answer(self.journal.forward(forward, now, from_backbone=from_backbone))
            case delivers:
                seqs = np.array([deliver.seq for deliver in delivers], np.int64)
                run = Run.of(deliver.data for deliver in delivers)
                delivered = fyrehose.DeliverRun(seqs, run)
                self._do(self.repair.receive(delivered, now, from_backbone=from_backbone))

    def tick(self, now: float) -> None:
        if now >= self._keepalive:
            self._keepalive = now + KEEPALIVE_SECONDS
            self._send(fyrehose.Keepalive("0.0.0.0", 0))
        self._do(self.repair.tick(now))
        self._answer(self.journal.tick(now))

    def next_timer(self) -> float:
        timers = [self._keepalive, self.repair.next_timer(), self.journal.next_timer()]
        return min(timer for timer in timers if timer is not None)

    @property
    def complete(self) -> bool:
        begun = self.repair.next
        return begun is None or begun > self.world.log.head

    def _do(self, events: list[RepairEvent]) -> None:
        for event in events:
            self.world.note(event)
            match event:
                case Delivered(first, run):
                    self._check_order(first)
                    if event.last > self.world.log.head:
                        raise BrokenPromiseError(f"{self.endpoint} got {event.last}, which nobody published")
                    for index, payload in enumerate(run):
                        if payload != self.world.log.carried(first + index):
                            raise BrokenPromiseError(f"{self.endpoint} got other bytes for {first + index}")
                    self.expected = event.last + 1
                    self.finished = self.world.network.now
                    self.journal.store(first, run)
                case LostRange(first, last):
                    self._check_order(first)
                    self.world.check_lost(self, first, last)
                    self.lost.append((first, last))
                    self.expected = last + 1
                case Ask(first, last):
                    self._send(fyrehose.Request("0.0.0.0", 0, first, last))

    def _check_order(self, first: int) -> None:
        if self.start is None:
            self.start = self.expected = first if self.from_seq is None else self.from_seq
        if first != self.expected:
            raise BrokenPromiseError(f"{self.endpoint} got {first} where {self.expected} was next")

    def _answer(self, effects: list[Answer]) -> None:
        for effect in effects:
            self.world.note(effect)
            if isinstance(effect, SendDelivers):
                for index, payload in enumerate(effect.run):
                    packet = fyrehose.serialize(fyrehose.Deliver(effect.first + index, payload))
                    self.world.network.send(packet, self.endpoint, effect.to)

    def _send(self, frame: fyrehose.Frame) -> None:
        self.world.network.send(fyrehose.serialize(frame), self.endpoint, HUB)


class World:
    """One seed's hub, subscribers and publishers."""

    def __init__(self, seed: int, rules: Rules, **chosen: Any) -> None:
        self.random = Random(seed)
        self.rules = rules
        self.scenario = scenario = replace(Scenario.of(self.random), **chosen)
        self.network = Network(Random(self.random.random()), scenario.worst)
        self.log = MemoryLog()
        self.subscribers: list[Subscriber] = []
        self.happened: Counter[str] = Counter()
        self.hub: Hub | None = None
        for _ in range(scenario.history):
            self.log.append(self._payload(), scenario.retain)
        self._start_hub()
        for index in range(scenario.subscribers):
            late = self.random.choice([0.0, 0.0, self.random.uniform(0, scenario.seconds)])
            self.network.at(late, lambda index=index: self._join(index))
        for _ in range(scenario.messages):
            self.network.at(self.random.uniform(0, scenario.seconds), self._publish)
        for _ in range(scenario.restarts):
            self.network.at(self.random.uniform(0, scenario.seconds), self._restart_hub)
        for _ in range(scenario.departures):
            self.network.at(self.random.uniform(0, scenario.seconds), self._leave)
        for _ in range(scenario.forgeries):
            self.network.at(self.random.uniform(0, scenario.seconds), self._forge)

    def run(self) -> None:
        self._over = self.scenario.seconds + 10.0
        self.network.run(lambda: False, self._over)
        self.network.run(self._settled, until=float("inf"))
        if late := {each.endpoint: each.repair.next for each in self.subscribers if self._overdue(each)}:
            raise BrokenPromiseError(f"the head is {self.log.head}, and there wait {late}")
        for each in self.subscribers:
            if each.start is not None and each.expected != self.log.head + 1:
                raise BrokenPromiseError(
                    f"{each.endpoint} ends at {each.expected}, the head is {self.log.head}"
                )

    def check_lost(self, loser: Subscriber, first: int, last: int) -> None:
        """Nobody who could have been asked has any of it."""
        for seq in range(first, last + 1):
            if seq >= self.log.first:
                raise BrokenPromiseError(f"{loser.endpoint} reports {seq} lost, and the hub has it")
            for other in self.subscribers:
                if other is not loser and seq in other.journal:
                    raise BrokenPromiseError(
                        f"{loser.endpoint} reports {seq} lost, and {other.endpoint} has it"
                    )

    def note(self, happening: BackboneEffect | RepairEvent | Answer) -> None:
        match happening:
            case Refused(reason=why) | Discarded(why=why):
                self.happened[why] += 1
            case _:
                self.happened[type(happening).__name__] += 1

    def _settled(self) -> bool:
        return all(each.complete for each in self.subscribers) or any(map(self._overdue, self.subscribers))

    def _overdue(self, subscriber: Subscriber) -> bool:
        allowed = SETTLE_SECONDS * (1 + len(subscriber.lost))
        return not subscriber.complete and self.network.now > self._over + allowed

    def _payload(self) -> bytes:
        size = self.random.choice([0, 1, self.random.randint(2, 200), self.random.randint(2, 200)])
        if self.random.random() < 0.02:
            size = self.random.randint(fyrehose.MAX_DELIVER_DATAGRAM - 2, fyrehose.MAX_PUSH_DATAGRAM)
        return self.random.randbytes(size)

    def _publish(self) -> None:
        source = (f"10.0.2.{self.random.randint(1, self.scenario.publishers)}", 4000)
        if self.scenario.coalesce and self.subscribers and self.random.random() < 0.5:
            source = self.random.choice(self.subscribers).endpoint
        packets = [fyrehose.serialize(fyrehose.Push(self._payload()))]
        if self.scenario.coalesce:
            packets += [fyrehose.serialize(fyrehose.Push(self.random.randbytes(9))) for _ in range(3)]
        datagram = b"".join(packets)
        if len(datagram) <= fyrehose.MAX_DATAGRAM:
            self.network.send(datagram, source, HUB)

    def _join(self, index: int) -> None:
        from_seq = self.random.choice([None, 1, self.random.randint(1, self.log.head + 2)])
        endpoint = (f"10.0.1.{index + 1}", 5000)
        random = Random(self.random.random())
        repair = self.rules.repair(self.scenario.patience, random, from_seq)
        journal = Journal(self.scenario.journal, repair.early, self.network.now)
        subscriber = Subscriber(self, endpoint, repair, journal, from_seq, _keepalive=self.network.now)
        self.subscribers.append(subscriber)
        self.network.attach(endpoint, subscriber)

    def _forge(self) -> None:
        """A stranger delivers what nobody can have asked for."""
        if self.subscribers:
            packet = fyrehose.serialize(fyrehose.Deliver(self.log.head + 10_000, b"forged"))
            self.network.send(packet, ("10.0.3.1", 666), self.random.choice(self.subscribers).endpoint)

    def _leave(self) -> None:
        if self.subscribers:
            gone = self.subscribers.pop(self.random.randrange(len(self.subscribers)))
            self.network.detach(gone.endpoint)

    def _start_hub(self) -> None:
        self.hub = Hub(self)
        self.network.attach(HUB, self.hub)

    def _restart_hub(self) -> None:
        if self.network.attached(HUB):
            self.network.detach(HUB)
            self.network.at(self.network.now + self.random.uniform(0, 8), self._start_hub)


def simulate(seed: int, rules: Rules | None = None, **chosen: Any) -> World:
    """Let a seed's world run, with what is ``chosen`` in place of what the seed chooses."""
    world = World(seed, rules or Rules(), **chosen)
    try:
        world.run()
    except BrokenPromiseError as broken:
        raise BrokenPromiseError(f"seed {seed} at {world.network.now:.3f} s: {broken}") from None
    return world
