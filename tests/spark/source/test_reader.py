"""The source: offsets and limits, what happens when the log is not what it was, and what Spark makes of it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from tests.archive.tables import BEGIN, OTHER_LOG, add, ledger, rows
from tests.spark.hubs import TRIMMING, Hub, trimmed, until

from headrace.archive import open_table
from headrace.errors import LostRangeError, NoArchiveError, UsageError
from headrace.message import SCHEMA
from headrace.spark import register
from headrace.spark.hub_connections import close_links
from headrace.spark.options import parse_source_options
from headrace.spark.source.planning import split
from headrace.spark.source.reader import SPARK_SCHEMA, SequenceReader, SequenceStreamReader

ALL = ReadAllAvailable()
CLIENT = "00112233445566778899aabb"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with a thousand messages, sealed, that nobody writes to."""
    with Hub.start(tmp_path_factory.mktemp("filled")) as hub:
        for begin in range(0, 1000, 100):
            hub.publish([b"%d" % n for n in range(begin, begin + 100)], topic=f"t/{begin // 100}")
        hub.seal()
        yield hub
        close_links()


def stream(hub: Hub, parallelism: int = 2, **options: str) -> SequenceStreamReader:
    return SequenceStreamReader(
        parse_source_options({"servers": hub.servers, **options}, stream=True), parallelism
    )


def batch(hub: Hub, parallelism: int = 2, **options: str) -> SequenceReader:
    return SequenceReader(
        parse_source_options({"servers": hub.servers, **options}, stream=False), parallelism
    )


def ranges(partitions: Any) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in partitions]


def test_the_schema_is_the_envelope() -> None:
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC").equals(SCHEMA)


@pytest.mark.parametrize("first", [1, 7])
@pytest.mark.parametrize("count", [0, 1, 9_999, 10_000, 25_000, 5_000_001])
@pytest.mark.parametrize(("parallelism", "least"), [(1, None), (4, None), (4, 3), (2, 100)])
def test_parts_are_even_and_whole(first: int, count: int, parallelism: int, least: int | None) -> None:
    parts = split(first, first + count - 1, parallelism, least)
    assert len(parts) <= count
    following = first
    for begin, end in parts:
        assert begin == following <= end
        following = end + 1
    assert following == first + count
    sizes = [end - begin for begin, end in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1
    if least is not None and count >= least:
        assert len(parts) >= least


def test_where_a_stream_begins(filled: Hub) -> None:
    log = filled.head().log
    times = [message.time for message in filled.messages()]
    later = next(seq for seq, time in enumerate(times, 1) if time > times[0])
    for options, seq in (
        ({}, 1000),
        ({"startingOffsets": "latest"}, 1000),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "17"}, 16),
        ({"startingOffsets": "1001"}, 1000),
        ({"startingTimestamp": "1000"}, 0),
        ({"startingTimestamp": "99999999999999"}, 1000),
    ):
        offset = stream(filled, **options).initialOffset()  # type: ignore[arg-type]
        assert offset == {"log": log, "seq": seq, "history": offset["history"]}
    assert later > 1
    with pytest.raises(UsageError, match="the log's head is 1000"):
        stream(filled, startingOffsets="1002").initialOffset()


def test_a_batch_ends_before_a_time(filled: Hub) -> None:
    times = [message.time for message in filled.messages()]
    middle = times[500]
    before = sum(time < middle for time in times)
    # Options have milliseconds, or a time as text.
    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=middle)).isoformat()
    assert ranges(batch(filled, endingTimestamp=text).partitions()) == [(1, before)]
    assert ranges(batch(filled, endingTimestamp="99999999999999").partitions()) == [(1, 1000)]
    assert ranges(batch(filled, endingTimestamp="1000").partitions()) == [(1, 0)]


def test_few_messages_wait_for_more(filled: Hub) -> None:
    reader = stream(filled, minOffsetsPerTrigger="300", maxTriggerDelay="1h")
    start = {"log": filled.head().log, "seq": 100}
    assert reader.latestOffset(start, ALL)["seq"] == 1000  # the first does not wait
    assert reader.latestOffset(start | {"seq": 701}, ALL)["seq"] == 701
    assert reader.latestOffset(start | {"seq": 700}, ALL)["seq"] == 1000


