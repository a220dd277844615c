"""The socket under a tube: TCP itself, and what TCP and WebSocket share.

A transport is dull: bytes from the socket go to the session (on TCP as they are, on WebSocket frame by frame), pieces
from the session go to the socket, and the news that its buffer is full or has room is passed on.

All transports of a server read into one buffer. The session processes what was read before control returns to the
event loop, so the buffer is free again by then. If the session stops in the middle because its consumer is slow, it
keeps that buffer, and the others get a new one.

How much is read at a time depends on how long it takes to process. A read in long fragments is a copy; the same read
in one-byte fragments is a hundred thousand steps of Python, during which nobody else is served. So a transport begins
with small reads, doubles them while they are processed quickly, and cuts them down when they are not.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, cast

from headrace.config import Address
from headrace.errors import WireError
from headrace.tube.session import TubeSession
from headrace.wire.receive_buffer import Buffer

READ_BYTES = 256 << 10
"""The most that one read brings: a whole fragment of the size we ask for."""

SMALLEST_READ = 16 << 10

_FIRST = 2

_TOO_LONG = 0.005
"""Seconds that processing one read may take."""


class ReadBuffer:
    """Memory to read into, lent for the time of one read."""

    def __init__(self) -> None:
        self._view: memoryview | None = None

    @property
    def view(self) -> memoryview:
        """The buffer; a new one if the last was kept."""
        if self._view is None:
            self._view = memoryview(bytearray(READ_BYTES))
        return self._view

    def keep(self) -> None:
        """Leave the buffer to its present user."""
        self._view = None


class TubeTransport(asyncio.BufferedProtocol):
    """One connection's socket."""

    def __init__(self, session: TubeSession, buffer: ReadBuffer) -> None:
        self._session = session
        self._buffer = buffer
        self._transport: asyncio.Transport
        self._smallest_read = self._read_size = SMALLEST_READ
        self.written = 0
        """Bytes handed to the transport so far."""
        self.first_bytes = b""
        """What the peer sent first, of which two bytes tell another protocol."""
        self.origin: Address | None = None
        """The peer's address, if it is another than the socket's: one that a proxy has named."""

    # Called by the session

    @property
    def peer(self) -> Address:
        """The peer's address."""
        return self.origin or address_of(self._transport.get_extra_info("peername"))

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The certificate that the peer has shown, as the ssl module gives it; empty if it has shown none."""
        return self._transport.get_extra_info("peercert") or {}

    @property
    def local(self) -> Address:
        """Our own address."""
        return address_of(self._transport.get_extra_info("sockname"))

    @property
    def unsent(self) -> int:
        """Bytes handed over and not yet taken by the network."""
        return self._transport.get_write_buffer_size()

    @property
    def unfinished(self) -> int:
        """Bytes of something that the transport itself has only a part of."""
        return 0

    @abstractmethod
    def write(self, pieces: Sequence[Buffer]) -> None:
        """Send pieces of messages, in order."""

    @abstractmethod
    def finish(self) -> None:
        """Announce, after what was written, that we send no more; the peer then closes as well."""

    @abstractmethod
    def refuse(self, error: WireError, /) -> None:
        """Close because of what the peer sent; tell it why if the protocol can."""

    def close(self) -> None:
        """Close after what was written, without waiting for the peer."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not taken by the network is lost."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Leave what the peer sends in the network."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._session.options.write_buffer)
        self._session.connect(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Pass on that the connection is gone."""
        self._session.lose(error)

    def get_buffer(self, _size: int) -> memoryview:
        """Lend memory to read into."""
        return self._buffer.view[: self._read_size]

    def buffer_updated(self, received: int) -> None:
        """Take what was read."""
        view = self._buffer.view[:received]
        if not self.first_bytes:
            self.first_bytes = bytes(view[:_FIRST])
        if received < self._read_size == self._smallest_read:
            if not self._take(view):
                self._buffer.keep()
            return
        began = monotonic()
        if not self._take(view):
            self._buffer.keep()
        if monotonic() - began > _TOO_LONG:
            self._read_size = max(self._smallest_read, self._read_size // 4)
        elif received == self._read_size:
            self._read_size = min(READ_BYTES, self._read_size * 2)

    def pause_writing(self) -> None:
        """Pass on that the peer takes less than it is sent."""
        self._session.fill()

    def resume_writing(self) -> None:
        """Pass on that there is room again."""
        self._session.make_room()

    @abstractmethod
    def _take(self, data: memoryview) -> bool:
        """Take what was read; return whether its memory is free again."""


class TcpTransport(TubeTransport):
    """One TCP connection."""

    _finished = False

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Send bytes; nothing more once our direction has ended: what was read by then may still ask for answers."""
        if self._finished:
            return
        if len(pieces) == 1:
            # Python's own transports copy what writelines() is given.
            self.written += len(pieces[0])
            self._transport.write(pieces[0])
        else:
            self.written += sum(map(len, pieces))
            self._transport.writelines(pieces)

    def finish(self) -> None:
        """Half-close: the peer reads all that was written, then our end, and closes as well."""
        if self._transport.is_closing():
            return
        self._finished = True
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # reset already, which the loop has not reported yet
                self._transport.write_eof()
        else:
            self._transport.close()

    def refuse(self, _error: WireError) -> None:
        """Close: the protocol has no error message."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: nothing comes before the fragment sizes."""
        super().connection_made(transport)
        self._session.ready()

    def eof_received(self) -> bool:
        """Pass on that the peer sends no more; return whether we may still send, which TLS never allows."""
        return self._session.end(sending=self._transport.can_write_eof())

    def _take(self, data: memoryview) -> bool:
        return self._session.read(data)


def address_of(name: object) -> Address:
    """Convert a socket's name: a tuple for IP, a text for Unix sockets, nothing once it is closed."""
    if isinstance(name, tuple) and len(name) >= 2:
        return Address(str(name[0]), int(name[1]))
    return Address(str(name or "somebody"), 0)
