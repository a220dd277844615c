"""Record batch messages of a fixed schema, encoded and decoded without Arrow's own machinery.

An encapsulated Arrow IPC message costs Arrow tens of microseconds per column: nothing for thousands of rows, nearly all
the work for one. But its metadata is the same for every message of a schema, except for some numbers: rows, nulls per
column, and the position of each buffer. Strategy: Arrow makes one message; from then on its metadata is copied and the
numbers filled in (:meth:`Layout.encode`), or compared and the numbers taken out (:meth:`Layout.decode`). Metadata laid
out in any other way is left to Arrow.

Only uncompressed buffers are read, and their contents are not checked: that is up to the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

Buffer: TypeAlias = bytes | bytearray | memoryview

Columns: TypeAlias = Mapping[str, Sequence[Buffer | list[Buffer]]]
"""The buffers of each column, in Arrow's order. A buffer may be given in pieces."""

_NO_OFFSETS: Final = bytes(4)
"""The offsets of a column without rows."""

_CONTINUES: Final = b"\xff\xff\xff\xff"
_HEADS: Final = 64
"""Heads kept, of about a kilobyte each."""
_ALIGNED: Final = 8
_PADDING: Final = tuple(bytes(-size % _ALIGNED) for size in range(_ALIGNED))


class Decoded:
    """A decoded message: its columns by name."""

    __slots__ = ("_buffers", "_layout", "_nulls", "length")

    def __init__(
        self, layout: Layout, length: int, nulls: tuple[int, ...], buffers: list[memoryview]
    ) -> None:
        self.length = length
        """Number of rows."""
        self._layout = layout
        self._nulls = nulls
        self._buffers = buffers

    def column(self, name: str) -> list[memoryview]:
        """A column's buffers in Arrow's order: validity, then values or offsets and data, then a map's entries."""
        return self._buffers[self._layout.buffers[name]]

    def nulls(self, name: str) -> int:
        """Count the absent values of a column that may have some."""
        return self._nulls[self._layout.nullable.index(name)]

    def is_empty_map(self, name: str) -> bool:
        """Tell whether a map column has no entries in any row."""
        _, offsets, *entries = self.column(name)
        size = 4 * self.length + 4
        sizes = [*map(len, entries)]
        # Comparing views goes item by item, which takes longer than a copy.
        return (
            len(offsets) == size
            and bytes(offsets) == bytes(size)
            and {0, len(_NO_OFFSETS)}.issuperset(sizes)
            and b"".join(entries) == bytes(sum(sizes))
        )


class Head(NamedTuple):
    """What the head of a message tells: how many rows, which are absent, where it ends, where its buffers are."""

    rows: int
    nulls: tuple[int, ...]
    end: int
    places: list[slice]


