"""The handlers of ``/v1/stream/TOPIC``, as the Durable Streams protocol has them, and of ``/v1/publish/TOPIC``.

An append is a message of the one sequence, and its offset is its number, so what other doors publish on a topic stands
in its stream. A topic that has messages is a stream, though nobody created it: of bytes, open, without an end.

Changes that depend on what was before (an append of a producer or a writer, one that closes, the creation) wait for one
another, stream by stream: each is judged by a state that has the one before
(:mod:`~headrace.web.streams.judged_changes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from math import ceil
from time import time
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from aiohttp import hdrs, web

from headrace.errors import FullError, StorageError
from headrace.hub.access.principal import Action
from headrace.hub.sequencer import is_kept
from headrace.hub.streams import streams as entries
from headrace.hub.streams.stream import (
    MAX_INHERITED,
    ForkOrigin,
    Shape,
    Stream,
    media_type,
)
from headrace.hub.streams.streams import PRODUCER_BYTES, STREAM_BYTES, Appended
from headrace.message import Batch
from headrace.net.server.process import Server
from headrace.web.access.cross_origin import ATTRIBUTE
from headrace.web.access.rights import check, principal_of
from headrace.web.answers import published
from headrace.web.events import count_sent
from headrace.web.publishing import committed, message_batch
from headrace.web.refusals import refusal
from headrace.web.stream_holder import held
from headrace.web.streams.bodies import NO_JSON, event_lines, is_encoded, joined, json_values
from headrace.web.streams.judged_changes import JudgedChanges, OvertakenError, is_repeat
from headrace.web.streams.offsets import next_cursor, write_offset
from headrace.web.streams.reading import Page, StreamReader
from headrace.web.streams.requests import (
    DEFAULT_TYPE,
    PREFIX,
    ForkRequest,
    ReadRequest,
    bad,
    closes,
    fork_of,
    problem,
    producer_of,
    read_of,
    shape_of,
    topic_of,
    writer_of,
)
from headrace.web.streams.watching import Watch

PUBLISH: Final = "/v1/publish/"

_EVENTS_SECONDS: Final = 60.0
"""Seconds after which a stream of events ends, so that a proxy can join its readers; they come back by themselves."""

_SLOWEST_RATE: Final = 1 << 16
"""Bytes of a body in a second, at least."""

_TOUCH_SHARE: Final = 10
"""A stream is made younger by a read once a tenth of its time has passed: not every read is an entry of the log."""


class StreamDoor:
    """The streams of one hub over HTTP."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams = server.parts.streams
        self._reader = StreamReader(server)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stopping = asyncio.Event()
        self._changes = JudgedChanges(server, self._stopping)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        path = PREFIX + "{topic:.+}"
        return [
            web.put(path, self._put),
            web.post(path, self._post),
            web.get(path, self._get, allow_head=False),
            web.head(path, self._head),
            web.delete(path, self._delete),
            web.post(PUBLISH + "{topic:.*}", self._publish),
        ]

    async def stop(self, _app: web.Application) -> None:
        """End the reads that wait."""
        self._stopping.set()

    # Creating, deleting, describing

    async def _put(self, request: web.Request) -> web.Response:
        topic = topic_of(request.path)
        check(self._server.access, request, Action.PUBLISH, topic)
        asked = fork_of(request)
        if asked is not None:
            check(self._server.access, request, Action.READ, asked.topic)
        body = await self._body(request)
        async with self._turn(topic):
            while (known := self._live(topic, now := _now())) is None:
                with suppress(OvertakenError):
                    await self._create(request, topic, asked, body, now)
                    created = self._live(topic, _now())
                    if created is None:
                        raise refusal(web.HTTPTooManyRequests, "there are too many streams")
                    return self._described(request, created, 201)
            if known.deleted:
                raise problem(409, "the stream is deleted, and kept for its forks")
            source = None if asked is None else self._source(asked, now)
            fork = None if asked is None else self._place(asked, source, known)
            if not known.shape.agrees(shape_of(request, fork, None if source is None else source.shape)):
                raise problem(409, "the stream exists with another configuration")
            return self._described(request, known, 200)

    async def _create(
        self, request: web.Request, topic: str, asked: ForkRequest | None, body: bytes, now: int
    ) -> None:
        changes = self._changes.known(topic, 0)
        source = None if asked is None else self._source(asked, now)
        fork, prefix = None, b""
        if asked is not None and source is not None:
            self._check_reads(request, source)
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
            batches.append(self._message(request, topic, prefix))
        if body and not (shape.is_json and not _checked_json(body)):
            batches.append(self._message(request, topic, body))
        if shape.closed:
            batches.append(entries.append(topic, Appended(closes=True), now))
        with self._charged(request, topic, STREAM_BYTES):
            await self._changes.commit_next(topic, 0, changes, batches)

    def _source(self, asked: ForkRequest, now: int) -> Stream:
        source = self._live(asked.topic, now)
        if source is None:
            raise problem(404, f"there is no stream {asked.topic}")
        if source.deleted:
            raise problem(409, f"the stream {asked.topic} is deleted")
        return source

    def _place(self, asked: ForkRequest, source: Stream | None, known: Stream | None) -> ForkOrigin:
        """Return where a fork leaves its source; by default at the end it has, or had when the fork was made."""
        upto = asked.upto
        if upto is None:
            before = None if known is None else known.shape.fork
            upto = before.upto if before is not None else 0 if source is None else source.tail
        elif source is not None and upto > source.tail:
            raise bad("Stream-Fork-Offset is past the end of the source")
        return ForkOrigin(asked.topic, upto, asked.part)

    async def _part(self, source: Stream, fork: ForkOrigin) -> bytes:
        """Return the beginning of the message after the place of a fork."""
        page = await self._reader.read(source, fork.upto, most=1)
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

    async def _delete(self, request: web.Request) -> web.Response:
        topic = topic_of(request.path)
        check(self._server.access, request, Action.PUBLISH, topic)
        await self._existing(topic)
        async with self._turn(topic):
            now = _now()
            # A topic that was a stream by its messages alone becomes one that can be deleted.
            made = [] if self._streams.get(topic) else [entries.create(topic, Shape(DEFAULT_TYPE), now)]
            await self._commit([*made, entries.delete(topic, now)])
        return web.Response(status=204)

    async def _head(self, request: web.Request) -> web.Response:
        topic = topic_of(request.path)
        check(self._server.access, request, Action.READ, topic)
        stream = await self._existing(topic)
        self._check_reads(request, stream)
        return self._described(request, stream, 200)

    def _described(self, request: web.Request, stream: Stream, status: int) -> web.Response:
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

    # Appending

    async def _post(self, request: web.Request) -> web.Response:
        topic = topic_of(request.path)
        check(self._server.access, request, Action.PUBLISH, topic)
        producer, writer, closing = producer_of(request), writer_of(request), closes(request)
        content_type = request.headers.get("Content-Type")
        body = await self._body(request)
        stream = await self._existing(topic)
        if not body and not closing:
            raise bad("an append has a body")
        if body:
            if content_type is None:
                raise bad("say the Content-Type of what is appended")
            if stream.id and media_type(content_type) != stream.shape.media_type:
                raise problem(409, f"this is a stream of {stream.shape.media_type}")
            if stream.shape.is_json and not _checked_json(body):
                raise bad("an empty array appends nothing")
        if producer is None and writer is None and not closing and not stream.closed:
            appended = await self._commit([self._message(request, topic, body)])
            if is_kept(appended):
                return published(appended)
            return self._appended(_with_append(await self._existing(topic), appended), 204)
        async with self._turn(topic):
            return await self._append(request, topic, body, Appended(producer, writer, closing))

    def takes_plainly(self, topic: str, content_type: str | None, body: bytes) -> bool:
        """Whether an append that depends on nothing before it can be taken as it is, to a stream that was created."""
        stream = self._live(topic, _now())
        if stream is None or stream.deleted or stream.closed or not body or content_type is None:
            return False
        shape = stream.shape
        return media_type(content_type) == shape.media_type and not (shape.is_json and not _is_json(body))

    def plainly_appended(self, topic: str, appended: Batch) -> Stream:
        """Return the stream that has such an append by now; raise the answer if it does not."""
        return _with_append(_usable(topic, self._live(topic, _now())), appended)

    async def _append(self, request: web.Request, topic: str, body: bytes, append: Appended) -> web.Response:
        """Append what depends on the appends before it."""
        while True:
            before = self._changes.known(topic, 0)
            stream, producer = await self._existing(topic), append.producer
            changes = self._changes.known(topic, stream.id) if stream.id else before
            if producer is not None:
                try:
                    if is_repeat(stream, producer):
                        return self._appended(stream, 204, producer.id)
                except (web.HTTPConflict, web.HTTPBadRequest):
                    if not await self._changes.caught_up(stream):
                        raise
                    continue
            if stream.closed:
                if not body and append.closes and producer is None:
                    return self._appended(stream, 204)
                raise _is_closed(stream)
            if append.writer is not None and stream.writer is not None and append.writer <= stream.writer:
                raise problem(409, f"Stream-Seq {append.writer} is not above {stream.writer}")
            now = _now()
            batches = [] if stream.id else [entries.create(topic, stream.shape, now)]
            if body:
                batches.append(self._message(request, topic, body))
            batches.append(entries.append(topic, append, now))
            size = 0 if stream.id else STREAM_BYTES
            if producer is not None and producer.id not in stream.producers:
                size += PRODUCER_BYTES
            with suppress(OvertakenError), self._charged(request, topic, size):
                await self._changes.commit_next(topic, stream.id, changes, batches)
                break
            # Another node was first. What it has changed is known here by now: judge again.
        after = await self._existing(topic)
        return self._appended(after, 200 if producer and body else 204, producer.id if producer else "")

    @contextmanager
    def _charged(self, request: web.Request, topic: str, size: int) -> Iterator[None]:
        """Charge what a stream grows by to the client, or refuse it."""
        account = self._server.accounts.of(principal_of(request), str(request.remote))
        has, most = account.state_bytes + account.state_pending, account.most_state_bytes
        if size and has + size > most:
            account.refused += 1
            detail = f"the client has {has} bytes of state of {most} (limits.state_bytes_per_client)"
            self._server.hub.counters.refuse("http", "state_bytes", str(request.remote), detail)
            raise refusal(web.HTTPTooManyRequests, detail)
        account.state_pending += size
        try:
            yield
        finally:
            account.state_pending -= size
        if size:
            self._streams.charge(topic, account, size)

    def _appended(self, stream: Stream, status: int, producer: str = "") -> web.Response:
        headers = {"Stream-Next-Offset": write_offset(stream.tail), "Cache-Control": "no-store"}
        if stream.closed:
            headers["Stream-Closed"] = "true"
        if (known := stream.producers.get(producer)) is not None:
            headers |= {"Producer-Epoch": str(known.epoch), "Producer-Seq": str(known.seq)}
        return web.Response(status=status, headers=headers)

    async def _publish(self, request: web.Request) -> web.Response:
        """Publish whatever comes as one message."""
        topic = request.match_info["topic"]
        check(self._server.access, request, Action.PUBLISH, topic)
        body = await self._body(request)
        named = {
            **request.query,
            **{
                name[len(ATTRIBUTE) :]: value
                for name, value in request.headers.items()
                if name.lower().startswith(ATTRIBUTE)
            },
        }
        response = published(await self._commit([self._message(request, topic, body, named)]))
        response.headers["Cache-Control"] = "no-store"
        return response

    def _message(
        self, request: web.Request, topic: str, body: bytes, attributes: dict[str, str] | None = None
    ) -> Batch:
        most = self._server.settings.limits.message_bytes
        if len(body) > most:
            raise web.HTTPRequestEntityTooLarge(most, len(body))
        if not attributes:
            return message_batch(request, topic, body)
        if len(attributes) > (limit := self._server.settings.limits.attributes):
            raise bad(f"a message has at most {limit} attributes")
        return message_batch(request, topic, body, *_sorted(attributes))

    # Reading

    async def _get(self, request: web.Request) -> web.StreamResponse:
        topic = topic_of(request.path)
        check(self._server.access, request, Action.READ, topic)
        asked, stream = read_of(request), await self._existing(topic)
        self._check_reads(request, stream)
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
            page = await self._reader.read(stream, after)
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
            # What stands before an offset never changes; that there is no more may change at once.
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
        """Answer when there is something after ``after``, or after a while that there is nothing."""
        deadline = asyncio.get_running_loop().time() + self._server.settings.limits.poll_seconds
        with Watch(self._streams, topic) as watch:
            while True:
                page = await self._reader.read(stream, after)
                if page.messages:
                    return self._page(request, stream, after, page, asked)
                if page.closed or not await watch.changed(deadline, self._stopping):
                    return self._page(request, stream, after, page, asked, 204)
                stream = await self._existing(topic)
                self._check_reads(request, stream)

    async def _events(
        self, request: web.Request, topic: str, stream: Stream, asked: ReadRequest
    ) -> web.StreamResponse:
        """Send what there is, and what comes, as events."""
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
                page = await self._reader.read(stream, after)
                closed = page.closed
                if page.messages or closed or not said:
                    cursor = next_cursor(time(), cursor)
                    await self._send(request, response, _event_text(stream.shape, page, closed, cursor))
                    after, said = page.upto, True
                if closed or (page.up_to_date and not await watch.changed(deadline, self._stopping)):
                    break
                stream = await self._existing(topic)
                self._check_reads(request, stream)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, text: str) -> None:
        data = text.encode()
        account = self._server.accounts.of(principal_of(request), str(request.remote))
        await count_sent(request, account, len(data))
        try:
            async with asyncio.timeout(self._server.settings.limits.slow_seconds):
                await response.write(data)
        except TimeoutError:
            # The reader is gone or asleep; it comes back by itself.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the reader takes nothing") from None

    async def _touch(self, stream: Stream) -> None:
        ttl, now = stream.shape.ttl, _now()
        if stream.id and ttl is not None and now - stream.touched > ttl * 1_000_000 // _TOUCH_SHARE:
            await self._commit([entries.touch(stream.topic, now)])

    # Common to all

    async def _body(self, request: web.Request) -> bytes:
        """Read what is sent, for as long as that may take: whoever is slower keeps a request from others."""
        limits, loop = self._server.settings.limits, asyncio.get_running_loop()
        account = self._server.accounts.of(principal_of(request), str(request.remote))
        if (pause := account.wait(loop.time())) > 0:
            account.paused += 1
            refused = refusal(web.HTTPTooManyRequests, "above the rate of this client: send again later")
            refused.headers[hdrs.RETRY_AFTER] = str(ceil(pause))
            raise refused
        size = request.content_length
        seconds = limits.slow_seconds + (limits.message_bytes if size is None else size) / _SLOWEST_RATE
        try:
            async with asyncio.timeout(seconds):
                body = await request.read()
        except TimeoutError:
            self._server.hub.counters.refuse("http", "stalled", str(request.remote), "the body does not come")
            raise refusal(web.HTTPRequestTimeout, "the body does not come") from None
        account.receive(len(body), 1, loop.time())
        return body

    def _check_reads(self, request: web.Request, stream: Stream) -> None:
        """Refuse a fork to whoever may not read a source of it: a message keeps its topic."""
        for topic in {each.topic for each in stream.inherited}:
            check(self._server.access, request, Action.READ, topic, told=False)

    def _live(self, topic: str, now: int) -> Stream | None:
        """Return a stream that was created and has not expired."""
        stream = self._streams.get(topic)
        if stream is not None and not stream.deleted and stream.is_expired(now):
            return None if not stream.forks else msgspec.structs.replace(stream, deleted=True)
        return stream

    async def _existing(self, topic: str) -> Stream:
        """Return a stream that can be used: one that was created, or a topic that has messages."""
        stream = self._live(topic, _now())
        if stream is None and self._streams.get(topic) is None:
            stream = await self._reader.topic_as_stream(topic, self._streams.forgotten(topic))
        return _usable(topic, stream)

    def _turn(self, topic: str) -> asyncio.Lock:
        return self._turns.setdefault(topic, asyncio.Lock())

    async def _commit(self, batches: Sequence[Batch]) -> Batch:
        """Append batches together, one or more; return the last of them as it was committed, or kept."""
        result = await committed(self._server, *batches)
        if isinstance(result, StorageError):
            raise not_stored(result)
        return result


