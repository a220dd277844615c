"""The sequence as ranges: a function of Arrow batches sees what the source's rows would have been."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.hubs import Hub

from headrace.errors import UsageError
from headrace.message import SCHEMA
from headrace.spark import map_in_arrow
from headrace.spark.options import parse_source_options
from headrace.spark.source.range_source import RangesDataSource, rows_of

pytestmark = pytest.mark.spark


def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        size = pc.binary_length(batch["payload"]).cast(pa.int64())
        yield pa.RecordBatch.from_arrays([batch["seq"], batch["topic"], size], ["seq", "topic", "size"])


LENGTHS = "seq long, topic string, size long"


def test_a_range_is_read_by_whoever_takes_it(hub: Hub) -> None:
    hub.publish([b"%d" % number for number in range(500)], topic="t")
    options = {"servers": hub.servers, "startingoffsets": "101", "endingoffsets": "400", "minpartitions": "3"}
    reader = RangesDataSource(options).reader(RangesDataSource(options).schema())
    ranges = [row for each in reader.partitions() for row in reader.read(each)]
    assert [row.num_rows for row in ranges] == [1, 1, 1]
    rows = pa.Table.from_batches(rows_of(parse_source_options(options, stream=False), ranges), SCHEMA)
    assert rows["seq"].to_pylist() == list(range(101, 401))
    columns = {**options, "columns": "payload,seq"}
    rows = pa.Table.from_batches(rows_of(parse_source_options(columns, stream=False), ranges[:1]))
    assert rows.column_names == ["payload", "seq"]


@pytest.mark.parametrize("files", [True, False])
def test_a_batch_is_what_the_options_choose(spark: SparkSession, hub: Hub, files: bool) -> None:
    hub.publish([b"x" * (number % 7) for number in range(2000)], topic="a")
    hub.publish([b"y"] * 50, topic="b")
    hub.seal()
    hub.publish([b"zz"] * 100, topic="a")
    given: dict[str, Any] = {"servers": hub.servers, "topic": "a", "minPartitions": 4, "files": files}
    made = map_in_arrow(spark, lengths, LENGTHS, stream=False, **given, endingOffsets=2100)
    source = spark.read.format("headrace").options(**given, endingOffsets=2100).load()
    expected = source.selectExpr("seq", "topic", "cast(octet_length(payload) as long) as size")
    assert made.count() == 2050
    assert made.exceptAll(expected).isEmpty()
    assert expected.exceptAll(made).isEmpty()


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    seen: list[int] = []

    def run() -> None:
        made = map_in_arrow(
            spark, lengths, LENGTHS, servers=hub.servers, startingOffsets="earliest", maxOffsetsPerTrigger=300
        )
        writer = made.writeStream.foreachBatch(
            lambda rows, _: seen.extend(row.seq for row in rows.orderBy("seq").collect())
        )
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()

    hub.publish([b"one"] * 1000)
    run()
    assert seen == list(range(1, 1001))
    hub.publish([b"two"] * 10)
    hub.kill9()
    hub.restart()
    run()
    assert seen == list(range(1, 1011))


def test_what_is_wrong_is_told_at_once(spark: SparkSession, hub: Hub) -> None:
    with pytest.raises(UsageError, match="did you mean topic"):
        map_in_arrow(spark, lengths, LENGTHS, servers=hub.servers, topics="a")
    with pytest.raises(UsageError, match="endingOffsets is for"):
        map_in_arrow(spark, lengths, LENGTHS, servers=hub.servers, endingOffsets=3)

    def fails(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("not with me")

    hub.publish([b"x"])
    with pytest.raises(PySparkException, match="not with me"):
        map_in_arrow(spark, fails, LENGTHS, stream=False, servers=hub.servers).collect()
