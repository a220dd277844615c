"""The link's doors: tubes over TCP and over WebSocket.

:mod:`~headrace.net.link.connection` keeps one client within its limits;
:mod:`~headrace.net.link.operations.dispatch` performs its requests. The door connects the two, and passes on commits,
ticks and the end.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from headrace.errors import RefusedError
from headrace.hub.access.accounts import Resource
from headrace.hub.access.addresses import parse_address
from headrace.message import Batch
from headrace.net.link.connection import LinkConnection
from headrace.net.link.hello import Hellos
from headrace.net.link.operations.consumers import LinkConsumers
from headrace.net.link.operations.dispatch import LinkOperations
from headrace.net.link.streams.rounds import StreamRounds
from headrace.net.link.streams.row_bodies import row_cache
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.entrance import NO_TLS_ANSWER, TLS_AT_PLAIN, TLS_HELLO
from headrace.net.server.status.program_reports import ProgramReports
from headrace.tube import Tube, TubeOptions, TubeServer, serve
from headrace.tube.server import Listener
from headrace.wire.link.message import MAX_ANSWER, MAX_MESSAGE

Transport = Literal["tcp", "websocket"]

MAX_HELLO: Final = 4 << 10
"""The longest message of a client before its hello: more than any proof of its identity takes."""

_LOOPBACK: Final = r"(?:[a-z0-9-]+\.)*localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]"


class LinkDoor:
    """The link, open on any number of sockets."""

    def __init__(
        self, context: DoorContext, status: Callable[[], dict[str, object]], reports: ProgramReports
    ) -> None:
        self.stopping: RefusedError | None = None
        """The error for new requests once the hub is stopping."""
        self.counters = context.hub.counters
        self.hub = context.hub
        self.accounts = context.accounts
        self.admission = context.admission
        self._context = context
        self._cache = row_cache()
        self.consumers = LinkConsumers(context.hub, context.parts.consumers, context.readers)
        self.hellos = Hellos(context)
        self.operations = LinkOperations(context, self._cache, self.consumers, status, reports)
        self._connections: set[LinkConnection] = set()
        self._rounds = StreamRounds(self._connections)
        self._servers: list[TubeServer] = []

    async def open(self, transport: Transport, sock: socket.socket) -> None:
        """Accept tubes on a bound socket."""
        limits = self._context.settings.limits
        options = TubeOptions(
            max_message=MAX_MESSAGE,
            max_sent=MAX_ANSWER,
            max_inflated=MAX_MESSAGE,
            max_stranger=MAX_HELLO,
            # Rows are compressed on disk; small messages are not worth the event loop's time.
            compress=False,
            # An unfinished message is kept no longer than an unfinished packet at any other door.
            message_seconds=limits.slow_seconds,
            handshake_seconds=limits.handshake_seconds,
            close_seconds=max(limits.drain_seconds / 2, 0.001),
        )
        origins = _origins(sock.getsockname()[0], self._context.settings.auth.origins)
        server = await serve(
            self._converse,
            transport=transport,
            sock=sock,
            options=options,
            admit=self._admit,
            origins=origins,
            unfinished=self._context.unfinished,
            turns=self._context.turns,
            accept=partial(self._accept, transport),
        )
        self._servers.append(server)

    # Called by the server

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Continue every stream at the head; ``batches`` is empty if only entries were committed."""
        if not self._cache.readers:
            self._cache.clear()
        elif batches:
            self._cache.encode(batches)
        if (batches and self._cache.readers) or self.operations.waiting.count:
            self._rounds.begin()
        self.consumers.deliver()

    def tick(self, now: float) -> None:
        """Enforce deadlines."""
        for connection in tuple(self._connections):
            connection.tick(now, self._context.settings.limits.handshake_seconds)
        self.consumers.tick(now)
        self.operations.tick(now)

    def relieved(self) -> None:
        """Resume reading from publishers."""
        for connection in tuple(self._connections):
            connection.regulate()

    def facts(self) -> dict[str, int]:
        """Return the numbers of connections and streams."""
        return {
            "tube": len(self._connections),
            "tube_streams": sum(len(connection.streams) for connection in self._connections),
        }

    def stop(self) -> None:
        """Stop accepting and taking requests: streams end, and open requests are still answered."""
        self.stopping = RefusedError("stopping", "the hub is stopping: connect again, elsewhere or later")
        self.consumers.stop()
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Wait until all requests are answered and every tube is closed."""
        await asyncio.gather(*(server.wait_closed() for server in self._servers))

    def abort(self) -> None:
        """Close everything that is still open, now."""
        for connection in tuple(self._connections):
            connection.tube.abort()
            connection.finished.set()

    async def _accept(
        self,
        transport: Transport,
        sock: socket.socket,
        make: Callable[[tuple[str, int] | None], asyncio.BaseProtocol],
    ) -> Listener:
        door, answer = ("tube_tcp", b"") if transport == "tcp" else ("tube_ws", NO_TLS_ANSWER)
        return await self._context.entrance.listen(door, sock, make, name="tube", plain_answer=answer)

    def _admit(self, tube: Tube) -> bool:
        address, door = tube.peer.host, f"tube over {tube.transport.value}"
        refusal = self._context.admission.admit(address, door)
        if refusal is not None:
            self.counters.refuse("tube", "connections", str(tube.peer), refusal)
            return False
        tube.when_closed(lambda _: self._context.admission.release(address, door))
        tube.when_closed(self._look_back)
        return True

    def _look_back(self, tube: Tube) -> None:
        """Count a refusal of a peer that spoke TLS at a door without it."""
        if tube.first_bytes == TLS_HELLO and tube.error is not None:
            self.counters.refuse("tube", TLS_AT_PLAIN.reason, str(tube.peer), TLS_AT_PLAIN.detail)

    async def _converse(self, tube: Tube) -> None:
        connection = LinkConnection(self, tube)
        if (detail := connection.account.take(Resource.CONNECTIONS)) is not None:
            connection.refuse("connections", detail)
            tube.abort()
            return
        self._connections.add(connection)
        self._context.access.join(connection)
        try:
            tube.attach(connection)
            await connection.finished.wait()
        finally:
            connection.drop()
            connection.account.give_back(Resource.CONNECTIONS)
            self._connections.discard(connection)
            self._context.access.leave(connection)


def _origins(host: str, others: Sequence[str]) -> list[str | re.Pattern[str] | None]:
    """Return the origins of web pages that may use a tube at ``host``: the host's own, and those in the settings.

    Browsers let every page connect anywhere, and send its origin; other clients send no origin. The host is identified
    by its address, not by the name in the page's URL, since a name can resolve to anything.
    """
    address = parse_address(host)
    if address.is_loopback or address.is_unspecified:
        name = _LOOPBACK
    else:
        name = re.escape(f"[{address}]" if address.version == 6 else str(address))
    return [None, re.compile(rf"https?://(?:{name})(?::[0-9]{{1,5}})?"), *others]
