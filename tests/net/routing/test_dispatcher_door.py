"""The dispatcher: its door, its connectors and its peers, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.net.attribute_peers import (
    ALICE,
    BOB,
    CAROL,
    HEARTBEAT,
    BinaryPeer,
    DispatcherPeer,
    PublisherPeer,
    SdkPeer,
    fill,
    item,
    message,
    msg_id,
    publish,
    sub,
)
from tests.net.conftest import Start
from tests.net.raw import running_hub, until
from tests.net.routing.conftest import Accepting

from headrace.hub.routing.connector import Connector
from headrace.hub.routing.roles import connector_id
from headrace.message import node_id
from headrace.net.server.process import Server

CONN = b"conn0001"


def push(seq: int, payload: bytes, *routes: tuple[bytes, bytes], extra: int = 1) -> bytes:
    """A matcher's push, from its drawing."""
    clients = b"".join(client + connector for client, connector in routes)
    return message(1, item(1, msg_id(seq)), item(2, payload), item(3, clients), extra=extra)


def forward(seq: int, payload: bytes, connector: bytes, *clients: bytes, extra: int = 1) -> bytes:
    items = [item(1, msg_id(seq)), item(2, payload), item(6, connector), item(3, b"".join(clients))]
    return message(3, *items, extra=extra)


NO_MATCHER = "node.roles=sequence,dispatcher"
"""The hub's own would say how far it is, too."""


def mark(seq: int) -> bytes:
    """A push to nobody, of the fleet."""
    return message(1, item(1, msg_id(seq, node_id("fleet"))), item(2, b""))


def heartbeat(*connectors: bytes, extra: int = 1) -> bytes:
    told = [item(6, b"".join(connectors))] if connectors else []
    return message(2, item(4, (1700000000).to_bytes(8)), *told, extra=extra)


@pytest.fixture
async def matcher(server: Server, stack: AsyncExitStack) -> DispatcherPeer:
    return stack.enter_context(await DispatcherPeer.connect(server))


async def next_push(peer: BinaryPeer) -> tuple[int, dict[int, bytes]]:
    """The next push to somebody or, where the peer has asked for them, to nobody."""
    while True:
        command, extra, items = await peer.message()
        if command == 3:
            return extra, items


class TestDoor:
    async def test_a_heartbeat_is_answered_with_what_is_here(
        self, server: Server, matcher: DispatcherPeer
    ) -> None:
        await matcher.send(heartbeat())
        command, _, items = await matcher.message()
        assert command == 2
        assert items[6] == connector_id(server.settings.node.name)

    async def test_a_matchers_push_reaches_clients_of_this_process(
        self, server: Server, stack: AsyncExitStack, matcher: DispatcherPeer
    ) -> None:
        own = connector_id(server.settings.node.name)
        await fill(server)
        alice = stack.enter_context(await SdkPeer.connect(server))
        await alice.enter(ALICE)
        await matcher.send(push(5, b"hello", (ALICE, own)))
        assert await alice.push() == (5, b"hello")

    async def test_parts_are_joined(
        self, server: Server, stack: AsyncExitStack, matcher: DispatcherPeer
    ) -> None:
        own = connector_id(server.settings.node.name)
        await fill(server)
        alice = stack.enter_context(await SdkPeer.connect(server))
        await alice.enter(ALICE)
        await matcher.send(push(5, b"a" * 1900, extra=2) + push(5, b"b" * 1900, extra=4))
        await matcher.send(push(5, b"c", (ALICE, own), extra=8))
        assert await alice.push() == (5, b"a" * 1900 + b"b" * 1900 + b"c")

    async def test_a_push_for_a_connector_that_nobody_has_is_counted(
        self, server: Server, matcher: DispatcherPeer
    ) -> None:
        await matcher.send(push(5, b"hello", (ALICE, CONN)) + forward(6, b"x", CONN, ALICE))
        await until(lambda: server.hub.counters.get("undeliverable", door="dispatcher") == 2)

    @pytest.mark.parametrize(
        ("wire", "reason"),
        [
            (message(4), "malformed"),
            (message(1, item(1, msg_id(1)), item(3, b"x" * 19)), "malformed"),
            (message(3, item(1, msg_id(1)), item(6, b"conn")), "malformed"),
        ],
    )
    async def test_what_is_wrong_is_refused(
        self, server: Server, matcher: DispatcherPeer, wire: bytes, reason: str
    ) -> None:
        await matcher.send(wire)
        assert await matcher.rest() == b""
        assert server.hub.counters.get("refused", door="dispatcher", reason=reason) == 1


