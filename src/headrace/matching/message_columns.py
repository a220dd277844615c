"""The attributes of a batch's messages, read out of Arrow's buffers into the one form that the kernels know.

A message has attributes from several sources; later ones win:

1. the envelope: ``topic``, ``origin`` and ``publisher``, unless empty, and ``size``;
2. if configured, the top-level strings, numbers and booleans of a payload that is a JSON object;
3. its ``numbers``, and then its ``attributes``;
4. numbers that the matcher itself gives it, under names that it reserves.

Names are numbered once per batch. Values are read only for names that some subscription uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.matching import attribute_reading
from headrace.matching.attribute_reading import Facts
from headrace.matching.index import hashing
from headrace.matching.index.segment import Bytes, Ints, Segment
from headrace.message import Batch, bytes_of, offsets_of

_TEXTS = ("topic", "origin", "publisher")
_SIZE = "size"

_ENVELOPE = (*_TEXTS, _SIZE)
_ENVELOPE_DATA = np.frombuffer("".join(_ENVELOPE).encode(), np.uint8).copy()
_ENVELOPE_BEGIN = np.cumsum([0, *(len(name) for name in _ENVELOPE)], dtype=np.int64)


@dataclass(slots=True)
class _Strings:
    """Arrow strings: number ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    offsets: Ints
    data: Bytes

    @classmethod
    def of(cls, array: pa.Array) -> _Strings:
        return cls(offsets_of(array), bytes_of(array))

    def size(self, begin: int, end: int) -> int:
        return int(self.offsets[end]) - int(self.offsets[begin])


@dataclass(slots=True)
class _Source:
    """Attributes from one source: message ``i`` has the names and values ``first[i]`` up to ``first[i + 1]``."""

    first: Ints
    names: _Strings | str
    values: _Strings | npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_] | None = None

    @property
    def begin(self) -> int:
        return int(self.first[0])

    @property
    def end(self) -> int:
        return int(self.first[-1])


def read(
    batch: Batch,
    segments: Sequence[Segment],
    seed: np.uint64,
    *,
    json_attributes: bool,
    reserved: Sequence[str] = (),
) -> tuple[Facts, list[Ints]]:
    """Read the attributes that any segment names; return them, and per segment its attribute for each name.

    For each ``reserved`` name every message has a number, which :func:`fill_in` writes: it wins over its own.
    """
    sources = list(_sources(batch, _envelope_names(segments, seed), json_attributes))
    sources += (_Source(_each(len(batch)), name, np.zeros(len(batch))) for name in reserved)
    total = sum(source.end - source.begin for source in sources)
    first = np.zeros((len(sources), len(batch) + 1), np.int32)
    name = np.empty(total, np.int32)
    number = np.zeros(total)
    names = _Names(sources, seed)
    at = 0
    for index, source in enumerate(sources):
        begin, end = source.begin, source.end
        np.subtract(source.first, begin - at, out=first[index])
        names.read(source, name, at)
        if not isinstance(source.values, _Strings):
            number[at : at + end - begin] = source.values[begin:end]
        at += end - begin
    attributes = [names.attributes_of(segment) for segment in segments]
    wanted = np.zeros(names.count, np.bool_)
    for found in attributes:
        wanted |= found >= 0
    if not wanted.all():
        name[~wanted[name]] = -1
    _forget_nulls(sources, name)

    hashes = np.empty(total, np.uint64)
    begins, ends = np.empty(total, np.int64), np.empty(total, np.int64)
    room = sum(s.values.size(s.begin, s.end) for s in sources if isinstance(s.values, _Strings))
    data = np.empty(room, np.uint8)
    at = used = 0
    for source in sources:
        begin, end = source.begin, source.end
        if isinstance(source.values, _Strings):
            offsets, texts = source.values.offsets, source.values.data
            used = attribute_reading.read_texts(
                offsets, texts, begin, end, seed, name, hashes, begins, ends, data, at, used
            )
        at += end - begin
    textual = np.array([isinstance(source.values, _Strings) for source in sources], np.uint8)
    # Adding 0.0 makes -0.0 the 0.0 that it equals.
    bits = (number + 0.0).view(np.int64)
    facts = Facts(textual, first, name, number, bits, hashes, begins, ends, data)
    return facts, attributes


def fill_in(facts: Facts, columns: Sequence[npt.NDArray[np.float64]]) -> None:
    """Write the numbers of the reserved names, in their order."""
    for source, column in enumerate(columns, len(facts.textual) - len(columns)):
        begin, end = int(facts.first[source, 0]), int(facts.first[source, -1])
        facts.number[begin:end] = column
        facts.bits[begin:end] = (column + 0.0).view(np.int64)


