"""An archive that is a folder of Parquet files and nothing else.

A folder has no transactions. Three rules keep it correct for readers at every moment, whatever is killed:

- **Whole files.** Tasks write to a folder that readers skip; a file is moved to its place when it is whole.
- **In order.** The driver moves the files of a micro-batch in the order of the sequence. So the archive is always the
  sequence up to some number, ``through``, which is in its newest file. Rows up to there are skipped when a micro-batch
  is repeated, or after a checkpoint was lost.
- **Grown, not compacted.** A file is named after its first sequence number. While the newest one is small, new rows are
  appended to a copy, which replaces it in one move. Joining small files later would for a moment show a message twice
  or not at all. To limit copying, only files up to a quarter of the full size grow.

Spark reads such a folder itself, but from S3 only with further jars: there tasks read the files by pyarrow
(:func:`archived_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.jobs.archive.files import (
    FILE_BYTES,
    Added,
    StagedFile,
    another_log,
    enveloped,
    file_facts,
    folder_of,
    in_order,
    join,
    parse_hour,
    stage,
)
from headrace.spark.jobs.folder import MAKING, Folder, storage_errors
from headrace.spark.options import SourceOptions
from headrace.spark.source.reader import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """A file of the archive: its hour (since 1970), its first and last message, and its size."""

    hour: int
    first: int
    last: int
    size: int

    @property
    def name(self) -> str:
        """Its name in its hour's folder."""
        return f"{self.first:015d}.parquet"


class ParquetArchive:
    """An archive in a folder, written by one process at a time."""

    def __init__(self, folder: Folder, log: str, *, file_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._log = log
        self._file_bytes = file_bytes
        self._making = folder.sub(MAKING)
        with storage_errors(folder.path):
            self._making.remove_all()
            self.newest = self._find_newest()

    @property
    def through(self) -> int:
        """The last archived sequence number; 0 if there is none."""
        return 0 if self.newest is None else self.newest.last

    def add(self, rows: DataFrame, reading: SourceOptions | None = None) -> Added:
        """Archive what is new of a micro-batch; with ``reading``, rows are ranges to be read."""
        files = stage(rows, self._making, self.through, self._log, reading)
        in_order(files, self.through, 0 if self.newest is None else self.newest.hour)
        with storage_errors(self._folder.path):
            for group in self._groups(files):
                self._place(group)
            self._making.remove_all()
        return Added(self.through, sum(file.rows for file in files))

    def _find_newest(self) -> ParquetFile | None:
        found = _newest_file(self._folder)
        if found is None:
            return None
        place, name, hour = found
        log, last = file_facts(place, name)
        if log != self._log:
            raise another_log(self._folder.path, log, self._log)
        return ParquetFile(hour, int(name.removesuffix(".parquet")), last, place.size(name))

    def _groups(self, files: Iterable[StagedFile]) -> Iterator[list[tuple[str | None, ParquetFile]]]:
        """Group files of one hour that become one file; the archive's newest file has no name."""
        group: list[tuple[str | None, ParquetFile]] = [] if self.newest is None else [(None, self.newest)]
        for each in files:
            file = ParquetFile(each.hour, each.first, each.last, each.bytes)
            size = sum(known.size for _, known in group)
            grown = size >= self._file_bytes // 4 or size + file.size > self._file_bytes
            if group and (grown or file.hour != group[0][1].hour):
                yield group
                group = []
            group.append((each.name, file))
        yield group

    def _place(self, group: Sequence[tuple[str | None, ParquetFile]]) -> None:
        if all(name is None for name, _ in group):
            return
        first, last = group[0][1], group[-1][1]
        folder = self._folder.sub(folder_of(first.hour))
        name = group[0][0]
        if name is None or len(group) > 1:
            parts = [
                (folder, part.name) if staged_name is None else (self._making, staged_name)
                for staged_name, part in group
            ]
            name = join(parts, self._making, self._log, last.last)
        file = ParquetFile(first.hour, first.first, last.last, self._making.size(name))
        self._making.move(name, folder, file.name)
        self.newest = file


def log_of(folder: Folder) -> str | None:
    """Return the log of an archive; ``None`` if there is no archive."""
    with storage_errors(folder.path):
        found = _newest_file(folder)
        return None if found is None else file_facts(*found[:2])[0]


def archived_rows(spark: SparkSession, folder: Folder, wanted: pc.Expression | None = None) -> DataFrame:
    """Return the messages of an archive in Parquet, at least those ``wanted`` by ``seq`` and ``time``.

    Each task's messages are in order; the tasks are not.
    """
    with storage_errors(folder.path):
        names = list(_files(folder))
    parts = max(min(len(names), spark.sparkContext.defaultParallelism), 1)
    listed = spark.createDataFrame(pa.table({"name": pa.array(names, pa.string())})).repartition(parts)
    return listed.mapInArrow(partial(_read, folder, wanted), SPARK_SCHEMA)


def _files(folder: Folder) -> Iterator[str]:
    for day in folder.names():
        if day.startswith("day="):
            for hour in folder.sub(day).names():
                for name in folder.sub(day).sub(hour).names():
                    if name.endswith(".parquet"):
                        yield f"{day}/{hour}/{name}"


def _read(
    folder: Folder, wanted: pc.Expression | None, listed: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # It imports pandas, which other jobs must not wait for.
    import pyarrow.dataset as ds

    for batch in listed:
        for name in batch.column("name").to_pylist():
            with storage_errors(f"{folder.path}/{name}"):
                file = ds.dataset(f"{folder.path}/{name}", format="parquet", filesystem=folder.system)
                for rows in file.to_batches(filter=wanted, batch_size=_BATCH_ROWS, use_threads=False):
                    yield enveloped(rows)


def _newest_file(folder: Folder) -> tuple[Folder, str, int] | None:
    """Return the folder, name and hour of an archive's newest file."""
    for day in reversed(_named(folder.names(), "day=")):
        for hour in reversed(_named(folder.sub(day).names(), "hour=")):
            place = folder.sub(day).sub(hour)
            names = [name for name in place.names() if name.endswith(".parquet")]
            if names:
                return place, names[-1], parse_hour(day, hour)
    return None


def _named(names: Iterable[str], beginning: str) -> list[str]:
    return [name for name in names if name.startswith(beginning)]
