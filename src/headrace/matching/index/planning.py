"""Planning an index: choosing the key and the dimensions of each subscription.

A subscription's *key* is the ``Equals`` that it shares with the fewest others; without one, an ``In`` of few values
(with an entry for each), else a ``Prefix``, else that an attribute exists. Besides its key it may have two
*dimensions*: the most selective intervals (of ``Between``, or of a further ``Equals``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.matching.group_lookup import PREFIX_KEY, PRESENT_KEY
from headrace.matching.index import hashing
from headrace.matching.index.hashing import FLOATS, FLOATS_2
from headrace.matching.index.merging import Columns
from headrace.matching.index.segment import Floats, Ints, Wide
from headrace.wire.numba_kernels import INTS, INTS_2, WIDE, inline, kernel, types
from headrace.wire.sdk.program import EXISTS, HEAD, IN, PREFIX, TEXT

FEW_VALUES: Final = 16
"""Most values of an ``In`` that serves as key although the subscription has intervals: each takes an entry."""

SAMPLES: Final = 1 << 20
"""Most range centres sampled, over all dimensions."""

Matrix = npt.NDArray[np.float64]


class Entries(NamedTuple):
    """The index entries of subscriptions, one row each."""

    row: Ints
    kind: Ints
    """The kind of its key, -1 for none."""
    value: Wide
    dims: Ints
    """Two dimensions per entry, -1 for none."""
    share: Floats
    """The estimated part of messages that its first dimension lets pass."""


def plan(columns: Columns, seed: np.uint64) -> Entries:
    """Choose the entries of subscriptions, and reorder their predicates: the key first, then the dimensions."""
    rows = len(columns.start) - 1
    share = _shares(columns, seed)
    kinds, first = np.empty(rows, np.int32), np.empty(rows + 1, np.int32)
    dims = np.empty((rows, 2), np.int32)
    most = choose(columns.start, columns.dim, columns.lo, columns.hi, columns.pool, share, kinds, first, dims)
    row, kind = np.empty(most, np.int32), np.empty(most, np.int32)
    entries = Entries(row, kind, np.empty(most, np.int64), np.empty((most, 2), np.int32), np.empty(most))
    count = enter(columns.start, columns.dim, columns.lo, columns.pool, share, kinds, first, dims, *entries)
    row, kind, value, both, left = entries
    return Entries(row[:count], kind[:count], value[:count], both[:count], left[:count])


def _shares(columns: Columns, seed: np.uint64) -> Floats:
    """Estimate which part of messages each predicate lets pass.

    Messages are assumed to be distributed like subscriptions: a word lets pass the part of subscriptions that ask for
    it, a range the part of ranges whose centre is in it. Programs let all pass.
    """
    dim, lo, hi = columns.dim, columns.lo, columns.hi
    result = np.ones(len(dim))
    equal = np.flatnonzero((dim >= 0) & (dim & 1 == 0))
    if len(equal):
        codes = np.empty(len(equal), np.int32)
        slots = np.zeros(1 << (2 * len(equal)).bit_length(), np.int32)
        hashing.file_keys(2 * dim[equal], lo[equal].astype(np.int64), slots, seed, codes)
        result[equal] = np.bincount(codes)[codes] / (len(columns.start) - 1)
    ranged = dim[(dim >= 0) & (dim & 1 == 1)]
    if len(ranged):
        dims = 2 * (len(columns.names.begin) - 1)
        counts = np.bincount(ranged, minlength=dims).astype(np.int32)
        middles = np.empty((dims, min(max(SAMPLES // dims, 4), 512, int(counts.max()))))
        sample(dim, lo, hi, counts, middles)
        middles.sort(axis=1)
        range_shares(dim, lo, hi, counts, middles, result)
    return result


@kernel(types.void(INTS, FLOATS, FLOATS, INTS, FLOATS_2))
def sample(dim: Ints, lo: Floats, hi: Floats, counts: Ints, middles: Matrix) -> None:
    """Fill one row per dimension with the centres of a sample of its intervals, padded with infinity.

    ``counts`` is the number of intervals of each dimension, and becomes the number sampled.
    """
    most = middles.shape[1]
    steps = np.empty(len(counts), np.int32)
    seen = np.zeros(len(counts), np.int32)
    for each in range(len(counts)):
        steps[each] = max(1, (counts[each] + most - 1) // most)
        counts[each] = 0
        middles[each, :] = np.inf
    for at in range(len(dim)):
        each = dim[at]
        if each >= 0 and each & 1:
            if seen[each] % steps[each] == 0:
                middles[each, counts[each]] = lo[at] / 2 + hi[at] / 2
                counts[each] += 1
            seen[each] += 1


@inline
def _rank(sorted_values: Floats, count: int, value: float) -> int:
    """How many of the first ``count`` values are below this one."""
    begin, end = 0, count
    while begin < end:
        middle = (begin + end) // 2
        if sorted_values[middle] < value:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel(types.void(INTS, FLOATS, FLOATS, INTS, FLOATS_2, FLOATS))
def range_shares(dim: Ints, lo: Floats, hi: Floats, counts: Ints, middles: Matrix, out: Floats) -> None:
    """Fill in the shares of ranges: the part of the sorted ``middles`` that lies in each."""
    for at in range(len(dim)):
        each = dim[at]
        if each >= 0 and each & 1:
            count = counts[each]
            inside = _rank(middles[each], count, np.nextafter(hi[at], np.inf)) - _rank(
                middles[each], count, lo[at]
            )
            # Halved, since the difference of two doubles may overflow.
            span = middles[each, count - 1] / 2 - middles[each, 0] / 2
            width = hi[at] / 2 - lo[at] / 2
            # Tells apart ranges that are narrower than the sample's spacing.
            part = min(1.0, width / span) if span > 0 else 0.5
            out[at] = (inside + part) / (count + 1)


@inline
def _key_rank(pool: Wide, at: int, intervals: int) -> int:
    """How well a program serves as key: 3 best, 0 not at all, as one with several instructions."""
    operation, count = pool[at + HEAD], pool[at + HEAD + 1]
    if pool[at] != HEAD + 2 + 2 * count:
        return 0
    if operation == IN:
        return 3 if count <= FEW_VALUES or intervals == 0 else 0
    if operation == PREFIX:
        return 2
    return 1 if operation == EXISTS and intervals == 0 else 0


@inline
def _swap(dim: Ints, lo: Floats, hi: Floats, share: Floats, one: int, other: int) -> None:
    dim[one], dim[other] = dim[other], dim[one]
    lo[one], lo[other] = lo[other], lo[one]
    hi[one], hi[other] = hi[other], hi[one]
    share[one], share[other] = share[other], share[one]


@kernel(types.intp(INTS, INTS, FLOATS, FLOATS, WIDE, FLOATS, INTS, INTS, INTS_2))
def choose(
    start: Ints,
    dim: Ints,
    lo: Floats,
    hi: Floats,
    pool: Wide,
    share: Floats,
    kind: Ints,
    first: Ints,
    dims: Ints,
) -> int:
    """Choose each subscription's key and dimensions, and put its predicates in that order.

    Fill in ``kind``, its key's kind or -1, and ``first``, its first entry; return the most entries there can be.
    """
    entries = 0
    for row in range(len(start) - 1):
        begin, end = start[row], start[row + 1]
        first[row] = entries
        kind[row] = -1
        dims[row, 0] = dims[row, 1] = -1
        intervals = 0
        key = -1
        rank = 0
        for at in range(begin, end):
            if dim[at] >= 0:
                intervals += 1
                if dim[at] & 1 == 0 and (rank < 4 or share[at] < share[key]):
                    key, rank = at, 4
        if key < 0:
            for at in range(begin, end):
                if dim[at] < 0:
                    better = _key_rank(pool, int(lo[at]), intervals)
                    if better > rank:
                        key, rank = at, better
        wanted = 1
        at = begin
        if key >= 0:
            _swap(dim, lo, hi, share, begin, key)
            at += 1
            if rank == 4:
                kind[row] = 2 * dim[begin]
            else:
                program = int(lo[begin])
                attribute = pool[program + 1]
                if rank == 3:
                    # Text for now: each value has its own kind.
                    kind[row] = 4 * attribute
                    wanted = pool[program + HEAD + 1]
                elif rank == 2:
                    kind[row] = 4 * attribute + PREFIX_KEY
                else:
                    kind[row] = 4 * attribute + PRESENT_KEY
        entries += wanted
        # The two most selective intervals come next.
        chosen = 0
        while chosen < 2 and at < end:
            best = -1
            for other in range(at, end):
                if dim[other] >= 0 and (best < 0 or share[other] < share[best]):
                    best = other
            if best < 0 or (share[best] > 0.5 and (chosen > 0 or key >= 0)):
                break
            _swap(dim, lo, hi, share, at, best)
            dims[row, chosen] = dim[at]
            chosen += 1
            at += 1
        # Of two about as selective, the lower dimension comes first, so that equal pairs share a group.
        if chosen == 2 and dims[row, 0] > dims[row, 1] and share[at - 1] <= 4 * share[at - 2]:
            _swap(dim, lo, hi, share, at - 2, at - 1)
            dims[row, 0], dims[row, 1] = dims[row, 1], dims[row, 0]
    first[len(start) - 1] = entries
    return entries


@kernel(types.intp(INTS, INTS, FLOATS, WIDE, FLOATS, INTS, INTS, INTS_2, INTS, INTS, WIDE, INTS_2, FLOATS))
def enter(
    start: Ints,
    dim: Ints,
    lo: Floats,
    pool: Wide,
    share: Floats,
    kinds: Ints,
    first: Ints,
    row_dims: Ints,
    row: Ints,
    kind: Ints,
    value: Wide,
    dims: Ints,
    out_share: Floats,
) -> int:
    """Write the entries of subscriptions; return how many. A value that an ``In`` repeats has one entry."""
    at = 0
    for each in range(len(start) - 1):
        begin = start[each]
        mine = at
        count = first[each + 1] - first[each]
        keyed = kinds[each] >= 0
        program = int(lo[begin]) if keyed and dim[begin] < 0 else -1
        for index in range(count):
            row[at] = each
            kind[at] = kinds[each]
            value[at] = 0
            if keyed:
                if program < 0:
                    value[at] = int(lo[begin])
                elif pool[program + HEAD + 1] > 0:
                    value[at] = pool[program + HEAD + 3 + 2 * index]
                    if pool[program + HEAD] == IN and pool[program + HEAD + 2 + 2 * index] != TEXT:
                        kind[at] += 1
            repeated = False
            for other in range(mine, at):
                if kind[other] == kind[at] and value[other] == value[at]:
                    repeated = True
                    break
            if repeated:
                continue
            dims[at, 0], dims[at, 1] = row_dims[each, 0], row_dims[each, 1]
            out_share[at] = 1.0
            if row_dims[each, 0] >= 0:
                out_share[at] = share[begin + (1 if keyed else 0)]
            at += 1
    return at
