"""Connectors, dispatchers, matchers and SDK clients that know the original document and nothing of ours.

They send no handshake answers, no heartbeat answers, no item ids above those of the document, and MsgIds of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from base64 import b64encode
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.net.attribute_peers import (
    ALICE,
    BOB,
    HEARTBEAT,
    BinaryPeer,
    DispatcherPeer,
    PublisherPeer,
    RouterPeer,
    SdkPeer,
    StatusPeer,
    command,
    item,
    message,
    publish,
)
from tests.net.conftest import Start
from tests.net.raw import TcpPeer, until
from tests.net.routing.conftest import Accepting

from headrace.net.server.accepting.tcp_door import ConnectionGroup
from headrace.net.server.process import Server

WEST, EAST = b"west0001", b"east0001"

FOREIGN = bytes.fromhex("5f3c0a10b1e24d7780c1a2ff")
"""A MsgId of another make: as a number, its first six bytes would be far beyond any sequence."""

HEARTBEAT_SECONDS = 300.0
"""The original's interval."""


def group(server: Server, name: str) -> ConnectionGroup[Any]:
    """The connections of one kind."""
    (found,) = (door for door in server._doors if isinstance(door, ConnectionGroup) and door.name == name)
    return found


async def only(server: Server, name: str) -> Any:
    """The one connection of its kind, once it is there."""
    await until(lambda: group(server, name).connections)
    (connection,) = group(server, name).connections
    return connection


def refused(server: Server, door: str, reason: str) -> int:
    return server.hub.counters.get("refused", door=door, reason=reason)


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def pushed_to(connector: BinaryPeer) -> dict[int, bytes]:
    """The items of the next push; handshakes and heartbeats are read and not answered."""
    while True:
        number, extra, items = await connector.message()
        if number == 3:
            assert extra == 1
            return items


