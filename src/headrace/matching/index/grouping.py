"""Grouping entries: those with the same key and dimensions form a group, where that pays.

Visiting a group takes about as long as checking ``VISIT`` entries. So a pair of dimensions gets its own group only if
one dimension alone would leave more than that to check, and the entries of a key that has few are checked one by one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.matching.index.hashing import FLOATS, HASHES
from headrace.matching.index.planning import Entries
from headrace.matching.index.segment import Floats, Ints
from headrace.wire.numba_kernels import INTS, INTS_2, kernel, types

VISIT: Final = 16
"""The cost of visiting a group, in entries checked."""

FEW: Final = 48
"""Entries of a key that are still checked one by one."""


class Groups(NamedTuple):
    """Groups of entries: those without a key first, the others by key."""

    of: Ints
    """The group of each entry."""
    dims: Ints
    settled: Ints
    first: Ints
    """The first group of each key, and the end of the last key's groups."""


def group(entries: Entries, keys: Ints, count: int) -> Groups:
    """Put entries into groups; ``keys`` has the key of each, below ``count``, or -1."""
    dims = entries.dims.astype(np.uint64) + np.uint64(1)
    order = radix_order((dims[:, 0] << np.uint64(32)) | dims[:, 1], np.arange(len(keys), dtype=np.int32))
    order = radix_order((keys + 1).astype(np.uint64), order)
    of, settled = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
    group_dims = np.empty((len(keys), 2), np.int32)
    first = np.zeros(count + 1, np.int32)
    groups = assign(keys, entries.dims, entries.share, order, of, group_dims, settled, first)
    return Groups(of, group_dims[:groups].copy(), settled[:groups].copy(), first)


@kernel(INTS(HASHES, INTS))
def radix_order(values: npt.NDArray[np.uint64], order: Ints) -> Ints:
    """Sort ``order`` by ``values``, stably."""
    count = len(order)
    lowest, highest = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
    for value in values:
        lowest &= value
        highest |= value
    here, there = order.copy(), np.empty(count, np.int32)
    begins = np.empty(257, np.int64)
    for digit in range(8):
        shift = np.uint64(8 * digit)
        if (lowest >> shift) & np.uint64(255) == (highest >> shift) & np.uint64(255):
            # All have the same digit.
            continue
        begins[:] = 0
        for index in here:
            begins[np.int64((values[index] >> shift) & np.uint64(255)) + 1] += 1
        for bucket in range(256):
            begins[bucket + 1] += begins[bucket]
        for index in here:
            place = np.int64((values[index] >> shift) & np.uint64(255))
            there[begins[place]] = index
            begins[place] += 1
        here, there = there, here
    return here


@kernel(types.intp(INTS, INTS_2, FLOATS, INTS, INTS, INTS_2, INTS, INTS))
def assign(
    keys: Ints, dims: Ints, share: Floats, order: Ints, of: Ints, group_dims: Ints, settled: Ints, first: Ints
) -> int:
    """Assign each entry its group; ``order`` sorts them by key and dimensions. Return the number of groups."""
    count = len(order)
    groups = 0
    key_begin = 0
    while key_begin < count:
        key = keys[order[key_begin]]
        key_end = key_begin
        while key_end < count and keys[order[key_end]] == key:
            key_end += 1
        if key >= 0:
            first[key] = groups
        plain = -1
        one_begin = key_begin
        while one_begin < key_end:
            one = dims[order[one_begin], 0]
            one_end = one_begin
            left = 0.0
            while one_end < key_end and dims[order[one_end], 0] == one:
                left += share[order[one_end]]
                one_end += 1
            spared = one_end - one_begin - left
            if one < 0 or (key >= 0 and (key_end - key_begin <= FEW or spared <= 2 * VISIT)):
                if plain < 0:
                    plain = groups
                    group_dims[plain, 0] = group_dims[plain, 1] = -1
                    settled[plain] = 1 if key >= 0 else 0
                    groups += 1
                for at in range(one_begin, one_end):
                    of[order[at]] = plain
                one_begin = one_end
                continue
            single = -1
            two_begin = one_begin
            while two_begin < one_end:
                two = dims[order[two_begin], 1]
                two_end = two_begin
                left = 0.0
                while two_end < one_end and dims[order[two_end], 1] == two:
                    left += share[order[two_end]]
                    two_end += 1
                if two >= 0 and left > VISIT:
                    chosen = groups
                    group_dims[chosen, 0], group_dims[chosen, 1] = one, two
                    settled[chosen] = 1 if key >= 0 else 0
                    groups += 1
                else:
                    if single < 0:
                        single = groups
                        group_dims[single, 0], group_dims[single, 1] = one, -1
                        settled[single] = 1 if key >= 0 else 0
                        groups += 1
                    chosen = single
                for at in range(two_begin, two_end):
                    of[order[at]] = chosen
                two_begin = two_end
            one_begin = one_end
        key_begin = key_end
    first[len(first) - 1] = groups
    return groups
