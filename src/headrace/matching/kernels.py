"""The inner loops of matching, compiled: a batch of messages against a segment in one call.

``match`` finds the rows of a segment, ``collect`` gathers their clients. ``match`` takes the messages in *chunks*: it
turns a chunk into points, finds the groups that each must visit (:mod:`headrace.matching.group_lookup`), and then
searches those groups.

Invariants:

- Nothing is written past the arrays given: ``match`` stops before the first message whose rows would not fit.
- Messages are untrusted: every read of their bytes is between offsets of a valid Arrow array.
- ``died`` may change while ``match`` runs. A change after ``version`` has a later version and is not seen.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headrace.matching.attribute_reading import FACTS, Facts
from headrace.matching.group_lookup import Matrix, points, visits_of
from headrace.matching.index.hashing import CLIENTS, FLOATS, NEAR, SEED
from headrace.matching.index.segment import Clients, Ints, Segment, Wide
from headrace.wire.numba_kernels import BYTES, INDEX, INTS, INTS_2, WIDE, inline, kernel, types
from headrace.wire.sdk.fence import crosses
from headrace.wire.sdk.predicate import holds
from headrace.wire.sdk.program import FENCE, HEAD, INSIDE, NOTHING, NUMBER, TEXT
from headrace.wire.sdk.region import contains, within

LEAF: Final = 16
"""Entries of a leaf of a tree, and children of a node."""

CHUNK: Final = 256
"""Most messages matched together."""

TOGETHER: Final = 32
"""Nodes of a tree that are looked at together, for one message or several."""

MAX_STACK: Final = CHUNK + 8 * LEAF * TOGETHER
"""Nodes pending while a tree is walked: a root for each message, and the children of TOGETHER nodes for each level, of
which 2^31 entries make 8."""

CANDIDATES: Final = 1024
"""Entries that passed the approximate check, to be checked exactly in one go."""

POINTS: Final = 1 << 16
"""Most messages of a chunk times attributes: bounds the memory of a chunk's points."""

SEGMENT: Any = types.NamedTuple(
    [
        *(CLIENTS, WIDE, INTS, INTS),
        *(INTS, FLOATS, FLOATS, WIDE),
        *(INTS_2, FLOATS, INTS_2),
        *(INTS, INTS, INTS_2, INTS, BYTES, INTS, NEAR, INTS_2, NEAR, INTS),
        *(INTS, WIDE, INTS, INTS, BYTES, INTS, INTS),
        *(BYTES, WIDE, INTS, BYTES, WIDE, INTS),
    ],
    Segment,
)

_holds = inline(holds)
_contains = inline(contains)
_within = inline(within)
_crosses = inline(crosses)


@inline
def _run(segment: Segment, facts: Facts, x: Matrix, fact_of: Ints, message: int, program: int) -> bool:
    """Run a program on a message. A region's box is checked too: a value that is not a number is in no box."""
    pool = segment.pool
    attribute = pool[program + 1]
    if pool[program + HEAD] == INSIDE or pool[program + HEAD] == FENCE:
        numbers = pool.view(np.float64)
        across, up = x[message, 2 * attribute + 2], x[message, 2 * pool[program + HEAD + 3] + 2]
        if pool[program + HEAD] == INSIDE:
            return _contains(numbers, program + HEAD + 5, 2, pool[program + HEAD + 1] - 1, across, up)
        # After the key are the attributes of the previous position and its number.
        before_x = x[message, 2 * pool[program + HEAD + 7] + 2]
        before_y = x[message, 2 * pool[program + HEAD + 9] + 2]
        before = x[message, 2 * pool[program + HEAD + 11] + 2]
        event, size = numbers[program + HEAD + 13], pool[program + HEAD + 1] - 11
        return _crosses(event, numbers, program + HEAD + 15, 2, size, across, up, before_x, before_y, before)
    fact = fact_of[message, attribute]
    kind, value, begin, end = NOTHING, -1, 0, 0
    if fact >= 0:
        code = x[message, 2 * attribute + 1]
        if np.isnan(code):
            kind, value = NUMBER, facts.bits[fact]
        else:
            kind, value = TEXT, int(code)
            begin, end = facts.begin[fact], facts.end[fact]
    return _holds(pool, program, kind, value, facts.data, begin, end, segment.word_data, segment.word_begin)


