"""Which client each id that a matcher finds belongs to, where clients have several.

A matcher knows each subscription by 12 bytes: the client's own id or, where it has many, an id for each. A row of its
index has both, so matches come with the owner of each id. A batch of messages may find a hundred thousand of them:
compiled code numbers the distinct owners, and puts together what each of them has.
"""

from __future__ import annotations

import secrets
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.matching.index.hashing import CLIENTS, SEED, file_clients, slot_of_client
from headrace.matching.index.segment import Clients, Ints, Wide
from headrace.matching.matches import Matches
from headrace.wire.numba_kernels import INDEX, INTS, WIDE, WIDE_IN, kernel, types

FIRST_SLOTS: Final = 1 << 9
"""Slots of the first table of owners. It grows with them, so that it stays in the processor's cache if they are few."""

_FOUND: Final = types.Array(types.uint32, 2, "C", readonly=True)

# Like Python's own hash seed, it decides where things are filed, not what is found.
_SEED: Final = np.uint64(secrets.randbits(64))


def number_owners(matches: Matches) -> tuple[Clients, Ints]:
    """The distinct owners of all ids that messages match, and for each of these ids which of them it is."""
    return number_ids(matches.clients if matches.owners is None else matches.owners)


def number_ids(ids: npt.NDArray[np.uint8]) -> tuple[Clients, Ints]:
    """The distinct ids among some, in the order in which they occur, and for each which of them it is."""
    found = ids.view(np.uint32)
    distinct, numbers = np.empty(found.shape, np.uint32), np.empty(len(found), np.int32)
    slots = np.zeros(FIRST_SLOTS, np.int32)
    at, count = number_some(found, 0, 0, _SEED, slots, distinct, numbers)
    while at < len(found):
        slots = np.zeros(8 * len(slots), np.int32)
        file_clients(distinct[:count], slots, _SEED)
        at, count = number_some(found, at, count, _SEED, slots, distinct, numbers)
    return distinct[:count], numbers


def merge_owners(matches: Matches) -> Matches:
    """Replace the ids that messages match by their owners, each once a message."""
    if matches.owners is None:
        return matches
    distinct, numbers = number_owners(matches)
    offsets = np.zeros(len(matches.offsets), np.int64)
    clients, seen = np.empty((len(numbers), 3), np.uint32), np.zeros(len(distinct), np.int64)
    kept = take_once(matches.offsets, numbers, distinct, seen, offsets, clients)
    return Matches(offsets, clients[:kept].view(np.uint8))


@kernel(types.UniTuple(INDEX, 2)(_FOUND, INDEX, INDEX, SEED, INTS, CLIENTS, INTS))
def number_some(
    found: Clients, at: int, count: int, seed: np.uint64, slots: Ints, distinct: Clients, numbers: Ints
) -> tuple[int, int]:
    """Number ids from ``at`` on in the order in which they first occur, until half of the slots are used.

    Return how far that went, and how many distinct ones there are.
    """
    while at < len(found) and 2 * count < len(slots):
        first, second, third = found[at, 0], found[at, 1], found[at, 2]
        slot = slot_of_client(distinct, slots, first, second, third, seed)
        if slots[slot] == 0:
            distinct[count, 0], distinct[count, 1], distinct[count, 2] = first, second, third
            count += 1
            slots[slot] = count
        numbers[at] = slots[slot] - 1
        at += 1
    return at, count


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
