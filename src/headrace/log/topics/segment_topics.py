"""Which topics a sealed segment holds, and where: a file beside it, so that a reader of few topics skips the rest.

``N.topics`` has one of two forms. With **names**, it lists the segment's topics, and for each the record batches that
hold it, with the first and the last row and how many there are. A segment with too many topics for that has
**hashes**: for each record batch a Bloom filter of its topics, which tells whether a name is certainly not there.
``docs/log.md`` has the layout.

The file is a hint, never the truth: every row that it leads to is judged by its own topic. It is bound to its segment
by the checksums of the record batches. One that is missing, damaged or of another segment is not used, and the hub
rewrites it; meanwhile readers look at every row.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.checksum import crc32c
from headrace.message import bytes_of, offsets_of

MAX_NAMES: Final = 1 << 16
MAX_PLACES: Final = 1 << 18
MAX_TEXT: Final = 4 << 20
"""Limits of topics, places of topics and bytes of topics for an index with names: some MiB."""

BITS: Final = 16
"""Bits of a Bloom filter for each topic: about one absent name in a thousand passes it."""

_PROBES: Final = 8
"""Bits that each topic sets."""

_MAGIC: Final = b"HRTOPIC\x02"
_HEAD: Final = struct.Struct("<8sIIIIII")
_NAMES, _HASHES = 0, 1
_PLACE: Final = np.dtype([("batch", "<u4"), ("first", "<u4"), ("last", "<u4"), ("rows", "<u4")])

_CHOICES: Final = 32
"""Readers' choices whose places are cached, for each segment."""

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)

Wide = npt.NDArray[np.uint64]
Places = npt.NDArray[Any]


class UnusableIndexError(Exception):
    """The reason why a file is no index of topics for its segment."""


class TopicChoice(Protocol):
    """The topics a reader wants (:class:`headrace.hub.topic_test.TopicTest`); equal choices choose the same topics."""

    @property
    def names(self) -> frozenset[str] | None:
        """The topics, if they can be listed."""

    def mask(self, topics: pa.Array) -> npt.NDArray[np.bool_]:
        """Return for each topic whether it is wanted."""

    def __hash__(self) -> int:
        """Equal choices have equal hashes."""


class ChosenRows(NamedTuple):
    """Rows that may be of a chosen topic: of each record batch in ``numbers``, those from ``first`` to ``last``."""

    numbers: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]


