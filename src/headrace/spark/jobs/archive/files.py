"""The files of an archive, whatever keeps account of them: how tasks write them, and how several become one.

A file has messages of one hour, in the order of the sequence, in exactly the envelope's schema, and says in its
metadata which log they are of and which is the last. Tasks write files where nobody sees them (:func:`staged`); the
driver puts them in their place, or joins those that follow one another and are small (:func:`join`).
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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import StorageError, UsageError
from headrace.message import NOT_A_MESSAGE, SCHEMA
from headrace.spark.jobs.folder import Folder
from headrace.spark.options import SourceOptions
from headrace.spark.source.parquet_files import GROUP_ROWS, NAMES, RowGroups
from headrace.spark.source.range_source import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE_BYTES: Final = 64 << 20
"""A file that has this many bytes is large enough."""

LOG_KEY: Final = b"headrace.log"
LAST_KEY: Final = b"headrace.last"

_HOUR: Final = 3_600_000_000
_STAGED: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("hour", pa.int64()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
STAGED: Final = "name string, hour long, first long, last long, rows long, messages long, bytes long"


class StagedFile(NamedTuple):
    """A file that a task has written: its name in the making, and what :data:`STAGED` tells of it."""

    name: str
    hour: int
    first: int
    last: int
    rows: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Added:
    """What a micro-batch brought: how far the archive reaches now, and how many messages came (entries not counted)."""

    through: int
    messages: int


def stage(
    rows: DataFrame, folder: Folder, after: int, log: str, reading: SourceOptions | None = None
) -> list[StagedFile]:
    """Have tasks write rows to files that nobody sees yet; returns the files in the order of the sequence."""
    made = staged(rows, folder, after, log, reading).toArrow().sort_by("first")
    return [StagedFile(**row) for row in made.to_pylist()]


def staged(
    rows: DataFrame, folder: Folder, after: int, log: str, reading: SourceOptions | None = None
) -> DataFrame:
    """Rows in the envelope's schema, written to files that nobody sees yet; one row per file says what it has.

    Rows up to ``after`` are left out. Each partition must be in the order of the sequence, as the source gives it.
    With ``reading``, rows are not messages but ranges of them, which tasks read themselves.
    """
    if reading is not None:
        return rows.mapInArrow(partial(_write_ranges, reading, folder, after, log), STAGED)
    columns = rows.select(*SCHEMA.names)
    return columns.mapInArrow(partial(write_files, folder, after, log), STAGED)


def in_order(files: Iterable[StagedFile], through: int, hour: int) -> None:
    """Nothing is archived that would break the order behind ``through``, whose hour is ``hour``."""
    for file in files:
        if file.first <= through or file.hour < hour:
            raise StorageError(
                f"messages {file.first} to {file.last} came behind message {through}: not archived"
            )
        through, hour = file.last, file.hour


def write_files(
    folder: Folder, after: int, log: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task: rows to files by hour; yields what each file has."""
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


def _write_ranges(
    reading: SourceOptions, folder: Folder, after: int, log: str, ranges: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task: the messages of ranges to files by hour."""
    return write_files(folder, after, log, rows_of(reading, ranges))


def join(parts: Sequence[tuple[Folder, str]], folder: Folder, log: str, last: int) -> str:
    """One file of several that follow one another, row group by row group; returns its name."""
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
    """The same rows in exactly the schema that archives have, whatever Spark made of its nullability."""
    return pa.RecordBatch.from_arrays(
        [batch.column(field.name).cast(field.type) for field in SCHEMA], schema=SCHEMA
    )


def told(folder: Folder, name: str) -> tuple[str, int]:
    """What a file of an archive says of itself: its log, and its last message."""
    with folder.open(name) as file:
        facts = pq.read_metadata(file).metadata or {}
    log, last = facts.get(LOG_KEY), facts.get(LAST_KEY)
    if log is None or last is None:
        raise UsageError(f"{folder.path}/{name} is no file of an archive: choose another path")
    return log.decode(), int(last)


def another_log(path: str, theirs: str, ours: str) -> UsageError:
    """An archive is of one log."""
    return UsageError(
        f"{path} has the archive of log {theirs}, and the hub's log is {ours}: choose another path"
    )


def day_and_hour(hour: int) -> tuple[str, str]:
    """The day and the hour of it, of an hour since 1970.

    >>> day_and_hour(491_557)
    ('2026-01-28', '13')
    """
    then = datetime.fromtimestamp(hour * 3600, UTC)
    return f"{then:%Y-%m-%d}", f"{then:%H}"


def folder_of(hour: int) -> str:
    """Where files of an hour are.

    >>> folder_of(491_557)
    'day=2026-01-28/hour=13'
    """
    day, of_day = day_and_hour(hour)
    return f"day={day}/hour={of_day}"


def parse_hour(day: str, hour: str) -> int:
    """The hour since 1970 of the folders ``day=…`` and ``hour=…``."""
    try:
        then = datetime.strptime(f"{day[4:]} {hour[5:]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"{day}/{hour} is no folder of an archive: choose another path") from None
    return int(then.timestamp()) // 3600


class _Writer:
    """One file in the making: rows in, row groups out."""

    def __init__(self, folder: Folder, log: str) -> None:
        self.name = uuid4().hex
        self.first = self.last = self.rows = self.messages = 0
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
        entries = pc.sum(pc.equal(rows.column("origin"), NOT_A_MESSAGE)).as_py() or 0
        self.rows += rows.num_rows
        self.messages += rows.num_rows - entries
        self._groups.write(rows, rows.nbytes)

    def close(self) -> int:
        """Finish the file; return its size."""
        self._groups.close({LAST_KEY.decode(): str(self.last)})
        size = self.size
        self._file.close()
        return size


def _ordered(rows: pa.RecordBatch, after: int, last: int) -> pa.RecordBatch:
    """The rows that are beyond ``after``; all of them must be beyond ``last`` and in order."""
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
    facts = [writer.name, hour, writer.first, writer.last, writer.rows, writer.messages, size]
    return pa.RecordBatch.from_arrays(
        [pa.array([fact], field.type) for fact, field in zip(facts, _STAGED, strict=True)], schema=_STAGED
    )
