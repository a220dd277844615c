"""How every TCP door accepts: the proxy's header, the first bytes, the TLS handshake; then the door's own protocol.

Strategy: a door without TLS and without proxies leaves accepting to the event loop. Otherwise each connection has a
short task of its own before its protocol sees anything. The first byte is looked at and left in the socket: what is no
TLS is told apart before a handshake begins, and a handshake that fails is an error of that task, which is counted.

Bounds: the task is over within ``limits.handshake_seconds``. There are at most :data:`MAX_UNFINISHED` of them; a new
one takes the place of the oldest of the address that has the most. They count as connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

from headrace.client.tls import SHUTDOWN_SECONDS, RenewedContext, told
from headrace.config import Settings
from headrace.errors import WireError
from headrace.hub.access.addresses import Addresses
from headrace.hub.counters import Counters
from headrace.net.server.accepting import proxy_header
from headrace.net.server.accepting.recording import recorded_as_at
from headrace.net.server.accepting.tls import HubTls
from headrace.net.server.accepting.tls_stream import READ_BYTES, TlsStream


class Refusal(NamedTuple):
    """Why a connection is refused: a word to count it under, and a sentence."""

    reason: str
    detail: str


BACKLOG: Final = 1024

MAX_UNFINISHED: Final = 512
"""Handshakes under way at all doors: each may take a quarter of a megabyte."""

_AT_ONCE: Final = 64
"""Connections that are accepted in a row before others have their turn."""

_PAUSE_SECONDS: Final = 1.0
"""The pause when the system has no room for another socket."""

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_HANDSHAKE: Final = 0x16
"""The first byte of a TLS hello."""

TLS_HELLO: Final = b"\x16\x03"
"""The first bytes of a TLS hello, whatever its version."""

TLS_AT_PLAIN: Final = Refusal(
    "tls", "the peer sent a TLS hello, and this door has no TLS: use the scheme without TLS, or tls.cert"
)
"""Why a peer is refused that speaks TLS where it is not spoken."""

_PROXIED: Final = proxy_header.SIGNATURE[0]

_OF_CLIENT: Final = {
    "CERTIFICATE_VERIFY_FAILED": "the client's certificate is not one of tls.ca's, or has expired",
    "UNSUPPORTED_PROTOCOL": "the client speaks only versions of TLS before 1.2",
    "NO_SHARED_CIPHER": "the client and the hub have no cipher in common",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not know the authority that signed our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client finds that our certificate has expired",
}
"""The meaning of failed handshakes, by OpenSSL's reason."""

NO_TLS_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"X-Content-Type-Options: nosniff\r\nContent-Length: 56\r\n\r\n"
    b"This door speaks TLS: the URL begins with https or wss.\n"
)
"""The answer to a web client that speaks plain HTTP to a TLS door."""

Endpoint = tuple[str, int]


Make = Callable[[Endpoint | None], asyncio.BaseProtocol]
"""Makes the protocol of a new connection; given the peer's address, if it is another than the socket's."""


