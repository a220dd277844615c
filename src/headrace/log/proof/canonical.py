"""The canonical bytes of messages: what a digest covers, whatever files the messages lie in.

A message is a header of 56 bytes, then its texts, maps and payload. All numbers are little-endian, and every length
stands in the header, so no two messages have the same bytes:

====== ====== ==========================================================================
offset  type  field
====== ====== ==========================================================================
0      u64    ``seq``
8      i64    ``time`` in µs
16     i64    ``number``, 0 if there is none
24     i32    ``node``
28     u32    1 if the message has a ``number``, else 0
32     u32    bytes of ``origin``
36     u32    bytes of ``publisher``
40     u32    bytes of ``topic``
44     u32    bytes of ``attributes``
48     u32    bytes of ``numbers``
52     u32    bytes of ``payload``
56            ``origin``, ``publisher``, ``topic``, ``attributes``, ``numbers``, ``payload``
====== ====== ==========================================================================

An attribute is the length of its name (u32) and of its value (u32), then both. A number is the length of its name
(u32), its value (f64), then the name. Both keep the order that they have in the log. Every NaN counts as the same one.

A batch is converted by a few calls of Arrow and numpy, however many messages it has.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.message import Bytes, Offsets, bytes_of, offsets_of

_HEADER: Final = np.dtype(
    [
        ("seq", "<u8"),
        ("time", "<i8"),
        ("number", "<i8"),
        ("node", "<i4"),
        ("numbered", "<u4"),
        ("origin", "<u4"),
        ("publisher", "<u4"),
        ("topic", "<u4"),
        ("attributes", "<u4"),
        ("numbers", "<u4"),
        ("payload", "<u4"),
    ]
)
_ATTRIBUTE: Final = np.dtype([("name", "<u4"), ("value", "<u4")])
_NUMBER: Final = np.dtype([("name", "<u4"), ("value", "<f8")])
_TEXTS: Final = ("origin", "publisher", "topic")
_NAN: Final = np.float64("nan")

MAX_BYTES: Final = 1 << 30
"""Rows of more bytes are converted in halves: Arrow's offsets have 31 bits."""


def canonical(rows: pa.RecordBatch) -> list[tuple[Bytes, Offsets]]:
    """Convert rows in the envelope's schema to their canonical bytes: buffers, and where each message begins and ends.

    There is one buffer, unless the rows are very large.
    """
    if rows.nbytes > MAX_BYTES and rows.num_rows > 1:
        half = rows.num_rows // 2
        return canonical(rows.slice(0, half)) + canonical(rows.slice(half))
    header = np.zeros(rows.num_rows, _HEADER)
    for name in ("seq", "time", "number", "node"):
        column = rows.column(name)
        if name == "number":
            header["numbered"] = column.is_valid().to_numpy(zero_copy_only=False)
            column = column.fill_null(0)
        header[name] = column.cast(pa.int64()).to_numpy() if name == "time" else column.to_numpy()
    parts = [rows.column(name).cast(pa.binary()) for name in _TEXTS]
    parts += [
        _attributes(rows.column("attributes")),
        _numbers(rows.column("numbers")),
        rows.column("payload"),
    ]
    for name, part in zip((*_TEXTS, "attributes", "numbers", "payload"), parts, strict=True):
        header[name] = np.diff(offsets_of(part))
    whole = pc.binary_join_element_wise(_binary(header), *(part for part in parts if _has_bytes(part)), b"")
    return [(bytes_of(whole), offsets_of(whole))]


def _attributes(maps: pa.MapArray) -> pa.Array:
    names, values = maps.keys.cast(pa.binary()), maps.items.cast(pa.binary())
    sizes = np.empty(len(names), _ATTRIBUTE)
    sizes["name"], sizes["value"] = np.diff(offsets_of(names)), np.diff(offsets_of(values))
    return _of_each(maps, pc.binary_join_element_wise(_binary(sizes), names, values, b""))


def _numbers(maps: pa.MapArray) -> pa.Array:
    names, values = maps.keys.cast(pa.binary()), maps.items
    fixed = np.empty(len(names), _NUMBER)
    fixed["name"] = np.diff(offsets_of(names))
    each = values.fill_null(_NAN).to_numpy()
    fixed["value"] = np.where(np.isnan(each), _NAN, each)
    return _of_each(maps, pc.binary_join_element_wise(_binary(fixed), names, b""))


def _of_each(maps: pa.MapArray, pairs: pa.Array) -> pa.Array:
    """Join the bytes of all pairs into those of each message's map."""
    edges = (
        np.ascontiguousarray(offsets_of(pairs)[offsets_of(maps)])
        if len(pairs)
        else np.zeros(len(maps) + 1, np.int32)
    )
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(bytes_of(pairs))]
    return pa.Array.from_buffers(pa.binary(), len(maps), buffers)


def _binary(fixed: npt.NDArray[np.void]) -> pa.Array:
    kind = pa.binary(fixed.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(fixed), [None, pa.py_buffer(fixed)]).cast(pa.binary())


def _has_bytes(part: pa.Array) -> bool:
    edges = offsets_of(part)
    return bool(edges[0] != edges[-1])
