"""A hub in this process, on the event loop that it has in production."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvloop
from tests.net.linkpeer import LinkPeer, link_peer
from tests.net.raw import TcpPeer, UdpPeer, running_hub

from headrace.net.server.process import Server

Start = Callable[..., Awaitable[Server]]
Dial = Callable[..., Awaitable[TcpPeer]]
Bind = Callable[..., UdpPeer]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a hub with settings of a test's own; it is drained when the test is over."""
    async with AsyncExitStack() as stack:

        async def begin(*sets: str) -> Server:
            # A test's sockets are closed while it ends: no subscription outlives it, so none need be short.
            return await stack.enter_async_context(
                running_hub(tmp_path, "fyrehose.subscriber_seconds=600", *sets)
            )

        yield begin


@pytest.fixture
async def server(start: Start) -> Server:
    """A hub with the default settings, but for subscriptions that last."""
    return await start()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def dial(stack: AsyncExitStack) -> Dial:
    """Connect to a hub's backbone by TCP."""

    async def connect(server: Server, **options: object) -> TcpPeer:
        return stack.enter_context(await TcpPeer.connect(server, **options))  # type: ignore[arg-type]

    return connect


@pytest.fixture
def bind(stack: AsyncExitStack) -> Bind:
    """Make a UDP socket to talk to a hub's backbone."""

    def make(server: Server, **options: object) -> UdpPeer:
        return stack.enter_context(UdpPeer(server, **options))  # type: ignore[arg-type]

    return make


@pytest.fixture
async def peer(server: Server, stack: AsyncExitStack) -> LinkPeer:
    """A client of the hub's link that has said hello."""
    return await stack.enter_async_context(link_peer(server))
