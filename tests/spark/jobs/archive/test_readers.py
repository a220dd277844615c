"""Readers who listed an archive before it grew: they see what was there, or each new message once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.hubprocess import HubProcess
from tests.spark.jobs.conftest import Play

import headrace

pytestmark = pytest.mark.spark

FIRST, MORE = 200_000, 5_000


def test_views_and_streams_of_a_folder_that_grows(
    spark: SparkSession, hub: HubProcess, play: Play, tmp_path: Path
) -> None:
    """By Spark alone, which knows files by their names and the lengths that it has listed."""
    servers, path = hub.doors["tube_tcp"], str(tmp_path / "archive")
    with headrace.connect_sync(f"tube://{servers}") as link:
        link.publish([b"first"] * FIRST)
        play("archive", servers, table_format="parquet")
        view = spark.read.parquet(path)
        assert view.count() == FIRST
        seen = spark.readStream.schema(view.schema).parquet(path).select("seq")
        stream = (
            seen.writeStream.format("memory")
            .queryName("seen")
            .option("checkpointLocation", str(tmp_path / "seen"))
            .start()
        )
        try:
            stream.processAllAvailable()
            link.publish([b"more"] * MORE)
            play("archive", servers, table_format="parquet")
            # The view has what it had, and the stream what is new.
            assert view.count() == FIRST
            assert view.selectExpr("count(distinct seq)").first() == (FIRST,)
            stream.processAllAvailable()
            counted = spark.sql("select count(*), count(distinct seq), max(seq) from seen").first()
            assert counted == (FIRST + MORE, FIRST + MORE, FIRST + MORE)
        finally:
            stream.stop()
            spark.catalog.dropTempView("seen")
        assert spark.read.parquet(path).count() == FIRST + MORE
