"""A TCP connection to a hub's services.

Closing takes care of what was published: a socket that closes with packets unread resets its connection, and a reset
may overtake what is on its way. So whoever closes unsubscribes, ends its own direction, and reads on until the hub,
which has then read everything, ends the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, Protocol, cast

from headrace.client.reconnect import reason_of
from headrace.config import Address
from headrace.errors import WireError
from headrace.wire.spp import ClientDecoder, ClientFrame, Ignored, ServerFrame, serialize

_WRITE_BYTES: Final = 1 << 20
"""What may wait to be sent before a publisher is made to wait."""


class Sink(Protocol):
    """Who takes what a stream brings."""

    def received(self, stream: SppConnection, frame: ServerFrame) -> None:
        """A packet has come."""

    def lost(self, stream: SppConnection, reason: str) -> None:
        """The connection has ended, and not by our :meth:`SppConnection.close` or :meth:`SppConnection.abort`."""


class SppConnection(asyncio.Protocol):
    """One connection, from :meth:`open` on."""

    def __init__(self, sink: Sink) -> None:
        self.ended: str | None = None
        self.farewell: Sequence[ClientFrame] = ()
        """What is said last."""
        self._sink: Sink | None = sink
        self._decoder = ClientDecoder()
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    async def open(self, address: Address) -> None:
        """Connect; ``OSError`` if nobody listens there. The first packets may come before this returns."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, address.host, address.port)

    def send(self, *frames: ClientFrame) -> None:
        """Send at once, or never."""
        if frames and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(map(serialize, frames)))

    async def room(self) -> None:
        """Wait while too much waits to be sent."""
        await self._room.wait()

    async def close(self, deadline: float) -> None:
        """Say farewell and close once the hub has read everything, or at the event loop's time ``deadline``."""
        self._sink = None
        try:
            self.send(*self.farewell)
            if self._transport is not None and not self._transport.is_closing():
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

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whom it concerns."""
        self._room.set()
        self._gone.set()
        self._lose(reason_of(error))

    def data_received(self, data: bytes) -> None:
        """Take what was received."""
        if self._sink is None:
            return
        try:
            for frame in self._decoder.feed(data):
                self._hand_over(frame)
        except WireError as error:
            self._lose(str(error))
            self.abort()

    def pause_writing(self) -> None:
        """Make publishers wait."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Let publishers go on."""
        self._room.set()

    def _hand_over(self, frame: ServerFrame | Ignored) -> None:
        # Whoever takes a packet may close the connection over it.
        if self._sink is not None and not isinstance(frame, Ignored):
            self._sink.received(self, frame)

    def _lose(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.lost(self, reason)
