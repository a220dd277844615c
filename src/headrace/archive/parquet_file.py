"""The files of an archive: written once, in the order of the sequence, and never changed.

A file is plain Parquet in exactly the envelope's schema. Its messages follow one another without a hole, its metadata
names their log, and every page has a checksum. Its name begins with its first sequence number and ends with a random
word: no two writers ever write the same file, so nobody replaces what somebody reads.

:func:`write_files` and :func:`merge_files` are what tasks do. A file counts when a ledger lists it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive.folder import Folder, storage_errors
from headrace.errors import StorageError
from headrace.message import SCHEMA, envelope_rows

FILE_BYTES: Final = 128 << 20
"""The size at which a file is complete."""

GROUP_ROWS: Final = 131_072
GROUP_BYTES: Final = 32 << 20
"""The size of a row group: a task keeps it in memory, and a reader reads it at once."""

REPEATING: Final = ("origin", "publisher", "topic")
"""Columns whose values repeat. Sequence numbers, times and payloads hardly do."""

LOG_KEY: Final = b"headrace.log"
SUFFIX: Final = ".parquet"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One file: messages ``first`` to ``last``, and the times of these two in µs since 1970."""

    path: str
    """Its path in the table."""
    first: int
    last: int
    rows: int
    size: int
    first_time: int
    last_time: int


FILE_SCHEMA: Final = pa.schema(
    [
        (name, pa.string() if name == "path" else pa.int64())
        for name in ("path", "first", "last", "rows", "size", "first_time", "last_time")
    ]
)
"""Files as rows, which tasks return to the driver."""


def file_row(file: ArchiveFile) -> pa.RecordBatch:
    """Make a row of :data:`FILE_SCHEMA`."""
    return pa.RecordBatch.from_pylist(
        [{name: getattr(file, name) for name in FILE_SCHEMA.names}], FILE_SCHEMA
    )


def files_of(rows: pa.Table) -> list[ArchiveFile]:
    """Return the files of such rows, in the order of the sequence."""
    return sorted((ArchiveFile(**row) for row in rows.to_pylist()), key=lambda file: file.first)


def write_files(
    table: Folder, below: str, log: str, after: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[ArchiveFile]:
    """Write rows to new files in the folder ``below`` of a table; leave out those up to ``after``.

    A file ends where it is complete, and before a hole.
    """
    writer: _Writer | None = None
    last = after
    for batch in batches:
        for rows in _without_holes(_ordered(enveloped(batch), after, last)):
            first = rows.column("seq")[0].as_py()
            if writer is not None and (first != writer.last + 1 or writer.size >= FILE_BYTES):
                yield writer.close()
                writer = None
            if writer is None:
                writer = _Writer(table, below, log, first)
            writer.write(rows)
            last = writer.last
    if writer is not None:
        yield writer.close()


def merge_files(table: Folder, below: str, log: str, parts: Sequence[ArchiveFile]) -> ArchiveFile:
    """Write the messages of adjacent files to a new one."""
    writer = _Writer(table, below, log, parts[0].first)
    for part in parts:
        with table.open(part.path) as file:
            for batch in open_parquet(file).iter_batches(GROUP_ROWS):
                writer.write(enveloped(batch))
    merged = writer.close()
    if (merged.last, merged.rows) != (parts[-1].last, sum(part.rows for part in parts)):
        raise StorageError(
            f"{table.path}: {len(parts)} files of messages {parts[0].first} to {parts[-1].last} "
            f"have {merged.rows} messages up to {merged.last}: not merged"
        )
    return merged


def open_parquet(source: Any, metadata: pq.FileMetaData | None = None, **options: Any) -> pq.ParquetFile:
    """Open a file, verifying the checksums of its pages: otherwise most flipped bits would change a message."""
    return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True, **options)


def read_facts(table: Folder, path: str) -> tuple[str | None, ArchiveFile]:
    """Read a file's log and contents from its footer, for a ledger that has no statistics of it."""
    with storage_errors(f"{table.path}/{path}"), table.open(path) as file:
        size = file.size()
        footer = pq.read_metadata(file)
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        columns = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
        seqs, times = (
            [group.column(columns[name]).statistics for group in groups if group.num_rows]
            for name in ("seq", "time")
        )
        log = (footer.metadata or {}).get(LOG_KEY)
        return None if log is None else log.decode(), ArchiveFile(
            path,
            min(each.min for each in seqs),
            max(each.max for each in seqs),
            footer.num_rows,
            size,
            min(pa.scalar(each.min, SCHEMA.field("time").type).value for each in times),
            max(pa.scalar(each.max, SCHEMA.field("time").type).value for each in times),
        )


def enveloped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows to exactly the envelope's schema: Spark changes its nullability."""
    return envelope_rows({field.name: batch.column(field.name).cast(field.type) for field in SCHEMA})


class _Writer:
    """One unfinished file: takes rows, writes row groups."""

    def __init__(self, table: Folder, below: str, log: str, first: int) -> None:
        self.first, self.last, self.rows = first, first - 1, 0
        self._folder = table.sub(below)
        # Whoever looks for Parquet in the folder must find only what counts.
        self._name = f"{first:015d}-{uuid4().hex}{'' if below.startswith('_') else SUFFIX}"
        self._path = f"{below}/{self._name}"
        self._times: tuple[int, int] | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._file = self._folder.create(self._name)
        self._parquet = pq.ParquetWriter(
            self._file,
            SCHEMA.with_metadata({LOG_KEY: log.encode()}),
            compression="zstd",
            use_dictionary=list(REPEATING),
            write_page_checksum=True,
        )

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._file.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self.last = rows.column("seq")[-1].as_py()
            times = rows.column("time")
            first = times[0].value if self._times is None else self._times[0]
            self._times = (first, times[-1].value)
            self.rows += rows.num_rows
            self._waiting.append(rows)
            self._waiting_rows += rows.num_rows
            self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> ArchiveFile:
        """Finish the file, and have it on the disk."""
        self._flush()
        self._parquet.close()
        size = self.size
        self._file.close()
        self._folder.sync(self._name)
        first_time, last_time = self._times or (0, 0)
        return ArchiveFile(self._path, self.first, self.last, self.rows, size, first_time, last_time)

    def _flush(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def _ordered(rows: pa.RecordBatch, after: int, last: int) -> pa.RecordBatch:
    """The rows after ``after``; all of them must be after ``last`` and in order."""
    seqs = rows.column("seq").to_numpy()
    ascending = bool((np.diff(seqs) > 0).all())
    begin = int(np.searchsorted(seqs, after, side="right")) if ascending else 0
    rows, seqs = rows.slice(begin), seqs[begin:]
    if not ascending or (len(seqs) and seqs[0] <= last):
        raise StorageError(f"messages {seqs.min()} to {seqs.max()} came out of order: not archived")
    return rows


def _without_holes(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    seqs = rows.column("seq").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(seqs) != 1) + 1).tolist(), len(seqs)]
    for begin, end in itertools.pairwise(edges):
        if end > begin:
            yield rows.slice(begin, end - begin)
