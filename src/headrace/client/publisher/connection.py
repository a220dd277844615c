"""A TCP connection to a publisher door, on which the hub never says anything."""

from __future__ import annotations

import asyncio

from headrace.client.tcp import WRITE_BYTES, TcpConnection
from headrace.errors import UnreachableError


class PublisherConnection(TcpConnection, asyncio.Protocol):
    """One connection, from :meth:`open` on."""

    async def flush(self) -> None:
        """Wait until the operating system has it all; :class:`~headrace.errors.UnreachableError` if it never will."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=0)
            try:
                await self._room.wait()
            finally:
                if not self._transport.is_closing():
                    self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        if self.ended is not None:
            raise UnreachableError(str(self.address), f"{self.ended}; what was published last may be lost")
