"""Matching in Spark: the matcher fleet's engine beside a broadcast join in Spark SQL of the same data.

Subscriptions have two predicates over 20 attributes: one of 1,000 values of a text, and 1 % of the domain of a number.
Messages are the same Parquet files for both, in the envelope's columns. The join is the one that Spark does best: texts
are exploded to pairs of name and value, which the broadcast table of subscriptions is hashed by; the range is what is
left to check. What is timed is a whole query, after one that warmed everything up; all must find as many clients.

The fleet's tasks read the hub's log themselves, so that messages do not pass through the JVM; and so does the row
``headrace``. Beside it stands what the same matcher does with a DataFrame of the same Parquet files.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

import bench
from bench._peers import Headrace, running
from bench.matching import KINDS, MESSAGES, Load, _load, _name, _value
from headrace.client.link.client import LinkClient
from headrace.config import Address
from headrace.message import SCHEMA
from headrace.spark import session
from headrace.spark.hub_connections import link
from headrace.spark.jobs.match import match
from headrace.spark.options import HubOptions, SourceOptions
from headrace.spark.source.range_source import frame
from headrace.wire.link.message import PUBLISHED, SUBSCRIPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = ((1_000, 2), (100_000, 192), (1_000_000, 8))
"""Subscriptions, and how often the same messages come; the first is for tests."""


def main(argv: Sequence[str]) -> int:
    return bench.run("fleet", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Measure both with one core and with two."""
    for size, copies in SIZES[:1] if quick else SIZES[1:]:
        load = _load(KINDS[0], size)
        for cores in (2,) if quick else (1, 2):
            spark = session(f"local[{cores}]", app="bench", memory="2g")
            try:
                yield fleet(spark, load, copies, cores, 1 if quick else 3)
            finally:
                spark.stop()


def fleet(spark: SparkSession, load: Load, copies: int, cores: int, rounds: int) -> bench.Table:
    """Both ways, over so many copies of the load's messages."""
    with running(Headrace) as hub, tempfile.TemporaryDirectory() as directory:
        _write(load, copies, Path(directory))
        uvloop.run(_publish(load, copies, hub.tube))
        hub.seal()
        return _compared(spark, load, copies * MESSAGES, directory, hub.tube, cores, rounds)


def _compared(
    spark: SparkSession, load: Load, messages: int, directory: str, servers: str, cores: int, rounds: int
) -> bench.Table:
    from pyspark.sql import functions as F

    size = len(load.columns["low"])
    table = bench.Table(
        f"matching {messages:,} messages in Spark, {size:,} subscriptions, local[{cores}]",
        ("messages/s", "matches/message"),
        note=f"to clients found; the median of {rounds} after one to warm up",
    )
    rows = spark.read.parquet(directory)
    reading = SourceOptions(HubOptions(servers))
    with link(reading.access) as client:
        ranges = frame(spark, client.head())
    subscriptions, all_clients = _subscriptions(load), F.sum(F.size("clients"))
    found = {
        "Spark SQL, broadcast join": (_joined(spark, rows, load), F.count("*")),
        "headrace": (match(ranges, subscriptions, reading=reading), all_clients),
        "headrace, of a DataFrame": (match(rows, subscriptions), all_clients),
    }
    counts, rates = {}, {}
    for name, (pairs, count) in found.items():
        took = []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            # Another query each time: of one that was run before, Spark keeps what its stages came to.
            counts[name] = pairs.agg(count).collect()[0][0] or 0
            took.append(time.perf_counter() - begin)
        rates[name] = messages / statistics.median(took[1:])
    assert len(set(counts.values())) == 1, f"Spark SQL and the matcher disagree: {counts}"
    join, *ours = found
    table.add(join, rates[join], counts[join] / messages)
    for name in ours:
        least = 5 if name == "headrace" else None
        table.add(name, rates[name], counts[name] / messages, base=join, least=least)
    return table


async def _publish(load: Load, copies: int, servers: str) -> None:
    """The same messages to a hub."""
    rows = load.batch.to_arrow().select(PUBLISHED.names)
    async with LinkClient([Address.parse(servers)]) as link:
        publisher = link.publisher()
        for _ in range(copies):
            await publisher.send(rows)
        await publisher.flush()


def _joined(spark: SparkSession, rows: DataFrame, load: Load) -> DataFrame:
    """Each message and each subscription that it satisfies."""
    from pyspark.sql import functions as F

    columns = load.columns
    asked = spark.createDataFrame(
        pa.table(
            {
                "id": np.arange(len(columns["low"])),
                "name": [_name(each) for each in columns["first"].tolist()],
                "value": [_value(each) for each in columns["value"].tolist()],
                "second": [_name(each) for each in columns["second"].tolist()],
                "low": columns["low"],
                "high": columns["high"],
            }
        )
    ).cache()
    asked.count()
    said = rows.select("seq", "numbers", F.explode("attributes").alias("name", "value"))
    both = said.join(F.broadcast(asked), ["name", "value"])
    return both.where("element_at(numbers, second) between low and high").select("seq", "id")


def _subscriptions(load: Load) -> pa.Table:
    """What the link would tell."""
    kept = load.matcher.table()
    return pa.table(
        {
            "client": pa.array([each.hex() for each in kept.column("client").to_pylist()]),
            "connector": pa.array(["conn-001"] * kept.num_rows),
            "seq": np.zeros(kept.num_rows, np.int64),
            "op": np.arange(1, kept.num_rows + 1),
            "name": pa.array([""] * kept.num_rows),
            "fields": kept.column("predicates"),
        }
    ).cast(SUBSCRIPTIONS)


def _write(load: Load, copies: int, directory: Path) -> None:
    """Messages as files, several of them so that all cores have something to do."""
    at = SCHEMA.get_field_index("seq")
    part = load.batch.to_arrow()
    parts = []
    for copy in range(copies):
        seqs = np.arange(copy * MESSAGES + 1, (copy + 1) * MESSAGES + 1)
        parts.append(part.set_column(at, SCHEMA.field("seq"), pa.array(seqs)))
    half = max(copies // 2, 1)
    for number, begin in enumerate(range(0, copies, half)):
        pq.write_table(pa.Table.from_batches(parts[begin : begin + half]), directory / f"{number}.parquet")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
