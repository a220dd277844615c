"""Captures: the bytes of a connection in both directions, to be decoded later.

A capture is one file for one connection, or for all datagrams of a door: a line of JSON that describes it, then
chunks. A chunk is a byte for its direction (0: to the hub, 1: from it), its time in µs (8 bytes), its length
(4 bytes), all big-endian, and the bytes. A stream's chunks follow one another; each datagram is a chunk of its own.

    {"headrace":"capture","version":1,"door":"spp","peer":"127.0.0.1:40312","datagrams":false}
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from headrace.errors import LimitError, MalformedError
from headrace.wire.receive_buffer import Decoder

MAX_LINE: Final = 4096
MAX_CHUNK: Final = 16 << 20
MAX_TIME: Final = 253_402_300_799_999_999
"""The end of the year 9999, the last that calendars can show."""

_CHUNK: Final = struct.Struct(">BQI")
HEAD_BYTES: Final = _CHUNK.size
"""Bytes before those of a chunk."""


class Capture(msgspec.Struct, frozen=True):
    """The first line of a capture, which describes its connection."""

    door: str
    peer: str
    datagrams: bool = False
    headrace: str = "capture"
    version: int = 1


class Chunk(msgspec.Struct, frozen=True):
    """Bytes of one direction at one time."""

    outgoing: bool
    time: int
    data: bytes


def serialize(item: Capture | Chunk) -> bytes:
    """Serialize one part of a capture.

    >>> serialize(Chunk(False, 1, b"hi")).hex(" ")
    '00 00 00 00 00 00 00 00 01 00 00 00 02 68 69'
    """
    if isinstance(item, Capture):
        return msgspec.json.encode(item) + b"\n"
    return _CHUNK.pack(item.outgoing, item.time, len(item.data)) + item.data


def parse_chunk_head(head: bytes, offset: int = 0) -> tuple[int, int, int]:
    """Parse the bytes before a chunk's own: its direction, its time and its length."""
    direction, time, length = _CHUNK.unpack(head)
    if direction > 1:
        raise MalformedError("capture", "direction", direction, "0 or 1", offset=offset)
    if length > MAX_CHUNK:
        raise LimitError("capture", "length", length, MAX_CHUNK, offset=offset)
    if time > MAX_TIME:
        raise LimitError("capture", "time", time, MAX_TIME, offset=offset)
    return direction, time, length


class CaptureDecoder(Decoder[Capture | Chunk]):
    """Reads a capture's file, in any pieces."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = False

    def _next(self) -> Capture | Chunk | None:
        if not self._begun:
            return self._first()
        head = self.inbox.peek(HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            return None
        direction, time, length = parse_chunk_head(head, self.inbox.position)
        if len(self.inbox) < HEAD_BYTES + length:
            return None
        self.inbox.skip(HEAD_BYTES)
        return Chunk(bool(direction), time, self.inbox.take(length))

    def _first(self) -> Capture | None:
        end = self.inbox.find(b"\n", MAX_LINE)
        if end < 0:
            if len(self.inbox) >= MAX_LINE:
                raise LimitError("capture", "first line", len(self.inbox), MAX_LINE, offset=0)
            return None
        line = self.inbox.peek(end)
        try:
            capture = msgspec.json.decode(line, type=Capture)
        except (msgspec.DecodeError, RecursionError):
            raise MalformedError(
                "capture", "first line", line, "the description of a capture", offset=0
            ) from None
        if (capture.headrace, capture.version) != ("capture", 1):
            raise MalformedError("capture", "first line", line, "a capture of version 1", offset=0)
        self.inbox.skip(end + 1)
        self._begun = True
        return capture
