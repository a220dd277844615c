"""The cover of a commit: the number of its rows, and a digest that does not depend on their order or parts.

A query that runs a batch again stages its rows again, perhaps in other parts and another order. The same rows have the
same cover; other rows, for example after an older checkpoint was restored, have another. Each row is hashed by its
payload, topic, attributes and numbers, and the digest is the sum of the hashes. It detects mistakes, but not an
attacker who looks for other rows with the same sum.

The hashes of many rows are computed at once, eight bytes at a time: some hundred megabytes a second, in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.message import Batch, Bytes, Offsets, bytes_of, offsets_of

_Hashes = npt.NDArray[np.uint64]

_ODD: Final = tuple(
    np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xD1342543DE82EF95, 0xA24BAED4963EE407, 0x8CB92BA72F3D8DD7)
)
_HALF: Final = np.uint64(32)
_WORD: Final = 8
_BITS: Final = 1 << 62
"""Bits of a digest: few enough for every protocol that carries it."""
_MASKS: Final = np.array(
    [0xFFFFFFFFFFFFFFFF, *((1 << 8 * count) - 1 for count in range(1, _WORD))], np.uint64
)
"""Masks for a row's last word, by the row's length modulo 8."""


class Cover(NamedTuple):
    """A number of rows, and their digest."""

    rows: int
    digest: int

    @classmethod
    def total(cls, covers: Iterable[Cover]) -> Cover:
        """Return the cover of all rows of several covers."""
        rows = digest = 0
        for each in covers:
            rows += each.rows
            digest += each.digest
        return cls(rows, digest % _BITS)


def cover_of(batches: Iterable[Batch]) -> Cover:
    """Return the cover of the rows of some batches."""
    return Cover.total(Cover(len(batch), int(_rows(batch).sum(dtype=np.uint64))) for batch in batches)


def _rows(batch: Batch) -> _Hashes:
    """Return the hash of each row."""
    hashes = _mixed(_items(batch.run.data, batch.run.offsets), 0)
    columns = batch.columns
    names = [] if columns is None else columns.schema.names
    if columns is not None and "topic" in names:
        topics = columns.column("topic")
        hashes += _mixed(_items(bytes_of(topics), offsets_of(topics)), 1)
    else:
        topic = batch.topic.encode()
        one = _items(np.frombuffer(topic, np.uint8), np.array([0, len(topic)], np.int32))
        hashes += _mixed(one, 1)
    for place, name in enumerate(("attributes", "numbers"), 2):
        if columns is not None and name in names:
            # An empty map adds nothing, since rows may come without the column.
            hashes += _maps(columns.column(name)) * _ODD[place]
    return _mixed(hashes, 0)


def _maps(column: pa.MapArray) -> _Hashes:
    """Return the hash of each map, which is the sum of its entries' hashes; 0 for an empty map."""
    offsets = offsets_of(column).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    keys = column.keys.slice(begin, end - begin)
    items = column.items.slice(begin, end - begin)
    hashes = _mixed(_items(bytes_of(keys), offsets_of(keys)), 0)
    if pa.types.is_float64(items.type):
        hashes += _mixed(items.to_numpy().view(np.uint64), 1)
    else:
        hashes += _mixed(_items(bytes_of(items), offsets_of(items)), 1)
    return _sums(_mixed(hashes, 2), np.diff(offsets))


def _items(data: Bytes, offsets: Offsets) -> _Hashes:
    """Return the hash of each text or payload."""
    begin, end = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    counts = (lengths + (_WORD - 1)) // _WORD
    # Zeros after the last one, so that its last word can be read whole.
    content = np.zeros(end - begin + _WORD, np.uint8)
    content[: end - begin] = data[begin:end]
    every = np.ndarray(end - begin + 1, "<u8", content, strides=(1,))
    ends = np.cumsum(counts, dtype=np.int32)
    count = int(ends[-1]) if len(ends) else 0
    # The index of each word in its row, and the word's beginning.
    within = np.arange(count, dtype=np.int32)
    places = within * np.int32(_WORD)
    within -= np.repeat(ends - counts, counts)
    places += np.repeat(offsets[:-1] - np.int32(begin) - _WORD * (ends - counts), counts)
    words = every.take(places)
    some = counts > 0
    words[ends[some] - 1] &= _MASKS[lengths[some] % _WORD]
    weights = within.astype(np.uint64)
    weights *= _ODD[0]
    words ^= weights
    return _sums(_mixed(words, 1), counts) + lengths.astype(np.uint64) * _ODD[2]


def _sums(values: _Hashes, counts: npt.NDArray[np.signedinteger]) -> _Hashes:
    """Return the sum of the first ``counts[0]`` values, of the next ``counts[1]``, and so on."""
    sums = np.zeros(len(counts), np.uint64)
    some = counts > 0
    if some.any():
        sums[some] = np.add.reduceat(values, (np.cumsum(counts) - counts)[some])
    return sums


def _mixed(values: _Hashes, how: int) -> _Hashes:
    """Let every bit affect all others; ``how`` makes the parts of a row differ."""
    mixed = values + _ODD[how]
    mixed *= _ODD[(how + 1) % len(_ODD)]
    mixed ^= mixed >> _HALF
    mixed *= _ODD[(how + 2) % len(_ODD)]
    mixed ^= mixed >> _HALF
    return mixed
