"""SQL by DuckDB and by Spark over the same head give the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from tests.hubprocess import HubProcess

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = (
    "select count(*) as n from messages",
    "select topic, count(*) as n from messages group by topic",
    "select origin, count(*) as n, min(seq) as first, max(seq) as last from messages group by origin",
    "select seq, topic from messages where seq between 40 and 60",
    "select seq from messages where topic = 'orders/eu' and seq > 50",
    "select seq from messages where topic in ('fleet/1', 'fleet/2', 'none')",
    "select seq from messages where topic like 'orders/%'",
    "select count(distinct topic) as n from messages",
    "select count(distinct publisher) as n from messages where origin = 'tube'",
    "select topic, max(seq) as newest from messages group by topic having count(*) > 20",
    "select sum(octet_length(payload)) as bytes, max(octet_length(payload)) as longest from messages",
    "select topic, sum(octet_length(payload)) as bytes from messages group by topic",
    "select seq, numbers['x'] as x from messages where numbers['x'] >= 5",
    "select seq, attributes['city'] as city from messages where attributes['city'] = 'Praha'",
    "select attributes['city'] as city, avg(numbers['x']) as x from messages group by attributes['city']",
    "select seq from messages where number is null",
    "select min(time) as earliest, max(time) as latest from messages",
    "select a.seq from messages a join messages b on a.seq = b.seq + 1 where a.topic = b.topic",
    (
        "select topic, seq from (select topic, seq, row_number() over (partition by topic order by seq desc) as r"
        " from messages) t where r = 1"
    ),
    "select seq, cast(seq % 7 as bigint) as rest from messages where seq % 7 = 3 or topic = ''",
)
MESSAGES, AS_OF = 180, 150


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub with messages from several doors, in sealed segments and in the open tail."""
    with (
        HubProcess.start(tmp_path_factory.mktemp("equal")) as hub,
        headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link,
        headrace.connect_sync(f"spp://{hub.doors['spp']}") as spp,
    ):
        for number in range(60):
            city = ("Praha", "Brno")[number % 2]
            link.publish(b"o" * number, topic=("orders/eu", "orders/us", "")[number % 3])
            link.publish(f"{number}".encode(), topic="near", attributes={"city": city, "x": number % 10})
            spp.publish({"speed": number}, topic=f"fleet/{number % 4}")
            if number in (20, 40):
                seal = Request(f"http://{hub.doors['http']}/api/log/seal", b"", {"X-Headrace": "1"})
                urlopen(seal, timeout=60).close()
        # What SPP publishes is not acknowledged.
        for count, _ in enumerate(link.follow(from_seq=1), 1):
            if count == MESSAGES:
                break
        yield hub


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(_plain, row)) for row in found), key=repr)


def _plain(value: Any) -> Any:
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1e6)
    return round(value, 9) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def views(hub: HubProcess, spark: SparkSession) -> SparkSession:
    source = spark.read.format("headrace").option("servers", hub.doors["tube_tcp"])
    source.load().createOrReplaceTempView("messages")
    return spark


@pytest.mark.parametrize("query", QUERIES)
def test_the_same_rows(hub: HubProcess, views: SparkSession, query: str) -> None:
    by_duckdb = headrace.sql(query, data=hub.data)
    assert by_duckdb.schema.metadata[b"headrace.head"] == b"180"
    by_spark = views.sql(query).collect()
    columns = [column.to_pylist() for column in by_duckdb.columns]
    assert rows(zip(*columns, strict=True)) == rows(by_spark)
    assert by_duckdb.column_names == views.sql(query).columns


def test_as_of_is_the_same_too(hub: HubProcess, views: SparkSession) -> None:
    query = "select topic, count(*) as n from messages {} group by topic"
    by_duckdb = headrace.sql(query.format(""), data=hub.data, as_of=AS_OF)
    by_spark = views.sql(query.format(f"where seq <= {AS_OF}")).collect()
    assert rows(row.values() for row in by_duckdb.to_pylist()) == rows(by_spark)
