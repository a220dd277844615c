"""Merging segments: the living rows of several become the columns of one, words and attributes renumbered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.matching.index import hashing
from headrace.matching.index.hashing import CLIENTS, FLOATS
from headrace.matching.index.segment import ALIVE, Bytes, Clients, Floats, Ints, Segment, Wide, Words
from headrace.matching.kernels import SEGMENT
from headrace.wire.numba_kernels import BYTES, INTS, WIDE, inline, kernel, types
from headrace.wire.sdk.program import ATTRIBUTE, HEAD, TEXT


class Columns:
    """Subscriptions without an index."""

    def __init__(self, segments: Sequence[Segment], rows: Sequence[Ints], seed: np.uint64) -> None:
        used = [_used(segment, some) for segment, some in zip(segments, rows, strict=True)]
        self.names, names = _interned([each.names for each in segments], [each[0] for each in used], seed)
        self.words, words = _interned([each.words for each in segments], [each[1] for each in used], seed)
        count = sum(len(some) for some in rows)
        predicates = sum(each[2] for each in used)
        pooled = sum(each[3] for each in used)
        width = max((segment.clients.shape[1] for segment in segments), default=3)
        self.clients: Clients = np.empty((count, width), np.uint32)
        self.start: Ints = np.zeros(count + 1, np.int32)
        self.dim: Ints = np.empty(predicates, np.int32)
        self.lo: Floats = np.empty(predicates)
        self.hi: Floats = np.empty(predicates)
        self.pool: Wide = np.empty(pooled, np.int64)
        row = at = 0
        for segment, some, name, word in zip(segments, rows, names, words, strict=True):
            columns = (self.clients, self.start, self.dim, self.lo, self.hi, self.pool)
            at = append_rows(segment, some, name, word, row, at, *columns)
            # Its owner's id, which is its own where the segment has no owners.
            self.clients[row : row + len(some), -3:] = segment.clients[some, -3:]
            row += len(some)


def living(segment: Segment) -> Ints:
    """The rows that have not died."""
    return np.flatnonzero(segment.died == ALIVE).astype(np.int32)


def _used(segment: Segment, rows: Ints) -> tuple[Bytes, Bytes, int, int]:
    names = np.zeros(len(segment.name_begin) - 1, np.uint8)
    words = np.zeros(len(segment.word_begin) - 1, np.uint8)
    predicates, pooled = mark_used(segment, rows, names, words)
    return names, words, predicates, pooled


def _interned(tables: Sequence[Words], used: Sequence[Bytes], seed: np.uint64) -> tuple[Words, list[Ints]]:
    """Make one table of the words used in several; return it and each word's new code."""
    most = sum(int(each.sum()) for each in used)
    size = sum(int(np.diff(table.begin)[each != 0].sum()) for table, each in zip(tables, used, strict=True))
    data = np.empty(size, np.uint8)
    begin = np.zeros(most + 1, np.int64)
    slots = np.zeros(1 << (2 * most).bit_length(), np.int32)
    count = 0
    codes: list[npt.NDArray[np.int32]] = []
    for table, each in zip(tables, used, strict=True):
        found = np.empty(len(each), np.int32)
        count = hashing.intern_used(table.data, table.begin, each, data, begin, slots, count, seed, found)
        codes.append(found)
    if count < most:
        # Tables had words in common: there are slots to spare, and the rest is cut to size.
        begin = begin[: count + 1].copy()
        data = data[: int(begin[-1])].copy()
    return Words(data, begin, slots), codes


@inline
def _mark_words(pool: Wide, begin: int, end: int, names: Bytes, words: Bytes) -> None:
    at = begin + HEAD
    while at < end:
        operands = at + 2
        at = operands + 2 * pool[at + 1]
        for operand in range(operands, at, 2):
            if pool[operand] == TEXT:
                words[pool[operand + 1]] = 1
            elif pool[operand] == ATTRIBUTE:
                names[pool[operand + 1]] = 1


@inline
def _renumber_words(pool: Wide, begin: int, end: int, names: Ints, words: Ints) -> None:
    at = begin + HEAD
    while at < end:
        operands = at + 2
        at = operands + 2 * pool[at + 1]
        for operand in range(operands, at, 2):
            if pool[operand] == TEXT:
                pool[operand + 1] = words[pool[operand + 1]]
            elif pool[operand] == ATTRIBUTE:
                pool[operand + 1] = names[pool[operand + 1]]


@kernel(types.UniTuple(types.intp, 2)(SEGMENT, INTS, BYTES, BYTES))
def mark_used(segment: Segment, rows: Ints, names: Bytes, words: Bytes) -> tuple[int, int]:
    """Mark the attributes and words that rows use; return how many predicates they have, and their programs' size."""
    predicates = pooled = 0
    for row in rows:
        for at in range(segment.start[row], segment.start[row + 1]):
            predicates += 1
            dimension = segment.dim[at]
            if dimension < 0:
                begin = int(segment.lo[at])
                names[segment.pool[begin + 1]] = 1
                _mark_words(segment.pool, begin, begin + segment.pool[begin], names, words)
                pooled += segment.pool[begin]
            else:
                names[dimension >> 1] = 1
                if dimension & 1 == 0:
                    words[int(segment.lo[at])] = 1
    return predicates, pooled


@kernel(
    types.intp(SEGMENT, INTS, INTS, INTS, types.intp, types.intp, CLIENTS, INTS, INTS, FLOATS, FLOATS, WIDE)
)
def append_rows(
    segment: Segment,
    rows: Ints,
    names: Ints,
    words: Ints,
    row: int,
    pooled: int,
    clients: Clients,
    start: Ints,
    dim: Ints,
    lo: Floats,
    hi: Floats,
    pool: Wide,
) -> int:
    """Write rows from ``row`` on, attributes and words renumbered; return how much of the pool is used."""
    to = start[row]
    for source in rows:
        clients[row, 0] = segment.clients[source, 0]
        clients[row, 1] = segment.clients[source, 1]
        clients[row, 2] = segment.clients[source, 2]
        for at in range(segment.start[source], segment.start[source + 1]):
            dimension = segment.dim[at]
            if dimension < 0:
                begin = int(segment.lo[at])
                size = segment.pool[begin]
                for offset in range(size):
                    pool[pooled + offset] = segment.pool[begin + offset]
                pool[pooled + 1] = names[segment.pool[begin + 1]]
                _renumber_words(pool, pooled, pooled + size, names, words)
                dim[to] = -1
                lo[to] = hi[to] = pooled
                pooled += size
            elif dimension & 1 == 0:
                dim[to] = names[dimension >> 1] * 2
                lo[to] = hi[to] = words[int(segment.lo[at])]
            else:
                dim[to] = names[dimension >> 1] * 2 + 1
                lo[to] = segment.lo[at]
                hi[to] = segment.hi[at]
            to += 1
        row += 1
        start[row] = to
    return pooled
