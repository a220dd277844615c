"""The tail: the newest subscriptions, not indexed yet, which every message is checked against one by one.

It is a :class:`Segment` whose arrays have room to grow, with all its rows in one group. Subscriptions are appended; a
match reads only the rows that were there when it began. A full tail is indexed and a new one begun, so that checking it
stays cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from headrace.matching.index import hashing
from headrace.matching.index.hashing import WordTable
from headrace.matching.index.segment import ALIVE, Floats, Ints, Segment, Wide
from headrace.matching.index.shapes import NO_SHAPES
from headrace.wire.sdk.fence import Fence, compile_fence
from headrace.wire.sdk.predicate import Between, Equals, Inside, Predicate, compile_predicate
from headrace.wire.sdk.region import box_of

ROWS: Final = 1024
"""Subscriptions of a full tail: checking one takes some nanoseconds per message."""

IDS: Final = 3
"""Integers of an id."""

A = TypeVar("A", Ints, Wide, Floats)

_PADDING: Final = 16
"""Padding after the last entry: entries are checked ``kernels.LEAF`` at a time."""

_NO_INTS = np.zeros(0, np.int32)
_NO_WIDE = np.zeros(0, np.int64)
_NO_BOXES = np.zeros((4, 0), np.float32)
_NO_SLOTS = np.zeros(1, np.int32)


class Tail:
    """Up to ``rows`` subscriptions in the order in which they came."""

    def __init__(self, seed: np.uint64, rows: int = ROWS) -> None:
        self._clients = np.empty((rows, IDS), np.uint32)
        self.died = np.full(rows, ALIVE, np.int64)
        self._start = np.zeros(rows + 1, np.int32)
        self._dim = np.empty(2 * rows, np.int32)
        self._lo = np.empty(2 * rows)
        self._hi = np.empty(2 * rows)
        self._pool = np.empty(64, np.int64)
        self._pooled = 0
        self._entry = np.arange(rows, dtype=np.int32)
        # The entries have no approximate intervals: the rows are few and soon indexed.
        self._near = np.full((4, rows + _PADDING), -np.inf, np.float32)
        self._near[1::2] = np.inf
        self._near_dims = np.full((2, rows + _PADDING), -1, np.int32)
        self._names = WordTable(seed)
        self._words = WordTable(seed)
        self._rows: dict[bytes, int] = {}
        self.count = 0

    find_client = staticmethod(hashing.find_client)
    """Finds a client's row in a segment; it is here because a tail's owner has imported numba."""

    @property
    def full(self) -> bool:
        """Whether no further subscription fits."""
        return self.count == len(self._clients)

    def append(self, client: bytes, predicates: Mapping[str, Predicate], owner: bytes | None = None) -> None:
        """Append a subscription, of an owner if that is another. There must be room."""
        row = self.count
        at = int(self._start[row])
        # A region has three: its bounding box, by which it is indexed, and the exact check.
        most = 3 * len(predicates)
        if at + most > len(self._dim):
            room = 2 * (at + most)
            self._dim = _grown(self._dim, room)
            self._lo, self._hi = _grown(self._lo, room), _grown(self._hi, room)
        dim, lo, hi = self._dim, self._lo, self._hi
        for name, predicate in predicates.items():
            attribute = self._names.code(name)
            if type(predicate) is Equals:
                dim[at] = 2 * attribute
                lo[at] = hi[at] = self._words.code(predicate.value)
            elif type(predicate) is Between:
                dim[at] = 2 * attribute + 1
                lo[at] = predicate.low
                hi[at] = predicate.high
            else:
                if isinstance(predicate, Inside | Fence):
                    across, up = predicate.indexed_by(name)
                    dim[at], dim[at + 1] = 2 * self._names.code(across) + 1, 2 * self._names.code(up) + 1
                    lo[at], hi[at], lo[at + 1], hi[at + 1] = box_of(predicate.region)
                    at += 2
                dim[at] = -1
                if isinstance(predicate, Fence):
                    program = compile_fence(predicate, name, self._names.code)
                else:
                    program = compile_predicate(predicate, attribute, self._words.code, self._names.code)
                lo[at] = hi[at] = self._write(program)
            at += 1
        if owner is not None and self._clients.shape[1] == IDS:
            self._clients = np.tile(self._clients, 2)
        owned = self._clients.shape[1] > IDS
        self._clients[row] = np.frombuffer(client + (owner or client) if owned else client, np.uint32)
        self._start[row + 1] = at
        self._rows[client] = row
        self.count = row + 1

    def find(self, client: bytes) -> int | None:
        """The newest row of a client, dead or alive."""
        return self._rows.get(client)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; the words' Python strings are a few hundred kilobytes at most."""
        return self.segment(len(self._clients)).nbytes

    def segment(self, count: int | None = None) -> Segment:
        """The first ``count`` rows as a segment; all of them by default. It shares memory with the tail."""
        count = self.count if count is None else count
        names, words = self._names.table, self._words.table
        # As many as fit: names may be added during a match.
        attributes = len(names.begin) - 1
        end = int(self._start[count])
        return Segment(
            clients=self._clients[:count],
            died=self.died[:count],
            start=self._start[: count + 1],
            client_slots=_NO_SLOTS,
            dim=self._dim[:end],
            lo=self._lo[:end],
            hi=self._hi[:end],
            pool=self._pool,
            shape=NO_SHAPES.of,
            shapes=NO_SHAPES.numbers,
            planes=NO_SHAPES.planes,
            entry=self._entry[:count],
            group_begin=np.array((0, count), np.int32),
            group_dims=np.full((1, 2), -1, np.int32),
            group_settled=np.zeros(1, np.int32),
            group_second=np.zeros(1, np.uint8),
            group_node=np.zeros(1, np.int32),
            near=self._near,
            near_dims=self._near_dims,
            boxes=_NO_BOXES,
            # One group, which every message visits.
            dim_group=np.ones(2 * attributes + 1, np.int32),
            key_kind=_NO_INTS,
            key_value=_NO_WIDE,
            key_group=_NO_SLOTS,
            key_slots=_NO_SLOTS,
            attribute_keys=np.zeros(attributes, np.uint8),
            prefix_begin=np.zeros(attributes + 1, np.int32),
            prefix_length=_NO_INTS,
            name_data=names.data,
            name_begin=names.begin,
            name_slots=names.slots,
            word_data=words.data,
            word_begin=words.begin,
            word_slots=words.slots,
        )

    def _write(self, program: Sequence[int]) -> int:
        at = self._pooled
        if at + len(program) > len(self._pool):
            self._pool = _grown(self._pool, 2 * (at + len(program)))
        self._pool[at : at + len(program)] = program
        self._pooled += len(program)
        return at


def _grown(array: A, size: int) -> A:
    larger: A = np.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger
