"""Clients are for every event loop: what is tested here is tested on asyncio's own and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop
from tests.client.links import client
from tests.net.raw import running_hub

from headrace.client.link.client import LinkClient
from headrace.net.server.process import Server


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Server]:
    """A hub in this process, on free ports."""
    async with running_hub(tmp_path, "listen.http=off") as server:
        yield server


@pytest.fixture
def server(hub: Server) -> Server:
    """The same, where its :class:`~headrace.hub.sequence.Hub` matters."""
    return hub


@pytest.fixture
async def link(server: Server) -> AsyncIterator[LinkClient]:
    """An open client of its link."""
    async with client(server) as link:
        yield link
