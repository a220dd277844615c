"""The connector's door toward dispatchers, byte by byte."""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import time

import pytest
from tests.net.attribute_peers import (
    ALICE,
    BOB,
    CAROL,
    PublisherPeer,
    RouterPeer,
    SdkPeer,
    fill,
    item,
    message,
    msg_id,
    publish,
    sub,
)
from tests.net.conftest import Start
from tests.net.raw import until

from headrace.hub.routing.roles import connector_id
from headrace.net.server.process import Server
from headrace.wire.attribute import push_parts

HANDSHAKE = message(1, item(5, b"disp0001"))


@pytest.fixture
async def router(server: Server, stack: AsyncExitStack) -> RouterPeer:
    await fill(server)
    return stack.enter_context(await RouterPeer.connect(server))


async def enter(server: Server, stack: AsyncExitStack, client: bytes) -> SdkPeer:
    peer = stack.enter_context(await SdkPeer.connect(server))
    await peer.enter(client)
    return peer


def push(seq: int, payload: bytes | None, *clients: bytes, extra: int = 1) -> bytes:
    items = [item(1, msg_id(seq))]
    if payload is not None:
        items.append(item(2, payload))
    return message(3, *items, item(3, b"".join(clients)), extra=extra)


async def test_a_handshake_is_answered_with_the_connectors_id(server: Server, router: RouterPeer) -> None:
    await router.send(HANDSHAKE)
    command, _, items = await router.message()
    assert (command, items) == (1, {5: connector_id(server.settings.node.name)})


async def test_a_heartbeat_is_answered(router: RouterPeer) -> None:
    await router.send(message(2, item(4, (1700000000).to_bytes(8))))
    command, _, items = await router.message()
    assert command == 2
    assert abs(int.from_bytes(items[4]) - time()) < 60


@pytest.mark.parametrize("extra", [0, 1])
async def test_a_push_reaches_just_the_clients_it_names(
    server: Server, stack: AsyncExitStack, router: RouterPeer, extra: int
) -> None:
    alice, bob, carol = [await enter(server, stack, client) for client in (ALICE, BOB, CAROL)]
    await router.send(push(5, b"hello", ALICE, CAROL, extra=extra) + push(6, b"for all", ALICE, BOB, CAROL))
    assert await alice.pushes(2) == [(5, b"hello"), (6, b"for all")]
    assert await carol.pushes(2) == [(5, b"hello"), (6, b"for all")]
    assert await bob.push() == (6, b"for all")


async def test_a_repeat_is_dropped(server: Server, stack: AsyncExitStack, router: RouterPeer) -> None:
    alice = await enter(server, stack, ALICE)
    await router.send(push(5, b"five", ALICE) * 2 + push(4, b"four", ALICE) + push(6, b"six", ALICE))
    assert await alice.pushes(2) == [(5, b"five"), (6, b"six")]
    assert server.hub.counters.get("repeats", door="sdk") == 2


async def test_a_msg_id_of_another_make_has_no_number(
    server: Server, stack: AsyncExitStack, router: RouterPeer
) -> None:
    alice = await enter(server, stack, ALICE)
    foreign = message(3, item(1, b"\0\0\0\0\0\x09 foreign"[:12]), item(2, b"hello"), item(3, ALICE))
    await router.send(push(20, b"twenty", ALICE) + foreign * 2)
    assert await alice.pushes(3) == [(20, b"twenty"), (0, b"hello"), (0, b"hello")]


async def test_a_number_that_is_not_reached_yet_makes_nobody_deaf(
    server: Server, stack: AsyncExitStack, router: RouterPeer
) -> None:
    alice = await enter(server, stack, ALICE)
    await alice.send(sub(x=(0, 9)))
    await until(lambda: ALICE in server.subscriptions)
    head = server.hub.log.head
    await router.send(push(head + 1, b"not yet", ALICE) + push((1 << 48) - 1, b"never", ALICE))
    await until(lambda: server.hub.counters.get("ahead", door="sdk") == 2)
    publisher = stack.enter_context(await PublisherPeer.connect(server))
    await publisher.send(publish({"x": 5}, b"matched"))
    assert await alice.push() == (head + 1, b"matched")


async def test_a_push_for_nobody_here_is_counted(
    server: Server, stack: AsyncExitStack, router: RouterPeer
) -> None:
    await router.send(push(5, b"five", ALICE))
    await until(lambda: server.hub.counters.get("absent", door="sdk") == 1)