def archive_of(hub: Hub, place: Path, upto: int, log: str | None = None) -> str:
    """Archive a hub's messages, in several files."""
    kept = ledger("delta", place, log or hub.head().log)
    with hub.link() as link:
        for first in range(1, upto + 1, 400):
            add(kept, pa.Table.from_batches(link.read(first, min(first + 399, upto)), SCHEMA))
    return str(place)


def read_by(reader: SequenceReader | SequenceStreamReader, partitions: Any) -> list[dict[str, Any]]:
    """What executors read: each partition and the reader are pickled."""
    revived = pickle.loads(pickle.dumps(reader))
    return [row for each in partitions for rows in revived.read(each) for row in rows.to_pylist()]


def test_what_the_archive_has_is_read_from_its_files(filled: Hub, tmp_path: Path) -> None:
    place = archive_of(filled, tmp_path / "archive", 900)
    reader = batch(filled, archive=place, columns="seq,payload")
    parts = reader.partitions()
    assert [(each.first, each.last, len(each.files)) for each in parts] == [  # type: ignore[attr-defined]
        (1, 900, 3),
        (901, 1000, 0),
    ]
    rows = read_by(reader, parts)
    assert rows == [{"seq": seq, "payload": b"%d" % (seq - 1)} for seq in range(1, 1001)]
    # A part of it, and of one topic: other row groups are not read.
    reader = batch(filled, archive=place, startingOffsets="250", endingOffsets="870", topic="t/3")
    assert [row["seq"] for row in read_by(reader, reader.partitions())] == list(range(301, 401))
    reader = batch(filled, archive=place, topic="t/*", origin="nobody", columns="payload")
    assert read_by(reader, reader.partitions()) == []
    expected = read_by(batch(filled), batch(filled).partitions())
    whole = batch(filled, archive=place, minPartitions="7")
    assert len(whole.partitions()) >= 7
    assert read_by(whole, whole.partitions()) == expected


def test_what_retention_has_removed_is_read_from_the_archive(tmp_path: Path) -> None:
    with Hub.start(tmp_path / "data", *TRIMMING) as hub:
        hub.publish([b"first"] * 4)
        place = archive_of(hub, tmp_path / "archive", 4)
        trimmed(hub)
        first = hub.head().first
        # Between the archive and the log is a hole: that is a loss, though the archive has what was before it.
        with pytest.raises(LostRangeError, match=f"messages 1 to {first - 1}"):
            batch(hub, archive=place, startingOffsets="1").partitions()
        assert ranges(batch(hub, archive=place, startingOffsets=str(first)).partitions())[0][0] == first
        close_links()


