"""The ``http`` door: the dashboard, its JSON API, metrics, health checks, and tokens for old SDK clients."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from aiohttp import web

from headrace.net.server.admission import Admission
from headrace.net.server.process import Server
from headrace.web import metrics, pages, preauth
from headrace.web.access import AccessCheck, Handler
from headrace.web.api import Api, as_json

MAX_CONNECTIONS: Final = 128
"""Connections to this door. They have a budget of their own: health checks answer when every other door is full."""
KEEPALIVE_SECONDS: Final = 15.0
SHUTDOWN_SECONDS: Final = 2.0


class HttpDoor:
    """A running http door."""

    def __init__(self, runner: web.AppRunner, listening: asyncio.Server, admission: Admission) -> None:
        self.admission = admission
        self._runner = runner
        self._listening = listening

    async def close(self) -> None:
        """Finish open requests and stop."""
        self._listening.close()
        await self._runner.cleanup()


async def start(server: Server, sock: socket.socket) -> HttpDoor:
    """Serve a hub's http door on a bound socket."""
    deadlines = _FirstRequestDeadlines(server)
    admission = Admission(per_address=MAX_CONNECTIONS, total=MAX_CONNECTIONS, setting="http")
    runner = web.AppRunner(
        application(server, deadlines),
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    await runner.setup()
    listening = await asyncio.get_running_loop().create_server(
        lambda: _ConnectionLimit(server, runner, deadlines, admission), sock=sock, backlog=128
    )
    return HttpDoor(runner, listening, admission)


class _ConnectionLimit(asyncio.Protocol):
    """Admits a connection as every other door does, and passes its events on to the http protocol."""

    def __init__(
        self, server: Server, runner: web.AppRunner, deadlines: _FirstRequestDeadlines, admission: Admission
    ) -> None:
        self._server = server
        self._runner = runner
        self._admission = admission
        self._deadlines = deadlines
        self._handler: asyncio.Protocol | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        serving, peer = self._runner.server, stream.get_extra_info("peername")
        if serving is None or peer is None:
            stream.abort()
            return
        refusal = self._admission.admit(peer[0])
        if refusal is not None:
            self._server.hub.counters.refuse("http", "connections", str(peer), refusal)
            stream.abort()
            return
        self._address = peer[0]
        self._handler = handler = serving()
        handler.connection_made(stream)
        self._deadlines.set(handler, stream)

    def connection_lost(self, error: Exception | None) -> None:
        if self._handler is not None:
            self._admission.release(self._address)
            self._handler.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()


class _FirstRequestDeadlines:
    """Deadlines for the first request of each connection; aiohttp has them only for later ones."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._timers: dict[object, asyncio.TimerHandle] = {}

    def set(self, handler: object, transport: asyncio.Transport) -> None:
        seconds = self._server.settings.limits.handshake_seconds
        loop = asyncio.get_running_loop()
        self._timers[handler] = loop.call_later(seconds, self._expired, handler, transport)

    @web.middleware
    async def met(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """End the deadline: a request has come whole."""
        if (timer := self._timers.pop(request.protocol, None)) is not None:
            timer.cancel()
        return await handler(request)

    def _expired(self, handler: object, transport: asyncio.Transport) -> None:
        del self._timers[handler]
        if not transport.is_closing():
            peer = transport.get_extra_info("peername")
            seconds = self._server.settings.limits.handshake_seconds
            self._server.hub.counters.refuse("http", "stalled", str(peer), f"no request in {seconds:g} s")
            transport.abort()


def application(server: Server, deadlines: _FirstRequestDeadlines) -> web.Application:
    """Make the application of one hub."""

    async def show_metrics(_: web.Request) -> web.Response:
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

    api = Api(server)
    app = web.Application(
        client_max_size=server.settings.limits.message_bytes + (1 << 16),
        middlewares=[deadlines.met, AccessCheck(server).check],
    )
    app.add_routes(
        [
            *pages.routes(),
            *api.routes(),
            web.get("/metrics", show_metrics),
            web.get("/healthz", health),
            web.get("/readyz", readiness),
            web.get("/sdk/sub/preauth", ask_preauth),
        ]
    )
    app.on_startup.append(api.start)
    app.on_shutdown.append(api.stop)
    return app
