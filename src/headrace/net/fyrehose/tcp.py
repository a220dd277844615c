"""The backbone over TCP: PUSH in, DELIVER out, packets back to back.

The connection is the return path: KEEPALIVE subscribes it for some seconds whatever address it names, and only
KEEPALIVE renews; when it lapses the connection stays open. REQUEST is served whole, however long the range, at the
pace the peer takes it. Committed messages are encoded once for all subscribers.

Bytes are read from the socket into the door's buffer, scanned and gathered into a run before control returns to the
event loop, so a connection keeps no more than one unfinished packet. Only if it sends many small packets is the rest of
a read kept and taken in turns: a flood of KEEPALIVEs, or of PUSHes that carry next to nothing, costs its sender, not
the others.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Final

from headrace.errors import HeadraceError, WireError
from headrace.hub.access.principal import EVERYTHING, Action, Principal
from headrace.hub.access.readable import readable_run
from headrace.hub.backbone.rules import Backbone, Refused, ServeRange, Unserved
from headrace.hub.cursor import (
    NOWHERE,
    Cursor,
    EncodedCache,
    EncodedChunk,
    Lost,
    RequestedRange,
    cut_off_reason,
)
from headrace.hub.sequence_ranges import Range
from headrace.message import Batch
from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import OWN, TcpDoor
from headrace.net.server.log.feed import LogFeed
from headrace.wire.fyrehose import kernels
from headrace.wire.fyrehose.stream import (
    MAX_PACKET,
    Keepalive,
    KeepaliveAck,
    PushRun,
    Request,
    ServerDecoder,
    ServerFrame,
    cost,
    deliver_run,
    serialize,
)
from headrace.wire.numba_kernels import load_in_thread
from headrace.wire.receive_buffer import Buffer

RECEIVE_BYTES: Final = 256 << 10
"""Maximum bytes of one read: large enough that a turn's batch is worth its overhead."""

CACHE_BYTES: Final = 32 << 20
"""Bytes of the newest messages kept ready to send; a subscriber further behind is fed from the log."""

MAX_RANGES: Final = 64
"""REQUESTs one connection may have waiting; past it the connection is not read until one is done."""

MAX_FRAMES: Final = 64
"""Frames taken from one connection before the others have their turn; a run of many PUSHes counts for several."""

LISTED: Final = Principal("fyrehose.allow", EVERYTHING)
"""Anyone from an address in ``fyrehose.allow`` who is no other principal, where everybody must be known."""

MAX_ACKS: Final = 64 << 10
"""Bytes of KEEPALIVE-ACKs that may wait after DELIVERs that a peer does not take; past it, it is not read."""


