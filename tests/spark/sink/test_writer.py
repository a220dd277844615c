"""The sink: rows become messages or service changes, all of a batch or none, once, whoever is killed when."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tests.spark.hubs import Hub

from headrace.errors import RefusedError, UsageError
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.hub_connections import close_links
from headrace.spark.options import SinkOptions, parse_sink_options
from headrace.spark.sink.published_rows import bodies, published
from headrace.spark.sink.writer import StagedPart, abort, check_columns, commit, stage
from headrace.wire.link.message import PUBLISHED, rows_of
from headrace.wire.link.requests import MAX_STAGES

TEXTS = pa.map_(pa.string(), pa.string())
NUMBERS = pa.map_(pa.string(), pa.float64())


def rows(**columns: Any) -> pa.RecordBatch:
    kinds = {"payload": pa.binary(), "attributes": TEXTS, "numbers": NUMBERS}
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


# Columns


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # which parses the text
@pytest.mark.parametrize(
    ("schema", "services"),
    [
        ("payload binary", False),
        ("payload string, topic string", False),
        ("payload binary, attributes map<string,string>, numbers map<string,double>", False),
        ("service string, payload string", True),
    ],
)
def test_columns_that_can_be_written(schema: str, services: bool) -> None:
    assert check_columns(StructType.fromDDL(schema)) is services


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("topic string", "need a column payload"),
        ("payload binary, seq long", "not seq"),
        ("payload int", "column payload is int: expected binary or string"),
        ("payload binary, attributes map<string,int>", "expected map<string,string>"),
        ("payload binary, numbers map<string,string>", "expected map<string,double>"),
        ("payload binary, topic int", "expected string"),
        ("payload binary, topic string, service string", "leave one of service and topic out"),
    ],
)
def test_columns_that_cannot(schema: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_columns(StructType.fromDDL(schema))


def test_rows_become_rows_to_be_published() -> None:
    got = published(
        rows(
            payload=[b"a", b"b", b"c"],
            topic=["x", None, "z"],
            attributes=[[("k", "v")], None, []],
            numbers=[None, [("n", 1.5)], []],
        ),
        "given",
    )
    assert got.schema.equals(PUBLISHED)
    assert got.to_pydict() == {
        "topic": ["x", "given", "z"],
        "attributes": [[("k", "v")], [], []],
        "numbers": [[], [("n", 1.5)], []],
        "payload": [b"a", b"b", b"c"],
    }
    text = published(pa.RecordBatch.from_pydict({"payload": ["ä"], "service": ["s"]}), "")
    assert (text.column("payload").to_pylist(), text.column("topic").to_pylist()) == (["ä".encode()], ["s"])
    assert published(rows(payload=[b"a"]), "given").column("topic").to_pylist() == ["given"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (rows(payload=[b"a", None]), "column payload is null in 1 rows"),
        (rows(payload=[b"a"], service=[None]), "column service is null"),
        (rows(payload=[b"a"], attributes=[[("k", None)]]), "column attributes has null values"),
        (rows(payload=[b"a"], numbers=[[("k", None)]]), "column numbers has null values"),
    ],
)
def test_what_is_null_is_not_guessed(given: pa.RecordBatch, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        published(given, "")


def found(given: list[pa.RecordBatch], topic: str = "given") -> list[list[tuple[str, bytes]]]:
    """The topic and payload of each row of each body."""
    return [
        [(row["topic"], row["payload"]) for row in rows_of(b"".join(body), PUBLISHED).to_pylist()]
        for body in bodies(given, topic)
    ]


def test_payloads_of_several_batches_share_a_body() -> None:
    text = pa.RecordBatch.from_pydict({"payload": ["ä", "b"]})
    batches = [rows(payload=[b"a"]), rows(payload=[]), text, rows(payload=[b"x", b"c", b"x"]).slice(1, 1)]
    assert found(batches) == [[("given", payload) for payload in (b"a", "ä".encode(), b"b", b"c")]]
    assert found([]) == []


def test_rows_with_more_than_a_payload_are_bodies_too() -> None:
    with_topics = rows(payload=[b"a", b"b"], topic=["x", None])
    assert found([with_topics, with_topics]) == [[("x", b"a"), ("given", b"b")]] * 2


def test_a_payload_that_is_null_is_not_guessed() -> None:
    with pytest.raises(UsageError, match="column payload is null in 1 rows"):
        list(bodies([rows(payload=[b"a", None])], ""))


# Stages and commits


def options(hub: Hub, **given: str) -> SinkOptions:
    return parse_sink_options({"servers": hub.servers, **given})


def staged(hub: Hub, batch: int, part: int, *payloads: bytes, query: str = "q") -> StagedPart:
    message = stage(options(hub), query, batch, part, iter([rows(payload=list(payloads))]))
    revived: StagedPart = pickle.loads(pickle.dumps(message))
    return revived


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub.start(tmp_path_factory.mktemp("kept")) as hub:
        yield hub
        close_links()


def test_parts_are_in_order_and_a_repeat_changes_nothing(kept: Hub) -> None:
    parts = [staged(kept, 0, 1, b"c", b"d"), None, staged(kept, 0, 0, b"a", b"b"), staged(kept, 0, 2)]
    before = kept.head().head
    assert parts[3] is not None
    assert parts[3].stage == ""
    commit(options(kept), parts, services=False)
    commit(options(kept), parts, services=False)
    # The batch was run again, by other tasks in other parts.
    commit(options(kept), [staged(kept, 0, 0, b"a", b"b", b"c", b"d")], services=False)
    got = kept.messages(from_seq=before + 1)
    assert [message.payload for message in got] == [b"a", b"b", b"c", b"d"]
    assert {(message.origin, message.publisher) for message in got} == {("spark", "q")}


def test_nothing_to_write_leaves_no_trace(kept: Hub) -> None:
    before = kept.head().head
    commit(options(kept), [staged(kept, 7, 0), None], services=False)
    abort(options(kept), [staged(kept, 7, 0), None])
    assert kept.head().head == before


def test_many_rows_are_staged_in_pieces(kept: Hub) -> None:
    before = kept.head().head
    batches = [
        rows(payload=[b"%d/%d" % (number, n) + bytes(2000) for n in range(3000)]) for number in range(3)
    ]
    message = stage(options(kept), "many", 0, 0, iter(batches))
    assert message.rows == 9000
    commit(options(kept), [message], services=False)
    expected = [payload for batch in batches for payload in batch.column("payload").to_pylist()]
    assert kept.payloads(from_seq=before + 1) == expected


def test_what_was_aborted_cannot_be_committed(kept: Hub) -> None:
    message = staged(kept, 0, 0, b"x", query="aborted")
    abort(options(kept), [message, None])
    with pytest.raises(RefusedError, match="run the batch again"):
        commit(options(kept), [message], services=False)


def test_a_task_that_fails_leaves_nothing(kept: Hub) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(payload=[b"x"])
        raise ValueError("the task was killed")

    before = kept.head().head
    with pytest.raises(ValueError, match="was killed"):
        stage(options(kept), "failing", 0, 0, failing())
    assert kept.head().head == before


def test_a_hub_killed_before_the_commit_fails_the_batch(hub: Hub) -> None:
    message = staged(hub, 0, 0, b"x")
    hub.kill9()
    hub.restart()
    with pytest.raises(RefusedError) as refused:
        commit(options(hub), [message], services=False)
    assert refused.value.code == "missing"
    assert "run the batch again" in str(refused.value)
    again = staged(hub, 0, 0, b"x")
    commit(options(hub), [again], services=False)
    # Killed after it committed: whoever did not hear so asks again.
    hub.kill9()
    hub.restart()
    commit(options(hub), [again], services=False)
    # Run again, it has the same rows; of stages that are gone, nobody knows what they were.
    commit(options(hub), [staged(hub, 0, 0, b"x")], services=False)
    with pytest.raises(RefusedError, match="run the batch again"):
        commit(options(hub), [message], services=False)
    assert hub.payloads() == [b"x"]


def test_a_checkpoint_that_was_put_back_is_told(kept: Hub) -> None:
    """Its batches have the numbers of others that are in the log; to call them done would lose their rows."""
    for batch in range(3):
        commit(options(kept), [staged(kept, batch, 0, b"%d" % batch, query="restored")], services=False)
    before = kept.head().head
    for batch in (1, 2):
        with pytest.raises(RefusedError, match=r"another checkpointLocation.* several writes") as refused:
            commit(options(kept), [staged(kept, batch, 0, b"other", query="restored")], services=False)
        assert refused.value.code == "conflict"
    assert kept.head().head == before


def test_stages_of_another_log_are_not_committed(kept: Hub) -> None:
    message = staged(kept, 3, 0, b"x", query="elsewhere")
    message.log = "11111111-1111-1111-1111-111111111111"
    with pytest.raises(UsageError, match="11111111-1111-1111-1111-111111111111"):
        commit(options(kept), [message], services=False)


def test_as_many_stages_as_a_request_has_room_for(kept: Hub) -> None:
    one = staged(kept, 4, 0, b"x", query="many")
    many = [replace(one, stage=f"{part:0{len(one.stage)}d}", part=part) for part in range(MAX_STAGES)]
    # The request can be made, and the hub looks for the stages.
    with pytest.raises(RefusedError, match="What was staged is gone"):
        commit(options(kept), many, services=False)
    with pytest.raises(UsageError, match=r"a batch of 4097 partitions: .*coalesce\(\)"):
        commit(options(kept), [*many, one], services=False)
    abort(options(kept), [*many, one])
    with pytest.raises(RefusedError, match="What was staged is gone"):
        commit(options(kept), [one], services=False)


def changes(hub: Hub, query: str, *pairs: tuple[str, bytes]) -> None:
    ids, values = zip(*pairs, strict=True)
    batch = rows(service=list(ids), payload=list(values))
    commit(options(hub), [stage(options(hub), query, 0, 0, iter([batch]))], services=True)


def shown(hub: Hub, *ids: str) -> Mapping[str, tuple[str, bytes]]:
    with hub.link() as link:
        kinds = {service["id"]: service["kind"] for service in link.services()}
        return {name: (kinds[name], link.service(name)) for name in ids if name in kinds}


def test_services_are_created_on_first_use(kept: Hub) -> None:
    changes(kept, "s1", ("json", b'{"a":1}'), ("last", b"one"), ("json", b'{"b":2}'), ("last", b"{}"))
    changes(kept, "s2", ("json", b'{"a":null}'), ("last", b"two"))
    assert shown(kept, "json", "last") == {"json": ("json", b'{"b":2}'), "last": ("last", b"two")}


def test_a_change_that_a_service_cannot_take_fails_the_whole_batch(kept: Hub) -> None:
    changes(kept, "s3", ("object", b"{}"))
    before = kept.head().head
    for number, bad in enumerate(
        [
            [("fresh", b'{"a":1}'), ("object", b"no object")],
            [("fresh", b'{"a":1}'), ("fresh", b"[]")],
            [("fresh", b"x"), ("x" * 2000, b"x")],
        ]
    ):
        with pytest.raises(RefusedError) as refused:
            changes(kept, f"bad{number}", *bad)
        assert "smaller" not in str(refused.value)
    assert kept.head().head == before
    assert shown(kept, "fresh") == {}
    changes(kept, "bad0", ("fresh", b"x"))  # the query goes on
    assert shown(kept, "fresh") == {"fresh": ("last", b"x")}


# With Spark


@pytest.mark.spark
def test_a_batch_is_written_whole_or_not_at_all(spark: SparkSession, kept: Hub) -> None:
    before = kept.head().head
    columns = "cast(id as string) as payload", "map('half', id / 2) as numbers"
    good = spark.range(0, 5000, 1, 4).selectExpr(*columns)
    good.write.format("headrace").option("servers", kept.servers).option("topic", "t").mode("append").save()
    got = kept.messages(from_seq=before + 1)
    assert sorted(int(message.payload) for message in got) == list(range(5000))
    assert {message.topic for message in got} == {"t"}
    assert got[3].numbers == {"half": int(got[3].payload) / 2}
    before = kept.head().head
    bad = good.selectExpr("if(payload = '4999', null, payload) as payload")
    with pytest.raises(PySparkException, match="column payload is null in 1 rows"):
        bad.write.format("headrace").option("servers", kept.servers).mode("append").save()
    assert kept.head().head == before
    with pytest.raises(PySparkException, match="only ever appended to"):
        good.write.format("headrace").option("servers", kept.servers).mode("overwrite").save()
    with pytest.raises(
        UsageError, match=r'outputMode\("append"\); write the rows of "update".* foreachBatch'
    ):
        HeadraceDataSource({"servers": kept.servers}).streamWriter(good.schema, overwrite=True)


def pipe(spark: SparkSession, hub: Hub, directory: Path, limit: int) -> Any:
    """Pass on what is in ``in`` to ``out``, from where the last run stopped."""
    source = spark.readStream.format("headrace").options(
        servers=hub.servers, topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=limit
    )
    rows = source.load().selectExpr(
        "payload", "'out' as topic", "map('from', cast(seq as string)) attributes"
    )
    writer = rows.writeStream.format("headrace").option("servers", hub.servers)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(availableNow=True).start()


@pytest.mark.slow
@pytest.mark.spark
def test_hub_to_hub_is_exactly_once_whoever_is_killed(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    """The hub is killed at another point of the query's work each time; the query is started again until it is done."""
    expected = [b"%d" % n for n in range(2000)]
    hub.publish(expected, topic="in")
    told = []
    for kill in (1, 1, 2, 0):
        query = pipe(spark, hub, tmp_path, 250)
        done = len(query.recentProgress)
        while kill and query.isActive and len(query.recentProgress) < done + kill:
            query.awaitTermination(0.01)
        if kill:
            hub.kill9()
            hub.restart()
        try:
            query.awaitTermination()
        except PySparkException as error:
            told.append(str(error))
    assert all("run the batch again" in each for each in told), told
    assert query.exception() is None
    out = hub.messages(topic="out")
    assert [message.payload for message in out] == expected
    assert [int(message.attributes["from"]) for message in out] == list(range(1, 2001))


