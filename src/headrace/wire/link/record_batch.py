"""Record batch messages of a fixed schema, put together and taken apart without Arrow's own machinery.

An encapsulated Arrow IPC message costs Arrow tens of microseconds a column, which is nothing for thousands of rows and
nearly all there is to do for one. Its metadata, though, is the same for every message of a schema but for some numbers:
how many rows there are, how many nulls each column has, and where each buffer lies. Strategy: one message is made by
Arrow; from then on its metadata is copied and the numbers are filled in (:meth:`Layout.encode`), or compared and the
numbers are taken out (:meth:`Layout.decode`). Metadata that is laid out in any other way is not ours to read: the
caller gives it to Arrow.

Only buffers that are not compressed are read, and none of them is looked into: that they hold what the schema says is
the caller's to check.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

Buffer: TypeAlias = bytes | bytearray | memoryview

_CONTINUES: Final = b"\xff\xff\xff\xff"
_ALIGNED: Final = 8
_PADDING: Final = tuple(bytes(-size % _ALIGNED) for size in range(_ALIGNED))


class Decoded(NamedTuple):
    """A message taken apart: the rows and nulls of each node of the schema, and each buffer."""

    length: int
    """How many rows there are."""
    nodes: tuple[int, ...]
    """Rows and nulls in turn."""
    buffers: list[memoryview]


class Layout:
    """How the messages of a schema are laid out."""

    def __init__(self, schema: pa.Schema) -> None:
        # What the row holds does not matter: only where the metadata has its numbers.
        rows = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
        message = bytes(memoryview(rows.serialize()))
        size = struct.unpack_from("<I", message, len(_CONTINUES))[0]
        begin = len(_CONTINUES) + 4
        self._head = message[: begin + size]
        root = begin + struct.unpack_from("<I", message, begin)[0]
        header = _field(self._head, root, 2)
        batch = header + struct.unpack_from("<I", message, header)[0]
        self._body_at = _field(self._head, root, 3)
        self._count_at = _field(self._head, batch, 0)
        self._nodes_at, nodes = _vector(self._head, batch, 1)
        self._buffers_at, self._buffers = _vector(self._head, batch, 2)
        self._nodes = struct.Struct(f"<{2 * nodes}q")
        self._places = struct.Struct(f"<{2 * self._buffers}q")
        numbers = sorted(
            [
                (self._body_at, 8),
                (self._count_at, 8),
                (self._nodes_at, self._nodes.size),
                (self._buffers_at, self._places.size),
            ]
        )
        # What lies between the numbers is the same in every message.
        edges = [0, *(edge for at, length in numbers for edge in (at, at + length)), len(self._head)]
        self._fixed = [
            (begin, end, self._head[begin:end]) for begin, end in zip(edges[::2], edges[1::2], strict=True)
        ]

    def encode(self, count: int, nodes: Sequence[int], buffers: Sequence[Buffer | list[Buffer]]) -> bytes:
        """A message: ``nodes`` are the rows and nulls of each node in turn, ``buffers`` all that the schema has.

        A buffer may be in pieces: it is copied once, to its place.
        """
        return b"".join(self.parts(count, nodes, buffers))

    def parts(
        self, count: int, nodes: Sequence[int], buffers: Sequence[Buffer | list[Buffer]]
    ) -> list[Buffer]:
        """The same message in parts, which stand side by side: buffers as they were given, and what is between them."""
        head = bytearray(self._head)
        parts: list[Buffer] = [head]
        places: list[int] = []
        at = 0
        for buffer in buffers:
            if isinstance(buffer, list):
                size = sum(len(piece) for piece in buffer)
                parts += buffer
            else:
                size = len(buffer)
                parts.append(buffer)
            places += (at, size)
            if size:
                if padding := -size % _ALIGNED:
                    parts.append(_PADDING[size % _ALIGNED])
                at += size + padding
        struct.pack_into("<q", head, self._body_at, at)
        struct.pack_into("<q", head, self._count_at, count)
        self._nodes.pack_into(head, self._nodes_at, *nodes)
        self._places.pack_into(head, self._buffers_at, *places)
        return parts

    def decode(self, message: Buffer) -> Decoded | None:
        """What a message says, if it is laid out as ours are; every buffer lies within it."""
        view = memoryview(message)
        begin = len(self._head)
        if len(view) < begin or any(view[first:last] != fixed for first, last, fixed in self._fixed):
            return None
        (count,) = struct.unpack_from("<q", view, self._count_at)
        (size,) = struct.unpack_from("<q", view, self._body_at)
        if size > len(view) - begin:
            return None
        places = self._places.unpack_from(view, self._buffers_at)
        buffers = []
        for at, length in zip(places[::2], places[1::2], strict=True):
            if at % _ALIGNED or not 0 <= at <= at + length <= size:
                return None
            buffers.append(view[begin + at : begin + at + length])
        return Decoded(count, self._nodes.unpack_from(view, self._nodes_at), buffers)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of the flatbuffer table at ``table`` is; Arrow wrote it, so it is there."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    return int(table + struct.unpack_from("<H", data, fields + 4 + 2 * number)[0])


def _vector(data: bytes, table: int, number: int) -> tuple[int, int]:
    """Where the items of a vector begin, and how many they are."""
    place = _field(data, table, number)
    at = place + struct.unpack_from("<I", data, place)[0]
    return at + 4, struct.unpack_from("<I", data, at)[0]
