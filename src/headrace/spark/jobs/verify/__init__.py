"""``verify``: holes, repeats and disorder in each log, and whether several logs say the same.

The order is total, so nothing has to be sorted: each task comes down to a few segments
(:mod:`~headrace.spark.jobs.verify.segments`), and those are joined at their edges
(:mod:`~headrace.spark.jobs.verify.findings`). Logs are compared by digests of :data:`BLOCK` messages; only where two
digests differ, their messages are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.message import SCHEMA
from headrace.spark.jobs.job import COMMON, JobRun, RunningJob
from headrace.spark.jobs.verify.findings import SequenceChecker, table
from headrace.spark.jobs.verify.segments import DDL, find_segments

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLOCK: Final = 4096
"""Messages to a digest: a shuffle of a thousandth, and little to look at when one differs."""

ROWS_A_TIME: Final = 500_000
"""The most messages of a micro-batch. Each may have a publisher of its own, and what is known of publishers has to fit
the driver. Whoever has a long log to look at sees how far it is, and when it is stopped does not begin again."""

ABOUT: Final = "holes, repeats and disorder in each log, and disagreement between logs"
PARAMETERS: Final = {
    **COMMON,
    "interval": COMMON["interval"]._replace(default="1"),
    "fail_on_data_loss": COMMON["fail_on_data_loss"]._replace(default="false"),
}

FINDINGS_DDL: Final = "kind string, server string, first long, last long, publisher string, evidence string"

_SHOWN: Final = 48
"""Characters of a value that evidence repeats."""


def start(run: JobRun) -> RunningJob:
    """Verify the sequence as it grows."""
    from headrace.spark.jobs.verify.run import Verifier

    verifier = Verifier(run)
    rows = run.stream(entries=True, maxOffsetsPerTrigger=ROWS_A_TIME)

    def facts() -> dict[str, object]:
        return {
            "path": run.path,
            "through": verifier.through,
            "findings": sum(verifier.findings.values()),
            "kinds": dict(verifier.findings),
            "away": list(verifier.away),
        }

    return RunningJob(run.query(rows, verifier.verify), facts)


def segments(rows: DataFrame) -> DataFrame:
    """What each partition of a log comes down to; partitions follow one another as they do in the log."""
    from pyspark.sql import functions as F

    columns = rows.select("seq", F.unix_micros("time").alias("time"), "publisher", "number")
    return columns.mapInArrow(_segments, DDL)


def verify(rows: DataFrame) -> DataFrame:
    """What is wrong with a log: one row per finding."""
    return segments(rows).repartition(1).mapInArrow(_checked, FINDINGS_DDL)


def digests(rows: DataFrame) -> DataFrame:
    """For each block of messages, how many there are and what they come to."""
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*(_comparable(rows[name], name) for name in SCHEMA.names))
    return (
        rows.select(F.expr(f"seq div {BLOCK}").alias("block"), hashed.alias("hash"))
        .groupBy("block")
        .agg(F.count("*").alias("messages"), F.bit_xor("hash").alias("digest"))
    )


def differing_blocks(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """The blocks that are not the same in two logs: ``block``."""
    there = digests(theirs).withColumnsRenamed({"messages": "messages_there", "digest": "digest_there"})
    both = digests(ours).join(there, "block", "full")
    return both.where("not (messages <=> messages_there and digest <=> digest_there)").select("block")


def disagreements(ours: DataFrame, theirs: DataFrame) -> DataFrame:
    """Messages that two logs have under the same number but not the same: ``seq``, ``fields``, ``evidence``."""
    from pyspark.sql import functions as F

    names = [name for name in SCHEMA.names if name != "seq"]
    here = ours.select("seq", *(_comparable(ours[name], name).alias(f"{name}_here") for name in names))
    there = theirs.select("seq", *(_comparable(theirs[name], name).alias(f"{name}_there") for name in names))
    both = here.join(there, "seq")
    differs = {name: ~both[f"{name}_here"].eqNullSafe(both[f"{name}_there"]) for name in names}
    told = [
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
        "seq", fields.alias("fields"), F.concat_ws("; ", *told).alias("evidence")
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
    """A column whose values can be compared and hashed: of a map, its entries in order."""
    from pyspark.sql import functions as F

    return F.array_sort(F.map_entries(column)) if name in ("attributes", "numbers") else column


def _shown(column: Column, name: str) -> Column:
    from pyspark.sql import functions as F

    text = F.concat(F.lit("0x"), F.hex(column)) if name == "payload" else column.cast("string")
    return F.coalesce(F.left(text, F.lit(_SHOWN)), F.lit("nothing"))
