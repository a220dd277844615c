"""A log's messages as a table that DuckDB scans without reading rows that cannot match the query's conditions.

DuckDB takes any dataset of pyarrow as a table, and calls its ``scanner`` with the columns and conditions of each scan.
A :class:`LogTable` answers with batches that the log itself has read, so their checksums are checked before Arrow sees
them. It passes over sealed segments and record batches by their numbers, times and topics: Arrow decides from what is
known of each, without its rows, whether it can match. Of the rest it unpacks the columns that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from headrace.client.sql.topic_counts import NUMBER
from headrace.errors import HeadraceError
from headrace.log import Log
from headrace.log.sealed.segment import SealedSegment
from headrace.message import SCHEMA

MAX_TOPICS: Final = 1 << 16
"""Topics that are tried one by one against a condition; if there are more, every topic may match."""

_FORMAT: Final = ds.IpcFileFormat()
_ROWS: Final = 1 << 16
"""Rows that are handed over at a time: a query that needs only a few then stops early."""


class LogTable(ds.InMemoryDataset):  # type: ignore[misc]
    """The messages of a log up to one of them."""

    def __init__(self, log: Log, upto: int) -> None:
        super().__init__(SCHEMA.empty_table())
        self._log = log
        self._upto = upto
        self._sealed = [
            segment
            for segment in log.segments
            if isinstance(segment, SealedSegment) and segment.first <= min(upto, segment.last)
        ]
        self.unpacked = 0
        """Record batches that were unpacked so far."""
        self.failed: HeadraceError | None = None
        """The error of reading the log, if any; DuckDB would report it as an error in the query."""

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Any:  # noqa: A002
        """Scan the rows that may match; DuckDB calls it, and expects the conditions to be applied."""
        said = "" if filter is None else str(filter)
        # A name too many costs a column; one that is missing would be an error.
        names = [name for name in SCHEMA.names if columns is None or name in columns or name in said]
        schema = pa.schema([SCHEMA.field(name) for name in names])
        rows = self._rows(schema, filter, by_topic="topic" in said)
        return ds.Scanner.from_batches(rows, schema=schema, columns=columns, filter=filter)

    def topic_counts(self) -> pa.Table:
        """Count the messages by topic, from the segments' indexes of topics where these have counts."""
        counted: list[pa.Table] = []
        rest: list[pa.RecordBatch] = []
        schema = pa.schema([SCHEMA.field("topic")])
        for segment in self._sealed:
            index = segment.topics if segment.last <= self._upto else None
            known = None if index is None else index.counts()
            if known is not None and int(known[1].sum()) == segment.last - segment.first + 1:
                counted.append(pa.table({"topic": known[0], "n": pa.array(known[1], pa.int64())}))
            else:
                rest += self._of_segment(segment, schema, None, None)
        rest += self._of_tail(schema)
        for batch in rest:
            found = batch.column(0).value_counts()
            counted.append(pa.table({"topic": found.field("values"), "n": found.field("counts")}))
        empty = pa.table({"topic": pa.array([], pa.string()), "n": pa.array([], pa.int64())})
        # Names may be as many as messages: one pass over all parts.
        whole: pa.Table = pa.concat_tables([empty, *counted]).group_by("topic").aggregate([("n", "sum")])
        return whole.rename_columns({"n_sum": NUMBER})

    def _rows(self, schema: pa.Schema, condition: Any, *, by_topic: bool) -> Iterator[pa.RecordBatch]:
        segments = self._sealed
        if condition is not None:
            ranges = [_Extent.of(segment) for segment in segments]
            segments = [segments[place] for place in _possible(condition, ranges)]
        topics = self._possible_topics(condition, segments) if by_topic else None
        try:
            for segment in segments:
                yield from self._of_segment(segment, schema, condition, topics)
            yield from self._of_tail(schema)
        except HeadraceError as error:
            self.failed = error
            raise

    def _of_segment(
        self, segment: SealedSegment, schema: pa.Schema, condition: Any, topics: _Topics | None
    ) -> Iterator[pa.RecordBatch]:
        batches = segment.index.batches
        wanted: Iterable[int] = range(len(batches))
        index = None if topics is None else segment.topics
        chosen = None if index is None or topics is None else index.chosen(topics)
        if chosen is not None:
            wanted = chosen.numbers.tolist()
        if condition is not None:
            places = list(wanted)
            possible = _possible(condition, _extents(segment, places))
            wanted = [places[place] for place in possible]
        for number in wanted:
            first = int(batches["first"][number])
            if first > self._upto:
                return
            self.unpacked += 1
            rows = segment.columns(number, schema)
            yield from _pieces(rows.slice(0, self._upto - first + 1))

    def _of_tail(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        first = self._sealed[-1].last + 1 if self._sealed else self._log.first_here
        for batch in self._log.scan(first, self._upto):
            yield from _pieces(batch.to_arrow().select(schema.names))

    def _possible_topics(self, condition: Any, segments: Sequence[SealedSegment]) -> _Topics | None:
        """Return which topics of the segments may match a condition; ``None`` if they are unknown, or too many."""
        names: set[str] = set()
        for segment in segments:
            index = segment.topics
            here = None if index is None else index.names
            if here is not None:
                names.update(here.to_pylist())
            if len(names) > MAX_TOPICS:
                return None
        every = sorted(names)
        known = [ds.field("topic") == name for name in every]
        possible = _possible_under(condition, known)
        return _Topics(frozenset(every[place] for place in possible))


@dataclass(frozen=True, slots=True)
class _Extent:
    """Facts about some rows that are known without reading them."""

    first: int
    last: int
    first_time: int | None
    last_time: int

    @classmethod
    def of(cls, segment: SealedSegment) -> _Extent:
        return cls(segment.first, segment.last, segment.first_time(), segment.last_time)

    def known(self) -> Any:
        seq, time, form = ds.field("seq"), ds.field("time"), SCHEMA.field("time").type
        known = (seq >= self.first) & (seq <= self.last)
        if self.first_time is not None:
            known &= (time >= pa.scalar(self.first_time, form)) & (time <= pa.scalar(self.last_time, form))
        return known


@dataclass(frozen=True, slots=True)
class _Topics:
    """A choice of topics, as an index of topics takes one; those it does not list may not be looked for by hash."""

    listed: frozenset[str]

    names: None = None

    def mask(self, topics: pa.Array) -> npt.NDArray[np.bool_]:
        """Return for each topic whether it is chosen."""
        found = pc.is_in(topics, value_set=pa.array(sorted(self.listed), pa.string()))
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _extents(segment: SealedSegment, numbers: Sequence[int]) -> list[_Extent]:
    batches = segment.index.batches
    found = []
    for number in numbers:
        first, count = int(batches["first"][number]), int(batches["count"][number])
        times = int(batches["first_time"][number]), int(batches["last_time"][number])
        found.append(_Extent(first, first + count - 1, *times))
    return found


def _possible(condition: Any, extents: Sequence[_Extent]) -> list[int]:
    return _possible_under(condition, [extent.known() for extent in extents])


def _possible_under(condition: Any, known: Sequence[Any]) -> list[int]:
    """Return the indexes of facts under which a condition may hold, by Arrow's own pruning of a dataset's files."""
    files = LocalFileSystem()
    fragments = [_FORMAT.make_fragment(str(place), files, fact) for place, fact in enumerate(known)]
    if not fragments:
        return []
    found = ds.FileSystemDataset(fragments, SCHEMA, _FORMAT).get_fragments(filter=condition)
    return [int(fragment.path) for fragment in found]


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for begin in range(0, rows.num_rows, _ROWS):
        yield rows.slice(begin, _ROWS)
