"""``archive``: the sequence as Parquet, by day and hour, each sequence number once.

A folder of Parquet files has no transactions, and readers other than Spark know nothing of Spark's. Three rules make
what they see right at every moment, whatever is killed:

- **Whole files.** Tasks write to a folder that readers pass over; a file is moved to its place when it is whole.
- **In order.** The driver moves the files of a micro-batch in the order of the sequence. So the archive is always the
  sequence up to some number, ``through``, which its newest file tells. Whatever a micro-batch brings up to there, in a
  second try or after a checkpoint was lost, is there already and is passed over.
- **Grown, not compacted.** A file is named after its first sequence number. While the newest one is small, what follows
  is appended to a copy of it, which then takes its place in one move. So there are no small files to put together
  later, which could not be done without showing a message twice or not at all for a moment.

Everything that has a number is archived, entries of origin ``log`` too: an archive without a hole can be seen to be
without a hole. Retention waits for the archive, by a hold that follows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import StorageError, UsageError
from headrace.message import NOT_A_MESSAGE, SCHEMA
from headrace.spark.jobs.folder import MAKING, Folder, blaming
from headrace.spark.jobs.job import COMMON, Parameter, Run, Started
from headrace.spark.links import link

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ABOUT: Final = "the sequence to Parquet, by day and hour"
PARAMETERS: Final = {
    **COMMON,
    "interval": Parameter(COMMON["interval"].doc, "60"),
    "fail_on_data_loss": Parameter(COMMON["fail_on_data_loss"].doc, "true"),
    "hold": Parameter("the hold by which retention waits for the archive", "archive"),
}

FILE_BYTES: Final = 64 << 20
"""A file that has this many bytes is not grown any more."""
GROUP_ROWS: Final = 131_072
GROUP_BYTES: Final = 32 << 20
"""A row group is written when this much has come: what a task holds in memory, and a reader reads at once."""

LOG_KEY: Final = b"headrace.log"
LAST_KEY: Final = b"headrace.last"

_HOUR: Final = 3_600_000_000
_STAGED: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("hour", pa.int64()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
STAGED: Final = "name string, hour long, first long, last long, messages long, bytes long"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the archive: the hour (since 1970) its messages are of, the first and the last of them, its size."""

    hour: int
    first: int
    last: int
    size: int

    @property
    def name(self) -> str:
        """What it is called in its hour's folder."""
        return f"{self.first:015d}.parquet"


@dataclass(frozen=True, slots=True)
class Added:
    """What a micro-batch brought: how far the archive reaches now, and how many messages came (entries not counted)."""

    through: int
    messages: int


def start(run: Run) -> Started:
    """Archive the sequence, from where the archive ends on."""
    with link(run.access) as client:
        archive = Archive(run.folder, client.log)

    def add(rows: DataFrame, _batch: int) -> None:
        added = archive.add(rows)
        if added.through:
            with link(run.access) as client:
                keep_from = added.through + 1
                if client.holds().get(run.param("hold")) != keep_from:
                    client.hold(run.param("hold"), max(keep_from, client.head().first))

    def facts() -> dict[str, object]:
        return {"path": run.path, "through": archive.through}

    return Started(run.query(run.stream(entries=True), add), facts)


def staged(rows: DataFrame, folder: Folder, after: int, log: str) -> DataFrame:
    """Rows in the envelope's schema, written to files that nobody sees yet; one row per file says what it has.

    Rows up to ``after`` are left out. Each partition must be in the order of the sequence, as the source gives it.
    """
    columns = rows.select(*SCHEMA.names)
    return columns.mapInArrow(partial(_write, folder, after, log), STAGED)


