"""The pace of a replay, by a clock that the test moves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.hubprocess import HubProcess
from tests.spark.jobs.rows import BEGIN, rows

from headrace.errors import UsageError
from headrace.spark.jobs.replay import Pace, _edge, _publish, chosen, paced
from headrace.spark.options import Access


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
@pytest.mark.xdist_group("spark")
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


@pytest.fixture
def own_formatters() -> Iterator[None]:
    """PySpark's logger of mistakes in SQL has pytest's handlers, which follow it, write JSON from then on."""
    before = [(handler, handler.formatter) for handler in logging.root.handlers]
    yield
    logging.getLogger("SQLQueryContextLogger").propagate = True
    for handler, formatter in before:
        handler.setFormatter(formatter)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("own_formatters")
@pytest.mark.parametrize("where", ["topik = 1", "topic =", "seq", "count(*) > 1"])
def test_a_condition_that_is_none(spark: SparkSession, tmp_path: Path, where: str) -> None:
    pq.write_table(rows(1, 10), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="replay: where = "):
        chosen(spark.read.parquet(str(tmp_path)), where)


def test_a_hub_that_is_being_restarted_is_waited_for(hub: HubProcess) -> None:
    """Also before the first message: a replay's task begins well after the command."""
    access = Access(hub.doors["tube_tcp"], patience=60.0)
    hub.kill9()
    asked = Event()

    def credentials(_: Access) -> None:
        asked.set()

    back = Thread(target=lambda: (asked.wait(), hub.restart()))
    back.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Access, "credentials", credentials)
        (told,) = _publish(access, "replay", Pace(), rows(1, 10).to_batches())
    back.join()
    assert told.to_pylist() == [{"messages": 10, "first": 1, "last": 10}]


@pytest.mark.parametrize("place", ["tomorrow", "1" + "0" * 20, "-1"])
def test_a_place_that_is_none_is_told(place: str) -> None:
    with pytest.raises(UsageError, match="expected a sequence number or a time"):
        _edge(place, ">=")
