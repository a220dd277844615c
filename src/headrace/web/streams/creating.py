"""Creating, forking, deleting and describing streams: ``PUT``, ``DELETE`` and ``HEAD``."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from aiohttp import hdrs, web

from headrace.hub.access.principal import Action
from headrace.hub.streams import streams as entries
from headrace.hub.streams.stream import MAX_INHERITED, ForkOrigin, Shape, Stream
from headrace.hub.streams.streams import STREAM_BYTES, Appended
from headrace.net.server.process import Server
from headrace.web.access.rights import check
from headrace.web.refusals import refusal
from headrace.web.streams.bodies import json_values
from headrace.web.streams.judged_changes import JudgedChanges, OvertakenError
from headrace.web.streams.offsets import write_offset
from headrace.web.streams.receiving import charged, count_values, message_of, read_body, store
from headrace.web.streams.requests import DEFAULT_TYPE, ForkRequest, bad, fork_of, problem, shape_of, topic_of
from headrace.web.streams.usable import UsableStreams, time_now


class StreamCreation:
    """Creates and deletes the streams of one hub, as requests ask for it."""

    def __init__(self, server: Server, streams: UsableStreams, changes: JudgedChanges) -> None:
        self._server = server
        self._streams = server.parts.streams
        self._usable = streams
        self._changes = changes

    async def put(self, request: web.Request) -> web.Response:
        """Create a stream, or find that it exists as requested."""
        topic = topic_of(request.path)
        check(self._server.access, request, Action.PUBLISH, topic)
        asked = fork_of(request)
        if asked is not None:
            check(self._server.access, request, Action.READ, asked.topic)
        body = await read_body(self._server, request)
        async with self._changes.turn(topic):
            while (known := self._usable.live(topic, now := time_now())) is None:
                with suppress(OvertakenError):
                    await self._create(request, topic, asked, body, now)
                    created = self._usable.live(topic, time_now())
                    if created is None:
                        raise refusal(web.HTTPTooManyRequests, "there are too many streams")
                    return described(request, created, 201)
            if known.deleted:
                raise problem(409, "the stream is deleted, and kept for its forks")
            source = None if asked is None else self._source(asked, now)
            fork = None if asked is None else self._place(asked, source, known)
            if not known.shape.agrees(shape_of(request, fork, None if source is None else source.shape)):
                raise problem(409, "the stream exists with another configuration")
            return described(request, known, 200)

    async def _create(
        self, request: web.Request, topic: str, asked: ForkRequest | None, body: bytes, now: int
    ) -> None:
        changes = self._changes.known(topic, 0)
        source = None if asked is None else self._source(asked, now)
        fork, prefix = None, b""
        if asked is not None and source is not None:
            self._usable.check_reads(request, source)
            fork = self._place(asked, source, None)
            if len(source.ranges_until(fork.upto)) > MAX_INHERITED:
                raise problem(409, f"a fork has messages of {MAX_INHERITED} sources at most, one of another")
            if fork.part:
                prefix = await self._part(source, fork)
        shape = shape_of(request, fork, None if source is None else source.shape)
        if source is not None and shape.media_type != source.shape.media_type:
            raise problem(409, f"the source is a stream of {source.shape.media_type}")
        batches = [entries.create(topic, shape, now)]
        if prefix:
            batches.append(message_of(self._server, request, topic, prefix))
        if body and not (shape.is_json and not count_values(body)):
            batches.append(message_of(self._server, request, topic, body))
        if shape.closed:
            batches.append(entries.append(topic, Appended(closes=True), now))
        with charged(self._server, request, topic, STREAM_BYTES):
            await self._changes.commit_next(topic, 0, changes, batches)

    def _source(self, asked: ForkRequest, now: int) -> Stream:
        source = self._usable.live(asked.topic, now)
        if source is None:
            raise problem(404, f"there is no stream {asked.topic}")
        if source.deleted:
            raise problem(409, f"the stream {asked.topic} is deleted")
        return source

    def _place(self, asked: ForkRequest, source: Stream | None, known: Stream | None) -> ForkOrigin:
        """Return where a fork leaves its source: by default at its end now, or at its end when the fork was made."""
        upto = asked.upto
        if upto is None:
            before = None if known is None else known.shape.fork
            upto = before.upto if before is not None else 0 if source is None else source.tail
        elif source is not None and upto > source.tail:
            raise bad("Stream-Fork-Offset is past the end of the source")
        return ForkOrigin(asked.topic, upto, asked.part)

    async def _part(self, source: Stream, fork: ForkOrigin) -> bytes:
        """Return the part of the message after the fork's place that the fork begins with."""
        page = await self._usable.reader.read(source, fork.upto, most=1)
        if not page.messages:
            raise bad("Stream-Fork-Sub-Offset: nothing comes after Stream-Fork-Offset")
        payload = page.messages[0].payload
        if not source.shape.is_json:
            if fork.part > len(payload):
                raise bad(f"Stream-Fork-Sub-Offset: the append there has {len(payload)} bytes")
            return payload[: fork.part]
        values = json_values(payload)
        if fork.part > len(values):
            raise bad(f"Stream-Fork-Sub-Offset: the append there has {len(values)} values")
        return b"[" + b",".join(bytes(value) for value in values[: fork.part]) + b"]"

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a stream."""
        topic = topic_of(request.path)
        check(self._server.access, request, Action.PUBLISH, topic)
        await self._usable.existing(topic)
        async with self._changes.turn(topic):
            now = time_now()
            # A topic that nobody created as a stream is created first, so that it can be deleted.
            made = [] if self._streams.get(topic) else [entries.create(topic, Shape(DEFAULT_TYPE), now)]
            await store(self._server, [*made, entries.delete(topic, now)])
        return web.Response(status=204)

    async def head(self, request: web.Request) -> web.Response:
        """Describe a stream."""
        topic = topic_of(request.path)
        check(self._server.access, request, Action.READ, topic)
        stream = await self._usable.existing(topic)
        self._usable.check_reads(request, stream)
        return described(request, stream, 200)


def described(request: web.Request, stream: Stream, status: int) -> web.Response:
    """Make the answer that describes a stream in its headers."""
    shape = stream.shape
    headers = {"Stream-Next-Offset": write_offset(stream.tail), "Cache-Control": "no-store"}
    if status == 201:
        headers["Location"] = str(request.url.with_query(None))
    if shape.ttl is not None:
        headers["Stream-TTL"] = str(shape.ttl)
    if shape.expires is not None:
        moment = datetime.fromtimestamp(shape.expires / 1e6, UTC)
        headers["Stream-Expires-At"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if stream.closed:
        headers["Stream-Closed"] = "true"
    response = web.Response(status=status, headers=headers)
    response.headers[hdrs.CONTENT_TYPE] = shape.content_type
    return response