class TestFleet:
    """Under ``matching.engine = "spark"``: many connections push, one marks."""

    @pytest.fixture
    async def server(self, start: Start) -> Server:
        return await start("matching.engine=spark")

    @pytest.fixture
    async def alice(self, server: Server, stack: AsyncExitStack) -> SdkPeer:
        """A client that has subscribed before the first message."""
        alice = stack.enter_context(await SdkPeer.connect(server))
        await alice.enter(ALICE)
        await alice.send(sub(x=(0, 10)))
        await until(lambda: ALICE in server.subscriptions)
        return alice

    @staticmethod
    async def publish(server: Server, *payloads: bytes) -> None:
        head = server.hub.log.head
        with await PublisherPeer.connect(server) as publisher:
            await publisher.send(b"".join(publish({"x": 1}, payload) for payload in payloads))
            await until(lambda: server.hub.log.head == head + len(payloads))

    @staticmethod
    async def lifeline(server: Server, stack: AsyncExitStack, seq: int) -> DispatcherPeer:
        """A connection that marks; it is relied on when this returns."""
        peer = stack.enter_context(await DispatcherPeer.connect(server))
        await peer.send(mark(seq) + heartbeat())
        assert (await peer.message())[0] == 2
        return peer

    @staticmethod
    async def is_live(server: Server) -> None:
        connector = _connector(server)
        await until(lambda: not connector.behind)

    async def test_without_a_fleet_clients_are_fed_from_the_log(self, server: Server, alice: SdkPeer) -> None:
        await self.publish(server, b"one", b"two")
        assert await alice.pushes(2) == [(1, b"one"), (2, b"two")]
        assert _connector(server).behind == 1

    async def test_with_one_they_get_what_it_pushes_and_no_repeats(
        self, server: Server, stack: AsyncExitStack, alice: SdkPeer
    ) -> None:
        own = connector_id(server.settings.node.name)
        await self.publish(server, b"one")
        await self.lifeline(server, stack, 1)
        await self.is_live(server)
        assert await alice.push() == (1, b"one")
        await self.publish(server, b"two", b"three")
        await alice.send(HEARTBEAT)
        assert await alice.line() == b"+h\r\n", "the hub matched by itself"
        task = stack.enter_context(await DispatcherPeer.connect(server))
        await task.send(push(2, b"two", (ALICE, own)))
        assert await alice.push() == (2, b"two")
        # The task is killed, and run again from the beginning of its micro-batch.
        task.close()
        again = stack.enter_context(await DispatcherPeer.connect(server))
        await again.send(push(2, b"two", (ALICE, own)) + push(3, b"three", (ALICE, own)))
        assert await alice.push() == (3, b"three")
        assert server.hub.counters.get("repeats", door="sdk") == 1
        assert not _connector(server).behind

    async def test_when_the_lifeline_is_lost_the_log_has_the_rest(
        self, server: Server, stack: AsyncExitStack, alice: SdkPeer
    ) -> None:
        own = connector_id(server.settings.node.name)
        lifeline = await self.lifeline(server, stack, 0)
        await self.is_live(server)
        await self.publish(server, b"one", b"two", b"three")
        task = stack.enter_context(await DispatcherPeer.connect(server))
        await task.send(push(1, b"one", (ALICE, own)))
        assert await alice.push() == (1, b"one")
        lifeline.close()
        assert await alice.pushes(2) == [(2, b"two"), (3, b"three")]
        # What its tasks still push is nothing new.
        await task.send(push(2, b"two", (ALICE, own)) + heartbeat())
        await task.message()
        await self.lifeline(server, stack, 3)
        await self.is_live(server)
        await self.publish(server, b"four")
        await task.send(push(4, b"four", (ALICE, own)))
        assert await alice.push() == (4, b"four")

    async def test_a_fleet_that_begins_anew_skips_nothing_for_those_who_relied_on_the_older(
        self, server: Server, stack: AsyncExitStack, alice: SdkPeer
    ) -> None:
        own = connector_id(server.settings.node.name)
        older = await self.lifeline(server, stack, 0)
        await self.is_live(server)
        await self.publish(server, b"one", b"two")
        await self.lifeline(server, stack, 2)
        task = stack.enter_context(await DispatcherPeer.connect(server))
        await self.publish(server, b"three")
        await task.send(push(3, b"three", (ALICE, own)))
        assert await alice.pushes(3) == [(1, b"one"), (2, b"two"), (3, b"three")]
        await self.is_live(server)
        # The older one, which nobody relies on any more, may go.
        older.close()
        await self.publish(server, b"four")
        await task.send(push(4, b"four", (ALICE, own)))
        assert await alice.push() == (4, b"four")
        assert not _connector(server).behind

    async def test_pushes_ahead_of_the_log_wait_for_it(self, server: Server, stack: AsyncExitStack) -> None:
        """A frontend may be behind the hub that the fleet reads."""
        own = connector_id(server.settings.node.name)
        await self.lifeline(server, stack, 0)
        bob = stack.enter_context(await SdkPeer.connect(server))
        await bob.enter(BOB)
        task = stack.enter_context(await DispatcherPeer.connect(server))
        await task.send(push(2, b"two", (BOB, own)) + heartbeat())
        await task.message()
        await bob.send(sub(x=(0, 10)))
        await until(lambda: BOB in server.subscriptions)
        await self.publish(server, b"one", b"two")
        assert await bob.pushes(2) == [(1, b"one"), (2, b"two")]


