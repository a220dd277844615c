"""Building a segment: merge living rows, plan the index, pack it, and write the columns in its order.

This runs in a thread beside matching, so all work that grows with the number of subscriptions is done in kernels or by
numpy, which release the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.matching.group_lookup import PREFIX_KEY
from headrace.matching.index import hashing
from headrace.matching.index.grouping import group
from headrace.matching.index.hashing import CLIENTS, FLOATS
from headrace.matching.index.layout import bound, nearly, nodes, pack, place_near
from headrace.matching.index.merging import Columns
from headrace.matching.index.planning import Entries, plan
from headrace.matching.index.segment import (
    ALIVE,
    Bytes,
    Clients,
    Floats,
    Ints,
    Segment,
    Wide,
    Words,
)
from headrace.matching.index.shapes import shape
from headrace.matching.kernels import LEAF
from headrace.wire.numba_kernels import INTS, kernel, types


def build(segments: Sequence[Segment], rows: Sequence[Ints], seed: np.uint64) -> Segment:
    """Build one segment of some rows of several."""
    columns = Columns(segments, rows, seed)
    entries = plan(columns, seed)
    key_of, key_kind, key_value, key_slots = _keys(entries, seed)
    groups = group(entries, key_of, len(key_kind))
    order = pack(entries, groups, columns.start, columns.lo, columns.hi)

    count = len(columns.clients)
    unordered = (columns.clients, columns.start, columns.dim, columns.lo, columns.hi)
    clients, start, dim, lo, hi = map(np.empty_like, unordered)
    entry = np.empty(len(order), np.int32)
    reorder(entries.row, order, *unordered, clients, start, dim, lo, hi, entry)
    sizes = np.bincount(groups.of, minlength=len(groups.settled))
    begin = _edges(sizes)
    node_counts = np.array([nodes(int(size)) for size in sizes], np.intp)
    node = _edges(node_counts * (groups.dims[:, 0] >= 0))
    # Entries are checked LEAF at a time, the last ones included.
    near = np.zeros((4, len(order) + LEAF), np.float32)
    near_dims = np.full((2, len(order) + LEAF), -1, np.int32)
    second = np.empty(len(groups.settled), np.uint8)
    place_near(
        entry, begin, groups.dims, groups.settled, start, dim, *nearly(lo, hi), near, near_dims, second
    )
    boxes = np.empty((4, int(node[-1])), np.float32)
    bound(begin, groups.dims, near, node, boxes)
    shapes = shape(entry, begin, groups.settled, start, dim, lo, hi, columns.pool)
    if (clients[:, :3] == clients[:, -3:]).all():
        clients = np.ascontiguousarray(clients[:, :3])
    client_slots = np.zeros(_slots(count), np.int32)
    hashing.file_clients(clients, client_slots, seed)
    attributes = len(columns.names.begin) - 1
    prefix_begin, prefix_length = _prefixes(key_kind, key_value, columns.words, attributes)
    return Segment(
        clients=clients,
        died=np.full(count, ALIVE, np.int64),
        start=start,
        client_slots=client_slots,
        dim=dim,
        lo=lo,
        hi=hi,
        pool=columns.pool,
        shape=shapes.of,
        shapes=shapes.numbers,
        planes=shapes.planes,
        entry=entry,
        group_begin=begin,
        group_dims=groups.dims,
        group_settled=groups.settled,
        group_second=second,
        group_node=node[:-1],
        near=near,
        near_dims=near_dims,
        boxes=boxes,
        dim_group=_groups_by_dimension(groups.dims[: groups.first[0]], attributes),
        key_kind=key_kind,
        key_value=key_value,
        key_group=groups.first,
        key_slots=key_slots,
        attribute_keys=_kinds(key_kind, attributes),
        prefix_begin=prefix_begin,
        prefix_length=prefix_length,
        name_data=columns.names.data,
        name_begin=columns.names.begin,
        name_slots=columns.names.slots,
        word_data=columns.words.data,
        word_begin=columns.words.begin,
        word_slots=columns.words.slots,
    )


def _slots(count: int) -> int:
    """The number of slots for ``count`` items: a power of two, at most half of them used."""
    return 1 << (2 * count).bit_length() >> (1 if count and count & (count - 1) == 0 else 0)


def _edges(sizes: npt.NDArray[np.intp]) -> Ints:
    edges = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=edges[1:])
    return edges


def _keys(entries: Entries, seed: np.uint64) -> tuple[Ints, Ints, Wide, Ints]:
    """Find the key of each entry (-1 for none), and the keys' kinds, values and slots."""
    keyed = np.flatnonzero(entries.kind >= 0)
    kinds, values = entries.kind[keyed], entries.value[keyed]
    codes = np.empty(len(keyed), np.int32)
    slots = np.zeros(_slots(len(keyed)), np.int32)
    firsts = hashing.file_keys(kinds, values, slots, seed, codes)
    key_of = np.full(len(entries.kind), -1, np.int32)
    key_of[keyed] = codes
    kinds, values = kinds[firsts], values[firsts]
    slots = np.zeros(_slots(len(kinds)), np.int32)
    hashing.file_keys(kinds, values, slots, seed, np.empty(len(kinds), np.int32))
    return key_of, kinds, values, slots


def _groups_by_dimension(dims: Ints, attributes: int) -> Ints:
    """Where each dimension's groups begin: groups without a key are sorted by first dimension, -1 first."""
    return np.searchsorted(dims[:, 0], np.arange(2 * attributes + 1)).astype(np.int32)


def _kinds(key_kind: Ints, attributes: int) -> Bytes:
    kinds = np.zeros(attributes, np.uint8)
    for kind in range(4):
        kinds[key_kind[key_kind & 3 == kind] >> 2] |= np.uint8(1 << kind)
    return kinds


def _prefixes(kinds: Ints, values: Wide, words: Words, attributes: int) -> tuple[Ints, Ints]:
    """The distinct lengths of each attribute's prefixes, ascending."""
    prefixes = kinds & 3 == PREFIX_KEY
    lengths = np.diff(words.begin)[values[prefixes]]
    pairs = np.unique(np.stack([kinds[prefixes] >> 2, lengths], axis=1), axis=0).astype(np.int32)
    begin = np.searchsorted(pairs[:, 0], np.arange(attributes + 1)).astype(np.int32)
    return begin, np.ascontiguousarray(pairs[:, 1])


@kernel(
    types.void(
        *(INTS, INTS, CLIENTS, INTS, INTS, FLOATS, FLOATS), *(CLIENTS, INTS, INTS, FLOATS, FLOATS, INTS)
    )
)
def reorder(
    row: Ints,
    order: Ints,
    clients: Clients,
    start: Ints,
    dim: Ints,
    lo: Floats,
    hi: Floats,
    clients_out: Clients,
    start_out: Ints,
    dim_out: Ints,
    lo_out: Floats,
    hi_out: Floats,
    entry: Ints,
) -> None:
    """Write subscriptions in the order of their first entries, those without one last, and the entries."""
    rows = len(clients)
    place = np.full(rows, -1, np.int32)
    used = 0
    at = 0
    start_out[0] = 0
    for index in range(len(order) + rows):
        source = row[order[index]] if index < len(order) else index - len(order)
        if place[source] < 0:
            place[source] = used
            for which in range(clients.shape[1]):
                clients_out[used, which] = clients[source, which]
            for predicate in range(start[source], start[source + 1]):
                dim_out[at] = dim[predicate]
                lo_out[at] = lo[predicate]
                hi_out[at] = hi[predicate]
                at += 1
            used += 1
            start_out[used] = at
        if index < len(order):
            entry[index] = place[source]
