"""A transport made of lists: what is written is kept until the test takes it, what is received the test feeds."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.tube.endpoint import Tube
from headrace.tube.fair_turns import FairTurns
from headrace.tube.options import TubeOptions
from headrace.tube.session import TubeSession
from headrace.tube.transport import ReadBuffer, TcpTransport, TubeTransport
from headrace.tube.websocket import WebSocketTransport
from headrace.wire.tube.connection import Side, Transport


class FakeTransport(asyncio.Transport):
    """Tells its protocol when it is full, as asyncio's do; lets the test see and change everything."""

    def __init__(self, protocol: TubeTransport, *, stuck: bool = False) -> None:
        super().__init__({"peername": ("192.0.2.1", 7), "sockname": ("192.0.2.2", 8081)})
        self.protocol = protocol
        self.stuck = stuck
        """Whether the network takes nothing until :meth:`take`."""
        self.taken = bytearray()
        self.waiting = bytearray()
        self.reading = True
        self.ended = False
        self.gone = False
        self._high = 1 << 16
        self._full = False
        protocol.connection_made(self)

    # As asyncio's

    def write(self, data: Any) -> None:
        assert not self.ended
        self.waiting += data
        if not self.stuck:
            self.take()
        elif len(self.waiting) > self._high and not self._full:
            self._full = True
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.gone:
            self.gone = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    # What a test does

    def take(self) -> bytes:
        """Let the network take what waits."""
        taken = bytes(self.waiting)
        self.taken += taken
        self.waiting.clear()
        if self._full:
            self._full = False
            self.protocol.resume_writing()
        return taken

    def feed(self, data: bytes) -> None:
        """Let bytes arrive in one read each as long as the buffer."""
        while data:
            assert self.reading, "fed while reading is paused"
            buffer = self.protocol.get_buffer(-1)
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self.protocol.buffer_updated(len(part))
            # The memory may be used for something else at once, unless it was kept.
            again = self.protocol.get_buffer(-1)
            if again is buffer or again.obj is buffer.obj:
                buffer[: len(part)] = bytes(len(part))


def server_side(
    options: TubeOptions | None = None,
    *,
    transport: Transport = Transport.TCP,
    stuck: bool = False,
    turns: FairTurns | None = None,
) -> tuple[Tube, FakeTransport]:
    """A server's end of a tube without a network; on WebSocket, not even its handshake is done."""
    session = TubeSession(Side.SERVER, transport, options or TubeOptions(), turns=turns)
    tube = Tube(session)
    line: TubeTransport
    if transport is Transport.TCP:
        line = TcpTransport(session, ReadBuffer())
    else:
        line = WebSocketTransport.server(session, ReadBuffer(), None)
    return tube, FakeTransport(line, stuck=stuck)
