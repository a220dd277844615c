"""Receiving a tube: whole messages out of fragments, over TCP and over WebSocket.

Strategy: both decoders share one :class:`Reassembly` of the message under way and differ only in where a
fragment ends. Received bytes do not go through :class:`~headrace.wire.receive_buffer.ReceiveBuffer`: a fragment may be
longer than any read, so keeping an unfinished one there and taking it out again would copy a bulk payload
three times. Here a read is looked at where it lies, and a fragment's bytes are appended to their message at
once: copied exactly once, however they are chunked. What a decoder keeps between reads is the message under
way and at most five bytes of a header or length cut in two.

Invariants
    - The message under way grows by bytes that arrived, never by bytes that were announced.
    - A fragment counts toward ``max_message`` as at least one byte, from the moment the header announces it:
      a huge count is refused at the header and costs nothing, a message in one-byte fragments is fine.
    - Short fragments (:data:`CRUMB`) beyond the one that each message may have are counted, and long ones make up for
      them: a peer that sends nothing but dust, each grain of which costs a step, is refused.
    - Inflation stops at ``max_inflated``, one message at a time, when the caller asks for the next frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from headrace.errors import LimitError, MalformedError
from headrace.wire.receive_buffer import Buffer, Decoder
from headrace.wire.state_machine import StateMachine
from headrace.wire.tube.frames import (
    DEFLATE,
    LONE_BYTES,
    MAX_FRAGMENT_SIZE,
    RAW,
    Control,
    Discarded,
    FragmentSize,
    Frame,
    Header,
    Message,
    begins_as_zlib,
    inflate,
    parse_header,
)
from headrace.wire.tube.varint import parse_varint

DEFAULT_FRAGMENT_SIZE = 1 << 18
"""Large enough that cutting costs nothing, small enough for one read."""

MAX_MESSAGE = 1 << 23
"""Nothing else, not even a Ping, gets through while a message is under way: so messages stay short."""


CRUMB = 64
"""A fragment shorter than this costs more to take than its bytes are worth."""

MAX_CRUMBS = 1024
"""Short fragments that a peer may send, beyond those that whole messages and long fragments make up for."""


@dataclass(frozen=True, slots=True)
class TubeLimits:
    """What a receiver accepts.

    ``fragment_size`` is the longest fragment, which it tells its peer; ``max_message`` bounds a message as
    it travels, ``max_inflated`` what a compressed one may become.
    """

    fragment_size: int = DEFAULT_FRAGMENT_SIZE
    max_message: int = MAX_MESSAGE
    max_inflated: int = MAX_MESSAGE

    def __post_init__(self) -> None:
        if not 1 <= self.fragment_size <= MAX_FRAGMENT_SIZE:
            raise LimitError("tube", "fragment size", self.fragment_size, f"1 to {MAX_FRAGMENT_SIZE}")
        if self.max_message < 1:
            raise LimitError("tube", "max_message", self.max_message, "1 or more")
        if self.max_inflated < 1:
            raise LimitError("tube", "max_inflated", self.max_inflated, "1 or more")


DEFAULT_LIMITS = TubeLimits()


_LONE = 1
"""The header of an uncompressed message of one fragment."""


class ReceivingState(Enum):
    """The state of a receiver."""

    OPENING = "opening"
    IDLE = "idle"
    IN_MESSAGE = "in message"
    DISCARDING = "discarding"


class Arrival(Enum):
    """What can arrive."""

    FRAGMENT_SIZE = "fragment size"
    CONTROL = "control code"
    EMPTY = "header of no fragments"
    HEADER = "header"
    UNSUPPORTED = "header with unsupported compression"
    FRAGMENT = "fragment"
    LAST_FRAGMENT = "last fragment"


TRANSITIONS = {
    (ReceivingState.OPENING, Arrival.FRAGMENT_SIZE): ReceivingState.IDLE,
    (ReceivingState.IDLE, Arrival.CONTROL): ReceivingState.IDLE,
    (ReceivingState.IDLE, Arrival.EMPTY): ReceivingState.IDLE,
    (ReceivingState.IDLE, Arrival.HEADER): ReceivingState.IN_MESSAGE,
    (ReceivingState.IDLE, Arrival.UNSUPPORTED): ReceivingState.DISCARDING,
    (ReceivingState.IN_MESSAGE, Arrival.FRAGMENT): ReceivingState.IN_MESSAGE,
    (ReceivingState.IN_MESSAGE, Arrival.LAST_FRAGMENT): ReceivingState.IDLE,
    (ReceivingState.DISCARDING, Arrival.FRAGMENT): ReceivingState.DISCARDING,
    (ReceivingState.DISCARDING, Arrival.LAST_FRAGMENT): ReceivingState.IDLE,
}
"""One direction of a tube. Once a message has started, only its fragments follow: whatever comes then is read
as one. A fragment before the last stays where it is, so a decoder counts it and steps at the last."""


class Reassembly(Decoder[Frame]):
    """The part that both transports share: the state, and the message under way within its limits."""

    def __init__(self, limits: TubeLimits) -> None:
        super().__init__()
        self.limits = limits
        self.machine = StateMachine("tube", TRANSITIONS, ReceivingState.OPENING)
        self.joined = False
        """Whether a header came at the beginning of a first fragment (WebSocket)."""
        self._received = 0
        """Bytes of the connection so far."""
        self._boundary = 0
        """Bytes of the connection up to the end of the last whole frame."""
        self._compression = RAW
        self._message = bytearray()
        self._length = 0
        """Length of all admitted fragments of the message under way."""
        self._fragments = 0
        """Fragments of the message under way that are not complete."""
        self._spare = 0
        """Bytes that the message under way may have beyond one in each fragment."""
        self._crumbs = MAX_CRUMBS
        """Short fragments that may still come."""
        self._crumb = min(CRUMB, limits.fragment_size)

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete frame; not 0 at a stream's end means that it was cut."""
        return self._received - self._boundary

    @property
    def held(self) -> int:
        """Bytes of memory that the message under way takes."""
        return len(self._message)

    def forget(self) -> None:
        """Free the message under way: the connection is over."""
        self._message = bytearray()

    def take_lone(self, _data: Buffer) -> bytes | None:
        """Take what was received if it is one whole uncompressed message in one step; else take nothing of it."""
        return None

    def keep_rest(self) -> bool:
        """Copy what was fed and not read yet, so that its memory may be used again; return whether more may follow."""
        return True

    def _open(self, size: int, offset: int) -> Frame:
        if size < 1:
            raise MalformedError("tube", "fragment size", size, "1 or more", offset=offset)
        self.machine.step(Arrival.FRAGMENT_SIZE)
        return FragmentSize(size)

    def _begin(self, head: Header | Control, offset: int) -> Frame | None:
        """Take a control code or header; return a frame if that was all of it."""
        if not isinstance(head, Header):
            self.machine.step(Arrival.CONTROL)
            return head
        if head.fragments > self.limits.max_message:
            raise LimitError("tube", "fragment count", head.fragments, self.limits.max_message, offset=offset)
        self._compression = head.compression
        self._fragments = head.fragments
        self._length = 0
        self._spare = self.limits.max_message - head.fragments
        if not head.fragments:
            self.machine.step(Arrival.EMPTY)
            return self._whole()
        self.machine.step(Arrival.HEADER if head.compression <= DEFLATE else Arrival.UNSUPPORTED)
        return None

    def _admit(self, length: int, offset: int) -> None:
        """Refuse a fragment that must not come, before any of it is taken."""
        if length < 0:
            raise MalformedError("tube", "fragment length", length, "0 or more", offset=offset)
        if length > self.limits.fragment_size:
            raise LimitError("tube", "fragment length", length, self.limits.fragment_size, offset=offset)
        if length > 1:
            self._spare -= length - 1
            if self._spare < 0:
                total = self.limits.max_message - self._spare
                raise LimitError("tube", "message length", total, self.limits.max_message, offset=offset)
        if length < self._crumb:
            self._crumbs -= 1
            if self._crumbs < 0:
                raise LimitError("tube", "short fragments", MAX_CRUMBS + 1, MAX_CRUMBS, offset=offset)
        elif self._crumbs < MAX_CRUMBS:
            self._crumbs += 1
        self._length += length

    def _end_message(self) -> Frame:
        self.machine.step(Arrival.LAST_FRAGMENT)
        if self._crumbs < MAX_CRUMBS:
            self._crumbs += 1
        return self._whole()

    def _whole(self) -> Frame:
        if self._compression > DEFLATE:
            return Discarded(self._compression, self._length)
        message, self._message = self._message, bytearray()
        if self._compression == DEFLATE:
            if not begins_as_zlib(message):
                return Discarded(DEFLATE, self._length)
            return Message(inflate(message, self.limits.max_inflated, offset=self._boundary), DEFLATE)
        return Message(message)