class FyrehoseTcpDoor(TcpDoor["FyrehoseConnection"]):
    """The TCP half of the fyrehose door: the common part of its connections."""

    def __init__(self, context: DoorContext, backbone: Backbone, listening: socket.socket) -> None:
        super().__init__(context, "fyrehose", listening, receive_bytes=RECEIVE_BYTES + MAX_PACKET)
        self.backbone = backbone
        self.cache = EncodedCache(self.encode, max_bytes=CACHE_BYTES)
        self.subscribers: dict[FyrehoseConnection, None] = {}
        self.delivered = self.counters.counter("delivered", door="fyrehose", transport="tcp")

    def connection(self) -> FyrehoseConnection:
        """Make the protocol of a new connection."""
        return FyrehoseConnection(self)

    def principal_of(self, address: str, certificate: str) -> Principal:
        """Identify a peer: a principal, or one of the addresses in ``fyrehose.allow``."""
        principal = super().principal_of(address, certificate)
        return LISTED if not principal.known and self.backbone.admits(address) else principal

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Send newly committed batches to every subscriber that has room."""
        if not batches:
            return  # Only log entries were committed, which are sent to nobody.
        if not self.subscribers:
            self.cache.clear()
            return
        chunks = self.cache.encode(batches)
        lagging = False
        for connection in tuple(self.subscribers):
            lagging |= not connection.deliver(chunks)
        if not lagging:
            # Nobody needs it again, and the next turn writes to memory that is still in the processor's cache.
            self.cache.clear()

    def read_chunk(self, first: int, last: int, reader: Principal = OWN) -> EncodedChunk:
        """Read some messages from the log as DELIVER packets; runs in a reader thread."""
        return self.encode(self.hub.log.read(first, last), reader)

    def encode(self, batches: Sequence[Batch], reader: Principal = OWN) -> EncodedChunk:
        """Encode batches that follow one another as DELIVER packets."""
        parts = []
        hollow = 0
        for batch in batches:
            run = batch.run if reader.reads_everything else readable_run(batch, reader)
            data, missing = deliver_run(run, batch.first)
            parts.append(data)
            hollow += missing
        if hollow:
            self.counters.add("hollow", hollow, door="fyrehose", transport="tcp")
        return EncodedChunk(
            batches[0].first, batches[-1].last, parts[0] if len(parts) == 1 else b"".join(parts)
        )


class _InPlaceDecoder(ServerDecoder):
    """Frames read where they were received, ``most`` at a time; ``rest`` is what was not read yet."""

    def __init__(self) -> None:
        super().__init__()
        self.most = MAX_FRAMES
        self.rest = b""

    def feed(self, data: Buffer) -> Iterator[ServerFrame]:
        """Return the frames at the beginning of ``data``, which begins with the rest; without data, of the rest."""
        view = memoryview(data or self.rest)
        if not self.most:
            self.rest = bytes(view)
            return iter(())
        frames, consumed, error = self.scan(view, 0, len(view), self.most)
        self.rest = bytes(view[consumed:]) if consumed < len(view) else b""
        return iter(frames) if error is None else _ended_by(error, frames)

    @property
    def unfinished(self) -> int:
        """Bytes that were received and not read yet."""
        return len(self.rest)

    @property
    def frame_at(self) -> int:
        """The position in the stream: a packet may come slowly, as long as it comes."""
        return super().frame_at + len(self.rest)


def _ended_by(error: WireError, frames: list[ServerFrame]) -> Iterator[ServerFrame]:
    yield from frames
    raise error


class FyrehoseConnection(DoorConnection[FyrehoseTcpDoor]):
    """One TCP connection of the backbone."""

    max_frames = MAX_FRAMES

    def __init__(self, door: FyrehoseTcpDoor) -> None:
        self._packets = _InPlaceDecoder()
        super().__init__(door, self._packets)
        self._hub = door.hub
        self._acks: list[bytes] = []
        self._unread_acks = 0
        """Bytes of ACKs written since the peer stopped reading."""
        self._subscribed_until = 0.0
        self._shares_cache = True
        """Whether it may read everything, so that it can share what is encoded for all."""
        self.cursor = Cursor(find=door.cache.find, read_ahead=True)
        self.feed = LogFeed(self._hub.log, self.cursor, door.read_chunk, door.context.readers, self)

    def opened(self) -> None:
        """Load the kernels before messages come; feed a peer that may read part of the topics by itself."""
        load_in_thread(kernels.__name__)
        if not self.principal.reads_everything:
            read = partial(self.door.read_chunk, reader=self.principal)
            self._shares_cache = False
            self.cursor = Cursor(read_ahead=True)
            self.feed = LogFeed(self._hub.log, self.cursor, read, self.door.context.readers, self)

    # What the peer sends.

    def get_buffer(self, _size: int) -> memoryview:
        """Offer the door's buffer, after what is left of the last read."""
        rest = self._packets.rest
        self.door.view[: len(rest)] = rest
        return self.door.view[len(rest) : len(rest) + self.room_to_read]

    def received(self, size: int) -> memoryview:
        """Return what is in the door's buffer now: what is left of the last read, and this one."""
        return self.door.view[: len(self._packets.rest) + size]

    def bound(self, most: int) -> None:
        """Have no more read from the buffer than will be taken."""
        self._packets.most = most

    def cost(self, frame: ServerFrame) -> int:
        """Return how many frames a run of PUSHes counts for."""
        return cost(frame)

    def take(self, frame: ServerFrame) -> None:
        """Do what the peer asks; its KEEPALIVEs gather."""
        match frame:
            case PushRun() if not (self.principal.publishes_everything or self.may(Action.PUBLISH)):
                self.refuse("forbidden", f"{self.principal.name} may not publish without a topic")
            case PushRun(run):
                account = self.account
                account.received_messages += run.count
                if account.rated:
                    account.rate(0, run.count, self.heard)
                self._hub.submit(Batch(run, origin="fyrehose", publisher=self.name), self.settled)
            case _ if not (self.principal.reads_everything or self.may_any(Action.READ)):
                self.refuse("forbidden", f"{self.principal.name} may not read")
            case Keepalive(address, port):
                self._acks.append(_acknowledgement(address, port))
            case Request():
                self._request(frame)

    def done_taking(self) -> None:
        """Answer KEEPALIVEs; have what gathers numbered and logged, which is part of what this peer costs."""
        if self._acks:
            self._acknowledge()
        if self._hub.full:
            self._hub.take_turn()

    def _acknowledge(self) -> None:
        """Answer: "the backbone has to respond to every KEEPALIVE", before the first DELIVER."""
        acks = b"".join(self._acks)
        self._acks.clear()
        self.send(acks)
        if self._full:
            self._unread_acks += len(acks)
        self._subscribed_until = self.loop.time() + self.door.settings.fyrehose.subscriber_seconds
        if self not in self.door.subscribers:
            self.door.subscribers[self] = None
            self.counters.add("subscribed", door="fyrehose", transport="tcp")
            self.cursor.next = self._hub.log.head + 1

    def eof_received(self) -> bool:
        """Keep feeding a peer that sends no more (a pipe's end) while it is subscribed."""
        super().eof_received()
        return self._is_wanted()

    def must_wait(self) -> bool:
        """Return whether what the peer sends must wait; a peer that takes little may publish all the same."""
        return self.held_back or len(self.cursor.ranges) >= MAX_RANGES or self._unread_acks > MAX_ACKS

    # What the peer is sent.

    @property
    def ready(self) -> bool:
        """Whether there is room for another chunk."""
        return not self._full

    def deliver(self, chunks: Sequence[EncodedChunk]) -> bool:
        """Send what was just encoded; return whether the peer has it all, so that it need not be kept."""
        cursor = self.cursor
        if not self._shares_cache:
            self.feed.pump()
            return True
        for chunk in chunks:
            if self._full or not cursor.expects(chunk.first):
                self.feed.pump()
                return cursor.next > chunks[-1].last
            self.take_chunk(chunk)
            cursor.next = chunk.last + 1
        return True

    def take_chunk(self, chunk: EncodedChunk) -> bool:
        """Send DELIVER packets."""
        self.door.delivered.value += chunk.last - chunk.first + 1
        self.send(chunk.data)
        return True

    def read_failed(self, lost: Lost, error: HeadraceError) -> None:
        """Report what retention removed from a range; cut off a peer that the log can feed no further."""
        self.counters.report("undeliverable", lost.first, lost.last, str(error), door="fyrehose")
        if lost.ended:
            self.cut_off(cut_off_reason(error), error)

    def pump(self) -> None:
        """Send what there is; a REQUEST that is done makes room for another."""
        self.feed.pump()
        self.resume_reading()

    def drained(self) -> None:
        """Go on sending."""
        self._unread_acks = 0
        self.feed.pump()

    def unsent(self) -> Range | None:
        """Return the committed messages that a subscriber has not been sent."""
        following, head = self.cursor.next, self._hub.log.head
        return None if following > head else (following, head)

    def judge(self, now: float) -> None:
        """Let the subscription lapse; close a half-closed connection that nothing more is to be sent to."""
        # A connection that is not read cannot renew.
        if self in self.door.subscribers and now >= self._subscribed_until and not self.reading_paused:
            del self.door.subscribers[self]
            self.cursor.next = NOWHERE
            self.counters.add("lapsed", door="fyrehose", transport="tcp")
        elif self._subscribed_until and self not in self.door.subscribers and not self._is_wanted():
            # It had heartbeats, and has stopped; one that only publishes need not say when it will again.
            self.judge_silence(now, self.limits.idle_seconds)
        if self._ended and not (self.buffered or self._is_wanted()):
            self._transport.close()

    def closed(self) -> None:
        """Stop feeding the connection."""
        self.cursor.close()
        self.door.subscribers.pop(self, None)

    def _is_wanted(self) -> bool:
        return bool(self.cursor.ranges) or self.cursor.follows

    def _request(self, frame: Request) -> None:
        self.counters.add("requests", door="fyrehose", transport="tcp")
        for effect in self.door.backbone.stream_request(frame, self.endpoint):
            match effect:
                case Refused(reason):
                    self.refuse(reason.value, f"REQUEST from {frame.first} to {frame.last}")
                case Unserved(_, first, last):
                    detail = f"asked by {self.name}"
                    self.counters.report("unavailable", first, last, detail, at_will=True, door="fyrehose")
                case ServeRange(first, last):
                    self.cursor.ranges.append(RequestedRange(first, last))
                    self.feed.pump()
                case _:
                    raise AssertionError(effect)


@lru_cache(maxsize=1024)
def _acknowledgement(address: str, port: int) -> bytes:
    """The answer to a KEEPALIVE; a client sends the same one every second."""
    return serialize(KeepaliveAck(address, port))
