"""The columns of a frame, for fields that differ from message to message: their buffers side by side.

An Arrow IPC stream would describe its schema anew in every frame, about a thousand bytes for a message with two
attributes. The envelope's schema is known, so a column here is a byte for its name, and its buffers: values as they
are, texts as offsets (``i32``, from 0) and bytes, maps as offsets, keys and items. Every buffer begins at a multiple of
its width, counted from the beginning of the columns; ``docs/log.md`` has the layout.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.message import SCHEMA, bytes_of, column_type, envelope_rows, offsets_of

_NAMES: Final = tuple(SCHEMA.names)
_WIDTHS: Final = {"time": "<i8", "number": "<i8", "node": "<i4"}


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
            writer.put(column.view(_integers(name)).to_numpy().astype(_WIDTHS[name], copy=False))
        elif pa.types.is_string(column.type):
            writer.texts(column)
        else:
            edges = offsets_of(column)
            writer.put(edges - edges[0])
            begin, count = int(edges[0]), int(edges[-1] - edges[0])
            # Offsets count from the beginning of all keys and items, whatever part of the column this is.
            keys, items = column.keys.slice(begin, count), column.items.slice(begin, count)
            writer.texts(keys)
            if pa.types.is_string(items.type):
                writer.texts(items)
            else:
                writer.put(items.to_numpy(zero_copy_only=False))
    return bytes(writer.data)


def unpack(data: bytes, rows: int) -> pa.RecordBatch:
    """Unpack the columns of so many rows; raise :class:`ColumnsError` if they are anything else."""
    try:
        return _unpack(_Reader(data), rows)
    except (IndexError, ValueError, pa.ArrowException) as error:
        raise ColumnsError(str(error)) from None


def _unpack(reader: _Reader, rows: int) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    for _ in range(reader.byte()):
        name = _NAMES[reader.byte()]
        kind = column_type(name)
        if name in _WIDTHS:
            mask = None
            if name == "number" and reader.byte():
                mask = reader.take("u1", rows) == 0
            values = pa.array(reader.take(_WIDTHS[name], rows), _integers(name), mask=mask)
            columns[name] = values.view(kind)
        elif pa.types.is_string(kind):
            columns[name] = reader.texts(rows)
        elif pa.types.is_map(kind):
            edges = reader.edges(rows)
            keys = reader.texts(int(edges[-1]))
            items = (
                reader.texts(int(edges[-1]))
                if pa.types.is_string(kind.item_type)
                else pa.array(reader.take("<f8", int(edges[-1])))
            )
            columns[name] = pa.MapArray.from_arrays(pa.array(edges), keys, items, type=kind)
        else:
            raise ColumnsError(f"{name} is no column of a frame")
    if reader.left:
        raise ColumnsError(f"{reader.left} bytes are left")
    return envelope_rows({name: columns[name] for name in _NAMES if name in columns})


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, values: npt.NDArray[Any]) -> None:
        self.data += bytes(-len(self.data) % values.itemsize)
        self.data += values.tobytes()

    def texts(self, column: pa.Array) -> None:
        edges = offsets_of(column)
        self.put(edges - edges[0])
        self.data += bytes_of(column)[edges[0] : edges[-1]].tobytes()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def take(self, kind: str, count: int) -> npt.NDArray[Any]:
        width = np.dtype(kind).itemsize
        at = self._at + -self._at % width
        self._at = at + width * count
        if self._at > len(self._data):
            raise ColumnsError("they are cut short")
        return np.frombuffer(self._data, kind, count, at)

    def edges(self, count: int) -> npt.NDArray[np.int32]:
        edges: npt.NDArray[np.int32] = self.take("<i4", count + 1)
        if edges[0] != 0 or np.any(edges[1:] < edges[:-1]):
            raise ColumnsError("offsets decrease")
        return edges

    def texts(self, count: int) -> pa.Array:
        edges = self.edges(count)
        data = self.take("u1", int(edges[-1]))
        return pa.StringArray.from_buffers(count, pa.py_buffer(edges), pa.py_buffer(data))


def _integers(name: str) -> pa.DataType:
    return pa.int32() if name == "node" else pa.int64()
