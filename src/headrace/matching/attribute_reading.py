"""Kernels that read attributes out of Arrow's buffers, and the form that they are read into.

Messages are untrusted: every read of their bytes is between offsets of an Arrow array, which must be valid.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.matching.index.hashing import FLOATS, HASHES, PRIME, SEED, Hashes, find_or_add, mixed
from headrace.matching.index.segment import Bytes, Floats, Ints, Wide
from headrace.wire.numba_kernels import BYTES, BYTES_IN, INDEX, INTS, INTS_2, OFFSETS_IN, WIDE, kernel, types


class Facts(NamedTuple):
    """The attributes of a batch's messages.

    ``first[s, i]`` up to ``first[s, i + 1]`` are message ``i``'s attributes in source ``s``. Later ones, and later
    sources, win.
    """

    textual: Bytes
    """Whether a source has strings, or numbers."""
    first: npt.NDArray[np.int32]
    name: Ints
    """The index of the attribute's name among the batch's names; -1 if no subscription names it."""
    number: Floats
    bits: Wide
    """Numbers as the integers that equal numbers share."""
    hash: Hashes
    begin: Wide
    end: Wide
    data: Bytes
    """The strings, and their hashes."""


FACTS: Any = types.NamedTuple([BYTES, INTS_2, INTS, FLOATS, WIDE, HASHES, WIDE, WIDE, BYTES], Facts)


@kernel(INDEX(OFFSETS_IN, BYTES_IN, INDEX, INDEX, BYTES, WIDE, INTS, INDEX, SEED, INTS, INDEX))
def read_names(
    offsets: Ints,
    data: Bytes,
    begin: int,
    end: int,
    names: Bytes,
    name_begins: Wide,
    slots: Ints,
    count: int,
    seed: np.uint64,
    out: Ints,
    at: int,
) -> int:
    """Number the names of entries ``begin`` to ``end`` of a map's keys; write them from ``out[at]`` on.

    Most messages name their attributes in the same order: a name is first compared with the one that followed its
    predecessor last time, and looked up only if it differs.
    """
    following = np.full(64, np.int32(-1))
    before = 0
    for entry in range(begin, end):
        start = offsets[entry]
        size = offsets[entry + 1] - start
        guess = following[before]
        same = guess >= 0 and name_begins[guess + 1] - name_begins[guess] == size
        if same:
            word = name_begins[guess]
            for offset in range(size):
                if names[word + offset] != data[start + offset]:
                    same = False
                    break
        code = int(guess)
        if not same:
            code = find_or_add(data, start, start + size, names, name_begins, slots, count, seed)
            if code == count:
                count += 1
            following[before] = code
        out[at + entry - begin] = code
        before = code & 63
    return count


@kernel(INDEX(OFFSETS_IN, BYTES_IN, INDEX, INDEX, SEED, INTS, HASHES, WIDE, WIDE, BYTES, INDEX, INDEX))
def read_texts(
    offsets: Ints,
    data: Bytes,
    begin: int,
    end: int,
    seed: np.uint64,
    name: Ints,
    hashes: Hashes,
    begins: Wide,
    ends: Wide,
    out: Bytes,
    at: int,
    used: int,
) -> int:
    """Copy and hash the strings ``begin`` to ``end`` that some subscription names, as facts from ``at`` on."""
    for entry in range(begin, end):
        fact = at + entry - begin
        if name[fact] < 0:
            continue
        begins[fact] = used
        state = seed
        for place in range(offsets[entry], offsets[entry + 1]):
            state = (state ^ np.uint64(data[place])) * PRIME
            out[used] = data[place]
            used += 1
        hashes[fact] = mixed(state)
        ends[fact] = used
    return used
