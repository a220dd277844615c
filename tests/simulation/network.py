"""A network that drops, repeats, delays and reorders datagrams, the same way each time for the same seed.

What a datagram is (bytes, or a parcel with its content) is its sender's and receiver's business.

Time is a number that jumps from one event to the next; nothing sleeps and nothing runs at the same time as
anything else. A node is told of datagrams and of its own timers, exactly as a driver would tell it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

Endpoint = tuple[str, int]

_BUSY = 1_000
"""A node that asks for this many ticks without time passing would keep a real machine busy for ever."""


class Node(Protocol):
    def receive(self, datagram: Any, source: Endpoint, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def next_timer(self) -> float | None: ...


@dataclass(frozen=True)
class Weather:
    """What happens to datagrams on one way from one node to another: three odds, and times in seconds."""

    loss: float
    repeat: float
    late: float
    latency: float
    lateness: float

    @classmethod
    def of(cls, random: Random, worst: float) -> Weather:
        return cls(
            loss=random.uniform(0, worst),
            repeat=random.uniform(0, worst),
            late=random.uniform(0, worst),
            latency=random.uniform(0.0001, 0.02),
            lateness=random.uniform(0.001, 0.3),
        )


class Network:
    def __init__(self, random: Random, worst: float) -> None:
        self.now = 0.0
        self.sent = 0
        self._random = random
        self._worst = worst
        self._weather: dict[tuple[Endpoint, Endpoint], Weather] = {}
        self._nodes: dict[Endpoint, Node] = {}
        self._wakes: dict[Endpoint, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.cut: set[tuple[Endpoint, Endpoint]] = set()
        """The ways, each in its direction, on which nothing arrives."""
        self._ticks: tuple[Endpoint | None, float, int] = (None, 0.0, 0)

    def calm(self) -> None:
        """From now on every datagram arrives, once and soon."""
        self.cut.clear()
        self._weather.clear()
        self._worst = 0.0

    def attach(self, endpoint: Endpoint, node: Node) -> None:
        self._nodes[endpoint] = node
        self._wakes.pop(endpoint, None)
        self.arm(endpoint)

    def detach(self, endpoint: Endpoint) -> None:
        del self._nodes[endpoint]

    def attached(self, endpoint: Endpoint) -> bool:
        return endpoint in self._nodes

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def send(self, datagram: Any, source: Endpoint, to: Endpoint) -> None:
        self.sent += 1
        weather = self._weather.get((source, to))
        if weather is None:
            weather = self._weather[source, to] = Weather.of(self._random, self._worst)
        chance = self._random.random
        for _ in range(2 if chance() < weather.repeat else 1):
            if chance() >= weather.loss:
                delay = weather.latency * (0.5 + chance())
                if chance() < weather.late:
                    delay += weather.lateness * chance()
                self.at(self.now + delay, lambda: self._arrive(datagram, source, to))

    def run(self, done: Callable[[], bool], until: float) -> bool:
        """Let events happen until ``done()``; ``False`` if that is not so by the time ``until``."""
        while not done():
            if not self._events or self._events[0][0] > until:
                return False
            self.now, _, action = heapq.heappop(self._events)
            action()
        return True

    def _arrive(self, datagram: Any, source: Endpoint, to: Endpoint) -> None:
        if (node := self._nodes.get(to)) is not None and (source, to) not in self.cut:
            node.receive(datagram, source, self.now)
            self.arm(to)

    def arm(self, endpoint: Endpoint) -> None:
        """Wake a node, if it is there, when it next wants to be."""
        timer = self._nodes[endpoint].next_timer() if endpoint in self._nodes else None
        if timer is None:
            return
        wake = max(timer, self.now)
        if wake < self._wakes.get(endpoint, float("inf")):
            self._wakes[endpoint] = wake
            self.at(wake, lambda: self._wake(endpoint, wake))

    def _wake(self, endpoint: Endpoint, wake: float) -> None:
        if endpoint not in self._nodes or self._wakes.get(endpoint) != wake:
            return
        del self._wakes[endpoint]
        node = self._nodes[endpoint]
        timer = node.next_timer()
        if timer is not None and timer <= self.now:
            last, time, count = self._ticks
            count = count + 1 if (last, time) == (endpoint, self.now) else 0
            assert count < _BUSY, f"{endpoint} asks to be woken over and over at {self.now}"
            self._ticks = (endpoint, self.now, count)
            node.tick(self.now)
        self.arm(endpoint)
