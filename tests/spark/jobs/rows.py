"""Rows in the envelope's schema for tests of jobs, as a log would have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headrace.message import SCHEMA

BEGIN = 1_790_000_000_000_000
"""A Monday in September 2026, in µs."""

LOG = "0f8fad5b-d9cb-469f-a165-70867728950e"


def rows(
    first: int, last: int, *, begin: int = BEGIN, step: int = 1000, **columns: pa.Array | list[Any]
) -> pa.Table:
    """Messages ``first`` to ``last``, ``step`` µs apart; ``columns`` replace what is made up here."""
    seqs = np.arange(first, last + 1, dtype=np.int64)
    count = len(seqs)
    made: dict[str, pa.Array | list[Any]] = {
        "seq": pa.array(seqs),
        "time": pa.array(begin + (seqs - 1) * step).cast(SCHEMA.field("time").type),
        "origin": pa.repeat("tube", count),
        "node": pa.repeat(pa.scalar(7, pa.int32()), count),
        "publisher": pa.array(np.char.add("p", (seqs % 3).astype(str)).tolist(), pa.string()),
        "number": pa.array(seqs // 3),
        "topic": pa.array(np.char.add("t", (seqs % 5).astype(str)).tolist(), pa.string()),
        "attributes": pa.array([[]] * count, SCHEMA.field("attributes").type),
        "numbers": pa.array([[]] * count, SCHEMA.field("numbers").type),
        "payload": pa.array([f"message {seq}".encode() for seq in seqs.tolist()], pa.binary()),
        **columns,
    }
    arrays = [
        value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(value, field.type)
        for field, value in ((field, made[field.name]) for field in SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def frame(spark: SparkSession, table: pa.Table, settings: Mapping[str, str] | None = None) -> DataFrame:
    """The same in Spark, in its order, split into contiguous partitions."""
    return spark.createDataFrame(table)
