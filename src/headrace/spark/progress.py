"""How far jobs are, from what Spark itself says of its queries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
