"""Attribute predicates over the rows of a record batch, for link filters and Spark readers.

An attribute is looked up in ``attributes`` and ``numbers``; if both have it, the string counts, as for the matcher.
Each predicate is compiled once (:mod:`headrace.wire.sdk.predicate`) and run by a kernel over all rows; looking the
attribute up costs one pass over the entries of the maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UsageError
from headrace.matching.index.hashing import FLOATS
from headrace.message import bytes_of, offsets_of
from headrace.wire.numba_kernels import BYTES, BYTES_IN, OFFSETS_IN, WIDE, inline, kernel, types
from headrace.wire.sdk.predicate import Inside, Predicate, compile_predicate, fence_of, holds
from headrace.wire.sdk.program import NOTHING, NUMBER, TEXT
from headrace.wire.sdk.region import box_of, contains, numbers_of, within

Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Wide = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_holds = inline(holds)
inline(contains)
_within = inline(within)


class RowFilter:
    """Predicates by attribute, compiled. All must hold for a row to pass."""

    def __init__(self, where: Mapping[str, Predicate]) -> None:
        if fence_of(where) is not None:
            raise UsageError("a fence needs every message before a row: only a subscription has them")
        self._compiled = {
            name: _CompiledRegion(predicate) if isinstance(predicate, Inside) else _Compiled.of(predicate)
            for name, predicate in where.items()
        }

    def masks(self, rows: pa.RecordBatch) -> Iterator[Mask]:
        """Yield for each predicate which rows it holds for."""
        for name, compiled in self._compiled.items():
            yield compiled.mask(rows, name)


class _Compiled(NamedTuple):
    program: Wide
    words: pa.Array
    """The strings that the program names; a word's code is its place."""
    holding: Mask
    """Which of these words the predicate holds for: however many there are, a row with one of them is looked up."""

    @classmethod
    def of(cls, predicate: Predicate) -> _Compiled:
        codes: dict[str, int] = {}
        compiled = compile_predicate(predicate, 0, lambda text: codes.setdefault(text, len(codes)))
        program, words = np.array(compiled, np.int64), pa.array(codes, pa.string())
        kinds, holding = np.full(len(codes), TEXT, np.uint8), np.empty(len(codes), np.uint8)
        strings = offsets_of(words), bytes_of(words)
        evaluate(program, *strings, kinds, np.arange(len(codes)), *strings, holding)
        return cls(program, words, holding.view(np.bool_))

    def mask(self, rows: pa.RecordBatch, name: str) -> Mask:
        """Tell for which rows the predicate on an attribute holds."""
        texts, numbers = (_looked_up(rows.column(column), name) for column in ("attributes", "numbers"))
        has_text = texts.is_valid().to_numpy(zero_copy_only=False)
        has_number = numbers.is_valid().to_numpy(zero_copy_only=False)
        kinds = np.where(has_text, np.uint8(TEXT), np.where(has_number, np.uint8(NUMBER), np.uint8(NOTHING)))
        # Adding 0.0 makes -0.0 the 0.0 that it equals.
        values = (pc.fill_null(numbers, 0.0).to_numpy() + 0.0).view(np.int64)
        codes = pc.fill_null(pc.index_in(texts, value_set=self.words), -1).to_numpy()
        values = np.where(has_text, codes, values)
        known = np.flatnonzero(codes >= 0)  # Their verdict is known: the program need not run for them.
        kinds[known] = NOTHING
        out = np.empty(len(kinds), np.uint8)
        words, strings = (offsets_of(self.words), bytes_of(self.words)), (offsets_of(texts), bytes_of(texts))
        evaluate(self.program, *words, kinds, values, *strings, out)
        mask = out.view(np.bool_)
        mask[known] = self.holding[codes[known]]
        return mask


class _CompiledRegion:
    """A region over a pair of attributes."""

    def __init__(self, predicate: Inside) -> None:
        self._y = predicate.y
        self._numbers = np.array([*box_of(predicate.region), *numbers_of(predicate.region)])

    def mask(self, rows: pa.RecordBatch, name: str) -> Mask:
        """Tell which rows are in the region, by this attribute and its other one."""
        xs, ys = (_numbers(rows, each) for each in (name, self._y))
        out = np.empty(rows.num_rows, np.uint8)
        evaluate_region(self._numbers, xs, ys, out)
        return out.view(np.bool_)


def _numbers(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.float64]:
    """An attribute's numbers, NaN where it is absent or a string."""
    numbers = pc.fill_null(_looked_up(rows.column("numbers"), name), np.nan).to_numpy(zero_copy_only=False)
    has_text = _looked_up(rows.column("attributes"), name).is_valid().to_numpy(zero_copy_only=False)
    return np.where(has_text, np.nan, numbers)


def _looked_up(maps: pa.Array, name: str) -> pa.Array:
    """The value of ``name`` in each row's map, the last if there are several; null if none."""
    offsets = offsets_of(maps)
    begin, end = int(offsets[0]), int(offsets[-1])
    keys, items = maps.keys, maps.items
    equal = pc.equal(keys.slice(begin, end - begin), name)
    found = np.flatnonzero(equal.to_numpy(zero_copy_only=False)) + begin
    indices = np.full(len(maps), -1, np.int64)
    indices[np.searchsorted(offsets, found, side="right") - 1] = found
    return items.take(pa.array(indices, mask=indices < 0))


@kernel(types.void(WIDE, OFFSETS_IN, BYTES_IN, BYTES, WIDE, OFFSETS_IN, BYTES_IN, BYTES))
def evaluate(
    program: Wide,
    word_begins: Ints,
    words: Bytes,
    kinds: Bytes,
    values: Wide,
    offsets: Ints,
    texts: Bytes,
    out: Bytes,
) -> None:
    """Fill in 1 for each row for whose value the program holds, else 0."""
    for row in range(len(kinds)):
        begin, end = offsets[row], offsets[row + 1]
        out[row] = _holds(program, 0, kinds[row], values[row], texts, begin, end, words, word_begins)


@kernel(types.void(FLOATS, FLOATS, FLOATS, BYTES))
def evaluate_region(numbers: Floats, xs: Floats, ys: Floats, out: Bytes) -> None:
    """Fill in 1 for each point that is in the region of these numbers, its box first, else 0."""
    for row in range(len(xs)):
        out[row] = _within(numbers, 0, 1, len(numbers) - 4, xs[row], ys[row])
