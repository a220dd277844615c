"""The archive as an Iceberg table, by ``pyiceberg``: no JVM and no jars.

The archive's last sequence number is a property of the table, ``headrace.through``, set in the transaction that adds
the files. It is in the snapshot's summary too, but other engines that compact the table make snapshots without one.
Columns are the envelope's; the table is partitioned by the hour of ``time``.

Every commit is a snapshot; those older than a day are expired, together with the files that only they have, unless the
table has branches or tags.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import StorageError, UsageError
from headrace.message import SCHEMA
from headrace.spark.jobs.archive.files import another_log
from headrace.spark.jobs.archive.table import TableFile, in_newest_hour, table_errors
from headrace.spark.jobs.folder import Folder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger("headrace")

CATALOG_FILE: Final = "catalog.db"
"""The default catalog of an archive in a local folder."""
TABLE: Final = "headrace.archive"

KEPT_SECONDS: Final = 24 * 3600
"""How long a snapshot is kept."""

_LOG: Final = "headrace.log"
_THROUGH: Final = "headrace.through"
_FOLDED: Final = "headrace.folded"
"""In a snapshot's summary: the files that it replaced, to be removed when it expires."""

_PROPERTIES: Final = {
    # The library must not repeat a commit that lost a race: its messages may be there already.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergLedger:
    """An Iceberg table and its catalog."""

    def __init__(
        self,
        place: str,
        log: str | None,
        *,
        catalog: str = "",
        table: str = TABLE,
        kept: float = KEPT_SECONDS,
    ) -> None:
        """Open the table at ``place``; with a ``log``, make it if need be, and check that it is that log's."""
        try:
            import pyiceberg.exceptions
        except ImportError:
            raise UsageError(
                "there is no pyiceberg: pip install '.[iceberg]' in Headrace's repository brings it along"
            ) from None
        folder = Folder.at(place)
        self.files = folder.sub("data")
        self._kept = kept
        with _errors(place):
            known = _catalog(place, folder, catalog)
            if log is not None:
                _create(known, table, _uri(place), log)
            try:
                self._table: Table = known.load_table(table)
            except pyiceberg.exceptions.NoSuchTableError:
                raise UsageError(f"{place}: the catalog has no table {table}") from None
        self._uri = self._table.location().rstrip("/")
        self.log = self._table.properties.get(_LOG, "")
        if not self.log:
            raise UsageError(f"{table} is an Iceberg table that is no archive: choose another path or table")
        if log is not None and log != self.log:
            raise another_log(place, self.log, log)
        if self._uri != _uri(place):
            raise UsageError(f"{table} is at {self._uri}: an archive's path is its table's location")

    def through(self) -> int:
        """The last sequence number of the table."""
        return int(self._table.properties.get(_THROUGH, "0"))

    def newest_hour(self) -> list[TableFile]:
        """The files of the newest hour."""
        files = [
            TableFile.parse(file.file_path, file.record_count, file.file_size_in_bytes)
            for file in self._data_files()
        ]
        return in_newest_hour(files)

    def append(self, added: Sequence[TableFile], before: int) -> None:
        """Add files, if the table still ends with ``before``."""
        through = str(added[-1].last)
        with _errors(self.files.path):
            if self.through() != before:
                raise StorageError(f"{self.files.path}: another process has added to the archive")
            with self._table.transaction() as change:
                change.set_properties({_THROUGH: through})
                change.add_files(
                    [self._uri_of(file) for file in added],
                    {_THROUGH: through},
                    # Their names show that their messages are new.
                    check_duplicate_files=False,
                )

    def replace(self, parts: Sequence[TableFile], whole: TableFile) -> None:
        """Replace files by one."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        gone = {self._uri_of(part) for part in parts}
        with _errors(self.files.path):
            removed = [file for file in self._data_files() if file.file_path in gone]
            folded = " ".join(part.path for part in parts)
            with (
                self._table.transaction() as change,
                change.update_snapshot({_FOLDED: folded}).overwrite() as update,
            ):
                update.append_data_file(
                    parquet_file_to_data_file(self._table.io, change.table_metadata, self._uri_of(whole))
                )
                for file in removed:
                    update.delete_data_file(file)

    def tidy(self) -> None:
        """Expire old snapshots, and remove the files that only they had."""
        try:
            self._expire()
        except Exception as error:  # noqa: BLE001 - it is not needed for the archive
            logger.warning("%s: not tidied: %s", self.files.path, error)

    def live(self) -> list[str]:
        """The paths of all files that count."""
        return [str(file.file_path) for file in self._data_files()]

    def _data_files(self) -> list[Any]:
        return [task.file for task in self._table.scan().plan_files()]

    def _uri_of(self, file: TableFile) -> str:
        return f"{self._uri}/data/{file.path}"

    def _expire(self) -> None:
        table, io = self._table, self._table.io
        snapshots = sorted(table.snapshots(), key=lambda each: each.timestamp_ms)
        since = (time.time() - self._kept) * 1000
        old = [each for each in snapshots[:-1] if each.timestamp_ms < since]
        if not old or set(table.refs()) != {"main"}:
            return
        kept = snapshots[len(old)]
        # Snapshots are a chain: what an old one shares with any kept one, it shares with the first of them.
        needed = _manifests(kept, io)
        files = {manifest for each in old for manifest in _manifests(each, io)} - needed
        files |= {each.manifest_list for each in old}
        # What a snapshot replaced was in those before it, which are old; this holds for the first kept one too.
        for each in (*old, kept):
            folded = (each.summary[_FOLDED] if each.summary else None) or ""
            files |= {f"{self._uri}/data/{path}" for path in folded.split()}
        table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                io.delete(name)


def _manifests(snapshot: Snapshot, io: Any) -> set[str]:
    return {manifest.manifest_path for manifest in snapshot.manifests(io)}


def _catalog(place: str, folder: Folder, name: str) -> Catalog:
    """Load a catalog of ``pyiceberg``'s configuration, or the archive's own."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog

    if name:
        return load_catalog(name)
    if "://" in place:
        raise UsageError(f"{place}: an archive that is not on a local disk needs a catalog: name it")
    Path(folder.path).mkdir(parents=True, exist_ok=True)
    return SqlCatalog("headrace", uri=f"sqlite:///{folder.path}/{CATALOG_FILE}", warehouse=_uri(place))


def _create(catalog: Catalog, table: str, location: str, log: str) -> None:
    from pyiceberg.exceptions import TableAlreadyExistsError
    from pyiceberg.transforms import HourTransform

    if catalog.table_exists(table):
        return
    catalog.create_namespace_if_not_exists(table.rpartition(".")[0])
    with (
        contextlib.suppress(TableAlreadyExistsError),
        catalog.create_table_transaction(
            table, SCHEMA, location=location, properties={**_PROPERTIES, _LOG: log}
        ) as making,
        making.update_spec() as spec,
    ):
        spec.add_field("time", HourTransform(), "hour")


def _uri(place: str) -> str:
    """A path as a table's location."""
    if "://" not in place:
        # Not encoded: the library does not decode it.
        return f"file://{Path(place).absolute()}"
    return place.replace("s3a://", "s3://", 1).rstrip("/")


def _errors(place: str) -> AbstractContextManager[None]:
    from pyiceberg.exceptions import CommitFailedException

    return table_errors(place, CommitFailedException, OSError, ValueError)
