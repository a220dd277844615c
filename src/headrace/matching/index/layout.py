"""Packing groups: entries that a message is likely to match together are adjacent.

The entries of a group with one dimension are sorted along it; with two, along a Hilbert curve, which keeps together
what is near in both. Positions are ranks, not values, so that the distribution of values does not matter. Wide
intervals would enlarge the boxes of all their neighbours, so intervals are first separated by classes of width.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.matching.index.grouping import Groups, radix_order
from headrace.matching.index.hashing import FLOATS, HASHES, NEAR, SINGLES
from headrace.matching.index.planning import Entries
from headrace.matching.index.segment import Bytes, Floats, Ints, Near
from headrace.matching.kernels import LEAF
from headrace.wire.numba_kernels import BYTES, INTS, INTS_2, inline, kernel, types

CURVE_BITS: Final = 16
"""Bits of a rank on the curve."""

Sortable = npt.NDArray[np.uint64]
Singles = npt.NDArray[np.float32]


def pack(entries: Entries, groups: Groups, start: Ints, lo: Floats, hi: Floats) -> Ints:
    """Return the order of entries: by group, and within a group so that neighbours are near."""
    every = np.arange(len(entries.row), dtype=np.int32)
    counts = np.bincount(groups.of, minlength=len(groups.settled)).astype(np.int32)
    curve = np.zeros((len(every), 2), np.int32)
    widths = np.zeros((len(every), 2), np.int32)
    for which in range(2):
        if not (groups.dims[:, which] >= 0).any():
            break
        centres = np.empty(len(every), np.uint64)
        measure(entries.row, groups.of, groups.dims, groups.settled, start, lo, hi, which, centres, widths)
        order = radix_order(groups.of.astype(np.uint64), radix_order(centres, every))
        rank(order, groups.of, counts, which, curve)
    keys = np.empty(len(every), np.uint64)
    curve_keys(groups.of, groups.dims, curve, widths, keys)
    return radix_order(keys, every)


@kernel(types.void(INTS, INTS, INTS_2, INTS, INTS, FLOATS, FLOATS, types.intp, HASHES, INTS_2))
def measure(
    row: Ints,
    of: Ints,
    dims: Ints,
    settled: Ints,
    start: Ints,
    lo: Floats,
    hi: Floats,
    which: int,
    centres: Sortable,
    widths: Ints,
) -> None:
    """Fill in the centre of each entry's interval, as an integer that sorts alike, and the class of its width."""
    groups = len(settled)
    total = np.zeros(groups)
    count = np.zeros(groups)
    middle = np.empty(1)
    as_bits = middle.view(np.uint64)
    sign = np.uint64(1) << np.uint64(63)
    for at in range(len(row)):
        group = of[at]
        centres[at] = np.uint64(0)
        if dims[group, which] < 0:
            continue
        place = start[row[at]] + settled[group] + which
        middle[0] = lo[place] / 2 + hi[place] / 2
        centres[at] = ~as_bits[0] if as_bits[0] & sign else as_bits[0] | sign
        width = hi[place] - lo[place]
        if 0 < width < np.inf:
            total[group] += np.log2(width)
            count[group] += 1
    for at in range(len(row)):
        group = of[at]
        if dims[group, which] < 0:
            continue
        place = start[row[at]] + settled[group] + which
        width = hi[place] - lo[place]
        if count[group] == 0 or width <= 0:
            widths[at, which] = 0
        elif width == np.inf:
            widths[at, which] = 7
        else:
            # Classes are factors of eight apart; the usual width is in the middle of one.
            usual = total[group] / count[group]
            widths[at, which] = min(max(int(np.floor((np.log2(width) - usual) / 3 + 0.5)) + 3, 0), 7)


@kernel(types.void(INTS, INTS, INTS, types.intp, INTS_2))
def rank(order: Ints, of: Ints, counts: Ints, which: int, curve: Ints) -> None:
    """Fill in each entry's rank in its group, scaled to 2^CURVE_BITS."""
    place = 0
    for at in range(len(order)):
        group = of[order[at]]
        place = place + 1 if at > 0 and of[order[at - 1]] == group else 0
        curve[order[at], which] = (place << CURVE_BITS) // counts[group]


