"""What most TCP connections of a hub have in common, those that were accepted and those that were dialled.

A :class:`Stream` decodes what comes and refuses what is wrong; it is not read while the hub is congested or while its
own answers pile up; it is cut off when it takes nothing, or leaves a frame unfinished, for ``limits.slow_seconds``. A
subclass says what its frames mean. All streams of a door receive into one buffer that belongs to the door.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from headrace.errors import StorageError, WireError
from headrace.message import Batch
from headrace.net.server.door import House
from headrace.wire.receive_buffer import Decoder

RECEIVE_BYTES: Final = 128 << 10
"""What one read may bring: some hundred messages for a batch, and never so many that others have to wait."""

MAX_FRAMES: Final = 256
"""Frames taken from one connection in a row, as a rule; a run of publishes is one frame."""

BACKLOG: Final = 1024

S = TypeVar("S", bound="Stream[Any]")
D = TypeVar("D", bound="Streams[Any]")


class Streams(Generic[S]):
    """Open connections of one kind, and what they share."""

    def __init__(self, house: House, name: str) -> None:
        self.house = house
        self.hub = house.hub
        self.settings = house.settings
        self.counters = house.hub.counters
        self.name = name
        """The door's, as counters and log lines have it."""
        self.view = memoryview(bytearray(RECEIVE_BYTES))
        self.streams: set[S] = set()
        self.stopping = False
        self.empty = asyncio.Event()
        """Set while there is no connection."""
        self.empty.set()

    def admit(self, _address: str) -> str | None:
        """Why a new connection cannot be had, if so."""
        return "the hub is stopping" if self.stopping else None

    def release(self, _address: str) -> None:
        """An admitted connection is over."""

    def tick(self, now: float) -> None:
        """Judge every connection's deadlines."""
        for stream in tuple(self.streams):
            stream.tick(now)

    def relieved(self) -> None:
        """Read from publishers again."""
        for stream in tuple(self.streams):
            stream.resume_reading()

    def facts(self) -> dict[str, int]:
        """How many connections there are."""
        return {self.name: len(self.streams)}

    def stop(self) -> None:
        """Accept and read nothing more."""
        self.stopping = True
        for stream in self.streams:
            stream.pause_reading()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        for stream in tuple(self.streams):
            stream.close()
        await self.empty.wait()

    def abort(self) -> None:
        """Close every connection that is still open, whatever is buffered for it."""
        for stream in tuple(self.streams):
            stream.abort()


class StreamDoor(Streams[S]):
    """A door that accepts connections; a subclass makes the protocol of each."""

    def __init__(self, house: House, name: str, listening: socket.socket) -> None:
        super().__init__(house, name)
        self._listening = listening
        self._server: asyncio.Server | None = None

    def connection(self) -> S:
        """The protocol of a new connection."""
        raise NotImplementedError

    async def open(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.connection, sock=self._listening, backlog=BACKLOG)

    def admit(self, address: str) -> str | None:
        """Count a new connection, or say why it is refused."""
        return super().admit(address) or self.house.connections.admit(address)

    def release(self, address: str) -> None:
        """An admitted connection is over."""
        self.house.connections.release(address)

    def stop(self) -> None:
        """Accept and read nothing more."""
        if self._server is not None:
            self._server.close()
        super().stop()


