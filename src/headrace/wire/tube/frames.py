"""The tube's frames as bytes: fragment sizes, headers, control codes, and messages cut into fragments.

A tube carries whole messages of any bytes, cut into fragments no longer than the receiver asked for. Each
side first states that size; then come messages: a header (compression and fragment count) and its
fragments, with single control bytes between messages. On TCP every fragment has its length in front; on
WebSocket every fragment is one binary message, and lengths are the transport's.

Here are the frames, their bytes, and the sending side of a message: :func:`deflate`, then
:func:`stream_pieces` or :func:`websocket_pieces`. Both of these are lazy, because the receiver chooses the
fragment size: eight million fragments of one byte must not become eight million objects at once.
Receiving is in :mod:`~headrace.wire.tube.reassembly`, the conversation in
:mod:`~headrace.wire.tube.connection`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headrace.errors import LimitError, MalformedError
from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.varint import MAX_VALUE, parse_varint, serialize_varint

MAX_FRAGMENT_SIZE = MAX_VALUE
MAX_FRAGMENTS = MAX_VALUE

MAX_HEADER = 6
"""The first byte, and five of a fragment count."""

RAW = 0
DEFLATE = 1
MAX_COMPRESSION = 7

COMPRESS_FROM = 512
"""Shorter messages fit a packet or two anyway."""

LONE_BYTES = 8192
"""Messages shorter than this are written and read in one step, if they travel alone in one fragment."""

_LEVEL = 1
_SAMPLE = 4096
_WORTH = 7 / 8
"""A message is sent compressed if it shrinks at least to this."""

_OWN_BUFFER = 4096
"""Shorter fragments are copied side by side: below this a buffer of their own costs more than the copy."""

_BLOCK = 1 << 18
"""Bytes of short fragments that are laid side by side at a time."""

_REFUSAL = 8
_PING = 16
_PONG = 17


@dataclass(frozen=True, slots=True)
class FragmentSize:
    """Each side's first frame: the longest fragment it wants to receive."""

    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a data message."""

    compression: int
    fragments: int


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message, reassembled and inflated; ``compression`` is how it travelled.

    ``data`` belongs to the receiver; the decoder keeps no reference to it.
    """

    data: bytes | bytearray
    compression: int = RAW


@dataclass(frozen=True, slots=True)
class Discarded:
    """A whole message in a compression we lack, or whose bytes are not zlib: taken and thrown away."""

    compression: int
    length: int


@dataclass(frozen=True, slots=True)
class NotSupported:
    """The sender lacks the compression of a message it got, and threw it away."""

    compression: int


@dataclass(frozen=True, slots=True)
class Ping:
    """The peer should immediately answer with Pong."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a Ping; not answered."""


Control = NotSupported | Ping | Pong
Frame = FragmentSize | Message | Discarded | Control


def serialize(frame: FragmentSize | Header | Control) -> bytes:
    """Return the bytes of anything but a message's fragments; the same on both transports.

    >>> serialize(Header(DEFLATE, 100)).hex(" ")
    '08 c8 01'
    """
    match frame:
        case FragmentSize(size):
            if not 1 <= size <= MAX_FRAGMENT_SIZE:
                raise LimitError("tube", "fragment size", size, f"1 to {MAX_FRAGMENT_SIZE}")
            return serialize_varint(size)
        case Header(compression, fragments):
            if not RAW <= compression <= MAX_COMPRESSION:
                raise LimitError("tube", "compression id", compression, f"{RAW} to {MAX_COMPRESSION}")
            if not 0 <= fragments <= MAX_FRAGMENTS:
                raise LimitError("tube", "fragment count", fragments, f"0 to {MAX_FRAGMENTS}")
            if 1 <= fragments <= 7:
                return bytes((compression << 3 | fragments,))
            return bytes((compression << 3,)) + serialize_varint(fragments)
        case NotSupported(compression):
            if not DEFLATE <= compression <= MAX_COMPRESSION:
                raise LimitError("tube", "compression id", compression, f"{DEFLATE} to {MAX_COMPRESSION}")
            return bytes(((_REFUSAL + compression) << 3,))
        case Ping():
            return bytes((_PING << 3,))
        case Pong():
            return bytes((_PONG << 3,))


def parse_header(data: Buffer, start: int = 0, *, offset: int = 0) -> tuple[Header | Control, int] | None:
    """Return the header or control code at ``start`` and where it ends, or ``None`` while a part is missing.

    >>> parse_header(bytes.fromhex("08c801"))
    (Header(compression=1, fragments=100), 3)
    """
    if start >= len(data):
        return None
    code, low = data[start] >> 3, data[start] & 7
    if code > MAX_COMPRESSION:
        # The low bits of control codes are ignored, and no count follows them.
        return _parse_control(code, offset), start + 1
    if low:
        return Header(code, low), start + 1
    counted = parse_varint(data, start + 1, field="fragment count", offset=offset + 1)
    if counted is None:
        return None
    fragments, end = counted
    if fragments < 0:
        raise MalformedError("tube", "fragment count", fragments, "0 or more", offset=offset + 1)
    return Header(code, fragments), end


