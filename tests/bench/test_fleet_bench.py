"""The benchmark of matching in Spark runs to its end and finds what Spark SQL finds; never how fast."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from bench import fleet, matching


@pytest.mark.spark
def test_the_fleets_matcher_beside_spark_sql(spark: SparkSession) -> None:
    size, copies = fleet.SIZES[0]
    table = fleet.fleet(spark, matching._load(matching.KINDS[0], size), copies, 2, 1)
    rows = {row["name"]: row for row in table.json()["rows"]}
    assert rows["headrace"]["base"] == "Spark SQL, broadcast join"
    assert rows["headrace"]["ratio"] > 0
    assert rows["headrace"]["matches/message"] > 0
