"""Serve tubes: a handler for each tube that is opened, and an orderly end for all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, Protocol, Self

from headrace.config import Address
from headrace.errors import UsageError
from headrace.tube.client import TCP_PORT, WEBSOCKET_PORT, Opening
from headrace.tube.endpoint import Tube
from headrace.tube.fair_turns import FairTurns
from headrace.tube.options import DEFAULT_OPTIONS, TubeOptions
from headrace.tube.session import TubeSession
from headrace.tube.transport import ReadBuffer, TcpTransport, TubeTransport, address_of
from headrace.tube.unfinished import UnfinishedBytes
from headrace.tube.websocket import Origins, WebSocketTransport
from headrace.wire.tube.connection import Side, Transport

logger = logging.getLogger("headrace.tube")

Handler = Callable[[Tube], Awaitable[None] | None]
"""Called for each tube once it is open. An ``async def`` runs as a task, and the tube is closed when it is done. A
plain function attaches a receiver, or keeps the tube, and owns it from then on."""

Admit = Callable[[Tube], bool]


class Listener(Protocol):
    """What accepts connections until it is closed."""

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The sockets it listens on."""

    def close(self) -> None:
        """Accept no more."""


Accept = Callable[
    [socket.socket, Callable[[tuple[str, int] | None], asyncio.BaseProtocol]], Awaitable[Listener]
]
"""Accepts connections on a socket, with a protocol for each, made for the peer's address if that is another's than the
socket says."""


def serve(
    handler: Handler,
    host: str | Sequence[str] | None = "127.0.0.1",
    port: int | None = None,
    *,
    transport: Transport | Literal["tcp", "websocket"] = Transport.TCP,
    sock: socket.socket | None = None,
    options: TubeOptions = DEFAULT_OPTIONS,
    admit: Admit | None = None,
    origins: Origins | None = None,
    unfinished: UnfinishedBytes | None = None,
    turns: FairTurns | None = None,
    tls: ssl.SSLContext | None = None,
    accept: Accept | None = None,
) -> Opening[TubeServer]:
    """Listen for tubes, on ``host`` and ``port`` (0 takes a free one) or on a socket that is bound already.

    ``admit`` is called for each connection before anything is read; ``False`` ends it there. On WebSocket, ``origins``
    lists the origins of web pages that may connect, or patterns for them (``None`` allows clients that send none, which
    all but browsers do); without it, all may. ``unfinished`` bounds the memory for messages that are not whole, of all
    tubes of all servers that share it, and ``turns`` what each may take of a turn of the event loop. With ``tls``, the
    connections are TLS. ``accept`` accepts the connections of ``sock`` in the server's place.

    Raises :class:`~headrace.errors.UsageError` if the address cannot be listened on.

    >>> from headrace import tube
    >>> async def greet(tube):
    ...     await tube.send(b"welcome")
    >>> async def visit():
    ...     async with tube.serve(greet, port=0, transport="websocket") as server:
    ...         async with tube.connect(f"ws://{server.addresses[0]}") as client:
    ...             return [bytes(message) async for message in client]
    >>> asyncio.run(visit())
    [b'welcome']
    """
    try:
        kind = Transport(transport)
    except ValueError:
        raise UsageError(f"transport {transport!r}: expected 'tcp' or 'websocket'") from None
    server = TubeServer(handler, kind, options, admit, origins, unfinished)
    server.turns, server.tls, server.accept = turns, tls, accept
    if port is None:
        port = TCP_PORT if server.transport is Transport.TCP else WEBSOCKET_PORT
    return Opening(partial(server.listen, host, port, sock))


