"""The archive as a Delta table, by ``deltalake``: no JVM and no jars.

The archive's last sequence number is the version of an *application transaction* in the table's log, which Delta has
for this purpose: the application is the hub's log, and concurrent commits of one application are a conflict. Columns
are the envelope's, and ``day`` and ``hour``, by which the table is partitioned.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa

from headrace.errors import StorageError, UsageError
from headrace.message import SCHEMA
from headrace.spark.jobs.archive.files import another_log, day_and_hour
from headrace.spark.jobs.archive.table import TableFile, in_newest_hour, table_errors
from headrace.spark.jobs.folder import Folder

if TYPE_CHECKING:
    from deltalake import CommitProperties
    from deltalake.transaction import AddAction, RemoveAction

logger = logging.getLogger("headrace")

COLUMNS: Final = pa.schema(
    [*SCHEMA, pa.field("day", pa.date32(), nullable=False), pa.field("hour", pa.int32(), nullable=False)]
)
PARTITIONS: Final = ["day", "hour"]

_APP: Final = "headrace archive of log "


class DeltaLedger:
    """A Delta table's log."""

    def __init__(self, place: str, log: str | None) -> None:
        """Open the table at ``place``; with a ``log``, make it if need be, and check that it is that log's."""
        try:
            import deltalake
        except ImportError:
            raise UsageError(
                "there is no deltalake: pip install '.[delta]' in Headrace's repository brings it along"
            ) from None
        self.files = Folder.at(place)
        where = _uri(place)
        with _errors(place):
            if log is not None:
                deltalake.DeltaTable.create(
                    where,
                    COLUMNS,
                    mode="ignore",
                    partition_by=PARTITIONS,
                    name="headrace archive",
                    description=_APP + log,
                )
            self._table = deltalake.DeltaTable(where)
            described = self._table.metadata().description or ""
        self.log = described.removeprefix(_APP)
        if not described.startswith(_APP):
            raise UsageError(f"{place} has a Delta table that is no archive: choose another path")
        if log is not None and log != self.log:
            raise another_log(place, self.log, log)

    def through(self) -> int:
        """The last sequence number of the table."""
        return self._table.transaction_version(self._app) or 0

    def newest_hour(self) -> list[TableFile]:
        """The files of the newest hour."""
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        files = [
            TableFile.parse(action["path"], action["num_records"], action["size_bytes"]) for action in actions
        ]
        return in_newest_hour(files)

    def append(self, added: Sequence[TableFile], before: int) -> None:
        """Add files, if the table still ends with ``before``."""
        from deltalake import CommitProperties, Transaction

        through = added[-1].last
        with _errors(self.files.path):
            if self.through() != before:
                raise StorageError(f"{self.files.path}: another process has added to the archive")
            self._commit(
                [_add(file, new=True) for file in added],
                CommitProperties(
                    custom_metadata={"headrace.through": str(through)},
                    app_transactions=[Transaction(self._app, through)],
                ),
            )

    def replace(self, parts: Sequence[TableFile], whole: TableFile) -> None:
        """Replace files by one; no data changes."""
        from deltalake import CommitProperties
        from deltalake.transaction import RemoveAction

        removed = [RemoveAction(part.path, False, _now(), part.size, _partition(part)) for part in parts]
        with _errors(self.files.path):
            self._commit([_add(whole, new=False), *removed], CommitProperties())

    def tidy(self) -> None:
        """Remove files that have not counted for a week, Delta's own term."""
        try:
            self._table.vacuum(dry_run=False, full=True)
        except Exception as error:  # noqa: BLE001 - it is not needed for the archive
            logger.warning("%s: not tidied: %s", self.files.path, error)

    def live(self) -> list[str]:
        """The paths of all files that count."""
        uris = [str(uri) for uri in self._table.file_uris()]
        # Those of a local table are paths, but encoded too.
        return [uri if "://" in uri else unquote(uri) for uri in uris]

    @property
    def _app(self) -> str:
        return _APP + self.log

    def _commit(self, actions: list[AddAction | RemoveAction], properties: CommitProperties) -> None:
        self._table.create_write_transaction(
            actions, "append", COLUMNS, PARTITIONS, commit_properties=properties
        )
        self._table.update_incremental()


def _add(file: TableFile, *, new: bool) -> AddAction:
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": file.rows,
        "minValues": {"seq": file.first},
        "maxValues": {"seq": file.last},
        "nullCount": {"seq": 0},
    }
    return AddAction(file.path, file.size, _partition(file), _now(), new, json.dumps(stats))


def _partition(file: TableFile) -> dict[str, str | None]:
    day, hour = day_and_hour(file.hour)
    return {"day": day, "hour": str(int(hour))}


def _now() -> int:
    return int(time.time() * 1000)


def _uri(place: str) -> str:
    """A path as ``deltalake`` takes it."""
    if "://" not in place:
        return str(Path(place).absolute())
    return place.replace("s3a://", "s3://", 1)


def _errors(place: str) -> AbstractContextManager[None]:
    from deltalake.exceptions import CommitFailedError, DeltaError

    return table_errors(place, CommitFailedError, DeltaError, OSError)