def stream_pieces(message: Buffer, fragment_size: int, compression: int = RAW) -> Iterator[Buffer]:
    """Yield a message as it goes over TCP: buffers to be written one after the other.

    Long fragments are views of ``message``; short ones are laid side by side, so that a receiver's wish for
    tiny fragments costs neither a Python step nor a buffer each.
    """
    view = memoryview(message).cast("B")
    fragments = _fragment_count(len(view), fragment_size)
    header = serialize(Header(compression, fragments))
    full = (fragments - 1) * fragment_size
    last = serialize_varint(len(view) - full)
    if fragments == 1 and len(view) < _OWN_BUFFER:
        yield b"".join((header, last, view))
        return
    if fragment_size < _OWN_BUFFER:
        yield header
        block = _BLOCK // fragment_size * fragment_size
        for begin in range(0, full, block):
            yield _side_by_side(view[begin : min(begin + block, full)], fragment_size)
        yield b"".join((last, view[full:]))
        return
    length = serialize_varint(fragment_size)
    front = header
    for begin in range(0, full, fragment_size):
        yield front + length
        yield view[begin : begin + fragment_size]
        front = b""
    yield front + last
    yield view[full:]


@lru_cache(maxsize=LONE_BYTES)
def lone_front(length: int) -> bytes:
    """What goes over TCP before an uncompressed message of one fragment.

    >>> lone_front(100).hex(" ")
    '01 c8 01'
    """
    return serialize(Header(RAW, 1)) + serialize_varint(length)


def websocket_pieces(message: Buffer, fragment_size: int, compression: int = RAW) -> Iterator[Buffer]:
    """Yield a message as it goes over WebSocket: each a binary message of its own, the header first."""
    view = memoryview(message).cast("B")
    yield serialize(Header(compression, _fragment_count(len(view), fragment_size)))
    for begin in range(0, max(len(view), 1), fragment_size):
        yield view[begin : begin + fragment_size]


def join_header(pieces: Iterator[Buffer]) -> Iterator[Buffer]:
    """Yield the pieces of a message over WebSocket with the header at the beginning of the first fragment.

    An empty first fragment stays on its own: a lone header is never fragment 1.
    """
    header, first = next(pieces), next(pieces)
    yield from (b"".join((header, first)),) if len(first) else (header, first)
    yield from pieces


def deflate(message: Buffer) -> bytes | None:
    """Return a message in the zlib format, or ``None`` if it is better sent as it is.

    A sample from its middle is tried first, so that what is compressed already costs little.
    """
    view = memoryview(message).cast("B")
    if len(view) < COMPRESS_FROM:
        return None
    if len(view) > 4 * _SAMPLE:
        begin = (len(view) - _SAMPLE) // 2
        if len(zlib.compress(view[begin : begin + _SAMPLE], _LEVEL)) > _SAMPLE * _WORTH:
            return None
    packed = zlib.compress(view, _LEVEL)
    return packed if len(packed) <= len(view) * _WORTH else None


def begins_as_zlib(packed: Buffer) -> bool:
    """Whether bytes have a zlib header: raw deflate, gzip and most other data have none.

    Raw deflate could only look like one by a stored block with bits set in its padding, which encoders clear.

    >>> begins_as_zlib(zlib.compress(b"tube")), begins_as_zlib(zlib.compress(b"tube", wbits=-15))
    (True, False)
    """
    head = bytes(packed[:2])
    return len(head) == 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head) % 31 == 0


def inflate(packed: Buffer, limit: int, *, offset: int | None = None) -> bytes:
    """Return what a whole zlib stream holds, never taking more than ``limit`` bytes for it."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, limit + 1)
    except zlib.error as error:
        # A preset dictionary ends here too: the protocol has no way to agree on one.
        raise MalformedError("tube", "deflate", bytes(packed[:16]), str(error), offset=offset) from None
    if len(data) > limit:
        raise LimitError("tube", "inflated length", f"over {limit}", limit, offset=offset)
    if not stream.eof:
        raise MalformedError("tube", "deflate", bytes(packed[-16:]), "a whole zlib stream", offset=offset)
    if stream.unused_data:
        rest = stream.unused_data[:16]
        raise MalformedError("tube", "deflate", rest, "nothing after the zlib stream", offset=offset)
    return data


def _parse_control(code: int, offset: int) -> Control:
    if code == _PING:
        return Ping()
    if code == _PONG:
        return Pong()
    if _REFUSAL < code < _PING:
        return NotSupported(code - _REFUSAL)
    raise MalformedError("tube", "message code", code, "0 to 7 or 9 to 17", offset=offset)


def _fragment_count(length: int, fragment_size: int) -> int:
    if fragment_size < 1:
        raise LimitError("tube", "fragment size", fragment_size, f"1 to {MAX_FRAGMENT_SIZE}")
    # An empty message goes as one empty fragment.
    return max(1, -(-length // fragment_size))


def _side_by_side(content: memoryview, fragment_size: int) -> Buffer:
    """Full fragments, each with its length in front, in one buffer."""
    length = np.frombuffer(serialize_varint(fragment_size), np.uint8)
    fragments = np.frombuffer(content, np.uint8).reshape(-1, fragment_size)
    out = np.empty((len(fragments), len(length) + fragment_size), np.uint8)
    out[:, : len(length)] = length
    out[:, len(length) :] = fragments
    return out.reshape(-1).data
