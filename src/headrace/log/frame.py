"""The open tail's framing: a batch as one compact, checksummed frame.

A frame is its :data:`HEADER`, offsets (``i32``, from 0), the texts ``origin``, ``publisher`` and ``topic``, the
payloads, zeros up to a multiple of 8, and, if fields differ from message to message, their columns as an Arrow IPC
stream. ``docs/log.md`` explains every field. All is little-endian, so that numpy and Arrow read in place.

Only bytes with a good CRC are trusted. The salt, which marks a frame's beginning, is random and never leaves the file,
so no payload can be made to look like a frame: a search for the next good frame, which tells damage from a torn end,
finds none inside payloads and costs one pass over the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UsageError
from headrace.log.checksum import crc32c, joined
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch, Run

MAX_FRAME: Final = 256 << 20
"""The longest frame: a longer batch is the caller's mistake, a longer length in a file is damage."""

HEADER: Final = struct.Struct("<IIIIQQqqIIHBBHH")
"""Mark (the salt), CRC, length, rows, first operation, first sequence number (of entries: the number they stand after),
time, the publisher's first number; the sizes of payloads and columns; node, flags; the sizes of origin, publisher and
topic."""

NUMBERED: Final = 1
"""Flag: the messages have their publisher's numbers."""
CONTINUED: Final = 2
"""Flag: the next frame belongs to the same append."""
ENTRIES: Final = 4
"""Flag: the rows are log entries, which take no sequence numbers."""

_PREFIX: Final = struct.Struct("<III")
_LEADING: Final = struct.Struct("<II")
_FOLLOWING: Final = struct.Struct("<IIQQqqIIHBBHH")
_LONE_EDGES: Final = struct.Struct("<ii")
_JOINED: Final = 16 << 10
"""Frames up to this long are copied into one piece: cheaper than a checksum and a buffer per part."""
_PADDING: Final = bytes(8)
_DIFFERING: Final = frozenset(SCHEMA.names) - {"seq", "payload"}

Piece = bytes | memoryview


class FrameInfo(NamedTuple):
    """A good frame's position in a window of bytes, and the first fields of its header."""

    at: int
    length: int
    rows: int
    op: int
    first: int
    time: int
    columns: int
    flags: int

    @property
    def messages(self) -> int:
        """Number of messages."""
        return 0 if self.flags & ENTRIES else self.rows

    @property
    def following(self) -> int:
        """The number of the next message after this frame."""
        return self.first + (1 if self.flags & ENTRIES else self.rows)


class BadFrame(Exception):  # noqa: N818 - never leaves the log's own modules
    """The reason why there is no good frame at a position."""


def time_span(batch: Batch) -> tuple[int, int]:
    """The times of a batch's first and last message; times must not decrease."""
    if batch.columns is None or "time" not in batch.columns.schema.names:
        return batch.time, batch.time
    each = times(batch.columns)
    if np.any(each[1:] < each[:-1]):
        raise UsageError(f"times decrease within the batch of message {batch.first}")
    return int(each[0]), int(each[-1])


