"""A segment: subscriptions as columns, and the index over them. Once built it never changes, except for ``died``.

**Attributes** that the segment's subscriptions name are numbered; attribute ``a`` has two *dimensions*: ``2a`` for its
string (as the code of a word) and ``2a + 1`` for its number. A message is a point; where it lacks the attribute, or has
the other type, it is NaN, which lies in no interval. ``Equals`` and ``Between`` are intervals ``lo <= x <= hi`` of a
dimension. Every other predicate is a *program* (:mod:`headrace.wire.sdk.predicate`): its ``dim`` is negative and ``lo``
is its place in ``pool``.

A region (``Inside``, ``Fence``) is three predicates: the intervals of its bounding box, in the number dimensions of two
attributes, by which it is indexed like any pair of ranges, and a program that checks it exactly.

**Words** are the distinct strings that subscriptions use; a word's code is its index. Attribute names have a table of
their own. Segments share nothing, so merging them drops the words that no subscription uses any more.

**The index** puts subscriptions into *groups*, and the entries of a group side by side:

- a *key* is an attribute and one value it must have (``Equals``, or each value of ``In``), or a prefix it must have;
  keys are found by hash, and have some groups;
- subscriptions without a key are in groups that a message visits if it has their first dimension, or always;
- a group without a dimension is scanned; one with one or two dimensions is a packed tree of bounding boxes over its
  entries' intervals.

Scanning is bound by the memory read. So each entry has its intervals beside it in half the precision, rounded outwards
(``near``), and only an entry that passes those is checked in full. What the key has settled is not checked again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.wire.sdk.fence import Fence
from headrace.wire.sdk.predicate import Between, Equals, Inside, Predicate, decompile
from headrace.wire.sdk.region import box_of

ALIVE: Final = np.iinfo(np.int64).max
"""``died`` of a living subscription."""

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Wide = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Near = npt.NDArray[np.float32]
Clients = npt.NDArray[np.uint32]


class Words(NamedTuple):
    """Distinct strings: word ``w`` is ``data[begin[w]:begin[w + 1]]``."""

    data: Bytes
    begin: Wide
    slots: Ints
    """Open addressing: a word's code plus 1, or 0; a power of two of them, at most half used."""


class Segment(NamedTuple):
    """The columns; subscription ``s`` is row ``s`` of the first three."""

    clients: Clients
    """The 12 bytes of the client's id, as three integers; where any has another owner, three more of its owner's."""
    died: Wide
    """The version at which the subscription was withdrawn or replaced."""
    start: Ints
    """Where its predicates begin; they end where the next one's begin."""
    client_slots: Ints
    """Open addressing: a row plus 1, or 0."""

    dim: Ints
    lo: Floats
    hi: Floats
    """The predicates."""
    pool: Wide
    """Programs."""

    shape: Ints
    shapes: Floats
    planes: Ints
    """The regions of subscriptions in the index's order (:mod:`headrace.matching.index.shapes`); empty without any."""

    entry: Ints
    """The subscription of each index entry, by group. A subscription with ``In`` as its key has several."""
    group_begin: Ints
    group_dims: Ints
    """Two dimensions per group, -1 for none."""
    group_settled: Ints
    """How many of a subscription's first predicates the group's key settles: 0 or 1."""
    group_second: Bytes
    """Whether entries of the group have a second dimension that the group lacks."""
    group_node: Ints
    """Where a group's boxes begin."""
    near: Near
    """Four rows, a column per entry: approximate bounds of its first interval, low and high, and of its second."""
    near_dims: Ints
    """Two rows: the dimensions of those, -1 for none. The entries of a group may share both, the first, or none."""
    boxes: Near
    """The same for the nodes of trees, leaves first: a box around everything below."""
    dim_group: Ints
    """The keyless groups whose first dimension is ``d``: ``dim_group[d]`` up to ``dim_group[d + 1]``. Those before
    ``dim_group[0]`` have no dimension and are always visited."""

    key_kind: Ints
    key_value: Wide
    key_group: Ints
    """Keys, and the groups of each."""
    key_slots: Ints
    attribute_keys: Bytes
    """Which kinds of keys an attribute has, a bit each."""
    prefix_begin: Ints
    prefix_length: Ints
    """The lengths of an attribute's prefixes, ascending."""

    name_data: Bytes
    name_begin: Wide
    name_slots: Ints
    word_data: Bytes
    word_begin: Wide
    word_slots: Ints

    @property
    def rows(self) -> int:
        """How many subscriptions, the dead included."""
        return len(self.start) - 1

    @property
    def names(self) -> Words:
        """The attributes' names."""
        return Words(self.name_data, self.name_begin, self.name_slots)

    @property
    def words(self) -> Words:
        """The strings in predicates."""
        return Words(self.word_data, self.word_begin, self.word_slots)

    @property
    def nbytes(self) -> int:
        """The memory of all columns."""
        return sum(column.nbytes for column in self)


def predicates_of(segment: Segment, row: int) -> dict[str, Predicate]:
    """The predicates of a subscription, as they were given."""

    def text(code: int) -> str:
        return _word(segment.words, code)

    def name(code: int) -> str:
        return _word(segment.names, code)

    found: dict[str, Predicate] = {}
    boxes: list[tuple[str, float, float]] = []
    ranges: list[tuple[str, float, float]] = []
    begin, end = segment.start[row : row + 2].tolist()
    columns = (column[begin:end].tolist() for column in (segment.dim, segment.lo, segment.hi))
    for dim, low, high in zip(*columns, strict=True):
        if dim < 0:
            at = int(low)
            program = segment.pool[at : at + int(segment.pool[at])].tolist()
            predicate = found[name(program[1])] = decompile(program, text, name)
            if isinstance(predicate, Inside | Fence):
                box, (across, up) = box_of(predicate.region), predicate.indexed_by(name(program[1]))
                boxes += ((across, *box[:2]), (up, *box[2:]))
        elif dim % 2:
            ranges.append((name(dim // 2), low, high))
        else:
            found[name(dim // 2)] = Equals(text(int(low)))
    for box_range in boxes:
        ranges.remove(box_range)
    found.update((attribute, Between(low, high)) for attribute, low, high in ranges)
    return found


def _word(words: Words, code: int) -> str:
    begin, end = words.begin[code : code + 2].tolist()
    return words.data[begin:end].tobytes().decode()
