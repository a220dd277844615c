"""The routes of ``/v1/stream/TOPIC``, which speak the Durable Streams protocol, and of ``/v1/publish/TOPIC``.

An append is a message of the one sequence, and its offset is its number. So a topic's stream also has the messages that
other doors publish on the topic. A topic that has messages is a stream even if nobody created it: a stream of bytes,
open, without an end.

Some changes depend on earlier ones: appends of a producer or a writer, an append that closes, the creation. They wait
for one another, stream by stream, so that each is judged by a state that has the previous one
(:mod:`~headrace.web.streams.judged_changes`).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from headrace.net.server.process import Server
from headrace.web.streams.appending import PUBLISH, Appending
from headrace.web.streams.creating import StreamCreation
from headrace.web.streams.judged_changes import JudgedChanges
from headrace.web.streams.reading import StreamReading
from headrace.web.streams.requests import PREFIX
from headrace.web.streams.usable import UsableStreams


class StreamDoor:
    """The streams of one hub over HTTP."""

    def __init__(self, server: Server) -> None:
        self._stopping = asyncio.Event()
        streams, changes = UsableStreams(server), JudgedChanges(server, self._stopping)
        self.appending = Appending(server, streams, changes)
        self._creation = StreamCreation(server, streams, changes)
        self._reading = StreamReading(server, streams, self._stopping)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        path = PREFIX + "{topic:.+}"
        return [
            web.put(path, self._creation.put),
            web.post(path, self.appending.post),
            web.get(path, self._reading.get, allow_head=False),
            web.head(path, self._creation.head),
            web.delete(path, self._creation.delete),
            web.post(PUBLISH + "{topic:.*}", self.appending.publish),
        ]

    async def stop(self, _app: web.Application) -> None:
        """End all waiting reads."""
        self._stopping.set()
