"""``archive``: the sequence as a table, by day and hour, each sequence number once.

The table is a folder of Parquet files (:mod:`~headrace.spark.jobs.archive.parquet`), or of a format with transactions
(:mod:`~headrace.spark.jobs.archive.table`): Delta or Iceberg. It is always the sequence up to some number, ``through``,
which is in the table; rows up to there are skipped when they are repeated.

Sequence numbers have no gap, so an archive can be seen to have no hole. A hold makes retention wait for it.

Tasks read ranges of the sequence themselves: a message goes from the hub's segments to the table's files as Arrow, in
one process. A micro-batch is due when there are ``size`` bytes of new messages, or after ``interval``.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from headrace.errors import UsageError
from headrace.spark.datasource import register_kind
from headrace.spark.hub_connections import link
from headrace.spark.jobs.archive.files import Added
from headrace.spark.jobs.archive.parquet import ParquetArchive, archived_rows, log_of
from headrace.spark.jobs.archive.table import Ledger, TableArchive
from headrace.spark.jobs.folder import Folder, is_s3
from headrace.spark.jobs.job import COMMON, JobRun, Parameter, RunningJob, at_least, one_of
from headrace.spark.options import SourceOptions
from headrace.spark.source.range_source import NAME, RangesDataSource

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame

ABOUT: Final = "the sequence to Parquet, Delta or Iceberg, by day and hour"
FORMATS: Final = ("parquet", "delta", "iceberg")
TABLE_PARAMETERS: Final = {
    "catalog": Parameter("iceberg: a catalog of pyiceberg's configuration; else a SQLite file in path"),
    "table": Parameter("iceberg: the table's name in the catalog", "headrace.archive"),
}
PARAMETERS: Final = {
    **COMMON,
    "interval": Parameter("seconds from micro-batch to micro-batch, at most", "60", at_least(0.01)),
    "size": Parameter(
        "bytes of new messages for which a micro-batch does not wait", str(64 << 20), at_least(1)
    ),
    "fail_on_data_loss": COMMON["fail_on_data_loss"]._replace(default="true"),
    "hold": Parameter("the hold by which retention waits for the archive", "archive"),
    "table_format": Parameter("what the archive is: parquet, delta or iceberg", "parquet", one_of(*FORMATS)),
    **TABLE_PARAMETERS,
}

MOST_BYTES: Final = 1 << 30
"""Most bytes of the log's files in a micro-batch: the hold moves after each, however much there is to catch up with."""

LOOK_SECONDS: Final = 1.0
"""Interval at which the source is asked whether enough has come."""


class Archive(Protocol):
    """An archive of any format."""

    @property
    def through(self) -> int:
        """The last archived sequence number; 0 if there is none."""

    def add(self, rows: DataFrame, reading: SourceOptions | None = None) -> Added:
        """Archive what is new of a micro-batch; with ``reading``, rows are ranges to be read."""


def start(run: JobRun) -> RunningJob:
    """Archive the sequence, from the end of the archive on."""
    with link(run.access) as client:
        archive = open_archive(run, client.log)
        head = client.head().head
    starting = run.param("starting")
    if starting == "earliest" and archive.through:
        # A new query, as after the loss of a checkpoint, continues after the archive.
        starting = str(min(archive.through, head) + 1)

    reading = SourceOptions(run.access, fail_on_data_loss=run.truth("fail_on_data_loss"), reader=run.name)
    done: dict[str, object] = {}

    name = run.param("hold")

    def add(ranges: DataFrame, _batch: int) -> None:
        begin = monotonic()
        with link(run.access) as client:
            extent = client.head()
            if extent.head > archive.through and name not in client.holds():
                # The first time: keep what is being read.
                client.hold(name, max(archive.through + 1, extent.first))
        added = archive.add(ranges, reading)
        done["rows"] = added.messages
        done["rows_per_second"] = round(added.messages / (monotonic() - begin), 1)
        if added.through:
            with link(run.access) as client:
                keep_from = added.through + 1
                if client.holds().get(name) != keep_from:
                    client.hold(name, max(keep_from, client.head().first))

    def facts() -> dict[str, object]:
        return {**done, "path": run.path, "through": archive.through}

    interval = run.number("interval")
    register_kind(run.spark, RangesDataSource)
    ranges = run.stream(
        source=NAME,
        startingOffsets=starting,
        minBytesPerTrigger=int(run.number("size")),
        maxBytesPerTrigger=MOST_BYTES,
        maxTriggerDelay=interval,
    )
    return RunningJob(run.query(ranges, add, interval=min(interval, LOOK_SECONDS)), facts)


def open_archive(run: JobRun, log: str) -> Archive:
    """Open the archive of a run, or make it."""
    wanted = run.param("table_format").lower()
    found = format_of(run.folder)
    if found is not None and found != wanted:
        raise UsageError(
            f"{run.path} has an archive in {found}, and {wanted} is asked for: choose another path"
        )
    if wanted == "parquet":
        return ParquetArchive(run.folder, log)
    return TableArchive(run.folder, ledger(wanted, run, log), log)


def ledger(kind: str, run: JobRun, log: str | None) -> Ledger:
    """Open the ledger of a table of a format with transactions."""
    if kind == "delta":
        from headrace.spark.jobs.archive.delta import DeltaLedger

        return DeltaLedger(run.path, log)
    from headrace.spark.jobs.archive.iceberg import IcebergLedger

    return IcebergLedger(run.path, log, catalog=run.param("catalog"), table=run.param("table"))


def format_of(folder: Folder) -> str | None:
    """Return the format of an archive; ``None`` if there is none."""
    names = folder.names()
    if "_delta_log" in names:
        return "delta"
    if "metadata" in names:
        return "iceberg"
    return "parquet" if any(name.startswith("day=") for name in names) else None


def archived(run: JobRun, wanted: pc.Expression | None = None) -> tuple[str, DataFrame]:
    """Return an archive's log and its messages, at least those ``wanted``."""
    found = format_of(run.folder)
    if found is None:
        raise UsageError(f"{run.path}: there is no archive")
    if found == "parquet":
        log = log_of(run.folder)
        if log is None:
            raise UsageError(f"{run.path}: there is no archive")
        if is_s3(run.path):
            return log, archived_rows(run.spark, run.folder, wanted)
        return log, run.spark.read.parquet(run.path)
    from headrace.spark.source.reader import SPARK_SCHEMA

    known = ledger(found, run, None)
    # Hadoop calls its S3 client s3a.
    files = [name.replace("s3://", "s3a://", 1) for name in known.live()]
    if not files:
        raise UsageError(f"{run.path}: there is nothing in the archive yet")
    return known.log, run.spark.read.schema(SPARK_SCHEMA).parquet(*files)