class Layout:
    """The layout of a schema's messages."""

    def __init__(self, schema: pa.Schema) -> None:
        # The row's values do not matter, only where the metadata has its numbers.
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
        self._buffers_at, buffers = _vector(self._head, batch, 2)
        self._nodes = struct.Struct(f"<{2 * nodes}q")
        self._name_columns(schema)
        self._places = struct.Struct(f"<{2 * buffers}q")
        vectors = [(self._nodes_at, self._nodes.size), (self._buffers_at, self._places.size)]
        numbers = sorted([(self._body_at, 8), (self._count_at, 8), *vectors])
        # The bytes between the numbers are the same in every message.
        edges = [0, *(edge for at, length in numbers for edge in (at, at + length)), len(self._head)]
        self._fixed = [
            (begin, end, self._head[begin:end]) for begin, end in zip(edges[::2], edges[1::2], strict=True)
        ]

    def _name_columns(self, schema: pa.Schema) -> None:
        """Find which nodes and buffers belong to each column: a map has three more nodes, for its entries."""
        self.buffers: dict[str, slice] = {}
        self.nullable: list[str] = []
        self._nulls_at: list[int] = []
        """Where the nodes count the nulls of each nullable column."""
        self._empty_entries: dict[str, tuple[bytes, ...]] = {}
        self._row_counts: list[int] = []
        """1 where a node's number is the number of rows, 0 where a message without map entries has 0."""
        at = 0
        for field in schema:
            own = _empty_buffers(field.type)
            if pa.types.is_map(field.type):
                entries = (b"", *_empty_buffers(field.type.key_type), *_empty_buffers(field.type.item_type))
                self._empty_entries[field.name] = entries
                own = (b"", _NO_OFFSETS, *entries)
            self.buffers[field.name] = slice(at, at + len(own))
            at += len(own)
            if field.nullable:
                self.nullable.append(field.name)
                self._nulls_at.append(len(self._row_counts) + 1)
            self._row_counts += (1, 0, *(0, 0) * (3 * pa.types.is_map(field.type)))
        # Messages that are sent one at a time often have the same sizes, and so the same head.
        self._known_heads = lru_cache(maxsize=_HEADS)(self._make_head)
        self._read_heads = lru_cache(maxsize=_HEADS)(self._read_head)

    @property
    def head_bytes(self) -> int:
        """Length of the head; the columns follow."""
        return len(self._head)

    @property
    def count_at(self) -> int:
        """Where in the head the number of rows is."""
        return self._count_at

    def place_at(self, name: str, buffer: int) -> int:
        """Where in the head the place of a column's buffer is: its offset after the head, and its length."""
        return int(self._buffers_at + 16 * (self.buffers[name].start + buffer))

    def empty_map(self, name: str, offsets: bytes) -> tuple[bytes, ...]:
        """Make a map column without entries: ``offsets`` are zeros, one more than there are rows."""
        return (b"", offsets, *self._empty_entries[name])

    def _pack_nodes(self, count: int, nulls: tuple[int, ...]) -> bytes:
        nodes = [count * rows for rows in self._row_counts]
        for at, missing in zip(self._nulls_at, nulls, strict=True):
            nodes[at] = missing
        return self._nodes.pack(*nodes)

    def encode(self, count: int, columns: Columns, *nulls: int) -> bytes:
        """Make a message of ``count`` rows whose maps have no entries.

        ``nulls`` counts the absent values of each column that may have some.
        """
        return b"".join(self.parts(count, columns, *nulls))

    def parts(self, count: int, columns: Columns, *nulls: int) -> list[Buffer]:
        """Make the same message in parts to be written side by side: the buffers as given, and padding."""
        buffers = [*chain.from_iterable(map(columns.__getitem__, self.buffers))]
        if list in map(type, buffers):
            sizes = [sum(map(len, each)) if isinstance(each, list) else len(each) for each in buffers]
        else:
            sizes = [*map(len, buffers)]
        head, filled = self._known_heads(count, nulls, tuple(sizes))
        parts: list[Buffer] = [head]
        for at, padding in filled:
            buffer = buffers[at]
            if isinstance(buffer, list):
                parts += buffer
            else:
                parts.append(buffer)
            if padding:
                parts.append(padding)
        return parts

    def _make_head(
        self, count: int, nulls: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[bytes, list[tuple[int, bytes]]]:
        """Make the head of a message with buffers of these sizes; tell which are not empty, and their padding."""
        head = bytearray(self._head)
        filled: list[tuple[int, bytes]] = []
        places: list[int] = []
        at = 0
        for number, size in enumerate(sizes):
            places += (at, size)
            if size:
                padding = _PADDING[size % _ALIGNED]
                filled.append((number, padding))
                at += size + len(padding)
        struct.pack_into("<q", head, self._body_at, at)
        struct.pack_into("<q", head, self._count_at, count)
        head[self._nodes_at : self._nodes_at + self._nodes.size] = self._pack_nodes(count, nulls)
        self._places.pack_into(head, self._buffers_at, *places)
        return bytes(head), filled

    def decode(self, message: Buffer) -> Decoded | None:
        """Decode a message if it has our layout and no map entries; every buffer is checked to lie within it."""
        view = memoryview(message)
        found = self._read_heads(bytes(view[: len(self._head)]))
        if found is None or found.end > len(view):
            return None
        return Decoded(self, found.rows, found.nulls, [view[place] for place in found.places])

    def read_head(self, message: bytes) -> Head | None:
        """Return the head of a message, if it is just as :meth:`encode` makes it."""
        head = message[: len(self._head)]
        found = self._read_heads(head)
        if found is None:
            return None
        sizes = tuple(place.stop - place.start for place in found.places)
        return found if self._known_heads(found.rows, found.nulls, sizes)[0] == head else None

    def _read_head(self, head: bytes) -> Head | None:
        """Read the head of a message, if it has our layout and no map entries."""
        begin = len(self._head)
        if len(head) < begin or any(head[first:last] != fixed for first, last, fixed in self._fixed):
            return None
        (count,) = struct.unpack_from("<q", head, self._count_at)
        (size,) = struct.unpack_from("<q", head, self._body_at)
        nulls = tuple(struct.unpack_from("<q", head, self._nodes_at + 8 * at)[0] for at in self._nulls_at)
        nodes = head[self._nodes_at : self._nodes_at + self._nodes.size]
        if nodes != self._pack_nodes(count, nulls):
            return None
        numbers = self._places.unpack_from(head, self._buffers_at)
        places = []
        for at, length in zip(numbers[::2], numbers[1::2], strict=True):
            if at % _ALIGNED or not 0 <= at <= at + length <= size:
                return None
            places.append(slice(begin + at, begin + at + length))
        return Head(count, nulls, begin + size, places)


def _empty_buffers(kind: pa.DataType) -> tuple[bytes, ...]:
    """The buffers of a column without rows."""
    return (b"", _NO_OFFSETS, b"") if pa.types.is_string(kind) or pa.types.is_binary(kind) else (b"", b"")


def _field(data: bytes, table: int, number: int) -> int:
    """The position of a field of the flatbuffer table at ``table``; Arrow wrote it, so it is there."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    return int(table + struct.unpack_from("<H", data, fields + 4 + 2 * number)[0])


def _vector(data: bytes, table: int, number: int) -> tuple[int, int]:
    """Where the items of a vector begin, and how many there are."""
    place = _field(data, table, number)
    at = place + struct.unpack_from("<I", data, place)[0]
    return at + 4, struct.unpack_from("<I", data, at)[0]
