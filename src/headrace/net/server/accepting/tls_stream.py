"""What a peer sent under TLS reaches its door whole, however late the door reads it.

An event loop's TLS gives up what it has not decrypted, or not handed over, when the peer's connection ends. A door that
reads no more for a while would so lose the last that came, although the same peer without TLS would lose nothing. So a
:class:`TlsStream` stands between TLS and the door's protocol. It takes all that TLS has at once, keeps what the
protocol does not want yet, and stops reading from the socket below TLS: what comes after stays in the kernel, and the
end of the connection with it. The protocol hears of an end when it has taken everything that came before.

Kept bytes are those of one read of the socket at most.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

READ_BYTES: Final = 512 << 10
"""More than an event loop reads from a socket at once for TLS, beside the unfinished record before it."""


class TlsStream(asyncio.BufferedProtocol):
    """The protocol above TLS, and the transport of the protocol above itself.

    All streams of an event loop share ``plaintext``, of :data:`READ_BYTES`: TLS decrypts into it for one connection at
    a time, and what it has is kept or taken before control returns. Another loop, in another thread, needs its own.
    """

    def __init__(
        self, inner: asyncio.BufferedProtocol, socket_transport: asyncio.Transport, plaintext: memoryview
    ) -> None:
        self._inner = inner
        self._below = socket_transport
        self._plaintext = plaintext
        self._loop = asyncio.get_running_loop()
        self._tls: Any = None
        """The transport above TLS, once the handshake is done."""
        self._kept = b""
        self._paused = True
        """Whether the protocol reads nothing: it cannot before it has a transport."""
        self._stopped = False
        """Whether the socket is not read."""
        self._feeding = self._due = False
        self._ended = False
        """Whether the peer has ended its direction."""
        self._lost = False
        """Whether the connection is gone; the protocol may not know it yet."""
        self._error: Exception | None = None
        self._told_of_the_end = self._over = False
        self._closing = False

    def begin(self, transport: asyncio.Transport) -> None:
        """Give the protocol its transport: the handshake is done."""
        self._tls = transport
        self._paused = False
        self._inner.connection_made(cast("asyncio.Transport", self))
        self._go_on()

    # Called by TLS.

    def get_buffer(self, _size: int) -> memoryview:
        """Offer room for everything that TLS may have."""
        return self._plaintext

    def buffer_updated(self, size: int) -> None:
        """Pass on what was decrypted, or keep it."""
        if self._closing:
            return
        if self._paused or self._kept or self._feeding:
            self._kept += self._plaintext[:size]
        else:
            self._feed(self._plaintext[:size])
        self._read_as_wanted()

    def eof_received(self) -> bool:
        """Note that the peer sends no more; TLS ends both directions."""
        self._ended = True
        self._go_on()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end."""
        self._lost, self._error = True, error
        if error is not None or self._closing:
            self._kept = b""
            self._tell_of_the_loss()
        else:
            self._go_on()

    def pause_writing(self) -> None:
        """Pass on that the peer takes less than it is sent."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that there is room again."""
        self._inner.resume_writing()

    # Called by the protocol.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tls, name)

    def write(self, data: Any) -> None:
        """Send, unless the connection is gone."""
        if not self._lost:
            self._tls.write(data)

    def writelines(self, pieces: Any) -> None:
        """Send, unless the connection is gone."""
        if not self._lost:
            self._tls.writelines(pieces)

    def is_closing(self) -> bool:
        """Whether the protocol has closed the connection, or knows that it is gone."""
        return self._closing or self._over

    def close(self) -> None:
        """Send what is buffered, then close."""
        self._end(abort=False)

    def abort(self) -> None:
        """Close at once."""
        self._end(abort=True)

    def pause_reading(self) -> None:
        """Pass on nothing more for now."""
        self._paused = True
        self._read_as_wanted()

    def resume_reading(self) -> None:
        """Pass on what was kept, then what comes."""
        self._paused = False
        if (self._kept or self._ended or self._lost) and not (self._feeding or self._due):
            # In a turn of its own: the protocol may be in the middle of something.
            self._due = True
            self._loop.call_soon(self._go_on_later)
        self._read_as_wanted()

    def _end(self, *, abort: bool) -> None:
        already, self._closing = self._closing, True
        self._kept = b""
        if self._lost:
            self._loop.call_soon(self._tell_of_the_loss)
        elif abort:
            # A peer that takes nothing may have to be cut off while it is closed.
            self._tls.abort()
        elif not already:
            # TLS ends when it has read the peer's answer.
            self._read_as_wanted()
            self._tls.close()

    def _go_on_later(self) -> None:
        self._due = False
        self._go_on()

    def _go_on(self) -> None:
        """Pass on what was kept, and the end if it has come."""
        if self._feeding or self._closing or self._tls is None:
            return
        if self._kept and not self._paused:
            kept, self._kept = self._kept, b""
            self._feed(memoryview(kept))
        if not (self._kept or self._paused or self._closing):
            if self._ended and not self._told_of_the_end:
                self._told_of_the_end = True
                self._inner.eof_received()
            if self._lost:
                self._tell_of_the_loss()
        self._read_as_wanted()

    def _feed(self, data: memoryview) -> None:
        """Have the protocol take what it wants; keep the rest."""
        self._feeding = True
        taken = 0
        try:
            while taken < len(data) and not (self._paused or self._closing):
                room = memoryview(self._inner.get_buffer(len(data) - taken))
                size = min(len(room), len(data) - taken)
                room[:size] = data[taken : taken + size]
                taken += size
                self._inner.buffer_updated(size)
        finally:
            self._feeding = False
        if not self._closing:
            self._kept += data[taken:]

    def _read_as_wanted(self) -> None:
        """Read from the socket only while everything that it brought before was taken."""
        stopped = (self._paused or bool(self._kept)) and not self._closing
        if stopped == self._stopped or self._below.is_closing():
            return
        self._stopped = stopped
        if stopped:
            self._below.pause_reading()
        else:
            self._below.resume_reading()

    def _tell_of_the_loss(self) -> None:
        # A protocol without a transport hears of nothing: the handshake has failed.
        if not self._over and self._tls is not None:
            self._over = True
            self._inner.connection_lost(self._error)
