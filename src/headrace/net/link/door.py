"""The link's doors: tubes over TCP and over WebSocket.

:mod:`~headrace.net.link.connection` keeps one client within its bounds; :mod:`~headrace.net.link.operations` dispatches
its requests. The door connects the two, and passes on commits, ticks and the end.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from functools import partial
from time import time
from typing import Final, Literal

import msgspec

from headrace import __version__
from headrace.errors import MalformedError, RefusedError
from headrace.hub.access.accounts import Resource
from headrace.hub.access.addresses import parse_address
from headrace.hub.access.authentication import ADVICE
from headrace.hub.access.principal import Principal
from headrace.message import Batch
from headrace.net.link.connection import ExplainedError, LinkConnection
from headrace.net.link.consumers import LinkConsumers
from headrace.net.link.operations import LinkOperations
from headrace.net.link.row_bodies import row_cache
from headrace.net.link.stream_rounds import StreamRounds
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.entrance import NO_TLS_ANSWER, TLS_AT_PLAIN, TLS_HELLO
from headrace.net.server.accepting.tls import certificate_names
from headrace.net.server.access.challenge import new_challenge
from headrace.net.server.status.program_reports import ProgramReports
from headrace.tube import Tube, TubeOptions, TubeServer, serve
from headrace.tube.server import Listener
from headrace.wire.link.message import MAX_ANSWER, MAX_MESSAGE, VERSION, VERSIONS
from headrace.wire.link.requests import HelloRequest
from headrace.wire.sdk.auth import client_id_text, parse_auth

Transport = Literal["tcp", "websocket"]

MAX_HELLO: Final = 4 << 10
"""The longest message of a client that has not said hello: more than any proof of who it is takes."""

_LOOPBACK: Final = r"(?:[a-z0-9-]+\.)*localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]"


class LinkDoor:
    """The link, open on any number of sockets."""

    def __init__(
        self, context: DoorContext, status: Callable[[], dict[str, object]], reports: ProgramReports
    ) -> None:
        self.stopping: RefusedError | None = None
        """Why no more requests are taken, if so."""
        self.not_yet: Callable[[], str | None] = lambda: None
        """Returns why clients should use another node for now, if so."""
        self.counters = context.hub.counters
        self.hub = context.hub
        self.accounts = context.accounts
        self.admission = context.admission
        self._context = context
        self._cache = row_cache()
        self.consumers = LinkConsumers(context.hub, context.parts.consumers, context.readers)
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
        """Continue every stream at the head; there may be no message among what was committed."""
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
        """Read from publishers again."""
        for connection in tuple(self._connections):
            connection.regulate()

    def facts(self) -> dict[str, int]:
        """Return how many connections and streams there are."""
        return {
            "tube": len(self._connections),
            "tube_streams": sum(connection.streams for connection in self._connections),
        }

    def stop(self) -> None:
        """Accept and read nothing more; streams end, open requests are still answered."""
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

    # Called by connections

    def challenge(self, hello: HelloRequest) -> str | None:
        """Return what a client must sign before its hello counts; ``None`` where that changes nothing."""
        if hello.auth is None or "challenge" in hello.auth or not self._context.authentication.useful:
            return None
        return new_challenge(self.hub.log)

    def greet(
        self, connection: LinkConnection, hello: HelloRequest, challenge: str
    ) -> tuple[dict[str, object], str]:
        """Check a hello; return the members of its answer, and the client's id if it has proven one."""
        if (reason := self.not_yet()) is not None:
            raise RefusedError("stopping", reason)
        if hello.version < VERSIONS[0]:
            spoken = ", ".join(map(str, VERSIONS))
            reason = f"this hub speaks version {spoken} of the link, not {hello.version}"
            raise ExplainedError("version", reason, versions=list(VERSIONS))
        client = self._client_of(connection, hello, challenge)
        log = self.hub.log
        return {
            "version": min(hello.version, VERSION),
            "log": str(log.uuid),
            "node": self.hub.node,
            "hub": __version__,
            "max_message": MAX_MESSAGE,
            "message_bytes": self._context.settings.limits.message_bytes,
            "op": log.head_op,
        }, client

    def _client_of(self, connection: LinkConnection, hello: HelloRequest, challenge: str) -> str:
        authentication, access = self._context.authentication, self._context.access
        if not authentication.useful or (hello.auth is None and connection.principal.known):
            return ""
        try:
            auth = parse_auth(msgspec.json.encode(hello.auth))
        except MalformedError as error:
            access.turned_away("tube", connection.peer, "", "malformed" if hello.auth else "unknown")
            raise RefusedError("auth", f"{error.field}: {error.limit}") from None
        address = connection.tube.peer.host
        client, denied = authentication.judge(auth, time(), address=address, challenge=challenge)
        if denied is not None:
            access.turned_away("tube", connection.peer, client_id_text(auth.client_id), denied)
            raise RefusedError("auth", f"not proven ({denied}): {ADVICE[denied]}")
        return client

    async def _accept(
        self,
        transport: Transport,
        sock: socket.socket,
        make: Callable[[tuple[str, int] | None], asyncio.BaseProtocol],
    ) -> Listener:
        door, answer = ("tube_tcp", b"") if transport == "tcp" else ("tube_ws", NO_TLS_ANSWER)
        return await self._context.entrance.listen(door, sock, make, name="tube", plain_answer=answer)

    def principal_of(self, tube: Tube) -> Principal:
        """Return who a client is before its hello."""
        return self._context.access.principals.of_peer(
            "", next(iter(certificate_names(tube.certificate)), "")
        )

    def identify(self, connection: LinkConnection) -> None:
        """Note who a client is that has said hello."""
        access = self._context.access
        if connection.client:
            proven = access.principals.of_client_id(connection.client)
            connection.principal = proven or access.principals.anonymous
            account = self.accounts.of(connection.principal, connection.tube.peer.host)
            if account is not connection.account:
                if (detail := account.take(Resource.CONNECTIONS)) is not None:
                    asyncio.get_running_loop().call_soon(connection.hang_up)
                    raise RefusedError("limit", detail)
                connection.account.give_back(Resource.CONNECTIONS)
                connection.account = account
        if not connection.principal.anonymous:
            access.let_in(connection.principal, "tube", connection.peer)

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
        """Say what a peer was after that spoke TLS, which is no tube."""
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

    Browsers let every page connect anywhere, and send its origin; other clients send none. The host is known by its
    address, not by the name in the page's URL: a name can resolve to anything.
    """
    address = parse_address(host)
    if address.is_loopback or address.is_unspecified:
        name = _LOOPBACK
    else:
        name = re.escape(f"[{address}]" if address.version == 6 else str(address))
    return [None, re.compile(rf"https?://(?:{name})(?::[0-9]{{1,5}})?"), *others]
