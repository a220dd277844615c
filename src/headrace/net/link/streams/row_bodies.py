"""Bodies of rows, which the link's streams send for messages.

Threads call :func:`read_piece`, which turns the beginning of a range into one body. A sealed record batch is checked
and sent as it is on disk, without being unpacked. Rows of an open tail, and filtered rows, become one record batch of
about a MiB. The newest commits are cached (:func:`row_cache`) for readers that keep up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.errors import LimitError
from headrace.hub.cursor import EncodedCache
from headrace.hub.filtered_read import beginning, read_passing, spread
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.log.sealed.segment import SealedSegment
from headrace.message import Batch, merge
from headrace.wire.link.message import MAX_ANSWER, MAX_HEAD, MAX_MESSAGE, ROWS_BYTES, Buffer, body_of
from headrace.wire.link.plain_rows import batches_body

MAX_BODY: Final = MAX_MESSAGE - MAX_HEAD
"""The longest body of several rows."""
MAX_LONE_BODY: Final = MAX_ANSWER - MAX_HEAD
"""The longest body of one row, which cannot be split."""

SCAN_BYTES: Final = 16 << 20
"""Bytes that a filter searches before its position is reported."""

_WORTH: Final = 8
"""A sealed record batch is sent whole if at least one in this many rows is wanted."""

MERGED_BYTES: Final = 4 * ROWS_BYTES
"""Most bytes of rows in a body: values that a batch has once are repeated in every row."""

_CACHED_CHUNKS: Final = 8
"""Most chunks in the cache: a reader further behind is better served from the log, which joins small batches."""


_KEPT_BESIDE: Final = 256
"""Memory of a cached piece in addition to its body."""


class Piece(NamedTuple):
    """Rows ``first`` to ``last`` as a body, or ``None`` if none of them passes the filter."""

    first: int
    last: int
    body: Buffer | None
    rows: int
    """Number of rows in the body."""


def read_piece(log: Log, first: int, last: int, wanted: Filter | None) -> Piece:
    """Read one body of rows from ``first`` on, not past ``last``, which must be committed."""
    if wanted is not None:
        return _filtered(log, first, last, wanted)
    if (piece := _as_it_lies(log, first, last)) is not None:
        return piece
    batches = beginning(log.read(first, last, ROWS_BYTES), MERGED_BYTES)
    body = batches_body(batches, MERGED_BYTES)
    if body is None:
        return _encoded(first, merge(batches))
    return Piece(first, batches[-1].last, body, batches[-1].last - first + 1)


class RowChunk:
    """Batches committed together, as one body that is made on first use.

    The rows that pass a filter are also made once, for all readers with an equal filter. The event loop and threads may
    make them at the same time; then one of the two equal results is kept.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.first = batches[0].first
        self.last = batches[-1].last
        self.size = sum(batch.size for batch in batches)
        self.batches = batches
        self._pieces: dict[Filter, Piece] = {}
        self._pieces_bytes = 0

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """The messages in the envelope's schema."""
        return merge(self.batches)

    @cached_property
    def body(self) -> Buffer:
        """The messages as a body."""
        return batches_body(self.batches, MAX_BODY) or body_of(self.rows)

    def whole(self) -> Piece:
        """Return the chunk for a reader of everything."""
        return Piece(self.first, self.last, self.body, self.last - self.first + 1)

    def known(self, wanted: Filter) -> Piece | None:
        """Return the rows that pass a filter, if they were made before."""
        return self._pieces.get(wanted)

    def unknown_topics(self, wanted: Filter) -> int:
        """Return how many topics shared by whole batches are new to a filter."""
        return sum(not wanted.topics.knows(batch.topic) for batch in self.batches)

    def at_a_glance(self, wanted: Filter) -> Piece | None:
        """Return the rows that pass a filter, if the common values of whole batches decide that."""
        passing = {wanted.passes(batch) for batch in self.batches}
        if passing == {False}:
            return self._keep(wanted, Piece(self.first, self.last, None, 0))
        return self._keep(wanted, self.whole()) if passing == {True} else None

    def filtered(self, wanted: Filter) -> Piece:
        """Return the rows that pass a filter."""
        found = self.known(wanted) or self.at_a_glance(wanted)
        if found is None:
            rows = wanted.apply(self.rows)
            body = body_of(rows) if rows.num_rows else None
            found = self._keep(wanted, Piece(self.first, self.last, body, rows.num_rows))
        return found

    def filtered_from(self, first: int, wanted: Filter) -> Piece:
        """Return the rows that pass a filter, for a reader whose cursor is within the chunk."""
        rows = wanted.apply(self.rows.slice(first - self.first))
        return Piece(first, self.last, body_of(rows) if rows.num_rows else None, rows.num_rows)

    def _keep(self, wanted: Filter, piece: Piece) -> Piece:
        size = _KEPT_BESIDE + (0 if piece.body is None else memoryview(piece.body).nbytes)
        if self._pieces_bytes + size <= ROWS_BYTES:
            self._pieces_bytes += size
            self._pieces[wanted] = piece
        return piece


