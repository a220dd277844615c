"""Clients of a hub's link, and what tests do to their tubes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.net.raw import SECONDS

import headrace
from headrace.client.link.client import LinkClient
from headrace.net.server.process import Server


def client(server: Server, **options: Any) -> LinkClient:
    """A client of a hub's link, to be opened."""
    made: LinkClient = headrace.connect(f"tube://{server.doors['tube_tcp']}", **options)
    return made


def break_tubes(server: Server) -> None:
    """Cut every tube off, as a network does."""
    door: Any = server._doors[-1]
    for connection in tuple(door._connections):
        connection.tube.abort()


def payloads(server: Server) -> list[bytes]:
    """All that is in a hub's log."""
    return [payload for batch in server.hub.log.scan(1) for payload in batch.run]


async def read_all(link: LinkClient, *args: Any, **options: Any) -> list[int]:
    """The sequence numbers that a read brings."""
    return [seq async for rows in link.read(*args, **options) for seq in rows.column("seq").to_pylist()]


async def some(messages: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    """So many of them, within the time that anything may take."""
    async with asyncio.timeout(SECONDS):
        for _ in range(count):
            yield await anext(messages)
