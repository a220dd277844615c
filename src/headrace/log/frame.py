"""The open tail's framing: a batch as one compact, checksummed frame.

A frame is its :data:`HEADER`, what its flags name (the publisher's number, how many rows, the size of columns), its
label unless an earlier frame has the same, offsets (``i32``, from 0) if there are several rows, the payloads, and the
columns of fields that differ from row to row (:mod:`~headrace.log.frame_columns`). ``docs/log.md`` explains every
field. All is little-endian and begins at a multiple of 4, so that numpy reads in place.

A **label** is what a publisher's messages share: origin, node, publisher and topic. It is longer than everything else
around a small message. So a frame may refer to the one that has it, at most :data:`REACH` bytes before: damage to a
frame can cost no more than that.

Only bytes with a good CRC are trusted. The salt, which marks a frame's beginning, is random and never leaves the file,
so no payload can be made to look like a frame: a search for the next good frame, which tells damage from a torn end,
finds none inside payloads and costs one pass over the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UsageError
from headrace.log import frame_columns
from headrace.log.checksum import crc32c, joined
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch, Run

MAX_FRAME: Final = 256 << 20
"""The longest frame: a longer batch is the caller's mistake, a longer length in a file is damage."""

HEADER: Final = struct.Struct("<IIIHHHHIIq")
"""Mark (the salt), CRC, length, flags, how far back the label is (in units of 4 bytes; 0: it is here), the upper 16 and
then the lower 32 bits of the first operation and of the first sequence number (of entries: the number they stand
after), time."""

REACH: Final = 0xFFFF * 4
"""How far before a frame its label may be."""

NUMBERED: Final = 1
"""Flag: the messages carry their publisher's numbers."""
CONTINUED: Final = 2
"""Flag: the next frame belongs to the same append, or to the same group of appends."""
ENTRIES: Final = 4
"""Flag: the rows are log entries, which take no sequence numbers."""
MANY: Final = 8
"""Flag: there are several rows, so their number and their offsets are here."""
COLUMNS: Final = 16
"""Flag: there are columns."""
_PADDED: Final = 8
"""The flags' upper byte: zeros at the end, up to a multiple of 4."""

_PREFIX: Final = struct.Struct("<III")
_LEADING: Final = struct.Struct("<II")
_FOLLOWING: Final = struct.Struct("<IHHHHIIq")
_NUMBER: Final = struct.Struct("<q")
_SIZE: Final = struct.Struct("<I")
_LABEL: Final = struct.Struct("<HHHB")
_JOINED: Final = 16 << 10
"""Frames up to this long are copied into one piece: cheaper than a checksum and a buffer per part."""
_PADDING: Final = bytes(4)
_DIFFERING: Final = {field.name: field.type for field in SCHEMA if field.name not in ("seq", "payload")}
"""The fields that may differ from row to row, and their types."""
_LOW: Final = 0xFFFF_FFFF

Piece = bytes | memoryview


class Label(NamedTuple):
    """What the rows of a frame share, unless a column has it."""

    origin: str
    node: int
    publisher: str
    topic: str


FindLabel = Callable[[int], Label]
"""Returns the label of the frame at this offset of a window; a negative offset lies before the window."""


class FrameInfo(NamedTuple):
    """A good frame's position in a window of bytes, and the facts of its header."""

    at: int
    length: int
    rows: int
    op: int
    first: int
    time: int
    flags: int
    label: int
    """How many bytes before this frame its label is; 0 if it has one of its own."""

    @property
    def entries(self) -> bool:
        """Whether the rows are log entries."""
        return bool(self.flags & ENTRIES)


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


def label_of(batch: Batch) -> Label:
    """The label of a batch."""
    return Label(batch.origin, batch.node, batch.publisher, batch.topic)


