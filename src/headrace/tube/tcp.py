"""A tube over TCP: the codec's bytes back to back, and a half-close for goodbye."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from headrace.errors import WireError
from headrace.tube.transport import Line
from headrace.wire.receive_buffer import Buffer


class TcpLine(Line):
    """One TCP connection."""

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Send bytes."""
        self._send(*pieces)

    def finish(self) -> None:
        """Half-close: the peer reads all that was written, then our end, and closes as well."""
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # It is reset already, and the loop has not come to tell.
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
        """Pass on that the peer sends no more; return whether we may still send."""
        return self._session.end()

    def _take(self, data: memoryview) -> bool:
        return self._session.receive(data)
