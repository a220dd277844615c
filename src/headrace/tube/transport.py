"""The socket under a tube: what TCP and WebSocket share, and what a session may ask of either.

A line is dull: bytes from the socket go to the session (on TCP as they are, on WebSocket frame by frame), pieces
from the session go to the socket, and the transport's word that its buffer is full or has room is passed on.

All lines of a server read into one buffer. The session looks at what was read before control returns to the event
loop, so it is free again by then; unless the session stops in the middle because its consumer is slow. Then it
keeps that buffer, and the others get a new one.

How much is read at a time depends on how long it takes to look at it. A read in long fragments is a copy; the same
read in one-byte fragments is a hundred thousand steps of Python, during which nobody else is served. So a line begins
with small bites, takes larger ones while they go down quickly, and smaller ones when they do not.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

from headrace.config import Address
from headrace.errors import WireError
from headrace.tube.session import Session
from headrace.wire.receive_buffer import Buffer

READ_BYTES = 256 << 10
"""What one read may bring: a whole fragment of the size we ask for."""

SMALLEST_BITE = 16 << 10

_TOO_LONG = 0.005
"""Seconds that looking at one read may take."""


class ReadBuffer:
    """Memory to read into, lent for the time of one read."""

    def __init__(self) -> None:
        self._view: memoryview | None = None

    @property
    def view(self) -> memoryview:
        """The buffer, which is new if the last was kept."""
        if self._view is None:
            self._view = memoryview(bytearray(READ_BYTES))
        return self._view

    def keep(self) -> None:
        """Leave the buffer to whoever has it now."""
        self._view = None


class Line(asyncio.BufferedProtocol):
    """One connection's socket."""

    def __init__(self, session: Session, buffer: ReadBuffer) -> None:
        self._session = session
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._bite = SMALLEST_BITE
        self.written = 0
        """Bytes handed to the transport so far."""

    # What the session asks

    @property
    def peer(self) -> Address:
        """Who is at the other end."""
        return address_of(self._transport.get_extra_info("peername"))

    @property
    def local(self) -> Address:
        """Where we are."""
        return address_of(self._transport.get_extra_info("sockname"))

    @property
    def unsent(self) -> int:
        """Bytes handed over and not yet taken by the network."""
        return self._transport.get_write_buffer_size()

    @property
    def unfinished(self) -> bool:
        """Whether the line itself waits for the rest of something."""
        return False

    @abstractmethod
    def write(self, pieces: Sequence[Buffer]) -> None:
        """Send pieces of messages, in order."""

    @abstractmethod
    def finish(self) -> None:
        """Say that we send no more, after what was written; the peer then closes as well."""

    @abstractmethod
    def refuse(self, error: WireError, /) -> None:
        """Close because of what the peer sent, telling it why where there is a way."""

    def close(self) -> None:
        """Close after what was written, without waiting for the peer."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not taken by the network is lost."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Leave what the peer sends where it is."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # What the transport tells

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
        return self._buffer.view[: self._bite]

    def buffer_updated(self, received: int) -> None:
        """Take what was read."""
        began = self._session.hear()
        if not self._take(self._buffer.view[:received]):
            self._buffer.keep()
        if self._loop.time() - began > _TOO_LONG:
            self._bite = max(SMALLEST_BITE, self._bite // 4)
        elif received == self._bite:
            self._bite = min(READ_BYTES, self._bite * 2)

    def pause_writing(self) -> None:
        """Pass on that the peer takes less than it is sent."""
        self._session.fill()

    def resume_writing(self) -> None:
        """Pass on that there is room again."""
        self._session.make_room()

    @abstractmethod
    def _take(self, data: memoryview) -> bool:
        """Take what was read; return whether its memory is free again."""

    def _send(self, *data: Buffer) -> None:
        self.written += sum(map(len, data))
        if len(data) == 1:
            # Python's own transports copy what they are given several of.
            self._transport.write(data[0])
        else:
            self._transport.writelines(data)


def address_of(name: object) -> Address:
    """Make an address of a socket's name: a tuple for IP, a text for Unix sockets, nothing once it is closed."""
    if isinstance(name, tuple) and len(name) >= 2:
        return Address(str(name[0]), int(name[1]))
    return Address(str(name or "somebody"), 0)
