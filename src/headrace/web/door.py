"""The ``http`` door: the dashboard, its JSON API, streams, metrics, health checks, and tokens for old SDK clients.

aiohttp serves it, on the connections that :mod:`headrace.web.connections` admits. Plain appends to streams are answered
without it (:mod:`headrace.web.streams.quick_appends`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError

from headrace.net.server.accepting.admission import Admission
from headrace.net.server.accepting.entrance import NO_TLS_ANSWER, Listening
from headrace.net.server.process import Server
from headrace.web import pages
from headrace.web.access import preauth
from headrace.web.access.check import AccessCheck, Handler
from headrace.web.access.identification import Identification
from headrace.web.access.login import Login
from headrace.web.access.sessions import Sessions
from headrace.web.answers import as_json
from headrace.web.api.handlers import Api
from headrace.web.api.operations import Operations
from headrace.web.api.services import PUBLIC, ServiceHandlers
from headrace.web.api.sql import ASK, SqlHandlers
from headrace.web.connections import AdmittedConnection, Connections, admission
from headrace.web.refusals import refusal
from headrace.web.stream_holder import HeldStreams
from headrace.web.streams.door import StreamDoor
from headrace.web.streams.quick_appends import QuickAppends
from headrace.web.streams.requests import PREFIX

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

    def __init__(
        self, runner: web.AppRunner, listening: Listening, admission: Admission, quick: QuickAppends
    ) -> None:
        self.admission = admission
        self._runner = runner
        self._listening = listening
        self._quick = quick

    async def close(self) -> None:
        """Finish open requests and stop."""
        self._listening.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self._quick.finish()
        await self._runner.cleanup()


async def start(server: Server, sock: socket.socket) -> HttpDoor:
    """Serve a hub's http door on a bound socket."""
    admitted = admission()
    connections = Connections(server, admitted)
    streams, identification = StreamDoor(server), Identification(server, Sessions())
    quick = QuickAppends(server, connections, streams.appending, identification)
    runner = web.AppRunner(
        application(server, connections, streams, identification),
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
        lambda origin: AdmittedConnection(runner, connections, origin, quick),
        plain_answer=NO_TLS_ANSWER,
    )
    return HttpDoor(runner, listening, admitted, quick)


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


def application(
    server: Server, connections: Connections, streams: StreamDoor, identification: Identification
) -> web.Application:
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

    access, held = AccessCheck(server, identification), HeldStreams(server, identification)
    api = Api(server, held)
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
