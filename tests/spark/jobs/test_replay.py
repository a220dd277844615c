"""The pace of a replay, by a clock that the test moves."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.archive.tables import add, ledger
from tests.hubprocess import HubProcess
from tests.spark.jobs.rows import BEGIN, rows

import headrace
from headrace.archive import ArchiveFile, open_table
from headrace.errors import UsageError
from headrace.spark.jobs.replay import (
    Pace,
    SoFar,
    _between,
    _edge,
    _publish,
    chosen,
    paced,
    rounds,
    within,
)
from headrace.spark.options import HubOptions


def played(table: pa.Table, pace: Pace, batch: int) -> list[tuple[float, int]]:
    """When each message went out, in seconds."""
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    sent = []
    for part in paced(table.to_batches(batch), pace, lambda: now, sleep):
        sent += [(now - 100, seq) for seq in part.column("seq").to_pylist()]
    return sent


def test_at_once() -> None:
    assert played(rows(1, 50), Pace(), 7) == [(0.0, seq) for seq in range(1, 51)]


@pytest.mark.parametrize(
    ("pace", "each"), [(Pace(rate=10), 0.1), (Pace(speed=1), 0.5), (Pace(speed=10), 0.05)], ids=str
)
def test_paced(pace: Pace, each: float) -> None:
    sent = played(rows(1, 100, step=500_000), pace, 9)
    assert [seq for _, seq in sent] == list(range(1, 101))
    for at, seq in sent:
        assert at == pytest.approx((seq - 1) * each, abs=0.021)


def test_edges() -> None:
    assert _edge("12", ">=") == "seq >= 12"
    assert _edge("1970-01-01T00:00:01Z", "<=") == "time <= timestamp_micros(1000000)"
    assert _edge("1970-01-01T00:00:01", "<=") == "time <= timestamp_micros(1000000)"
    assert _edge("2026-01-31T12:00:00.000007Z", ">=") == "time >= timestamp_micros(1769860800000007)"
    with pytest.raises(UsageError, match="a sequence number or a time"):
        _edge("yesterday", ">=")


@pytest.mark.spark
def test_what_is_chosen(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Times choose as exactly as numbers do, and by them Spark need not read what files say they do not have."""
    pq.write_table(rows(1, 100, step=1_000_000), tmp_path / "a.parquet")
    archived = spark.read.parquet(str(tmp_path))
    begin, until = (
        f"{datetime.fromtimestamp(BEGIN // 1_000_000 + at, UTC):%Y-%m-%dT%H:%M:%SZ}" for at in (9, 19)
    )
    by_time = chosen(archived, "topic <> 't0'", begin, until)
    assert [row.seq for row in by_time.orderBy("seq").collect()] == [seq for seq in range(10, 21) if seq % 5]
    by_number = chosen(archived, "topic <> 't0'", "10", "20")
    assert by_number.select("seq").exceptAll(by_time.select("seq")).count() == 0
    by_time.explain("formatted")
    plan = capfd.readouterr().out
    assert "GreaterThanOrEqual(time," in plan
    assert "LessThanOrEqual(time," in plan


@pytest.mark.spark
@pytest.mark.parametrize("where", ["topik = 1", "topic =", "seq", "count(*) > 1"])
def test_a_condition_that_is_none(
    spark: SparkSession, tmp_path: Path, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told once, by the error."""
    pq.write_table(rows(1, 10), tmp_path / "a.parquet")
    archived = spark.read.parquet(str(tmp_path))
    capfd.readouterr()
    with pytest.raises(UsageError, match="replay: where = "):
        chosen(archived, where)
    assert capfd.readouterr().err == ""


def test_a_hub_that_is_being_restarted_is_waited_for(hub: HubProcess) -> None:
    """Also before the first message: a replay's task begins well after the command."""
    access = HubOptions(hub.doors["tube_tcp"], patience=60.0)
    hub.kill9()
    asked = Event()

    def credentials(_: HubOptions) -> None:
        asked.set()

    back = Thread(target=lambda: (asked.wait(), hub.restart()))
    back.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HubOptions, "credentials", credentials)
        (told,) = _publish(access, "replay", Pace(), False, SoFar(), rows(1, 10).to_batches())
    back.join()
    (facts,) = told.to_pylist()
    assert (facts["messages"], facts["first"], facts["last"], facts["count"]) == (10, 1, 10, 10)


def test_what_is_picked_is_published_once(hub: HubProcess) -> None:
    access = HubOptions(hub.doors["tube_tcp"])
    picked = rows(1, 1000).take(list(range(0, 1000, 3)))
    wanted = picked.column("seq").to_pylist()
    half = picked.slice(0, 100).to_batches()
    (told,) = _publish(access, "some", Pace(), True, SoFar(), half)
    assert told.to_pylist()[0]["messages"] == 100
    (told,) = _publish(access, "some", Pace(), True, SoFar(), picked.to_batches(70))
    assert told.to_pylist()[0]["messages"] == len(wanted) - 100
    (told,) = _publish(access, "some", Pace(), True, SoFar(), picked.to_batches())
    (facts,) = told.to_pylist()
    assert (facts["messages"], facts["first"], facts["begin"]) == (0, None, None)
    with headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        found = [number for batch in link.read(1) for number in batch.column("number").to_pylist()]
    assert found == wanted


@pytest.mark.parametrize("place", ["tomorrow", "1" + "0" * 20, "-1"])
def test_a_place_that_is_none_is_told(place: str) -> None:
    with pytest.raises(UsageError, match="expected a sequence number or a time"):
        _edge(place, ">=")


def file(first: int, last: int, size: int = 100) -> ArchiveFile:
    return ArchiveFile(f"{first}", first, last, last - first + 1, size, first * 1_000_000, last * 1_000_000)


def test_files_that_have_nothing_to_replay_are_not_read() -> None:
    files = [file(1, 10), file(11, 20), file(21, 30)]
    assert within(files, "", "") == files
    assert within(files, "11", "20") == files[1:2]
    assert within(files, "10", "21") == files
    assert within(files, "1970-01-01T00:00:25Z", "") == files[2:]
    assert within(files, "31", "") == []


def test_rounds_are_the_files_in_order() -> None:
    files = [file(1, 10, 40), file(11, 20, 40), file(21, 30, 40), file(31, 40, 500), file(41, 50, 1)]
    assert rounds(files, 100) == [files[:2], files[2:3], files[3:4], files[4:]]
    assert rounds([], 100) == []


def test_a_replay_reads_file_after_file_and_nothing_is_sorted(tmp_path: Path) -> None:
    """The first message is there when one row group has been read, however long the archive is."""
    kept = ledger("delta", tmp_path)
    for first in range(1, 1000, 100):
        add(kept, rows(first, first + 99))
    table = open_table(str(tmp_path))
    names = [each.path for each in table.all_files()]
    found = _between(table.folder, [*names, "there is no such file"], "50", "", [])
    assert next(found).column("seq").to_pylist() == list(range(50, 101))
    whole = _between(table.folder, names, "50", "950", [])
    assert [seq for batch in whole for seq in batch.column("seq").to_pylist()] == list(range(50, 951))


def test_a_pace_goes_on_from_round_to_round() -> None:
    table, slept = rows(1, 100), []
    begin = table.column("time")[0].value
    earlier = SoFar(count=100, begin=begin, started=time.time())
    list(paced(table.to_batches(), Pace(rate=10), lambda: 0.0, slept.append, so_far=earlier))
    assert 9.0 < slept[0] <= 10.1
