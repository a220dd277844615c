"""A TCP server that plays one script a connection; a script that fails fails the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.ports import lasting_port

SECONDS = 20.0
"""How long anything may take: much longer than it does, so that a busy machine fails no test."""

_TURNS_TO_ACCEPT = 5
"""Turns of the loop in which whoever has connected is also accepted."""


@asynccontextmanager
async def scripted_server(
    scheme: str,
    scripts: tuple[Callable[..., Awaitable[None]], ...],
    session: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object],
    *,
    window: int | None = None,
    ends: tuple[type[Exception], ...] = (),
) -> AsyncIterator[str]:
    """Serve the first connections with a script each, the last one for all that follow; give the URL.

    ``session`` makes what a script gets. ``window`` is the size of the receive buffer. Errors in ``ends`` are a
    script's good end.
    """
    playing: list[asyncio.Task[None]] = []
    left = list(scripts)

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        playing.append(asyncio.create_task(play(script, reader, writer)))

    async def play(
        script: Callable[..., Awaitable[None]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            with contextlib.suppress(*ends):
                await script(session(reader, writer))
        finally:
            writer.close()

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if window is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    # Not just any port: somebody may still be looking there for a server of before.
    listening.bind(("127.0.0.1", lasting_port()))
    server = await asyncio.start_server(visited, sock=listening)
    try:
        yield "{}://{}:{}".format(scheme, *listening.getsockname())
        for _ in range(_TURNS_TO_ACCEPT):
            await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*playing)
    finally:
        server.close()
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
