"""Read messages from an archive's files in an executor, as Arrow record batches.

Files never change, and their row groups have statistics: those that cannot have a wanted message are skipped unread, by
its number and, where one topic is asked for, by the topic. Only the columns that are needed are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.archive.folder import Folder, storage_errors
from headrace.archive.parquet_file import LOG_KEY, open_parquet
from headrace.errors import StorageError
from headrace.message import SCHEMA
from headrace.spark.options import SourceOptions

if TYPE_CHECKING:
    from headrace.archive import ArchiveTable
    from headrace.hub.filters import Filter


def archived_rows(
    options: SourceOptions,
    place: str,
    log: str,
    paths: Sequence[str],
    first: int,
    last: int,
    wanted: Filter | None,
) -> Iterator[pa.RecordBatch]:
    """Yield messages ``first`` to ``last`` of files that have all of them, as far as they pass the filter."""
    folder = Folder.at(place)
    columns = _needed(options)
    cursor = first
    for path in paths:
        with storage_errors(f"{folder.path}/{path}"), folder.open(path) as file:
            parquet = open_parquet(file, pre_buffer=True)
            found = (parquet.metadata.metadata or {}).get(LOG_KEY)
            if found is not None and found.decode() != log:
                raise StorageError(f"{folder.path}/{path} has messages of log {found.decode()}, not of {log}")
            for group in range(parquet.num_row_groups):
                begin, end = _numbers(parquet, group)
                if end < cursor or begin > last:
                    continue
                if begin > cursor:
                    raise _missing(folder, path, cursor, begin - 1)
                upto = min(end, last)
                if not _ruled_out(parquet, group, options.topic):
                    for rows in parquet.read_row_group(group, columns).to_batches():
                        chosen = _between(_enveloped(rows), cursor, upto)
                        yield chosen if wanted is None else wanted.apply(chosen)
                cursor = upto + 1
    if cursor <= last:
        raise _missing(folder, paths[-1], cursor, last)


def first_archived_at(table: ArchiveTable, time: int) -> int:
    """Return the first message of an archive that is stamped at ``time`` (µs) or later, or the one after its last."""
    for file in table.files(table.first, table.through):
        if file.last_time < time:
            continue
        if file.first_time >= time:
            return file.first
        with storage_errors(file.path), table.folder.open(file.path) as opened:
            rows = pq.read_table(opened, columns=["seq", "time"])
        times = rows.column("time").cast(pa.int64()).to_numpy()
        return int(rows.column("seq")[int(np.searchsorted(times, time))].as_py())
    return table.through + 1


def _needed(options: SourceOptions) -> list[str] | None:
    """The columns to read; ``None`` for all."""
    if options.columns is None:
        return None
    needed = {"seq", *options.columns}
    if options.topic is not None:
        needed.add("topic")
    if options.origins is not None:
        needed.add("origin")
    if options.where is not None:
        needed |= {"attributes", "numbers"}
    return [name for name in SCHEMA.names if name in needed]


def _numbers(parquet: pq.ParquetFile, group: int) -> tuple[int, int]:
    found = _statistics(parquet, group, "seq")
    if found is None:
        raise StorageError(
            "a row group has no statistics of its sequence numbers: it is no file of an archive"
        )
    return int(found.min), int(found.max)


def _ruled_out(parquet: pq.ParquetFile, group: int, topic: str | None) -> bool:
    """Whether a row group has no message of a topic, or of any that its pattern's beginning allows."""
    if topic is None or (found := _statistics(parquet, group, "topic")) is None:
        return False
    exact, wild, _ = topic.partition("*")
    if wild:
        return bool(found.max[: len(exact)] < exact or found.min[: len(exact)] > exact)
    return not found.min <= exact <= found.max


def _statistics(parquet: pq.ParquetFile, group: int, name: str) -> Any:
    # Maps take several columns of a file, each of which has a path.
    place = next(at for at in range(len(parquet.schema)) if parquet.schema.column(at).path == name)
    found = parquet.metadata.row_group(group).column(place).statistics
    return found if found is not None and found.has_min_max else None


def _between(rows: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    seqs = rows.column("seq").to_numpy()
    begin, end = np.searchsorted(seqs, [first, last + 1])
    return rows.slice(int(begin), int(end - begin))


def _enveloped(rows: pa.RecordBatch) -> pa.RecordBatch:
    fields = [SCHEMA.field(name) for name in rows.schema.names]
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _missing(folder: Folder, path: str, first: int, last: int) -> StorageError:
    return StorageError(
        f"{folder.path}/{path}: messages {first} to {last} are not where the archive lists them"
    )
