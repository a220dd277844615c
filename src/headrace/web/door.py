"""The ``http`` door: the dashboard, its JSON API, metrics, health checks, and tokens for old SDK clients.

Health checks are answered even when everything else is full. When there is no room, an idle connection gives way to a
newer one, beginning with the address that has the most. Requests under way, such as the dashboard's streams, may take
all connections but :data:`SPARE`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError

from headrace.net.server.accepting.admission import Admission
from headrace.net.server.accepting.entrance import NO_TLS_ANSWER, TLS_AT_PLAIN, TLS_HELLO, Endpoint, Listening
from headrace.net.server.process import Server
from headrace.web import pages
from headrace.web.access import preauth
from headrace.web.access.check import HEADERS, OPEN, AccessCheck, Handler
from headrace.web.access.forwarded import origin_of
from headrace.web.access.identification import Identification
from headrace.web.access.login import Login
from headrace.web.access.sessions import Sessions
from headrace.web.answers import as_json
from headrace.web.api.handlers import Api
from headrace.web.api.operations import Operations
from headrace.web.api.services import PUBLIC, ServiceHandlers
from headrace.web.api.sql import ASK, SqlHandlers
from headrace.web.refusals import refusal
from headrace.web.stream_holder import HeldStreams
from headrace.web.streams.door import StreamDoor
from headrace.web.streams.requests import PREFIX

MAX_CONNECTIONS: Final = 128
"""Connections to this door. They have a budget of their own: health checks answer when every other door is full."""
SPARE: Final = 16
"""Connections that are left to health checks, however many requests are under way."""
KEEPALIVE_SECONDS: Final = 15.0
SHUTDOWN_SECONDS: Final = 2.0
LINGER_SECONDS: Final = 1.0
"""How long the rest of a request is taken that was answered before it was whole."""

_READING: Final = (PREFIX, PUBLIC, "/api/messages", "/api/tail", "/api/service", "/api/topics")
"""Paths of what is in the log, or follows from it."""

_MISTAKES: Final = (HttpProcessingError, PayloadEncodingError, ConnectionError)
"""Errors that are the peer's."""
_TOLD: Final = 200

logger = logging.getLogger("headrace")


class HttpDoor:
    """A running http door."""

    def __init__(self, runner: web.AppRunner, listening: Listening, admission: Admission) -> None:
        self.admission = admission
        self._runner = runner
        self._listening = listening

    async def close(self) -> None:
        """Finish open requests and stop."""
        self._listening.close()
        await self._runner.cleanup()


async def start(server: Server, sock: socket.socket) -> HttpDoor:
    """Serve a hub's http door on a bound socket."""
    admission = Admission(per_address=_most_of_one(), total=MAX_CONNECTIONS, setting="http")
    connections = _Connections(server, admission)
    runner = web.AppRunner(
        application(server, connections),
        access_log=None,
        logger=_ErrorLog(server),
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
        lingering_time=LINGER_SECONDS,
    )
    await runner.setup()
    listening = await server.entrance.listen(
        "http",
        sock,
        lambda origin: _ConnectionLimit(runner, connections, origin),
        plain_answer=NO_TLS_ANSWER,
    )
    return HttpDoor(runner, listening, admission)


