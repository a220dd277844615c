"""A TCP connection to the backbone.

Bytes are received into one buffer and scanned in place, so that a read becomes a batch without a step per message.

A hub keeps delivering, so closing cannot wait for it to end its direction. Instead a last KEEPALIVE goes out after
what was pushed, marked by its PORT, which the hub ignores and repeats. Once its answer is here, the hub has read
everything before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.client.fyrehose.subscription import HERE, Outgoing
from headrace.client.tcp import TcpConnection
from headrace.client.tls import RenewedContext
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

if TYPE_CHECKING:
    from headrace.client.fyrehose.connection import FyrehoseConnection

_RECEIVE_BYTES: Final = 256 << 10
"""Maximum bytes of one read: large enough that a batch is worth its overhead."""

_LAST: Final = Keepalive(HERE[0], 1)
_LAST_ACK: Final = KeepaliveAck(HERE[0], 1)


class FyrehoseTcp(TcpConnection, asyncio.BufferedProtocol):
    """One connection; make it with :meth:`dial`."""

    max_data = MAX_DATA

    def __init__(self, address: Address, receiver: FyrehoseConnection) -> None:
        super().__init__(address, receiver.lost)
        self._receiver = receiver
        self._decoder = ClientDecoder()
        self._buffer = np.empty(_RECEIVE_BYTES + MAX_PACKET, np.uint8).data
        self._rest = 0

    @classmethod
    async def dial(
        cls, address: Address, receiver: FyrehoseConnection, *, tls: RenewedContext | None = None
    ) -> FyrehoseTcp:
        """Connect; ``OSError`` if nobody listens there."""
        return await cls(address, receiver).open(tls)

    def send(self, work: Sequence[Outgoing]) -> None:
        """Send KEEPALIVEs and REQUESTs, in one write."""
        frames = [frame for frame in work if isinstance(frame, Keepalive | Request)]
        if frames:
            self.write(b"".join(map(serialize, frames)))

    async def push(self, run: Run) -> None:
        """Send a PUSH per payload in one write, and wait while too much waits to be sent."""
        self.write(push_run(run))
        await self._room.wait()

    async def close(self, deadline: float) -> None:
        """Close once the hub has read everything."""
        self._on_lost = None
        self.read(True)
        try:
            self.write(serialize(_LAST))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._gone.wait()
        finally:
            self.abort()

    def get_buffer(self, _size: int) -> memoryview:
        """Offer the buffer after the packet that is not yet whole."""
        return self._buffer[self._rest :]

    def buffer_updated(self, received: int) -> None:
        """Decode received bytes and hand them over."""
        end = self._rest + received
        frames, consumed, error = self._decoder.scan(self._buffer, 0, end)
        self._rest = end - consumed
        if consumed and self._rest:
            self._buffer[: self._rest] = bytes(self._buffer[consumed:end])
        for frame in frames:
            if isinstance(frame, DeliverRun):
                if self.heard:
                    self._receiver.delivered(frame, from_backbone=True)
            elif frame == _LAST_ACK:
                self._gone.set()
            elif self.heard:
                self._receiver.acknowledged()
        if error is not None:
            if self.heard:
                self._receiver.refused(error)
            self.lose(str(error))
