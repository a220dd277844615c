"""The columns of a frame, for fields that differ from message to message: their buffers side by side.

An Arrow IPC stream would describe its schema anew in every frame, about a thousand bytes for a message with two
attributes. The envelope's schema is known, so a column here is a byte for its name, and its buffers: values as they
are, texts as offsets (``i32``, from 0) and bytes, maps as offsets, keys and items. Every buffer begins at a multiple of
its width, counted from the beginning of the columns; ``docs/log.md`` has the layout.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.message import SCHEMA, envelope_rows

_NAMES: Final = tuple(SCHEMA.names)
_KINDS: Final = {field.name: field.type for field in SCHEMA}
_WIDTHS: Final = {"time": 8, "number": 8, "node": 4}
_TEXTS: Final = frozenset(name for name, kind in _KINDS.items() if pa.types.is_string(kind))
_PAIRS: Final = {
    name: pa.struct([kind.key_field, kind.item_field])
    for name, kind in _KINDS.items()
    if pa.types.is_map(kind)
}
"""The pairs of key and item that a map consists of."""

_FEW: Final = 64
"""Up to this many offsets are compared faster one by one than by numpy."""


class ColumnsError(ValueError):
    """Bytes that are not columns of the envelope."""


def pack(columns: pa.RecordBatch) -> bytes:
    """Pack columns of the envelope; types and nulls must have been checked."""
    writer = _Writer()
    writer.data.append(columns.num_columns)
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        writer.data.append(_NAMES.index(name))
        if name in _WIDTHS:
            if name == "number":
                present = ~column.is_null().to_numpy(zero_copy_only=False)
                writer.data.append(not present.all())
                if not present.all():
                    writer.data += present.astype(np.uint8).tobytes()
                column = column.fill_null(0)
            writer.values(column, _WIDTHS[name])
        elif name in _TEXTS:
            writer.texts(column)
        else:
            begin, end = writer.edges(column)
            # Offsets count from the beginning of all keys and items, whatever part of the column this is.
            keys, items = column.keys, column.items
            if begin or end != len(keys):
                keys, items = keys.slice(begin, end - begin), items.slice(begin, end - begin)
            writer.texts(keys)
            if pa.types.is_string(items.type):
                writer.texts(items)
            else:
                writer.values(items.fill_null(np.nan) if items.null_count else items, 8)
    return bytes(writer.data)


def unpack(data: bytes, rows: int) -> pa.RecordBatch:
    """Unpack the columns of ``rows`` rows; raise :class:`ColumnsError` if the bytes are anything else."""
    try:
        return _unpack(_Reader(data), rows)
    except (IndexError, ValueError, pa.ArrowException) as error:
        raise ColumnsError(str(error)) from None


def _unpack(reader: _Reader, rows: int) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    for _ in range(reader.byte()):
        name = _NAMES[reader.byte()]
        kind = _KINDS[name]
        if name in _WIDTHS:
            mask = reader.mask(rows) if name == "number" and reader.byte() else None
            columns[name] = reader.values(kind, _WIDTHS[name], rows, mask)
        elif name in _TEXTS:
            columns[name] = reader.texts(rows)
        elif name in _PAIRS:
            edges, count = reader.edges(rows)
            keys = reader.texts(count)
            item = kind.item_type
            items = reader.texts(count) if pa.types.is_string(item) else reader.values(item, 8, count)
            pairs = pa.Array.from_buffers(_PAIRS[name], count, [None], children=[keys, items])
            columns[name] = pa.Array.from_buffers(kind, rows, [None, edges], children=[pairs])
        else:
            raise ColumnsError(f"{name} is not a column of a frame")
    if reader.left:
        raise ColumnsError(f"{reader.left} bytes are left")
    return envelope_rows({name: columns[name] for name in _NAMES if name in columns})


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def values(self, column: pa.Array, width: int) -> None:
        """Write numbers, none of them null."""
        self._align(width)
        if len(column):
            begin, count = column.offset * width, len(column) * width
            self.data += memoryview(column.buffers()[1])[begin : begin + count]

    def edges(self, column: pa.Array) -> tuple[int, int]:
        """Write the offsets of texts or maps, from 0; return where the first begins and the last ends."""
        self._align(4)
        count = len(column)
        if not count:
            # An empty array may come without its one offset.
            self.data += bytes(4)
            return 0, 0
        edges = np.frombuffer(column.buffers()[1], np.int32, count + 1, 4 * column.offset)
        begin = int(edges[0])
        self.data += (edges - begin if begin else edges).tobytes()
        return begin, int(edges[-1])

    def texts(self, column: pa.Array) -> None:
        begin, end = self.edges(column)
        if end > begin:
            self.data += memoryview(column.buffers()[2])[begin:end]

    def _align(self, width: int) -> None:
        self.data += bytes(-len(self.data) % width)


class _Reader:
    """Reads columns in place: arrays share the memory of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._buffer = pa.py_buffer(data)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def mask(self, rows: int) -> pa.Buffer:
        """Read which rows are not null: a byte per row here, a bit in Arrow."""
        at = self._take(1, rows)
        present = np.frombuffer(self._data, np.uint8, rows, at)
        return pa.py_buffer(np.packbits(present, bitorder="little"))

    def values(self, kind: pa.DataType, width: int, count: int, mask: pa.Buffer | None = None) -> pa.Array:
        at = self._take(width, count)
        return pa.Array.from_buffers(kind, count, [mask, self._buffer.slice(at, width * count)])

    def edges(self, count: int) -> tuple[pa.Buffer, int]:
        """Read offsets, which begin at 0; return them and the last one."""
        at = self._take(4, count + 1)
        edges: npt.NDArray[np.int32] = np.frombuffer(self._data, np.int32, count + 1, at)
        if count < _FEW:
            each = edges.tolist()
            ascending = each == sorted(each)
        else:
            ascending = not np.any(edges[1:] < edges[:-1])
        if edges[0] != 0 or not ascending:
            raise ColumnsError("offsets decrease")
        return self._buffer.slice(at, 4 * count + 4), int(edges[-1])

    def texts(self, count: int) -> pa.Array:
        edges, size = self.edges(count)
        at = self._take(1, size)
        return pa.StringArray.from_buffers(count, edges, self._buffer.slice(at, size))

    def _take(self, width: int, count: int) -> int:
        """Move past ``count`` values of ``width`` bytes each; return where they begin."""
        at = self._at + -self._at % width
        self._at = at + width * count
        if self._at > len(self._data):
            raise ColumnsError("they are cut short")
        return at