@inline
def _check(
    segment: Segment,
    facts: Facts,
    version: int,
    x: Matrix,
    fact_of: Ints,
    candidates: Ints,
    count: int,
    found: Ints,
    used: int,
) -> int:
    """Append the candidates (message, entry, predicates settled) that really match to ``found``; -1 without room.

    Each is somewhere else in memory; checked together, a processor waits for several at once. So whether one matches is
    no branch: the last place of ``found`` takes one that does not.
    """
    died, start, dim, lo, hi = segment.died, segment.start, segment.dim, segment.lo, segment.hi
    entry, shape, shapes, planes = segment.entry, segment.shape, segment.shapes, segment.planes
    shaped = len(shape) > 0
    for candidate in range(count):
        message = candidates[candidate, 0]
        row = entry[candidates[candidate, 1]]
        passes = died[row] > version
        if shaped and shape[row, 0] >= 0:
            at, plane = shape[row, 0], shape[row, 1]
            across, up = x[message, planes[plane, 0]], x[message, planes[plane, 1]]
            event, size = planes[plane, 5], planes[plane, 6]
            if event < 0:
                passes &= _within(shapes, at + 1, 1, size, across, up)
            else:
                before_x, before_y = x[message, planes[plane, 2]], x[message, planes[plane, 3]]
                before = x[message, planes[plane, 4]]
                passes &= _crosses(event, shapes, at, 1, size, across, up, before_x, before_y, before)
        else:
            for predicate in range(start[row] + candidates[candidate, 2], start[row + 1]):
                if dim[predicate] >= 0:
                    point = x[message, dim[predicate] + 1]
                    passes &= (lo[predicate] <= point) & (point <= hi[predicate])
                elif passes:
                    passes = _run(segment, facts, x, fact_of, message, int(lo[predicate]))
        found[used, 0] = message
        found[used, 1] = row
        used += passes
        if used == len(found):
            return -1
    return used


@inline
def _search_groups(
    segment: Segment,
    facts: Facts,
    version: int,
    x: Matrix,
    fact_of: Ints,
    visits: Ints,
    count: int,
    found: Ints,
) -> int:
    """Write the matches of visits, message and row, into ``found``; return how many, or -1 if they do not fit.

    Bounds are compared exactly LEAF at a time (there is padding after the last), by unsigned index and without a branch
    in between, so that the loop is vectorized and no branch is mispredicted.
    """
    near, near_dims, group_second = segment.near, segment.near_dims, segment.group_second
    group_begin, group_dims, group_settled = segment.group_begin, segment.group_dims, segment.group_settled
    group_node, boxes = segment.group_node, segment.boxes
    stack = np.empty(MAX_STACK, np.int64)
    taken = np.empty(TOGETHER, np.int64)
    passed = np.empty(LEAF, np.int64)
    good = np.empty(LEAF, np.uint8)
    good_words = good.view(np.uint64)
    candidates = np.empty((CANDIDATES, 3), np.int32)
    waiting_candidates = 0
    level_at = np.empty(9, np.int64)
    level_size = np.empty(9, np.int64)
    used = 0
    visit = 0
    while visit < count:
        group = visits[visit, 1]
        begin, end = np.int64(group_begin[group]), np.int64(group_begin[group + 1])
        settled = group_settled[group]
        first, second = group_dims[group, 0], group_dims[group, 1]
        dims = (1 if first >= 0 else 0) + (1 if second >= 0 else 0)
        leaf = end - begin
        top = np.int64(0)
        if dims > 0 and leaf > LEAF:
            # Levels of the tree, leaves first; the last has at most LEAF nodes.
            leaf = np.int64(LEAF)
            level_at[0] = group_node[group]
            level_size[0] = (end - begin + LEAF - 1) // LEAF
            while level_size[top] > LEAF:
                level_size[top + 1] = (level_size[top] + LEAF - 1) // LEAF
                # A level is padded to whole nodes with empty boxes.
                level_at[top + 1] = level_at[top] + LEAF * level_size[top + 1]
                top += 1
            # They are the children of a root without a box.
            top += 1
        waiting = np.int64(0)  # In plain Python, an int and a flag would make eight bits.
        while visit < count and visits[visit, 1] == group and waiting < CHUNK:
            stack[waiting] = (np.int64(visits[visit, 0]) << 4) | top
            waiting += 1
            visit += 1
        looked_at, some = 0, np.int64(0)
        while looked_at < some or waiting > 0:
            if looked_at == some:
                # So that the next node is known before the last one has come from memory.
                some = min(waiting, np.int64(TOGETHER))
                waiting -= some
                looked_at = 0
                for each in range(some):
                    taken[each] = stack[waiting + each]
            level = taken[looked_at] & 15
            message = (taken[looked_at] >> 4) & (CHUNK - 1)
            node = taken[looked_at] >> 12
            looked_at += 1
            x1, x2 = x[message, first + 1], x[message, second + 1]
            if level > 0:
                level -= 1
                box = np.uint64(level_at[level] + node * LEAF)
                for child in range(LEAF):
                    at = box + np.uint64(child)
                    good[child] = (
                        (boxes[0, at] <= x1)
                        & (x1 <= boxes[1, at])
                        & (boxes[2, at] <= x2)
                        & (x2 <= boxes[3, at])
                    )
                if good_words[0] | good_words[1]:
                    for child in range(LEAF):
                        stack[waiting] = ((node * LEAF + child) << 12) | (message << 4) | level
                        waiting += good[child]
                continue
            stop = min(begin + node * leaf + leaf, end)
            for block in range(begin + node * leaf, stop, LEAF):
                place = np.uint64(block)
                if dims == 2:
                    for index in range(LEAF):
                        at = place + np.uint64(index)
                        good[index] = (
                            (near[0, at] <= x1)
                            & (x1 <= near[1, at])
                            & (near[2, at] <= x2)
                            & (x2 <= near[3, at])
                        )
                elif dims == 1:
                    for index in range(LEAF):
                        at = place + np.uint64(index)
                        good[index] = (near[0, at] <= x1) & (x1 <= near[1, at])
                else:
                    for index in range(LEAF):
                        at = place + np.uint64(index)
                        point = x[message, near_dims[0, at] + 1]
                        good[index] = (near[0, at] <= point) & (point <= near[1, at])
                if good_words[0] | good_words[1] == 0:
                    continue
                passing = 0
                for index in range(min(LEAF, stop - block)):
                    passed[passing] = block + index
                    passing += good[index]
                if dims < 2 and group_second[group]:
                    kept = 0
                    for index in range(passing):
                        at = np.uint64(passed[index])
                        point = x[message, near_dims[1, at] + 1]
                        passed[kept] = passed[index]
                        kept += (near[2, at] <= point) & (point <= near[3, at])
                    passing = kept
                for index in range(passing):
                    candidates[waiting_candidates, 0] = message
                    candidates[waiting_candidates, 1] = passed[index]
                    candidates[waiting_candidates, 2] = settled
                    waiting_candidates += 1
                if waiting_candidates > CANDIDATES - LEAF:
                    used = _check(
                        segment, facts, version, x, fact_of, candidates, waiting_candidates, found, used
                    )
                    waiting_candidates = 0
                    if used < 0:
                        return -1
    return _check(segment, facts, version, x, fact_of, candidates, waiting_candidates, found, used)


