"""Connect: ``tube = await connect(url)``, or ``async with connect(url) as tube``."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit, urlunsplit

from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from headrace.errors import UnreachableError, UsageError
from headrace.protocols import PORTS
from headrace.tube.endpoint import Tube
from headrace.tube.options import DEFAULT_OPTIONS, TubeOptions
from headrace.tube.session import TubeSession
from headrace.tube.transport import ReadBuffer, TcpTransport, TubeTransport
from headrace.tube.websocket import WebSocketTransport
from headrace.wire.tube.connection import Side, Transport

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])

TCP_PORT = PORTS["tube_tcp"]
WEBSOCKET_PORT = PORTS["tube_ws"]

_SCHEMES = {
    "tube": (Transport.TCP, TCP_PORT),
    "tube+tcp": (Transport.TCP, TCP_PORT),
    "tube+ws": (Transport.WEBSOCKET, WEBSOCKET_PORT),
    "ws": (Transport.WEBSOCKET, WEBSOCKET_PORT),
    "tube+tls": (Transport.TCP, TCP_PORT),
    "wss": (Transport.WEBSOCKET, WEBSOCKET_PORT),
}
_TLS = ("tube+tls", "wss")
_SHUTDOWN_SECONDS = 2.0
"""How long the peer of a closed connection has to say goodbye under TLS."""


def connect(
    url: str, *, options: TubeOptions = DEFAULT_OPTIONS, tls: ssl.SSLContext | None = None
) -> Opening[Tube]:
    """Connect to a tube server.

    ``tube://host:port`` is TCP (port 8081 unless it says otherwise), ``ws://host:port/path`` WebSocket (8080);
    ``tube+tcp`` and ``tube+ws`` are other names for the two. ``tube+tls`` and ``wss`` are the same under TLS; ``tls``
    says whom to trust there, by default those whom the system trusts.

    Raises :class:`~headrace.errors.UnreachableError` if there is no answer within ``options.handshake_seconds``,
    :class:`~headrace.errors.RefusedError` if a web server refuses, and a :class:`~headrace.errors.WireError` if the
    answer is not a tube's.

    >>> from headrace import tube
    >>> async def answer(tube):
    ...     async for question in tube:
    ...         await tube.send(question.upper())
    >>> async def ask():
    ...     async with (
    ...         tube.serve(answer, port=0) as server,
    ...         tube.connect(f"tube://{server.addresses[0]}") as client,
    ...     ):
    ...         await client.send(b"good day")
    ...         return bytes(await client.receive())
    >>> asyncio.run(ask())
    b'GOOD DAY'
    """
    return Opening(partial(_connect, _Target.parse(url), options, tls))


class Opening(Generic[T]):
    """A tube or a server being opened: await it, or enter it to have it closed in the end."""

    def __init__(self, start: Callable[[], Coroutine[object, None, T]]) -> None:
        self._start = start
        self._opened: T

    def __await__(self) -> Generator[object, None, T]:
        return self._start().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._start()
        return self._opened

    async def __aexit__(self, *why: Any) -> None:
        await self._opened.__aexit__(*why)


async def _connect(target: _Target, options: TubeOptions, tls: ssl.SSLContext | None) -> Tube:
    session = TubeSession(Side.CLIENT, target.transport, options)
    tube = Tube(session)
    try:
        async with asyncio.timeout(options.handshake_seconds):
            await _open(target, session, tls)
    except TimeoutError:
        raise UnreachableError(target.url, f"no answer within {options.handshake_seconds:g} s") from None
    except (OSError, UnicodeError) as error:
        # A host name that cannot be one is a UnicodeError.
        raise UnreachableError(target.url, str(error)) from error
    return tube


async def _open(target: _Target, session: TubeSession, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    secured: dict[str, Any] = {}
    if target.tls:
        secured = {
            "ssl": tls or ssl.create_default_context(),
            "server_hostname": target.host,
            "ssl_shutdown_timeout": _SHUTDOWN_SECONDS,
        }
    transport, _ = await loop.create_connection(
        lambda: target.protocol(session), target.host, target.port, **secured
    )
    try:
        await session.wait_open()
    except BaseException:
        transport.abort()
        raise


@dataclass(frozen=True, slots=True)
class _Target:
    """The parts of a tube's URL."""

    url: str
    transport: Transport
    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> _Target:
        try:
            parts = urlsplit(url)
            transport, default_port = _SCHEMES[parts.scheme]
            port = default_port if parts.port is None else parts.port
            if not parts.hostname:
                raise ValueError(url)
            if transport is Transport.WEBSOCKET:
                # Without a port the library would take 80; and it knows the scheme under one name only.
                netloc = parts.netloc if parts.port is not None else f"{parts.netloc.rstrip(':')}:{port}"
                scheme = "wss" if parts.scheme in _TLS else "ws"
                url = urlunsplit(parts._replace(scheme=scheme, netloc=netloc))
                parse_uri(url)
        except (KeyError, ValueError, InvalidURI):
            expected = "tube://host:port or ws://host:port/path, or with TLS tube+tls:// or wss://"
            raise UsageError(f"{url!r} is no tube: expected {expected}") from None
        return cls(url, transport, parts.hostname, port, parts.scheme in _TLS)

    def protocol(self, session: TubeSession) -> TubeTransport:
        if self.transport is Transport.TCP:
            return TcpTransport(session, ReadBuffer())
        return WebSocketTransport.client(session, ReadBuffer(), parse_uri(self.url))