async def test_parts_count_once_the_tail_has_come(
    server: Server, stack: AsyncExitStack, router: RouterPeer
) -> None:
    alice, bob = [await enter(server, stack, client) for client in (ALICE, BOB)]
    await router.send(
        push(5, b"first, ", ALICE, extra=2)
        + push(5, b"second, ", BOB, extra=4)
        + push(6, b"another", ALICE, extra=1)
        + push(5, b"third", extra=8)
        + push(7, b"end", ALICE, BOB)
    )
    # Alice got the later one meanwhile, so for her the joined one comes too late.
    assert await alice.pushes(2) == [(6, b"another"), (7, b"end")]
    assert await bob.pushes(2) == [(5, b"first, second, third"), (7, b"end")]


async def test_a_mid_without_a_head_is_refused(server: Server, router: RouterPeer) -> None:
    await router.send(push(5, b"mid", ALICE, extra=4))
    assert await router.rest() == b""
    assert server.hub.counters.get("refused", door="router", reason="unexpected") == 1


async def test_what_is_held_for_a_tail_is_bounded(
    server: Server, router: RouterPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(push_parts.MAX_HELD_PUSHES + 1):
        await router.send(push(n + 1, b"head", ALICE, extra=2))
    assert await router.rest() == b""
    assert server.hub.counters.get("refused", door="router", reason="limit") == 1


async def test_a_tail_that_never_comes_is_given_up(
    start: Start, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_parts.PushJoiner.__init__, "__kwdefaults__", {
        **push_parts.PushJoiner.__init__.__kwdefaults__, "max_seconds": 0.2
    })  # fmt: skip
    server = await start()
    router = stack.enter_context(await RouterPeer.connect(server))
    await router.send(push(5, b"head", ALICE, extra=2))
    await until(lambda: server.hub.counters.get("refused", door="router", reason="unfinished"))


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (message(9), "malformed"),
        (message(1, item(5, b"short")), "malformed"),
        (message(3, item(1, b"bad id")), "malformed"),
        (message(3, item(1, msg_id(1)), item(3, b"eleven byte")), "malformed"),
        (b"\x03\x07\xd1\x01", "limit"),
    ],
)
async def test_what_is_wrong_is_refused(server: Server, router: RouterPeer, wire: bytes, reason: str) -> None:
    await router.send(wire)
    assert await router.rest() == b""
    assert server.hub.counters.get("refused", door="router", reason=reason) == 1


async def test_a_silent_dispatcher_is_cut_off(start: Start, stack: AsyncExitStack) -> None:
    server = await start("limits.routing_idle_seconds=0.3")
    router = stack.enter_context(await RouterPeer.connect(server))
    assert await router.rest() == b""
    assert server.hub.counters.get("refused", door="router", reason="idle") == 1


async def test_a_push_and_a_match_of_one_message_come_once(
    server: Server, stack: AsyncExitStack, router: RouterPeer
) -> None:
    """A client that is matched here may also be pushed to from elsewhere."""
    alice = await enter(server, stack, ALICE)
    await alice.send(sub(size=(0, 100)))
    await until(lambda: ALICE in server.subscriptions)
    await fill(server, 1)
    seq, payload = await alice.push()
    assert (seq, payload) == (server.hub.log.head, b"x")
    await router.send(push(seq, b"by push", ALICE))
    await until(lambda: server.hub.counters.get("repeats", door="sdk") == 1)


async def test_a_dispatcher_that_says_again_and_again_who_it_is_has_one_name(
    server: Server, router: RouterPeer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        await router.send(HANDSHAKE)
        await router.message()
    await router.send(message(9))
    await until(lambda: server.hub.counters.as_dict().get("refused") is not None)
    (told,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert told.count("disp0001") == 1


async def test_marks_cost_a_connector_nothing_that_has_its_own_matcher(
    server: Server, stack: AsyncExitStack, router: RouterPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would have every client looked at, for each mark."""
    connector = server.routing.connector
    assert connector is not None
    looked: list[bool] = []
    monkeypatch.setattr(connector, "reroute", lambda: looked.append(True))
    for node in range(100):
        await router.send(message(3, item(1, msg_id(5, node)), extra=1))
    await router.send(HANDSHAKE)
    await router.message()
    router.close()
    await until(lambda: server.status()["subscribers"]["router"] == 0)  # type: ignore[index]
    assert looked == []
