"""The connections of the http door: who is admitted, and who gives way.

Health checks are answered even when everything else is full. When there is no room, an idle connection gives way to a
newer one, beginning with the address that has the most. Requests under way, such as the dashboard's streams, may take
all connections but :data:`SPARE`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from aiohttp import web

from headrace.net.server.accepting.admission import Admission
from headrace.net.server.accepting.entrance import TLS_AT_PLAIN, TLS_HELLO, Endpoint
from headrace.net.server.process import Server
from headrace.web.access.check import HEADERS, OPEN, Handler
from headrace.web.access.forwarded import origin_of
from headrace.web.refusals import refusal

MAX_CONNECTIONS: Final = 128
"""Connections to this door. They have a budget of their own: health checks answer when every other door is full."""
SPARE: Final = 16
"""Connections that are left to health checks, however many requests are under way."""


def admission() -> Admission:
    """Make what counts the connections of a door."""
    return Admission(per_address=_most_of_one(), total=MAX_CONNECTIONS, setting="http")


def _most_of_one() -> int:
    """Return how many connections, or requests behind a proxy, one address may have: never all of them."""
    return max(MAX_CONNECTIONS * 3 // 4, 1)


class Shortcut(Protocol):
    """A way around aiohttp for some requests of one connection."""

    def take(self, data: bytes) -> bool:
        """Take what has come; ``False`` leaves it to aiohttp."""

    def lost(self) -> None:
        """Note that the connection is gone."""


class QuickWay(Protocol):
    """Answers some requests without aiohttp."""

    def on(self, handler: HttpProtocol, transport: asyncio.Transport, peer: str) -> Shortcut:
        """Return the way around aiohttp for a new connection."""


class AdmittedConnection(asyncio.Protocol):
    """Admits a connection as every other door does, and passes its events on to the http protocol."""

    def __init__(
        self, runner: web.AppRunner, connections: Connections, origin: Endpoint | None, quick: QuickWay
    ) -> None:
        self._runner = runner
        self._connections = connections
        self._origin = origin
        """The peer's address, if a proxy has named it."""
        self._quick = quick
        self._first = True
        self._handler: HttpProtocol | None = None
        self._shortcut: Shortcut | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or end it."""
        stream = cast("asyncio.Transport", transport)
        serving, peer = self._runner.server, self._origin or stream.get_extra_info("peername")
        if serving is None or peer is None:
            stream.abort()
            return
        if not self._connections.admit(peer):
            stream.abort()
            return
        self._handler = handler = HttpProtocol.of(serving)
        handler.connection_made(stream)
        self._connections.add(handler, stream, peer)
        self._shortcut = self._quick.on(handler, stream, peer[0])

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        if self._handler is not None:
            if self._shortcut is not None:
                self._shortcut.lost()
            self._connections.remove(self._handler)
            self._handler.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Pass on what has come, by the shortcut if it takes it."""
        first, self._first = self._first, False
        if first and data.startswith(TLS_HELLO) and self._handler is not None:
            self._connections.refuse(self._handler, *TLS_AT_PLAIN)
        elif self._handler is not None and not (self._shortcut is not None and self._shortcut.take(data)):
            self._handler.data_received(data)

    def eof_received(self) -> None:
        """Pass on that the peer sends no more."""
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the peer does not read."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer reads again."""
        if self._handler is not None:
            self._handler.resume_writing()


class HttpProtocol(web.RequestHandler):
    """aiohttp's protocol; its answers to what is no request at all have the headers of every other answer."""

    __slots__ = ()

    @classmethod
    def of(cls, serving: web.Server) -> HttpProtocol:
        """Make the protocol of one connection."""
        # As the server itself makes one, but of this class.
        return cls(serving, loop=asyncio.get_running_loop(), **serving._kwargs)

    @property
    def idle(self) -> bool:
        """Whether it waits for the next request."""
        return self._waiter is not None and not self._messages and not self._force_close

    def stay(self, seconds: float) -> None:
        """Keep the connection open for so long, since it is used without aiohttp."""
        self._keepalive = True
        self._next_keepalive_close_time = at = self._loop.time() + seconds
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(at, self._process_keepalive)

    def handle_error(self, *arguments: Any, **more: Any) -> web.StreamResponse:
        """Answer what is no request."""
        response = super().handle_error(*arguments, **more)
        response.headers.update(HEADERS)
        return response


