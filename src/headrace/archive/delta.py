"""The archive as a Delta table, by ``deltalake``: no JVM and no jars.

The archive's last sequence number is the version of an *application transaction* in the table's log, which Delta has
for this purpose: the application is the hub's log. Concurrent commits of one application are a conflict, so every
commit of ours names it, those that merge files too: Delta by itself lets two writers replace the same files.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.archive.folder import Folder, storage_errors
from headrace.archive.ledger import (
    DATA,
    UNKNOWN,
    Writer,
    check_log,
    commit_facts,
    library_errors,
    writer_in,
)
from headrace.archive.parquet_file import ArchiveFile, read_facts
from headrace.errors import UsageError
from headrace.message import SCHEMA

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

logger = logging.getLogger("headrace")

TRANSACTIONS: Final = "_delta_log"

_APP: Final = "headrace archive of log "
_RECENT: Final = 20
"""Commits among which the last one that added messages is looked for."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class DeltaLedger:
    """A Delta table's log."""

    staging = DATA
    merges = True

    def __init__(self, folder: Folder, log: str | None) -> None:
        """Open the table; with a ``log``, make it if need be, and check that it is that log's."""
        try:
            import deltalake
        except ImportError:
            raise UsageError(
                "there is no deltalake: pip install '.[delta]' in Headrace's repository brings it along"
            ) from None
        self.folder = folder
        where, options = folder.path if folder.local else folder.uri, _storage_options(folder)
        with _opening(folder.path):
            if log is not None:
                deltalake.DeltaTable.create(
                    where,
                    SCHEMA,
                    mode="ignore",
                    name="headrace archive",
                    description=_APP + log,
                    storage_options=options,
                )
            self._table = deltalake.DeltaTable(where, storage_options=options)
            described = self._table.metadata().description or ""
        if not described.startswith(_APP) or self._table.metadata().partition_columns:
            raise UsageError(f"{folder.path} has a Delta table that is no archive: choose another path")
        self.log = described.removeprefix(_APP)
        check_log(folder.path, self.log, log)
        with _opening(folder.path):
            self._through = self._last()

    @property
    def version(self) -> int:
        """The table's version."""
        return int(self._table.version())

    @property
    def through(self) -> int:
        """The last archived sequence number."""
        return self._through

    def refresh(self) -> None:
        """Read the newest version."""
        with _opening(self.folder.path):
            self._table.update_incremental()
            self._through = self._last()

    def files(self) -> list[ArchiveFile]:
        """The files of this version."""
        with _opening(self.folder.path):
            actions = pa.table(self._table.get_add_actions(flatten=True))
        columns = ["path", "min.seq", "max.seq", "num_records", "size_bytes", "min.time", "max.time"]
        if not actions.num_rows:
            return []
        missing = [name for name in columns if name not in actions.schema.names]
        rows = actions.select([name for name in columns if name not in missing]).to_pylist()
        found = []
        for row in rows:
            facts = [row.get(name) for name in columns]
            if any(fact is None for fact in facts):
                # Another engine has written it without statistics.
                found.append(read_facts(self.folder, row["path"])[1])
            else:
                path, first, last, count, size, begin, end = facts
                found.append(ArchiveFile(path, first, last, count, size, _micros(begin), _micros(end)))
        return found

    def append(self, added: Sequence[ArchiveFile], writer: Writer) -> None:
        """Add files that follow this version."""
        self._commit(
            [_add(file, new=True) for file in added], added[-1].last, commit_facts(self.log, added, writer)
        )

    def replace(self, parts: Sequence[ArchiveFile], whole: Sequence[ArchiveFile]) -> None:
        """Replace files by others; no data changes."""
        from deltalake.transaction import RemoveAction

        removed = [RemoveAction(part.path, False, _now(), part.size, {}) for part in parts]
        self._commit([*(_add(file, new=False) for file in whole), *removed], self.through, {})

    def last_writer(self) -> str:
        """Return who last added messages."""
        with _opening(self.folder.path):
            recent = self._table.history(_RECENT)
        return next((writer_in(facts) for facts in recent if "headrace.query" in facts), UNKNOWN)

    def vacuum(self, age: float) -> None:
        """Remove files that have not counted for ``age`` seconds."""
        hours = math.ceil(max(age, 0) / 3600)
        with _opening(self.folder.path):
            self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
            self._table.cleanup_metadata()
            self._table.update_incremental()

    @property
    def _app(self) -> str:
        return _APP + self.log

    def _last(self) -> int:
        """Look up the last archived sequence number; it is in the table's log, so this reads files."""
        return self._table.transaction_version(self._app) or 0

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], through: int, facts: Mapping[str, str]
    ) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        with library_errors(self, CommitFailedError, DeltaError, OSError):
            self._table.create_write_transaction(
                list(actions),
                "append",
                SCHEMA,
                commit_properties=CommitProperties(
                    custom_metadata=dict(facts), app_transactions=[Transaction(self._app, through)]
                ),
            )
            self._table.update_incremental()
            self._through = self._last()
        self.folder.sub(TRANSACTIONS).sync(f"{self.version:020d}.json")


def _add(file: ArchiveFile, *, new: bool) -> AddAction:
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": file.rows,
        "minValues": {"seq": file.first, "time": _text(file.first_time)},
        "maxValues": {"seq": file.last, "time": _text(file.last_time)},
        "nullCount": {"seq": 0, "time": 0},
    }
    return AddAction(file.path, file.size, {}, _now(), new, json.dumps(stats))


def _text(micros: int) -> str:
    return f"{_EPOCH + timedelta(microseconds=micros):%Y-%m-%dT%H:%M:%S.%fZ}"


def _micros(then: datetime) -> int:
    return (then - _EPOCH) // _MICROSECOND


def _now() -> int:
    return int(time.time() * 1000)


def _storage_options(folder: Folder) -> dict[str, str]:
    """Options of pyarrow's S3 client as those of ``deltalake``; the rest it finds in the environment."""
    given = folder.options
    options: dict[str, str] = {}
    if (endpoint := given.get("endpoint_override")) is not None:
        scheme = given.get("scheme", "https")
        options["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if given.get("scheme") == "http":
        options["AWS_ALLOW_HTTP"] = "true"
    if (region := given.get("region")) is not None:
        options["AWS_REGION"] = region
    return options


def _opening(place: str) -> AbstractContextManager[None]:
    from deltalake.exceptions import DeltaError

    return storage_errors(place, DeltaError)
