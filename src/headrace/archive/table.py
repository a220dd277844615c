"""One version of an archive, as a reader sees it.

A reader opens the table, whatever its format, and gets the list of files of one version. They never change, and stay
for as long as the archive keeps old versions (a week, by default): whoever lists now and reads later gets exactly what
was there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from threading import Lock
from typing import Final

from pyarrow import fs

from headrace.archive.delta import TRANSACTIONS, DeltaLedger
from headrace.archive.folder import NO_OPTIONS, Folder, storage_errors
from headrace.archive.iceberg import METADATA, TABLE, IcebergLedger
from headrace.archive.ledger import Ledger
from headrace.archive.manifest import MANIFEST, ManifestLedger
from headrace.archive.parquet_file import ArchiveFile
from headrace.errors import NoArchiveError, StorageError, UsageError

FORMATS: Final = ("delta", "iceberg", "parquet")
"""The formats of an archive, by their names in settings."""

_CATALOG_OPTIONS: Final = ("catalog", "table")
_SIGNS: Final = {TRANSACTIONS: "delta", METADATA: "iceberg", MANIFEST: "parquet"}


class ArchiveTable:
    """One version of an archive.

    >>> from headrace.archive import open_table
    >>> open_table("/srv/nothing")
    Traceback (most recent call last):
    headrace.errors.NoArchiveError: /srv/nothing: there is no archive, or nothing in it yet
    """

    def __init__(self, ledger: Ledger, lock: Lock | None = None) -> None:
        self._ledger = ledger
        self._lock = lock or Lock()
        self.log: Final = ledger.log
        """The uuid of the log."""
        self.version: Final = ledger.version
        """The version: a number or an identity, by the format."""
        self._files = sorted(ledger.files(), key=lambda file: file.first)
        if not self._files:
            raise NoArchiveError(ledger.folder.path)
        self._firsts = [file.first for file in self._files]
        self.first: Final = self._first_without_hole()
        """The first sequence number: from here to :attr:`through` there is no hole."""
        self.through: Final = self._files[-1].last
        """The last sequence number."""

    @property
    def place(self) -> str:
        """The path of the table in its :attr:`filesystem`."""
        return self._ledger.folder.path

    @property
    def folder(self) -> Folder:
        """The folder of the table."""
        return self._ledger.folder

    @property
    def filesystem(self) -> fs.FileSystem:
        """A filesystem in which the files' paths can be opened."""
        return fs.SubTreeFileSystem(self._ledger.folder.path, self._ledger.folder.system)

    def files(self, first: int, last: int) -> list[ArchiveFile]:
        """Return the files that have any of the messages ``first`` to ``last``, in the order of the sequence."""
        begin = max(bisect_right(self._firsts, first) - 1, 0)
        end = bisect_right(self._firsts, last)
        return [file for file in self._files[begin:end] if file.last >= first]

    def all_files(self) -> list[ArchiveFile]:
        """Return all files, those before a hole too."""
        return list(self._files)

    def refreshed(self) -> ArchiveTable:
        """Return the newest version; the same table if there is no newer one."""
        with self._lock:
            self._ledger.refresh()
            return self if self._ledger.version == self.version else ArchiveTable(self._ledger, self._lock)

    def _first_without_hole(self) -> int:
        begin = self._files[-1].first
        for before, file in zip(self._files[-2::-1], self._files[:0:-1], strict=True):
            if before.last >= file.first:
                raise StorageError(
                    f"{self.place}: {before.path} and {file.path} both have message {file.first}"
                )
            if before.last + 1 != file.first:
                break
            begin = before.first
        return begin


def open_table(place: str, *, options: Mapping[str, str] = NO_OPTIONS) -> ArchiveTable:
    """Open the newest version of the archive at a path or a URI, in whichever format it is.

    ``options`` are those of the filesystem, as in a URI of pyarrow's; for Iceberg also ``catalog`` and ``table``.
    """
    of_catalog = {name: value for name, value in options.items() if name in _CATALOG_OPTIONS}
    folder = Folder.at(place, {name: value for name, value in options.items() if name not in of_catalog})
    kind = format_of(folder)
    if kind is None:
        raise NoArchiveError(folder.uri)
    return ArchiveTable(open_ledger(kind, folder, **of_catalog))


def open_ledger(
    kind: str, folder: Folder, log: str | None = None, *, catalog: str = "", table: str = TABLE
) -> Ledger:
    """Open the ledger of an archive in a format; to write to it, say for which ``log``, then it is made if need be."""
    match kind:
        case "delta":
            return DeltaLedger(folder, log)
        case "iceberg":
            return IcebergLedger(folder, log, catalog=catalog, table=table)
        case "parquet":
            return ManifestLedger(folder, log)
    raise UsageError(f"an archive is in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, not in {kind}")


def format_of(folder: Folder) -> str | None:
    """Return the format of an archive; ``None`` if there is none."""
    with storage_errors(folder.path):
        names = folder.names()
    return next((kind for sign, kind in _SIGNS.items() if sign in names), None)
