"""``history``: an archive as a DataFrame, through Spark's own Parquet reader.

A DataFrame is one version of the archive: the files are listed when it is made. They never change, so whatever is added
or merged meanwhile, it has the same rows each time it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.archive import ArchiveFile, ArchiveTable, open_table
from headrace.archive.folder import NO_OPTIONS, Folder, is_s3, storage_errors
from headrace.archive.parquet_file import enveloped, open_parquet
from headrace.message import MAX_SEQUENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS: Final = 16_384
_PATTERN: Final = re.compile(r"[][{}*?\\]")
_S3A: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def history(
    spark: SparkSession,
    path: str,
    *,
    first: int = 1,
    last: int = MAX_SEQUENCE,
    options: Mapping[str, str] = NO_OPTIONS,
) -> DataFrame:
    """Return the messages of an archive, as they are there now.

    ``first``, ``last``
        Only these messages; files that have none of them are not read.
    ``options``
        Options of the filesystem, as in a URI of pyarrow's; for Iceberg also ``catalog`` and ``table``.

    >>> from tempfile import TemporaryDirectory
    >>> from headrace.spark import session
    >>> from headrace.spark.jobs.job import JobRun, find
    >>> from headrace.spark.options import HubOptions
    >>> from headrace.testing import Hub
    >>> spark, archive = session("local[2]"), find("archive")
    >>> with Hub() as hub, hub.connect_sync("tube") as link, TemporaryDirectory() as path:
    ...     _ = link.publish([b"one", b"two", b"three"], topic="orders")
    ...     access = HubOptions(hub.doors["tube_tcp"])
    ...     run = JobRun(spark, "archive", access, {"path": path}, archive.PARAMETERS, available_now=True)
    ...     _ = archive.start(run).query.awaitTermination()
    ...     history(spark, path, first=2).orderBy("seq").selectExpr("seq", "string(payload) as text").collect()
    [Row(seq=2, text='two'), Row(seq=3, text='three')]
    """
    table = open_table(path, options=options)
    rows = rows_of(spark, table, table.files(first, last))
    if first > 1:
        rows = rows.where(rows.seq >= first)
    return rows.where(rows.seq <= last) if last < MAX_SEQUENCE else rows


def rows_of(spark: SparkSession, table: ArchiveTable, files: Sequence[ArchiveFile]) -> DataFrame:
    """Return the messages of files of an archive; each file's are in order."""
    from headrace.spark.source.reader import SPARK_SCHEMA

    folder = table.folder
    if not files or (is_s3(folder.uri) and not _has_s3(spark)):
        return _by_pyarrow(spark, folder, files)
    # Hadoop calls its S3 client s3a. Brackets and stars in a path are no patterns: Spark can be told so by an option,
    # too, but then reads such files twice.
    begin = f"file://{folder.path}" if folder.local else folder.uri.replace("s3://", "s3a://", 1)
    names = [_PATTERN.sub(r"\\\g<0>", f"{begin}/{file.path}") for file in files]
    return spark.read.schema(SPARK_SCHEMA).parquet(*names)


def _has_s3(spark: SparkSession) -> bool:
    """Whether this Spark has Hadoop's client of S3, which is a jar of its own."""
    try:
        jvm: Any = spark._jvm
        jvm.java.lang.Class.forName(_S3A)
    except Exception:  # noqa: BLE001 - it has not, or it is a Spark Connect client that cannot tell
        return False
    return True


def _by_pyarrow(spark: SparkSession, folder: Folder, files: Sequence[ArchiveFile]) -> DataFrame:
    from headrace.spark.source.reader import SPARK_SCHEMA

    names = pa.table({"name": pa.array([file.path for file in files], pa.string())})
    return spark.createDataFrame(names).mapInArrow(partial(_read, folder), SPARK_SCHEMA)


def _read(folder: Folder, listed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in listed:
        yield from read_files(folder, batch.column("name").to_pylist())


def read_files(folder: Folder, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Read files one after the other; for a task of ``mapInArrow``."""
    for name in names:
        with storage_errors(f"{folder.path}/{name}"), folder.open(name) as file:
            for rows in open_parquet(file).iter_batches(_BATCH_ROWS, use_threads=False):
                yield enveloped(rows)