class TopicIndex:
    """The topics of one sealed segment."""

    def __init__(self, data: bytes, counts: npt.NDArray[Any]) -> None:
        """Take the checked bytes of a file; ``counts`` are the rows of each record batch."""
        self.size = len(data)
        _, _, form, batches, names, places, text = _HEAD.unpack_from(data)
        self._counts = counts.astype(np.int64)
        self._chosen: dict[TopicChoice, ChosenRows | None] = {}
        at = _HEAD.size
        self.names: pa.Array | None = None
        """The segment's topics, if the index has names."""
        if form == _NAMES:
            self._begins = np.frombuffer(data, "<u4", names + 1, at).astype(np.int64)
            offsets = np.frombuffer(data, "<i4", names + 1, at + 4 * (names + 1))
            at += 8 * (names + 1)
            self._places = np.frombuffer(data, _PLACE, places, at)
            content = data[at + places * _PLACE.itemsize : at + places * _PLACE.itemsize + text]
            self.names = pa.StringArray.from_buffers(names, pa.py_buffer(offsets), pa.py_buffer(content))
        else:
            sizes = np.frombuffer(data, "<u4", batches, at).astype(np.uint64)
            self._bits = np.frombuffer(data, np.uint8, text, at + 4 * batches)
            self._ends = np.cumsum(sizes)
            self._sizes = sizes

    def chosen(self, choice: TopicChoice) -> ChosenRows | None:
        """Return where topics of a choice may be; ``None`` if that is not known."""
        try:
            return self._chosen[choice]
        except KeyError:
            found = self._named(choice) if self.names is not None else self._hashed(choice)
            if len(self._chosen) >= _CHOICES:
                self._chosen.clear()
            self._chosen[choice] = found
            return found

    def counts(self) -> tuple[pa.Array, npt.NDArray[np.int64]] | None:
        """Return the topics, and how many rows each has; ``None`` if the index has no names."""
        if self.names is None:
            return None
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._places["rows"], dtype=np.int64)])
        return self.names, sums[self._begins[1:]] - sums[self._begins[:-1]]

    def _named(self, choice: TopicChoice) -> ChosenRows:
        names = np.flatnonzero(choice.mask(self.names))
        begins, ends = self._begins[names], self._begins[names + 1]
        counts = ends - begins
        before = np.cumsum(counts) - counts
        places = self._places[np.repeat(begins - before, counts) + np.arange(int(counts.sum()))]
        order = np.argsort(places["batch"], kind="stable")
        numbers, starts = np.unique(places["batch"][order].astype(np.int64), return_index=True)
        if not len(numbers):
            return ChosenRows(numbers, numbers, numbers)
        first = np.minimum.reduceat(places["first"][order].astype(np.int64), starts)
        last = np.maximum.reduceat(places["last"][order].astype(np.int64), starts)
        return ChosenRows(numbers, first, last)

    def _hashed(self, choice: TopicChoice) -> ChosenRows | None:
        if choice.names is None:
            return None
        found = np.zeros(len(self._counts), np.bool_)
        bits, starts = self._sizes * np.uint64(8), self._ends - self._sizes
        for value in hashes(pa.array(sorted(choice.names), pa.string())):
            here = bits > 0
            for place in _probes(np.broadcast_to(value, bits.shape), np.maximum(bits, 1)):
                at = np.where(here, starts + (place >> np.uint64(3)), 0).astype(np.int64)
                here &= (self._bits[at] >> (place & np.uint64(7)).astype(np.uint8)) & 1 == 1
            found |= here
        numbers = np.flatnonzero(found)
        return ChosenRows(numbers, np.zeros(len(numbers), np.int64), self._counts[numbers] - 1)


class TopicIndexBuilder:
    """Gathers the topics of a segment's record batches, in their order."""

    def __init__(self) -> None:
        self._names: dict[str, int] | None = {}
        """Each topic's number, while there are few enough to have names."""
        self._text = 0
        self._batches = 0
        self._places: list[tuple[npt.NDArray[np.int64], Places]] = []
        """For each record batch its topics, by number, and where in it they are."""
        self._filters: list[bytes] = []
        self._held = 0

    def add(self, topics: pa.Array) -> None:
        """Add the topics of the next record batch, one for each row."""
        encoded = topics.dictionary_encode()
        distinct, codes = encoded.dictionary, encoded.indices.to_numpy()
        number, self._batches = self._batches, self._batches + 1
        if self._names is not None and not self._few(distinct):
            self._forget_names()
        if self._names is None:
            self._filters.append(_bloom(distinct))
            return
        names = self._names
        ids = np.array([names.setdefault(name, len(names)) for name in distinct.to_pylist()], np.int64)
        places = np.zeros(len(distinct), _PLACE)
        rows = np.arange(len(codes))
        places["batch"] = number
        places["rows"] = np.bincount(codes, minlength=len(distinct))
        # Of several rows with one code, the one assigned last stays.
        places["last"][codes] = rows
        places["first"][codes[::-1]] = rows[::-1]
        self._places.append((ids, places))
        self._held += len(ids)

    def finish(self, batches: npt.NDArray[Any]) -> bytes:
        """Return the bytes of the file for the segment with these record batches."""
        bound = _bound_to(batches)
        if self._names is None:
            content = b"".join(self._filters)
            sizes = np.array([len(each) for each in self._filters], "<u4")
            head = _HEAD.pack(_MAGIC, bound, _HASHES, self._batches, 0, 0, len(content))
            body = head + sizes.tobytes() + content
        else:
            body = self._with_names(bound, self._names)
        return body + crc32c(body).to_bytes(4, "little")

    def _with_names(self, bound: int, names: dict[str, int]) -> bytes:
        texts = pa.array(list(names), pa.string())
        ids = np.concatenate([ids for ids, _ in self._places]) if self._places else np.zeros(0, np.int64)
        places = (
            np.concatenate([places for _, places in self._places]) if self._places else np.zeros(0, _PLACE)
        )
        order = np.argsort(ids, kind="stable")
        begins = np.zeros(len(names) + 1, "<u4")
        np.cumsum(np.bincount(ids, minlength=len(names)), out=begins[1:])
        offsets = offsets_of(texts)
        content = bytes_of(texts)[: int(offsets[-1])].tobytes()
        head = _HEAD.pack(_MAGIC, bound, _NAMES, self._batches, len(names), len(places), len(content))
        return head + begins.tobytes() + offsets.astype("<i4").tobytes() + places[order].tobytes() + content

    def _few(self, distinct: pa.Array) -> bool:
        """Whether there is room for the names of another record batch."""
        names = self._names or {}
        if self._held + len(distinct) > MAX_PLACES:
            return False
        fresh = [name for name in distinct.to_pylist() if name not in names]
        self._text += sum(len(name.encode()) for name in fresh)
        return len(names) + len(fresh) <= MAX_NAMES and self._text <= MAX_TEXT

    def _forget_names(self) -> None:
        names = pa.array(list(self._names or {}), pa.string())
        self._filters = [_bloom(names.take(pa.array(ids))) for ids, _ in self._places]
        self._names, self._places = None, []


