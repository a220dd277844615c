"""An archive that is a table of a format with transactions: files, and a ledger that lists those that count.

The ledger keeps ``through``, the last sequence number of the table, in the same transaction as the files. Rows up to
there are skipped when a micro-batch is repeated, split differently, or the checkpoint was lost (a micro-batch's own
number is only valid with its checkpoint). A second process that writes the same table finds that the ledger has
changed, and fails.

- **Add.** Tasks write files to a folder that nobody reads. The driver moves them to their place, which their messages
  determine, then the ledger adds them all at once. After a kill in between, the files do not count.
- **Fold.** Small adjacent files of one hour become one, in a transaction of its own, when together they are large
  enough or the hour is over. So every byte is written twice at most.
- **Tidy.** Once an hour, files that no kept version of the table needs are removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import StorageError, UsageError
from headrace.spark.jobs.archive.files import (
    FILE_BYTES,
    Added,
    folder_of,
    in_order,
    join,
    parse_hour,
    stage,
)
from headrace.spark.jobs.folder import MAKING, Folder, storage_errors
from headrace.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableFile(NamedTuple):
    """A file of a table: its hour (since 1970), its first and last message, and its size."""

    hour: int
    first: int
    last: int
    rows: int
    size: int

    @property
    def name(self) -> str:
        """Its name in its hour's folder: files with one name have the same messages."""
        return f"{self.first:015d}-{self.last:015d}.parquet"

    @property
    def path(self) -> str:
        """Its path in the table's folder.

        >>> TableFile(491_557, 1, 250, 250, 4096).path
        'day=2026-01-28/hour=13/000000000000001-000000000000250.parquet'
        """
        return f"{folder_of(self.hour)}/{self.name}"

    @classmethod
    def parse(cls, path: str, rows: int, size: int) -> TableFile:
        """Parse a file's path.

        >>> TableFile.parse("/a/day=2026-01-28/hour=13/000000000000001-000000000000250.parquet", 250, 9).last
        250
        """
        try:
            day, hour, name = path.split("/")[-3:]
            first, last = name.removesuffix(".parquet").split("-")
            return cls(parse_hour(day, hour), int(first), int(last), rows, size)
        except ValueError:
            raise UsageError(f"{path} is no file of an archive: choose another path") from None


def in_newest_hour(files: Sequence[TableFile]) -> list[TableFile]:
    """Return the files of the newest hour."""
    newest = max((file.hour for file in files), default=0)
    return [file for file in files if file.hour == newest]


class Ledger(Protocol):
    """The account of the files that count."""

    log: str
    """The table's log."""
    files: Folder
    """The files' folder."""

    def through(self) -> int:
        """The last sequence number of the table; 0 if it has none."""

    def newest_hour(self) -> list[TableFile]:
        """The files of the newest hour."""

    def append(self, added: Sequence[TableFile], before: int) -> None:
        """Add files that are in their place; raise if the table does not end with ``before`` any more."""

    def replace(self, parts: Sequence[TableFile], whole: TableFile) -> None:
        """Replace files by one with the same messages."""

    def tidy(self) -> None:
        """Remove what no kept version needs."""

    def live(self) -> list[str]:
        """The paths of all files that count, for Spark."""


class TableArchive:
    """An archive in a table, written by one process at a time."""

    def __init__(self, folder: Folder, ledger: Ledger, log: str, *, file_bytes: int = FILE_BYTES) -> None:
        self._making = folder.sub(MAKING)
        self._ledger = ledger
        self._log = log
        self._file_bytes = file_bytes
        with storage_errors(folder.path):
            self._making.remove_all()
        self.through = ledger.through()
        self._open = sorted(ledger.newest_hour())

    def add(self, rows: DataFrame, reading: SourceOptions | None = None) -> Added:
        """Archive what is new of a micro-batch; with ``reading``, rows are ranges to be read."""
        made = stage(rows, self._making, self.through, self._log, reading)
        in_order(made, self.through, self._open[-1].hour if self._open else 0)
        files = [TableFile(each.hour, each.first, each.last, each.rows, each.bytes) for each in made]
        with storage_errors(self._ledger.files.path):
            for each, file in zip(made, files, strict=True):
                self._place(each.name, file)
        if files:
            self._ledger.append(files, self.through)
            self.through = files[-1].last
            self._open += files
            with storage_errors(self._ledger.files.path):
                self._fold()
                self._making.remove_all()
        return Added(self.through, sum(each.rows for each in made))

    def _place(self, name: str, file: TableFile) -> None:
        self._making.move(name, self._ledger.files.sub(folder_of(file.hour)), file.name)

    def _fold(self) -> None:
        groups = list(_groups(self._open, self._file_bytes))
        for group in groups[:-1]:
            if len(group) > 1:
                first, last = group[0], group[-1]
                place = self._ledger.files.sub(folder_of(first.hour))
                name = join([(place, part.name) for part in group], self._making, self._log, last.last)
                rows = sum(part.rows for part in group)
                whole = TableFile(first.hour, first.first, last.last, rows, self._making.size(name))
                self._place(name, whole)
                self._ledger.replace(group, whole)
        self._open = groups[-1]
        if groups[0][0].hour != groups[-1][0].hour:
            self._ledger.tidy()


@contextmanager
def table_errors(place: str, conflict: type[Exception], *others: type[Exception]) -> Iterator[None]:
    """Translate a table library's errors into ours; ``conflict`` is the one for a concurrent commit."""
    try:
        yield
    except conflict as error:
        raise StorageError(f"{place}: another process has changed the table: {error}") from error
    except others as error:
        raise StorageError(f"{place}: {error}") from error


def _groups(files: Sequence[TableFile], most: int) -> Iterator[list[TableFile]]:
    """Group adjacent files of one hour, up to a size; the last group is open."""
    for _, of_hour in itertools.groupby(files, lambda file: file.hour):
        group: list[TableFile] = []
        for file in of_hour:
            if group and sum(part.size for part in group) + file.size > most:
                yield group
                group = []
            group.append(file)
        yield group