@dataclass(slots=True)
class OpenConnection:
    """An open connection."""

    transport: asyncio.Transport
    peer: tuple[str, int]
    account: str
    """What its slots are counted under."""
    deadline: asyncio.TimerHandle | None
    """For the first request; aiohttp has deadlines only for later ones."""
    under_way: int = 0
    """Requests that are being answered."""

    def meet_deadline(self) -> None:
        """Wait for the first request no longer."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


class Connections:
    """The open connections, and which of them gives way to a newer one."""

    def __init__(self, server: Server, admission: Admission) -> None:
        self._server = server
        self._admission = admission
        self._open: dict[object, OpenConnection] = {}
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
        self._open[handler] = OpenConnection(transport, peer, self._account(peer), deadline)

    def remove(self, handler: object) -> None:
        """Forget a connection."""
        if (connection := self._open.pop(handler, None)) is not None:
            self._admission.release(connection.account)
            connection.meet_deadline()

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a request is under way; refuse it if too many are."""
        connection = self._open.get(request.protocol)
        if connection is None:
            return await handler(request)
        connection.meet_deadline()
        if self._under_way >= max(MAX_CONNECTIONS - SPARE, 1) and request.path not in OPEN:
            detail = f"{self._under_way} requests are under way"
            self._server.hub.counters.refuse("http", "busy", _named(connection.peer), detail)
            raise refusal(web.HTTPServiceUnavailable, f"{detail}: ask again later")
        origin = self._origin(request, connection)
        if origin != connection.account and self._of_origin[origin] >= _most_of_one():
            detail = f"{self._of_origin[origin]} requests of {origin} are under way"
            self._server.hub.counters.refuse("http", "busy", origin, detail)
            raise refusal(web.HTTPServiceUnavailable, f"{detail}: ask again later")
        self._begin(connection, origin)
        try:
            return await handler(request if origin == request.remote else request.clone(remote=origin))
        finally:
            self._end(request.protocol, connection, origin)

    def begin(self, handler: object) -> OpenConnection | None:
        """Note that a request is under way that no proxy has passed on; ``None`` if there are too many."""
        connection = self._open.get(handler)
        if connection is None or self._under_way >= max(MAX_CONNECTIONS - SPARE, 1):
            return None
        connection.meet_deadline()
        self._begin(connection, connection.account)
        return connection

    def end(self, handler: object, connection: OpenConnection) -> None:
        """Note that it is answered."""
        self._end(handler, connection, connection.account)

    def _begin(self, connection: OpenConnection, origin: str) -> None:
        connection.under_way += 1
        self._under_way += 1
        self._of_origin[origin] += 1

    def _end(self, handler: object, connection: OpenConnection, origin: str) -> None:
        connection.under_way -= 1
        self._under_way -= 1
        self._of_origin[origin] -= 1
        if not self._of_origin[origin]:
            del self._of_origin[origin]
        if self._open.pop(handler, None) is not None:
            self._open[handler] = connection

    def _account(self, peer: tuple[str, int]) -> str:
        """Return what a connection is counted under: its address, or itself if it is a proxy's, with many clients."""
        return f"{peer[0]}:{peer[1]}" if peer[0] in self._server.entrance.proxies else peer[0]

    def _origin(self, request: web.Request, connection: OpenConnection) -> str:
        """Return the address that a request comes from."""
        try:
            headers = request.headers.getall("Forwarded", ())
            return origin_of(headers, connection.peer[0], self._server.entrance.proxies).address
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

    def _refuse(self, handler: object, connection: OpenConnection, reason: str, detail: str) -> None:
        self._server.hub.counters.refuse("http", reason, _named(connection.peer), detail)
        self.remove(handler)
        connection.transport.abort()


def _named(peer: tuple[str, int]) -> str:
    """Name a peer as every other door does."""
    return f"{peer[0]}:{peer[1]}"