@pytest.mark.spark
def test_a_batch_that_spark_repeats_is_not_appended_again(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """The driver died after the hub's commit and before its own: the checkpoint does not know of the batch."""
    hub.publish([b"%d" % n for n in range(100)], topic="in")
    pipe(spark, hub, tmp_path, 1000).awaitTermination()
    head = hub.head().head
    commits = tmp_path / "checkpoint" / "commits"
    for file in sorted(commits.iterdir()):
        file.unlink()
    pipe(spark, hub, tmp_path, 1000).awaitTermination()
    assert hub.head().head == head
    assert len(hub.payloads(topic="out")) == 100


@pytest.mark.spark
def test_a_batch_that_for_each_batch_repeats_is_written_once(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """The driver died after the write and before the checkpoint's commit."""
    hub.publish([b"%d" % n for n in range(1500)], topic="in")
    source = spark.readStream.format("headrace").options(
        servers=hub.servers, topic="in", startingOffsets="earliest", maxOffsetsPerTrigger=500
    )

    def publish(rows: DataFrame, batch: int) -> None:
        writer = rows.selectExpr("payload", "'out' as topic").write.format("headrace")
        writer.options(servers=hub.servers, txnVersion=batch).mode("append").save()
        named = rows.selectExpr("payload", "'named' as topic").write.format("headrace")
        named.options(servers=hub.servers, txnAppId="named", txnVersion=batch).mode("append").save()

    def run() -> None:
        writer = source.load().writeStream.foreachBatch(publish).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run()
    assert [len(hub.payloads(topic=topic)) for topic in ("out", "named")] == [1500, 1500]
    for file in (tmp_path / "checkpoint" / "commits").iterdir():
        file.unlink()
    for _ in range(2):
        run()
    assert [len(hub.payloads(topic=topic)) for topic in ("out", "named")] == [1500, 1500]
    # A batch of that number with other rows is no repeat.
    other = spark.range(5).selectExpr("cast(id as string) as payload")
    with pytest.raises(PySparkException, match=r"these 5 are not the same.*another txnAppId"):
        other.write.format("headrace").options(servers=hub.servers, txnAppId="named", txnVersion=2).mode(
            "append"
        ).save()
    with pytest.raises(PySparkException, match="txnVersion without txnAppId is for foreachBatch"):
        other.write.format("headrace").options(servers=hub.servers, txnVersion=2).mode("append").save()
