"""Messages given as several buffers, cut into fragments without first being copied together.

A header and its body lie apart in memory, and a fragment may begin in one and end in the other. On TCP a fragment's
bytes are written one buffer after the other, so nothing is copied. On WebSocket a fragment is one binary message, and
only a fragment that spans two buffers is copied together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.wire.receive_buffer import Buffer
from headrace.wire.tube.connection import Transport
from headrace.wire.tube.frames import RAW, Header, serialize, stream_pieces, websocket_pieces
from headrace.wire.tube.varint import serialize_varint

_JOINED = 16 << 10
"""Parts up to this size are copied together: that costs less than a write for each."""

Parts = Sequence[memoryview]


def steady(message: Buffer) -> memoryview:
    """Return a message's bytes, which must not change while they wait to be written.

    Writable memory is copied; ``memoryview(…).toreadonly()`` is its owner's promise not to write.
    """
    view = memoryview(message)
    if not view.readonly or not view.contiguous:
        return memoryview(bytes(view))
    return view.cast("B") if view.nbytes else memoryview(b"")


def gather(parts: Iterable[Buffer]) -> list[memoryview]:
    """Return the parts of one message, small neighbours copied together; at least one, which may be empty."""
    gathered: list[memoryview] = []
    small: list[memoryview] = []
    waiting = 0
    for part in map(steady, parts):
        if waiting + len(part) > _JOINED:
            gathered += _beside(small)
            small, waiting = [], 0
        if len(part) > _JOINED:
            gathered.append(part)
        else:
            small.append(part)
            waiting += len(part)
    gathered += _beside(small)
    return gathered or [memoryview(b"")]


def join(parts: Parts) -> Buffer:
    """Return the whole message as one buffer, copied only if it is not one already."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def pieces(transport: Transport, parts: Parts, fragment_size: int) -> Iterator[Buffer]:
    """Yield an uncompressed message as it travels; see ``stream_pieces`` and ``websocket_pieces``."""
    if transport is Transport.WEBSOCKET:
        if len(parts) == 1:
            return websocket_pieces(parts[0], fragment_size)
        return _websocket_pieces(parts, fragment_size)
    if len(parts) == 1 or fragment_size < _JOINED:
        return stream_pieces(join(parts), fragment_size)
    return _stream_pieces(parts, fragment_size)


def _stream_pieces(parts: Parts, fragment_size: int) -> Iterator[Buffer]:
    front = _header(parts, fragment_size)
    for fragment in _fragments(parts, fragment_size):
        yield front + serialize_varint(sum(map(len, fragment)))
        yield from fragment
        front = b""


def _websocket_pieces(parts: Parts, fragment_size: int) -> Iterator[Buffer]:
    yield _header(parts, fragment_size)
    for fragment in _fragments(parts, fragment_size):
        yield join(fragment)


def _header(parts: Parts, fragment_size: int) -> bytes:
    return serialize(Header(RAW, -(-sum(map(len, parts)) // fragment_size)))


def _fragments(parts: Parts, fragment_size: int) -> Iterator[list[memoryview]]:
    fragment: list[memoryview] = []
    room = fragment_size
    for part in parts:
        at = 0
        while at < len(part):
            view = part[at : at + room]
            fragment.append(view)
            at += len(view)
            room -= len(view)
            if not room:
                yield fragment
                fragment, room = [], fragment_size
    if fragment:
        yield fragment


def _beside(small: list[memoryview]) -> list[memoryview]:
    if len(small) < 2:
        return small
    return [memoryview(b"".join(small))]
