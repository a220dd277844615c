"""How far jobs are, from what Spark itself says of its queries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.jobs.job import Started


def progress_of(name: str, started: Started, newest: int | None) -> dict[str, object]:
    """The facts of a job that runs; ``newest`` is the last message there is, if that is known."""
    query = started.query
    facts: dict[str, object] = {"job": name, "state": "running" if query.isActive else "stopped"}
    last = query.lastProgress
    if last is not None:
        facts |= _figures(json.loads(last.json), newest)
    own = dict(started.facts())
    if not facts.get("rows"):
        # Spark has had nothing to do since: what a job counts by itself was of an earlier micro-batch.
        own.pop("rows", None)
        own.pop("rows_per_second", None)
    return facts | own


def tasks_of(spark: SparkSession, group: str) -> dict[str, object]:
    """How many tasks of a group of Spark's jobs are done, and how many there are; nothing while there are none."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    tasks = sum(stage.numTasks for stage in known)
    return {"tasks": tasks, "tasks_done": sum(stage.numCompletedTasks for stage in known)} if tasks else {}


def _figures(last: Mapping[str, Any], newest: int | None) -> dict[str, object]:
    source = last["sources"][0]
    seq = _seq(source.get("endOffset"))
    milliseconds = last.get("durationMs", {}).get("triggerExecution", 0)
    return {
        "batch": last["batchId"],
        "time": last["timestamp"],
        "rows": last.get("numInputRows", 0),
        "rows_per_second": round(last.get("processedRowsPerSecond") or 0.0, 1),
        "batch_seconds": milliseconds / 1000,
        "seq": seq,
        "behind": None if newest is None or seq is None else max(newest - seq, 0),
    }


def _seq(offset: object) -> int | None:
    """The sequence number of an offset, which Spark gives as JSON, or as a text that holds JSON."""
    if isinstance(offset, str):
        offset = json.loads(offset)
    seq = offset.get("seq") if isinstance(offset, dict) else None
    return seq if isinstance(seq, int) else None
