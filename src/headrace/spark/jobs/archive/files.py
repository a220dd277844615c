"""The files of an archive of any format: how tasks write them, and how several become one.

A file has messages of one hour, in the order of the sequence, in exactly the envelope's schema; its metadata names
their log and the last message. Tasks write files where nobody sees them (:func:`staged`); the driver moves them to
their place, or joins small adjacent ones (:func:`join`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageError, UsageError
from headrace.message import SCHEMA, envelope_rows
from headrace.spark.jobs.folder import Folder
from headrace.spark.jobs.job import spark_ddl
from headrace.spark.options import SourceOptions
from headrace.spark.source.parquet_files import GROUP_ROWS, NAMES, RowGroups
from headrace.spark.source.range_source import over_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE_BYTES: Final = 64 << 20
"""The size at which a file is complete."""

LOG_KEY: Final = b"headrace.log"
LAST_KEY: Final = b"headrace.last"

_HOUR: Final = 3_600_000_000


class StagedFile(NamedTuple):
    """A file that a task has written: its name in the folder of unfinished files, and its content."""

    name: str
    hour: int
    first: int
    last: int
    rows: int
    bytes: int


_STAGED: Final = pa.schema(
    [(name, pa.string() if name == "name" else pa.int64()) for name in StagedFile._fields]
)


@dataclass(frozen=True, slots=True)
class Added:
    """The result of a micro-batch: the archive's last message now, and how many messages came."""

    through: int
    messages: int


def stage(
    rows: DataFrame, folder: Folder, after: int, log: str, reading: SourceOptions | None = None
) -> list[StagedFile]:
    """Write rows to files that nobody sees yet, in tasks; return the files in the order of the sequence."""
    files = staged(rows, folder, after, log, reading).toArrow().sort_by("first")
    return [StagedFile(**row) for row in files.to_pylist()]


def staged(
    rows: DataFrame, folder: Folder, after: int, log: str, reading: SourceOptions | None = None
) -> DataFrame:
    """Write rows in the envelope's schema to files that nobody sees yet; return a row per :class:`StagedFile`.

    Rows up to ``after`` are left out. Each partition must be in the order of the sequence, as the source gives it.
    With ``reading``, rows are not messages but ranges of them, which tasks read themselves.
    """
    write = partial(write_files, folder, after, log)
    if reading is not None:
        return rows.mapInArrow(partial(over_ranges, write, reading), spark_ddl(_STAGED))
    return rows.select(*SCHEMA.names).mapInArrow(write, spark_ddl(_STAGED))


def in_order(files: Iterable[StagedFile], through: int, hour: int) -> None:
    """Raise if files would break the order after ``through``, whose hour is ``hour``."""
    for file in files:
        if file.first <= through or file.hour < hour:
            raise StorageError(
                f"messages {file.first} to {file.last} came after message {through}: not archived"
            )
        through, hour = file.last, file.hour


