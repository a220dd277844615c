"""The status door, and matchers that share subscriptions by the ring."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.net.attribute_peers import StatusPeer, item, message
from tests.net.conftest import Start
from tests.net.raw import running_hub, until

from headrace.hub.routing.matcher_ring import join
from headrace.net.server.process import Server


def node_info(name: bytes) -> bytes:
    start = hashlib.sha1(name).hexdigest().encode()
    return message(
        1, item(1, b"host"), item(2, b"a:1"), item(3, b"b:2"), item(4, start), item(5, name), extra=0
    )


@pytest.fixture
async def asker(start: Start, stack: AsyncExitStack) -> StatusPeer:
    server = await start("node.name=one")
    peer = stack.enter_context(await StatusPeer.connect(server))
    peer.server = server  # type: ignore[attr-defined]
    return peer


async def test_whoever_connects_is_told_the_place_on_the_ring(asker: StatusPeer) -> None:
    server: Server = asker.server  # type: ignore[attr-defined]
    command, extra, items = await asker.message()
    first = int.from_bytes(hashlib.sha1(b"one").digest())
    assert (command, extra) == (1, 0)
    assert set(items) == {1, 2, 3, 4, 5}
    assert items[2].decode() == server.doors["status"]
    assert items[3].decode() == server.doors["tube_tcp"]
    assert items[4] == hashlib.sha1(b"one").hexdigest().encode()
    assert items[5] == b"one"
    command, extra, items = await asker.message()
    assert (command, extra) == (2, 0)
    assert set(items) == {1, 5, 6}
    places = [int.from_bytes(items[6][at : at + 20]) for at in range(0, 320, 20)]
    assert places == [(first + n * (1 << 160) // 16) % (1 << 160) for n in range(16)]


async def test_a_matchers_own_information_is_answered(asker: StatusPeer) -> None:
    for _ in range(2):
        await asker.message()
    places = b"".join(n.to_bytes(20) for n in range(16))
    await asker.send(message(2, item(1, b"host"), item(5, b"two"), item(6, places), extra=0))
    await asker.send(node_info(b"two"))
    # The vnode information is taken without a word.
    command, _, items = await asker.message()
    assert (command, items[5]) == (1, b"one")


async def test_what_is_wrong_is_refused(asker: StatusPeer) -> None:
    await asker.send(message(3))
    await asker.rest()
    assert asker.server.hub.counters.get("refused", door="status", reason="malformed") == 1  # type: ignore[attr-defined]


async def test_a_matcher_that_is_gone_is_taken_off_the_ring(stack: AsyncExitStack, tmp_path: Path) -> None:
    async with running_hub(tmp_path / "one", "node.name=one") as one:
        two = await stack.enter_async_context(
            running_hub(
                tmp_path / "two",
                "node.name=two",
                "limits.idle_seconds=0.6",
                f"matching.peers={one.doors['status']}",
                # Whoever pushes elsewhere is on the ring.
                "matching.dispatchers=127.0.0.1:1",
                "dispatcher.connectors=127.0.0.1:1",
            )
        )
        await until(lambda: "two" in two.parts.matchers.ring)
        two.hub.submit(join("one", hashlib.sha1(b"one").digest()))
        await until(lambda: set(two.parts.matchers.ring.matchers) == {"one", "two"})
        (peers,) = (door for door in two._doors if getattr(door, "name", "") == "to_matchers")
        await until(lambda: "one" in peers.silence)  # type: ignore[attr-defined]
    await until(lambda: set(two.parts.matchers.ring.matchers) == {"two"})


async def test_a_matcher_that_died_before_the_hub_began_is_taken_off_the_ring(tmp_path: Path) -> None:
    sets = ("node.name=two", "matching.dispatchers=127.0.0.1:1", "dispatcher.connectors=127.0.0.1:1")
    async with running_hub(tmp_path, *sets) as two:
        for name in (b"one", b"three"):
            two.hub.submit(join(name.decode(), hashlib.sha1(name).digest()))
        await until(lambda: len(two.parts.matchers.ring) == 3)
    watching = (*sets, "limits.idle_seconds=0.6", "matching.peers=127.0.0.1:1")
    async with running_hub(tmp_path, *watching) as two:
        assert {"one", "three"} <= set(two.parts.matchers.ring.matchers)
        await until(lambda: set(two.parts.matchers.ring.matchers) == {"two"})
        assert two.hub.counters.get("refused", door="to_matchers", reason="gone") == 2


async def test_who_dials_nobody_takes_nobody_off_the_ring(tmp_path: Path) -> None:
    sets = ("node.name=two", "limits.idle_seconds=0.1", "dispatcher.connectors=127.0.0.1:1")
    async with running_hub(tmp_path, *sets) as two:
        two.hub.submit(join("one", hashlib.sha1(b"one").digest()))
        await until(lambda: "one" in two.parts.matchers.ring)
        (peers,) = (door for door in two._doors if getattr(door, "name", "") == "to_matchers")
        for later in (0.0, 100.0, 200.0):
            peers.tick(asyncio.get_running_loop().time() + later)
        assert "one" in two.parts.matchers.ring
