"""Pages of a stream: threads read its messages, range by range, a limited amount at a time."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiohttp import web

from headrace.hub.filtered_read import read_passing
from headrace.hub.filters import Filter
from headrace.hub.streams.stream import Range, Shape, Stream
from headrace.message import Message, messages
from headrace.net.server.process import Server
from headrace.web.log_reading import in_thread
from headrace.web.refusals import refusal
from headrace.web.search import SearchBackward
from headrace.web.streams.requests import DEFAULT_TYPE

PAGE_BYTES: Final = 1 << 20
"""Approximate bytes of messages in one answer."""

_STEP_BYTES: Final = 1 << 20
_ROOM: Final = 16 << 20


class Page(NamedTuple):
    """Consecutive messages of a stream."""

    messages: list[Message]
    upto: int
    """The message that the next page begins after."""
    up_to_date: bool
    """Whether there were no more messages."""
    closed: bool = False
    """Whether there never will be more messages."""


class StreamReader:
    """Reads the streams of one hub."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._log = server.hub.log

    async def read(self, stream: Stream, after: int | None, most: int | None = None) -> Page:
        """Read a page of a stream after a message, or from its beginning.

        The stream may grow, and be closed, while threads read; the page shows it as it was before.
        """
        found: list[Message] = []
        size = 0
        ranges, tail, closed = stream.ranges(), stream.tail, stream.closed
        upto = (ranges[0].after if after is None else after) if ranges else tail
        for topic, begin, last in ranges:
            at = max(begin, -1 if after is None else after)
            if at + 1 < self._log.first <= last:
                if after is not None and at >= begin:
                    raise refusal(web.HTTPGone, f"messages before {self._log.first} are no longer kept")
                at = self._log.first - 1
            while at < last:
                passing, at = await in_thread(self._server, self._step, Range(topic, at, last), at=at + 1)
                for message in passing:
                    found.append(message)
                    size += len(message.payload)
                    upto = message.seq
                    if size >= PAGE_BYTES or len(found) == most:
                        return Page(found, upto, upto >= tail, closed and upto >= tail)
        return Page(found, max(upto, tail), True, closed)

    async def topic_as_stream(self, topic: str, after: int) -> Stream | None:
        """Return a topic as a stream if it has messages after ``after``."""
        first = max(after + 1, self._log.first)
        search = SearchBackward(self._log, Filter(topic), first, self._log.head, 1)
        while not await in_thread(self._server, search.step, at=search.at):
            pass
        if not search.found:
            return None
        return Stream(topic, 0, Shape(DEFAULT_TYPE), first - 1, search.found[-1].seq, 0)

    def _step(self, wanted: Range) -> tuple[list[Message], int]:
        """Read some messages of a range; for a thread."""
        passing = read_passing(
            self._log, wanted.after + 1, wanted.upto, Filter(wanted.topic), _STEP_BYTES, _ROOM
        )
        return [message for rows in passing.rows for message in messages(rows)], passing.upto
