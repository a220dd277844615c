"""Bodies of operations, which the link's streams send: packed batches for copies of the log, rows for its entries.

Operations are messages and entries in their common order (:mod:`headrace.log`). Threads read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.errors import LimitError
from headrace.hub.compact_batches import compacted
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.log.replication_frames import pack
from headrace.log.sealed.segment import SealedSegment
from headrace.message import Batch
from headrace.net.link.streams.row_bodies import MAX_BODY, MAX_LONE_BODY, Piece
from headrace.wire.link.message import ENTRIES, ROWS_BYTES, body_of

_MOST: Final = 4 * ROWS_BYTES
"""Approximate size at which batches of a copy are cut: their columns may be far larger than their payloads."""

_SCAN_BYTES: Final = 16 << 20
"""Bytes of the log that are searched for entries before a position is reported."""


class OperationBounds:
    """The bounds of a log in operations, for a cursor that counts them."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def first(self) -> int:
        """The oldest operation kept."""
        return self._log.first_op

    @property
    def first_here(self) -> int:
        """The oldest operation kept, since an archive has no operations."""
        return self._log.first_op

    @property
    def head(self) -> int:
        """The newest committed operation."""
        return self._log.head_op


class EntryFilter(NamedTuple):
    """Selects the entries of a stream: those after messages ``first`` to ``last`` whose topic matches."""

    first: int
    last: int | None
    topics: Filter | None

    def rows(self, batch: Batch) -> pa.RecordBatch | None:
        """Return the rows of a batch that pass, if it has any."""
        if not batch.is_entries or batch.first < self.first:
            return None
        if self.last is not None and batch.first > self.last:
            return None
        if self.topics is not None and self.topics.passes(batch) is False:
            return None
        rows = batch.to_arrow()
        if self.topics is None:
            return _with_positions(rows, batch)
        passing = self.topics.mask(rows)
        return _with_positions(rows, batch).filter(pa.array(passing)) if passing.any() else None


def read_operations(log: Log, first: int, last: int) -> Piece:
    """Pack operations from ``first`` on, not past ``last``, which must be committed."""
    batches: list[Batch] = []
    room = _MOST
    for batch in log.read_ops(first, last, ROWS_BYTES):
        for each in _cut(batch, _MOST):
            room -= each.size
            if batches and room < 0:
                break
            batches += compacted(each)
        if room < 0:
            break
    body = pack(log.uuid, batches)
    while len(body) > MAX_BODY and (halved := _first_half(batches)) is not None:
        batches = halved
        body = pack(log.uuid, batches)
    if len(body) > MAX_LONE_BODY:
        raise LimitError("link", f"message {batches[0].first}", len(body), MAX_LONE_BODY)
    messages = sum(len(batch) for batch in batches if not batch.is_entries)
    return Piece(first, batches[-1].last_op, body, messages)


def read_entries(log: Log, first: int, last: int, wanted: EntryFilter) -> Piece:
    """Read entries that pass, from operation ``first`` on, not past ``last``, as one body of rows."""
    found: list[pa.RecordBatch] = []
    at, size, scanned = first, 0, 0
    while at <= last and scanned < _SCAN_BYTES and size < ROWS_BYTES:
        at, most = _next_entry(log, at, last)
        for batch in log.read_ops(at, last, most):
            for each in _cut(batch, ROWS_BYTES):
                rows = wanted.rows(each)
                if rows is not None:
                    if found and size + rows.nbytes > ROWS_BYTES:
                        return _entries_piece(first, at - 1, found)
                    found.append(rows)
                    size += rows.nbytes
                at = each.last_op + 1
                scanned += each.size
    return _entries_piece(first, at - 1, found)


def _next_entry(log: Log, op: int, last: int) -> tuple[int, int]:
    """Return the next operation up to ``last + 1`` that may be an entry, and how much to read there.

    Sealed messages are skipped without being read.
    """
    if op < log.first_op:
        # Retention has overtaken the reader. Reading through the log gives the right error.
        return op, ROWS_BYTES
    try:
        for segment in log.segments:
            if segment.last_op < op:
                continue
            begin = max(op, segment.first_op)
            if not isinstance(segment, SealedSegment):
                return min(begin, last + 1), ROWS_BYTES
            entries = segment.entries
            found = None if entries is None else entries.next_op(begin)
            if found is not None:
                return min(found, last + 1), 1
    except OSError:
        return op, ROWS_BYTES
    return last + 1, 1


def _entries_piece(first: int, last: int, found: Sequence[pa.RecordBatch]) -> Piece:
    if not found:
        return Piece(first, last, None, 0)
    body = body_of(pa.concat_batches(found))
    if body.nbytes > MAX_LONE_BODY:
        raise LimitError("link", "entries of the log", body.nbytes, MAX_LONE_BODY)
    return Piece(first, last, body, sum(rows.num_rows for rows in found))


def _with_positions(rows: pa.RecordBatch, batch: Batch) -> pa.RecordBatch:
    ops = pa.array(range(batch.op, batch.last_op + 1), pa.int64())
    return pa.RecordBatch.from_arrays([*rows.columns, ops], schema=ENTRIES)


def _cut(batch: Batch, most: int) -> Iterator[Batch]:
    """Cut a batch into parts of at most about ``most`` bytes; a single row may have more."""
    if batch.size <= most or len(batch) == 1:
        yield batch
        return
    half = len(batch) // 2
    yield from _cut(batch.slice(0, half), most)
    yield from _cut(batch.slice(half, len(batch)), most)


def _first_half(batches: list[Batch]) -> list[Batch] | None:
    """Return about the first half of several rows; ``None`` if there is only one."""
    if len(batches) > 1:
        return batches[: len(batches) // 2]
    only = batches[0]
    return [only.slice(0, len(only) // 2)] if len(only) > 1 else None
