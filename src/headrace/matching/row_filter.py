"""Predicates against the rows of a record batch: what a link filter and a Spark reader ask of attributes.

An attribute is looked up in ``attributes`` if it is a string, in ``numbers`` if it is a number; where both have the
name, the string counts, as it does for the matcher. Each predicate is compiled once
(:mod:`headrace.wire.sdk.predicate`) and run by a kernel over all rows; looking the attribute up costs one pass over the
entries of the maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.wire.numba_kernels import BYTES, BYTES_IN, OFFSETS_IN, WIDE, inline, kernel, types
from headrace.wire.sdk.predicate import NOTHING, NUMBER, TEXT, Predicate, compile_predicate, holds

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Wide = npt.NDArray[np.int64]

_NO_BYTES = np.zeros(0, np.uint8)

_holds = inline(holds)


class RowFilter:
    """Predicates by attribute, compiled. All must hold for a row to pass."""

    def __init__(self, where: Mapping[str, Predicate]) -> None:
        self._programs = {name: _compiled(predicate) for name, predicate in where.items()}

    def masks(self, rows: pa.RecordBatch) -> Iterator[Mask]:
        """Which rows each of the predicates holds for."""
        for name, (program, words, begins) in self._programs.items():
            texts = _looked_up(rows.column("attributes"), name)
            numbers = _looked_up(rows.column("numbers"), name)
            kinds = np.where(_is_valid(texts), TEXT, np.where(_is_valid(numbers), NUMBER, NOTHING))
            # Adding 0.0 makes -0.0 the 0.0 that it equals.
            bits = (pc.fill_null(numbers, 0.0).to_numpy(zero_copy_only=False) + 0.0).view(np.int64)
            _, offsets, data = texts.buffers()
            out = np.empty(len(rows), np.uint8)
            evaluate(
                program,
                words,
                begins,
                kinds.astype(np.uint8),
                bits,
                np.frombuffer(offsets, np.int32),
                _NO_BYTES if data is None else np.frombuffer(data, np.uint8),
                out,
            )
            yield out.view(np.bool_)


def _compiled(predicate: Predicate) -> tuple[Wide, Bytes, Wide]:
    """A predicate's program; the words that it names, side by side; and where each begins."""
    codes: dict[str, int] = {}
    program = compile_predicate(predicate, 0, lambda text: codes.setdefault(text, len(codes)))
    words = [text.encode() for text in codes]
    begins = np.cumsum([0, *map(len, words)], dtype=np.int64)
    return np.array(program, np.int64), np.array(bytearray(b"".join(words)), np.uint8), begins


def _looked_up(maps: pa.Array, name: str) -> pa.Array:
    """The value each row's map has under ``name``, the last if there are several; null if none."""
    offsets = np.frombuffer(maps.buffers()[1], np.int32)[maps.offset : maps.offset + len(maps) + 1]
    begin, end = (int(offsets[0]), int(offsets[-1])) if len(maps) else (0, 0)
    keys, items = maps.keys, maps.items
    equal = pc.equal(keys.slice(begin, end - begin), name)
    found = np.flatnonzero(equal.to_numpy(zero_copy_only=False)) + begin
    indices = np.full(len(maps), -1, np.int64)
    indices[np.searchsorted(offsets, found, side="right") - 1] = found
    return items.take(pa.array(indices, mask=indices < 0))


def _is_valid(values: pa.Array) -> Mask:
    valid: Mask = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


@inline
def _code(texts: Bytes, begin: int, end: int, words: Bytes, word_begins: Wide) -> int:
    """The code of a text that is one of the words, of which a predicate has few; else -1."""
    size = end - begin
    for code in range(len(word_begins) - 1):
        first = word_begins[code]
        if word_begins[code + 1] - first == size:
            same = True
            for offset in range(size):
                if words[first + offset] != texts[begin + offset]:
                    same = False
                    break
            if same:
                return code
    return -1


@kernel(types.void(WIDE, BYTES, WIDE, BYTES, WIDE, OFFSETS_IN, BYTES_IN, BYTES))
def evaluate(
    program: Wide,
    words: Bytes,
    word_begins: Wide,
    kinds: Bytes,
    bits: Wide,
    offsets: Ints,
    texts: Bytes,
    out: Bytes,
) -> None:
    """Fill in 1 for each row whose value the program holds for, else 0."""
    for row in range(len(kinds)):
        begin, end = offsets[row], offsets[row + 1]
        value = bits[row]
        if kinds[row] == TEXT:
            value = _code(texts, begin, end, words, word_begins)
        out[row] = _holds(program, 0, kinds[row], value, texts, begin, end, words, word_begins)
