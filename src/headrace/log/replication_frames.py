"""Batches as bytes from node to node: a log's uuid, then frames as in its open tail.

A node sends what it has appended in the log's framing (:mod:`~headrace.log.frame`), under a fixed salt. A frame on disk
is trusted by its checksum; one from a peer is not: every length and offset is checked before use, and anything that
would not fit the log is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import MalformedError, UsageError
from headrace.log import frame
from headrace.message import NOT_A_MESSAGE, SCHEMA, Batch

SALT: Final = 0x48524D53
_UUID_BYTES: Final = 16


def pack(uuid: UUID, batches: Sequence[Batch], *, tied: bool = False) -> bytes:
    """Pack numbered batches that follow one another; with ``tied``, say which must be committed with the next."""
    pieces: list[frame.Piece] = [uuid.bytes]
    for batch in batches:
        first_time, _ = frame.time_span(batch)
        pieces += frame.encode(batch, SALT, time=first_time, continued=tied and bool(batch.tied))[0]
    return b"".join(pieces)


def unpack(data: bytes, first: int, last: int) -> tuple[UUID, list[Batch]]:
    """Unpack the log's uuid and operations ``first`` to ``last``; raise if the bytes are anything else."""
    if len(data) < _UUID_BYTES:
        raise _malformed(data, "must begin with a log's uuid")
    # Frames are aligned in the window, as numpy needs.
    window = data[_UUID_BYTES:]
    batches: list[Batch] = []
    at, following, time = 0, first, -(1 << 63)
    seq: int | None = None
    while at < len(window):
        try:
            length = frame.check(window, at, SALT)
        except frame.BadFrame as bad:
            raise _malformed(window[at:], str(bad)) from None
        batch = _checked(window, at, length)
        try:
            first_time, last_time = frame.time_span(batch)
        except UsageError as error:
            raise _malformed(window[at:], str(error)) from None
        if batch.op != following or first_time < time:
            raise _malformed(batch.op, f"operation {following} must follow, not before {time}")
        if seq is not None and batch.first != (seq if batch.is_entries else seq + 1):
            raise _malformed(batch.first, f"must follow message {seq}")
        batches.append(batch)
        at, following, time, seq = at + length, batch.last_op + 1, last_time, batch.last
    if following != last + 1:
        raise _malformed(following - 1, f"must end with operation {last}")
    return UUID(bytes=data[:_UUID_BYTES]), batches


def _checked(window: bytes, at: int, length: int) -> Batch:
    """Decode a frame with a good checksum from an untrusted sender."""
    try:
        found = frame.parts(window, at)
        head, end = found.info, at + length
        if head.label or not head.rows or not found.payload <= found.columns <= found.end <= end:
            raise _malformed(length, "must be the size of its parts, with a label of its own")
        if head.flags & frame.MANY:
            size = found.columns - found.payload
            edges = np.frombuffer(window, np.int32, head.rows + 1, found.offsets)
            if edges[0] != 0 or edges[-1] != size or bool((edges[1:] < edges[:-1]).any()):
                raise _malformed(size, "must agree with the offsets")
        batch = frame.decode_parts(window, found, _no_label)
        if batch.is_entries != head.entries:
            raise _malformed(batch.origin, "must agree with the flags")
        if batch.columns is not None:
            _check_columns(batch)
    except UnicodeDecodeError:
        raise _malformed(window[at : at + length], "must be UTF-8 text") from None
    except (struct.error, pa.ArrowException, ValueError) as error:
        raise _malformed(length, f"must be a frame of the log ({error})") from None
    return batch


def _no_label(_at: int) -> frame.Label:
    raise ValueError("a label is missing")


def _check_columns(batch: Batch) -> None:
    columns = batch.columns
    if columns is None or columns.num_rows != len(batch):
        raise _malformed(columns and columns.num_rows, f"must be columns of {len(batch)} rows")
    for field, column in zip(columns.schema, columns.columns, strict=True):
        if field.name == "origin" and pc.any(pc.equal(column, NOT_A_MESSAGE)).as_py():
            raise _malformed(str(field), "must not mix messages and entries")
        if field.type != SCHEMA.field(field.name).type or (column.null_count and field.name != "number"):
            raise _malformed(str(field), "must be a column of the envelope")
        column.validate(full=True)


def _malformed(value: object, rule: str) -> MalformedError:
    return MalformedError("parcel", "batch", value, rule)