@inline
def _hilbert(x: int, y: int) -> int:
    """The place of a point on the Hilbert curve."""
    place = 0
    side = 1 << (CURVE_BITS - 1)
    while side > 0:
        right = 1 if x & side else 0
        upper = 1 if y & side else 0
        place += side * side * ((3 * right) ^ upper)
        if upper == 0:
            if right == 1:
                x = (1 << CURVE_BITS) - 1 - x
                y = (1 << CURVE_BITS) - 1 - y
            x, y = y, x
        side >>= 1
    return place


@kernel(types.void(INTS, INTS_2, INTS_2, INTS_2, HASHES))
def curve_keys(of: Ints, dims: Ints, curve: Ints, widths: Ints, keys: Sortable) -> None:
    """Fill in the sort keys: group, classes of width, place on the curve."""
    for at in range(len(of)):
        place = curve[at, 0]
        if dims[of[at], 1] >= 0:
            place = _hilbert(curve[at, 0], curve[at, 1])
        classes = (widths[at, 0] << 3) | widths[at, 1]
        keys[at] = (
            (np.uint64(of[at]) << np.uint64(38)) | (np.uint64(classes) << np.uint64(32)) | np.uint64(place)
        )


def nearly(lo: Floats, hi: Floats) -> tuple[Singles, Singles]:
    """Round intervals to half the precision, outwards."""
    with np.errstate(over="ignore"):
        low, high = lo.astype(np.float32), hi.astype(np.float32)
    above, below = low > lo, high < hi
    low[above] = np.nextafter(low[above], np.float32(-np.inf))
    high[below] = np.nextafter(high[below], np.float32(np.inf))
    return low, high


@kernel(types.void(INTS, INTS, INTS_2, INTS, INTS, INTS, SINGLES, SINGLES, NEAR, INTS_2, BYTES))
def place_near(
    entry: Ints,
    group_begin: Ints,
    dims: Ints,
    settled: Ints,
    start: Ints,
    dim: Ints,
    low: Singles,
    high: Singles,
    near: Near,
    near_dims: Ints,
    group_second: Bytes,
) -> None:
    """Store with each entry its first two intervals after the key."""
    for group in range(len(settled)):
        group_second[group] = 0
        for at in range(group_begin[group], group_begin[group + 1]):
            predicate, end = start[entry[at]] + settled[group], start[entry[at] + 1]
            for which in range(2):
                near_dims[which, at] = -1
                near[2 * which, at], near[2 * which + 1, at] = -np.inf, np.inf
                if predicate < end and dim[predicate] >= 0:
                    near_dims[which, at] = dim[predicate]
                    near[2 * which, at], near[2 * which + 1, at] = low[predicate], high[predicate]
                    if which == 1 and dims[group, 1] < 0:
                        group_second[group] = 1
                predicate += 1


@inline
def _extend(boxes: Near, box: int, inner: Near, at: int, second: bool) -> None:
    """Extend a box to contain another; without ``second``, to all of the second dimension."""
    boxes[0, box] = min(boxes[0, box], inner[0, at])
    boxes[1, box] = max(boxes[1, box], inner[1, at])
    boxes[2, box] = min(boxes[2, box], inner[2, at]) if second else -np.inf
    boxes[3, box] = max(boxes[3, box], inner[3, at]) if second else np.inf


@kernel(types.void(INTS, INTS_2, NEAR, INTS, NEAR))
def bound(group_begin: Ints, dims: Ints, near: Near, group_node: Ints, boxes: Near) -> None:
    """Fill in the boxes of all trees."""
    boxes[0], boxes[2] = np.inf, np.inf
    boxes[1], boxes[3] = -np.inf, -np.inf
    for group in range(len(dims)):
        begin, end = group_begin[group], group_begin[group + 1]
        if dims[group, 0] < 0 or end - begin <= LEAF:
            continue
        node = group_node[group]
        size = (end - begin + LEAF - 1) // LEAF
        for place in range(begin, end):
            _extend(boxes, node + (place - begin) // LEAF, near, place, dims[group, 1] >= 0)
        while size > LEAF:
            above = node + (size + LEAF - 1) // LEAF * LEAF
            for child in range(size):
                _extend(boxes, above + child // LEAF, boxes, node + child, True)
            node = above
            size = (size + LEAF - 1) // LEAF


def nodes(entries: int) -> int:
    """Count the boxes of a group with dimensions: each level is padded to whole nodes."""
    total, size = 0, entries
    while size > LEAF:
        size = -(-size // LEAF)
        total += -(-size // LEAF) * LEAF
    return total
