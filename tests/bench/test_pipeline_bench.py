"""The benchmark of the pipeline runs to its end and reports what it promises; never how fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench._peers import Headrace, running
from pyspark.sql import SparkSession

from bench import pipeline


@pytest.mark.slow
@pytest.mark.spark
# How long it takes must not decide, and ending it early would end the session that other tests share.
@pytest.mark.timeout(1200)
def test_the_pipeline_beside_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    with running(Headrace) as full, running(Headrace) as other:
        tables = list(pipeline.pipeline(spark, full, other, tmp_path, 2, True))
    source, sink, latency, batch, archive, history, replay = (
        {row["name"]: row for row in table.json()["rows"]} for table in tables
    )
    for name, base in (
        ("headrace to noop", "Parquet files to noop"),
        ("headrace, by the link alone, to noop", "Parquet files to noop"),
        ("headrace, payload alone, to noop", "Parquet files, payload alone, to noop"),
        ("the same, by headrace.spark.map_in_arrow", "a function of Arrow batches, by mapInArrow"),
        (pipeline.ARCHIVE, "Parquet files to Parquet"),
    ):
        assert source[name]["base"] == base
        assert source[name]["ratio"] > 0
    assert sink["headrace"]["ratio"] > 0
    assert (source[pipeline.ARCHIVE]["least"], sink["headrace"]["least"]) == (1.5, 0.7)
    assert 0 < latency["ping to pong"]["p50"] <= latency["ping to pong"]["p99"]
    assert 0 < latency["settled"]["p50"] <= latency["settled"]["most"]
    assert batch["headrace, in one batch"]["ratio"] > 0
    assert all(row["rows/s"] > 0 for row in history.values())
    assert 0 < archive["archive"]["driver %"] < 100
    assert archive["archive"]["files"] >= 1
    assert replay["replay"]["first message s"] > 0
