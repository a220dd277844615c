"""Matcher, dispatchers and connector in a row, without a socket: each a real one, every connection as slow as it likes.

A matcher pushes to one of two dispatchers; each may have a connection to the connector, and one to the other. Whatever
connects, breaks, or stays half open, and in whatever order things arrive: the client gets each message once, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub.routing.test_connector import ALICE, HERE, Scene
from tests.wire.attribute.client_lists import pack_routes

from headrace.hub.counters import Counters
from headrace.hub.routing.client_session import MatcherPaths, PushSource
from headrace.hub.routing.dispatcher import Dispatcher, Feeder
from headrace.hub.routing.local_matcher import mark
from headrace.wire.attribute.messages import (
    ConnectorDecoder,
    DispatcherDecoder,
    DispatcherPush,
    MatcherPush,
    RouterDecoder,
    is_msg_id,
    msg_id,
    parse_msg_id,
    serialize,
    unpack_clients,
)

MATCHER = 7


class Link:
    """One direction of a connection: what was sent arrives in order, later, or never."""

    def __init__(self, decoder: Any, take: Callable[[Any], None], end: Callable[[], None]) -> None:
        self._decoder, self._take, self._end = decoder, take, end
        self._flight: deque[bytes] = deque()
        self.open = True
        self.over = False
        self.left: Callable[[], None] = lambda: None

    def pass_on(self, data: bytes) -> bool:
        if self.open:
            self._flight.append(data)
        return self.open

    def part(self, reason: str, detail: str) -> None:
        self.close()

    def close(self, *, lost: bool = False) -> None:
        """Send nothing more; what is on its way may be lost as well."""
        if lost:
            self._flight.clear()
        if self.open:
            self.open = False
            self.left()

    def arrive(self) -> None:
        """The next thing arrives; behind everything, that the connection is closed."""
        if self._flight:
            for frame in self._decoder.feed(self._flight.popleft()):
                self._take(frame)
        elif not self.open and not self.over:
            self.over = True
            self._end()


class Chain:
    """The whole row."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.paths = MatcherPaths()
        scene.connector.relying = True
        scene.connector.find_path = lambda _client: self.paths.get(MATCHER)
        self.dispatchers = [Dispatcher(Counters(), None) for _ in range(2)]
        self.links: list[Link] = []
        self.from_matcher: Link | None = None
        self.to_connector: list[Link | None] = [None, None]
        self.to_peer: list[Link | None] = [None, None]
        self.heartbeats: list[Link | None] = [None, None]
        self.matched = scene.log.head

    def add(self, decoder: Any, take: Callable[[Any], None], end: Callable[[], None] = lambda: None) -> Link:
        link = Link(decoder, take, end)
        self.links.append(link)
        return link

    def match(self) -> None:
        """The matcher takes up one more message."""
        if self.matched < self.scene.log.head:
            self.matched += 1
            if self.from_matcher is not None:
                push = MatcherPush(msg_id(self.matched, 1), b"m", pack_routes([(ALICE, HERE)]))
                self.from_matcher.pass_on(serialize(push))
                self.from_matcher.pass_on(serialize(mark(self.matched, MATCHER)))

    def dial(self, number: int, *, lost: bool) -> None:
        """The matcher takes another dispatcher."""
        if self.from_matcher is not None:
            self.from_matcher.close(lost=lost)
        dispatcher, feeder = self.dispatchers[number], Feeder(PushSource())

        def take(frame: Any) -> None:
            dispatcher.push(feeder, frame)

        self.from_matcher = self.add(DispatcherDecoder(), take, lambda: dispatcher.lost(feeder))
        self.from_matcher.pass_on(serialize(mark(self.matched, MATCHER)))

    def connect(self, number: int, *, lost: bool) -> None:
        """A dispatcher dials the connector."""
        before = self.to_connector[number]
        if before is not None:
            before.close(lost=lost)
        dispatcher, source = self.dispatchers[number], PushSource()

        def take(frame: Any) -> None:
            if frame.clients:
                clients = unpack_clients(frame.clients)
                self.scene.connector.pushed(source, frame.msg_id, frame.payload, clients)
            elif is_msg_id(frame.msg_id):
                seq, node = parse_msg_id(frame.msg_id)
                if self.paths.mark(source, node, seq):
                    self.scene.connector.reroute()

        def end() -> None:
            if self.paths.lose(source):
                self.scene.connector.reroute()

        link = self.to_connector[number] = self.add(RouterDecoder(), take, end)
        link.left = lambda: dispatcher.left(link)
        dispatcher.joined(HERE, link, relying=True)

    def peer(self, number: int, *, lost: bool) -> None:
        """A dispatcher dials the other."""
        before = self.to_peer[number]
        if before is not None:
            before.close(lost=lost)
        dispatcher, other, feeder = (
            self.dispatchers[number],
            self.dispatchers[1 - number],
            Feeder(PushSource()),
        )

        def take(frame: Any) -> None:
            if isinstance(frame, DispatcherPush):
                other.forward(feeder, frame)

        link = self.to_peer[number] = self.add(DispatcherDecoder(), take, lambda: other.lost(feeder))
        link.left = lambda: dispatcher.left(link)
        dispatcher.peers[link] = None

        def told(frame: Any) -> None:
            if link.open:
                dispatcher.told(link, frame.connectors, frame.relying)

        self.heartbeats[number] = self.add(ConnectorDecoder(), told)

    def beat(self, number: int) -> None:
        """The other dispatcher tells what it has."""
        link = self.heartbeats[number]
        if link is not None:
            link.pass_on(self.dispatchers[1 - number].heartbeat(0))

    def cut(self, links: list[Link | None], number: int, *, lost: bool) -> None:
        link = links[number]
        if link is not None:
            link.close(lost=lost)

    def settle(self) -> None:
        """Everything arrives."""
        for _ in range(1000):
            busy = [link for link in self.links if link._flight or not (link.open or link.over)]
            if not busy and not self.scene.reads:
                return
            for link in busy:
                link.arrive()
            self.scene.read_all()
        pytest.fail("it never settles")


