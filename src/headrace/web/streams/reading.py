"""Reading streams, ``GET /v1/stream/TOPIC``: a page at once, a page once there is one, or events as they come."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import time
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from headrace.hub.access.principal import Action
from headrace.hub.streams import streams as entries
from headrace.hub.streams.stream import Shape, Stream
from headrace.net.server.process import Server
from headrace.web.access.rights import check, principal_of
from headrace.web.events import count_sent
from headrace.web.stream_holder import held
from headrace.web.streams.bodies import event_lines, is_encoded, joined
from headrace.web.streams.offsets import next_cursor, write_offset
from headrace.web.streams.pages import Page
from headrace.web.streams.receiving import store
from headrace.web.streams.requests import ReadRequest, read_of, topic_of
from headrace.web.streams.usable import UsableStreams, time_now
from headrace.web.streams.watching import Watch

_EVENTS_SECONDS: Final = 60.0
"""Seconds after which a stream of events ends, so that a proxy can join its readers; they reconnect by themselves."""

_TOUCH_SHARE: Final = 10
"""A read extends a stream's life only once a tenth of its time has passed, so that few reads become log entries."""


class StreamReading:
    """Answers the reads of one hub's streams."""

    def __init__(self, server: Server, streams: UsableStreams, stopping: asyncio.Event) -> None:
        self._server = server
        self._streams = server.parts.streams
        self._usable = streams
        self._stopping = stopping

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer a read."""
        topic = topic_of(request.path)
        check(self._server.access, request, Action.READ, topic)
        asked, stream = read_of(request), await self._usable.existing(topic)
        self._usable.check_reads(request, stream)
        await self._touch(stream)
        if asked.live == "sse":
            with held(self._server.access, request):
                return await self._events(request, topic, stream, asked)
        after = stream.tail if asked.now else asked.after
        if asked.live:
            with held(self._server.access, request):
                return await self._poll(request, topic, stream, after, asked)
        if asked.now:
            page = Page([], stream.tail, up_to_date=True, closed=stream.closed)
        else:
            page = await self._usable.reader.read(stream, after)
        return self._page(request, stream, after, page, asked)

    def _page(
        self,
        request: web.Request,
        stream: Stream,
        after: int | None,
        page: Page,
        asked: ReadRequest,
        status: int = 200,
    ) -> web.Response:
        headers = {"Stream-Next-Offset": write_offset(page.upto)}
        closed = page.closed
        if page.up_to_date:
            headers["Stream-Up-To-Date"] = "true"
        if closed:
            headers["Stream-Closed"] = "true"
        if asked.live and not closed:
            headers["Stream-Cursor"] = next_cursor(time(), asked.cursor)
        if asked.now or status == 204:
            headers["Cache-Control"] = "no-store"
        else:
            # The messages before an offset never change, but there may be more after it at any time.
            headers["Cache-Control"] = (
                "private, max-age=60, stale-while-revalidate=300" if asked.live else "no-cache"
            )
            begin = "start" if after is None else str(after)
            headers["ETag"] = f'"{stream.id}:{begin}:{page.upto}{":closed" if closed else ""}"'
            if request.headers.get("If-None-Match") == headers["ETag"]:
                return web.Response(status=304, headers=headers)
        response = web.Response(status=status, headers=headers)
        if status == 200:
            response.body = joined(stream.shape, page.messages)
            response.headers[hdrs.CONTENT_TYPE] = stream.shape.content_type
        return response

    async def _poll(
        self, request: web.Request, topic: str, stream: Stream, after: int | None, asked: ReadRequest
    ) -> web.Response:
        """Answer once there is a message after ``after``, or after a while without one."""
        deadline = asyncio.get_running_loop().time() + self._server.settings.limits.poll_seconds
        with Watch(self._streams, topic) as watch:
            while True:
                page = await self._usable.reader.read(stream, after)
                if page.messages:
                    return self._page(request, stream, after, page, asked)
                if page.closed or not await watch.changed(deadline, self._stopping):
                    return self._page(request, stream, after, page, asked, 204)
                stream = await self._usable.existing(topic)
                self._usable.check_reads(request, stream)

    async def _events(
        self, request: web.Request, topic: str, stream: Stream, asked: ReadRequest
    ) -> web.StreamResponse:
        """Send existing and new messages as events."""
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        if is_encoded(stream.shape):
            headers["Stream-SSE-Data-Encoding"] = "base64"
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        deadline = asyncio.get_running_loop().time() + _EVENTS_SECONDS
        after = stream.tail if asked.now else asked.after
        said, cursor = False, asked.cursor
        with Watch(self._streams, topic) as watch, suppress(ConnectionError, web.HTTPException):
            while True:
                page = await self._usable.reader.read(stream, after)
                closed = page.closed
                if page.messages or closed or not said:
                    cursor = next_cursor(time(), cursor)
                    await self._send(request, response, _event_text(stream.shape, page, closed, cursor))
                    after, said = page.upto, True
                if closed or (page.up_to_date and not await watch.changed(deadline, self._stopping)):
                    break
                stream = await self._usable.existing(topic)
                self._usable.check_reads(request, stream)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, text: str) -> None:
        data = text.encode()
        account = self._server.accounts.of(principal_of(request), str(request.remote))
        await count_sent(request, account, len(data))
        try:
            async with asyncio.timeout(self._server.settings.limits.slow_seconds):
                await response.write(data)
        except TimeoutError:
            # The reader is gone or asleep; it will reconnect by itself.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the reader takes nothing") from None

    async def _touch(self, stream: Stream) -> None:
        ttl, now = stream.shape.ttl, time_now()
        if stream.id and ttl is not None and now - stream.touched > ttl * 1_000_000 // _TOUCH_SHARE:
            await store(self._server, [entries.touch(stream.topic, now)])


def _event_text(shape: Shape, page: Page, closed: bool, cursor: str) -> str:
    lines: list[str] = []
    if page.messages:
        lines += ["event: data", *(f"data:{line}" for line in event_lines(shape, page.messages)), ""]
    control: dict[str, Any] = {"streamNextOffset": write_offset(page.upto)}
    if closed:
        control["streamClosed"] = True
    else:
        control["streamCursor"] = cursor
    if page.up_to_date:
        control["upToDate"] = True
    return "\n".join([*lines, "event: control", f"data:{msgspec.json.encode(control).decode()}", "", ""])
