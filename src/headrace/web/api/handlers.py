"""Requests of the JSON API about the hub itself: its status, messages and subscriptions; publish, seal, vouch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from base64 import b64decode
from collections.abc import Callable
from itertools import chain
from time import monotonic, time
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from headrace.errors import LimitError, StorageError, UsageError
from headrace.hub.access.principal import Action
from headrace.hub.filters import Filter
from headrace.message import MAX_SEQUENCE, Batch
from headrace.net.server.process import Server
from headrace.net.server.status.report import measured
from headrace.net.server.status.shown_facts import shown_to
from headrace.web.access.rights import check, principal_of
from headrace.web.answers import as_json, body_as, failed, number_in, published
from headrace.web.api import messages
from headrace.web.api.history import History, Levels, Sample, jobs_from, measured_from
from headrace.web.events import NextValue
from headrace.web.log_reading import in_thread
from headrace.web.publishing import committed, message_batch
from headrace.web.refusals import refusal
from headrace.web.search import Search, SearchBackward, SearchForward
from headrace.web.stream_holder import HeldStreams
from headrace.wire.sdk.predicate import Between, Equals, Predicate

logger = logging.getLogger("headrace")

T = TypeVar("T")

SAMPLE_SECONDS: Final = 1.0
KEEP_SAMPLES: Final = 30
"""Samples after which all are written down: so many seconds of charts a killed hub loses."""
_TAIL_SECONDS: Final = 0.25
_TAIL_MOST: Final = 60
"""The most messages in one event: more than a person reads. A flag shows whether some were left out."""

_SUBSCRIPTIONS: Final = 200


class Publication(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish."""

    topic: str = ""
    payload: str = ""
    payload_base64: str | None = None
    attributes: dict[str, str | float] = {}


