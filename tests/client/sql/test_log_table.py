"""What a query need not read is not read, and what it reads is checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.client.sql.log_table import LogTable
from headrace.client.sql.query import query_files, run
from headrace.client.sql.topic_counts import counts_instead
from headrace.errors import DamagedError
from headrace.log import Log
from headrace.message import Batch, Run

SEGMENTS, EACH = 8, 30


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Sealed segments of ten seconds each with a topic of its own beside one that all have, and an open tail."""
    writing = Log.open(tmp_path / "log")
    for seq in range(1, (SEGMENTS + 1) * EACH + 1):
        segment = (seq - 1) // EACH
        topic = "every" if seq % 3 else f"only/{segment}"
        batch = Batch(Run.of([b"%d" % seq]), origin="tube", topic=topic)
        writing.append([batch.numbered(seq, seq, 1_000_000 * seq, 1)])
        writing.commit(seq)
        if seq % EACH == 0 and segment < SEGMENTS:
            writing.rotate()
            while writing.seal_next():
                pass
    yield writing
    writing.close()


def asked(log: Log, query: str, upto: int | None = None) -> tuple[list[dict[str, Any]], int]:
    """The rows of an answer, and how many record batches it took."""
    table = LogTable(log, log.head if upto is None else upto)
    return run(query, {"messages": table}, "", 0).to_pylist(), table.unpacked


@pytest.mark.parametrize(
    ("condition", "segments"),
    [
        ("seq = 100", 1),
        ("seq between 50 and 70", 2),
        ("seq > 230", 1),
        ("time between timestamptz '1970-01-01 00:01:10Z' and timestamptz '1970-01-01 00:01:20Z'", 1),
        ("topic = 'only/3'", 1),
        ("topic in ('only/3', 'only/5', 'none')", 2),
        ("topic = 'every' and seq < 31", 1),
        ("topic = 'none'", 0),
        ("topic = 'only/3' or seq = 1", SEGMENTS),
        ("publisher is not null", SEGMENTS),
        ("number is null", SEGMENTS),
        ("topic like '%/3'", SEGMENTS),
        ("true", SEGMENTS),
    ],
)
def test_what_cannot_match_is_not_unpacked(log: Log, condition: str, segments: int) -> None:
    rows, unpacked = asked(log, f"select seq from messages where {condition} order by 1")
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        whole = pa.Table.from_batches([batch.to_arrow() for batch in log.scan(1)])
        connection.register("messages", whole)
        expected = connection.sql(f"select seq from messages where {condition} order by 1").fetchall()
    assert [row["seq"] for row in rows] == [seq for (seq,) in expected]
    assert unpacked <= segments


COUNTING = (
    "select topic, count(*) from messages group by topic order by topic",
    "select topic, count(*) as n from messages group by 1 order by n desc, topic limit 3",
    "select count(*) as n from messages",
    "select count(*) as n from messages where topic = 'none'",
    "select m.topic, count(*) as n from messages m where m.topic like 'only/%' group by 1 order by 1",
    "select topic, count(*) as n from messages group by all having count(*) > 100 order by 1",
)


@pytest.mark.parametrize("query", COUNTING)
def test_topics_are_counted_without_reading_messages(log: Log, query: str) -> None:
    rows, unpacked = asked(log, query)
    assert unpacked == 0
    slow, unpacked = asked(log, query.replace("count(*)", "count(seq)").replace("as n", 'as "n"'))
    assert [list(row.values()) for row in rows] == [list(row.values()) for row in slow]
    assert unpacked > 0 or "none" in query


def test_a_part_of_a_segment_is_counted_by_its_messages(log: Log) -> None:
    for upto in (0, 1, 45, 240, 250):
        rows, unpacked = asked(log, "select count(*) as n from messages", upto)
        assert rows == [{"n": upto}]
        assert unpacked <= 1


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from messages where seq < 5",
        "select topic, count(*), max(time) from messages group by 1",
        "select count(*) from messages a, messages b",
        "select count(distinct topic) from messages",
        "select count(*) filter (where topic = 'a') from messages",
        "select topic from messages",
        "select count(*) * 2 from messages",
        "with m as (from messages) select count(*) from m",
        "select count(*) from services",
        "select * from messages",
        "this is no query",
    ],
)
def test_other_queries_are_left_alone(query: str) -> None:
    with duckdb.connect() as connection:
        assert counts_instead(connection, query) is None


def test_damage_is_told_as_damage(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "log" / f"{1:016d}.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="0000000000000001"):
        query_files("select sum(octet_length(payload)) from messages", tmp_path / "log")
