"""What one peer does costs only itself: attacks on a hub, and what a good client beside them notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter

import pytest
from tests.net.conftest import Dial, Start
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import until

from headrace.hub.topic_test import MAX_SEARCHED, MAX_WILDCARDS
from headrace.net.server.process import Server

HELD_UP_SECONDS = 0.5
"""What a good client may wait beside an attack that stopped everything for seconds: machines of tests are slow."""


class Watch:
    """The longest that the event loop was held up."""

    longest = 0.0


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Watch]:
    watch = Watch()

    async def look() -> None:
        while True:
            began = perf_counter()
            await asyncio.sleep(0.001)
            watch.longest = max(watch.longest, perf_counter() - began)

    looking = asyncio.ensure_future(look())
    try:
        yield watch
        await asyncio.sleep(0.01)
    finally:
        looking.cancel()


COSTLIEST = {
    "many wildcards": "a*" * MAX_WILDCARDS + "x",
    "crossing wildcards": "**a*/" * (MAX_WILDCARDS // 2) + "x",
    "long search": "**" + "a" * (MAX_SEARCHED - 3) + "b",
    "long searches": ("**" + "a" * (MAX_SEARCHED // MAX_WILDCARDS - 3) + "b") * MAX_WILDCARDS,
}


async def test_a_costly_pattern_is_refused(peer: LinkPeer) -> None:
    for pattern in ("a*" * 2048, "**" + "a" * MAX_SEARCHED):
        for request in ({"op": "follow"}, {"op": "read", "first": 1}, {"op": "follow", "consumer": "c"}):
            answer = await peer.ask(**request, id=2, topic=pattern)
            assert answer["error"] == "limit", answer
            assert "topic pattern" in answer["reason"]
        assert (await peer.ask(op="entries", id=2, first=0, topic=pattern))["error"] == "limit"
    assert (await peer.ask(op="consumers", id=3))["consumers"] == []
    long = "a" * 4000  # What stands before the first wildcard is only compared.
    assert (await peer.ask(op="read", id=2, first=1, topic=long + "/*"))["ok"]


@pytest.mark.parametrize("pattern", COSTLIEST.values(), ids=COSTLIEST)
async def test_the_costliest_pattern_holds_nobody_up(
    server: Server, peer: LinkPeer, stack: AsyncExitStack, pattern: str
) -> None:
    attacker = await stack.enter_async_context(link_peer(server))
    for number in range(8):
        await attacker.say(op="follow", id=10 + number, topic=pattern + "c" * number)
    await attacker.ask(op="head", id=1)
    bodies = [rows(b"x", topic=topic[:60_000]) for topic in ("a" * 60_000, "a/" * 30_000, "ab" * 30_000)]
    async with watched_loop() as watch:
        for body in bodies:
            assert (await peer.ask(body, op="publish", id=1))["ok"]
    print(f"longest turn: {watch.longest * 1000:.1f} ms")
    assert watch.longest < HELD_UP_SECONDS


async def test_idle_connections_at_one_door_leave_the_others_open(
    start: Start, dial: Dial, stack: AsyncExitStack
) -> None:
    server = await start("limits.connections_per_address=20")
    for _ in range(22):
        await dial(server)
    await until(lambda: server.hub.counters.get("refused", door="fyrehose", reason="connections") == 2)
    for door in ("tube_tcp", "tube_ws"):
        peer = await stack.enter_async_context(link_peer(server, door))
        assert (await peer.ask(rows(b"x"), op="publish", id=1))["ok"]
