"""Rows in the envelope's schema in Spark, for tests of jobs."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.archive.tables import BEGIN, LOG, rows

__all__ = ["BEGIN", "LOG", "frame", "rows"]


def frame(spark: SparkSession, table: pa.Table, settings: Mapping[str, str] | None = None) -> DataFrame:
    """The same in Spark, in its order, split into contiguous partitions."""
    return spark.createDataFrame(table)