def test_an_archive_serves_a_stream_that_begins_before_the_log(tmp_path: Path) -> None:
    with Hub.start(tmp_path / "data", *TRIMMING) as hub:
        made = rows(1, 10_000)
        trimmed(hub)
        kept = ledger("parquet", tmp_path / "archive", hub.head().log)
        add(kept, made.slice(0, hub.head().head - 2))
        place, extent = str(tmp_path / "archive"), hub.head()
        reader = stream(hub, archive=place, startingOffsets="earliest")
        start = reader.initialOffset()
        assert start["seq"] == 0
        end = reader.latestOffset(start, ALL)
        found = read_by(reader, reader.partitions(start, end))
        assert [row["seq"] for row in found] == list(range(1, extent.head + 1))
        assert [row["payload"] for row in found[:3]] == [b"message 1", b"message 2", b"message 3"]
        later = stream(hub, archive=place, startingTimestamp=str(BEGIN // 1000 + 2)).initialOffset()
        assert later["seq"] == 2
        close_links()


def test_a_stream_far_behind_loses_nothing_while_retention_goes_on(tmp_path: Path) -> None:
    """It knows the archive of when it began. By now the log begins later, and the archive has what is between."""
    with Hub.start(tmp_path / "data", *TRIMMING) as hub:
        hub.publish([b"first"] * 4)
        kept = ledger("parquet", tmp_path / "archive", hub.head().log)
        made = rows(1, 10_000)
        add(kept, made.slice(0, 3))
        reader = stream(hub, archive=str(tmp_path / "archive"), startingOffsets="earliest")
        start = reader.initialOffset()
        second = {"log": start["log"], "seq": 2}
        reader.partitions(start, second)
        trimmed(hub)
        assert hub.head().first > 5
        add(kept, made.slice(3, hub.head().head - 5))
        end = reader.latestOffset(start, ALL)
        found = read_by(reader, reader.partitions(second, end))
        assert [row["seq"] for row in found] == list(range(3, hub.head().head + 1))
        close_links()


def test_limits_count_what_is_in_the_archive(tmp_path: Path) -> None:
    with Hub.start(tmp_path / "data", *TRIMMING) as hub:
        trimmed(hub)
        head = hub.head().head
        kept = ledger("parquet", tmp_path / "archive", hub.head().log)
        for first in range(1, head - 2, 10):
            add(kept, rows(first, min(first + 9, head - 2)))
        assert hub.head().first > 20
        reader = stream(hub, archive=str(tmp_path / "archive"), startingOffsets="earliest")
        start = reader.initialOffset()
        assert reader.latestOffset(start, ReadMaxRows(7))["seq"] == 7
        log = {"log": start["log"]}
        assert reader.latestOffset(log | {"seq": 9}, ReadMaxRows(7))["seq"] == 16
        [first, second, *_] = open_table(str(tmp_path / "archive")).files(1, head)
        assert reader.latestOffset(start, ReadMaxBytes(1))["seq"] == 1
        assert reader.latestOffset(start, ReadMaxBytes(first.size))["seq"] == 10
        assert 10 < reader.latestOffset(start, ReadMaxBytes(first.size + second.size // 2))["seq"] < 20
        assert reader.latestOffset(start, ReadMaxBytes(1 << 40))["seq"] == head - 2
        assert reader.latestOffset(log | {"seq": head - 2}, ReadMaxBytes(1 << 40))["seq"] == head
        close_links()


def test_an_archive_of_another_log_is_told(filled: Hub, tmp_path: Path) -> None:
    place = archive_of(filled, tmp_path / "other", 5, log=OTHER_LOG)
    with pytest.raises(UsageError, match=f"the archive belongs to log {OTHER_LOG}"):
        batch(filled, archive=place).partitions()
    with pytest.raises(NoArchiveError):
        batch(filled, archive=str(tmp_path / "nothing")).partitions()


def test_limits_are_obeyed_and_reading_all_is_too(filled: Hub) -> None:
    reader = stream(filled, maxOffsetsPerTrigger="300")
    start = {"log": filled.head().log, "seq": 100}
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    assert reader.latestOffset(start, limit)["seq"] == 400
    assert reader.latestOffset(start | {"seq": 900}, limit)["seq"] == 1000
    assert reader.latestOffset(start, ALL)["seq"] == 1000
    assert reader.reportLatestOffset() == start | {"seq": 1000}
    assert stream(filled).getDefaultReadLimit() == ALL


def test_bytes_are_a_limit_of_about_so_many(hub: Hub) -> None:
    for _ in range(20):
        hub.publish([bytes(1000)] * 10)
    reader = stream(hub, maxBytesPerTrigger="40000")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(40_000)
    start = {"log": hub.head().log, "seq": 0}
    ends = []
    while (after := reader.latestOffset(start, ReadMaxBytes(40_000))) != start:
        assert 10 <= after["seq"] - start["seq"] <= 40
        start = after
        ends.append(after["seq"])
    assert ends[-1] == hub.head().head
    assert len(ends) > 4
    # One at least, however little is allowed; with both limits the tighter one counts.
    begin = {"log": start["log"], "seq": 0}
    assert 1 <= reader.latestOffset(begin, ReadMaxBytes(1))["seq"] <= 10
    both = stream(hub, maxBytesPerTrigger="40000", maxOffsetsPerTrigger="5")
    assert both.getDefaultReadLimit() == ReadMaxRows(5)
    assert both.latestOffset(begin, ReadMaxRows(5))["seq"] == 5
    assert both.latestOffset(begin, ReadMaxRows(100_000))["seq"] <= 40
    assert both.latestOffset(begin, ALL)["seq"] == ends[-1]


def test_what_is_available_now_does_not_grow(hub: Hub) -> None:
    hub.publish([b"a"] * 10)
    reader = stream(hub)
    reader.prepareForTriggerAvailableNow()
    hub.publish([b"b"] * 10)
    start = {"log": hub.head().log, "seq": 0}
    assert reader.latestOffset(start, ALL)["seq"] == 10
    assert reader.latestOffset(start | {"seq": 10}, ALL) == start | {"seq": 10}


def test_a_hold_moves_with_the_stream_and_does_not_wake_it(hub: Hub) -> None:
    hub.publish([b"a"] * 10)
    reader = stream(hub, hold="job", startingOffsets="4")
    offset = reader.initialOffset()
    with hub.link() as link:
        assert link.holds() == {"job": 4}
        end = reader.latestOffset(offset, ALL)
        assert end["seq"] == 10
        reader.commit(end)
        reader.commit(end)
        assert link.holds() == {"job": 11}
        assert link.head().head == 10
        assert reader.latestOffset(end, ALL) == end
        link.publish(b"b")
        assert reader.latestOffset(end, ALL)["seq"] == 11
    reader.stop()


def test_partitions_are_ranges(filled: Hub) -> None:
    start, end = ({"log": filled.head().log, "seq": seq} for seq in (0, 1000))
    assert ranges(stream(filled).partitions(start, end)) == [(1, 1000)]
    assert ranges(stream(filled, minPartitions="2").partitions(start, end)) == [(1, 500), (501, 1000)]
    assert stream(filled).partitions(end, end) == []
    assert ranges(batch(filled).partitions()) == [(1, 1000)]
    given = {"startingOffsets": "11", "endingOffsets": "20"}
    assert ranges(batch(filled, **given).partitions()) == [(11, 20)]
    assert ranges(batch(filled, startingOffsets="1001").partitions()) == [(1, 0)]
    with pytest.raises(UsageError, match="endingOffsets = 1001: the log's head is 1000"):
        batch(filled, endingOffsets="1001").partitions()


def test_readers_and_partitions_are_pickled_without_their_connections(filled: Hub) -> None:
    reader = batch(filled)
    (partition,) = reader.partitions()
    revived, part = pickle.loads(pickle.dumps((reader, partition)))
    assert sum(rows.num_rows for rows in revived.read(part)) == 1000


def test_another_log_is_an_error_that_names_both(filled: Hub) -> None:
    reader = stream(filled)
    other = {"log": "11111111-1111-1111-1111-111111111111", "seq": 5}
    for ask in (lambda: reader.latestOffset(other, ALL), lambda: reader.partitions(other, other)):
        with pytest.raises(UsageError) as told:
            ask()
        assert other["log"] in str(told.value)
        assert filled.head().log in str(told.value)
    with pytest.raises(UsageError, match="no offset of ours"):
        reader.latestOffset({"partition": 1}, ALL)


def test_what_is_lost_is_named_or_passed_over(
    start: Callable[..., Hub], caplog: pytest.LogCaptureFixture
) -> None:
    hub = start(*TRIMMING)
    trimmed(hub)
    extent = hub.head()
    begin, end = ({"log": extent.log, "seq": seq} for seq in (0, extent.head))
    with pytest.raises(LostRangeError) as lost:
        stream(hub).partitions(begin, end)
    assert (lost.value.first, lost.value.last) == (1, extent.first - 1)
    assert str(lost.value).endswith("; with failOnDataLoss=false a query skips them")
    with caplog.at_level("WARNING", "headrace.spark"):
        kept = stream(hub, failOnDataLoss="false").partitions(begin, end)
    assert ranges(kept) == [(extent.first, extent.head)]
    assert f"messages 1 to {extent.first - 1} are lost" in caplog.text
    assert "failOnDataLoss" not in caplog.text
    # Planned a second time, it is lost once; under the name that the query has.
    stream(hub, failOnDataLoss="false", reader="own").partitions(begin, end)
    stream(hub, failOnDataLoss="false", hold="held").partitions(begin, end)
    stream(hub, failOnDataLoss="false").partitions(begin, end)
    with hub.link() as link:
        each = {"messages": extent.first - 1, "ranges": [[1, extent.first - 1]]}
        assert link.status()["lost"] == {"own": each, "held": each, "spark": each}
        assert link.lost("own") == {"own": each}
        assert link.status()["counters"]["reader_lost"] == 3 * (extent.first - 1)
    # What is lost costs no trigger.
    assert stream(hub).latestOffset(begin, ReadMaxRows(3))["seq"] == extent.first + 2


def test_a_log_that_lost_its_end_is_not_read_again(filled: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """The checkpoint is further than the log: a hub on a machine that lost power, with fsync=never, say."""
    beyond = {"log": filled.head().log, "seq": 1200}
    with pytest.raises(LostRangeError) as lost:
        stream(filled).latestOffset(beyond, ALL)
    assert (lost.value.first, lost.value.last) == (1001, 1200)
    reader = stream(filled, failOnDataLoss="false")
    with caplog.at_level("WARNING", "headrace.spark"):
        assert reader.latestOffset(beyond, ALL) == beyond
        assert reader.latestOffset(beyond, ALL) == beyond
    assert caplog.text.count("messages 1001 to 1200 are lost") == 1


def lose_the_end(hub: Hub, read: Callable[[], Any]) -> None:
    """Have a hub lose its unsynced end, which somebody has read, and number other messages the same."""
    hub.publish([b"kept"] * 10)
    hub.kill9()
    kept = hub.directory / "kept"
    shutil.copytree(hub.data, kept)
    hub.restart()
    hub.publish([b"lost"] * 10)
    read()
    hub.kill9()
    shutil.rmtree(hub.data)
    kept.rename(hub.data)
    hub.restart()
    hub.publish([b"other"] * 15)


def test_messages_that_were_numbered_again_are_noticed(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    offsets: list[dict[str, Any]] = []

    def read() -> None:
        reader = stream(hub, startingOffsets="earliest")
        offsets.append(reader.initialOffset())
        for most in (10, 5, 5):
            offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(most)))

    lose_the_end(hub, read)
    _, common, middle, end = offsets
    assert [each["seq"] for each in offsets] == [0, 10, 15, 20]
    assert stream(hub).latestOffset(common, ALL)["seq"] == 25
    for ask in (
        lambda: stream(hub).latestOffset(end, ALL),
        lambda: stream(hub).latestOffset(middle, ALL),
        # Before PySpark 4.2, only the plan of a batch has its start.
        lambda: stream(hub).partitions(end, {"log": end["log"], "seq": 25}),
        lambda: stream(hub).partitions(middle, stream(hub).latestOffset(common, ALL)),
        lambda: stream(hub).partitions(common, end),
    ):
        with pytest.raises(UsageError, match="has lost its end") as told:
            ask()
    assert end["history"] in str(told.value)
    with hub.link() as link:
        [now] = link.head(history=[20]).history
    assert now in str(told.value)
    # Who asked to go on does so, with the history that there is, and is told once.
    reader = stream(hub, failOnDataLoss="false")
    with caplog.at_level("WARNING", "headrace.spark"):
        after = reader.latestOffset(end, ALL)
        reader.latestOffset(end, ALL)
    assert (after["seq"], caplog.text.count("has lost its end")) == (25, 1)
    assert stream(hub).latestOffset(after, ALL) == after
    # A checkpoint without fingerprints goes on as it did.
    assert stream(hub).latestOffset({"log": end["log"], "seq": 20}, ALL)["seq"] == 25


def test_a_hub_that_numbers_other_messages_while_a_plan_waits_for_it_is_noticed(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish([b"kept"] * 10)
    reader = stream(hub, startingOffsets="earliest")
    start = reader.initialOffset()
    catch_up = reader._catch_up

    def meanwhile(seq: int) -> object:
        hub.publish([b"other"] * 15)
        return catch_up(seq)

    monkeypatch.setattr(reader, "_catch_up", meanwhile)
    with pytest.raises(UsageError, match="has lost its end"):
        reader.partitions(start, {"log": start["log"], "seq": 20, "history": "of what was lost"})


def test_a_client_that_may_not_read_everything_is_told_no_fingerprint(start: Callable[..., Hub]) -> None:
    other = CLIENT[::-1]
    hub = start(
        "auth.required=true",
        f'auth.clients={{{other} = "all"}}',
        f"access.some.client_id={CLIENT}",
        "access.some.key=few",
        "access.some.allow=read a/**",
    )
    with hub.link(client_id=other, key="all") as link:
        link.publish([b"x"], topic="b")
        [told] = link.head(history=[1]).history
        assert told is not None
        assert link.head(history=[2]).history == (None,)
    with hub.link(client_id=CLIENT, key="few") as link:
        assert link.head(history=[1, 0]).history == (None, None)


def test_a_hold_is_not_what_is_available(hub: Hub) -> None:
    """Else a query that keeps one, and is run every hour, would find what the run before left each time."""
    hub.publish([b"x"] * 10)
    for _ in range(3):
        reader = stream(hub, hold="mine", startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset({"log": hub.head().log, "seq": 10}, ALL)
        assert end["seq"] == 10
        reader.commit(end)
    assert hub.head().head == 10
    hub.publish([b"y"])
    reader = stream(hub, hold="mine", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, ALL)["seq"] == 11


# With Spark


def copy(spark: SparkSession, hub: Hub, directory: Path, **options: Any) -> Any:
    """Copy everything there is to Parquet, going on where the last run stopped."""
    rows = spark.readStream.format("headrace").option("servers", hub.servers)
    rows = rows.option("startingOffsets", "earliest").options(**options)
    writer = rows.load().writeStream.format("parquet").option("path", str(directory / "rows"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.mark.spark
def test_a_stream_is_exact_across_restarts_of_hub_and_query(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    expected = []
    for turn in range(3):
        payloads = [b"%d/%d" % (turn, n) for n in range(500)]
        hub.publish(payloads, topic="t", attributes={"turn": str(turn)}, numbers={"half": turn / 2})
        expected += payloads
        if turn == 1:
            hub.seal()
        query = copy(spark, hub, tmp_path, maxOffsetsPerTrigger=200, minPartitions=2)
        assert query.exception() is None
        hub.kill9()
        hub.restart()
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("seq").collect()
    assert [row.seq for row in rows] == list(range(1, 1501))
    assert [bytes(row.payload) for row in rows] == expected
    last = rows[-1]
    assert (last.topic, last.attributes, last.numbers) == ("t", {"turn": "2"}, {"half": 1.0})
    told = {message.seq: message for message in hub.messages()}
    assert [row.time.timestamp() for row in rows] == [told[row.seq].time / 1e6 for row in rows]
    assert {row.publisher for row in rows} == {message.publisher for message in told.values()}


@pytest.mark.spark
def test_a_checkpoint_of_another_log_stops_with_both_named(
    spark: SparkSession, start: Callable[..., Hub], filled: Hub, tmp_path: Path
) -> None:
    other = start(name="other")
    other.publish([b"x"] * 10)
    copy(spark, other, tmp_path)
    with pytest.raises(PySparkException) as told:
        copy(spark, filled, tmp_path)
    assert filled.head().log in str(told.value)
    assert other.head().log in str(told.value)


@pytest.mark.spark
def test_a_query_is_told_that_the_hub_has_lost_its_end(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    lose_the_end(hub, lambda: copy(spark, hub, tmp_path))
    with pytest.raises(PySparkException, match="has lost its end") as told:
        copy(spark, hub, tmp_path)
    assert "Begin with a new checkpoint" in str(told.value)


@pytest.mark.spark
def test_a_batch_is_what_the_options_say(spark: SparkSession, filled: Hub) -> None:
    reader = spark.read.format("headrace").option("servers", filled.servers)
    everything = reader.load()
    assert everything.schema == SPARK_SCHEMA
    assert everything.count() == 1000
    some = reader.option("startingOffsets", 101).option("endingOffsets", 350).option("topic", "t/2").load()
    assert [row.seq for row in some.select("seq").orderBy("seq").collect()] == list(range(201, 301))
    for wrong in (reader, spark.readStream.format("headrace")):
        with pytest.raises(PySparkException, match="did you mean startingOffsets"):
            wrong.option("startingOffset", 1).load()
    with pytest.raises(PySparkException, match="there is no path"):
        spark.read.format("headrace").load(filled.servers)
    with pytest.raises(PySparkException, match="leave schema"):
        spark.read.format("headrace").schema("seq long").option("servers", filled.servers).load().count()


@pytest.mark.parametrize("files", ["true", "false"])
def test_only_the_columns_that_are_named(
    spark: SparkSession, filled: Hub, tmp_path: Path, files: str
) -> None:
    options = {"servers": filled.servers, "columns": "payload, seq", "files": files, "origin": "tube"}
    rows = spark.read.format("headrace").options(**options).load()
    assert rows.columns == ["payload", "seq"]
    expected = [(message.payload, message.seq) for message in filled.messages()]
    assert sorted((bytes(row.payload), row.seq) for row in rows.collect()) == sorted(expected)
    stream = spark.readStream.format("headrace").options(**options, startingOffsets="earliest").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
    written = spark.read.parquet(str(tmp_path / "rows"))
    assert (written.columns, written.count()) == (["payload", "seq"], len(expected))
    with pytest.raises(PySparkException, match="leave schema\\(\\) out"):
        spark.read.format("headrace").options(**options).schema("seq long").load().collect()


@pytest.mark.spark
def test_keys_are_not_in_plans(spark: SparkSession, start: Callable[..., Hub], tmp_path: Path) -> None:
    hub = start("auth.required=true", 'auth.clients={00112233445566778899aabb = "s3cret"}')
    file = tmp_path / "key"
    file.write_text("s3cret")
    rows = spark.read.format("headrace").option("servers", hub.servers)
    rows = rows.option("clientId", "00112233445566778899aabb").option("keyFile", str(file)).load()
    assert rows.count() == 0
    shown = rows._jdf.queryExecution().toString()
    assert "s3cret" not in shown
    with pytest.raises(PySparkException, match="auth"):
        spark.read.format("headrace").option("servers", hub.servers).load().count()


@pytest.mark.spark
def test_registering_tells_the_source_the_sessions_size(spark: SparkSession, filled: Hub) -> None:
    register(spark)
    register(spark)
    rows = spark.read.format("headrace").option("servers", filled.servers).option("minPartitions", 3).load()
    assert rows.rdd.getNumPartitions() == 3
    assert rows.count() == 1000


@pytest.fixture(scope="module")
def kept_busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with 300 messages, between which its state has changed all the time; sealed in part."""
    with Hub.start(tmp_path_factory.mktemp("busy")) as hub:
        with hub.link() as link, link.consumer("own", topic="work") as consumer:
            hub.seal()  # a segment without a message
            for turn in range(100):
                (first, last) = link.publish([b"%d" % turn] * 3, topic="work" if turn % 2 else "play")
                assert (first, last) == (3 * turn + 1, 3 * turn + 3)
                if turn % 2:
                    for _ in range(3):
                        consumer.ack(next(consumer))
                link.hold("own", first)
                link.create_service(f"service/{turn}")
                if turn % 3 == 2:
                    link.remove_service(f"service/{turn}")
                if turn in (20, 21, 60):
                    hub.seal()
                    link.hold("own", last)
                    hub.seal()
        yield hub
        close_links()


@pytest.mark.spark
@pytest.mark.parametrize("files", ["true", "false"])
def test_counting_rows_gives_the_head(
    spark: SparkSession, kept_busy: Hub, files: str, tmp_path: Path
) -> None:
    """Acknowledgements, holds and services take no number: a sequence number is a message."""
    head = kept_busy.head().head
    assert head == 300
    options = {"servers": kept_busy.servers, "files": files, "minPartitions": "5"}
    rows = spark.read.format("headrace").options(**options).load()
    assert rows.count() == head
    found = rows.selectExpr("min(seq) first", "max(seq) last", "count(distinct seq) numbers").collect()
    assert [tuple(row) for row in found] == [(1, head, head)]
    assert rows.where("origin = 'log'").count() == 0
    for first, last in ((1, 1), (61, 66), (62, 183), (head, head)):
        some = spark.read.format("headrace").options(**options).option("startingOffsets", first)
        assert some.option("endingOffsets", last).load().count() == last - first + 1
    query = copy(spark, kept_busy, tmp_path, files=files, maxOffsetsPerTrigger=70)
    assert query.exception() is None
    copied = spark.read.parquet(str(tmp_path / "rows")).select("seq").orderBy("seq").collect()
    assert [row.seq for row in copied] == list(range(1, head + 1))


@pytest.mark.spark
def test_an_idle_hub_stays_idle(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    """A stream that keeps a hold writes entries into the log that it reads; they do not wake it."""
    rows = spark.readStream.format("headrace").option("servers", hub.servers).option("hold", "idle")
    rows = rows.option("startingOffsets", "earliest").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()

    def batches() -> int:
        return sum(progress.numInputRows > 0 for progress in query.recentProgress)

    try:
        with hub.link() as link:
            until(lambda: link.holds() == {"idle": 1})
            for count in (1, 2, 3):
                link.publish(b"a")
                until(partial(lambda wanted: batches() >= wanted, count))
                assert batches() == count
            assert link.head().head == 3
            assert link.holds()["idle"] >= 3
    finally:
        query.stop()
