"""Which client owns each id that a matcher finds, where clients have several.

A matcher knows each subscription by 12 bytes: the client's own id or, where it has many, an id for each. A batch of
messages may find a hundred thousand of them, so compiled code looks up their owners and puts those together.

All ids are rows of one hash table, and an id's owner is another row of it; the owner of a client's own id is that row
itself. An id that is not in the table is its own owner.

Invariants:

- One thread changes the table; any thread may look up meanwhile. Rows are appended and never move, and a full table is
  replaced by another in one assignment.
- A released id becomes its own owner, as if it were not there; a full table is copied without such ids.
"""

from __future__ import annotations

import secrets
import struct
from typing import Final, NamedTuple

import numpy as np

from headrace.matching.index.hashing import CLIENTS, SEED, file_clients, find_client, slot_of_client
from headrace.matching.index.segment import Clients, Ints, Wide
from headrace.matching.matches import CLIENT_BYTES, Matches
from headrace.wire.numba_kernels import INDEX, INTS, WIDE, WIDE_IN, kernel, types

FIRST_ROOM: Final = 64
"""Rows of the first table, and the fewest that a new table has free."""

_PAIR: Final = types.Array(types.uint32, 1, "C", readonly=True)
_FOUND: Final = types.Array(types.uint32, 2, "C", readonly=True)


class _Table(NamedTuple):
    ids: Clients
    """Each 12 bytes, as three integers."""
    owners: Ints
    """The row of each id's owner."""
    slots: Ints
    """Open addressing: a row plus 1, or 0; a power of two of them, at most half used."""


class Owners:
    """The owners of ids. Most clients have one id, their own, and are not here."""

    def __init__(self, *, seed: int | None = None) -> None:
        self._seed = np.uint64(secrets.randbits(64) if seed is None else seed)
        self._table = _empty(FIRST_ROOM)
        self._count = 0

    def add(self, each: bytes, owner: bytes) -> None:
        """Note the owner of an id; both have 12 bytes, and an owner owns itself."""
        if self._count + 2 > len(self._table.ids):
            self._grow()
        pair = np.frombuffer(each + owner, np.uint32)
        self._count = file_owned(*self._table, self._count, pair, self._seed)

    def release(self, each: bytes) -> None:
        """Forget the owner of an id, if it has another than itself."""
        if self._count:
            ids, owners, slots = self._table
            first, second, third = _WORDS.unpack(each)
            row = find_client(ids, slots, first, second, third, self._seed)
            if row >= 0:
                owners[row] = row

    def number(self, matches: Matches) -> tuple[Clients, Ints]:
        """The distinct owners of all ids that messages match, and for each of these ids which of them it is."""
        table, found = self._table, matches.clients.view(np.uint32)
        # Made of zeros, they take memory only where they are written to.
        slots = np.zeros(_slots(len(found)), np.int32)
        known = np.zeros(len(table.ids), np.int32)
        distinct, numbers = np.empty(found.shape, np.uint32), np.empty(len(found), np.int32)
        count = number_owners(*table, found, self._seed, known, slots, distinct, numbers)
        return distinct[:count], numbers

    def merge(self, matches: Matches) -> Matches:
        """Replace the ids that messages match by their owners, each once a message."""
        if not self._count or not len(matches.clients):
            return matches
        distinct, numbers = self.number(matches)
        offsets = np.zeros(len(matches.offsets), np.int64)
        clients, seen = np.empty((len(numbers), 3), np.uint32), np.zeros(len(distinct), np.int64)
        kept = take_once(matches.offsets, numbers, distinct, seen, offsets, clients)
        return Matches(offsets, clients[:kept].view(np.uint8))

    def _grow(self) -> None:
        """Copy the ids that have another owner, and those owners, to a table with as much room again."""
        ids, owners, _ = self._table
        every = np.arange(self._count, dtype=np.int32)
        owned = np.flatnonzero(owners[: self._count] != every)
        kept = np.union1d(owned, owners[owned])
        larger = _empty(2 * len(kept) + FIRST_ROOM)
        larger.ids[: len(kept)] = ids[kept]
        larger.owners[: len(kept)] = np.searchsorted(kept, owners[kept])
        file_clients(larger.ids[: len(kept)], larger.slots, self._seed)
        self._table, self._count = larger, len(kept)


_WORDS: Final = struct.Struct("=III")


def _empty(room: int) -> _Table:
    slots = np.zeros(_slots(room), np.int32)
    return _Table(np.empty((room, CLIENT_BYTES // 4), np.uint32), np.empty(room, np.int32), slots)


def _slots(room: int) -> int:
    return 1 << (2 * room).bit_length()


@kernel(INDEX(CLIENTS, INTS, INTS, INDEX, _PAIR, SEED))
def file_owned(ids: Clients, owners: Ints, slots: Ints, count: int, pair: Clients, seed: np.uint64) -> int:
    """Note the owner of an id, which is after it in ``pair``, in a table with room for both; return the new count."""
    owner = -1
    for at in (3, 0):
        slot = slot_of_client(ids, slots, pair[at], pair[at + 1], pair[at + 2], seed)
        row = slots[slot] - 1
        if row < 0:
            row = count
            count += 1
            ids[row, 0], ids[row, 1], ids[row, 2] = pair[at], pair[at + 1], pair[at + 2]
            owners[row] = row
        if at == 0:
            owners[row] = owner
        # Last, so that a concurrent lookup finds the row whole or not at all.
        slots[slot] = row + 1
        owner = row
    return count


@kernel(INDEX(CLIENTS, INTS, INTS, _FOUND, SEED, INTS, INTS, CLIENTS, INTS))
def number_owners(
    ids: Clients,
    owners: Ints,
    slots: Ints,
    found: Clients,
    seed: np.uint64,
    known: Ints,
    own_slots: Ints,
    distinct: Clients,
    numbers: Ints,
) -> int:
    """Number the owners of ids in the order in which they occur: fill in each id's number, and the owners.

    Return how many there are. A row's owner is ``known`` by its number plus 1, and an id that is not in the table is
    in slots of this call's own; both are zeros at first.
    """
    count = 0
    for index in range(len(found)):
        first, second, third = found[index, 0], found[index, 1], found[index, 2]
        row = slots[slot_of_client(ids, slots, first, second, third, seed)] - 1
        if row >= 0:
            owner = owners[row]
            if known[owner] == 0:
                for word in range(3):
                    distinct[count, word] = ids[owner, word]
                count += 1
                known[owner] = count
            numbers[index] = known[owner] - 1
        else:
            slot = slot_of_client(distinct, own_slots, first, second, third, seed)
            if own_slots[slot] == 0:
                for word in range(3):
                    distinct[count, word] = found[index, word]
                count += 1
                own_slots[slot] = count
            numbers[index] = own_slots[slot] - 1
    return count


@kernel(INDEX(WIDE_IN, INTS, CLIENTS, WIDE, WIDE, CLIENTS))
def take_once(offsets: Wide, numbers: Ints, distinct: Clients, seen: Wide, ends: Wide, out: Clients) -> int:
    """Write the distinct owners of each message, and where they end; ``seen`` is zeros. Return how many there are."""
    kept = 0
    for message in range(len(offsets) - 1):
        for index in range(offsets[message], offsets[message + 1]):
            number = numbers[index]
            if seen[number] != message + 1:
                seen[number] = message + 1
                for word in range(3):
                    out[kept, word] = distinct[number, word]
                kept += 1
        ends[message + 1] = kept
    return kept
