"""``archive``: the sequence as a table of immutable files, each sequence number once.

The table is Delta, Iceberg, or a folder of plain Parquet (:mod:`headrace.archive`). It is always the sequence up to
some number, ``through``, which the table's own transactions keep; rows up to there are skipped when they are repeated.

Sequence numbers have no gap, so an archive can be seen to have no hole. A hold makes retention wait for it.

Tasks read ranges of the sequence themselves: a message goes from the hub's segments to the table's files as Arrow, in
one process. A micro-batch is due when there are ``size`` bytes of new messages, or after ``interval``.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from headrace.archive.ledger import Ledger, Writer
from headrace.archive.table import FORMATS, format_of, open_ledger
from headrace.errors import ArchiveError, TrimmedError, UsageError
from headrace.spark.datasource import register_kind
from headrace.spark.hub_connections import link
from headrace.spark.jobs.archive.table_writer import ArchiveWriter
from headrace.spark.jobs.job import COMMON, JobRun, Parameter, RunningJob, at_least, one_of
from headrace.spark.options import SourceOptions
from headrace.spark.source.range_source import NAME, RangesDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ABOUT: Final = "the sequence to a table: Delta, Iceberg or plain Parquet"
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
    "table_format": Parameter("what the archive is: delta, iceberg or parquet", "delta", one_of(*FORMATS)),
    # Not less than an hour: a file that no version lists may be what another writer is about to commit.
    "keep_hours": Parameter("hours for which files that were merged stay for readers", "168", at_least(1)),
    **TABLE_PARAMETERS,
}

MOST_BYTES: Final = 1 << 30
"""Most bytes of the log's files in a micro-batch: the hold moves after each, however much there is to catch up with."""

LOOK_SECONDS: Final = 1.0
"""Interval at which the source is asked whether enough has come."""


def start(run: JobRun) -> RunningJob:
    """Archive the sequence, from the end of the archive on."""
    with link(run.access) as client:
        archive = ArchiveWriter(
            ledger_of(run, client.log),
            holes=not run.truth("fail_on_data_loss"),
            keep=run.number("keep_hours") * 3600,
        )
        head = client.head().head
    starting = run.param("starting")
    if starting == "earliest" and archive.through:
        # A new query, as after the loss of a checkpoint, continues after the archive.
        starting = str(min(archive.through, head) + 1)

    reading = SourceOptions(run.access, fail_on_data_loss=run.truth("fail_on_data_loss"), reader=run.name)
    done: dict[str, object] = {}

    name = run.param("hold")

    def add(ranges: DataFrame, batch: int) -> None:
        begin = monotonic()
        query = ranges.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or run.name
        with link(run.access) as client:
            extent = client.head()
            if extent.head > archive.through and name not in client.holds():
                # The first time: keep what is being read.
                client.hold(name, max(archive.through + 1, extent.first))
            if extent.first <= archive.through <= extent.head:
                # A hub that has it only in this archive has nothing to compare.
                with suppress(ArchiveError, TrimmedError):
                    archive.check_history(client.read(archive.through, archive.through))
        added = archive.add(ranges, Writer(query, batch), reading)
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


def ledger_of(run: JobRun, log: str) -> Ledger:
    """Open the ledger of a run's archive, or make it."""
    wanted = run.param("table_format").lower()
    found = format_of(run.folder)
    if found is not None and found != wanted:
        raise UsageError(
            f"{run.path} has an archive in {found}, and {wanted} is asked for: choose another path"
        )
    return open_ledger(wanted, run.folder, log, catalog=run.param("catalog"), table=run.param("table"))
