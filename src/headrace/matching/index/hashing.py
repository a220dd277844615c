"""Hash tables of words, clients and keys, as arrays.

All hashing is here, so that storing and looking up agree. Hashes begin with a matcher's own secret ``seed``, so that
peers cannot choose strings, ids or values that all fall into one slot. Tables use open addressing: a power of two of
slots, at most half of them used.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.matching.index.segment import Bytes, Clients, Ints, Wide, Words
from headrace.wire.numba_kernels import BYTES, BYTES_IN, INDEX, INTS, WIDE, inline, kernel, types

Hashes = npt.NDArray[np.uint64]

PRIME: Final = np.uint64(0x100000001B3)
_MIX_1: Final = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT: Final = np.uint64(33)

FLOATS = types.float64[::1]
FLOATS_2 = types.float64[:, ::1]
SINGLES = types.float32[::1]
NEAR = types.float32[:, ::1]
HASHES = types.uint64[::1]
CLIENTS = types.uint32[:, ::1]
SEED = types.uint64


@inline
def mixed(state: np.uint64) -> np.uint64:
    """A hash whose every bit depends on every bit of ``state``."""
    state ^= state >> _SHIFT
    state *= _MIX_1
    state ^= state >> _SHIFT
    state *= _MIX_2
    return state ^ (state >> _SHIFT)


@inline
def hash_text(data: Bytes, begin: int, end: int, state: np.uint64) -> np.uint64:
    """Add bytes to a hash, one by one, so that the hashes of all prefixes of a string cost one pass."""
    for at in range(begin, end):
        state = (state ^ np.uint64(data[at])) * PRIME
    return state


@inline
def find_word(
    data: Bytes, begin: int, end: int, hashed: np.uint64, words: Bytes, begins: Wide, slots: Ints
) -> int:
    """The code of a string, or -1."""
    mask = len(slots) - 1
    slot = np.int64(hashed & np.uint64(mask))
    size = end - begin
    while slots[slot] != 0:
        code = slots[slot] - 1
        at = begins[code]
        if begins[code + 1] - at == size:
            same = True
            for offset in range(size):
                if words[at + offset] != data[begin + offset]:
                    same = False
                    break
            if same:
                return int(code)
        slot = (slot + 1) & mask
    return -1


@inline
def _hash_key(kind: int, value: int, seed: np.uint64) -> np.uint64:
    return mixed(mixed(np.uint64(value) ^ seed) + np.uint64(kind))


@inline
def _hash_client(first: int, second: int, third: int, seed: np.uint64) -> np.uint64:
    return mixed(mixed((np.uint64(first) << np.uint64(32) | np.uint64(second)) ^ seed) + np.uint64(third))


@inline
def find_or_add(
    data: Bytes, begin: int, end: int, words: Bytes, begins: Wide, slots: Ints, count: int, seed: np.uint64
) -> int:
    """The code of ``data[begin:end]`` in a table of ``count`` words with room for one more; a new word is added."""
    hashed = mixed(hash_text(data, begin, end, seed))
    code = find_word(data, begin, end, hashed, words, begins, slots)
    if code >= 0:
        return code
    at = begins[count]
    for offset in range(end - begin):
        words[at + offset] = data[begin + offset]
    begins[count + 1] = at + end - begin
    slot = np.int64(hashed & np.uint64(len(slots) - 1))
    while slots[slot] != 0:
        slot = (slot + 1) & (len(slots) - 1)
    # Last, so that a concurrent lookup finds it whole or not at all.
    slots[slot] = count + 1
    return count


@kernel(types.int32(BYTES_IN, INDEX, INDEX, BYTES, WIDE, INTS, INDEX, SEED))
def intern(
    data: Bytes, begin: int, end: int, words: Bytes, begins: Wide, slots: Ints, count: int, seed: np.uint64
) -> int:
    """Do the same as :func:`find_or_add`, for one word."""
    return find_or_add(data, begin, end, words, begins, slots, count, seed)


@kernel(INDEX(BYTES, WIDE, BYTES, BYTES, WIDE, INTS, INDEX, SEED, INTS))
def intern_used(
    source: Bytes,
    begins: Wide,
    used: Bytes,
    words: Bytes,
    word_begins: Wide,
    slots: Ints,
    count: int,
    seed: np.uint64,
    codes: Ints,
) -> int:
    """Add the ``used`` words of one table to another; fill in their new ``codes``; return the new count."""
    for code in range(len(begins) - 1):
        codes[code] = -1
        if used[code]:
            found = find_or_add(
                source, begins[code], begins[code + 1], words, word_begins, slots, count, seed
            )
            codes[code] = found
            if found == count:
                count += 1
    return count


@kernel(types.void(BYTES, WIDE, BYTES, WIDE, INTS, SEED, INTS))
def find_names(
    data: Bytes, begins: Wide, names: Bytes, name_begins: Wide, slots: Ints, seed: np.uint64, found: Ints
) -> None:
    """Look names up in a segment: fill in the attribute of each, or -1."""
    for index in range(len(begins) - 1):
        hashed = mixed(hash_text(data, begins[index], begins[index + 1], seed))
        found[index] = find_word(data, begins[index], begins[index + 1], hashed, names, name_begins, slots)


@kernel(types.void(CLIENTS, INTS, SEED))
def file_clients(clients: Clients, slots: Ints, seed: np.uint64) -> None:
    """Fill the slots for clients, all distinct."""
    mask = len(slots) - 1
    for row in range(len(clients)):
        hashed = _hash_client(clients[row, 0], clients[row, 1], clients[row, 2], seed)
        slot = np.int64(hashed & np.uint64(mask))
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = row + 1


@inline
def slot_of_client(
    clients: Clients, slots: Ints, first: int, second: int, third: int, seed: np.uint64
) -> int:
    """The slot of a client: its own, or the empty one where it would be."""
    mask = len(slots) - 1
    slot = np.int64(_hash_client(first, second, third, seed) & np.uint64(mask))
    while slots[slot] != 0:
        row = slots[slot] - 1
        if clients[row, 0] == first and clients[row, 1] == second and clients[row, 2] == third:
            break
        slot = (slot + 1) & mask
    return int(slot)


@kernel(INDEX(CLIENTS, INTS, INDEX, INDEX, INDEX, SEED))
def find_client(clients: Clients, slots: Ints, first: int, second: int, third: int, seed: np.uint64) -> int:
    """The row of a client, or -1."""
    return int(slots[slot_of_client(clients, slots, first, second, third, seed)]) - 1


@kernel(INTS(INTS, WIDE, INTS, SEED, INTS))
def file_keys(kinds: Ints, values: Wide, slots: Ints, seed: np.uint64, codes: Ints) -> Ints:
    """Number distinct keys in order; fill in the code of each; return where each first occurs."""
    mask = len(slots) - 1
    firsts = np.empty(len(kinds), np.int32)
    count = 0
    for index in range(len(kinds)):
        slot = np.int64(_hash_key(kinds[index], values[index], seed) & np.uint64(mask))
        code = -1
        while slots[slot] != 0:
            other = firsts[slots[slot] - 1]
            if kinds[other] == kinds[index] and values[other] == values[index]:
                code = slots[slot] - 1
                break
            slot = (slot + 1) & mask
        if code < 0:
            code = count
            firsts[count] = index
            count += 1
            slots[slot] = count
        codes[index] = code
    return firsts[:count].copy()


@inline
def find_key(kinds: Ints, values: Wide, slots: Ints, kind: int, value: int, seed: np.uint64) -> int:
    """A key, or -1."""
    mask = len(slots) - 1
    slot = np.int64(_hash_key(kind, value, seed) & np.uint64(mask))
    while slots[slot] != 0:
        key = slots[slot] - 1
        if kinds[key] == kind and values[key] == value:
            return int(key)
        slot = (slot + 1) & mask
    return -1


class WordTable:
    """Words and their codes, growing.

    Readers keep the ``table`` they found and read it without a lock: new words are written after those they know, and a
    full table is replaced by a larger one, all three arrays at once.
    """

    def __init__(self, seed: np.uint64) -> None:
        self._seed = seed
        self._codes: dict[str, int] = {}
        self.table = _empty_words(16, 256)

    def code(self, text: str) -> int:
        """The code of a word; a new word is added."""
        known = self._codes.get(text)
        if known is not None:
            return known
        raw = np.frombuffer(text.encode(), np.uint8)
        count = len(self._codes)
        used = int(self.table.begin[count])
        if count + 1 == len(self.table.begin) or used + len(raw) > len(self.table.data):
            self._grow(count, used + len(raw))
        code: int = intern(raw, 0, len(raw), *self.table, count, self._seed)
        self._codes[text] = code
        return code

    def _grow(self, count: int, size: int) -> None:
        larger = _empty_words(2 * count, 2 * size)
        used, codes = np.ones(count, np.uint8), np.empty(count, np.int32)
        begin = self.table.begin[: count + 1]
        intern_used(self.table.data, begin, used, *larger, 0, self._seed, codes)
        self.table = larger


def _empty_words(words: int, size: int) -> Words:
    slots = np.zeros(1 << (2 * words).bit_length(), np.int32)
    return Words(np.empty(size, np.uint8), np.zeros(words + 1, np.int64), slots)
