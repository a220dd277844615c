"""The ``http`` door.

``GET /api/status``     what the hub knows about itself, as JSON
``GET /metrics``        the same for Prometheus
``GET /healthz``        200 while the process works
``GET /readyz``         200 while every door accepts, else 503
``POST /api/log/seal``  seal what is committed; wants the header ``X-Headrace``, which a foreign web page cannot send
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final, cast

import msgspec
from aiohttp import web

from headrace.errors import FullError, StorageError
from headrace.net.server import Server
from headrace.web import metrics

MAX_CONNECTIONS: Final = 128
KEEPALIVE_SECONDS: Final = 15.0
SHUTDOWN_SECONDS: Final = 2.0

OURS = "X-Headrace"
"""A header that browsers let only our own pages send: requests that change something must carry it."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpDoor:
    """A running http door."""

    def __init__(self, runner: web.AppRunner, listening: asyncio.Server) -> None:
        self._runner = runner
        self._listening = listening

    async def close(self) -> None:
        """Finish open requests and stop."""
        self._listening.close()
        await self._runner.cleanup()


async def start(server: Server, sock: socket.socket) -> HttpDoor:
    """Serve a hub's http door on a bound socket."""
    deadlines = _Deadlines(server)
    runner = web.AppRunner(
        application(server, deadlines),
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    await runner.setup()
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Gate(server, runner, deadlines), sock=sock, backlog=128
    )
    return HttpDoor(runner, listening)


class _Gate(asyncio.Protocol):
    """Lets a connection in while there are not too many: the log needs open files more than a dashboard does."""

    def __init__(self, server: Server, runner: web.AppRunner, deadlines: _Deadlines) -> None:
        self._server = server
        self._runner = runner
        self._deadlines = deadlines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection to the http protocol, or close it."""
        stream = cast("asyncio.Transport", transport)
        serving = self._runner.server
        if serving is None or len(serving.connections) >= MAX_CONNECTIONS:
            peer = stream.get_extra_info("peername")
            self._server.hub.counters.refuse("http", "connections", str(peer), f"{MAX_CONNECTIONS} are open")
            stream.abort()
            return
        handler = serving()
        stream.set_protocol(handler)
        handler.connection_made(stream)
        self._deadlines.set(handler, stream)


class _Deadlines:
    """When each new connection must have sent its first request; aiohttp has deadlines for the later ones only."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._timers: dict[object, asyncio.TimerHandle] = {}

    def set(self, handler: object, transport: asyncio.Transport) -> None:
        """Give a new connection its time."""
        seconds = self._server.settings.limits.handshake_seconds
        loop = asyncio.get_running_loop()
        self._timers[handler] = loop.call_later(seconds, self._passed, handler, transport)

    @web.middleware
    async def met(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A request has come whole."""
        if (timer := self._timers.pop(request.protocol, None)) is not None:
            timer.cancel()
        return await handler(request)

    def _passed(self, handler: object, transport: asyncio.Transport) -> None:
        del self._timers[handler]
        if not transport.is_closing():
            peer = transport.get_extra_info("peername")
            seconds = self._server.settings.limits.handshake_seconds
            self._server.hub.counters.refuse("http", "stalled", str(peer), f"no request in {seconds:g} s")
            transport.abort()


def application(server: Server, deadlines: _Deadlines) -> web.Application:
    """The routes of one hub."""

    async def status(_: web.Request) -> web.Response:
        return _json(server.status())

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(server), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def readiness(_: web.Request) -> web.Response:
        failure = server.hub.log.failure
        if failure is not None:
            return _json({"ready": False, "reason": failure}, status=503)
        return _json({"ready": server.ready}, status=200 if server.ready else 503)

    async def seal(request: web.Request) -> web.Response:
        if OURS not in request.headers:
            return _json(
                {"error": f"send the header {OURS}: 1 with requests that change something"}, status=403
            )
        try:
            return _json({"sealed": await server.upkeep.seal()})
        except StorageError as error:
            # 507 Insufficient Storage: nothing is lost, and the hub goes on trying.
            return _json({"error": str(error)}, status=507 if isinstance(error, FullError) else 500)

    async def front(_: web.Request) -> web.Response:
        return web.Response(text=_FRONT, content_type="text/html")

    app = web.Application(client_max_size=1 << 20, middlewares=[deadlines.met])
    app.add_routes(
        [
            web.get("/", front),
            web.get("/api/status", status),
            web.get("/metrics", show_metrics),
            web.get("/healthz", health),
            web.get("/readyz", readiness),
            web.post("/api/log/seal", seal),
        ]
    )
    return app


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")


_FRONT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Headrace</title>
<style>body{font:16px/1.5 system-ui;margin:3rem auto;max-width:40rem;padding:0 1rem;color-scheme:light dark}</style>
<h1>Headrace</h1>
<p>The hub is running. <a href="/api/status">Status</a> · <a href="/metrics">metrics</a> ·
<a href="/healthz">health</a> · <a href="/readyz">readiness</a></p>
</html>
"""