class Listening(Protocol):
    """Something that accepts connections until it is closed."""

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The sockets it listens on."""

    def close(self) -> None:
        """Accept no more."""


class Entrance:
    """The common part of all doors' accept paths."""

    def __init__(self, settings: Settings, counters: Counters) -> None:
        self.tls = HubTls(settings)
        self.proxies = Addresses(settings.limits.proxies)
        """Proxies that are believed."""
        self.counters = counters
        self.seconds = settings.limits.handshake_seconds
        self.plaintext = memoryview(bytearray(READ_BYTES))
        """What TLS has just decrypted, for one connection of this hub at a time."""
        self._unfinished: dict[asyncio.Task[None], _Arrival] = {}

    @property
    def unfinished(self) -> int:
        """Connections whose handshake is under way."""
        return len(self._unfinished)

    async def listen(
        self,
        door: str,
        sock: socket.socket,
        make: Make,
        *,
        tls: RenewedContext | None = None,
        name: str | None = None,
        plain_answer: bytes = b"",
    ) -> Listening:
        """Accept for a ``door``, which counters know by ``name``. ``tls`` replaces the hub's own.

        ``plain_answer`` goes to peers that do not speak TLS where that is spoken.
        """
        tls = self.tls.accepts(door) if tls is None else tls
        if tls is None and not self.proxies:
            return await asyncio.get_running_loop().create_server(
                partial(make, None), sock=sock, backlog=BACKLOG
            )
        return _Doorway(self, name or door, sock, recorded_as_at(sock, make), tls, plain_answer)

    def arrived(self, doorway: _Doorway, sock: socket.socket, peer: Endpoint) -> None:
        """Take a connection whose handshake is to come."""
        if len(self._unfinished) >= MAX_UNFINISHED:
            self._make_room()
        arrival = _Arrival(doorway, sock, peer)
        task = asyncio.ensure_future(arrival.let_in())
        self._unfinished[task] = arrival
        task.add_done_callback(self._unfinished.__delitem__)

    def leave(self, doorway: _Doorway) -> None:
        """End the unfinished handshakes at a door that closes."""
        for arrival in tuple(self._unfinished.values()):
            if arrival.doorway is doorway:
                arrival.end()

    def _make_room(self) -> None:
        """End the oldest handshake of the address that has the most."""
        count = Counter(each.peer[0] for each in self._unfinished.values() if not each.ended)
        if count:
            most = count.most_common(1)[0][0]
            arrival = next(
                each for each in self._unfinished.values() if each.peer[0] == most and not each.ended
            )
            arrival.refuse("handshakes", f"{MAX_UNFINISHED} handshakes are under way, most of this address")
            arrival.end()


