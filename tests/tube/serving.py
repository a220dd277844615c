"""Servers of ours, and waiting for what they come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.tube.stranger import SECONDS

from headrace.tube import Tube, TubeServer


async def echo(tube: Tube) -> None:
    async for message in tube:
        await tube.send(message)


def url(server: TubeServer) -> str:
    scheme = "tube" if server.transport.value == "tcp" else "ws"
    return f"{scheme}://{server.addresses[0]}"


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 -- a tube has no event for each of its facts
            await asyncio.sleep(0)
