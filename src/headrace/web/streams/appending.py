"""Appending to streams, ``POST /v1/stream/TOPIC``, and publishing, ``POST /v1/publish/TOPIC``."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from aiohttp import web

from headrace.hub.access.principal import Action
from headrace.hub.sequencer import is_kept
from headrace.hub.streams import streams as entries
from headrace.hub.streams.stream import Stream, media_type
from headrace.hub.streams.streams import PRODUCER_BYTES, STREAM_BYTES, Appended
from headrace.message import Batch
from headrace.net.server.process import Server
from headrace.web.access.cross_origin import ATTRIBUTE
from headrace.web.access.rights import check
from headrace.web.answers import published
from headrace.web.streams.judged_changes import JudgedChanges, OvertakenError, is_repeat
from headrace.web.streams.offsets import write_offset
from headrace.web.streams.receiving import charged, count_values, is_json, message_of, read_body, store
from headrace.web.streams.requests import bad, closes, problem, producer_of, topic_of, writer_of
from headrace.web.streams.usable import UsableStreams, is_closed, time_now, usable

PUBLISH: Final = "/v1/publish/"


class Appending:
    """Appends what requests bring."""

    def __init__(self, server: Server, streams: UsableStreams, changes: JudgedChanges) -> None:
        self._server = server
        self._usable = streams
        self._changes = changes

    async def post(self, request: web.Request) -> web.Response:
        """Append to a stream, close it, or both."""
        topic = topic_of(request.path)
        check(self._server.access, request, Action.PUBLISH, topic)
        producer, writer, closing = producer_of(request), writer_of(request), closes(request)
        content_type = request.headers.get("Content-Type")
        body = await read_body(self._server, request)
        stream = await self._usable.existing(topic)
        if not body and not closing:
            raise bad("an append has a body")
        if body:
            if content_type is None:
                raise bad("say the Content-Type of what is appended")
            if stream.id and media_type(content_type) != stream.shape.media_type:
                raise problem(409, f"this is a stream of {stream.shape.media_type}")
            if stream.shape.is_json and not count_values(body):
                raise bad("an empty array appends nothing")
        if producer is None and writer is None and not closing and not stream.closed:
            appended = await store(self._server, [message_of(self._server, request, topic, body)])
            if is_kept(appended):
                return published(appended)
            return _appended(_with_append(await self._usable.existing(topic), appended), 204)
        async with self._changes.turn(topic):
            return await self._append(request, topic, body, Appended(producer, writer, closing))

    def takes_plainly(self, topic: str, content_type: str | None, body: bytes) -> bool:
        """Return whether an append needs no judgement: the stream was created, is open, and has the append's type."""
        stream = self._usable.live(topic, time_now())
        if stream is None or stream.deleted or stream.closed or not body or content_type is None:
            return False
        shape = stream.shape
        return media_type(content_type) == shape.media_type and not (shape.is_json and not is_json(body))

    def plainly_appended(self, topic: str, appended: Batch) -> Stream:
        """Return the stream after such an append was committed; raise the answer if the stream does not have it."""
        return _with_append(usable(topic, self._usable.live(topic, time_now())), appended)

    async def _append(self, request: web.Request, topic: str, body: bytes, append: Appended) -> web.Response:
        """Append something that depends on earlier appends."""
        while True:
            before = self._changes.known(topic, 0)
            stream, producer = await self._usable.existing(topic), append.producer
            changes = self._changes.known(topic, stream.id) if stream.id else before
            if producer is not None:
                try:
                    if is_repeat(stream, producer):
                        return _appended(stream, 204, producer.id)
                except (web.HTTPConflict, web.HTTPBadRequest):
                    if not await self._changes.caught_up(stream):
                        raise
                    continue
            if stream.closed:
                if not body and append.closes and producer is None:
                    return _appended(stream, 204)
                raise is_closed(stream)
            if append.writer is not None and stream.writer is not None and append.writer <= stream.writer:
                raise problem(409, f"Stream-Seq {append.writer} is not above {stream.writer}")
            now = time_now()
            batches = [] if stream.id else [entries.create(topic, stream.shape, now)]
            if body:
                batches.append(message_of(self._server, request, topic, body))
            batches.append(entries.append(topic, append, now))
            size = 0 if stream.id else STREAM_BYTES
            if producer is not None and producer.id not in stream.producers:
                size += PRODUCER_BYTES
            with suppress(OvertakenError), charged(self._server, request, topic, size):
                await self._changes.commit_next(topic, stream.id, changes, batches)
                break
            # Another node's change came first, and is known here by now: judge again.
        after = await self._usable.existing(topic)
        return _appended(after, 200 if producer and body else 204, producer.id if producer else "")

    async def publish(self, request: web.Request) -> web.Response:
        """Publish the request's body as one message."""
        topic = request.match_info["topic"]
        check(self._server.access, request, Action.PUBLISH, topic)
        body = await read_body(self._server, request)
        named = {
            **request.query,
            **{
                name[len(ATTRIBUTE) :]: value
                for name, value in request.headers.items()
                if name.lower().startswith(ATTRIBUTE)
            },
        }
        response = published(
            await store(self._server, [message_of(self._server, request, topic, body, named)])
        )
        response.headers["Cache-Control"] = "no-store"
        return response


def _appended(stream: Stream, status: int, producer: str = "") -> web.Response:
    headers = {"Stream-Next-Offset": write_offset(stream.tail), "Cache-Control": "no-store"}
    if stream.closed:
        headers["Stream-Closed"] = "true"
    if (known := stream.producers.get(producer)) is not None:
        headers |= {"Producer-Epoch": str(known.epoch), "Producer-Seq": str(known.seq)}
    return web.Response(status=status, headers=headers)


def _with_append(stream: Stream, appended: Batch) -> Stream:
    """Return a stream unless it was closed before an append, which is then a message of the topic alone."""
    if stream.closed and appended.last > stream.tail:
        raise is_closed(stream)
    return stream
