"""The archive as an Iceberg table, by ``pyiceberg``: no JVM and no jars.

The archive's last sequence number is a property of the table, ``headrace.through``, set in the transaction that adds
the files. It is in the snapshot's summary too, but other engines that compact the table make snapshots without one.
Columns are the envelope's. The catalog decides between concurrent commits.

Every commit is a snapshot. A vacuum expires old ones, together with the files that only they have, unless the table has
branches or tags.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.archive.folder import Folder, storage_errors
from headrace.archive.ledger import (
    DATA,
    LOG,
    QUERY,
    THROUGH,
    UNKNOWN,
    Writer,
    check_log,
    commit_facts,
    library_errors,
    writer_in,
)
from headrace.archive.parquet_file import ArchiveFile, read_facts
from headrace.errors import NoArchiveError, UsageError
from headrace.message import SCHEMA

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

CATALOG_FILE: Final = "catalog.db"
"""The default catalog of an archive in a local folder."""
TABLE: Final = "headrace.archive"
METADATA: Final = "metadata"

_FOLDED: Final = "headrace.folded"
"""In a snapshot's summary: the files that it replaced, which the one before it still has."""

_PROPERTIES: Final = {
    # The library must not repeat a commit that lost a race: its messages may be there already.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergLedger:
    """An Iceberg table and its catalog."""

    staging = DATA
    merges = True

    def __init__(self, folder: Folder, log: str | None, *, catalog: str = "", table: str = TABLE) -> None:
        """Open the table; with a ``log``, make it if need be, and check that it is that log's."""
        try:
            import pyiceberg.exceptions
        except ImportError:
            raise UsageError(
                "there is no pyiceberg: pip install '.[iceberg]' in Headrace's repository brings it along"
            ) from None
        self.folder = folder
        with storage_errors(folder.path, ValueError):
            known = _catalog(folder, catalog)
            if log is not None:
                _create(known, table, _uri(folder), log)
            try:
                self._table: Table = known.load_table(table)
            except pyiceberg.exceptions.NoSuchTableError:
                raise NoArchiveError(folder.path) from None
        self._uri = self._table.location().rstrip("/")
        self.log = self._table.properties.get(LOG, "")
        if not self.log or self._table.spec().fields:
            raise UsageError(f"{table} is an Iceberg table that is no archive: choose another path or table")
        check_log(folder.path, self.log, log)
        if self._uri != _uri(folder):
            raise UsageError(f"{table} is at {self._uri}: an archive's path is its table's location")

    @property
    def version(self) -> str:
        """The identity of the table's snapshot."""
        snapshot = self._table.current_snapshot()
        return "" if snapshot is None else str(snapshot.snapshot_id)

    @property
    def through(self) -> int:
        """The last archived sequence number."""
        return int(self._table.properties.get(THROUGH, "0"))

    def refresh(self) -> None:
        """Read the newest version."""
        with storage_errors(self.folder.path, ValueError):
            self._table.refresh()

    def files(self) -> list[ArchiveFile]:
        """The files of this version."""
        with storage_errors(self.folder.path, ValueError):
            return [self._known(file) for file in self._data_files()]

    def append(self, added: Sequence[ArchiveFile], writer: Writer) -> None:
        """Add files that follow this version."""
        facts = commit_facts(self.log, added, writer)
        with self._committing(), self._table.transaction() as change:
            change.set_properties({THROUGH: facts[THROUGH]})
            change.add_files(
                [self._uri_of(file.path) for file in added],
                facts,
                # Their names are random.
                check_duplicate_files=False,
            )

    def replace(self, parts: Sequence[ArchiveFile], whole: Sequence[ArchiveFile]) -> None:
        """Replace files by others."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        gone = {self._uri_of(part.path) for part in parts}
        with self._committing():
            removed = [file for file in self._data_files() if file.file_path in gone]
            folded = " ".join(part.path for part in parts)
            with (
                self._table.transaction() as change,
                change.update_snapshot({_FOLDED: folded}).overwrite() as update,
            ):
                for file in whole:
                    made = parquet_file_to_data_file(
                        self._table.io, change.table_metadata, self._uri_of(file.path)
                    )
                    update.append_data_file(made)
                for old in removed:
                    update.delete_data_file(old)

    def last_writer(self) -> str:
        """Return who last added messages."""
        for snapshot in sorted(self._table.snapshots(), key=lambda each: -each.timestamp_ms):
            facts = {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)
            if QUERY in facts:
                return writer_in(facts)
        return UNKNOWN

    def vacuum(self, age: float) -> None:
        """Expire snapshots of ``age`` seconds, and remove the files that no other has."""
        with storage_errors(self.folder.path, ValueError):
            kept = self._expire(age)
            needed = {file.path for file in self.files()}
            for snapshot in kept[1:]:
                # What it replaced, those before it have.
                needed.update(((snapshot.summary[_FOLDED] if snapshot.summary else None) or "").split())
            self.folder.sub(DATA).remove_older(age, but={path.removeprefix(f"{DATA}/") for path in needed})

    def _committing(self) -> contextlib.AbstractContextManager[None]:
        from pyiceberg.exceptions import CommitFailedException

        return library_errors(self, CommitFailedException, OSError, ValueError)

    def _data_files(self) -> list[Any]:
        return [task.file for task in self._table.scan().plan_files()]

    def _known(self, file: Any) -> ArchiveFile:
        path = str(file.file_path).removeprefix(f"{self._uri}/")
        edges: list[int] = []
        for name in ("seq", "time"):
            field = self._table.schema().find_field(name)
            for bounds in (file.lower_bounds, file.upper_bounds):
                if field.field_id not in (bounds or {}):
                    # Another engine has written it without statistics.
                    return read_facts(self.folder, path)[1]
                # Eight bytes, little-endian, as the format says for both types.
                edges.append(int.from_bytes(bounds[field.field_id], "little", signed=True))
        first, last, begin, end = edges
        return ArchiveFile(path, first, last, file.record_count, file.file_size_in_bytes, begin, end)

    def _uri_of(self, path: str) -> str:
        return f"{self._uri}/{path}"

    def _expire(self, age: float) -> list[Snapshot]:
        """Expire old snapshots, and remove what only they had but for data; return the rest, the oldest first."""
        table, io = self._table, self._table.io
        snapshots = sorted(table.snapshots(), key=lambda each: each.timestamp_ms)
        since = (time.time() - age) * 1000
        old = [each for each in snapshots[:-1] if each.timestamp_ms < since]
        if not old or set(table.refs()) != {"main"}:
            return snapshots
        kept = snapshots[len(old) :]
        # Snapshots are a chain: what an old one shares with any kept one, it shares with the first of them.
        files = {manifest for each in old for manifest in _manifests(each, io)} - _manifests(kept[0], io)
        files |= {each.manifest_list for each in old}
        table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                io.delete(name)
        return kept


def _manifests(snapshot: Snapshot, io: Any) -> set[str]:
    return {manifest.manifest_path for manifest in snapshot.manifests(io)}


def _catalog(folder: Folder, name: str) -> Catalog:
    """Load a catalog of ``pyiceberg``'s configuration, or the archive's own."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog

    if name:
        return load_catalog(name)
    if not folder.local:
        raise UsageError(f"{folder.path}: an archive that is not on a local disk needs a catalog: name it")
    Path(folder.path).mkdir(parents=True, exist_ok=True)
    return SqlCatalog("headrace", uri=f"sqlite:///{folder.path}/{CATALOG_FILE}", warehouse=_uri(folder))


def _create(catalog: Catalog, table: str, location: str, log: str) -> None:
    from pyiceberg.exceptions import TableAlreadyExistsError

    if catalog.table_exists(table):
        return
    catalog.create_namespace_if_not_exists(table.rpartition(".")[0])
    with contextlib.suppress(TableAlreadyExistsError):
        catalog.create_table(table, SCHEMA, location=location, properties={**_PROPERTIES, LOG: log})


def _uri(folder: Folder) -> str:
    """A folder as a table's location."""
    # Not encoded: the library does not decode it.
    return f"file://{folder.path}" if folder.local else folder.uri
