"""A TCP connection to a publisher door, on which the hub never says anything.

What is written is first kept here, then by the operating systems on the way, and nobody tells when the hub has read it,
with one exception: whoever ends its own direction, and then sees the hub end the other, knows that the hub has read
everything. That is how a connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol, cast

from headrace.client.reconnect import reason_of
from headrace.config import Address
from headrace.errors import UnreachableError

_WRITE_BYTES: Final = 1 << 20
"""What may wait to be sent before a publisher is made to wait."""


class Sink(Protocol):
    """Who is told of a stream's end."""

    def lost(self, stream: PublisherStream, reason: str) -> None:
        """The connection has ended, and not by our :meth:`PublisherStream.close` or :meth:`PublisherStream.abort`."""


class PublisherStream(asyncio.Protocol):
    """One connection, from :meth:`open` on."""

    def __init__(self, address: Address, sink: Sink) -> None:
        self.ended: str | None = None
        self.read_whole = False
        """Whether the hub is known to have read everything."""
        self._address = address
        self._sink: Sink | None = sink
        self._finished = False
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        """Connect; ``OSError`` if nobody listens there."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self._address.host, self._address.port)

    async def write(self, data: bytes) -> None:
        """Send, and wait until there is room for more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
        await self._room.wait()

    async def flush(self) -> None:
        """Wait until the operating system has it all; :class:`~headrace.errors.UnreachableError` if it never will."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=0)
            try:
                await self._room.wait()
            finally:
                if not self._transport.is_closing():
                    self._transport.set_write_buffer_limits(high=_WRITE_BYTES)
        if self.ended is not None:
            raise UnreachableError(str(self._address), f"{self.ended}; what was published last may be lost")

    async def close(self, deadline: float) -> None:
        """Close once the hub has read everything, or at the event loop's time ``deadline``."""
        self._sink = None
        try:
            if self._transport is not None and not self._transport.is_closing():
                self._finished = True
                with contextlib.suppress(OSError):  # It is reset already, and the loop has not come to tell.
                    self._transport.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._gone.wait()
        finally:
            self.abort()

    def abort(self) -> None:
        """Close at once; what waits to be sent is dropped."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES)

    def eof_received(self) -> None:
        """The hub has ended its direction; ours, if it is still open, leads nowhere."""
        self.read_whole = self._finished

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whom it concerns."""
        self.ended = reason_of(error)
        self._room.set()
        self._gone.set()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.lost(self, self.ended)

    def pause_writing(self) -> None:
        """Make publishers wait."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Let publishers go on."""
        self._room.set()
