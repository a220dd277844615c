"""The streams that requests can use: those that were created, and topics that have messages."""

from __future__ import annotations

from time import time

import msgspec
from aiohttp import web

from headrace.hub.access.principal import Action
from headrace.hub.streams.stream import Stream
from headrace.net.server.process import Server
from headrace.web.access.rights import check
from headrace.web.streams.offsets import write_offset
from headrace.web.streams.pages import StreamReader
from headrace.web.streams.requests import problem


class UsableStreams:
    """The streams of one hub, as requests find them."""

    def __init__(self, server: Server) -> None:
        self.reader = StreamReader(server)
        self._server = server
        self._streams = server.parts.streams

    def check_reads(self, request: web.Request, stream: Stream) -> None:
        """Refuse a fork to a client that may not read all of its sources, since messages keep their topics."""
        for topic in {each.topic for each in stream.inherited}:
            check(self._server.access, request, Action.READ, topic, told=False)

    def live(self, topic: str, now: int) -> Stream | None:
        """Return a stream that was created and has not expired; one that has forks counts as deleted instead."""
        stream = self._streams.get(topic)
        if stream is not None and not stream.deleted and stream.is_expired(now):
            return None if not stream.forks else msgspec.structs.replace(stream, deleted=True)
        return stream

    async def existing(self, topic: str) -> Stream:
        """Return a stream that was created, or a topic that has messages, as a stream; raise the answer if neither."""
        stream = self.live(topic, time_now())
        if stream is None and self._streams.get(topic) is None:
            stream = await self.reader.topic_as_stream(topic, self._streams.forgotten(topic))
        return usable(topic, stream)


def usable(topic: str, stream: Stream | None) -> Stream:
    """Return a stream unless there is none or it is deleted; then raise the answer."""
    if stream is None:
        raise problem(404, f"there is no stream {topic}: create it with PUT, or publish under this topic")
    if stream.deleted:
        raise problem(410, "the stream is deleted")
    return stream


def is_closed(stream: Stream) -> web.HTTPError:
    """Make the answer to an append to a closed stream."""
    headers = {"Stream-Closed": "true", "Stream-Next-Offset": write_offset(stream.tail)}
    return problem(409, "the stream is closed", headers)


def time_now() -> int:
    """Return the time in µs since 1970."""
    return int(time() * 1_000_000)
