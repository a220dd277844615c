"""Kernels of tracks: which messages are sightings of a key, and where each key was seen before.

A table of keys has open addressing, a power of two of slots, of which some are free. It knows a key by 64 bits of a
keyed hash of it and its topic: keys may be long, and a peer that does not know the seed cannot choose two alike.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.matching.attribute_reading import FACTS, Facts
from headrace.matching.index.hashing import FLOATS, FLOATS_2, HASHES, Hashes, mixed
from headrace.matching.index.segment import Floats, Ints, Wide
from headrace.wire.numba_kernels import INDEX, INTS, INTS_2, WIDE, kernel, types

Matrix = npt.NDArray[np.float64]

_NUMBER: Final = np.uint64(0x9E3779B97F4A7C15)
"""Tells a key that is a number from one that is a string."""


class Table(NamedTuple):
    """The newest sighting of each key."""

    keys: Hashes
    """Hashes of keys; 0 in a slot that is not used."""
    seqs: Wide
    xs: Floats
    ys: Floats


TABLE = types.NamedTuple([HASHES, WIDE, FLOATS, FLOATS], Table)


def empty_table(slots: int) -> Table:
    """A table without keys."""
    return Table(np.zeros(slots, np.uint64), np.zeros(slots, np.int64), np.zeros(slots), np.zeros(slots))


@kernel(types.void(FACTS, INTS, INTS_2))
def find_facts(facts: Facts, attribute_of: Ints, out: Ints) -> None:
    """Fill in each message's fact for each attribute: twice its index, and one more for a string; -1 for none."""
    textual, first, names = facts.textual, facts.first, facts.name
    out[:] = -1
    for source in range(len(textual)):
        for message in range(len(out)):
            for fact in range(first[source, message], first[source, message + 1]):
                attribute = attribute_of[names[fact]] if names[fact] >= 0 else -1
                if attribute >= 0:
                    out[message, attribute] = 2 * fact + int(textual[source])


@kernel(INDEX(FACTS, INTS_2, HASHES, INTS, INDEX, types.int64, types.int64, types.boolean, TABLE, FLOATS_2))
def follow(
    facts: Facts,
    found: Ints,
    topics: Hashes,
    attributes: Ints,
    begin: int,
    seq: int,
    window: int,
    record: bool,
    table: Table,
    out: Matrix,
) -> int:
    """Fill in the coordinates and the number of the previous sighting of messages from ``begin`` on.

    The number is 0 if there is no previous one within the window, and NaN if the message is no sighting. Message
    ``begin`` has the number ``seq``. ``attributes`` are those of the key, x and y. If asked to ``record`` them, note
    these sightings in the table, which must have room, and return how many slots more it uses.
    """
    keys, seqs, xs, ys = table
    mask = len(keys) - 1
    more = 0
    for message in range(begin, len(found)):
        out[2, message] = np.nan
        key, across, up = (
            found[message, attributes[0]],
            found[message, attributes[1]],
            found[message, attributes[2]],
        )
        # Coordinates are numbers; a key may be either.
        if key < 0 or across < 0 or up < 0 or across & 1 or up & 1:
            continue
        x, y = facts.number[across >> 1], facts.number[up >> 1]
        if np.isnan(x) or np.isnan(y):
            continue
        if key & 1:
            hashed = facts.hash[key >> 1]
        elif np.isnan(facts.number[key >> 1]):
            continue
        else:
            hashed = mixed(np.uint64(facts.bits[key >> 1]) ^ _NUMBER)
        hashed = mixed(hashed ^ topics[message])
        if hashed == 0:
            hashed = np.uint64(1)
        slot = np.int64(hashed & np.uint64(mask))
        while keys[slot] != 0 and keys[slot] != hashed:
            slot = (slot + 1) & mask
        number = seq + message - begin
        out[2, message] = 0.0
        if keys[slot] != 0 and seqs[slot] >= number - window:
            out[0, message], out[1, message], out[2, message] = xs[slot], ys[slot], seqs[slot]
        if record:
            more += 1 if keys[slot] == 0 else 0
            keys[slot], seqs[slot], xs[slot], ys[slot] = hashed, number, x, y
    return more


@kernel(INDEX(TABLE, types.int64, TABLE))
def refill(old: Table, oldest: int, new: Table) -> int:
    """Copy the sightings from ``oldest`` on to an empty table, which must have room; return how many there are."""
    count = 0
    mask = len(new.keys) - 1
    for at in range(len(old.keys)):
        if old.keys[at] != 0 and old.seqs[at] >= oldest:
            slot = np.int64(old.keys[at] & np.uint64(mask))
            while new.keys[slot] != 0:
                slot = (slot + 1) & mask
            new.keys[slot], new.seqs[slot] = old.keys[at], old.seqs[at]
            new.xs[slot], new.ys[slot] = old.xs[at], old.ys[at]
            count += 1
    return count