class Stream(asyncio.BufferedProtocol, Generic[D]):
    """One connection. Its decoder's frames go to :meth:`take`."""

    max_frames: ClassVar[int] = MAX_FRAMES
    """Frames taken from it before the others have their turn."""

    def __init__(self, door: D, decoder: Decoder[Any]) -> None:
        self.door = door
        self.counters = door.counters
        self.limits = door.settings.limits
        self.name = ""
        """The peer, as the log names it: its address, or its client id once it has told."""
        self.admitted = False
        self.since = self.heard = 0.0
        """When it began, and when something last came."""
        self._decoder = decoder
        self._address = self._where = ""
        self._reading_paused = False
        self._crowded = False
        """Whether frames may be left of what was read last; nothing more is read until they are taken."""
        self._rest_due = False
        self._full = False
        self._ended = False
        """Whether the peer has said that it sends no more."""
        self._sent = 0
        self._taken = 0
        self._taken_at = 0.0
        self._place = -1
        """Where in the stream the frame begins that is unfinished, and since when it has been so."""
        self._place_since = 0.0

    # What a subclass says.

    def opened(self) -> None:
        """The connection is there."""

    def take(self, frame: Any) -> None:
        """A frame has come; a :class:`~headrace.errors.WireError` refuses it and closes the connection."""
        raise NotImplementedError

    def done_taking(self) -> None:
        """The frames that came together have been taken, and the connection is still there."""

    def drained(self) -> None:
        """The peer has taken enough of what it was sent."""

    def judge(self, now: float) -> None:
        """Deadlines of the protocol's own."""

    def closed(self) -> None:
        """The connection is over; called once, and only if it was admitted."""

    def judge_silence(self, now: float) -> None:
        """Cut off a peer that has not been heard of for too long, though it is listened to."""
        idle = self.limits.idle_seconds
        if now - self.heard >= idle and not self._reading_paused:
            self.refuse("idle", f"not heard of for {idle:g} s")

    def must_wait(self) -> bool:
        """Whether what the peer sends has to wait."""
        return self.door.hub.congested or self.door.stopping or self._full

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self.loop = asyncio.get_running_loop()
        self.since = self.heard = self._taken_at = self.loop.time()
        peer = transport.get_extra_info("peername")
        if peer is None:
            # It was gone before it was accepted.
            self._transport.abort()
            return
        self._address = peer[0]
        self.name = self._where = f"{peer[0]}:{peer[1]}"
        self._transport.set_write_buffer_limits(high=self.limits.queue_bytes - 1)
        # Where the protocol has no heartbeat, one that vanished would otherwise be there until it is sent something.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        refused = self.door.admit(self._address)
        if refused is not None:
            self.refuse("connections", refused)
            return
        self.admitted = True
        self.door.streams.add(self)
        self.door.empty.clear()
        self.opened()

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection."""
        self._release()
        if self in self.door.streams:
            self.door.streams.discard(self)
            self.door.release(self._address)
        if not self.door.streams:
            self.door.empty.set()

    def get_buffer(self, _size: int) -> memoryview:
        """Offer the door's buffer."""
        return self.door.view

    def buffer_updated(self, received: int) -> None:
        """Take what was received."""
        if self.admitted:
            self.heard = self.loop.time()
            self._take_all(self.door.view[:received])

    def eof_received(self) -> bool:
        """The peer sends no more."""
        self._ended = True
        if self.admitted and self._decoder.unfinished:
            self.counters.refuse(self.door.name, "cut_short", self.name, "the stream ended inside a frame")
        return False

    def pause_writing(self) -> None:
        """The peer takes less than it is sent: what it asks has to wait, too."""
        self._full = True
        self.pause_reading()

    def resume_writing(self) -> None:
        """The peer has room again."""
        self._full = False
        if self.admitted:
            self.drained()
            self.resume_reading()

    def _take_all(self, data: memoryview | bytes) -> None:
        """Take the frames that are here, but not so many at once that others wait."""
        left = self.max_frames
        try:
            for frame in self._decoder.feed(data):
                self.take(frame)
                if self._is_over():
                    return
                left -= 1
                if not left:
                    break
        except WireError as error:
            # What came before the bad frame has been acted on.
            if not self._is_over():
                self.done_taking()
                self.refuse(error.reason, error)
            return
        self.done_taking()
        self._crowded = not left
        if self._crowded or self.must_wait():
            self.pause_reading()
        self.resume_reading()

    def _take_rest(self) -> None:
        self._rest_due = False
        if self.admitted and not self.must_wait():
            self._take_all(b"")

    # What all of them do.

    @property
    def buffered(self) -> int:
        """How many bytes wait for the peer to take them."""
        return self._transport.get_write_buffer_size()

    @property
    def room(self) -> int:
        """How many bytes may still be sent before the peer takes some."""
        return 0 if self._full else self.limits.queue_bytes - self.buffered

    def is_called(self, who: str) -> None:
        """The peer has said who it is, perhaps not for the first time: the log has that beside its address."""
        self.name = f"{self._where} ({who})"

    def send(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport.is_closing():
            return
        self._sent += len(data)
        self._transport.write(data)

    def settled(self, outcome: Batch | StorageError) -> None:
        """What became of the peer's messages, where its protocol has no error reply: then the connection closes."""
        if isinstance(outcome, StorageError) and not self._transport.is_closing():
            # Already counted where it was refused.
            self.abort()

    def tick(self, now: float) -> None:
        """Cut off a peer that takes nothing, or does not finish what it began, for too long."""
        slow = self.limits.slow_seconds
        waiting = self.buffered
        taken = self._sent - waiting
        if taken != self._taken or not waiting:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at >= slow:
            self.refuse("slow", f"took nothing for {slow:g} s; {waiting} bytes are lost")
            return
        if not self.admitted:
            return  # It is closing: what is left to send goes out, as fast as the peer takes it.
        place, coming = self._decoder.frame_at, self._decoder.unfinished
        if not coming or place != self._place or self._reading_paused or self._ended:
            self._place, self._place_since = place, now
        elif now - self._place_since >= slow:
            self.refuse("stalled", f"left a frame unfinished for {slow:g} s")
            return
        self.judge(now)

    def pause_reading(self) -> None:
        """Let what the peer sends wait."""
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again, if no reason not to is left."""
        if not self._reading_paused or not self.admitted or self.must_wait():
            return
        if self._crowded:
            # What was read before comes first, when the others have had their turn.
            if not self._rest_due:
                self._rest_due = True
                self.loop.call_soon(self._take_rest)
        else:
            self._reading_paused = False
            # It may have had no chance to speak meanwhile.
            self.heard = self.loop.time()
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()

    def refuse(self, reason: str, detail: object) -> None:
        """Count why, and close at once."""
        self.counters.refuse(self.door.name, reason, self.name, detail)
        self.abort()

    def close(self) -> None:
        """Send what is buffered and close."""
        self._release()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._release()
        self._transport.abort()

    def _is_over(self) -> bool:
        return not self.admitted

    def _release(self) -> None:
        """Take nothing more from the connection, and owe it nothing."""
        if self.admitted:
            self.admitted = False
            self.closed()
