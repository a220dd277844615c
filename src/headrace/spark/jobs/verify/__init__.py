"""``verify``: find holes, repeats and disorder in each log, and differences between logs.

The order is total, so nothing has to be sorted: each task reduces its rows to a few segments
(:mod:`~headrace.spark.jobs.verify.segment_scan`), which are joined at their edges
(:mod:`~headrace.spark.jobs.verify.findings`). Logs are compared by digests of :data:`BLOCK` messages; only where two
digests differ are messages compared one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.message import SCHEMA
from headrace.spark.jobs.job import COMMON, JobRun, Parameter, RunningJob, one_of, spark_ddl
from headrace.spark.jobs.verify.findings import FINDINGS, SequenceChecker, table
from headrace.spark.jobs.verify.segment_scan import SEGMENTS, find_segments, join_segments

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLOCK: Final = 4096
"""Messages per digest: a shuffle of a thousandth, and little to compare where one differs."""

ROWS_A_CORE: Final = 8_000_000
"""Most messages of a micro-batch for each core, several times as many as it checks in an interval. In a long log, that
makes progress visible, and a stopped job loses little."""

FEW_PARTS: Final = 16
"""Partitions whose segments the driver joins itself: a shuffle would take longer."""

ABOUT: Final = "holes, repeats and disorder in each log, and disagreement between logs"
PARAMETERS: Final = {
    **COMMON,
    "interval": COMMON["interval"]._replace(default="1"),
    "fail_on_data_loss": COMMON["fail_on_data_loss"]._replace(default="false"),
    "archive": Parameter("an archive to compare with the hub, by digests"),
    "full": Parameter("whether the hub's messages are digested anew, too", "false", one_of("true", "false")),
}

_SHOWN: Final = 48
"""Characters of a value that evidence shows."""


def start(run: JobRun) -> RunningJob:
    """Verify the sequence as it grows."""
    from headrace.spark.jobs.verify.run import Verifier

    verifier = Verifier(run)
    rows = run.stream(maxOffsetsPerTrigger=ROWS_A_CORE * run.spark.sparkContext.defaultParallelism)

    def facts() -> dict[str, object]:
        return {
            "path": run.path,
            "through": verifier.through,
            "findings": sum(verifier.findings.values()),
            "kinds": dict(verifier.findings),
            "away": list(verifier.away),
        }

    return RunningJob(run.query(rows, verifier.verify), facts)


def segments(rows: DataFrame, after: int = 0, *, joined: bool = False) -> DataFrame:
    """Find the segments of each partition of a log; partitions must be in the log's order.

    ``after``
        The message up to which everything was checked before.
    ``joined``
        Whether tasks join what partitions say of one publisher: worth a shuffle where there are many partitions.
    """
    from pyspark.sql import functions as F

    columns = rows.select("seq", F.unix_micros("time").alias("time"), "publisher", "number")
    found = columns.mapInArrow(_segments, spark_ddl(SEGMENTS))
    if not joined:
        return found
    tasks = rows.sparkSession.sparkContext.defaultParallelism
    ordered = found.repartition(tasks, "publisher").sortWithinPartitions("publisher", "what", "part", "at")
    return ordered.mapInArrow(partial(join_segments, after), spark_ddl(SEGMENTS))


def verify(rows: DataFrame) -> DataFrame:
    """Check a log: one row per finding."""
    return segments(rows, joined=True).repartition(1).mapInArrow(_checked, spark_ddl(FINDINGS))


def digests(rows: DataFrame) -> DataFrame:
    """Compute the count and the digest of each block of messages."""
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*(_comparable(rows[name], name) for name in SCHEMA.names))
    return (
        rows.select(F.expr(f"seq div {BLOCK}").alias("block"), hashed.alias("hash"))
        .groupBy("block")
        .agg(F.count("*").alias("messages"), F.bit_xor("hash").alias("digest"))
    )


def differing_blocks(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """Find the blocks that differ in two logs: ``block``."""
    there = digests(theirs).withColumnsRenamed({"messages": "messages_there", "digest": "digest_there"})
    both = digests(ours).join(there, "block", "full")
    return both.where("not (messages <=> messages_there and digest <=> digest_there)").select("block")


def disagreements(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """Find messages that differ in two logs under one number: ``seq``, ``fields``, ``evidence``."""
    from pyspark.sql import functions as F

    names = [name for name in SCHEMA.names if name != "seq"]
    here = ours.select("seq", *(_comparable(ours[name], name).alias(f"{name}_here") for name in names))
    there = theirs.select("seq", *(_comparable(theirs[name], name).alias(f"{name}_there") for name in names))
    both = here.join(there, "seq")
    differs = {name: ~both[f"{name}_here"].eqNullSafe(both[f"{name}_there"]) for name in names}
    evidence = [
        F.when(
            differs[name],
            F.concat(
                F.lit(f"{name} is "),
                _shown(both[f"{name}_here"], name),
                F.lit(" and "),
                _shown(both[f"{name}_there"], name),
            ),
        )
        for name in names
    ]
    fields = F.concat_ws(", ", *(F.when(differs[name], F.lit(name)) for name in names))
    return both.where(reduce(lambda one, other: one | other, differs.values())).select(
        "seq", fields.alias("fields"), F.concat_ws("; ", *evidence).alias("evidence")
    )


def _segments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    return find_segments(context.partitionId() if context else 0, batches)


def _checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    taken = list(batches)
    if taken:
        yield from table(SequenceChecker().check(pa.Table.from_batches(taken))).to_batches()


def _comparable(column: Column, name: str) -> Column:
    """Make a column that can be compared and hashed: a map becomes its sorted entries."""
    from pyspark.sql import functions as F

    return F.array_sort(F.map_entries(column)) if name in ("attributes", "numbers") else column


def _shown(column: Column, name: str) -> Column:
    from pyspark.sql import functions as F

    text = F.concat(F.lit("0x"), F.hex(column)) if name == "payload" else column.cast("string")
    return F.coalesce(F.left(text, F.lit(_SHOWN)), F.lit("nothing"))
