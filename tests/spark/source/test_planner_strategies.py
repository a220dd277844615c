"""The source is read in columns, and gives the rows that Spark would have made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType
from pyspark.sql.window import Window
from tests.spark.hubs import Hub

from headrace.spark import register
from headrace.spark.source import planner_strategies
from headrace.spark.source.planner_strategies import SETTING

pytestmark = pytest.mark.spark


def plan(rows: DataFrame) -> str:
    text: str = rows._jdf.queryExecution().executedPlan().toString()
    return text


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


COLUMNS = "ColumnarToRow"


@pytest.fixture(scope="module")
def in_columns(spark: SparkSession) -> SparkSession:
    """A session that asks for columns."""
    return asking(spark)


def asking(spark: SparkSession) -> SparkSession:
    made = spark.newSession()
    made.conf.set(SETTING, "true")
    register(made)
    return made


def test_a_read_of_the_source_is_in_columns_where_that_is_asked_for(
    spark: SparkSession, in_columns: SparkSession, hub: Hub
) -> None:
    hub.publish([b"one"])
    register(spark)
    for made_by, asked in ((in_columns, True), (spark, False)):
        rows = made_by.read.format("headrace").option("servers", hub.servers).load()
        for query in (rows, rows.orderBy("seq"), rows.mapInArrow(unchanged, rows.schema)):
            assert "BatchScan headrace" in plan(query)
            assert ("Project" in plan(query)) is not asked, plan(query)
        assert (COLUMNS in plan(rows)) is asked, plan(rows)


def test_what_a_query_asks_of_the_source_is_compiled_with_the_read(
    in_columns: SparkSession, hub: Hub
) -> None:
    hub.publish([b"one"])
    rows = in_columns.read.format("headrace").option("servers", hub.servers).load()
    steps = plan(rows.where("seq > 1").select("topic")).splitlines()
    compiled = [f"*(1) {step}" for step in ("Project", "Filter", COLUMNS)]
    for line, step in zip(steps, [*compiled, "BatchScan headrace"], strict=True):
        assert line.strip(" +-").startswith(step)


def test_a_log_without_messages_is_no_rows(in_columns: SparkSession, hub: Hub) -> None:
    rows = in_columns.read.format("headrace").option("servers", hub.servers).load()
    assert COLUMNS in plan(rows)
    assert rows.collect() == []
    assert rows.count() == 0


def test_what_python_counts_is_shown_by_spark(in_columns: SparkSession, filled: Hub) -> None:
    rows = in_columns.read.format("headrace").option("servers", filled.servers).load()
    executed = rows._jdf.queryExecution()
    executed.toRdd().count()
    metrics = executed.executedPlan().collectLeaves().head().metrics()
    assert metrics.apply("pythonDataReceived").value() > 0
    assert metrics.apply("numOutputRows").value() == 400


def test_a_stream_of_the_source_is_in_columns(in_columns: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.publish([b"one", b"two"])
    rows = in_columns.readStream.format("headrace").options(servers=hub.servers, startingOffsets=1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        planned = query._jsq.explainInternal(False)
        assert query.lastProgress is not None
        assert query.lastProgress["numInputRows"] == 2
    finally:
        query.stop()
    assert "MicroBatchScan" in planned
    assert COLUMNS in planned
    assert "Project" not in planned


class Other(DataSource):
    @classmethod
    def name(cls) -> str:
        return "other"

    def schema(self) -> str:
        return "number long"

    def reader(self, schema: object) -> DataSourceReader:
        class Reader(DataSourceReader):
            def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
                yield (1,)

        return Reader()


def test_other_sources_are_planned_as_ever(in_columns: SparkSession) -> None:
    in_columns.dataSource.register(Other)
    rows = in_columns.read.format("other").load()
    assert "Project" in plan(rows)
    assert rows.collect() == [(1,)]


def test_once_is_enough(spark: SparkSession) -> None:
    made = asking(spark)
    register(made)
    strategies = made._jsparkSession.experimental().extraStrategies().toString()
    assert strategies.count(planner_strategies.COLUMNS) == 1


def test_it_can_be_turned_off_again(spark: SparkSession, hub: Hub) -> None:
    hub.publish([b"one"])
    made = asking(spark)
    for asked in ("true", "false", "true"):
        made.conf.set(SETTING, asked)
        rows = made.read.format("headrace").option("servers", hub.servers).load()
        assert (COLUMNS in plan(rows)) is (asked == "true")
        assert rows.count() == 1


def test_an_untested_release_is_read_in_rows_and_told(
    spark: SparkSession, hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.publish([b"one"])
    monkeypatch.setattr(planner_strategies, "TESTED", ("9.9.9",))
    made = asking(spark)
    assert f"Spark {spark.version} is not among those it is tested with: 9.9.9" in caplog.text
    assert "Project" in plan(made.read.format("headrace").option("servers", hub.servers).load())


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "yarn", "local-cluster[2,1,1024]"])
def test_executors_that_may_lack_it_are_not_sent_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, master: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "master", master)
    made = asking(spark)
    assert f"executors of {master} may lack its classes" in caplog.text
    assert planner_strategies.COLUMNS not in made._jsparkSession.experimental().extraStrategies().toString()


def test_queries_that_start_at_once_share_no_map_that_is_not_made_for_it(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    another = spark.newSession()
    register(another)
    manager = another._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource(planner_strategies.SOURCE).dataSourceCls().envVars()
    before = set(shared)
    hub.publish([b"one"])
    rows = another.readStream.format("headrace").options(servers=hub.servers, startingOffsets=1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    # What Spark puts there when a query starts is why.
    assert set(shared) > before
    assert shared.getClass().getSimpleName() == "ConcurrentHashMap"


@F.arrow_udf(LongType())
def longer(payloads: pa.Array) -> pa.Array:
    return pc.add(pc.binary_length(payloads).cast("int64"), 1)


shouted = F.udf(lambda topic: topic.upper(), StringType())


QUERIES = {
    "all": lambda rows: rows,
    "sorted": lambda rows: rows.orderBy(F.desc("seq")),
    "filtered": lambda rows: rows.where("seq % 3 = 0 and topic = 'a'"),
    "computed": lambda rows: rows.selectExpr("seq", "attributes['k'] as k", "numbers['n'] * 2 as n", "time"),
    "grouped": lambda rows: rows.groupBy("topic", "attributes.k").agg(F.count("*"), F.max("payload")),
    "listed": lambda rows: rows.groupBy("topic").agg(F.sort_array(F.collect_list("seq"))),
    "joined": lambda rows: rows.alias("l").join(rows.alias("r"), "seq").select("l.payload", "r.attributes"),
    "broadcast": lambda rows: rows.join(F.broadcast(rows.select("seq", "topic")), "seq").select("payload"),
    "windowed": lambda rows: rows.select("seq", F.lag("payload").over(Window.orderBy("seq"))),
    "limited": lambda rows: rows.orderBy("seq").limit(7),
    "kept": lambda rows: rows.cache(),
    "spread": lambda rows: rows.repartition(3).union(rows.coalesce(1)),
    "in Arrow": lambda rows: rows.mapInArrow(unchanged, rows.schema),
    "exploded": lambda rows: rows.select("seq", F.explode("attributes")),
    "counted": lambda rows: rows.agg(F.count("*")),
    "none": lambda rows: rows.where("false"),
    "sampled": lambda rows: rows.orderBy("seq").sample(0.5, 7),
    "by a function": lambda rows: rows.select("seq", longer("payload"), shouted("topic")),
    "distinct": lambda rows: rows.select("topic", "publisher").distinct(),
}


@pytest.mark.parametrize("name", QUERIES)
def test_rows_are_the_same_in_every_kind_of_query(
    spark: SparkSession, in_columns: SparkSession, filled: Hub, name: str
) -> None:
    def result(made_by: SparkSession) -> list[str]:
        rows = made_by.read.format("headrace").options(servers=filled.servers, minPartitions=3).load()
        return sorted(map(repr, QUERIES[name](rows).collect()))

    assert result(in_columns) == result(spark)


def test_no_operator_keeps_a_batch_beyond_the_next(in_columns: SparkSession, hub: Hub) -> None:
    """Batches are one after the other in the same memory; some operators of Spark's take columns, and keep them."""
    for begin in range(0, 45_000, 1000):
        hub.publish([b"%d" % number + b"." * (number % 50) for number in range(begin, begin + 1000)])
    rows = in_columns.read.format("headrace").option("servers", hub.servers).load()
    for query in (rows.select("*", longer("payload").alias("more")), rows.mapInArrow(unchanged, rows.schema)):
        for row in query.collect():
            assert bytes(row.payload).rstrip(b".") == b"%d" % (row.seq - 1)
            assert "more" not in row or row.more == len(row.payload) + 1


def test_where_it_fails_all_is_as_spark_would_have_it(
    spark: SparkSession,
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub.publish([b"one"])
    (tmp_path / f"{planner_strategies.COLUMNS}.java").write_text(
        f"package headrace.spark; public final class {planner_strategies.COLUMNS} extends NoSuchStrategy {{}}"
    )
    monkeypatch.setattr(planner_strategies, "JAVA", tmp_path)
    another = asking(spark)
    assert "in rows" in caplog.text
    rows = another.read.format("headrace").option("servers", hub.servers).load()
    assert "Project" in plan(rows)
    assert pa.table(rows.toArrow())["payload"].to_pylist() == [b"one"]
