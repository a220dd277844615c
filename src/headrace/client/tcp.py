"""One TCP connection of a client, whatever protocol it carries.

To close, a client ends its own direction and reads until the hub ends the other: then the hub has read everything. A
socket closed with unread bytes would reset the connection, and a reset may overtake data that is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final, Self, cast

from headrace.client.reconnect import reason_of
from headrace.client.tls import RenewedContext, dial_arguments, explain
from headrace.config import Address
from headrace.errors import UnreachableError

WRITE_BYTES: Final = 1 << 20
"""Most unsent bytes before a publisher has to wait."""


class TcpConnection(asyncio.BaseProtocol):
    """One connection, from :meth:`open` on; a protocol adds what it reads, and its farewell."""

    def __init__(self, address: Address, on_lost: Callable[[Any, str], None]) -> None:
        """``on_lost`` is called once with this connection and the reason, unless we end it ourselves."""
        self.address = address
        self.ended: str | None = None
        """Why it is over, if it is."""
        self.read_whole = False
        """Whether the hub is known to have read everything."""
        self._on_lost: Callable[[Any, str], None] | None = on_lost
        self._loop = asyncio.get_running_loop()
        self._reads = True
        self._finished = False
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    async def open(self, tls: RenewedContext | None = None) -> Self:
        """Connect; ``OSError`` if nobody listens there. The first bytes may come before this returns."""
        host, port = self.address.host, self.address.port
        try:
            await self._loop.create_connection(lambda: self, host, port, **dial_arguments(tls, self.address))
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            if tls is None:
                raise
            raise UnreachableError(str(self.address), explain(error, host)) from None
        return self

    @property
    def heard(self) -> bool:
        """Whether received bytes are still wanted."""
        return self._on_lost is not None

    def write(self, data: bytes) -> None:
        """Send at once, or never if the connection is over."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def room(self) -> None:
        """Wait while there are too many unsent bytes."""
        await self._room.wait()

    def read(self, wanted: bool, /) -> None:
        """Resume reading, or pause and leave the rest with the hub."""
        if wanted != self._reads and self._transport is not None and not self._transport.is_closing():
            self._reads = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def close(self, deadline: float) -> None:
        """Close once the hub has read everything, or at the event loop's time ``deadline``."""
        self._on_lost = None
        try:
            self.read(True)
            self.say_farewell()
            if self._transport is not None and not self._transport.is_closing():
                self._finished = True
                if not self._transport.can_write_eof():
                    # TLS ends both directions: the hub confirms that once it has read what came before.
                    self._transport.close()
                else:
                    with contextlib.suppress(OSError):  # It is reset already, and the loop has not noticed.
                        self._transport.write_eof()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._gone.wait()
        finally:
            self.abort()

    def say_farewell(self) -> None:
        """Write the protocol's last bytes."""

    def abort(self) -> None:
        """Close at once; drop unsent bytes."""
        self._on_lost = None
        if self._transport is not None:
            self._transport.abort()

    def lose(self, reason: str) -> None:
        """Give the connection up, and report it."""
        if self.ended is None:
            self.ended = reason
        on_lost = self._on_lost
        self.abort()
        if on_lost is not None:
            on_lost(self, reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport of the new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)

    def eof_received(self) -> None:
        """Note that the hub has ended its direction; ours, if it is still open, leads nowhere."""
        self.read_whole = self._finished

    def connection_lost(self, error: Exception | None) -> None:
        """Report the loss."""
        if error is None and self._finished and self._transport is not None:
            self.read_whole = self.read_whole or not self._transport.can_write_eof()
        self._room.set()
        self._gone.set()
        self.lose(reason_of(error))

    def pause_writing(self) -> None:
        """Make publishers wait."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Let publishers continue."""
        self._room.set()
