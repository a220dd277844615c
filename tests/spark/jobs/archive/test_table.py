"""Archives in Delta and Iceberg: each message once, whatever is killed, whoever reads with whichever library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from tests.hubprocess import HubProcess
from tests.spark.jobs.conftest import Play
from tests.spark.jobs.rows import BEGIN, LOG, frame, rows

import headrace
from headrace.errors import StorageError, UsageError
from headrace.message import SCHEMA
from headrace.spark.jobs.archive import format_of
from headrace.spark.jobs.archive.delta import DeltaLedger
from headrace.spark.jobs.archive.files import Added
from headrace.spark.jobs.archive.iceberg import IcebergLedger
from headrace.spark.jobs.archive.table import Ledger, TableArchive
from headrace.spark.jobs.folder import Folder

pytestmark = pytest.mark.spark

HOUR = 3_600_000_000
LEDGERS: dict[str, Callable[..., Ledger]] = {"delta": DeltaLedger, "iceberg": IcebergLedger}


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_client(kind: str, path: Path, log: str = LOG, **options: int) -> TableArchive:
    return TableArchive(Folder.at(str(path)), LEDGERS[kind](str(path), log), log, **options)


def seen(kind: str, path: Path) -> pa.Table:
    """The table as the format's own library reads it."""
    if kind == "delta":
        found = DeltaTable(path).to_pyarrow_table()
    else:
        catalog = SqlCatalog("headrace", uri=f"sqlite:///{path}/catalog.db", warehouse=str(path))
        found = catalog.load_table("headrace.archive").scan().to_arrow()
    return found.select(SCHEMA.names).cast(SCHEMA).sort_by("seq")


def live(kind: str, path: Path) -> list[str]:
    return sorted(name.partition(f"{path}/")[2] for name in LEDGERS[kind](str(path), None).live())