class TubeServer:
    """A listening server; :func:`serve` makes them.

    >>> from headrace import tube
    >>> async def wait_for_the_end(tube):
    ...     assert [message async for message in tube] == []
    >>> async def look():
    ...     async with tube.serve(wait_for_the_end, port=0) as server:
    ...         async with tube.connect(f"tube://{server.addresses[0]}") as client:
    ...             await asyncio.sleep(0)
    ...             return server.transport, server.addresses[0] == client.peer
    >>> asyncio.run(look())
    (<Transport.TCP: 'tcp'>, True)
    """

    def __init__(
        self,
        handler: Handler,
        transport: Transport,
        options: TubeOptions,
        admit: Admit | None,
        origins: Origins | None,
        unfinished: UnfinishedBytes | None = None,
    ) -> None:
        self.transport = transport
        self.options = options
        self._handler = handler
        self._admit = admit
        self._origins = origins
        self._unfinished = unfinished
        self._buffer = ReadBuffer()
        self._sessions: dict[TubeSession, Tube] = {}
        """All connections, including those not open yet."""
        self._tasks: dict[asyncio.Future[None], TubeSession] = {}
        self.turns: FairTurns | None = None
        self.tls: ssl.SSLContext | None = None
        self.accept: Accept | None = None
        self._listener: Listener
        self._closing = False
        self._closed = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The sockets it listens on; none once it is closing."""
        return self._listener.sockets

    @property
    def addresses(self) -> list[Address]:
        """The addresses it listens on."""
        return [address_of(sock.getsockname()) for sock in self.sockets]

    @property
    def tubes(self) -> list[Tube]:
        """The open tubes."""
        return [tube for tube in self._sessions.values() if not tube.closed]

    def close(self) -> None:
        """Stop listening and let every tube come to its end; may be called again.

        A handler gets the messages received so far, then the end of its iteration, and may send until it returns; it is
        cancelled after ``options.close_seconds``. A tube without a task is closed.
        """
        if self._closing:
            return
        self._closing = True
        self._listener.close()
        busy = set(self._tasks.values())
        for session in tuple(self._sessions):
            if session in busy:
                session.stop_receiving()
            else:
                session.close()
        if busy and self.options.close_seconds < math.inf:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self.options.close_seconds, self._cancel_handlers)
        self._note_closed()

    async def wait_closed(self) -> None:
        """Wait until, after :meth:`close`, every handler is done and every tube gone."""
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait_closed()

    async def listen(self, host: str | Sequence[str] | None, port: int, sock: socket.socket | None) -> Self:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        try:
            if sock is None:
                self._listener = await loop.create_server(self._protocol, host, port, ssl=self.tls)
            elif self.accept is not None:
                self._listener = await self.accept(sock, self._protocol)
            else:
                self._listener = await loop.create_server(self._protocol, sock=sock, ssl=self.tls)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {sock or f'{host}:{port}'}: {error.strerror or error}"
            ) from error
        return self

    def _protocol(self, origin: tuple[str, int] | None = None) -> TubeTransport:
        transport = self._transport()
        transport.origin = None if origin is None else Address(*origin)
        return transport

    def _transport(self) -> TubeTransport:
        session = TubeSession(Side.SERVER, self.transport, self.options, self._unfinished, self.turns)
        tube = Tube(session)
        session.admit = partial(self._admits, session, tube)
        session.on_open = partial(self._open, session, tube)
        session.on_gone.append(partial(self._gone, session))
        if self.transport is Transport.TCP:
            return TcpTransport(session, self._buffer)
        return WebSocketTransport.server(session, self._buffer, self._origins)

    def _admits(self, session: TubeSession, tube: Tube) -> bool:
        self._sessions[session] = tube
        return not self._closing and (self._admit is None or self._admit(tube))

    def _open(self, session: TubeSession, tube: Tube) -> None:
        work = self._handler(tube)
        if work is not None:
            task = asyncio.ensure_future(work)
            self._tasks[task] = session
            task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Future[None]) -> None:
        session = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._report(error, session)
        session.close()
        self._note_closed()

    def _report(self, error: BaseException, session: TubeSession) -> None:
        if session.explains(error):
            # That the tube has ended is no fault of the handler.
            logger.info("tube from %s ended: %s", session.peer, error)
        else:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the handler of a tube from {session.peer} failed", "exception": error}
            )

    def _gone(self, session: TubeSession) -> None:
        self._sessions.pop(session, None)
        self._note_closed()

    def _cancel_handlers(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _note_closed(self) -> None:
        if self._closing and not self._sessions and not self._tasks:
            if self._deadline is not None:
                self._deadline.cancel()
            self._closed.set()
