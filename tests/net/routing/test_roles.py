"""The matcher of a hub whose kernels are not compiled yet: what is to be matched waits, and nothing else does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.net.attribute_peers import ALICE, BOB, HEARTBEAT, PublisherPeer, SdkPeer, publish, sub
from tests.net.conftest import Start
from tests.net.raw import running_hub, until

from headrace.matching import warm
from headrace.net.routing import roles as module
from headrace.net.server.process import Server


class Kernels:
    """Kernels that are compiled when the test says."""

    def __init__(self) -> None:
        self.asked = 0
        self.there = threading.Event()

    def warm(self) -> None:
        self.asked += 1
        self.there.wait(60)
        warm()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    kernels = Kernels()
    monkeypatch.setattr(module, "is_cold", lambda: True)
    monkeypatch.setattr(module, "FEW", -1)
    monkeypatch.setattr(module, "warm", kernels.warm)
    yield kernels
    kernels.there.set()


async def enter(server: Server, stack: AsyncExitStack, client: bytes, after: int | None = None) -> SdkPeer:
    peer = stack.enter_context(await SdkPeer.connect(server))
    await peer.enter(client, after)
    await peer.send(sub(x=(0, 9)) + HEARTBEAT)
    assert await peer.line() == b"+h\r\n"
    await until(lambda: client in server.subscriptions)
    return peer


async def test_what_is_to_be_matched_waits_for_them_and_nothing_else(
    start: Start, stack: AsyncExitStack, kernels: Kernels
) -> None:
    server = await start()
    publisher = stack.enter_context(await PublisherPeer.connect(server))
    await publisher.send(publish({"x": 5}, b"before"))
    await until(lambda: server.hub.log.head == 1)
    alice = await enter(server, stack, ALICE)
    bob = await enter(server, stack, BOB, after=0)
    await publisher.send(publish({"x": 5}, b"one") + publish({"x": 50}, b"two") + publish({"x": 6}, b"three"))
    await until(lambda: server.hub.log.head == 4)
    # Whoever does not ask for matching does not wait for it.
    await bob.send(HEARTBEAT)
    assert await bob.line() == b"+h\r\n"
    assert kernels.asked == 1
    assert server.hub.counters.get("matched", what="messages") == 0
    kernels.there.set()
    assert await alice.pushes(2) == [(2, b"one"), (4, b"three")]
    assert await bob.pushes(3) == [(1, b"before"), (2, b"one"), (4, b"three")]
    await publisher.send(publish({"x": 7}, b"four"))
    assert await alice.push() == await bob.push() == (5, b"four")


async def test_compiling_begins_at_once_and_is_said(
    start: Start,
    stack: AsyncExitStack,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "COMPILING_SECONDS", 0)
    with caplog.at_level(logging.INFO, "headrace"):
        server = await start()
        await until(lambda: kernels.asked == 1 and "compiling the matcher, once" in caplog.text)
    alice = await enter(server, stack, ALICE)
    kernels.there.set()
    publisher = stack.enter_context(await PublisherPeer.connect(server))
    await publisher.send(publish({"x": 5}, b"one"))
    assert (await alice.push())[1] == b"one"


async def test_a_hub_that_neither_matches_nor_connects_never_compiles_them(
    start: Start, kernels: Kernels
) -> None:
    await start("node.roles=sequence,publisher,dispatcher")
    assert not kernels.asked


async def test_a_hub_stops_without_waiting_for_them(tmp_path: Path, kernels: Kernels) -> None:
    async with running_hub(tmp_path):
        await until(lambda: kernels.asked)
    assert not kernels.there.is_set()


async def test_a_client_that_cannot_be_read_for_is_let_go(
    server: Server, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: a client that comes back finds out; one that waits for ever does not."""

    def failing(*_: object) -> list[int]:
        raise MemoryError("no more")

    publisher = stack.enter_context(await PublisherPeer.connect(server))
    await publisher.send(publish({"x": 5}, b"before") * 3)
    await until(lambda: server.hub.log.head == 3)
    monkeypatch.setattr(server.routing.matching, "rows", failing)
    alice = await enter(server, stack, ALICE, after=0)
    await alice.rest()
    assert server.hub.counters.get("undeliverable", door="sdk") == server.hub.log.head