def write_files(
    folder: Folder, after: int, log: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write rows to files by hour, in a task; yield a row for each file."""
    hour, writer = 0, None
    last = after
    for batch in batches:
        for each, rows in _by_hour(_ordered(enveloped(batch), after, last)):
            if writer is not None and (each != hour or writer.size >= FILE_BYTES):
                yield _described(writer, hour)
                writer = None
            if writer is None:
                hour, writer = each, _Writer(folder, log)
            writer.write(rows)
            last = writer.last
    if writer is not None:
        yield _described(writer, hour)


def join(parts: Sequence[tuple[Folder, str]], folder: Folder, log: str, last: int) -> str:
    """Join adjacent files, row group by row group; return the new file's name."""
    writer = _Writer(folder, log)
    for place, part in parts:
        with place.open(part) as file:
            for batch in pq.ParquetFile(file).iter_batches(GROUP_ROWS):
                writer.write(enveloped(batch))
    if writer.last != last:
        raise StorageError(f"a file of messages up to {last} ends with {writer.last}: not archived")
    writer.close()
    return writer.name


def enveloped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows to exactly the envelope's schema: Spark changes its nullability."""
    return envelope_rows({field.name: batch.column(field.name).cast(field.type) for field in SCHEMA})


def file_facts(folder: Folder, name: str) -> tuple[str, int]:
    """Read the log and the last message from a file's metadata."""
    with folder.open(name) as file:
        facts = pq.read_metadata(file).metadata or {}
    log, last = facts.get(LOG_KEY), facts.get(LAST_KEY)
    if log is None or last is None:
        raise UsageError(f"{folder.path}/{name} is no file of an archive: choose another path")
    return log.decode(), int(last)


def another_log(path: str, theirs: str, ours: str) -> UsageError:
    """Make the error for an archive of another log."""
    return UsageError(
        f"{path} has the archive of log {theirs}, and the hub's log is {ours}: choose another path"
    )


def day_and_hour(hour: int) -> tuple[str, str]:
    """Return the day, and the hour of the day, of an hour since 1970.

    >>> day_and_hour(491_557)
    ('2026-01-28', '13')
    """
    then = datetime.fromtimestamp(hour * 3600, UTC)
    return f"{then:%Y-%m-%d}", f"{then:%H}"


def folder_of(hour: int) -> str:
    """Return the folder for files of an hour.

    >>> folder_of(491_557)
    'day=2026-01-28/hour=13'
    """
    day, of_day = day_and_hour(hour)
    return f"day={day}/hour={of_day}"


def parse_hour(day: str, hour: str) -> int:
    """Parse the folders ``day=…`` and ``hour=…``: return the hour since 1970."""
    try:
        then = datetime.strptime(f"{day[4:]} {hour[5:]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"{day}/{hour} is no folder of an archive: choose another path") from None
    return int(then.timestamp()) // 3600


class _Writer:
    """One unfinished file: takes rows, writes row groups."""

    def __init__(self, folder: Folder, log: str) -> None:
        self.name = uuid4().hex
        self.first = self.last = self.rows = 0
        self._file = folder.create(self.name)
        schema = SCHEMA.with_metadata({LOG_KEY: log.encode()})
        self._groups = RowGroups(
            self._file, schema, compression="zstd", use_dictionary=list(NAMES), store_schema=True
        )

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._file.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        seqs = rows.column("seq")
        self.first = self.first or seqs[0].as_py()
        self.last = seqs[-1].as_py()
        self.rows += rows.num_rows
        self._groups.write(rows, rows.nbytes)

    def close(self) -> int:
        """Finish the file; return its size."""
        self._groups.close({LAST_KEY.decode(): str(self.last)})
        size = self.size
        self._file.close()
        return size


def _ordered(rows: pa.RecordBatch, after: int, last: int) -> pa.RecordBatch:
    """The rows after ``after``; all of them must be after ``last`` and in order."""
    seqs = rows.column("seq").to_numpy()
    ascending = bool((np.diff(seqs) > 0).all())
    begin = int(np.searchsorted(seqs, after, side="right")) if ascending else 0
    rows, seqs = rows.slice(begin), seqs[begin:]
    if not ascending or (len(seqs) and seqs[0] <= last):
        raise StorageError(f"messages {seqs.min()} to {seqs.max()} came out of order: not archived")
    return rows


def _by_hour(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    hours = rows.column("time").cast(pa.int64()).to_numpy() // _HOUR
    edges = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), len(hours)]
    for begin, end in itertools.pairwise(edges):
        if end > begin:
            yield int(hours[begin]), rows.slice(begin, end - begin)


def _described(writer: _Writer, hour: int) -> pa.RecordBatch:
    size = writer.close()
    made = StagedFile(writer.name, hour, writer.first, writer.last, writer.rows, size)
    return pa.RecordBatch.from_pylist([made._asdict()], _STAGED)
