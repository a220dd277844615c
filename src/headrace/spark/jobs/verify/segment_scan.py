"""Reduce a task's part of the sequence to the few segments that ``verify`` needs.

A **run** is rows, as they come, with consecutive sequence numbers. A part without a fault is one run. Inside a run, a
**times** segment is rows whose times do not decrease, and a **numbers** segment is rows of one publisher whose own
numbers increase. Each segment has its first and last value, and its beginning and end in the sequence. So millions of
rows become a row per publisher and one or two more per fault, and parts can be joined at their edges.

Times and numbers are checked inside runs, so that a row in the wrong place is one fault, not three.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

CHUNK: Final = 262_144
"""Rows checked together: enough for numpy, little enough for a task's memory."""

RUN: Final = "run"
TIMES: Final = "times"
NUMBERS: Final = "numbers"

SEGMENTS: Final = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("at", pa.int64()),
        pa.field("what", pa.string()),
        pa.field("publisher", pa.string()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("begin", pa.int64()),
        pa.field("end", pa.int64()),
    ]
)
"""``at`` is the row of the part at which a segment begins; parts and rows order the segments."""

Longs = npt.NDArray[np.int64]


class RowSegment(NamedTuple):
    """Rows from sequence number ``begin`` to ``end``, whose values go from ``first`` to ``last``."""

    at: int
    first: int
    last: int
    begin: int
    end: int

    def and_then(self, other: RowSegment) -> RowSegment:
        """Join two segments."""
        return RowSegment(self.at, self.first, other.last, self.begin, other.end)


class SegmentFinder:
    """The segments of one part, found chunk by chunk."""

    def __init__(self) -> None:
        self._row = 0
        self._done: list[tuple[str, str, RowSegment]] = []
        self._run: RowSegment | None = None
        self._times: RowSegment | None = None
        self._numbers: dict[str, RowSegment] = {}

    def take(self, rows: pa.Table) -> None:
        """Take the next rows: ``seq``, ``time`` in µs, ``publisher`` and ``number``."""
        seqs, times = _longs(rows.column("seq")), _longs(rows.column("time"))
        # Rows without a number get one that the mask excludes.
        numbered = pc.is_valid(rows.column("number")).to_numpy()
        numbers = _longs(pc.fill_null(rows.column("number"), 0))
        publishers = rows.column("publisher").combine_chunks().dictionary_encode()
        codes, names = publishers.indices.to_numpy(), publishers.dictionary.to_pylist()
        steps = np.flatnonzero(np.diff(seqs) != 1) + 1
        for begin, end in itertools.pairwise([0, *steps.tolist(), len(seqs)]):
            at = self._row + begin
            here = slice(begin, end)
            run = RowSegment(at, int(seqs[begin]), int(seqs[end - 1]), int(seqs[begin]), int(seqs[end - 1]))
            if self._run is not None and run.first == self._run.last + 1:
                self._run = self._run.and_then(run)
            else:
                self._end_run()
                self._run = run
            self._take_times(times[here], seqs[here], at)
            self._take_numbers(codes[here], names, numbers[here], seqs[here], numbered[here], at)
        self._row += len(seqs)

    def finish(self, part: int) -> pa.RecordBatch:
        """Return all segments of the part, in the order in which their rows came."""
        self._end_run()
        done = sorted(self._done, key=lambda each: each[2].at)
        rows = [
            {"part": part, "what": what, "publisher": publisher, **segment._asdict()}
            for what, publisher, segment in done
        ]
        return pa.RecordBatch.from_pylist(rows, SEGMENTS)

    def _take_times(self, times: Longs, seqs: Longs, at: int) -> None:
        for segment in _segments(times, seqs, np.arange(at, at + len(seqs)), np.diff(times) < 0):
            if self._times is not None and segment.first >= self._times.last:
                self._times = self._times.and_then(segment)
            else:
                if self._times is not None:
                    self._done.append((TIMES, "", self._times))
                self._times = segment

    def _take_numbers(
        self,
        codes: npt.NDArray[np.int32],
        names: list[str],
        numbers: Longs,
        seqs: Longs,
        numbered: npt.NDArray[np.bool_],
        at: int,
    ) -> None:
        rows = np.flatnonzero(numbered)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        codes, numbers, seqs = codes[rows], numbers[rows], seqs[rows]
        breaks = (np.diff(codes) != 0) | (np.diff(numbers) <= 0)
        begins = [0, *(np.flatnonzero(breaks) + 1).tolist()]
        for begin, segment in zip(begins, _segments(numbers, seqs, rows + at, breaks), strict=False):
            publisher = names[codes[begin]]
            before = self._numbers.get(publisher)
            if before is not None and segment.first > before.last:
                self._numbers[publisher] = before.and_then(segment)
            else:
                if before is not None:
                    self._done.append((NUMBERS, publisher, before))
                self._numbers[publisher] = segment

    def _end_run(self) -> None:
        if self._run is not None:
            self._done.append((RUN, "", self._run))
        if self._times is not None:
            self._done.append((TIMES, "", self._times))
        self._done += [(NUMBERS, publisher, segment) for publisher, segment in self._numbers.items()]
        self._run = self._times = None
        self._numbers = {}


def find_segments(part: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Find the segments of a part whose rows come in batches."""
    segments = SegmentFinder()
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK:
            segments.take(pa.Table.from_batches(waiting))
            waiting, rows = [], 0
    if rows:
        segments.take(pa.Table.from_batches(waiting))
    yield segments.finish(part)


def join_segments(after: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the numbers of each publisher that go on from part to part; segments are sorted by publisher and place.

    A joined segment stands where its first part did. Only what is sound is joined, so that nothing is lost that the
    next check would find: rows after message ``after``, up to which everything was checked, and numbers above all
    before them. Runs and times are passed on.
    """
    last: dict[str, Any] | None = None
    sound = False
    """Whether ``last`` is above everything of its publisher before it."""
    end = high = 0
    for batch in batches:
        done: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            same = last is not None and (last["what"], last["publisher"]) == (row["what"], row["publisher"])
            if last is not None and same:
                end, high = max(end, last["end"]), max(high, last["last"])
                if sound and row["what"] == NUMBERS and row["begin"] > end and row["first"] > high:
                    last = {**last, "last": row["last"], "end": row["end"]}
                    continue
            if last is not None:
                done.append(last)
            if not same:
                end, high = after, -1
            last, sound = row, row["begin"] > end and row["first"] > high
        yield pa.RecordBatch.from_pylist(done, SEGMENTS)
    if last is not None:
        yield pa.RecordBatch.from_pylist([last], SEGMENTS)


def _segments(
    values: Longs, seqs: Longs, rows: npt.NDArray[np.int64], breaks: npt.NDArray[np.bool_]
) -> Iterator[RowSegment]:
    """Yield the segments of values, which end at each mark in ``breaks``."""
    if not len(values):
        return
    begins = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    ends = np.concatenate((begins[1:], [len(values)])) - 1
    columns = (rows[begins], values[begins], values[ends], seqs[begins], seqs[ends])
    yield from map(RowSegment._make, zip(*(column.tolist() for column in columns), strict=True))


def _longs(column: pa.ChunkedArray) -> Longs:
    values: Longs = column.to_numpy()
    return values