class _Doorway:
    """One listening socket, where each connection has something to do before its protocol begins."""

    def __init__(
        self,
        entrance: Entrance,
        name: str,
        listening: socket.socket,
        make: Make,
        tls: RenewedContext | None,
        plain_answer: bytes,
    ) -> None:
        self.entrance = entrance
        self.name = name
        self.make = make
        self.tls = tls
        self.plain_answer = plain_answer
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listening.listen(BACKLOG)
        self._watch()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The socket, as asyncio's servers offer it."""
        return () if self._listening.fileno() < 0 else (self._listening,)

    def close(self) -> None:
        """Accept no more."""
        if self._listening.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        self.entrance.leave(self)

    def _watch(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                # The connection waits in the kernel: asking again at once would spin.
                self._loop.remove_reader(self._listening.fileno())
                self._pause = self._loop.call_later(_PAUSE_SECONDS, self._watch)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.entrance.arrived(self, sock, peer[:2])


@dataclass(eq=False, slots=True)
class _Arrival:
    """A connection on its way to its protocol."""

    doorway: _Doorway
    sock: socket.socket
    peer: Endpoint
    ended: bool = False
    """Whether this hub ended it, so that it need not be reported."""

    async def let_in(self) -> None:
        """Read what comes first, shake hands, and hand the connection over."""
        try:
            if not await self._hand_over():
                self.sock.close()
        except TimeoutError:
            self._fail("stalled", f"said nothing for {self.doorway.entrance.seconds:g} s")
        except WireError as error:
            self._fail(error.reason, error)
        except ssl.SSLError as error:
            self._fail("handshake", _OF_CLIENT.get(error.reason or "", f"TLS failed ({told(error)})"))
        except ConnectionAbortedError:
            # How the event loop says that the handshake took too long.
            self._fail("stalled", f"no TLS handshake within {self.doorway.entrance.seconds:g} s")
        except OSError as error:
            self._fail("handshake", f"the connection ended before it had begun ({told(error)})")
        except BaseException:
            self.sock.close()
            raise

    def refuse(self, reason: str, detail: object) -> None:
        """Count a refusal."""
        where = f"{self.peer[0]}:{self.peer[1]}"
        self.doorway.entrance.counters.refuse(self.doorway.name, reason, where, detail)

    def end(self) -> None:
        """End it, whoever has the socket by now."""
        self.ended = True
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It is gone already.

    def _fail(self, reason: str, detail: object) -> None:
        if not self.ended:
            self.refuse(reason, detail)
        self.sock.close()

    async def _hand_over(self) -> bool:
        """Return whether the connection has its protocol; if not, there is nobody to notify."""
        loop, doorway = asyncio.get_running_loop(), self.doorway
        deadline = loop.time() + doorway.entrance.seconds
        origin: Endpoint | None = None
        async with asyncio.timeout_at(deadline):
            if self.peer[0] in doorway.entrance.proxies:
                # At http a proxy may as well say it in Forwarded.
                first = await self._look()
                if doorway.name != "http" or first[:1] == bytes([_PROXIED]):
                    origin = await self._origin()
            if doorway.tls is not None:
                first = await self._look()
        if doorway.tls is None:
            await loop.connect_accepted_socket(partial(doorway.make, origin), self.sock)
        elif not first:
            return False
        elif first[0] != _HANDSHAKE:
            await self._turn_away()
            return False
        else:
            await self._begin_tls(doorway.tls.latest, doorway.make(origin), deadline)
        if hasattr(socket, "TCP_QUICKACK"):
            # A client's first words may wait for the acknowledgement of its last handshake message, which the system
            # would delay: there is no answer that could carry it.
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return True

    async def _begin_tls(self, tls: ssl.SSLContext, inner: asyncio.BaseProtocol, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        arguments: dict[str, Any] = {
            "ssl_handshake_timeout": max(deadline - loop.time(), 0.01),
            "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
        }
        if not isinstance(inner, asyncio.BufferedProtocol):
            await loop.connect_accepted_socket(lambda: inner, self.sock, ssl=tls, **arguments)
            return
        below, before = await loop.connect_accepted_socket(_BeforeTls, self.sock)
        stream = TlsStream(inner, below, self.doorway.entrance.plaintext)
        shaking = asyncio.ensure_future(loop.start_tls(below, stream, tls, server_side=True, **arguments))
        # In the first turn TLS takes the transport's place; in the next it is told so, and reading begins.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not below.is_closing():
            before.pass_on(below.get_protocol())
        stream.begin(cast("asyncio.Transport", await shaking))

    async def _look(self) -> bytes:
        """Wait for the first byte, and leave it where it is; none if the peer has gone."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self.sock.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                readable = loop.create_future()
                loop.add_reader(self.sock.fileno(), _note, readable)
                try:
                    await readable
                finally:
                    loop.remove_reader(self.sock.fileno())

    async def _origin(self) -> Endpoint | None:
        """Read the proxy's header."""
        fixed = await self._read(proxy_header.FIXED_BYTES)
        rest = await self._read(proxy_header.length_of(fixed) - len(fixed))
        return proxy_header.parse_origin(fixed + rest)

    async def _read(self, size: int) -> bytes:
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < size:
            more = await loop.sock_recv(self.sock, size - len(data))
            if not more:
                raise ConnectionResetError(errno.ECONNRESET, "the header was cut short")
            data += more
        return data

    async def _turn_away(self) -> None:
        """Answer a peer without TLS, and close in order: a socket closed with unread bytes would be reset."""
        self.refuse("plain", "the peer does not speak TLS, which this door requires")
        self.ended = True
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(SHUTDOWN_SECONDS):
            if self.doorway.plain_answer:
                await loop.sock_sendall(self.sock, self.doorway.plain_answer)
            self.sock.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(self.sock, 1 << 16):
                pass


class _BeforeTls(asyncio.Protocol):
    """Has a connection until TLS has it; an event loop may have read the hello by then."""

    def __init__(self) -> None:
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).pause_reading()

    def data_received(self, data: bytes) -> None:
        self._read += data

    def pass_on(self, tls: Any) -> None:
        """Give TLS what was read; its protocol is a buffered one, by whichever name the event loop has for that."""
        while self._read:
            room = memoryview(tls.get_buffer(len(self._read)))[: len(self._read)]
            room[:] = self._read[: len(room)]
            self._read = self._read[len(room) :]
            tls.buffer_updated(len(room))


def _note(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
