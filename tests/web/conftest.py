"""A hub with its http door, and somebody who asks it; or a log alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.net.raw import running_hub

from headrace import web
from headrace.log import Log
from headrace.net.server.process import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_hub(tmp_path, "node.name=mill", http=web.start) as server:
        yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(20)
    async with aiohttp.ClientSession(f"http://{server.doors['http']}", timeout=timeout) as session:
        yield session


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log.open(tmp_path / "log", fsync="never")
    yield log
    log.close()
