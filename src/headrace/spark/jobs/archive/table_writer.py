"""Write micro-batches to an archive: tasks write the files, the driver commits them.

A micro-batch is three steps, of which only the second has an effect for readers:

1. Tasks read their ranges of the sequence, and write new files that do not count yet. Messages that the archive has are
   left out, so a micro-batch that comes again, differently split, or from another checkpoint, adds nothing twice.
2. The driver commits the files, if they follow what is there. What follows is decided by the ledger: whoever commits
   second is refused (:mod:`headrace.archive.ledger`).
3. Tasks merge small files into larger ones, and the driver commits that. The old files stay for readers who listed them
   until a vacuum.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.archive.appending import check_history
from headrace.archive.compaction import due
from headrace.archive.folder import Folder, in_one_line, storage_errors
from headrace.archive.ledger import Ledger, Writer
from headrace.archive.parquet_file import (
    FILE_BYTES,
    FILE_SCHEMA,
    ArchiveFile,
    file_row,
    files_of,
    merge_files,
    write_files,
)
from headrace.errors import OvertakenError, StorageError
from headrace.message import SCHEMA
from headrace.spark.jobs.job import spark_ddl
from headrace.spark.options import SourceOptions
from headrace.spark.source.range_source import over_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("headrace.spark")

VACUUM_SECONDS: Final = 3600.0
"""Interval at which files that have not counted for long are removed."""


@dataclass(frozen=True, slots=True)
class Added:
    """The result of a micro-batch: the archive's last message now, and how many messages came."""

    through: int
    messages: int


class ArchiveWriter:
    """An archive being written."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        holes: bool = False,
        keep: float = 7 * 24 * 3600,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Write to a ledger's archive.

        ``holes``
            Whether messages may be missing: those that retention removed, and the user decided to skip.
        ``keep``
            Seconds for which files that no longer count stay for readers.
        """
        self._ledger = ledger
        self._holes = holes
        self._keep = keep
        self._file_bytes = file_bytes
        self._vacuumed = monotonic() - VACUUM_SECONDS

    @property
    def through(self) -> int:
        """The last archived sequence number; 0 if there is none."""
        return self._ledger.through

    def check_history(self, last: Iterable[pa.RecordBatch]) -> None:
        """Raise if the hub's message that the archive ends with is another one."""
        check_history(self._ledger, last)

    def add(self, rows: DataFrame, writer: Writer, reading: SourceOptions | None = None) -> Added:
        """Archive what is new of a micro-batch; with ``reading``, rows are ranges to be read."""
        files = self._write(rows, reading)
        if files:
            self._check_order(files)
            self._ledger.append(files, writer)
            self._tidy(rows.sparkSession)
        return Added(self.through, sum(file.rows for file in files))

    def _write(self, rows: DataFrame, reading: SourceOptions | None) -> list[ArchiveFile]:
        ledger = self._ledger
        write = partial(_write_rows, ledger.folder, ledger.staging, ledger.log, ledger.through)
        if reading is None:
            made = rows.select(*SCHEMA.names).mapInArrow(write, spark_ddl(FILE_SCHEMA))
        else:
            made = rows.mapInArrow(partial(over_ranges, write, reading), spark_ddl(FILE_SCHEMA))
        return files_of(made.toArrow())

    def _check_order(self, files: Sequence[ArchiveFile]) -> None:
        through = self.through
        for file in files:
            if file.first <= through:
                raise StorageError(
                    f"messages {file.first} to {file.last} came after message {through}: not archived"
                )
            if through and file.first != through + 1 and not self._holes:
                raise StorageError(
                    f"{self._ledger.folder.path}: messages {through + 1} to {file.first - 1} would be missing: not "
                    "archived. Start where the archive ends, or choose another path"
                )
            through = file.last

    def _tidy(self, spark: SparkSession) -> None:
        """Merge small files and remove old ones; a failure costs only speed, unless somebody else writes here."""
        try:
            self._merge(spark)
            if monotonic() - self._vacuumed >= VACUUM_SECONDS:
                self._vacuumed = monotonic()
                self._ledger.vacuum(self._keep)
        except OvertakenError:
            raise
        except Exception as error:  # noqa: BLE001 - the messages are archived
            logger.warning("files of the archive stay as they are: %s", in_one_line(error))

    def _merge(self, spark: SparkSession) -> None:
        ledger = self._ledger
        if not ledger.merges:
            return
        groups = due(sorted(ledger.files(), key=lambda file: file.first), self._file_bytes)
        if not groups:
            return
        parts = pa.array([json.dumps([asdict(part) for part in group]) for group in groups])
        merge = partial(_merge_rows, ledger.folder, ledger.staging, ledger.log)
        told = spark.createDataFrame(pa.table({"parts": parts}))
        merged = files_of(told.mapInArrow(merge, spark_ddl(FILE_SCHEMA)).toArrow())
        ledger.replace([part for group in groups for part in group], merged)


def _write_rows(
    table: Folder, below: str, log: str, after: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with storage_errors(table.path):
        for file in write_files(table, below, log, after, batches):
            yield file_row(file)


def _merge_rows(
    table: Folder, below: str, log: str, told: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in told:
        for parts in batch.column("parts").to_pylist():
            with storage_errors(table.path):
                merged = merge_files(table, below, log, [ArchiveFile(**part) for part in json.loads(parts)])
            yield file_row(merged)