def test_what_is_read_is_what_was_written(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    attributes = [[("place", "Bern"), ("kind", str(seq))] for seq in range(1, 1001)]
    numbers = [[("celsius", seq / 2)] for seq in range(1, 1001)]
    origins = ["spark" if seq % 100 == 0 else "tube" for seq in range(1, 1001)]
    written = rows(1, 1000, attributes=attributes, numbers=numbers, origin=origins, number=[None] * 1000)
    assert open_client(kind, tmp_path).add(frame(spark, written)) == Added(through=1000, messages=1000)
    found = seen(kind, tmp_path)
    assert found == written
    assert duckdb.sql("select count(*), count(distinct seq), max(seq) from found").fetchall() == [
        (1000, 1000, 1000)
    ]
    assert format_of(Folder.at(str(tmp_path))) == kind


def test_a_micro_batch_that_comes_again_adds_nothing(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    job = open_client(kind, tmp_path)
    job.add(frame(spark, rows(1, 100)))
    before = live(kind, tmp_path)
    assert job.add(frame(spark, rows(1, 100))) == Added(through=100, messages=0)
    assert live(kind, tmp_path) == before
    # Another process, another checkpoint, another split into batches: the table itself tells.
    assert open_client(kind, tmp_path).add(frame(spark, rows(51, 150))) == Added(through=150, messages=50)
    assert seen(kind, tmp_path) == rows(1, 150)


@pytest.mark.parametrize("step", ["append", "replace"])
def test_killed_before_and_after_a_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    """Readers see the sequence up to some number at every moment; the next try adds the rest."""

    class KilledError(BaseException):
        pass

    written = rows(1, 600, step=HOUR // 200)
    open_client(kind, tmp_path).add(frame(spark, written.slice(0, 50)))
    open_client(kind, tmp_path).add(frame(spark, written.slice(0, 60)))
    commit = getattr(type(LEDGERS[kind](str(tmp_path), None)), step)
    for late in (False, True):

        def killed(self: Ledger, *told: object, late: bool = late) -> None:
            if late:
                commit(self, *told)
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(LEDGERS[kind], step, killed)
            with pytest.raises(KilledError):
                open_client(kind, tmp_path).add(frame(spark, written.slice(0, 300 if not late else 500)))
        found = seen(kind, tmp_path)
        assert found == written.slice(0, found.num_rows)
        assert found.num_rows == {"append": (60, 500), "replace": (300, 500)}[step][late]
    open_client(kind, tmp_path).add(frame(spark, written))
    assert seen(kind, tmp_path) == written
    assert not (tmp_path / "_making").exists()


def test_files_are_by_hour_and_small_ones_are_folded(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    begin = BEGIN - BEGIN % HOUR
    job = open_client(kind, tmp_path)
    for first in range(1, 300, 50):
        job.add(frame(spark, rows(first, first + 49, begin=begin, step=HOUR // 250)))
    names = [name.removeprefix("data/") for name in live(kind, tmp_path)]
    # The hour that is over is one file; that of each task is still there in the one that is not.
    assert names == [
        "day=2026-09-21/hour=14/000000000000001-000000000000250.parquet",
        "day=2026-09-21/hour=15/000000000000251-000000000000275.parquet",
        "day=2026-09-21/hour=15/000000000000276-000000000000300.parquet",
    ]
    assert seen(kind, tmp_path) == rows(1, 300, begin=begin, step=HOUR // 250)
    if kind == "delta":
        (hour,) = DeltaTable(tmp_path).to_pyarrow_table(filters=[("hour", "=", 15)])["hour"].unique()
        assert hour.as_py() == 15


def test_files_are_folded_when_they_are_large_enough(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    job = open_client(kind, tmp_path, file_bytes=30_000)
    for first in range(1, 2000, 200):
        job.add(frame(spark, rows(first, first + 199)))
    folded = live(kind, tmp_path)
    assert len(folded) <= 8  # of twenty
    # Opened again it goes on with what is open.
    job = open_client(kind, tmp_path, file_bytes=30_000)
    job.add(frame(spark, rows(2001, 2200)))
    assert len(live(kind, tmp_path)) <= 8
    assert seen(kind, tmp_path) == rows(1, 2200)


def test_two_processes_do_not_write_one_table(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    one, other = open_client(kind, tmp_path), open_client(kind, tmp_path)
    other.add(frame(spark, rows(1, 10)))
    with pytest.raises(StorageError, match="another process"):
        one.add(frame(spark, rows(1, 20)))
    assert seen(kind, tmp_path) == rows(1, 10)


def test_another_log_is_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    open_client(kind, tmp_path).add(frame(spark, rows(1, 10)))
    other = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    with pytest.raises(UsageError, match=f"log {LOG}, and the hub's log is {other}"):
        open_client(kind, tmp_path, other)


def test_iceberg_forgets_old_snapshots_and_their_files(spark: SparkSession, tmp_path: Path) -> None:
    begin = BEGIN - BEGIN % HOUR
    ledger = IcebergLedger(str(tmp_path), LOG, kept=0.0)
    job = TableArchive(Folder.at(str(tmp_path)), ledger, LOG)
    for first in range(1, 1000, 50):
        job.add(frame(spark, rows(first, first + 49, begin=begin, step=HOUR // 100)))
    assert seen("iceberg", tmp_path) == rows(1, 1000, begin=begin, step=HOUR // 100)
    files = sorted(str(file.relative_to(tmp_path)) for file in (tmp_path / "data").rglob("*.parquet"))
    assert set(live("iceberg", tmp_path)) <= set(files)
    assert len(files) - len(live("iceberg", tmp_path)) <= 2
    manifests = list((tmp_path / "metadata").glob("*.avro"))
    assert len(manifests) < 40


def test_the_job_in_each_format_and_its_replay(
    spark: SparkSession, hub: HubProcess, play: Play, tmp_path: Path, kind: str
) -> None:
    servers, path = hub.doors["tube_tcp"], tmp_path / "an archive, für immer 100%"
    play = partial(play, path=path)
    with headrace.connect_sync(f"tube://{servers}") as link:
        link.publish([f"{each}".encode() for each in range(500)], topic="t", attributes={"a": "b"})
        assert play("archive", servers, table_format=kind)["through"] == 500
        link.publish([b"more"] * 10)
        assert play("archive", servers, table_format=kind)["through"] == 510
        log = pa.Table.from_batches(link.read(1), SCHEMA)
    assert seen(kind, path) == log
    with pytest.raises(UsageError, match=f"has an archive in {kind}, and parquet is asked for"):
        play("archive", servers, table_format="parquet")
    with HubProcess.start(tmp_path / "target") as target:
        assert play("replay", target.doors["tube_tcp"])["messages"] == 510


def test_a_format_that_is_none(hub: HubProcess, play: Play) -> None:
    with pytest.raises(UsageError, match="table_format = orc: expected parquet, delta or iceberg"):
        play("archive", hub.doors["tube_tcp"], table_format="orc")