def _most_of_one() -> int:
    """Return how many connections, or requests behind a proxy, one address may have: never all of them."""
    return max(MAX_CONNECTIONS * 3 // 4, 1)


class _ErrorLog(logging.Logger):
    """What aiohttp logs of requests that failed: a peer's mistake is a refusal, and only ours has a traceback."""

    def __init__(self, server: Server) -> None:
        super().__init__(logger.name)
        self.parent = logger
        self._counters = server.hub.counters

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        """Log an error of a request, sparingly."""
        if isinstance(exc_info, _MISTAKES):
            # The error quotes what came, which may be long.
            told = " ".join(str(exc_info).split())[:_TOLD]
            self._counters.refuse("http", "malformed", str(args[0] if args else "somebody"), told)
        elif self._counters.failed("background_failures"):
            super().exception(msg, *args, exc_info=exc_info, **more)


class _ConnectionLimit(asyncio.Protocol):
    """Admits a connection as every other door does, and passes its events on to the http protocol."""

    def __init__(self, runner: web.AppRunner, connections: _Connections, origin: Endpoint | None) -> None:
        self._runner = runner
        self._connections = connections
        self._origin = origin
        """The peer's address, if a proxy has named it."""
        self._first = True
        self._handler: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        serving, peer = self._runner.server, self._origin or stream.get_extra_info("peername")
        if serving is None or peer is None:
            stream.abort()
            return
        if not self._connections.admit(peer):
            stream.abort()
            return
        self._handler = handler = _HttpProtocol.of(serving)
        handler.connection_made(stream)
        self._connections.add(handler, stream, peer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._handler is not None:
            self._connections.remove(self._handler)
            self._handler.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        first, self._first = self._first, False
        if first and data.startswith(TLS_HELLO) and self._handler is not None:
            self._connections.refuse(self._handler, *TLS_AT_PLAIN)
        elif self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()


class _HttpProtocol(web.RequestHandler):
    """aiohttp's protocol; its answers to what is no request at all have the headers of every other answer."""

    __slots__ = ()

    @classmethod
    def of(cls, serving: web.Server) -> _HttpProtocol:
        # As the server itself makes one, but of this class.
        return cls(serving, loop=asyncio.get_running_loop(), **serving._kwargs)

    def handle_error(self, *arguments: Any, **more: Any) -> web.StreamResponse:
        response = super().handle_error(*arguments, **more)
        response.headers.update(HEADERS)
        return response


@dataclass(slots=True)
class _Open:
    """An open connection."""

    transport: asyncio.Transport
    peer: tuple[str, int]
    account: str
    """What its slots are counted under."""
    deadline: asyncio.TimerHandle | None
    """For the first request; aiohttp has deadlines only for later ones."""
    under_way: int = 0
    """Requests that are being answered."""


class _Connections:
    """The open connections, and which of them gives way to a newer one."""

    def __init__(self, server: Server, admission: Admission) -> None:
        self._server = server
        self._admission = admission
        self._open: dict[object, _Open] = {}
        """By aiohttp's protocol; those that have been idle the longest come first."""
        self._under_way = 0
        self._of_origin: Counter[str] = Counter()
        """Requests that are being answered, by the address that they come from."""

    def admit(self, peer: tuple[str, int]) -> bool:
        """Count a new connection, if need be in the place of an idle one."""
        account = self._account(peer)
        full = self._admission.admit(account)
        if full is not None and self._make_room(account):
            full = self._admission.admit(account)
        if full is not None:
            self._server.hub.counters.refuse("http", "connections", _named(peer), full)
        return full is None

    def add(self, handler: object, transport: asyncio.Transport, peer: tuple[str, int]) -> None:
        """Take an admitted connection, and wait for its first request."""
        seconds = self._server.settings.limits.handshake_seconds
        deadline = asyncio.get_running_loop().call_later(seconds, self._expired, handler)
        self._open[handler] = _Open(transport, peer, self._account(peer), deadline)

    def remove(self, handler: object) -> None:
        """Forget a connection."""
        if (connection := self._open.pop(handler, None)) is not None:
            self._admission.release(connection.account)
            if connection.deadline is not None:
                connection.deadline.cancel()

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a request is under way; refuse it if too many are."""
        connection = self._open.get(request.protocol)
        if connection is None:
            return await handler(request)
        if connection.deadline is not None:
            connection.deadline.cancel()
            connection.deadline = None
        if self._under_way >= max(MAX_CONNECTIONS - SPARE, 1) and request.path not in OPEN:
            detail = f"{self._under_way} requests are under way"
            self._server.hub.counters.refuse("http", "busy", _named(connection.peer), detail)
            raise refusal(web.HTTPServiceUnavailable, f"{detail}: ask again later")
        origin = self._origin(request, connection)
        if origin != connection.account and self._of_origin[origin] >= _most_of_one():
            detail = f"{self._of_origin[origin]} requests of {origin} are under way"
            self._server.hub.counters.refuse("http", "busy", origin, detail)
            raise refusal(web.HTTPServiceUnavailable, f"{detail}: ask again later")
        connection.under_way += 1
        self._under_way += 1
        self._of_origin[origin] += 1
        try:
            return await handler(request if origin == request.remote else request.clone(remote=origin))
        finally:
            connection.under_way -= 1
            self._under_way -= 1
            self._of_origin[origin] -= 1
            if not self._of_origin[origin]:
                del self._of_origin[origin]
            if self._open.pop(request.protocol, None) is not None:
                self._open[request.protocol] = connection

    def _account(self, peer: tuple[str, int]) -> str:
        """Return what a connection is counted under: an address, or itself if it is a proxy's, who has many clients."""
        return f"{peer[0]}:{peer[1]}" if peer[0] in self._server.entrance.proxies else peer[0]

    def _origin(self, request: web.Request, connection: _Open) -> str:
        """Return the address that a request comes from."""
        try:
            headers = request.headers.getall("Forwarded", ())
            return origin_of(headers, connection.peer[0], self._server.entrance.proxies)
        except ValueError as error:
            self._server.hub.counters.refuse(
                "http", "malformed", _named(connection.peer), f"Forwarded: {error}"
            )
            raise refusal(web.HTTPBadRequest, f"the header Forwarded: {error}") from None

    def _make_room(self, address: str) -> bool:
        """Close an idle connection: one of this address if that has too many, else of the one that has the most."""
        idle = [(handler, each) for handler, each in self._open.items() if not each.under_way]
        crowded = self._admission.is_crowded(address)
        if crowded:
            idle = [(handler, each) for handler, each in idle if each.account == address]
        if not idle:
            return False
        count = Counter(each.account for each in self._open.values())
        handler, chosen = max(idle, key=lambda pair: count[pair[1].account])
        self._refuse(handler, chosen, "connections", "no request is under way, and another connection came")
        return True

    def _expired(self, handler: object) -> None:
        connection = self._open[handler]
        connection.deadline = None
        if not connection.transport.is_closing():
            seconds = self._server.settings.limits.handshake_seconds
            self._refuse(handler, connection, "stalled", f"no request in {seconds:g} s")

    def refuse(self, handler: object, reason: str, detail: str) -> None:
        """Close an open connection at once, and count why."""
        if (connection := self._open.get(handler)) is not None:
            self._refuse(handler, connection, reason, detail)

    def _refuse(self, handler: object, connection: _Open, reason: str, detail: str) -> None:
        self._server.hub.counters.refuse("http", reason, _named(connection.peer), detail)
        self.remove(handler)
        connection.transport.abort()


def _named(peer: tuple[str, int]) -> str:
    """Name a peer as every other door does."""
    return f"{peer[0]}:{peer[1]}"


def application(server: Server, connections: _Connections) -> web.Application:
    """Make the application of one hub."""

    async def show_metrics(_: web.Request) -> web.Response:
        # A hub that nobody scrapes starts sooner, and has the less in memory.
        from headrace.web import metrics

        return web.Response(body=metrics.render(server), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        return as_json({"status": "ok"})

    async def readiness(_: web.Request) -> web.Response:
        # What fails in the background is told, too, though the hub takes messages all the same.
        more = {"problems": server.problems} if server.ready and server.problems else {}
        if (problem := server.problem) is not None:
            return as_json({"ready": False, "reason": problem, **more}, status=503)
        return as_json({"ready": server.ready, **more}, status=200 if server.ready else 503)

    async def ask_preauth(request: web.Request) -> web.Response:
        return preauth.answer(server, request)

    @web.middleware
    async def check_head(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer nothing that depends on the head while a node does not know it: it would seem to go back."""
        reads = request.method in ("GET", "HEAD") and request.path.startswith(_READING)
        if (reads or request.path == ASK) and (doubt := server.hub.head_doubt()) is not None:
            raise refusal(web.HTTPServiceUnavailable, f"{doubt}: ask another node, or again later")
        return await handler(request)

    identification = Identification(server, Sessions())
    access, held = AccessCheck(server, identification), HeldStreams(server)
    api, streams = Api(server, held), StreamDoor(server)
    app = web.Application(
        client_max_size=server.settings.limits.message_bytes + (1 << 16),
        middlewares=[connections.count, access.check, check_head],
    )
    app.add_routes(
        [
            *pages.routes(),
            *Login(server, identification).routes(),
            *api.routes(),
            *ServiceHandlers(server, held).routes(),
            *Operations(server).routes(),
            *SqlHandlers(server).routes(),
            *streams.routes(),
            web.get("/metrics", show_metrics),
            web.get("/healthz", health),
            web.get("/readyz", readiness),
            web.get("/sdk/sub/preauth", ask_preauth),
        ]
    )
    app.on_response_prepare.append(access.add_headers)
    app.on_startup.append(api.start)
    app.on_shutdown.append(held.stop)
    app.on_shutdown.append(api.stop)
    app.on_shutdown.append(streams.stop)
    return app