class TestConnectors:
    async def test_a_connector_is_dialled_greeted_and_pushed_to(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        listening = accepting()
        server = await start(f"dispatcher.connectors={listening.address}")
        connector = stack.enter_context(await listening.accept())
        command, _, items = await connector.message()
        assert (command, items) == (1, {5: connector_id(server.settings.node.name)})
        await connector.send(message(1, item(5, CONN)))
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await matcher.send(heartbeat())
        assert CONN in (await matcher.message())[2][6]
        await matcher.send(push(9, b"hello", (ALICE, CONN), (BOB, b"elsewher"), (CAROL, CONN)))
        extra, items = await next_push(connector)
        assert (extra, items) == (1, {1: msg_id(9), 2: b"hello", 3: ALICE + CAROL})
        assert server.hub.counters.get("undeliverable", door="dispatcher") == 1

    async def test_a_long_list_is_split(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        listening = accepting()
        server = await start(f"dispatcher.connectors={listening.address}")
        connector = stack.enter_context(await listening.accept())
        await connector.send(message(1, item(5, CONN)))
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        clients = [n.to_bytes(12) for n in range(300)]
        await until(lambda: _dispatcher(server).connectors)
        await matcher.send(push(9, b"hello", *[(client, CONN) for client in clients[:90]], extra=2))
        for at in range(90, 300, 90):
            some = [(client, CONN) for client in clients[at : at + 90]]
            await matcher.send(push(9, b"", *some, extra=8 if at == 270 else 4))
        extras, listed, payload = [], b"", b""
        while not extras or extras[-1] != 8:
            extra, items = await next_push(connector)
            extras.append(extra)
            listed += items.get(3, b"")
            payload += items.get(2, b"")
        assert extras == [2, 8]
        assert listed == b"".join(clients)
        assert payload == b"hello"

    async def test_a_lost_connector_is_dialled_again(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        listening = accepting()
        server = await start(f"dispatcher.connectors={listening.address}")
        for _ in range(2):
            connector = await listening.accept()
            await connector.send(message(1, item(5, CONN)))
            await until(lambda: CONN in _dispatcher(server).connectors)
            connector.close()
            await until(lambda: CONN not in _dispatcher(server).connectors)

    async def test_a_connector_that_takes_nothing_costs_no_more_than_its_queue(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        listening = accepting()
        listening.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server = await start(f"dispatcher.connectors={listening.address}", "dispatcher.queue_bytes=20000")
        connector = stack.enter_context(await listening.accept())
        await connector.send(message(1, item(5, CONN)))
        await until(lambda: CONN in _dispatcher(server).connectors)
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        seq = 0
        refused = lambda: server.hub.counters.get("refused", door="to_connectors", reason="full")  # noqa: E731
        while not refused():
            seq += 1
            await matcher.send(push(seq, b"x" * 1900, (ALICE, CONN)))
            assert seq < 20_000
        await until(lambda: server.hub.counters.get("undeliverable", door="dispatcher"))

    async def test_marks_are_passed_on_and_a_lost_matcher_breaks_the_chain(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        listening = accepting()
        server = await start(f"dispatcher.connectors={listening.address}", NO_MATCHER)
        await fill(server, 20)
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await matcher.send(message(1, item(1, msg_id(7, node=3))))
        await until(lambda: _dispatcher(server).feeders)
        connector = stack.enter_context(await listening.accept())
        await connector.send(message(1, item(5, CONN), item(7, CONN)))
        # What was said before the connector came is the first thing it is told.
        assert (await next_push(connector))[1] == {1: msg_id(7, node=3), 2: b""}
        await matcher.send(message(1, item(1, msg_id(9, node=3))))
        assert (await next_push(connector))[1] == {1: msg_id(9, node=3), 2: b""}
        # A connector that comes back is told that it has missed what was pushed meanwhile, whoever pushed it.
        connector.close()
        await until(lambda: not _dispatcher(server).connectors)
        await matcher.send(push(11, b"lost", (ALICE, CONN)) + heartbeat())
        await matcher.message()
        connector = stack.enter_context(await listening.accept())
        await connector.send(message(1, item(5, CONN), item(7, CONN)))
        assert (await next_push(connector))[1] == {1: msg_id(11, node=3), 2: b""}
        matcher.close()
        await connector.rest()
        # It comes back at once, with nobody vouching for anything.
        again = stack.enter_context(await listening.accept())
        assert (await again.message())[0] == 1

    @pytest.mark.parametrize("hostile", [(1 << 48) - 1, (1 << 48) - 2, 21])
    async def test_a_place_that_cannot_be_keeps_nobody_from_relying_on_others(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting], hostile: int
    ) -> None:
        listening = accepting()
        server = await start(f"dispatcher.connectors={listening.address}", NO_MATCHER)
        await fill(server, 20)
        peer = stack.enter_context(await DispatcherPeer.connect(server))
        await peer.send(
            push(hostile, b"x", (ALICE, CONN)) + message(1, item(1, msg_id(hostile))) + heartbeat()
        )
        await peer.message()
        connector = stack.enter_context(await listening.accept())
        await connector.send(message(1, item(5, CONN), item(7, CONN)))
        await until(lambda: _dispatcher(server).relying)
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await matcher.send(message(1, item(1, msg_id(7, node=3))))
        assert (await next_push(connector))[1] == {1: msg_id(7, node=3), 2: b""}
        assert server.hub.counters.get("ahead", door="dispatcher")


class TestPeers:
    async def test_a_push_goes_to_the_dispatcher_that_says_it_has_the_connector(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        one, two = accepting(), accepting()
        server = await start(f"dispatcher.peers={one.address},{two.address}")
        peers = [stack.enter_context(await each.accept()) for each in (one, two)]
        for peer, has in zip(peers, (b"conn0001", b"conn0002"), strict=True):
            command, _, items = await peer.message()
            assert command == 2
            assert items[6] == connector_id(server.settings.node.name)
            await peer.send(heartbeat(has))
        await until(lambda: all(_dispatcher(server).peers.values()))
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await matcher.send(push(5, b"hello", (ALICE, b"conn0002"), (BOB, b"conn0001")))
        assert (await next_push(peers[0]))[1] == {1: msg_id(5), 2: b"hello", 6: b"conn0001", 3: BOB}
        assert (await next_push(peers[1]))[1] == {1: msg_id(5), 2: b"hello", 6: b"conn0002", 3: ALICE}

    async def test_one_that_has_many_connectors_says_so_in_parts(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        one, two = accepting(), accepting()
        server = await start(f"dispatcher.peers={one.address},{two.address}")
        many, few = [stack.enter_context(await each.accept()) for each in (one, two)]
        ids = [b"conn%04d" % number for number in range(600)]
        await many.send(
            heartbeat(*ids[:200], extra=2)
            + heartbeat(*ids[200:400], extra=4)
            + heartbeat(*ids[400:], extra=8)
        )
        await few.send(heartbeat(b"west0001"))
        await until(lambda: all(_dispatcher(server).peers.values()))
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await matcher.send(push(5, b"hello", (ALICE, ids[-1])))
        assert (await next_push(many))[1] == {1: msg_id(5), 2: b"hello", 6: ids[-1], 3: ALICE}
        # What comes in parts is answered once.
        await matcher.send(heartbeat(*ids[:200], extra=2) + heartbeat(*ids[200:400], extra=8))
        assert (await matcher.message())[0] == 2
        await matcher.send(message(9))
        assert await matcher.rest() == b"", "an unknown command ends it"

    async def test_peers_that_never_say_what_they_have_get_everything(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        listening = accepting()
        server = await start(f"dispatcher.peers={listening.address}")
        peer = stack.enter_context(await listening.accept())
        await until(lambda: _dispatcher(server).peers)
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await matcher.send(push(5, b"hello", (ALICE, CONN)))
        assert (await next_push(peer))[1] == {1: msg_id(5), 2: b"hello", 6: CONN, 3: ALICE}

    async def test_two_dispatchers_and_a_connector_behind_one_of_them(
        self, stack: AsyncExitStack, tmp_path: Path, accepting: Callable[[], Accepting]
    ) -> None:
        listening = accepting()
        far = await stack.enter_async_context(
            running_hub(tmp_path / "far", "node.name=far", f"dispatcher.connectors={listening.address}")
        )
        near = await stack.enter_async_context(
            running_hub(tmp_path / "near", "node.name=near", f"dispatcher.peers={far.doors['dispatcher']}")
        )
        connector = stack.enter_context(await listening.accept())
        await connector.send(message(1, item(5, CONN)))
        await until(
            lambda: any(told and CONN in told.connectors for told in _dispatcher(near).peers.values())
        )
        matcher = stack.enter_context(await DispatcherPeer.connect(near))
        payload = b"long " * 700
        await matcher.send(push(5, payload[:1900], extra=2) + push(5, payload[1900:], (ALICE, CONN), extra=8))
        found = b""
        while True:
            extra, items = await next_push(connector)
            found += items.get(2, b"")
            if extra == 8:
                break
        assert found == payload
        assert items[3] == ALICE


async def test_a_connector_that_is_not_listened_to_is_not_taken_for_silent(
    start: Start, accepting: Callable[[], Accepting]
) -> None:
    """While the hub is congested, or the connector has much to take, nothing is read from it."""
    there = accepting()
    server = await start(f"dispatcher.connectors={there.address}")
    with await there.accept() as peer:
        await peer.send(message(1, item(5, CONN)) + heartbeat())
        await until(lambda: CONN in _dispatcher(server).connectors)
        (door,) = [door for door in server._doors if getattr(door, "name", "") == "to_connectors"]
        (stream,) = door.connections  # type: ignore[attr-defined]
        await until(lambda: stream.answers)
        late = asyncio.get_running_loop().time() + server.settings.limits.idle_seconds + 1.0
        stream.pause_reading()
        door.tick(late)
        assert server.hub.counters.get("refused", door="to_connectors", reason="idle") == 0
        stream.resume_reading()
        door.tick(late + server.settings.limits.idle_seconds)
        assert server.hub.counters.get("refused", door="to_connectors", reason="idle") == 1


def _dispatcher(server: Server):  # type: ignore[no-untyped-def]
    from headrace.net.routing.roles import Routing

    (routing,) = (door for door in server._doors if isinstance(door, Routing))
    return routing.dispatcher


def _connector(server: Server) -> Connector:
    assert server.routing.connector is not None
    return server.routing.connector