def not_stored(error: StorageError) -> web.HTTPError:
    """Make the answer to an append that the log has not taken."""
    return problem(507 if isinstance(error, FullError) else 503, str(error))


def _usable(topic: str, stream: Stream | None) -> Stream:
    if stream is None:
        raise problem(404, f"there is no stream {topic}: create it with PUT, or publish under this topic")
    if stream.deleted:
        raise problem(410, "the stream is deleted")
    return stream


def _with_append(stream: Stream, appended: Batch) -> Stream:
    """Return a stream that has an append; if somebody else closed it before, that stands on the topic alone."""
    if stream.closed and appended.last > stream.tail:
        raise _is_closed(stream)
    return stream


def _is_closed(stream: Stream) -> web.HTTPError:
    headers = {"Stream-Closed": "true", "Stream-Next-Offset": write_offset(stream.tail)}
    return problem(409, "the stream is closed", headers)


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


def _checked_json(body: bytes) -> int:
    """Return how many values an append has; refuse what is no JSON."""
    try:
        return len(json_values(body))
    except NO_JSON as error:
        raise bad(f"this is no JSON: {error}") from None


def _is_json(body: bytes) -> bool:
    try:
        return bool(json_values(body))
    except NO_JSON:
        return False


def _sorted(attributes: dict[str, str]) -> tuple[dict[str, str], dict[str, float]]:
    """Separate attributes that are numbers from texts, as the command line does."""
    texts: dict[str, str] = {}
    numbers: dict[str, float] = {}
    for name, value in attributes.items():
        try:
            number = msgspec.json.decode(value, type=float)
        except msgspec.DecodeError:
            quoted = len(value) > 1 and value[0] == value[-1] == '"'
            texts[name] = value[1:-1] if quoted else value
        else:
            numbers[name] = number
    return texts, numbers


def _now() -> int:
    return int(time() * 1_000_000)
