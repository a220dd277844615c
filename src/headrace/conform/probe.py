"""The tools of a case: connections to the server that are bounded in time and bytes and keep a transcript."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, Self, TypeVar

from headrace.config import Address
from headrace.conform.case import MismatchError, NotRunError, shown
from headrace.conform.target import Target
from headrace.errors import system_reason

Resource = TypeVar("Resource")

MAX_RECEIVED: Final = 16 << 20
"""Bytes that a case takes from one connection before it gives up: a busy server would otherwise feed it forever."""

MAX_DATAGRAM: Final = 65_507

_PIECE: Final = 1 << 16
_TRANSCRIPT: Final = 6
"""Pieces that a report shows: the last ones explain a failure."""


class Probe:
    """The means of one case, made afresh for each and closed after it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.sent: list[str] = []
        self.token = secrets.token_hex(6)
        """Marks the messages of this case among all others on the server."""
        self._deadline = time.monotonic() + target.patience
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def transcript(self) -> tuple[str, ...]:
        """What was sent, oldest first; only the end of it, if it is long."""
        left_out = len(self.sent) - _TRANSCRIPT
        return tuple(self.sent) if left_out <= 0 else (f"… {left_out} before", *self.sent[-_TRANSCRIPT:])

    def marker(self, label: str = "") -> bytes:
        """Return a payload that nobody else sends."""
        return f"headrace-conform {self.token} {label}".rstrip().encode()

    def seconds_left(self) -> float:
        """Return the seconds that the case may still wait; raise :class:`TimeoutError` if there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def allow(self, seconds: float) -> None:
        """Give the case at least this long from now on, where a document's own timing needs it."""
        self._deadline = max(self._deadline, time.monotonic() + seconds)

    @contextlib.contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Wait no longer than this inside the block, for what need not come."""
        whole = self._deadline
        self._deadline = min(whole, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._deadline = whole

    def stream(self, place: Address | None = None) -> Stream:
        """Open a TCP connection, by default to the server under test."""
        to = place or self.target.place
        try:
            sock = socket.create_connection((to.host, to.port), self.seconds_left())
        except OSError as error:
            raise MismatchError(f"a connection to {to}", _reason(error)) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Stream(self, self._open.enter_context(sock))

    def datagrams(self) -> Datagrams:
        """Open a UDP socket that is connected to the server."""
        place = self.target.place
        try:
            found = socket.getaddrinfo(place.host, place.port, socket.AF_INET, socket.SOCK_DGRAM)
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            sock.connect(found[0][4])
        except OSError as error:
            raise NotRunError(f"no datagrams can be sent to {place}: {_reason(error)}") from None
        return Datagrams(self, self._open.enter_context(sock))

    def listener(self, like: Stream) -> socket.socket:
        """Listen where the server may dial back: on the address that a stream to it comes from."""
        sock = socket.create_server((like.local[0], 0))
        sock.settimeout(self.seconds_left())
        return self._open.enter_context(sock)

    def enter(self, resource: AbstractContextManager[Resource]) -> Resource:
        """Enter a context that is left when the case is over."""
        return self._open.enter_context(resource)


class Stream:
    """A TCP connection. Waiting too long, and an end where bytes are due, are mismatches with the reason."""

    def __init__(self, probe: Probe, sock: socket.socket) -> None:
        self._probe = probe
        self._socket = sock
        self._ahead = b""
        self._received = 0
        self.local: tuple[str, int] = sock.getsockname()[:2]

    def send(self, data: bytes) -> None:
        """Send bytes. A server that closes meanwhile is noticed by whoever reads."""
        self._probe.sent.append(shown(data))
        with contextlib.suppress(ConnectionError):
            self._socket.settimeout(self._left("the server to take what is sent"))
            self._socket.sendall(data)

    def send_bytewise(self, data: bytes) -> None:
        """Send bytes one at a time, each in a segment of its own."""
        self._probe.sent.append(f"{shown(data)}, byte by byte")
        with contextlib.suppress(ConnectionError):
            for byte in data:
                self._socket.settimeout(self._left("the server to take what is sent"))
                self._socket.sendall(bytes([byte]))

    def take(self, count: int, expected: str) -> bytes:
        """Return the next ``count`` bytes; ``expected`` says what they are, for a report."""
        while len(self._ahead) < count:
            try:
                more = self._receive()
            except TimeoutError:
                raise MismatchError(expected, f"{shown(self._ahead)}, and then silence") from None
            if not more:
                raise MismatchError(expected, f"{shown(self._ahead)}, and then the end of the connection")
            self._ahead += more
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    def take_line(self, limit: int, expected: str) -> bytes:
        """Return the next line without its CRLF."""
        line = b""
        while not line.endswith(b"\r\n"):
            if len(line) >= limit:
                raise MismatchError(expected, f"a line of over {limit} bytes: {shown(line)}")
            line += self.take(1, expected)
        return line[:-2]

    def expect(self, data: bytes, what: str) -> None:
        """Take exactly these bytes."""
        came = self.take(len(data), f"{what}: {shown(data)}")
        if came != data:
            raise MismatchError(f"{what}: {shown(data)}", shown(came))

    def expect_end(self, why: str) -> bytes:
        """Wait until the server has closed the connection; return what it still sent."""
        rest = self._ahead
        self._ahead = b""
        expected = f"the connection is closed ({why})"
        while True:
            try:
                more = self._receive()
            except TimeoutError:
                raise MismatchError(expected, f"it stays open; came: {shown(rest)}") from None
            if not more:
                return rest
            rest += more

    def stays_open(self, seconds: float, what: str) -> None:
        """Wait a moment for an end that must not come: for doors that never answer."""
        self._socket.settimeout(min(seconds, self._left(what)))
        try:
            if not self._socket.recv(1, socket.MSG_PEEK):
                raise MismatchError(f"{what}: the connection stays open", "it was closed")
        except TimeoutError:
            return
        except ConnectionError as error:
            raise MismatchError(f"{what}: the connection stays open", _reason(error)) from None

    def _receive(self) -> bytes:
        self._socket.settimeout(self._probe.seconds_left())
        try:
            more = self._socket.recv(_PIECE)
        except ConnectionError:
            return b""
        self._received += len(more)
        if self._received > MAX_RECEIVED:
            raise MismatchError("an answer", f"{self._received} bytes without it")
        return more

    def _left(self, what: str) -> float:
        try:
            return self._probe.seconds_left()
        except TimeoutError:
            raise MismatchError(what, "silence") from None


class Datagrams:
    """A UDP socket that is connected to the server."""

    def __init__(self, probe: Probe, sock: socket.socket) -> None:
        self._probe = probe
        self._socket = sock
        self._received = 0
        self.local: tuple[str, int] = sock.getsockname()

    def send(self, data: bytes) -> None:
        """Send a datagram."""
        self._probe.sent.append(shown(data))
        # A port that was closed answers an earlier datagram; whoever waits for the answer reports it.
        with contextlib.suppress(ConnectionError):
            self._socket.send(data)

    def take(self, expected: str) -> bytes:
        """Return the next datagram; ``expected`` says what it is, for a report."""
        try:
            self._socket.settimeout(self._probe.seconds_left())
            data = self._socket.recv(MAX_DATAGRAM + 1)
        except TimeoutError:
            raise MismatchError(expected, "silence") from None
        except ConnectionError as error:
            raise MismatchError(expected, _reason(error)) from None
        self._received += len(data)
        if self._received > MAX_RECEIVED:
            raise MismatchError(expected, f"{self._received} bytes without it")
        return data


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "nobody answered in time"
    return system_reason(error)
