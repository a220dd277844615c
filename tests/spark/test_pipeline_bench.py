"""The benchmark of the pipeline runs to its end and reports what it promises; never how fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench._peers import Headrace, running
from pyspark.sql import SparkSession

from bench import pipeline


@pytest.mark.spark
def test_the_pipeline_beside_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    with running(Headrace) as full, running(Headrace) as other:
        tables = pipeline.pipeline(spark, full, other, tmp_path, 2, True)
    source, sink, latency = ({row["name"]: row for row in table.json()["rows"]} for table in tables)
    for to in ("noop", "parquet"):
        for name in ("headrace", "headrace, by the link alone"):
            assert source[f"{name} to {to}"]["base"] == f"Parquet files to {to}"
            assert source[f"{name} to {to}"]["ratio"] > 0
    assert sink["headrace"]["ratio"] > 0
    assert 0 < latency["ping to pong"]["p50"] <= latency["ping to pong"]["p99"]
