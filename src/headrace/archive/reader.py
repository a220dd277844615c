"""Read any range of an archive, as batches that are equal to those the log had.

A reader decodes Parquet by **pieces**: a row group, or part of one if a row group is large. It keeps the pieces that
were used last, since consumers take them in steps of about a MiB, and goes on in a row group where it stopped. So
memory is bounded whatever the files are like, and a sequential reader decodes every row once.

Every piece is checked before anybody gets it: its numbers must follow one another without a hole. Topics are skipped by
the statistics of row groups, which say the least and the greatest topic of each.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive.parquet_file import ArchiveFile, enveloped, open_parquet
from headrace.archive.table import ArchiveTable
from headrace.errors import ArchiveError
from headrace.log.sealed.bounded_read import BoundedRead
from headrace.log.sealed.sized_cache import SizedCache
from headrace.log.topics.found import Found
from headrace.log.topics.segment_topics import TopicChoice
from headrace.message import Batch

CACHE_BYTES: Final = 64 << 20
"""Memory of the decoded pieces that are kept."""

WHOLE_BYTES: Final = 48 << 20
WHOLE_ROWS: Final = 262_144
"""A row group up to this size is one piece, as all are that Headrace writes."""

PIECE_ROWS: Final = 16_384
"""Rows of a piece of a larger row group."""

_FOOTERS: Final = 16 << 20
"""Memory of the files' footers that are kept."""

_SCANS: Final = 4
"""Large row groups that are being read; each has some MiB of buffers."""

_BUFFER: Final = 4 << 20

_FOOTER_SIZE: Final = 8
"""A footer takes about this many times its bytes in memory."""


@dataclass(frozen=True, slots=True)
class _Footer:
    """A file's row groups: the first message of each, and one more than the last."""

    metadata: pq.FileMetaData
    edges: list[int]
    topic_column: int

    def group_of(self, seq: int) -> int:
        return bisect_right(self.edges, seq) - 1


@dataclass(frozen=True, slots=True)
class _Piece:
    """Messages from ``first`` on, decoded."""

    first: int
    rows: pa.RecordBatch

    @property
    def last(self) -> int:
        return self.first + int(self.rows.num_rows) - 1