def encode(
    batch: Batch, salt: int, *, time: int | None = None, continued: bool = False, back: int = 0
) -> tuple[list[Piece], int]:
    """Encode a batch as pieces to write side by side; return them and their total length.

    ``time`` is that of the first message, if a column overrides the batch's own. ``back`` is how many bytes before
    this frame there is one with its label; 0 to write the label.
    """
    run, number = batch.run, batch.number
    lone = run[0] if run.lone is None and run.count == 1 else run.lone
    flags = (0 if number is None else NUMBERED) | (CONTINUED if continued else 0)
    if batch.is_entries:
        flags |= ENTRIES
    parts: list[bytes] = []
    if number is not None:
        parts.append(_packed(_NUMBER, batch, number))
    if lone is None:
        flags |= MANY
        parts.append(_SIZE.pack(run.count))
    columns = b""
    if batch.columns is not None:
        columns = _pack_columns(batch)
        flags |= COLUMNS
        parts.append(_SIZE.pack(len(columns)))
    if not back:
        texts = batch.origin.encode(), batch.publisher.encode(), batch.topic.encode()
        origin, publisher, topic = map(len, texts)
        parts += _packed(_LABEL, batch, publisher, topic, batch.node, origin), *texts
    front = b"".join(parts)
    if lone is not None:
        size = len(lone)
    else:
        edges = run.offsets
        begin, end = int(edges[0]), int(edges[-1])
        payload = run.data[begin:end]
        if len(payload) != end - begin:
            raise UsageError(f"payload offsets {begin} to {end} in a buffer of {len(run.data)} bytes")
        edges = edges - np.int32(begin) if begin else edges
        front += _PADDING[: -(HEADER.size + len(front)) % 4]
        size = edges.nbytes + len(payload)
    bare = HEADER.size + len(front) + size + len(columns)
    padding = -bare % 4
    length = bare + padding
    if length > MAX_FRAME:
        raise UsageError(f"a batch of {length} bytes is too long: split it, the limit is {MAX_FRAME}")
    flags |= padding << _PADDED
    op, first = batch.op, batch.first
    head = _packed(
        _FOLLOWING,
        batch,
        length,
        flags,
        back >> 2,
        op >> 32,
        first >> 32,
        op & _LOW,
        first & _LOW,
        batch.time if time is None else time,
    )
    rest = columns + _PADDING[:padding]
    if lone is not None and length <= _JOINED:
        body = b"".join((head, front, lone, rest))
        return [_LEADING.pack(salt, crc32c(body, salt)) + body], length
    if lone is not None:
        crc = crc32c(rest, crc32c(lone, crc32c(head + front, salt)))
        return [_LEADING.pack(salt, crc) + head + front, lone, rest], length
    if length <= _JOINED:
        body = b"".join((head, front, edges.tobytes(), payload.tobytes(), rest))
        return [_LEADING.pack(salt, crc32c(body, salt)) + body], length
    crc = crc32c(head + front, salt)
    crc = crc32c(edges.view(np.uint8), crc)
    crc = crc32c(payload, crc) if run.summed is None else joined(crc, run.summed, len(payload))
    crc = crc32c(rest, crc)
    leading = _LEADING.pack(salt, crc) + head + front
    return [leading, edges.data.cast("B"), payload.data, rest], length


def scan(window: bytes, at: int, salt: int) -> Iterator[FrameInfo]:
    """Yield consecutive good frames from ``at`` on, up to the first that is incomplete or bad."""
    size, end = HEADER.size, len(window)
    while at + size <= end:
        mark, crc, length = _PREFIX.unpack_from(window, at)
        if mark != salt or not size <= length <= end - at or length % 4:
            return
        if _checksum(window, at, length, salt) != crc:
            return
        yield info(window, at)
        at += length


def flags(header: bytes) -> int:
    """The flags in the header of a good frame."""
    found: int = HEADER.unpack(header)[3]
    return found


def info(window: bytes, at: int) -> FrameInfo:
    """Read the header of a good frame."""
    _, _, length, flags, back, op_high, first_high, op, first, time = HEADER.unpack_from(window, at)
    rows = 1
    if flags & MANY:
        [rows] = _SIZE.unpack_from(window, at + HEADER.size + (_NUMBER.size if flags & NUMBERED else 0))
    op, first = op_high << 32 | op, first_high << 32 | first
    return FrameInfo(at, length, rows, op, first, time, flags, back << 2)


def check(window: bytes, at: int, salt: int) -> int:
    """Check the frame at ``at``; return its length."""
    if len(window) - at < HEADER.size:
        raise BadFrame("a frame is cut short")
    mark, crc, length = _PREFIX.unpack_from(window, at)
    if mark != salt:
        raise BadFrame("no frame begins here")
    if not HEADER.size <= length <= MAX_FRAME or length % 4:
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


class Parts(NamedTuple):
    """Where the parts of a frame are in a window."""

    info: FrameInfo
    number: int | None
    label: int
    """Where its own label begins, if it has one."""
    offsets: int
    """Where the offsets begin; without them, the payload."""
    payload: int
    columns: int
    end: int
    """Where the columns end."""


