"""Parquet files that Python writes for Spark hold what Spark's own would, and are written only where they can be."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.hubs import Hub, until

from headrace.spark.source import parquet_files

BY_PYTHON = "WriteParquet"

DESCRIBED = {
    "compression": "SNAPPY",
    "times": "INT96",
    "version": "4.3.0",
    "columns": [0, 1],
    "schema": {
        "type": "struct",
        "fields": [
            {"name": "seq", "type": "long", "nullable": False, "metadata": {}},
            {"name": "payload", "type": "binary", "nullable": False, "metadata": {}},
        ],
    },
}
SCHEMA = pa.schema([pa.field("seq", pa.int64(), False), pa.field("payload", pa.binary(), False)])


def batch(first: int, count: int) -> pa.RecordBatch:
    seqs = range(first, first + count)
    payloads = [b"%d" % seq * 40 for seq in seqs]
    return pa.RecordBatch.from_arrays([pa.array(seqs), pa.array(payloads, pa.binary())], schema=SCHEMA)


def joined(given: Iterator[pa.RecordBatch]) -> tuple[list[int], pq.ParquetFile]:
    pieces = [row for each in given for row in each.to_pylist()]
    return [row["rows"] for row in pieces], pq.ParquetFile(
        io.BytesIO(b"".join(row["piece"] for row in pieces))
    )


def test_a_file_comes_in_pieces_that_say_how_many_rows_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "GROUP_ROWS", 300)
    monkeypatch.setattr(parquet_files, "PIECE_BYTES", 1000)
    rows = [batch(first, 100) for first in range(1, 1001, 100)]
    counts, file = joined(parquet_files.file_of(iter(rows), DESCRIBED))
    assert [count for count in counts if count] == [300, 300, 300, 100]
    assert len(counts) > 8
    assert [file.metadata.row_group(each).num_rows for each in range(file.num_row_groups)] == [
        300,
        300,
        300,
        100,
    ]
    assert file.read().equals(pa.Table.from_batches(rows))


def test_a_row_group_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 1)
    counts, file = joined(parquet_files.file_of(iter([batch(1, 3), batch(4, 2)]), DESCRIBED))
    assert [count for count in counts if count] == [3, 2]
    assert file.num_row_groups == 2


def test_rows_that_keep_much_in_memory_wait_no_longer_for_being_cut_down() -> None:
    payloads = pa.array([bytes(parquet_files.GROUP_BYTES // 4)])
    long = pa.RecordBatch.from_arrays([pa.array([1]), payloads], schema=SCHEMA)
    schema: Any = {"type": "struct", "fields": DESCRIBED["schema"]["fields"][:1]}  # type: ignore[index]
    counts, file = joined(
        parquet_files.file_of(iter([long] * 9), {**DESCRIBED, "schema": schema, "columns": [0]})
    )
    assert [count for count in counts if count] == [4, 4, 1]
    assert file.schema_arrow.names == ["seq"]


def test_a_file_of_nothing_is_a_file() -> None:
    counts, file = joined(parquet_files.file_of(iter([]), DESCRIBED))
    assert not any(counts)
    assert file.read().num_rows == 0
    assert file.schema_arrow.equals(SCHEMA)


@pytest.mark.parametrize(
    ("said", "written"), [("ZSTD", "ZSTD"), ("GZIP", "GZIP"), ("UNCOMPRESSED", "UNCOMPRESSED")]
)
def test_a_file_is_compressed_as_it_is_asked(said: str, written: str) -> None:
    _, file = joined(parquet_files.file_of(iter([batch(1, 3)]), {**DESCRIBED, "compression": said}))
    assert file.metadata.row_group(0).column(1).compression == written


def test_columns_are_those_that_are_asked_for_in_their_order() -> None:
    schema: Any = {"type": "struct", "fields": DESCRIBED["schema"]["fields"][::-1]}  # type: ignore[index]
    described = {**DESCRIBED, "schema": schema, "columns": [1, 0]}
    _, file = joined(parquet_files.file_of(iter([batch(1, 3)]), described))
    assert file.schema_arrow.names == ["payload", "seq"]
    assert file.read()["seq"].to_pylist() == [1, 2, 3]


# With Spark


def plan(rows: DataFrame) -> str:
    text: str = rows._jdf.queryExecution().executedPlan().toString()
    return text


def written(folder: Path) -> list[pq.ParquetFile]:
    return [pq.ParquetFile(file) for file in sorted(folder.rglob("*.parquet"))]


def by_python(folder: Path) -> bool:
    (known,) = {file.metadata.created_by.startswith("parquet-cpp") for file in written(folder)}
    return bool(known)


def copied(spark: SparkSession, servers: str, folder: Path, *, stream: bool, **source: object) -> None:
    """Copy all there is to Parquet files."""
    asked: dict[str, Any] = {"servers": servers, "minPartitions": 3, **source}
    if not stream:
        spark.read.format("headrace").options(**asked).load().write.parquet(str(folder))
        return
    rows = spark.readStream.format("headrace").options(startingOffsets=1, **asked).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}.checkpoint")
    query = writer.trigger(availableNow=True).start(str(folder))
    query.awaitTermination()


@pytest.mark.spark
@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize("times", ["INT96", "TIMESTAMP_MICROS"])
def test_files_are_what_spark_would_have_written(
    spark: SparkSession, as_spark_would: SparkSession, filled: Hub, tmp_path: Path, times: str, stream: bool
) -> None:
    for session, name in ((spark, "ours"), (as_spark_would, "sparks")):
        session.conf.set("spark.sql.parquet.outputTimestampType", times)
        try:
            copied(session, filled.servers, tmp_path / name, stream=stream)
        finally:
            session.conf.unset("spark.sql.parquet.outputTimestampType")
    assert by_python(tmp_path / "ours")
    assert not by_python(tmp_path / "sparks")
    ours, sparks = (written(tmp_path / name) for name in ("ours", "sparks"))
    assert len(ours) == len(sparks) == 3
    described = (str(file.schema).split("\n", 2)[2] for file in (ours[0], sparks[0]))
    assert next(described) == next(described)
    assert ours[0].metadata.metadata == sparks[0].metadata.metadata
    mine, other = (spark.read.parquet(str(tmp_path / name)) for name in ("ours", "sparks"))
    assert mine.schema == other.schema
    assert sorted(map(repr, mine.collect())) == sorted(map(repr, other.collect()))
    assert mine.count() == 400


@pytest.mark.spark
def test_a_stream_of_files_goes_on_where_it_was(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    for number in range(3):
        hub.publish([b"%d" % number] * 10)
        copied(spark, hub.servers, folder, stream=True)
    assert by_python(folder)
    rows = spark.read.parquet(str(folder)).select("seq", "payload").orderBy("seq").collect()
    assert [(row.seq, bytes(row.payload)) for row in rows] == [(n + 1, b"%d" % (n // 10)) for n in range(30)]


@pytest.mark.spark
def test_a_stream_says_how_many_messages_it_read(spark: SparkSession, filled: Hub, tmp_path: Path) -> None:
    rows = spark.readStream.format("headrace").options(servers=filled.servers, startingOffsets=1).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    query.awaitTermination()
    assert BY_PYTHON in query._jsq.explainInternal(False)
    assert sum(each["numInputRows"] for each in query.recentProgress) == 400


@pytest.mark.spark
def test_spark_counts_the_rows_of_files(spark: SparkSession, filled: Hub, tmp_path: Path) -> None:
    copied(spark, filled.servers, tmp_path / "rows", stream=False)
    store = spark._jsparkSession.sharedState().statusStore()
    until(lambda: store.executionsList().last().completionTime().isDefined())
    execution = store.executionsList().last()
    values = store.executionMetrics(execution.executionId())
    metrics = [execution.metrics().apply(each) for each in range(execution.metrics().size())]
    told = [
        (metric.name(), values.get(metric.accumulatorId()).get())
        for metric in metrics
        if values.contains(metric.accumulatorId())
    ]
    assert [count for name, count in told if name == "number of output rows"] == ["400", "400"]


def python_processes(spark: SparkSession) -> set[int]:
    java: int = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    return {process.pid for process in psutil.Process(java).children(recursive=True)}


@pytest.mark.spark
def test_a_task_without_rows_gives_its_python_process_back(
    spark: SparkSession, filled: Hub, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"servers": filled.servers, "topic": "none", "minPartitions": 6}
    rows = spark.read.format("headrace").options(**asked).load()
    before: list[set[int]] = []
    for _ in range(2):
        rows.write.format("noop").mode("overwrite").save()
        before.append(python_processes(spark))
    rows.write.parquet(str(tmp_path / "rows"))
    # Some come and go by themselves.
    assert before[0] & before[1] <= python_processes(spark)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("parquet.int96TimestampConversion", "true"),
        ("parquet.int96RebaseModeInWrite", "LEGACY"),
        ("parquet.datetimeRebaseModeInWrite", "LEGACY"),
        ("parquet.writeLegacyFormat", "true"),
        ("parquet.outputTimestampType", "TIMESTAMP_MILLIS"),
        ("parquet.compression.codec", "lz4_raw"),
        ("adaptive.forceApply", "true"),
    ],
)
def test_settings_that_python_does_not_obey_leave_files_to_spark(
    spark: SparkSession, filled: Hub, tmp_path: Path, setting: str, value: str
) -> None:
    spark.conf.set(f"spark.sql.{setting}", value)
    try:
        copied(spark, filled.servers, tmp_path / "rows", stream=True)
    finally:
        spark.conf.unset(f"spark.sql.{setting}")
    assert not by_python(tmp_path / "rows")
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 400


@pytest.mark.spark
def test_a_table_may_be_made_of_the_source(spark: SparkSession, filled: Hub, tmp_path: Path) -> None:
    spark.read.format("headrace").option("servers", filled.servers).load().createOrReplaceTempView("messages")
    folder = tmp_path / "rows"
    spark.sql(f"create table copied using parquet location '{folder}' as select seq, payload from messages")
    try:
        assert by_python(folder)
        assert spark.table("copied").count() == 400
    finally:
        spark.sql("drop table copied")


@pytest.mark.spark
def test_columns_may_be_chosen_and_put_in_another_order(
    spark: SparkSession, filled: Hub, tmp_path: Path
) -> None:
    rows = spark.read.format("headrace").option("servers", filled.servers).load()
    rows.select("payload", "SEQ").write.parquet(str(tmp_path / "rows"))
    assert by_python(tmp_path / "rows")
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert found.columns == ["payload", "SEQ"]
    assert sorted(found.collect()) == sorted(rows.select("payload", "seq").collect())


@pytest.mark.spark
def test_what_the_source_is_asked_for_is_what_is_written(
    spark: SparkSession, filled: Hub, tmp_path: Path
) -> None:
    for stream in (False, True):
        folder = tmp_path / str(stream)
        copied(spark, filled.servers, folder, stream=stream, topic="a", columns="seq,topic")
        assert by_python(folder)
        assert spark.read.parquet(str(folder)).collect() != []
        assert {row.topic for row in spark.read.parquet(str(folder)).collect()} == {"a"}


@pytest.mark.spark
def test_of_nothing_there_is_one_file_that_tells_the_columns(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    copied(spark, hub.servers, tmp_path / "none", stream=False)
    hub.publish([b"x"] * 100, topic="here")
    copied(spark, hub.servers, tmp_path / "elsewhere", stream=False, topic="elsewhere")
    for name in ("none", "elsewhere"):
        assert len(written(tmp_path / name)) == 1
        assert spark.read.parquet(str(tmp_path / name)).columns[0] == "seq"
        assert spark.read.parquet(str(tmp_path / name)).count() == 0


@pytest.mark.spark
def test_what_a_query_of_files_looks_up_is_read_as_ever(
    spark: SparkSession, filled: Hub, hub: Hub, tmp_path: Path
) -> None:
    hub.publish([b"x"])
    spark.read.format("headrace").option("servers", hub.servers).load().createOrReplaceTempView("looked_up")
    rows = spark.readStream.format("headrace").options(servers=filled.servers, startingOffsets=1).load()
    rows = rows.where("seq > (select seq from looked_up)")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 399


QUERIES = {
    "a condition": lambda rows: rows.where("seq % 2 = 0"),
    "something computed": lambda rows: rows.selectExpr("seq", "length(payload) as bytes"),
    "another name": lambda rows: rows.selectExpr("seq as number"),
    "an order": lambda rows: rows.orderBy("seq"),
    "other partitions": lambda rows: rows.coalesce(1),
    "a limit": lambda rows: rows.limit(7),
    "two of them": lambda rows: rows.union(rows),
    "a column twice": lambda rows: rows.selectExpr("seq", "seq as again"),
}


@pytest.mark.spark
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_that_does_more_than_copy_is_written_by_spark(
    spark: SparkSession, filled: Hub, tmp_path: Path, name: str
) -> None:
    rows = QUERIES[name](spark.read.format("headrace").option("servers", filled.servers).load())
    rows.write.parquet(str(tmp_path / "rows"))
    assert not by_python(tmp_path / "rows")
    assert sorted(map(repr, spark.read.parquet(str(tmp_path / "rows")).collect())) == sorted(
        map(repr, rows.collect())
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "row groups of another size": {"parquet.block.size": "1000000"},
    "a bloom filter": {"parquet.bloom.filter.enabled#topic": "true"},
    "another version": {"parquet.writer.version": "PARQUET_2_0"},
    "a level of compression": {"compression": "zstd", "parquet.compression.codec.zstd.level": "9"},
    "a codec that Python has not": {"compression": "lz4"},
    "files of a few records": {"maxRecordsPerFile": 50},
}


@pytest.mark.spark
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_files_that_are_to_be_otherwise_are_written_by_spark(
    spark: SparkSession, filled: Hub, tmp_path: Path, name: str, stream: bool
) -> None:
    asked = {"servers": filled.servers}
    folder = str(tmp_path / "rows")
    if stream:
        rows = spark.readStream.format("headrace").options(startingOffsets=1, **asked).load()
        writer = rows.writeStream.options(checkpointLocation=str(tmp_path / "checkpoint"), **OPTIONS[name])
        writer.format("parquet").trigger(availableNow=True).start(folder).awaitTermination()
    else:
        spark.read.format("headrace").options(**asked).load().write.options(**OPTIONS[name]).parquet(folder)
    assert not by_python(tmp_path / "rows")
    assert spark.read.parquet(folder).count() == 400


@pytest.mark.spark
@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_folders_by_value_are_written_by_spark(
    spark: SparkSession, filled: Hub, tmp_path: Path, stream: bool
) -> None:
    folder = str(tmp_path / "rows")
    if stream:
        rows = spark.readStream.format("headrace").options(servers=filled.servers, startingOffsets=1).load()
        writer = rows.writeStream.partitionBy("topic").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer.format("parquet").trigger(availableNow=True).start(folder).awaitTermination()
    else:
        read = spark.read.format("headrace").option("servers", filled.servers).load()
        read.write.partitionBy("topic").parquet(folder)
    assert not by_python(tmp_path / "rows")
    assert {path.name for path in (tmp_path / "rows").glob("topic=*")} == {"topic=a", "topic=b"}
    assert spark.read.parquet(folder).count() == 400


@pytest.mark.spark
@pytest.mark.parametrize("form", ["json", "orc"])
@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_other_formats_are_spark_s(
    spark: SparkSession, filled: Hub, tmp_path: Path, form: str, stream: bool
) -> None:
    folder = str(tmp_path / "rows")
    if stream:
        rows = spark.readStream.format("headrace").options(servers=filled.servers, startingOffsets=1).load()
        writer = rows.writeStream.format(form).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(folder)
        query.awaitTermination()
        assert BY_PYTHON not in query._jsq.explainInternal(False)
    else:
        spark.read.format("headrace").option("servers", filled.servers).load().write.format(form).save(folder)
    assert spark.read.format(form).load(folder).count() == 400


@pytest.mark.spark
def test_rows_of_a_stream_may_be_collected_where_they_go_to_a_function(
    spark: SparkSession, filled: Hub, tmp_path: Path
) -> None:
    counts: list[int] = []

    def each(rows: DataFrame, number: int) -> None:
        rows.write.mode("overwrite").parquet(str(tmp_path / f"rows-{number}"))
        counts.append(rows.count())

    rows = spark.readStream.format("headrace").options(servers=filled.servers, startingOffsets=1).load()
    writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert counts == [400]
    assert spark.read.parquet(str(tmp_path / "rows-0")).count() == 400


@pytest.mark.spark
def test_a_task_that_fails_leaves_no_file(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    for _ in range(2):
        hub.publish([bytes(1000)] * 100)
        hub.seal()
    damaged = max(Path(hub.head().path).glob("*.arrow"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    rows = spark.read.format("headrace").options(servers=hub.servers, files=False).load()
    with pytest.raises(Exception, match=r"damage|checksum"):
        rows.write.parquet(str(tmp_path / "rows"))
    assert list((tmp_path / "rows").rglob("*.parquet")) == []