@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 300))
def test_whatever_breaks_whenever_each_message_comes_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int
) -> None:
    random = Random(seed)
    scene = Scene(tmp_path_factory.mktemp("log"))
    chain = Chain(scene)
    wire = scene.subscribed()
    expected: list[int] = []
    for _ in range(steps):
        number, lost = random.randrange(2), random.random() < 0.5
        match random.choices(range(9), [8, 12, 30, 2, 2, 2, 4, 6, 2])[0]:
            case 0:
                expected += scene.publish(random.randrange(1, 5))
            case 1:
                chain.match()
            case 2 if chain.links:
                random.choice(chain.links[-8:]).arrive()
            case 3:
                chain.dial(number, lost=lost)
            case 4:
                chain.connect(number, lost=lost)
            case 5:
                chain.peer(number, lost=lost)
            case 6:
                chain.beat(number)
            case 7 if scene.reads:
                scene.read(most=random.randrange(1, 4))
            case 8:
                chain.cut(random.choice([chain.to_connector, chain.to_peer]), number, lost=lost)
    chain.settle()
    while chain.matched < scene.log.head:
        chain.match()
    chain.settle()
    assert wire.got == expected

    # And it is pushed what comes next, once all are there that can be.
    for number in range(2):
        chain.connect(number, lost=False)
        chain.peer(number, lost=False)
    chain.dial(0, lost=False)
    for _ in range(3):
        chain.settle()
        for number in range(2):
            if not (link := chain.to_connector[number]) or not link.open:
                chain.connect(number, lost=False)
            if not (link := chain.to_peer[number]) or not link.open:
                chain.peer(number, lost=False)
            chain.beat(number)
    chain.settle()
    for _ in range(2):
        expected += scene.publish(1)
        chain.match()
        chain.settle()
    assert scene.session().live
    assert wire.got == expected
    scene.log.close()