def parts(window: bytes, at: int) -> Parts:
    """Find the parts of a frame whose lengths can be trusted."""
    head = info(window, at)
    flags, place = head.flags, at + HEADER.size
    number = None
    if flags & NUMBERED:
        [number] = _NUMBER.unpack_from(window, place)
        place += _NUMBER.size
    if flags & MANY:
        place += _SIZE.size
    columns = 0
    if flags & COLUMNS:
        [columns] = _SIZE.unpack_from(window, place)
        place += _SIZE.size
    label = place
    if not head.label:
        publisher, topic, _, origin = _LABEL.unpack_from(window, place)
        place += _LABEL.size + publisher + topic + origin
    if flags & MANY:
        place += -(place - at) % 4
    payload = place + 4 * (head.rows + 1) if flags & MANY else place
    end = at + head.length - (flags >> _PADDED)
    return Parts(head, number, label, place, payload, end - columns, end)


def own_label(window: bytes, at: int) -> Label:
    """Read a frame's own label, which is at ``at`` in a window."""
    publisher, topic, node, origin = _LABEL.unpack_from(window, at)
    at += _LABEL.size
    from_publisher, from_topic = at + origin, at + origin + publisher
    return Label(
        window[at:from_publisher].decode(),
        node,
        window[from_publisher:from_topic].decode(),
        window[from_topic : from_topic + topic].decode(),
    )


def decode(window: bytes, at: int, find: FindLabel) -> Batch:
    """Decode a frame whose CRC was checked; payloads and offsets are not copied."""
    return decode_parts(window, parts(window, at), find)


def decode_parts(window: bytes, found: Parts, find: FindLabel) -> Batch:
    """Decode a frame whose parts were found."""
    head = found.info
    back, payload = head.label, found.payload
    origin, node, publisher, topic = find(head.at - back) if back else own_label(window, found.label)
    size = found.columns - payload
    if head.flags & MANY:
        edges = np.frombuffer(window, np.int32, head.rows + 1, found.offsets)
        run = Run(np.frombuffer(window, np.uint8, size, payload), edges)
    elif size <= _JOINED:
        run = Run.one(window[payload : found.columns])
    else:
        run = Run(np.frombuffer(window, np.uint8, size, payload), np.array((0, size), np.int32))
    return Batch(
        run,
        first=head.first,
        time=head.time,
        origin=origin,
        node=node,
        publisher=publisher,
        number=found.number,
        topic=topic,
        columns=columns_of(window, found) if head.flags & COLUMNS else None,
        op=head.op,
        tied=bool(head.flags & CONTINUED),
    )


def columns_of(window: bytes, found: Parts) -> pa.RecordBatch | None:
    """The columns of a frame, if it has any."""
    if not found.info.flags & COLUMNS:
        return None
    return frame_columns.unpack(window[found.columns : found.end], found.info.rows)


def last_time(window: bytes, at: int) -> int:
    """The time of a frame's last row."""
    if info(window, at).flags & COLUMNS:
        columns = columns_of(window, parts(window, at))
        if columns is not None and "time" in columns.schema.names:
            return int(times(columns)[-1])
    return info(window, at).time


def _packed(form: struct.Struct, batch: Batch, *values: int) -> bytes:
    try:
        return form.pack(*values)
    except struct.error:
        raise UsageError(_misfit(batch)) from None


def _misfit(batch: Batch) -> str:
    for name, bits in (("origin", 8), ("publisher", 16), ("topic", 16)):
        size = len(getattr(batch, name).encode())
        if size >> bits:
            return f"{name} has {size} bytes; the limit is {(1 << bits) - 1}"
    for name, low, high in (
        ("node", 0, 0xFFFF),
        ("op", 0, (1 << 48) - 1),
        ("first", 0, (1 << 48) - 1),
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
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        # A column that does not fit the schema would keep the segment from being sealed.
        if column.type != _DIFFERING.get(name):
            raise UsageError(f"column {name} of {column.type} is not in the envelope's schema")
        if column.null_count and name != "number":
            raise UsageError(f"column {name} has nulls")
        if name == "origin" and pc.any(pc.equal(column, NOT_A_MESSAGE)).as_py():
            raise UsageError("messages and log entries cannot share a batch")
    return frame_columns.pack(columns)