class Api:
    """The handlers of the API, and what they share."""

    def __init__(self, server: Server, streams: HeldStreams) -> None:
        self._server = server
        self._history = History()
        self._kept = server.settings.node.data / "history.json"
        self._next_sample: NextValue[Sample] = NextValue()
        self._streams = streams
        self._sampling: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        return [
            web.get("/api/status", self._status),
            web.get("/api/history", self._past),
            web.get("/api/events", self._streams.held(self._events)),
            web.get("/api/messages", self._messages),
            web.post("/api/messages", self._publish),
            web.get(r"/api/messages/{seq:\d{1,15}}", self._message),
            web.get("/api/tail", self._streams.held(self._tail)),
            web.get("/api/subscriptions", self._subscriptions),
            web.post("/api/subscriptions/try", self._try),
            web.post("/api/log/seal", self._seal),
            web.post("/api/cluster/vouch", self._vouch),
        ]

    async def start(self, _app: web.Application) -> None:
        """Start sampling; charts go on where they were before a restart."""
        await self._in_thread(self._history.load, self._kept, time())
        self._sample()
        self._sampling = asyncio.ensure_future(self._keep_sampling())

    async def stop(self, _app: web.Application) -> None:
        """Stop sampling."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
        await self._keep()

    async def _keep(self) -> None:
        with contextlib.suppress(OSError):  # Charts are not worth a complaint; a full disk is told elsewhere.
            await self._in_thread(self._history.save, self._kept)

    @staticmethod
    async def _in_thread(work: Callable[..., None], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, work, *arguments)

    async def _keep_sampling(self) -> None:
        samples = 0
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            samples += 1
            if samples % KEEP_SAMPLES == 0:
                await self._keep()
            try:
                self._next_sample.set(self._sample())
            except Exception:
                # One missing sample must not end the sampling.
                self._server.hub.counters.add("background_failures")
                logger.exception("taking a sample failed; the next one is tried")

    def _sample(self) -> Sample:
        server = self._server
        log = server.hub.log
        held = (log.head + 1 - seq for seq in server.hub.state.holds.values())
        lags = (server.consumers.lag(consumer, log.head).behind for consumer in server.consumers)
        behind = max(chain(held, lags), default=0)
        rates = measured_from(measured(server.services))
        jobs = jobs_from(server.reports.facts(monotonic()).get("pipeline"))
        here = log.head, log.tail, log.first, log.size, server.connections
        levels = Levels(*here, max(behind, 0), rates, jobs)
        return self._history.take(time(), levels, server.hub.counters)

    async def _status(self, request: web.Request) -> web.Response:
        return as_json(shown_to(principal_of(request), self._server.status()))

    async def _past(self, request: web.Request) -> web.Response:
        return as_json(list(self._history.samples) if principal_of(request).may(Action.ADMIN) else [])

    async def _events(self, request: web.Request, response: web.StreamResponse) -> None:
        async with self._streams.sending(request, response) as events:
            while True:
                await events.send("status", shown_to(principal_of(request), self._server.status()))
                sample = await self._next_sample.next()
                # Its figures are about everybody, as most of the status is.
                if principal_of(request).may(Action.ADMIN):
                    await events.send("sample", sample)

    async def _messages(self, request: web.Request) -> web.Response:
        query = request.query
        log, wanted = self._server.hub.log, _filter(request)
        count = number_in(request, "count", 100, 1, messages.MOST)
        search: Search
        if "time" in query or "from" in query:
            if "time" in query:
                time = number_in(request, "time", 0, 0, 1 << 62)
                first = await in_thread(self._server, log.seq_at, time, at=0 if log.is_past(time) else None)
            else:
                first = number_in(request, "from", 1, 1, MAX_SEQUENCE)
            search = SearchForward(log, wanted, first, log.head, count)
        else:
            before = number_in(request, "before", log.head + 1, 1, MAX_SEQUENCE)
            search = SearchBackward(log, wanted, log.first, before - 1, count)
        return as_json(await self._searched(request, search))

    async def _message(self, request: web.Request) -> web.Response:
        log = self._server.hub.log
        seq = int(request.match_info["seq"])
        found = await in_thread(self._server, messages.one, log, seq, at=seq)
        if found is not None and not principal_of(request).reads_everything:
            check(self._server.access, request, Action.READ, found["topic"], told=False)
        if found is None:
            kept = (
                f"messages {log.first} to {log.head} are kept" if log.head >= log.first else "there is none"
            )
            raise refusal(web.HTTPNotFound, f"there is no message {seq}; {kept}")
        return as_json(found)

    async def _tail(self, request: web.Request, response: web.StreamResponse) -> None:
        log, wanted = self._server.hub.log, _filter(request)
        cursor = number_in(request, "from", log.head + 1, 1, MAX_SEQUENCE)
        async with self._streams.sending(request, response) as events:
            while True:
                if cursor <= log.head:
                    head = log.head
                    search = SearchBackward(log, wanted, cursor, head, _TAIL_MOST)
                    found = await self._searched(request, search)
                    if found.messages:
                        # The search may have ended before the cursor.
                        shown, left_out = found.messages, found.first > cursor
                        await events.send("messages", {"messages": shown, "left_out": left_out, "head": head})
                    cursor = head + 1
                else:
                    await events.keep_alive()
                await asyncio.sleep(_TAIL_SECONDS)

    async def _publish(self, request: web.Request) -> web.Response:
        wanted, payload = await _publication(request)
        check(self._server.access, request, Action.PUBLISH, wanted.topic)
        if len(payload) > self._server.settings.limits.message_bytes:
            most = self._server.settings.limits.message_bytes
            raise refusal(
                web.HTTPUnprocessableEntity, f"{len(payload)} bytes: {most} is limits.message_bytes"
            )
        return published(await committed(self._server, _batch(request, wanted, payload)))

    async def _subscriptions(self, request: web.Request) -> web.Response:
        kept, connector = self._server.subscriptions, self._server.routing.connector
        contains = request.query.get("contains", "").lower()
        count = number_in(request, "count", _SUBSCRIPTIONS, 1, _SUBSCRIPTIONS)
        found: list[dict[str, object]] = []
        sessions = {} if connector is None else connector.sessions
        for client, subscription in kept:
            if contains not in client.hex():
                continue
            session = sessions.get(client)
            found += (
                {
                    "client": client.hex(),
                    "connector": subscription.connector.decode(),
                    "connected": session is not None,
                    "sent": None if session is None else session.sent,
                    "seq": subscription.seq,
                    "name": part.name,
                    "fields": {name: msgspec.Raw(field) for name, field in part.fields.items()},
                }
                for part in subscription.parts(client).values()
            )
            if len(found) >= count:
                break
        return as_json({"subscriptions": found[:count], "total": len(kept)})

    async def _try(self, request: web.Request) -> web.Response:
        wanted, payload = await _publication(request)
        log, matching = self._server.hub.log, self._server.routing.matching
        batch = _batch(request, wanted, payload).numbered(0, log.tail + 1, log.last_time, 0)

        def match() -> list[str]:
            return [
                bytes(client).hex()
                for _, matches in matching.pieces(batch, record=False)
                for client in matching.clients_of(matches).clients
            ]

        clients = sorted(await in_thread(self._server, match))
        return as_json({"clients": clients[:_SUBSCRIPTIONS], "total": len(clients)})

    async def _seal(self, _: web.Request) -> web.Response:
        try:
            return as_json({"sealed": await self._server.maintenance.seal()})
        except StorageError as error:
            return failed(error)

    async def _vouch(self, _: web.Request) -> web.Response:
        try:
            self._server.vouch()
        except UsageError as error:
            raise refusal(web.HTTPConflict, str(error)) from None
        return as_json({"vouched": True})

    async def _searched(self, request: web.Request, search: Search) -> messages.SearchResult:
        """Search step by step, for as long as somebody waits for the result."""
        while not await in_thread(self._server, search.step, at=search.at):
            if request.transport is None or request.transport.is_closing():
                raise refusal(web.HTTPServiceUnavailable, "the client has gone")
        return messages.SearchResult.of(search)


def _filter(request: web.Request) -> Filter:
    topic, origin = request.query.get("topic") or None, request.query.get("origin") or None
    try:
        rights = principal_of(request).rights(Action.READ)
        return Filter(
            topic,
            None if origin is None else [origin],
            _attributes(request),
            text=request.query.get("text", ""),
            readable=rights.allowed,
            denied=rights.denied,
        )
    except LimitError as error:
        raise refusal(web.HTTPBadRequest, str(error)) from None


def _attributes(request: web.Request) -> dict[str, Predicate]:
    """Parse the attributes that messages must have, given as a JSON object of texts and numbers."""
    given = request.query.get("where")
    if not given:
        return {}
    try:
        wanted = msgspec.json.decode(given, type=dict[str, str | float])
    except msgspec.DecodeError as error:
        raise refusal(web.HTTPBadRequest, f"where: expected texts and numbers by name: {error}") from None
    return {
        name: Equals(value) if isinstance(value, str) else Between(value, value)
        for name, value in wanted.items()
    }


async def _publication(request: web.Request) -> tuple[Publication, bytes]:
    """Parse the message in a request's body; give its payload too."""
    wanted = await body_as(request, Publication, "not a message")
    try:
        if wanted.payload_base64 is None:
            return wanted, wanted.payload.encode()
        return wanted, b64decode(wanted.payload_base64, validate=True)
    except ValueError as error:
        raise refusal(web.HTTPBadRequest, f"not a message: {error}") from None


def _batch(request: web.Request, wanted: Publication, payload: bytes) -> Batch:
    texts = {name: value for name, value in wanted.attributes.items() if isinstance(value, str)}
    numbers = {name: float(value) for name, value in wanted.attributes.items() if not isinstance(value, str)}
    return message_batch(request, wanted.topic, payload, texts, numbers)