class TestConnectors:
    async def test_one_that_never_answers_is_served_under_the_id_that_the_settings_give_it(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        there = accepting()
        server = await start(f"dispatcher.connectors={WEST.decode()}@{there.address}")
        connector = stack.enter_context(await there.accept())
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await until(lambda: group(server, "to_connectors").connections)
        group(server, "to_connectors").tick(soon(10 * HEARTBEAT_SECONDS))
        await matcher.send(message(1, item(1, FOREIGN), item(2, b"snow"), item(3, ALICE + WEST)))
        assert await pushed_to(connector) == {1: FOREIGN, 2: b"snow", 3: ALICE}
        assert "to_connectors" not in str(server.hub.counters.as_dict().get("refused", {}))

    async def test_one_that_answers_after_all_is_what_it_says(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        there = accepting()
        server = await start(f"dispatcher.connectors={WEST.decode()}@{there.address}")
        connector = stack.enter_context(await there.accept())
        await connector.send(message(1, item(5, EAST)))
        link = await only(server, "to_connectors")
        await until(lambda: link.connector == EAST)
        matcher = stack.enter_context(await DispatcherPeer.connect(server))
        await matcher.send(message(1, item(1, FOREIGN), item(3, ALICE + WEST + BOB + EAST)))
        assert (await pushed_to(connector))[3] == BOB

    async def test_one_without_an_id_is_given_up_and_the_log_says_what_to_do(
        self, start: Start, accepting: Callable[[], Accepting], caplog: pytest.LogCaptureFixture
    ) -> None:
        there = accepting()
        server = await start(f"dispatcher.connectors={there.address}")
        with await there.accept():
            await until(lambda: group(server, "to_connectors").connections)
            with caplog.at_level(logging.WARNING, "headrace"):
                group(server, "to_connectors").tick(soon(server.settings.limits.handshake_seconds))
        assert refused(server, "to_connectors", "handshake") == 1
        assert "ID@host:port in dispatcher.connectors" in caplog.text

    async def test_one_that_answers_the_handshake_need_not_answer_heartbeats(
        self, start: Start, accepting: Callable[[], Accepting]
    ) -> None:
        there = accepting()
        server = await start(f"dispatcher.connectors={there.address}")
        with await there.accept() as connector:
            await connector.send(message(1, item(5, WEST)))
            link = await only(server, "to_connectors")
            await until(lambda: link.connector == WEST)
            group(server, "to_connectors").tick(soon(10 * HEARTBEAT_SECONDS))
            assert link.admitted


class TestDispatchers:
    async def test_one_that_never_answers_heartbeats_is_not_given_up(
        self, start: Start, accepting: Callable[[], Accepting]
    ) -> None:
        there = accepting()
        server = await start(f"matching.dispatchers={there.address}")
        with await there.accept() as dispatcher:
            assert (await dispatcher.message())[0] == 2
            link = await only(server, "to_dispatcher")
            group(server, "to_dispatcher").tick(soon(10 * HEARTBEAT_SECONDS))
            assert link.admitted
            assert (await dispatcher.message())[0] == 2
        assert refused(server, "to_dispatcher", "idle") == 0

    async def test_one_that_has_answered_must_go_on_to(
        self, start: Start, accepting: Callable[[], Accepting]
    ) -> None:
        there = accepting()
        server = await start(f"matching.dispatchers={there.address}")
        with await there.accept() as dispatcher:
            await dispatcher.send(message(2, item(4, (1700000000).to_bytes(8))))
            link = await only(server, "to_dispatcher")
            await until(lambda: link.answers)
            group(server, "to_dispatcher").tick(soon(server.settings.limits.idle_seconds + 1))
        assert refused(server, "to_dispatcher", "idle") == 1

    async def test_what_names_no_connector_goes_to_each_of_them(
        self, start: Start, stack: AsyncExitStack, accepting: Callable[[], Accepting]
    ) -> None:
        west, east = accepting(), accepting()
        names = f"{WEST.decode()}@{west.address},{EAST.decode()}@{east.address}"
        server = await start(f"dispatcher.connectors={names}")
        connectors = [stack.enter_context(await there.accept()) for there in (west, east)]
        alice = stack.enter_context(await SdkPeer.connect(server))
        await alice.enter(ALICE)
        await until(lambda: len(group(server, "to_connectors").connections) == 2)
        other = stack.enter_context(await DispatcherPeer.connect(server))
        await other.send(message(3, item(1, FOREIGN), item(2, b"snow"), item(3, ALICE + BOB)))
        for connector in connectors:
            assert await pushed_to(connector) == {1: FOREIGN, 2: b"snow", 3: ALICE + BOB}
        assert await alice.push() == (0, b"snow")
        assert server.hub.counters.get("absent", door="sdk") == 1  # Bob is not here.

    async def test_a_long_one_without_a_connector_comes_in_parts(
        self, server: Server, stack: AsyncExitStack
    ) -> None:
        alice = stack.enter_context(await SdkPeer.connect(server))
        await alice.enter(ALICE)
        other = stack.enter_context(await DispatcherPeer.connect(server))
        for extra, items in (
            (2, [item(2, b"sn"), item(3, BOB)]),
            (4, [item(2, b"ow")]),
            (8, [item(3, ALICE)]),
        ):
            await other.send(message(3, item(1, FOREIGN), *items, extra=extra))
        assert await alice.push() == (0, b"snow")

    async def test_the_connector_takes_pushes_of_one_that_never_says_who_it_is(
        self, server: Server, stack: AsyncExitStack
    ) -> None:
        alice = stack.enter_context(await SdkPeer.connect(server))
        await alice.enter(ALICE)
        dispatcher = stack.enter_context(await RouterPeer.connect(server))
        await dispatcher.send(message(3, item(1, FOREIGN), item(2, b"snow"), item(3, ALICE + BOB)))
        assert await alice.push() == (0, b"snow")


@pytest.mark.parametrize("peer", [SdkPeer, RouterPeer, DispatcherPeer])
async def test_who_sends_a_heartbeat_every_300_seconds_stays(
    server: Server, stack: AsyncExitStack, peer: type[TcpPeer]
) -> None:
    stack.enter_context(await peer.connect(server))
    door, stream = group(server, peer.door), await only(server, peer.door)
    door.tick(stream.heard + 2 * HEARTBEAT_SECONDS)
    assert stream.admitted
    door.tick(stream.heard + 3 * HEARTBEAT_SECONDS + 1)  # One more: sums of floats are rounded.
    assert refused(server, peer.door, "idle") == 1


async def test_the_kernel_finds_a_peer_that_vanished_sooner(server: Server, stack: AsyncExitStack) -> None:
    stack.enter_context(await SdkPeer.connect(server))
    stream = await only(server, "sdk")
    sock = stream._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, between, probes = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle + between * probes == server.settings.limits.idle_seconds


async def test_a_client_of_the_document_gets_what_it_subscribes(
    server: Server, stack: AsyncExitStack
) -> None:
    client = stack.enter_context(await SdkPeer.connect(server))
    claim = {"client_id": ALICE.hex(), "timestamp": 1700000000, "token": "none"}
    await client.send(command(b"auth", json.dumps(claim).encode()) + HEARTBEAT)
    assert [await client.line(), await client.line()] == [b"+authsuccess\r\n", b"+h\r\n"]
    field = {"use": 2, "strval": "", "low": -40.0, "high": 0.0, "extra": ""}
    await client.send(command(b"sub", b"degrees", json.dumps(field).encode()) + HEARTBEAT)
    assert await client.line() == b"+h\r\n"
    publisher = stack.enter_context(await PublisherPeer.connect(server))
    await publisher.send(publish({"degrees": 5}, b"rain") + publish({"degrees": -5}, b"snow"))
    line = await client.line()
    content = json.loads(await client.read(int(line[1:])))
    assert content["payload"] == "snow"


async def test_a_foreign_msg_id_is_never_taken_for_a_number(
    server: Server, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    matcher = stack.enter_context(await DispatcherPeer.connect(server))
    with caplog.at_level(logging.WARNING, "headrace"):
        await matcher.send(message(1, item(1, FOREIGN), item(2, b"snow"), item(3, ALICE + b"nowhere1")))
        await until(lambda: server.hub.counters.get("undeliverable", door="dispatcher") == 1)
    assert FOREIGN.hex() in caplog.text
    assert str(int.from_bytes(FOREIGN[:6])) not in caplog.text


async def test_a_matcher_may_list_its_vnodes_in_base64(server: Server, stack: AsyncExitStack) -> None:
    asker = stack.enter_context(await StatusPeer.connect(server))
    vnodes = b"".join(n.to_bytes(20) for n in range(16))
    await asker.message()
    await asker.message()
    await asker.send(message(2, item(1, b"mill"), item(5, b"Ivan"), item(6, b64encode(vnodes)), extra=0))
    node = [b"mill", b"127.0.0.1:5500", b"127.0.0.1:5501", b"40" + b"00" * 19, b"Ivan"]
    await asker.send(message(1, *(item(n, text) for n, text in enumerate(node, 1)), extra=0))
    assert (await asker.message())[0] == 1
    assert refused(server, "status", "malformed") == 0