def read_topic_index(path: Path, batches: npt.NDArray[Any]) -> TopicIndex:
    """Read the index of a segment with these record batches; raise :class:`UnusableIndexError` if it is not one."""
    data = path.read_bytes()
    check_topic_index(data, batches)
    return TopicIndex(data, batches["count"])


def check_topic_index(data: bytes, batches: npt.NDArray[Any]) -> None:
    """Raise unless bytes are a whole index of topics for the segment with these record batches."""
    if len(data) < _HEAD.size + 4 or crc32c(np.frombuffer(data, np.uint8)[:-4]) != int.from_bytes(
        data[-4:], "little"
    ):
        raise UnusableIndexError("the index of topics does not match its checksum")
    magic, belongs, form, count, names, places, text = _HEAD.unpack_from(data)
    if form == _NAMES:
        body = 8 * (names + 1) + places * _PLACE.itemsize + text
    else:
        body = 4 * count + text
    if magic != _MAGIC or form not in (_NAMES, _HASHES) or len(data) != _HEAD.size + body + 4:
        raise UnusableIndexError("the index of topics has an unknown format")
    if (belongs, count) != (_bound_to(batches), len(batches)):
        raise UnusableIndexError("the index of topics belongs to another segment")


def _bound_to(batches: npt.NDArray[Any]) -> int:
    """The checksum of the table of record batches, by which an index of topics knows its segment."""
    return crc32c(batches.tobytes())


def hashes(topics: pa.Array) -> Wide:
    """Return a 64-bit hash for each topic. It must never change: it is stored in files.

    The bytes of a topic are the coefficients of a polynomial, which is evaluated modulo 2**64; then its bits are mixed.
    """
    offsets = offsets_of(topics).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    powers = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _MULTIPLIER, np.uint64))
    within = np.arange(end - begin) - np.repeat(offsets[:-1] - begin, lengths)
    # A byte of 0 counts too.
    terms = (bytes_of(topics)[begin:end].astype(np.uint64) + np.uint64(1)) * powers[within]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    value = sums[offsets[1:] - begin] - sums[offsets[:-1] - begin]
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Wide = value ^ (value >> np.uint64(31))
    return mixed


def _probes(values: Wide, bits: Wide) -> list[Wide]:
    """The bits that hashes set, in filters of ``bits`` bits."""
    low, high = values & np.uint64(0xFFFFFFFF), values >> np.uint64(32) | np.uint64(1)
    return [(low + np.uint64(probe) * high) % bits for probe in range(_PROBES)]


def _bloom(topics: pa.Array) -> bytes:
    size = -(-len(topics) * BITS // 64) * 64
    bits = np.zeros(size, np.bool_)
    for place in _probes(hashes(topics), np.full(len(topics), size, np.uint64)):
        bits[place.astype(np.int64)] = True
    return np.packbits(bits, bitorder="little").tobytes()