class ArchiveReader:
    """Reads one version of an archive; any thread may.

    ``place`` names the archive in errors.
    """

    def __init__(self, table: ArchiveTable, place: str) -> None:
        self.table = table
        """The version that is read; a newer one may take its place at any time."""
        self._place = place
        self._footers: SizedCache[str, _Footer] = SizedCache(_FOOTERS)
        self._pieces: SizedCache[tuple[str, int, int], _Piece] = SizedCache(CACHE_BYTES)
        self._scans: OrderedDict[tuple[str, int], _Scan] = OrderedDict()
        self._scanning = threading.Lock()

    def read(self, first: int, last: int, max_bytes: int) -> list[Batch]:
        """Read messages from ``first`` on, up to ``last`` or about ``max_bytes``, at least one."""
        found = BoundedRead(max_bytes)
        while first <= last and found.has_room:
            piece = self._piece(first)
            batch = Batch.over(piece.rows.slice(first - piece.first, min(last, piece.last) - first + 1))
            found.add(batch, piece.rows)
            first = batch.last + 1
        return found.batches

    def find(self, first: int, last: int, topics: TopicChoice | None, max_bytes: int) -> Found:
        """Read messages from ``first`` on that may be of chosen topics; row groups that have none are skipped."""
        names = None if topics is None else topics.names
        if names is None:
            batches = self.read(first, last, max_bytes)
            return Found(batches, batches[-1].last, sum(batch.size for batch in batches))
        at = first
        for file in self.table.files(first, last):
            footer = self._footer(file)
            for group in range(footer.group_of(max(first, file.first)), len(footer.edges) - 1):
                begin, end = max(footer.edges[group], first), min(footer.edges[group + 1] - 1, last)
                if begin > last:
                    break
                if _may_have(footer, group, names):
                    batches = self.read(begin, end, max_bytes)
                    return Found(batches, batches[-1].last, sum(batch.size for batch in batches))
                at = end + 1
            # One file at a time: its footer was read, and other readers have their turn.
            return Found([], at - 1, file.size >> 10)
        raise self._hole(first, last)

    def seq_at(self, time: int) -> int | None:
        """Return the first message stamped at or after ``time`` (µs), if there is one."""
        table = self.table
        file = next(
            (each for each in table.files(table.first, table.through) if each.last_time >= time), None
        )
        if file is None:
            return None
        first, last = file.first, file.last
        # A search by halves decodes a piece for each of its steps outside the last one.
        while first < last:
            middle = (first + last) // 2
            piece = self._piece(middle)
            times = piece.rows.column("time").cast(pa.int64()).to_numpy()
            if times[0] >= time and piece.first > first:
                last = piece.first
            elif times[-1] < time:
                first = piece.last + 1
            else:
                return piece.first + int(np.searchsorted(times, time))
        return first

    def times(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Read the times (µs) of messages from ``first`` on, up to ``last`` or the end of a row group; only these."""
        file = self._file(first)
        footer = self._footer(file)
        group = footer.group_of(first)
        try:
            rows = self._open(file, footer, whole=False).read_row_group(group, ["time"], use_threads=False)
            column: npt.NDArray[np.int64] = (
                rows["time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
            )
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(self._place, file.first, file.last, f"{file.path}: {error}") from error
        return column[first - footer.edges[group] : last + 1 - footer.edges[group]]

    def reach(self, first: int, size: int) -> tuple[int, int]:
        """Return how far about ``size`` stored bytes reach from ``first`` on, and how many that takes."""
        used = 0
        for file in self.table.files(first, self.table.through):
            each = max(file.size // file.rows, 1)
            begin = max(first, file.first)
            count = file.last - begin + 1
            if used + count * each > size:
                fit = max((size - used) // each, 0 if used else 1)
                return begin + fit - 1, used + fit * each
            used += count * each
        return self.table.through, used

    def first_time(self) -> int | None:
        """Return the time of the oldest message."""
        files = self.table.files(self.table.first, self.table.first)
        return files[0].first_time if files else None

    def _file(self, seq: int) -> ArchiveFile:
        files = self.table.files(seq, seq)
        if not files:
            raise self._hole(seq, seq)
        return files[0]

    def _piece(self, seq: int) -> _Piece:
        file = self._file(seq)
        footer = self._footer(file)
        group = footer.group_of(seq)
        rows = footer.metadata.row_group(group).num_rows
        whole = rows <= WHOLE_ROWS and footer.metadata.row_group(group).total_byte_size <= WHOLE_BYTES
        height = rows if whole else PIECE_ROWS
        number = (seq - footer.edges[group]) // height
        found = self._pieces.get((file.path, group, number))
        return found or self._decoded(file, footer, group, number, height)

    def _decoded(self, file: ArchiveFile, footer: _Footer, group: int, number: int, height: int) -> _Piece:
        key = file.path, group
        with self._scanning:
            scan = self._scans.pop(key, None)
        try:
            if scan is None or scan.next > number:
                whole = height == footer.metadata.row_group(group).num_rows
                scan = _Scan(self._open(file, footer, whole=whole), group, height)
            while scan.next <= number:
                piece = self._checked(file, footer.edges[group] + scan.next * height, scan.take())
                self._pieces.put((*key, scan.next - 1), piece, piece.rows.nbytes)
        except (OSError, pa.ArrowException, StopIteration) as error:
            raise ArchiveError(self._place, file.first, file.last, f"{file.path}: {error}") from error
        if scan.next * height < footer.metadata.row_group(group).num_rows:
            with self._scanning:
                self._scans[key] = scan
                if len(self._scans) > _SCANS:
                    self._scans.popitem(last=False)
        return piece

    def _checked(self, file: ArchiveFile, first: int, rows: pa.RecordBatch) -> _Piece:
        seqs = rows.column("seq").to_numpy()
        if not np.array_equal(seqs, np.arange(first, first + len(seqs))):
            reason = f"{file.path}: its numbers are not those from {first} on"
            raise ArchiveError(self._place, file.first, file.last, reason)
        return _Piece(first, rows)

    def _footer(self, file: ArchiveFile) -> _Footer:
        found = self._footers.get(file.path)
        if found is not None:
            return found
        try:
            with self.table.filesystem.open_input_file(file.path) as opened:
                metadata = pq.read_metadata(opened)
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(self._place, file.first, file.last, f"{file.path}: {error}") from error
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        edges = list(accumulate(counts, initial=file.first))
        if edges[-1] != file.last + 1:
            reason = f"{file.path}: it has {edges[-1] - file.first} messages where {file.rows} were written"
            raise ArchiveError(self._place, file.first, file.last, reason)
        columns = [metadata.schema.column(place).path for place in range(len(metadata.schema))]
        found = _Footer(metadata, edges, columns.index("topic"))
        self._footers.put(file.path, found, metadata.serialized_size * _FOOTER_SIZE)
        return found

    def _open(self, file: ArchiveFile, footer: _Footer, *, whole: bool) -> pq.ParquetFile:
        source = self.table.filesystem.open_input_file(file.path)
        return open_parquet(source, footer.metadata, buffer_size=_BUFFER, pre_buffer=whole)

    def _hole(self, first: int, last: int) -> ArchiveError:
        table = self.table
        return ArchiveError(
            self._place, first, last, f"it has messages {table.first} to {table.through} without these"
        )


class _Scan:
    """A row group that is being decoded: piece after piece."""

    def __init__(self, file: pq.ParquetFile, group: int, height: int) -> None:
        self._batches: Iterator[pa.RecordBatch] = file.iter_batches(height, [group], use_threads=False)
        self.next = 0
        """The number of the next piece."""

    def take(self) -> pa.RecordBatch:
        rows = enveloped(next(self._batches))
        self.next += 1
        return rows


def _may_have(footer: _Footer, group: int, names: frozenset[str]) -> bool:
    """Whether a row group may have messages of these topics, by its least and greatest topic."""
    known = footer.metadata.row_group(group).column(footer.topic_column).statistics
    if known is None or not known.has_min_max:
        return True
    least, greatest = known.min.encode(), known.max.encode()
    # A long topic may be cut short in the statistics: what begins with it is not ruled out.
    return any(least <= name.encode() and name.encode()[: len(greatest)] <= greatest for name in names)
