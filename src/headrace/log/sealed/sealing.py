"""Seal an open tail: write its messages as a segment of large record batches, in a background thread.

Tail frames are as small as the traffic was; sealed record batches are large enough for Arrow readers and Spark. Frames
are joined column by column, straight from the file's bytes: with one message per frame, decoding every frame into a
batch would cost many times as much.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log import frame
from headrace.log.proof.chain import ChainExtension
from headrace.log.sealed.entries_file import EntriesWriter
from headrace.log.sealed.segment import SealedSegment
from headrace.log.sealed.writing import SegmentEnd, write_segment
from headrace.log.tail import TailFile
from headrace.message import SCHEMA, Batch, Offsets, Run, column_type, envelope_rows

ROWS: Final = 16_384
BYTES: Final = 4 << 20
"""A record batch is closed at this many messages or payload bytes, whichever comes first."""

TEXT_BYTES: Final = 16 << 20
"""Limit for texts that a frame's messages share and a record batch repeats: a topic may have 65,535 bytes."""


_EDGES: Final = struct.Struct("<ii")


def seal(tail: TailFile, path: Path, *, sync: bool, extension: ChainExtension | None = None) -> SealedSegment:
    """Write every message of ``tail`` to ``path``, its entries and the index beside it; add them to the chain."""
    ends = SegmentEnd(tail.last_op, tail.last, tail.last_time)
    with EntriesWriter.beside(path, tail.header) as entries:
        batches = record_batches(tail, entries.add)
        if extension is not None:
            batches = _digested(batches, extension)
        return write_segment(path, tail.header, batches, entries, ends, sync=sync)


def _digested(batches: Iterator[pa.RecordBatch], extension: ChainExtension) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        extension.add(rows)
        yield rows


def record_batches(tail: TailFile, entries: Callable[[Batch], None]) -> Iterator[pa.RecordBatch]:
    """Yield a tail's messages in record batches within :data:`ROWS`, :data:`BYTES` and :data:`TEXT_BYTES`.

    ``entries`` is called with each batch of log entries.
    """
    joined = _JoinedFrames()
    for window, places, find in tail.windows():
        for at in places:
            found = frame.parts(window, at)
            if found.info.entries:
                entries(frame.decode(window, at, find))
                continue
            rows, size = found.info.rows, found.columns - found.payload
            label = find(at - found.info.label) if found.info.label else frame.own_label(window, found.label)
            text = rows * (len(label.origin) + len(label.publisher) + len(label.topic))
            if joined.rows and (
                joined.rows + rows > ROWS or joined.size + size > BYTES or joined.text + text > TEXT_BYTES
            ):
                yield joined.finish()
                joined = _JoinedFrames()
            if rows > ROWS or size > BYTES or text > TEXT_BYTES:
                yield from _pieces(frame.decode(window, at, find), max(TEXT_BYTES * rows // max(text, 1), 1))
            else:
                joined.add(window, found, label)
                joined.text += text
    if joined.rows:
        yield joined.finish()


class _JoinedFrames:
    """Frames that become one record batch."""

    def __init__(self) -> None:
        self.rows = 0
        self.size = 0
        self.text = 0
        self._counts: list[int] = []
        self._shared: list[tuple[int, int, int, int]] = []
        """Per frame: time, number, whether it has one, and the index of its label in ``_labels``."""
        self._labels: dict[frame.Label, int] = {}
        self._edges: list[bytes] = []
        self._payloads: list[memoryview] = []
        self._differing: list[tuple[int, pa.RecordBatch]] = []
        """Columns of frames that have some, and the row at which each begins."""
        self._first = 0

    def add(self, window: bytes, found: frame.Parts, label: frame.Label) -> None:
        head, size = found.info, found.columns - found.payload
        several = head.flags & frame.MANY
        self._edges.append(window[found.offsets : found.payload] if several else _EDGES.pack(0, size))
        self._payloads.append(memoryview(window)[found.payload : found.columns])
        place = self._labels.setdefault(label, len(self._labels))
        self._shared.append((head.time, found.number or 0, found.number is not None, place))
        self._counts.append(head.rows)
        if (columns := frame.columns_of(window, found)) is not None:
            self._differing.append((self.rows, columns))
        if not self.rows:
            self._first = head.first
        self.rows += head.rows
        self.size += size

    def finish(self) -> pa.RecordBatch:
        counts = np.array(self._counts)
        shared = np.repeat(np.array(self._shared, np.int64), counts, axis=0)
        time, number, numbered, label = np.ascontiguousarray(shared.T)
        within = np.arange(self.rows) - np.repeat(np.cumsum(counts) - counts, counts)
        places = pa.array(label)
        fields = dict(zip(frame.Label._fields, zip(*self._labels, strict=True), strict=True))
        origin, node, publisher, topic = (
            pa.array(values, column_type(name)).take(places) for name, values in fields.items()
        )
        columns = {
            "time": pa.array(time).cast(column_type("time")),
            "origin": origin,
            "node": node,
            "publisher": publisher,
            "number": pa.array(number + within, mask=numbered == 0),
            "topic": topic,
        }
        batch = Batch(
            Run(np.frombuffer(b"".join(self._payloads), np.uint8), self._offsets(counts)),
            first=self._first,
            columns=envelope_rows(columns),
        )
        rows = batch.to_arrow()
        for name in {name for _, columns in self._differing for name in columns.schema.names}:
            place = SCHEMA.get_field_index(name)
            rows = rows.set_column(place, SCHEMA.field(name), self._overlaid(rows.column(name), name))
        return rows

    def _offsets(self, counts: npt.NDArray[np.int64]) -> Offsets:
        """Join the offsets of the frames, each of which begins at 0."""
        steps = np.diff(np.frombuffer(b"".join(self._edges), np.int32))
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(np.delete(steps, np.cumsum(counts[:-1] + 1) - 1), out=offsets[1:])
        return offsets

    def _overlaid(self, shared: pa.Array, name: str) -> pa.Array:
        """A column of shared values, overlaid with the values of frames that have the column."""
        parts, place = [], 0
        for begin, columns in self._differing:
            if name in columns.schema.names:
                parts += [shared.slice(place, begin - place), columns.column(name)]
                place = begin + columns.num_rows
        return pa.concat_arrays([*parts, shared.slice(place)])


def _pieces(batch: Batch, rows: int) -> Iterator[pa.RecordBatch]:
    """Cut a large batch into record batches of at most ``rows``; a payload over the limit has its own."""
    edges = batch.run.offsets.astype(np.int64)
    begin = 0
    while begin < len(batch):
        fit = int(np.searchsorted(edges, edges[begin] + BYTES, side="right")) - 1
        end = min(max(fit, begin + 1), begin + min(rows, ROWS), len(batch))
        yield batch.slice(begin, end).to_arrow()
        begin = end