@kernel(types.UniTuple(INDEX, 2)(SEGMENT, FACTS, INTS, SEED, types.int64, INDEX, INDEX, INTS, INTS))
def match(
    segment: Segment,
    facts: Facts,
    attribute_of: Ints,
    seed: np.uint64,
    version: int,
    begin: int,
    end: int,
    rows: Ints,
    counts: Ints,
) -> tuple[int, int]:
    """Match messages ``begin`` to ``end``: write the matching rows message by message, ``counts[i]`` for message ``i``.

    Return the message before which ``rows`` ran out of room, or ``end``, and how many rows were written.

    ``attribute_of`` has the segment's attribute for each of the batch's names, or -1.
    """
    attributes = len(segment.attribute_keys)
    most = max(1, min(CHUNK, POINTS // max(attributes, 1), end - begin))
    x = np.full((most, 2 * attributes + 1), np.nan)
    x[:, 0] = 0.0
    fact_of = np.full((most, attributes), np.int32(-1))
    touched = np.empty((most, attributes), np.int32)
    touching = np.zeros(most, np.int32)
    visits = np.empty((most * 16, 2), np.int32)
    # One place more than there is room for: what does not match is written there, and not counted.
    found = np.empty((len(rows) + 1, 2), np.int32)
    at = np.empty(most, np.int64)
    used = 0
    message = begin
    while message < end:
        stop = min(end, message + most)
        points(segment, facts, attribute_of, message, stop, x, fact_of, touched, touching)
        pairs = -1
        while pairs < 0:
            visits, count = visits_of(
                segment, facts, seed, message, stop, x, fact_of, touched, touching, visits
            )
            pairs = _search_groups(segment, facts, version, x, fact_of, visits, count, found[used:])
            if pairs < 0:
                if used > 0 or stop - message == 1:
                    return message, used
                # Fewer messages may fit.
                stop = message + (stop - message) // 2
        # The pairs came group by group: sort them by message.
        for each in range(message, stop):
            counts[each] = 0
        for pair in range(used, used + pairs):
            counts[message + found[pair, 0]] += 1
        place = used
        for each in range(message, stop):
            at[each - message] = place
            place += counts[each]
        for pair in range(used, used + pairs):
            each = found[pair, 0]
            rows[at[each]] = found[pair, 1]
            at[each] += 1
        used += pairs
        message = stop
    return end, used


@kernel(types.void(CLIENTS, INTS, INTS, INDEX, INDEX, WIDE, CLIENTS, CLIENTS))
def collect(
    clients: Clients,
    rows: Ints,
    counts: Ints,
    begin: int,
    end: int,
    at: Wide,
    out: Clients,
    owners: Clients,
) -> None:
    """Append the clients of messages ``begin`` to ``end`` to each message's own, and their owners; ``at`` advances.

    Where nobody has another owner, ``owners`` is empty.
    """
    row = 0
    owned = len(owners) > 0
    owner = clients.shape[1] - 3
    for message in range(begin, end):
        place = at[message - begin]
        for _ in range(counts[message]):
            for word in range(3):
                out[place, word] = clients[rows[row], word]
            if owned:
                for word in range(3):
                    owners[place, word] = clients[rows[row], owner + word]
            place += 1
            row += 1
        at[message - begin] = place
