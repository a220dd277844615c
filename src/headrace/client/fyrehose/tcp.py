"""A TCP connection to the backbone.

Bytes are received into one buffer and scanned in place, so that a read becomes a batch without a step per message.

Closing takes care of what was pushed: a socket that closes with messages unread resets its connection, and a reset may
overtake pushes on their way. So a last KEEPALIVE goes out behind them, marked by its PORT, which the hub ignores and
repeats. Once its answer is here, the hub has read everything before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from headrace.client.fyrehose.subscription import HERE, Outgoing
from headrace.client.fyrehose.transport import Sink
from headrace.config import Address
from headrace.message import Run
from headrace.wire.fyrehose.stream import (
    MAX_DATA,
    MAX_PACKET,
    ClientDecoder,
    DeliverRun,
    Keepalive,
    KeepaliveAck,
    Request,
    push_run,
    serialize,
)

_RECEIVE_BYTES: Final = 256 << 10
"""What one read may bring: large enough that a batch is worth its overhead."""

_WRITE_BYTES: Final = 1 << 20
"""What may wait to be sent before a publisher is made to wait."""

_LAST: Final = Keepalive(HERE[0], 1)
_LAST_ACK: Final = KeepaliveAck(HERE[0], 1)


class Stream(asyncio.BufferedProtocol):
    """One connection; make it with :meth:`open`."""

    max_data = MAX_DATA

    def __init__(self, sink: Sink) -> None:
        self._sink: Sink | None = sink
        self._decoder = ClientDecoder()
        self._buffer = np.empty(_RECEIVE_BYTES + MAX_PACKET, np.uint8).data
        self._rest = 0
        self._reads = True
        self._room = asyncio.Event()
        self._room.set()
        self._heard_last = asyncio.Event()
        self._transport: asyncio.Transport

    @classmethod
    async def open(cls, address: Address, sink: Sink) -> Stream:
        """Connect; ``OSError`` if nobody listens there."""
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(lambda: cls(sink), address.host, address.port)
        return stream

    def send(self, work: Sequence[Outgoing]) -> None:
        """Send KEEPALIVEs and REQUESTs, in one write."""
        frames = [frame for frame in work if isinstance(frame, Keepalive | Request)]
        if frames:
            self._write(b"".join(map(serialize, frames)))

    async def push(self, run: Run) -> None:
        """Send a PUSH per payload in one write, and wait while too much waits to be sent."""
        self._write(push_run(run))
        await self._room.wait()

    def read(self, wanted: bool, /) -> None:
        """Go on reading, or leave the rest with the hub."""
        if wanted != self._reads and not self._transport.is_closing():
            self._reads = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def close(self, deadline: float) -> None:
        """Close once the hub has read everything."""
        self._sink = None
        self.read(True)
        try:
            self._write(serialize(_LAST))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._heard_last.wait()
        finally:
            self._transport.abort()

    def abort(self) -> None:
        """Close at once; what waits to be sent is dropped."""
        self._sink = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whom it concerns."""
        self._room.set()
        self._heard_last.set()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.lost(self, _ending(error))

    def get_buffer(self, _size: int) -> memoryview:
        """Offer the buffer behind the packet that is not yet whole."""
        return self._buffer[self._rest :]

    def buffer_updated(self, received: int) -> None:
        """Take what was received."""
        end = self._rest + received
        frames, consumed, error = self._decoder.scan(self._buffer, 0, end)
        self._rest = end - consumed
        if consumed and self._rest:
            self._buffer[: self._rest] = bytes(self._buffer[consumed:end])
        for frame in frames:
            if isinstance(frame, DeliverRun):
                if self._sink is not None:
                    self._sink.delivered(frame, from_backbone=True)
            elif frame == _LAST_ACK:
                self._heard_last.set()
            elif self._sink is not None:
                self._sink.acknowledged()
        if error is not None:
            sink = self._sink
            self.abort()
            if sink is not None:
                sink.refused(error)
                sink.lost(self, str(error))

    def pause_writing(self) -> None:
        """Make publishers wait."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Let publishers go on."""
        self._room.set()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _ending(error: Exception | None) -> str:
    if error is None:
        return "the hub closed the connection"
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
