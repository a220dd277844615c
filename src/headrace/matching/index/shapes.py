"""Shapes: the regions of subscriptions in the index's order, as short as they are checked.

A region's program (:mod:`headrace.wire.sdk.program`) is several cache lines somewhere in the pool, and of a million of
them a message needs the hundred near it. So a subscription that is nothing but a region, after what its key settles,
has a *shape*: ``after``, the box and the region's numbers, 64 bytes for a circle, beside those of its neighbours. What
neighbours share is in a *plane*: the attributes that are the position, and the previous one, as columns of a message's
point; the fence's event, and how many numbers the region has.

A subscription with other predicates besides has no shape; its program is run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.matching.index.hashing import FLOATS
from headrace.matching.index.segment import Floats, Ints, Wide
from headrace.wire.numba_kernels import INTS, INTS_2, WIDE, inline, kernel, types
from headrace.wire.sdk.program import FENCE, HEAD, INSIDE

BEFORE_REGION = 5
"""Numbers of a shape before the region's own: ``after`` and the box."""

NO_EVENT = -1
"""The event of a plane whose regions are no fences."""

PLANE_COLUMNS = 7
"""The columns of x, y, the previous x, y and number; the event; the number of the region's numbers."""

REGION_PREDICATES = 3
"""A region's predicates: the intervals of its box, and its program."""

REMEMBERED = 4
"""Planes that a shape's own is looked for among: subscriptions near each other have few."""


class Shapes(NamedTuple):
    """Each subscription's shape and plane, -1 for none; the shapes' numbers; the planes."""

    of: Ints
    numbers: Floats
    planes: Ints


NO_SHAPES = Shapes(np.empty((0, 2), np.int32), np.empty(0), np.empty((0, PLANE_COLUMNS), np.int32))


def shape(
    entry: Ints, begin: Ints, settled: Ints, start: Ints, dim: Ints, lo: Floats, hi: Floats, pool: Wide
) -> Shapes:
    """Give subscriptions that are in the order of the index their shapes."""
    if not len(pool):
        return NO_SHAPES
    of = np.full((len(start) - 1, 2), -1, np.int32)
    count, planes = count_numbers(entry, begin, settled, start, dim, lo, pool, of)
    if not count:
        return NO_SHAPES
    numbers = _aligned(count)
    columns = np.empty((planes, PLANE_COLUMNS), np.int32)
    used = write_shapes(dim, lo, hi, pool, of, numbers, columns)
    return Shapes(of, numbers, columns[:used].copy())


def _aligned(count: int) -> Floats:
    """Room for shapes that begins with a cache line: then a circle is in one."""
    room = np.empty(count + 8)
    return room[-(room.ctypes.data // 8) % 8 :][:count]


@inline
def _numbers_of(pool: Wide, program: int) -> int:
    """How many numbers a region's program has; 0 for a program that is no region."""
    if pool[program + HEAD] == INSIDE:
        return int(pool[program + HEAD + 1] - 1)
    return int(pool[program + HEAD + 1] - 11) if pool[program + HEAD] == FENCE else 0


@kernel(types.UniTuple(types.intp, 2)(INTS, INTS, INTS, INTS, INTS, FLOATS, WIDE, INTS_2))
def count_numbers(
    entry: Ints, begin: Ints, settled: Ints, start: Ints, dim: Ints, lo: Floats, pool: Wide, of: Ints
) -> tuple[int, int]:
    """Fill in the places of shapes, and of the program among its predicates; return the numbers and the shapes."""
    used = shapes = 0
    for group in range(len(settled)):
        for at in range(begin[group], begin[group + 1]):
            row = entry[at]
            first, end = start[row] + settled[group], start[row + 1]
            if of[row, 0] >= 0 or end - first != REGION_PREDICATES or dim[first + 2] >= 0:
                continue
            # Before the program are the intervals of its box, in either order: of one attribute they look alike.
            if dim[first] < 0 or dim[first + 1] < 0 or dim[first] == dim[first + 1]:
                continue
            count = _numbers_of(pool, int(lo[first + 2]))
            if count == 0:
                continue
            of[row, 0], of[row, 1] = used, first + 2
            used += BEFORE_REGION + count
            shapes += 1
    return used, shapes


@kernel(types.intp(INTS, FLOATS, FLOATS, WIDE, INTS_2, FLOATS, INTS_2))
def write_shapes(
    dim: Ints, lo: Floats, hi: Floats, pool: Wide, of: Ints, numbers: Floats, planes: Ints
) -> int:
    """Write the shapes and their planes; return how many planes there are."""
    used = 0
    as_numbers = pool.view(np.float64)
    plane = np.empty(PLANE_COLUMNS, np.int32)
    for row in range(len(of)):
        if of[row, 0] < 0:
            continue
        predicate, at = of[row, 1], of[row, 0]
        program = int(lo[predicate])
        count = _numbers_of(pool, program)
        across, up = 2 * pool[program + 1] + 1, 2 * pool[program + HEAD + 3] + 1
        plane[0], plane[1] = across + 1, up + 1
        plane[2] = plane[3] = plane[4] = 0
        plane[5], plane[6] = NO_EVENT, count
        region = program + HEAD + 4
        numbers[at] = 0.0
        if pool[program + HEAD] == FENCE:
            for index in range(3):
                plane[2 + index] = 2 * pool[program + HEAD + 7 + 2 * index] + 2
            plane[5] = int(as_numbers[program + HEAD + 13])
            numbers[at] = as_numbers[program + HEAD + 15]
            for index in range(4):
                numbers[at + 1 + index] = as_numbers[program + HEAD + 17 + 2 * index]
            region = program + HEAD + 24
        else:
            for which in range(predicate - 2, predicate):
                side = 1 if dim[which] == across else 3
                numbers[at + side], numbers[at + side + 1] = lo[which], hi[which]
        for index in range(count):
            numbers[at + BEFORE_REGION + index] = as_numbers[region + 2 * index + 1]
        found = -1
        for place in range(max(used - REMEMBERED, 0), used):
            same = True
            for column in range(PLANE_COLUMNS):
                same &= planes[place, column] == plane[column]
            if same:
                found = place
        if found < 0:
            found = used
            planes[found] = plane
            used += 1
        of[row, 1] = found
    return used
