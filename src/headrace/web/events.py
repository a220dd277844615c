"""Server-sent events: changes are pushed to the pages that show them.

A page that takes nothing for a while is cut off, and opens the stream again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import msgspec
from aiohttp import web

from headrace.hub.access.accounts import Account

T = TypeVar("T")

RETRY: Final = b"retry: 1000\n\n"

_LOOK_SECONDS: Final = 1.0
_KEEPALIVE_SECONDS: Final = 15.0
"""Seconds without an event after which a comment keeps proxies from closing the stream."""


class EventStream:
    """One open stream of events."""

    def __init__(
        self,
        request: web.Request,
        response: web.StreamResponse,
        seconds: float,
        account: Callable[[], Account],
        has_left: Callable[[], bool],
    ) -> None:
        self._request = request
        self._has_left = has_left
        self._response = response
        self._account = account
        self._seconds = seconds
        self._sent_at = asyncio.get_running_loop().time()

    async def send(self, event: str, data: object) -> None:
        """Send one event; raises when the page is gone, or takes nothing."""
        body = msgspec.json.encode(data)
        await self._write(b"event: " + event.encode() + b"\ndata: " + body + b"\n\n")

    async def keep_alive(self) -> None:
        """Send a comment now and then when there is nothing else to send."""
        self._check_reader()
        if asyncio.get_running_loop().time() - self._sent_at >= _KEEPALIVE_SECONDS:
            await self._write(b":\n\n")

    def _check_reader(self) -> None:
        if self._has_left():
            raise ConnectionResetError("the reader has logged out")

    async def _write(self, data: bytes) -> None:
        self._check_reader()
        await count_sent(self._request, self._account(), len(data))
        async with asyncio.timeout(self._seconds):
            await self._response.write(data)
        self._sent_at = asyncio.get_running_loop().time()


async def count_sent(request: web.Request, account: Account, size: int) -> None:
    """Count an event that is about to be sent; wait first while the client's rate is used up."""
    now = asyncio.get_running_loop().time
    if account.wait_to_send(now()) > 0:
        account.paused += 1
    while (pause := account.wait_to_send(now())) > 0:
        # A page that has gone meanwhile holds no place.
        await asyncio.sleep(min(pause, _LOOK_SECONDS))
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the page is gone")
    account.send(size, now())


def event_response() -> web.StreamResponse:
    """Make an answer that will be a stream of events."""
    return web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


@asynccontextmanager
async def streaming(
    request: web.Request,
    response: web.StreamResponse,
    seconds: float,
    account: Callable[[], Account],
    has_left: Callable[[], bool],
) -> AsyncIterator[EventStream]:
    """Answer a request with events for as long as the block runs, and its reader is there and logged in."""
    await response.prepare(request)
    await response.write(RETRY)
    try:
        yield EventStream(request, response, seconds, account, has_left)
        async with asyncio.timeout(seconds):
            await response.write_eof()
    except (ConnectionError, TimeoutError):
        # The page is gone or asleep; it comes back by itself.
        if request.transport is not None:
            request.transport.abort()


class NextValue(Generic[T]):
    """A value that changes regularly; many tasks wait for the next one."""

    def __init__(self) -> None:
        self._next: asyncio.Future[T] | None = None

    def set(self, value: T) -> None:
        """Give the next value to all waiting tasks."""
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(value)

    async def next(self) -> T:
        """Wait for the next value."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        # Shielded: a task that stops waiting must not cancel the future of the others.
        return await asyncio.shield(self._next)
