"""An archive's files as rows, where Spark cannot read them itself.

Spark reads what Hadoop has a filesystem for, and for S3 that is a matter of jars. Jobs write through pyarrow, so what
they wrote can be read the same way, from the same place and with the same keys: each task reads files, row group by
row group, and only those row groups that may have what is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.spark.jobs.archive.files import enveloped
from headrace.spark.jobs.folder import Folder, blaming
from headrace.spark.source.reader import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 16_384


def archived_rows(spark: SparkSession, folder: Folder, wanted: pc.Expression | None = None) -> DataFrame:
    """The messages of an archive in Parquet; at least those that are ``wanted``, by their columns ``seq`` and ``time``.

    What a task reads is in order, the tasks are in none.
    """
    with blaming(folder.path):
        names = list(_files(folder))
    parts = max(min(len(names), spark.sparkContext.defaultParallelism), 1)
    listed = spark.createDataFrame(pa.table({"name": pa.array(names, pa.string())})).repartition(parts)
    return listed.mapInArrow(partial(_read, folder, wanted), SPARK_SCHEMA)


def _files(folder: Folder) -> Iterator[str]:
    for day in folder.names():
        if day.startswith("day="):
            for hour in folder.sub(day).names():
                for name in folder.sub(day).sub(hour).names():
                    if name.endswith(".parquet"):
                        yield f"{day}/{hour}/{name}"


def _read(
    folder: Folder, wanted: pc.Expression | None, listed: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task: files by their names."""
    for batch in listed:
        for name in batch.column("name").to_pylist():
            with blaming(f"{folder.path}/{name}"):
                file = ds.dataset(f"{folder.path}/{name}", format="parquet", filesystem=folder.system)
                for rows in file.to_batches(filter=wanted, batch_size=_BATCH_ROWS, use_threads=False):
                    yield enveloped(rows)
