"""The archive job's writer, in every format: each message once, whatever is killed, whoever reads."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.archive.logs import message_batches
from tests.archive.tables import archived, ledger
from tests.hubprocess import HubProcess
from tests.spark.jobs.conftest import Play
from tests.spark.jobs.rows import frame, rows

import headrace
from headrace.archive import open_table
from headrace.archive.appending import append, ledger_for
from headrace.archive.ledger import Ledger, Writer
from headrace.archive.table import FORMATS
from headrace.errors import OvertakenError, StorageError, UsageError
from headrace.message import SCHEMA
from headrace.spark import history
from headrace.spark.jobs.archive.table_writer import Added, ArchiveWriter

pytestmark = pytest.mark.spark

WRITER = Writer("a query", 1)


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_read_is_what_was_written_whoever_reads(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    attributes = [[("place", "Bern"), ("kind", str(seq))] for seq in range(1, 1001)]
    numbers = [[("celsius", seq / 2)] for seq in range(1, 1001)]
    written = rows(1, 1000, attributes=attributes, numbers=numbers, number=[None] * 1000)
    job = ArchiveWriter(ledger(kind, tmp_path))
    assert job.add(frame(spark, written), WRITER) == Added(through=1000, messages=1000)
    assert archived(tmp_path) == written
    by_spark = history(spark, str(tmp_path)).orderBy("seq").toArrow()
    assert by_spark.select(SCHEMA.names).cast(SCHEMA) == written
    names = [str(tmp_path / file.path) for file in open_table(str(tmp_path)).all_files()]
    counted = duckdb.sql(f"select count(*), count(distinct seq), max(seq) from read_parquet({names})")
    assert counted.fetchall() == [(1000, 1000, 1000)]
    if kind == "delta":
        assert DeltaTable(tmp_path).to_pyarrow_table().cast(SCHEMA).sort_by("seq") == written
        assert polars.scan_delta(str(tmp_path)).select(polars.len()).collect().item() == 1000


def test_a_micro_batch_that_comes_again_adds_nothing(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    job = ArchiveWriter(ledger(kind, tmp_path))
    job.add(frame(spark, rows(1, 100)), WRITER)
    before = open_table(str(tmp_path))
    assert job.add(frame(spark, rows(1, 100)), WRITER) == Added(through=100, messages=0)
    assert before.refreshed() is before
    # Another process, another checkpoint, another split into batches: the table itself tells.
    again = ArchiveWriter(ledger(kind, tmp_path))
    assert again.add(frame(spark, rows(51, 150)), WRITER) == Added(through=150, messages=50)
    assert archived(tmp_path) == rows(1, 150)


def test_small_files_are_merged_and_those_who_listed_them_read_on(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    job = ArchiveWriter(ledger(kind, tmp_path), file_bytes=1 << 20)
    job.add(frame(spark, rows(1, 20)), WRITER)
    earlier = history(spark, str(tmp_path))
    listed = open_table(str(tmp_path))
    assert earlier.count() == 20
    for first in range(21, 200, 20):
        job.add(frame(spark, rows(first, first + 19)), WRITER)
    table = open_table(str(tmp_path))
    assert len(table.all_files()) < 16 if kind != "parquet" else len(table.all_files()) == 20
    assert archived(tmp_path) == rows(1, 200)
    # A version that was listed before has what it had.
    assert earlier.count() == 20
    assert [file.last for file in listed.all_files()] == [10, 20]
    assert history(spark, str(tmp_path)).count() == 200
    assert history(spark, str(tmp_path), first=15, last=33).count() == 19


@pytest.mark.parametrize("step", ["append", "replace"])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_killed_before_and_after_a_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    """Readers see the sequence up to some number at every moment; the next try adds the rest."""

    class KilledError(BaseException):
        pass

    written = rows(1, 600)
    ArchiveWriter(ledger(kind, tmp_path)).add(frame(spark, written.slice(0, 50)), WRITER)
    of_kind = type(ledger(kind, tmp_path))
    commit = getattr(of_kind, step)
    for late in (False, True):

        def killed(self: Ledger, *told: object, late: bool = late) -> None:
            if late:
                commit(self, *told)
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(of_kind, step, killed)
            with pytest.raises(KilledError):
                # Small files, so that some are to be merged.
                ArchiveWriter(ledger(kind, tmp_path), file_bytes=16_000).add(
                    frame(spark, written.slice(0, 300 if not late else 500)), WRITER
                )
        found = archived(tmp_path)
        assert found == written.slice(0, found.num_rows)
        assert found.num_rows == {"append": (50, 500), "replace": (300, 500)}[step][late]
    ArchiveWriter(ledger(kind, tmp_path)).add(frame(spark, written), WRITER)
    assert archived(tmp_path) == written


def test_files_that_cannot_be_merged_do_not_stop_the_archive(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = ArchiveWriter(ledger("delta", tmp_path), file_bytes=16_000)
    job.add(frame(spark, rows(1, 20)), WRITER)
    damaged = tmp_path / open_table(str(tmp_path)).all_files()[0].path
    damaged.write_bytes(b"damaged" + damaged.read_bytes()[7:-4] + b"nope")
    for first in range(21, 100, 20):
        assert job.add(frame(spark, rows(first, first + 19)), WRITER).through == first + 19
    assert "files of the archive stay as they are" in caplog.text
    assert open_table(str(tmp_path)).through == 100


def test_of_two_writers_one_is_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    one, other = ArchiveWriter(ledger(kind, tmp_path)), ArchiveWriter(ledger(kind, tmp_path))
    other.add(frame(spark, rows(1, 10)), Writer("the other", 4))
    with pytest.raises(OvertakenError, match="query the other, batch 4 has added messages up to 10"):
        one.add(frame(spark, rows(1, 20)), WRITER)
    assert archived(tmp_path) == rows(1, 10)


def test_a_hole_is_refused_unless_it_is_told_to_be_skipped(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """A second checkpoint that begins later must not leave out what lies between."""
    ArchiveWriter(ledger(kind, tmp_path)).add(frame(spark, rows(1, 10)), WRITER)
    with pytest.raises(StorageError, match="messages 11 to 20 would be missing: not archived"):
        ArchiveWriter(ledger(kind, tmp_path)).add(frame(spark, rows(21, 30)), WRITER)
    assert archived(tmp_path) == rows(1, 10)
    ArchiveWriter(ledger(kind, tmp_path), holes=True).add(frame(spark, rows(21, 30)), WRITER)
    assert archived(tmp_path) == pa.concat_tables([rows(1, 10), rows(21, 30)])


def test_disorder_is_not_archived(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    job = ArchiveWriter(ledger(kind, tmp_path))
    with pytest.raises(Exception, match="out of order"):
        job.add(frame(spark, rows(1, 10).take([0, 2, 1, *range(3, 10)])), WRITER)
    with pytest.raises(StorageError, match="came after message"):
        job.add(frame(spark, pa.concat_tables([rows(1, 40), rows(1, 40)])), WRITER)
    assert archived(tmp_path).num_rows == 0


def test_the_job_in_each_format_and_its_replay(
    spark: SparkSession, hub: HubProcess, play: Play, tmp_path: Path, kind: str
) -> None:
    servers, path = hub.doors["tube_tcp"], tmp_path / "an archive, [für] immer 100%"
    play = partial(play, path=path)
    with headrace.connect_sync(f"tube://{servers}") as link:
        link.publish([f"{each}".encode() for each in range(500)], topic="t", attributes={"a": "b"})
        assert play("archive", servers, table_format=kind)["through"] == 500
        link.publish([b"more"] * 10)
        assert play("archive", servers, table_format=kind)["through"] == 510
        log = pa.Table.from_batches(link.read(1), SCHEMA)
    assert archived(path) == log
    assert history(spark, str(path)).count() == 510
    other = "delta" if kind != "delta" else "parquet"
    with pytest.raises(UsageError, match=f"has an archive in {kind}, and {other} is asked for"):
        play("archive", servers, table_format=other)
    with HubProcess.start(tmp_path / "target") as target:
        assert play("replay", target.doors["tube_tcp"])["messages"] == 510


def test_a_log_does_not_go_on_in_the_archive_of_another_history(
    hub: HubProcess, play: Play, tmp_path: Path
) -> None:
    servers = hub.doors["tube_tcp"]
    with headrace.connect_sync(f"tube://{servers}") as link:
        link.publish([b"these"] * 200)
        lost = (batch.to_arrow() for batch in message_batches(1, 100))
        append(ledger_for(str(tmp_path / "archive"), link.log), lost, WRITER)
    with pytest.raises(Exception, match="its message 100 differs from the log's"):
        play("archive", servers, path=tmp_path / "archive")
    assert open_table(str(tmp_path / "archive")).through == 100


def test_a_format_that_is_none(hub: HubProcess, play: Play) -> None:
    with pytest.raises(UsageError, match="table_format = orc: expected delta, iceberg or parquet"):
        play("archive", hub.doors["tube_tcp"], table_format="orc")
