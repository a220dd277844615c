"""An archive in Parquet: the sequence up to some number, each message once, whatever is killed and whoever reads."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.jobs.rows import BEGIN, LOG, frame, rows

from headrace.errors import StorageError, UsageError
from headrace.message import SCHEMA
from headrace.spark.jobs.archive import files as archive_files
from headrace.spark.jobs.archive.files import Added, write_files
from headrace.spark.jobs.archive.parquet import ParquetArchive
from headrace.spark.jobs.folder import Folder
from headrace.spark.source import parquet_files

pytestmark = pytest.mark.spark

HOUR = 3_600_000_000


def open_client(path: Path, log: str = LOG, **options: int) -> ParquetArchive:
    return ParquetArchive(Folder.at(str(path)), log, **options)


def archived(path: Path) -> pa.Table:
    """What pyarrow sees, which knows nothing of Spark."""
    found = ds.dataset(path, partitioning="hive").to_table()
    return found.select(SCHEMA.names).sort_by("seq").cast(SCHEMA)


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*.parquet"))


def test_what_is_read_is_what_was_written_whoever_reads(spark: SparkSession, tmp_path: Path) -> None:
    attributes = [[("place", "Bern"), ("kind", str(seq))] for seq in range(1, 1001)]
    numbers = [[("celsius", seq / 2)] for seq in range(1, 1001)]
    origins = ["spark" if seq % 100 == 0 else "tube" for seq in range(1, 1001)]
    written = rows(1, 1000, attributes=attributes, numbers=numbers, origin=origins, number=[None] * 1000)
    assert open_client(tmp_path).add(frame(spark, written)) == Added(through=1000, messages=1000)
    assert archived(tmp_path) == written
    everywhere = f"'{tmp_path}/**/*.parquet'"
    counted = duckdb.sql(f"select count(*), count(distinct seq), max(seq) from {everywhere}").fetchall()
    assert counted == [(1000, 1000, 1000)]
    again = spark.read.parquet(str(tmp_path))
    assert again.select(*SCHEMA.names).orderBy("seq").toArrow().column("payload") == written.column("payload")
    assert set(again.columns) == {*SCHEMA.names, "day", "hour"}


def test_by_day_and_hour(spark: SparkSession, tmp_path: Path) -> None:
    midnight = BEGIN - BEGIN % (24 * HOUR) + 24 * HOUR
    written = rows(1, 600, begin=midnight - HOUR - HOUR // 2, step=HOUR // 200)
    open_client(tmp_path).add(frame(spark, written))
    assert files(tmp_path) == [
        "day=2026-09-21/hour=22/000000000000001.parquet",
        "day=2026-09-21/hour=23/000000000000101.parquet",
        "day=2026-09-22/hour=00/000000000000301.parquet",
        "day=2026-09-22/hour=01/000000000000501.parquet",
    ]
    assert archived(tmp_path) == written
    hours = duckdb.sql(
        f"select distinct hour(time) = hour::int from read_parquet('{tmp_path}/**/*.parquet', hive_partitioning = true)"
    )
    assert hours.fetchall() == [(True,)]


def test_small_batches_grow_one_file_and_the_schema_stays(spark: SparkSession, tmp_path: Path) -> None:
    job = open_client(tmp_path)
    for first in range(1, 100, 10):
        assert job.add(frame(spark, rows(first, first + 9))).through == first + 9
    assert files(tmp_path) == ["day=2026-09-21/hour=14/000000000000001.parquet"]
    assert archived(tmp_path) == rows(1, 99 + 1)
    assert pq.read_schema(tmp_path / files(tmp_path)[0]).remove_metadata() == SCHEMA


def test_a_file_that_is_large_enough_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    job = open_client(tmp_path, file_bytes=12_000)
    untouched: dict[str, bytes] = {}
    for first in range(1, 4000, 400):
        job.add(frame(spark, rows(first, first + 399)))
        for name, content in untouched.items():
            assert (tmp_path / name).read_bytes() == content
        untouched = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)[:-1]}
    assert len(files(tmp_path)) >= 3
    assert archived(tmp_path) == rows(1, 4000)


def test_a_file_is_copied_to_grow_only_while_it_is_small(spark: SparkSession, tmp_path: Path) -> None:
    job = open_client(tmp_path, file_bytes=400_000)
    rng = random.Random(5)
    grown: dict[str, bytes] = {}
    for first in range(1, 100, 10):
        # About 40,000 bytes, which nothing makes fewer.
        job.add(frame(spark, rows(first, first + 9, payload=[rng.randbytes(4_000) for _ in range(10)])))
        found = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
        assert grown.items() <= found.items()
        grown = {name: content for name, content in found.items() if len(content) >= 100_000}
    # They could hold four times as much; joining what comes would cost more than it is worth.
    assert grown
    assert len(found) >= 3


def test_what_is_archived_is_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    job = open_client(tmp_path)
    job.add(frame(spark, rows(1, 100)))
    assert job.add(frame(spark, rows(1, 100))) == Added(through=100, messages=0)
    # Another process, another checkpoint, another split into batches: the archive itself tells.
    assert open_client(tmp_path).add(frame(spark, rows(51, 150))) == Added(through=150, messages=50)
    assert archived(tmp_path) == rows(1, 150)


@pytest.mark.parametrize("moves", range(5))
def test_killed_between_any_two_moves(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """A reader sees the sequence up to some number at every moment; the next try adds the rest."""

    class KilledError(BaseException):
        pass

    written = rows(1, 600, step=HOUR // 200)
    open_client(tmp_path).add(frame(spark, written.slice(0, 50)))
    move, left = Folder.move, moves

    def until_killed(self: Folder, name: str, to: Folder, new_name: str) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        move(self, name, to, new_name)

    monkeypatch.setattr(Folder, "move", until_killed)
    job = open_client(tmp_path)
    if moves < 4:
        with pytest.raises(KilledError):
            job.add(frame(spark, written.slice(50)))
    else:
        job.add(frame(spark, written.slice(50)))
    seen = archived(tmp_path)
    assert seen == written.slice(0, seen.num_rows)
    assert seen.num_rows == [50, 156, 356, 556, 600][moves]
    monkeypatch.setattr(Folder, "move", move)
    open_client(tmp_path).add(frame(spark, written.slice(50)))
    assert archived(tmp_path) == written
    assert not (tmp_path / "_making").exists()


def test_another_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    open_client(tmp_path).add(frame(spark, rows(1, 10)))
    other = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    with pytest.raises(UsageError, match=f"log {LOG}, and the hub's log is {other}"):
        open_client(tmp_path, other)


def test_foreign_parquet_is_refused(tmp_path: Path) -> None:
    hour = tmp_path / "day=2026-09-21" / "hour=13"
    hour.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), hour / "something.parquet")
    with pytest.raises(UsageError, match="no file of an archive"):
        open_client(tmp_path)


def test_disorder_is_not_archived(spark: SparkSession, tmp_path: Path) -> None:
    job = open_client(tmp_path)
    disordered = rows(1, 10).take([0, 2, 1, *range(3, 10)])
    with pytest.raises(Exception, match="out of order"):
        job.add(frame(spark, disordered))
    with pytest.raises(StorageError, match="came after message"):
        job.add(frame(spark, pa.concat_tables([rows(1, 40), rows(1, 40)])))
    assert files(tmp_path) == []


def test_a_large_task_makes_several_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "FILE_BYTES", 8_000)
    monkeypatch.setattr(parquet_files, "GROUP_ROWS", 500)
    batches = rows(1, 5000).to_batches(max_chunksize=250)
    folder = Folder.at(str(tmp_path))
    made = pa.Table.from_batches(write_files(folder, 0, LOG, batches)).to_pylist()
    assert len(made) > 2
    assert [each["first"] for each in made[1:]] == [each["last"] + 1 for each in made[:-1]]
    assert pa.concat_tables(pq.read_table(tmp_path / each["name"]) for each in made).num_rows == 5000
