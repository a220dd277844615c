"""Answers health checks while the disk holds the event loop.

A lone hub makes small appends on its event loop. If a disk that was prompt before hangs in one of them, the event loop
hangs, too, and nobody could ask the hub why. So once an append has held the loop for :data:`HELD_SECONDS`, the thread
that watches the loop accepts at the http door instead. It answers ``/healthz`` with "alive", and ``/readyz`` and
everything else with "the disk does not answer". When the loop continues, it accepts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

logger = logging.getLogger("headrace")

HELD_SECONDS: Final = 1.0
"""Seconds after which the loop counts as held."""

MAX_CONNECTIONS: Final = 64
"""Most connections at a time; others are closed at once."""

_REQUEST_SECONDS: Final = 2.0
_MOST_BYTES: Final = 4096
"""Most bytes read of a request: only the first line matters, and a proxy's header may precede it."""
_LOOK_SECONDS: Final = 0.05
_FIRST_LINE: Final = re.compile(rb"(?:GET|HEAD) (/[^ ?]*)[^ ]* HTTP/1\.[01]\r$")


class StandIn:
    """Answers at one listening socket, with TLS if there is a context."""

    def __init__(self, listening: socket.socket, context: Callable[[], ssl.SSLContext | None]) -> None:
        self._listening = listening
        self._context = context
        self._open = 0

    def serve_if(self, appending: Callable[[], bool], held: Callable[[], float]) -> None:
        """Answer for as long as an append holds the loop; the thread that watches the loop calls this."""
        if held() < HELD_SECONDS or not appending():
            return
        logger.error("the disk has not answered for %.1f s and holds the event loop", held())
        with contextlib.suppress(OSError):  # the door is closed, or the hub has no descriptor left
            asyncio.run(self._serve(held))

    async def _serve(self, held: Callable[[], float]) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open += 1
            try:
                if self._open <= MAX_CONNECTIONS:
                    async with asyncio.timeout(_REQUEST_SECONDS):
                        writer.write(answered(await reader.readuntil(b"\n"), held()))
                        await writer.drain()
            except (OSError, EOFError, asyncio.LimitOverrunError):
                pass
            finally:
                self._open -= 1
                writer.close()

        # The event loop keeps the socket itself; closing this server closes only a copy.
        copy = self._listening.dup()
        server = await asyncio.start_server(answer, sock=copy, ssl=self._context(), limit=_MOST_BYTES)
        async with server:
            while held() >= HELD_SECONDS:  # noqa: ASYNC110 -- the other thread's loop gives no notice
                await asyncio.sleep(_LOOK_SECONDS)


def answered(line: bytes, held: float) -> bytes:
    """Return the answer to a request, by its first line."""
    asked = _FIRST_LINE.search(line.rstrip(b"\n"))
    why = f"the disk has not answered for {held:.0f} s"
    facts: dict[str, object]
    if asked is not None and asked[1] == b"/healthz":
        status, facts = "200 OK", {"status": "ok", "reason": why}
    else:
        status, facts = "503 Service Unavailable", {"ready": False, "reason": why}
    body = b"" if line.startswith(b"HEAD") else msgspec.json.encode(facts)
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Retry-After: 1\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
