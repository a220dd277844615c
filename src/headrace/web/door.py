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
    runner = web.AppRunner(
        application(server),
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    await runner.setup()
    listening = await asyncio.get_running_loop().create_server(
        lambda: _Gate(server, runner), sock=sock, backlog=128
    )
    return HttpDoor(runner, listening)


class _Gate(asyncio.Protocol):
    """Lets a connection in while there are not too many: the log needs open files more than a dashboard does."""

    def __init__(self, server: Server, runner: web.AppRunner) -> None:
        self._server = server
        self._runner = runner

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


def application(server: Server) -> web.Application:
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

    app = web.Application(client_max_size=1 << 20)
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