def times(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The time of each row, in µs."""
    column: npt.NDArray[np.int64] = rows.column("time").cast(pa.int64()).to_numpy()
    return column


def encode(
    batch: Batch, salt: int, *, time: int | None = None, continued: bool = False
) -> tuple[list[Piece], int]:
    """Encode a batch as pieces to write side by side; return them and their total length.

    ``time`` is that of the first message, if a column overrides the batch's own.
    """
    run = batch.run
    if run.lone is not None and len(run.lone) <= _JOINED:
        return _encode_lone(batch, run.lone, salt, batch.time if time is None else time, continued)
    edges = run.offsets
    begin, end = int(edges[0]), int(edges[-1])
    if begin:
        edges = edges - np.int32(begin)
    payload = run.data[begin:end]
    origin, publisher, topic = batch.origin.encode(), batch.publisher.encode(), batch.topic.encode()
    text = origin + publisher + topic
    columns = b"" if batch.columns is None else _pack_columns(batch)
    bare = HEADER.size + edges.nbytes + len(text) + len(payload)
    length = ((bare + 7) & ~7) + len(columns)
    if length > MAX_FRAME:
        raise UsageError(f"a batch of {length} bytes: split it, {MAX_FRAME} is the most")
    if len(payload) != end - begin:
        raise UsageError(f"payload offsets {begin} to {end} in a buffer of {len(run.data)} bytes")
    widths = (len(origin), len(publisher), len(topic))
    first_time = batch.time if time is None else time
    head = _packed_head(
        batch, length, len(edges) - 1, first_time, len(payload), len(columns), widths, continued
    )
    rest = _PADDING[: -bare & 7] + columns
    if length <= _JOINED:
        body = b"".join((head, edges.tobytes(), text, payload.tobytes(), rest))
        return [_LEADING.pack(salt, crc32c(body, salt)) + body], length
    crc = crc32c(head, salt)
    crc = crc32c(edges.view(np.uint8), crc)
    crc = crc32c(text, crc)
    crc = crc32c(payload, crc) if run.summed is None else joined(crc, run.summed, len(payload))
    crc = crc32c(rest, crc)
    leading = _LEADING.pack(salt, crc) + head
    return [leading, edges.data.cast("B"), text, payload.data, rest], length


def _encode_lone(
    batch: Batch, payload: bytes, salt: int, time: int, continued: bool
) -> tuple[list[Piece], int]:
    """Encode a batch of one message into the same bytes, without arrays."""
    origin, publisher, topic = batch.origin.encode(), batch.publisher.encode(), batch.topic.encode()
    size = len(payload)
    columns = b"" if batch.columns is None else _pack_columns(batch)
    bare = HEADER.size + _LONE_EDGES.size + len(origin) + len(publisher) + len(topic) + size
    length = ((bare + 7) & ~7) + len(columns)
    if length > MAX_FRAME:
        raise UsageError(f"a batch of {length} bytes: split it, {MAX_FRAME} is the most")
    widths = (len(origin), len(publisher), len(topic))
    head = _packed_head(batch, length, 1, time, size, len(columns), widths, continued)
    edges = _LONE_EDGES.pack(0, size)
    body = b"".join((head, edges, origin, publisher, topic, payload, _PADDING[: -bare & 7], columns))
    return [_LEADING.pack(salt, crc32c(body, salt)) + body], length


def _packed_head(
    batch: Batch,
    length: int,
    count: int,
    time: int,
    payload: int,
    columns: int,
    widths: tuple[int, int, int],
    continued: bool,
) -> bytes:
    number = batch.number
    flags = (0 if number is None else NUMBERED) | (CONTINUED if continued else 0)
    if batch.is_entries:
        flags |= ENTRIES
    try:
        return _FOLLOWING.pack(
            length, count, batch.op, batch.first, time, number or 0, payload, columns, batch.node, flags, *widths
        )
    except struct.error:
        raise UsageError(_misfit(batch)) from None


def scan(window: bytes, at: int, salt: int) -> Iterator[FrameInfo]:
    """Yield consecutive good frames from ``at`` on, up to the first that is incomplete or bad."""
    unpack, size, end = HEADER.unpack_from, HEADER.size, len(window)
    while at + size <= end:
        mark, crc, length, count, op, first, time, _, _, columns, _, flags, *_ = unpack(window, at)
        if mark != salt or not size < length <= end - at or length % 8:
            return
        if _checksum(window, at, length, salt) != crc:
            return
        yield FrameInfo(at, length, count, op, first, time, columns, flags)
        at += length


def check(window: bytes, at: int, salt: int) -> int:
    """Check the frame at ``at``; return its length."""
    if len(window) - at < HEADER.size:
        raise BadFrame("a frame is cut short")
    mark, crc, length = _PREFIX.unpack_from(window, at)
    if mark != salt:
        raise BadFrame("no frame begins here")
    if not HEADER.size < length <= MAX_FRAME or length % 8:
        raise BadFrame(f"a frame cannot have {length} bytes")
    if length > len(window) - at:
        raise BadFrame("a frame is cut short")
    if _checksum(window, at, length, salt) != crc:
        raise BadFrame("a frame's checksum is wrong")
    return int(length)


def _checksum(window: bytes, at: int, length: int, salt: int) -> int:
    if length <= _JOINED:
        return crc32c(window[at + 8 : at + length], salt)
    return crc32c(np.frombuffer(window, np.uint8, length - 8, at + 8), salt)


def missing(window: bytes, at: int, salt: int) -> int:
    """The number of bytes that the frame at ``at`` lacks; 0 if it is complete or not a frame."""
    here = len(window) - at
    if here < HEADER.size:
        return HEADER.size - here
    mark, _, length = _PREFIX.unpack_from(window, at)
    return max(0, length - here) if mark == salt and length <= MAX_FRAME else 0


def decode(window: bytes, at: int) -> Batch:
    """Decode a frame whose CRC was checked; payloads, offsets and columns are not copied."""
    head = HEADER.unpack_from(window, at)
    _, _, length, count, op, first, time, number, payload, columns, node, flags, *widths = head
    origin, publisher, topic = widths
    place = at + HEADER.size
    place += 4 * count + 4
    from_publisher, from_topic = place + origin, place + origin + publisher
    content = from_topic + topic
    if count == 1 and payload <= _JOINED:
        run = Run.one(window[content : content + payload])
    else:
        edges = np.frombuffer(window, np.int32, count + 1, at + HEADER.size)
        run = Run(np.frombuffer(window, np.uint8, payload, content), edges)
    return Batch(
        run,
        first=first,
        time=time,
        origin=window[place:from_publisher].decode(),
        node=node,
        publisher=window[from_publisher:from_topic].decode(),
        number=number if flags & NUMBERED else None,
        topic=window[from_topic:content].decode(),
        columns=_unpack_columns(window, at + length - columns, columns) if columns else None,
        op=op,
    )


def extents(window: bytes, at: int) -> tuple[int, int, int, tuple[int, int, int]]:
    """The sizes in a frame's header: rows, bytes of payloads, of columns, and of the three texts."""
    head = HEADER.unpack_from(window, at)
    return head[3], head[8], head[9], head[12:]


def flags_of(window: bytes, at: int) -> int:
    """The flags in a frame's header."""
    flags: int = HEADER.unpack_from(window, at)[11]
    return flags


def _misfit(batch: Batch) -> str:
    """Name the field that does not fit a frame."""
    for name, bits in (("origin", 8), ("publisher", 16), ("topic", 16)):
        size = len(getattr(batch, name).encode())
        if size >> bits:
            return f"{name} has {size} bytes, {(1 << bits) - 1} is the most"
    for name, low, high in (
        ("node", 0, 0xFFFF),
        ("op", 0, (1 << 64) - 1),
        ("first", 0, (1 << 64) - 1),
        ("time", -(1 << 63), (1 << 63) - 1),
        ("number", -(1 << 63), (1 << 63) - 1),
    ):
        value = getattr(batch, name)
        if value is not None and not low <= value <= high:
            return f"{name} {value} is not within {low} to {high}"
    return f"{len(batch)} messages do not fit a frame"


def _pack_columns(batch: Batch) -> bytes:
    columns = batch.columns
    if columns is None or columns.num_rows != len(batch):
        raise UsageError(f"columns for {columns and columns.num_rows} messages beside {len(batch)} payloads")
    for field, column in zip(columns.schema, columns.columns, strict=True):
        # A column that does not fit the schema would keep the segment from being sealed.
        if field.name not in _DIFFERING or field.type != SCHEMA.field(field.name).type:
            raise UsageError(f"column {field.name} of {field.type} is not in the envelope's schema")
        if column.null_count and field.name != "number":
            raise UsageError(f"column {field.name} has nulls")
        if field.name == "origin" and pc.any(pc.equal(column, NOT_A_MESSAGE)).as_py():
            raise UsageError("messages and log entries cannot share a batch")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpack_columns(window: bytes, place: int, size: int) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(window).slice(place, size)) as reader:
        batch = reader.read_next_batch()
    return batch.select([name for name in SCHEMA.names if name in batch.schema.names])