RowCache: TypeAlias = EncodedCache[RowChunk]


def row_cache() -> RowCache:
    """Make a cache of the newest rows."""
    return EncodedCache(_row_chunk, max_bytes=_CACHED_CHUNKS * ROWS_BYTES, max_chunks=_CACHED_CHUNKS)


def _row_chunk(batches: Sequence[Batch]) -> RowChunk | None:
    """Make a chunk of batches; ``None`` if they are so large that a thread should encode them."""
    chunk = RowChunk(batches)
    too_long = chunk.size > ROWS_BYTES or chunk.size + sum(map(spread, batches)) > MERGED_BYTES
    return None if too_long else chunk


def _as_it_lies(log: Log, first: int, last: int) -> Piece | None:
    """Return the sealed record batch that contains ``first``, if it is worth sending whole."""
    segments = log.segments
    place = bisect_right(segments, first, key=lambda segment: segment.first) - 1
    # Messages that the log's own segments do not have are read through the log.
    segment = segments[place] if place >= 0 else None
    if not isinstance(segment, SealedSegment):
        return None
    batches = segment.index.batches
    number = int(np.searchsorted(batches["first"], first, side="right")) - 1
    begin, count = int(batches["first"][number]), int(batches["count"][number])
    end = min(begin + count - 1, last)
    if (end - first + 1) * _WORTH < count or batches["length"][number] > MAX_BODY:
        return None
    try:
        return Piece(first, end, segment.message(number).data, end - first + 1)
    except OSError:
        # Reading through the log gives the right error.
        return None


def _filtered(log: Log, first: int, last: int, wanted: Filter) -> Piece:
    at, scanned = first, 0
    while at <= last and scanned < SCAN_BYTES:
        found, upto, cost = read_passing(log, at, last, wanted, ROWS_BYTES, MERGED_BYTES)
        at, scanned = upto + 1, scanned + cost
        if found:
            return _encoded(first, found[0] if len(found) == 1 else pa.concat_batches(found), upto)
    return Piece(first, at - 1, None, 0)


def _encoded(first: int, rows: pa.RecordBatch, last: int | None = None) -> Piece:
    """Encode as many rows as fit one body; ``last`` is the end of the piece if all do."""
    count = rows.num_rows
    if rows.nbytes > 2 * ROWS_BYTES:
        count = max(1, count * ROWS_BYTES // rows.nbytes)
    body = body_of(rows.slice(0, count))
    while body.nbytes > MAX_BODY and count > 1:
        count //= 2
        body = body_of(rows.slice(0, count))
    upto: int = rows.column("seq")[count - 1].as_py()
    if body.nbytes > MAX_LONE_BODY:
        raise LimitError("link", f"message {upto}", body.nbytes, MAX_LONE_BODY)
    reach = upto if last is None or count < rows.num_rows else last
    return Piece(first, reach, body, count)
