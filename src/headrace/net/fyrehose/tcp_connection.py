"""One TCP connection of the backbone: PUSHes and REQUESTs as they come, DELIVERs as it takes them.

The connection is the return path: KEEPALIVE subscribes it for some seconds whatever address it names, and only
KEEPALIVE renews; when it lapses the connection stays open. REQUEST is served whole, however long the range, at the
pace the peer takes it.

Bytes are read from the socket into the door's buffer, scanned and gathered into a run before control returns to the
event loop, so a connection keeps no more than the one packet that is not complete. Only of a connection that sends many
small packets is the rest of a read kept, and taken in turns: a flood of KEEPALIVEs costs whoever sends it, not the
others.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from headrace.errors import StorageError, TrimmedError
from headrace.hub.backbone.rules import Reason, Refused, ServeRange, Unserved
from headrace.message import Batch
from headrace.net.server.log_feed import Feed, Range
from headrace.wire.fyrehose.stream import Keepalive, KeepaliveAck, PushRun, Request, ServerDecoder, serialize

if TYPE_CHECKING:
    from headrace.net.fyrehose.tcp import FyrehoseTcp

MAX_RANGES: Final = 64
"""REQUESTs one connection may have waiting; past it the connection is not read until one is done."""

MAX_FRAMES: Final = 64
"""Frames taken from one connection before the others have their turn; a run of PUSHes is one frame."""

MAX_ACKS: Final = 64 << 10
"""Bytes of KEEPALIVE-ACKs that may wait behind DELIVERs that a peer does not take; past it, it is not read."""


class FyrehoseStream(asyncio.BufferedProtocol):
    """One TCP connection of the backbone."""

    def __init__(self, door: FyrehoseTcp) -> None:
        self._door = door
        self._hub = door.hub
        self._decoder = ServerDecoder()
        self._rest = b""
        self._half = b""
        """The unfinished packet as it was at the last tick, and since when it has been so."""
        self._half_since = 0.0
        self._address = ""
        self._endpoint = ("", 0)
        self.name = ""
        """The peer, as its messages and the log name it."""
        self._admitted = False
        self._crowded = False
        """Whether frames may be left in what was read last; nothing more is read until they are taken."""
        self._turn_due = False
        self._acks = 0
        """Bytes of ACKs written since the peer stopped taking what it is sent."""
        self.reading_paused = False
        self._ended = False
        self._leaving = False
        """Whether the peer gets what is buffered and no more, and is not listened to."""
        self._subscribed_until = 0.0
        self._taken = 0
        self._taken_at = 0.0
        self._sent = 0
        self.feed: Feed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse a new connection."""
        door = self._door
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._taken_at = self._loop.time()
        self.feed = Feed(self._hub.log, door.recent, door.read_chunk, door.readers, self)
        peer = transport.get_extra_info("peername")
        if peer is None:
            # It was gone before it was accepted.
            self._transport.abort()
            return
        host, port = peer[:2]
        self._address, self._endpoint, self.name = host, (host, port), f"{host}:{port}"
        self._transport.set_write_buffer_limits(high=door.settings.limits.queue_bytes)
        refused = "the hub is stopping" if door.draining else door.connections.admit(host)
        if refused is not None:
            self._refuse("connections", refused)
        elif not door.backbone.admits(host):
            door.connections.release(host)
            self._refuse(
                Reason.NOT_ALLOWED, "auth.required is on and fyrehose.allow does not list this address"
            )
        else:
            self._admitted = True
            door.streams.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection."""
        self.feed.close()
        door = self._door
        door.streams.discard(self)
        door.subscribers.pop(self, None)
        if door.draining and not door.streams:
            door.closed.set()
        if self._admitted:
            self._door.connections.release(self._address)

    def get_buffer(self, _size: int) -> memoryview:
        """Offer the door's buffer, behind what is left of the last read."""
        view, rest = self._door.view, self._rest
        view[: len(rest)] = rest
        return view[len(rest) :]

    def buffer_updated(self, received: int) -> None:
        """Take what was received."""
        if not self._admitted or self._leaving:
            return
        self._take(self._door.view, len(self._rest) + received)
        if self._hub.full:
            self._hub.take_turn()

    def eof_received(self) -> bool:
        """The peer sends no more but may still read (a pipe's end): keep feeding it while it is subscribed."""
        if self._rest:
            self._hub.counters.refuse("fyrehose", "cut_short", self.name, "the stream ended inside a packet")
        self._ended = True
        return bool(self.feed.ranges) or self.feed.cursor is not None

    def pause_writing(self) -> None:
        """The peer takes less than it is sent."""
        self.feed.pause()

    def resume_writing(self) -> None:
        """The peer has room again."""
        self._acks = 0
        self.feed.resume()
        self.resume_reading()

    def send(self, data: bytes | memoryview, count: int) -> None:
        """Send DELIVER packets."""
        self._sent += len(data)
        self._door.delivered.value += count
        self._transport.write(data)

    def range_cut(self, first: int, last: int, error: TrimmedError) -> None:
        """Say what retention removed from a range while it was being sent."""
        self._hub.counters.report("undeliverable", first, last, str(error), door="fyrehose")

    def range_done(self) -> None:
        """There is room for another REQUEST."""
        self.resume_reading()

    def feed_failed(self, first: int, last: int, error: StorageError) -> None:
        """Let a peer go that the log can feed no further, with all that comes before what it cannot have."""
        self._hub.counters.report("undeliverable", first, last, str(error), door="fyrehose")
        reason = "lagging" if isinstance(error, TrimmedError) else "damaged"
        self._hub.counters.refuse("fyrehose", reason, self.name, error)
        self._leave()

    def tick(self, now: float) -> None:
        """Let the subscription lapse; cut off a peer that has not taken a byte for too long."""
        slow_seconds = self._door.settings.limits.slow_seconds
        # Who is not read cannot renew.
        if self in self._door.subscribers and now >= self._subscribed_until and not self.reading_paused:
            del self._door.subscribers[self]
            self.feed.cursor = None
            self._hub.counters.add("lapsed", door="fyrehose", transport="tcp")
        waiting = self.buffered
        if self._ended and not (waiting or self.feed.ranges or self.feed.cursor):
            self._transport.close()
        taken = self._sent - waiting
        if taken != self._taken or not (waiting or self._leaving):
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at >= slow_seconds:
            if self._leaving:
                self._transport.abort()
                return
            unsent, head = self.feed.cursor, self._hub.log.head
            if unsent is not None and unsent <= head:
                self._hub.counters.report(
                    "cut_off", unsent, head, f"not sent to {self.name}", door="fyrehose"
                )
            self._refuse("slow", f"took nothing for {slow_seconds:g} s; {waiting} bytes are lost")
            return
        if self._rest is not self._half or self.reading_paused:
            self._half, self._half_since = self._rest, now
        elif self._half and now - self._half_since >= slow_seconds:
            self._refuse("stalled", f"left a packet unfinished for {slow_seconds:g} s")

    @property
    def buffered(self) -> int:
        """How many bytes wait for the peer to take them."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Leave what the peer sends where it is."""
        if not self.reading_paused and not self._transport.is_closing():
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again, if no reason not to is left."""
        if not self.reading_paused or (self._must_wait() and not self._leaving):
            return
        if self._crowded and not self._leaving:
            # What was read before comes first, when the others have had their turn.
            if not self._turn_due:
                self._turn_due = True
                self._loop.call_soon(self._take_rest)
            return
        self.reading_paused = False
        with contextlib.suppress(RuntimeError):
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is buffered and close."""
        self.feed.close()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _take(self, view: memoryview, end: int) -> None:
        """Take the frames that ``view`` begins with, up to ``end``."""
        frames, consumed, error = self._decoder.scan(view, 0, end, MAX_FRAMES)
        self._rest = bytes(view[consumed:end]) if consumed < end else b""
        self._crowded = len(frames) == MAX_FRAMES and consumed < end
        acks: list[bytes] = []
        for frame in frames:
            match frame:
                case PushRun(run):
                    self._hub.submit(Batch(run, origin="fyrehose", publisher=self.name), self._settled)
                case Keepalive(address, port):
                    acks.append(_acknowledgement(address, port))
                case Request():
                    self._request(frame)
        if acks:
            self._keepalive(b"".join(acks))
        if error is not None:
            self._refuse(error.reason, error)
            return
        if self._crowded or self._must_wait():
            self.pause_reading()
        self.resume_reading()

    def _take_rest(self) -> None:
        self._turn_due = False
        # A connection whose last messages were refused must not have later ones taken.
        gone = self._leaving or self._transport.is_closing()
        if self._admitted and not (gone or self._must_wait()):
            self._take(memoryview(self._rest), len(self._rest))

    def _must_wait(self) -> bool:
        """Whether what the peer sends must wait: the hub is congested or stops, or the peer takes no answers."""
        return (
            self._hub.congested
            or self._door.draining
            or len(self.feed.ranges) >= MAX_RANGES
            or self._acks > MAX_ACKS
        )

    def _keepalive(self, acks: bytes) -> None:
        # "the backbone has to respond to every KEEPALIVE"; the ACK precedes the first DELIVER.
        self._sent += len(acks)
        self._transport.write(acks)
        if self.feed.paused:
            self._acks += len(acks)
        self._subscribed_until = self._loop.time() + self._door.settings.fyrehose.subscriber_seconds
        if self not in self._door.subscribers:
            self._door.subscribers[self] = None
            self._hub.counters.add("subscribed", door="fyrehose", transport="tcp")
            self.feed.cursor = self._hub.log.head + 1

    def _request(self, frame: Request) -> None:
        self._hub.counters.add("requests", door="fyrehose", transport="tcp")
        for effect in self._door.backbone.stream_request(frame, self._endpoint):
            match effect:
                case Refused(reason):
                    self._refuse(reason.value, f"REQUEST from {frame.first} to {frame.last}")
                case Unserved(_, first, last):
                    self._hub.counters.report(
                        "unavailable", first, last, f"asked by {self.name}", at_will=True, door="fyrehose"
                    )
                case ServeRange(first, last):
                    self.feed.ranges.append(Range(first, last))
                    self.feed.pump()
                case _:
                    raise AssertionError(effect)

    def _settled(self, outcome: Batch | StorageError) -> None:
        if isinstance(outcome, StorageError) and not self._transport.is_closing():
            # Already counted where it was refused; the protocol has no error reply, so the connection closes.
            self._transport.abort()

    def _leave(self) -> None:
        """Send what is buffered, then the end of the stream, and wait for the peer's.

        What it still sends is read and dropped: closing a socket with bytes unread would take back what is on its way.
        """
        self._leaving = True
        self._rest = b""
        self._taken_at = self._loop.time()
        self._door.subscribers.pop(self, None)
        if not self._transport.is_closing():
            self._transport.write_eof()
        self.resume_reading()

    def _refuse(self, reason: str, detail: object) -> None:
        self._hub.counters.refuse("fyrehose", reason, self.name, detail)
        self._admitted_off()
        self._transport.abort()

    def _admitted_off(self) -> None:
        """Take nothing more from a refused connection, though its transport may deliver what it has read."""
        if self._admitted:
            self._admitted = False
            self._door.connections.release(self._address)


@lru_cache(maxsize=1024)
def _acknowledgement(address: str, port: int) -> bytes:
    """The answer to a KEEPALIVE; a client sends the same one every second."""
    return serialize(KeepaliveAck(address, port))