class _Names:
    """The names that occur in a batch, numbered."""

    def __init__(self, sources: Sequence[_Source], seed: np.uint64) -> None:
        room = most = 0
        for source in sources:
            if isinstance(source.names, str):
                room += len(source.names)
                most += 1
            else:
                room += source.names.size(source.begin, source.end)
                most += source.end - source.begin
        self._data = np.empty(room, np.uint8)
        self._begin = np.zeros(most + 1, np.int64)
        self._slots = np.zeros(1 << (2 * most).bit_length(), np.int32)
        self._seed = seed
        self.count = 0

    def read(self, source: _Source, out: Ints, at: int) -> None:
        table = (self._data, self._begin, self._slots)
        if isinstance(source.names, str):
            text = np.frombuffer(source.names.encode(), np.uint8)
            code = hashing.intern(text, 0, len(text), *table, self.count, self._seed)
            self.count = max(self.count, code + 1)
            out[at : at + source.end - source.begin] = code
        else:
            offsets, data = source.names.offsets, source.names.data
            self.count = attribute_reading.read_names(
                offsets, data, source.begin, source.end, *table, self.count, self._seed, out, at
            )

    def attributes_of(self, segment: Segment) -> Ints:
        found = np.empty(self.count, np.int32)
        names = segment.names
        begin = self._begin[: self.count + 1]
        hashing.find_names(self._data, begin, names.data, names.begin, names.slots, self._seed, found)
        return found


def _envelope_names(segments: Sequence[Segment], seed: np.uint64) -> set[str]:
    """The names of the envelope that some subscription uses."""
    used = np.zeros(len(_ENVELOPE), np.bool_)
    found = np.empty(len(_ENVELOPE), np.int32)
    for segment in segments:
        hashing.find_names(_ENVELOPE_DATA, _ENVELOPE_BEGIN, *segment.names, seed, found)
        used |= found >= 0
    return {name for name, there in zip(_ENVELOPE, used.tolist(), strict=True) if there}


def _sources(batch: Batch, envelope: set[str], json_attributes: bool) -> Iterator[_Source]:
    for name in _TEXTS:
        if name in envelope:
            yield from _envelope(batch, name)
    if _SIZE in envelope:
        yield _Source(_each(len(batch)), _SIZE, batch.run.lengths.astype(np.float64))
    if json_attributes:
        yield from _json(batch)
    for name in ("numbers", "attributes"):
        maps = _column(batch, name)
        if maps is None or not len(maps):
            continue
        first = offsets_of(maps)
        if first[0] == first[-1]:
            continue
        items = maps.items
        values = _Strings.of(items) if name == "attributes" else _doubles(items)
        valid = items.is_valid().to_numpy(zero_copy_only=False) if items.null_count else None
        yield _Source(first, _Strings.of(maps.keys), values, valid)


def _envelope(batch: Batch, name: str) -> Iterator[_Source]:
    column = _column(batch, name)
    if column is not None:
        values = _Strings.of(column)
    elif text := getattr(batch, name):
        values = _Strings.of(pa.repeat(pa.scalar(text, pa.string()), len(batch)))
    else:
        return
    present = values.offsets[1:] > values.offsets[:-1]
    if present.all():
        yield _Source(_each(len(batch)), name, values)
        return
    # In the envelope, empty is absent. It takes no bytes either, so the other texts are adjacent.
    first = np.zeros(len(batch) + 1, np.int32)
    first[1:] = np.cumsum(present)
    edges = np.append(values.offsets[np.flatnonzero(present)], values.offsets[-1])
    yield _Source(first, name, _Strings(edges, values.data))


def _json(batch: Batch) -> Iterator[_Source]:
    texts: list[tuple[str, str]] = []
    numbers: list[tuple[str, float]] = []
    first_text, first_number = [0], [0]
    for payload in batch.run:
        for name, value in scalars(payload):
            if isinstance(value, str):
                texts.append((name, value))
            else:
                numbers.append((name, value))
        first_text.append(len(texts))
        first_number.append(len(numbers))
    if numbers:
        names = _strings([name for name, _ in numbers])
        yield _Source(np.array(first_number, np.int32), names, np.array([value for _, value in numbers]))
    if texts:
        names = _strings([name for name, _ in texts])
        yield _Source(np.array(first_text, np.int32), names, _strings([value for _, value in texts]))


def scalars(payload: bytes) -> list[tuple[str, str | float]]:
    """The top-level strings, numbers and booleans of a payload that is a JSON object; of any other, none.

    >>> scalars(b'{"city": "Oslo", "degrees": -3, "dry": true, "wind": null, "at": [59, 10]}')
    [('city', 'Oslo'), ('degrees', -3.0), ('dry', 'true')]
    """
    if not payload.lstrip(b" \t\r\n").startswith(b"{"):
        return []
    try:
        members: dict[str, Any] = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return []
    return [(name, value) for name, each in members.items() if (value := _scalar(each)) is not None]


def _scalar(value: object) -> str | float | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            try:
                return float(value)
            except OverflowError:
                return None
        case _:
            return None


def _strings(values: Sequence[str]) -> _Strings:
    return _Strings.of(pa.array(values, pa.string()))


def _doubles(items: pa.Array) -> npt.NDArray[np.float64]:
    _validity, data = items.buffers()
    if data is None:
        return np.zeros(len(items))
    return np.frombuffer(data, np.float64)[items.offset : items.offset + len(items)]


def _each(count: int) -> Ints:
    return np.arange(count + 1, dtype=np.int32)


def _column(batch: Batch, name: str) -> pa.Array | None:
    if batch.columns is None or name not in batch.columns.schema.names:
        return None
    return batch.columns.column(name)


def _forget_nulls(sources: Sequence[_Source], name: Ints) -> None:
    """Treat a map's null value as an absent attribute."""
    at = 0
    for source in sources:
        if source.valid is not None:
            own = name[at : at + source.end - source.begin]
            own[~source.valid[source.begin : source.end]] = -1
        at += source.end - source.begin
