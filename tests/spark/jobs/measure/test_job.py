"""``measure``: figures equal a plain count of the same messages, however they are cut into micro-batches."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.jobs.rows import BEGIN, frame, rows

from headrace.spark.jobs.job import JobRun
from headrace.spark.jobs.measure import PARAMETERS, SPANS, measure
from headrace.spark.jobs.measure.run import Measurer
from headrace.spark.options import HubOptions

pytestmark = pytest.mark.spark


def messages(count: int, *, step: int = 7_000) -> pa.Table:
    random = Random(count)
    return rows(
        1,
        count,
        step=step,
        origin=[random.choice(["tube", "tube", "spp", "spark"]) for _ in range(count)],
        topic=[random.choice(["", "a", "a", "b", "c"]) for _ in range(count)],
        publisher=[f"p{random.randrange(40)}" for _ in range(count)],
        attributes=[
            [("place", random.choice(["Bern", "Basel\x1fLand"]))] if random.random() < 0.5 else []
            for _ in range(count)
        ],
    )


def counted(table: pa.Table) -> dict[tuple[int, int], dict[str, Any]]:
    """The same figures, counted naming_job, by span and start."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    times = table.column("time").cast(pa.int64()).to_pylist()
    for row, time in zip(table.drop_columns(["time"]).to_pylist(), times, strict=True):
        if row["origin"] == "spark":
            continue
        for span in SPANS.values():
            start = time // 1_000_000 // span * span
            empty = {
                "messages": 0,
                "bytes": 0,
                "publishers": set(),
                "topics": Counter(),
                "attributes": Counter(),
            }
            window = found.setdefault((span, start), empty)
            window["messages"] += 1
            window["bytes"] += len(row["payload"])
            window["publishers"].add(row["publisher"])
            window["topics"] += Counter([row["topic"]] if row["topic"] else [])
            window["attributes"] += Counter(row["attributes"])
    return found


def compare(found: list[dict[str, Any]], expected: dict[tuple[int, int], dict[str, Any]]) -> None:
    assert {(row["span"], int(row["start"].timestamp())) for row in found} == set(expected)
    for row in found:
        window = expected[row["span"], int(row["start"].timestamp())]
        assert (row["messages"], row["bytes"]) == (window["messages"], window["bytes"])
        assert row["publishers"] == len(window["publishers"])
        assert {top["topic"]: top["messages"] for top in row["topics"]} == window["topics"]
        attributes = {(top["name"], top["value"]): top["messages"] for top in row["attributes"]}
        assert attributes == window["attributes"]
        assert (row["end"] - row["start"]).total_seconds() == row["span"]


def test_figures_equal_a_plain_count(spark: SparkSession) -> None:
    table = messages(20_000)
    now = F.timestamp_micros(F.lit(BEGIN + 20_000 * 7_000))
    found = measure(frame(spark, table), now).toArrow().to_pylist()
    compare(found, counted(table))
    hour = next(row for row in found if row["span"] == 3600)
    assert hour["lag_max"] == pytest.approx(20_000 * 0.007, rel=0.01)
    assert hour["lag_p50"] == pytest.approx(70, rel=0.1)
    assert hour["lag_p99"] == pytest.approx(138.6, rel=0.05)


def test_micro_batches_make_the_same_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours of messages in a few micro-batches, one of them run twice: as if all had come at once."""
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(
        JobRun, "publish_services", lambda _a, _q, _b, changes: published.append(dict(changes))
    )
    table = messages(9_000, step=900_000)
    run = JobRun(spark, "measure", HubOptions(), {"path": str(tmp_path)}, PARAMETERS)
    measurer = Measurer(run)
    edges = [0, 10, 4_000, 4_001, 8_999, 9_000]
    for batch, (begin, end) in enumerate(itertools.pairwise(edges)):
        part = frame(spark, table.slice(begin, end - begin))
        measurer.measure(part, batch)
        if batch == 2:
            # Killed before Spark noted it: another process runs it again.
            measurer = Measurer(run)
            measurer.measure(part, batch)
    last = int(table.column("time").cast(pa.int64())[-1].as_py()) // 1_000_000
    complete = {
        (span, start): window
        for (span, start), window in counted(table).items()
        if start < last // max(span, 60) * max(span, 60)
    }
    written = ds.dataset(tmp_path, partitioning="hive", format="parquet", exclude_invalid_files=False)
    compare(written.to_table().to_pylist(), complete)
    assert published[0]["measure/second"]["messages"] >= 1
    assert published[0]["measure/hour"].keys() >= {
        "start",
        "end",
        "messages",
        "bytes",
        "publishers",
        "topics",
        "lag",
    }
    assert datetime.fromisoformat(published[0]["measure/hour"]["start"]).astimezone(UTC).minute == 0


def test_the_driver_gets_open_windows_only_however_thin_a_micro_batch_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are each alone in their second, of a hub with little to do that is measured late."""
    measurer = Measurer(JobRun(spark, "measure", HubOptions(), {"path": str(tmp_path)}, PARAMETERS))
    collected: list[pa.Table] = []
    collect = Measurer._collect

    def noted(self: Measurer, made: DataFrame) -> pa.Table:
        collected.append(collect(self, made))
        return collected[-1]

    monkeypatch.setattr(Measurer, "_collect", noted)
    monkeypatch.setattr(JobRun, "publish_services", lambda *_: None)
    measurer.measure(frame(spark, messages(9_000, step=1_000_000)), 0)
    (table,) = collected
    assert table.num_rows <= 62
    written = ds.dataset(tmp_path, partitioning="hive", format="parquet", exclude_invalid_files=False)
    assert written.count_rows() > 1_000


def test_nothing_to_measure_is_nothing_to_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(
        JobRun, "publish_services", lambda _a, _q, _b, changes: published.append(dict(changes))
    )
    measurer = Measurer(JobRun(spark, "measure", HubOptions(), {"path": str(tmp_path)}, PARAMETERS))
    # Spark's first micro-batch is empty where there are no messages yet.
    measurer.measure(frame(spark, rows(1, 0)), 0)
    assert not any(published)
    measurer.measure(frame(spark, rows(1, 50)), 1)
    measurer.measure(frame(spark, rows(51, 60, origin=["spark"] * 10)), 2)
    assert len(list(filter(None, published))) == 1