class Archive:
    """An archive in a folder, written by one process at a time."""

    def __init__(self, folder: Folder, log: str, *, file_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._log = log
        self._file_bytes = file_bytes
        self._making = folder.sub(MAKING)
        with blaming(folder.path):
            self._making.remove_all()
            self.newest = self._find_newest()

    @property
    def through(self) -> int:
        """The last sequence number that is archived; 0 when none is."""
        return 0 if self.newest is None else self.newest.last

    def add(self, rows: DataFrame) -> Added:
        """Archive a micro-batch, or what of it is not archived yet."""
        made = staged(rows, self._making, self.through, self._log).toArrow().sort_by("first")
        files = [
            (str(row["name"]), File(row["hour"], row["first"], row["last"], row["bytes"]))
            for row in made.to_pylist()
        ]
        self._check(files)
        with blaming(self._folder.path):
            for group in self._groups(files):
                self._place(group)
            self._making.remove_all()
        return Added(self.through, pc.sum(made["messages"]).as_py() or 0)

    def _find_newest(self) -> File | None:
        found = _newest_file(self._folder)
        if found is None:
            return None
        place, name, hour = found
        log, last = _told(place, name)
        if log != self._log:
            raise UsageError(
                f"{self._folder.path} has the archive of log {log}, and the hub's log is {self._log}:"
                " choose another path"
            )
        return File(hour, int(name.removesuffix(".parquet")), last, place.size(name))

    def _check(self, files: Sequence[tuple[str, File]]) -> None:
        """Nothing is moved that would break the order."""
        last, hour = self.through, 0 if self.newest is None else self.newest.hour
        for _, file in files:
            if file.first <= last or file.hour < hour:
                raise StorageError(
                    f"messages {file.first} to {file.last} came behind message {last}: not archived"
                )
            last, hour = file.last, file.hour

    def _groups(self, files: Sequence[tuple[str, File]]) -> Iterator[list[tuple[str | None, File]]]:
        """Which files become one: those of the same hour, until it is large enough. No name: it has its place."""
        group: list[tuple[str | None, File]] = [] if self.newest is None else [(None, self.newest)]
        for name, file in files:
            size = sum(each.size for _, each in group)
            if group and (file.hour != group[0][1].hour or size + file.size > self._file_bytes):
                yield group
                group = []
            group.append((name, file))
        yield group

    def _place(self, group: Sequence[tuple[str | None, File]]) -> None:
        if all(name is None for name, _ in group):
            return
        first, last = group[0][1], group[-1][1]
        folder = self._folder.sub(_folder_of(first.hour))
        name = group[0][0]
        if name is None or len(group) > 1:
            parts = [
                (folder, part.name) if staged_name is None else (self._making, staged_name)
                for staged_name, part in group
            ]
            name = _join(parts, self._making, self._log, last.last)
        file = File(first.hour, first.first, last.last, self._making.size(name))
        self._making.move(name, folder, file.name)
        self.newest = file


def log_of(folder: Folder) -> str:
    """The log that an archive is of."""
    with blaming(folder.path):
        found = _newest_file(folder)
        if found is None:
            raise UsageError(f"{folder.path}: there is no archive")
        place, name, _ = found
        log, _ = _told(place, name)
    return log


def enveloped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in exactly the schema that archives have, whatever Spark made of its nullability."""
    return pa.RecordBatch.from_arrays(
        [batch.column(field.name).cast(field.type) for field in SCHEMA], schema=SCHEMA
    )


def _newest_file(folder: Folder) -> tuple[Folder, str, int] | None:
    """Where the newest file of an archive is, its name and its hour."""
    for day in reversed(_named(folder.names(), "day=")):
        for hour in reversed(_named(folder.sub(day).names(), "hour=")):
            place = folder.sub(day).sub(hour)
            names = [name for name in place.names() if name.endswith(".parquet")]
            if names:
                return place, names[-1], _parse_hour(day, hour)
    return None


def _told(folder: Folder, name: str) -> tuple[str, int]:
    """What a file of an archive says of itself: its log, and its last message."""
    with folder.open(name) as file:
        facts = pq.read_metadata(file).metadata or {}
    log, last = facts.get(LOG_KEY), facts.get(LAST_KEY)
    if log is None or last is None:
        raise UsageError(f"{folder.path}/{name} is no file of an archive: choose another path")
    return log.decode(), int(last)


class _Writer:
    """One file in the making: rows in, row groups out."""

    def __init__(self, folder: Folder, log: str) -> None:
        self.name = uuid4().hex
        self.first = self.last = self.messages = 0
        self._file = folder.create(self.name)
        schema = SCHEMA.with_metadata({LOG_KEY: log.encode()})
        self._parquet = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            # Sequence numbers, times and payloads hardly repeat; names do.
            use_dictionary=["origin", "publisher", "topic"],
            store_schema=True,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._file.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        seqs = rows.column("seq")
        self.first = self.first or seqs[0].as_py()
        self.last = seqs[-1].as_py()
        entries = pc.sum(pc.equal(rows.column("origin"), NOT_A_MESSAGE)).as_py() or 0
        self.messages += rows.num_rows - entries
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> int:
        """Finish the file; return its size."""
        self._flush()
        self._parquet.add_key_value_metadata({LAST_KEY: str(self.last).encode()})
        self._parquet.close()
        size = self.size
        self._file.close()
        return size

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._parquet.write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0


def _write(
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


def _ordered(rows: pa.RecordBatch, after: int, last: int) -> pa.RecordBatch:
    """The rows that are beyond ``after``; all of them must be beyond ``last`` and in order."""
    seqs = rows.column("seq").to_numpy()
    in_order = bool((np.diff(seqs) > 0).all())
    begin = int(np.searchsorted(seqs, after, side="right")) if in_order else 0
    rows, seqs = rows.slice(begin), seqs[begin:]
    if not in_order or (len(seqs) and seqs[0] <= last):
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
    facts = [writer.name, hour, writer.first, writer.last, writer.messages, size]
    return pa.RecordBatch.from_arrays(
        [pa.array([fact], field.type) for fact, field in zip(facts, _STAGED, strict=True)], schema=_STAGED
    )


def _join(parts: Sequence[tuple[Folder, str]], folder: Folder, log: str, last: int) -> str:
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


def _folder_of(hour: int) -> str:
    then = datetime.fromtimestamp(hour * 3600, UTC)
    return f"day={then:%Y-%m-%d}/hour={then:%H}"


def _parse_hour(day: str, hour: str) -> int:
    try:
        then = datetime.strptime(f"{day[4:]} {hour[5:]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"{day}/{hour} is no folder of an archive: choose another path") from None
    return int(then.timestamp()) // 3600


def _named(names: Iterable[str], beginning: str) -> list[str]:
    return [name for name in names if name.startswith(beginning)]