class StreamDecoder(Reassembly):
    """Frames out of a TCP stream's bytes.

    What is fed is read where it lies until the iterator is exhausted; its memory may be reused after that.
    """

    def __init__(self, limits: TubeLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._chunk = memoryview(b"")
        """The newest bytes, after those left over from the read before."""
        self._at = 0
        self._missing = 0
        """Bytes still to come of the fragment under way; 0 between fragments."""

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Take bytes and yield the frames they complete."""
        if self._refused is None:
            left = self._chunk[self._at :]
            self._chunk = memoryview(b"".join((left, data)) if left else data).cast("B")
            self._at = 0
            self._received += len(self._chunk) - len(left)
        return self._frames()

    def take_lone(self, data: Buffer) -> bytes | None:
        """Take what was received if it is one whole uncompressed message in one step; else take nothing of it.

        That is what a connection receives that carries one short message at a time.
        """
        size = len(data)
        if size < 2 or data[0] != _LONE or size > LONE_BYTES or self._refused is not None:
            return None
        folded, begin = data[1], 2
        if folded > 0x7F:
            if size < 3 or data[2] > 0x7F:
                return None
            folded, begin = folded & 0x7F | data[2] << 7, 3
        length = size - begin
        if folded != length << 1 or length > self.limits.fragment_size or length > self.limits.max_message:
            return None
        if self.machine.state is not ReceivingState.IDLE or self._at < len(self._chunk):
            return None
        # What _admit() and _end_message() count.
        if length < self._crumb:
            if not self._crumbs:
                return None
        elif self._crumbs < MAX_CRUMBS:
            self._crumbs = min(self._crumbs + 2, MAX_CRUMBS)
        self._received += size
        self._boundary = self._received
        return bytes(data[begin:])

    def keep_rest(self) -> bool:
        """Copy what was fed and not read yet; return whether there is any."""
        self._chunk = memoryview(bytes(self._chunk[self._at :]))
        self._at = 0
        return bool(self._chunk)

    @property
    def _position(self) -> int:
        return self._received - len(self._chunk) + self._at

    def _next(self) -> Frame | None:
        frame = self._read()
        if frame is not None:
            self._boundary = self._position
            return frame
        self._chunk = memoryview(bytes(self._chunk[self._at :]))
        self._at = 0
        return None

    def _read(self) -> Frame | None:
        offset = self._position
        if self.machine.state is ReceivingState.OPENING:
            opened = parse_varint(self._chunk, self._at, field="fragment size", offset=offset)
            if opened is None:
                return None
            size, self._at = opened
            return self._open(size, offset)
        if self.machine.state is ReceivingState.IDLE:
            begun = parse_header(self._chunk, self._at, offset=offset)
            if begun is None:
                return None
            head, self._at = begun
            frame = self._begin(head, offset)
            if frame is not None:
                return frame
        return self._read_fragments()

    def _read_fragments(self) -> Frame | None:
        """Append fragments to the message under way until it is whole or the bytes run out."""
        chunk, at, missing, left = self._chunk, self._at, self._missing, self._fragments
        before = self._received - len(chunk)
        keep = self.machine.state is ReceivingState.IN_MESSAGE
        while left:
            if not missing:
                measured = parse_varint(chunk, at, field="fragment length", offset=before + at)
                if measured is None:
                    break
                self._admit(measured[0], before + at)
                missing, at = measured
            part = chunk[at : at + missing]
            if keep:
                self._message += part
            at += len(part)
            missing -= len(part)
            if missing:
                break
            left -= 1
        self._at, self._missing, self._fragments = at, missing, left
        return None if left else self._end_message()


class WebSocketDecoder(Reassembly):
    """Frames out of WebSocket binary messages, each fed whole."""

    def __init__(self, limits: TubeLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._waiting: deque[memoryview] = deque()

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Take one WebSocket message and yield the frame it completes, if it does."""
        if self._refused is None:
            self._waiting.append(memoryview(data).cast("B"))
        return self._frames()

    def _next(self) -> Frame | None:
        while self._waiting:
            payload = self._waiting.popleft()
            offset = self._received
            self._received += len(payload)
            frame = self._read(payload, offset)
            if frame is not None:
                self._boundary = self._received
                return frame
        return None

    def _read(self, payload: memoryview, offset: int) -> Frame | None:
        if self.machine.state is ReceivingState.OPENING:
            opened = parse_varint(payload, field="fragment size", offset=offset)
            if opened is None:
                raise MalformedError("tube", "fragment size", bytes(payload), "a whole number", offset=offset)
            size, end = opened
            _nothing_after(payload, end, "fragment size", offset)
            return self._open(size, offset)
        if self.machine.state is ReceivingState.IDLE:
            begun = parse_header(payload, offset=offset)
            if begun is None:
                raise MalformedError("tube", "header", bytes(payload), "a whole header", offset=offset)
            head, end = begun
            frame = self._begin(head, offset)
            if frame is not None:
                _nothing_after(payload, end, "control code or empty message", offset)
                return frame
            if end == len(payload):
                # A lone header is never fragment 1, not even an empty one.
                return None
            # The header's bytes do not count toward the fragment size.
            payload = payload[end:]
            offset += end
            self.joined = True
        self._admit(len(payload), offset)
        if self.machine.state is ReceivingState.IN_MESSAGE:
            self._message += payload
        self._fragments -= 1
        return None if self._fragments else self._end_message()


def _nothing_after(payload: memoryview, end: int, field: str, offset: int) -> None:
    if end < len(payload):
        rest = bytes(payload[end : end + 16])
        raise MalformedError("tube", f"after {field}", rest, "nothing", offset=offset + end)
