"""SQL over a log: the same rows from its files, beside its hub or without, and over the link."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.client.sql.query import query_files
from headrace.errors import UsageError
from headrace.log import Log
from headrace.message import Batch, Run
from headrace.testing import Hub

TOPICS = ("orders/eu", "orders/us", "")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of three segments, two of them sealed, with 30 messages."""
    log = Log.open(tmp_path / "log")
    for number in range(30):
        batch = Batch(Run.of([b"%d" % number]), origin="tube", topic=TOPICS[number % 3])
        log.append([batch.numbered(number + 1, number + 1, 1_000_000 * (number + 1), 1)])
        log.commit(number + 1)
        if number in (9, 19):
            log.rotate()
            while log.seal_next():
                pass
    log.close()
    return tmp_path


def test_counts_by_topic_over_sealed_segments_and_the_tail(directory: Path) -> None:
    found = headrace.sql("select topic, count(*) as n from messages group by 1 order by 1", data=directory)
    assert found.to_pylist() == [{"topic": topic, "n": 10} for topic in sorted(TOPICS)]
    log = Log.open(directory / "log", read_only=True)
    assert found.schema.metadata == {b"headrace.log": str(log.uuid).encode(), b"headrace.head": b"30"}
    assert len(log.segments) == 3
    log.close()


@pytest.mark.parametrize("as_of", [0, 1, 10, 15, 20, 25, 30])
def test_an_answer_is_that_of_a_message(directory: Path, as_of: int) -> None:
    found = headrace.sql("select count(*) as n, max(seq) as last from messages", data=directory, as_of=as_of)
    assert found.to_pylist() == [{"n": as_of, "last": as_of or None}]


def test_what_is_passed_over_is_not_wanted(directory: Path) -> None:
    late = "time > timestamptz '1970-01-01 00:00:12Z'"
    query = f"select seq from messages where seq between 8 and 22 and {late} order by 1"
    assert headrace.sql(query, data=directory)["seq"].to_pylist() == list(range(13, 23))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(first=st.integers(0, 31), last=st.integers(0, 31), topic=st.sampled_from(TOPICS))
def test_conditions_choose_what_a_plain_loop_chooses(
    directory: Path, first: int, last: int, topic: str
) -> None:
    wanted = [seq for seq in range(1, 31) if first <= seq <= last and TOPICS[(seq - 1) % 3] == topic]
    conditions = f"seq >= {first} and seq <= {last} and topic = '{topic}'"
    found = query_files(f"select seq from messages where {conditions} order by seq", directory / "log")
    assert found["seq"].to_pylist() == wanted


def test_a_query_can_open_nothing_else(directory: Path) -> None:
    secret = directory / "secret.csv"
    secret.write_text("a\n1\n")
    for query in (
        f"select * from '{secret}'",
        f"copy messages to '{secret}'",
        "set enable_external_access = true",
    ):
        with pytest.raises(UsageError, match="SQL"):
            headrace.sql(query, data=directory)
    assert secret.read_text() == "a\n1\n"


@pytest.mark.parametrize(
    ("query", "options", "complaint"),
    [
        ("select nothing from messages", {}, "SQL: .*nothing"),
        ("from messages", {"as_of": 31}, "the log ends at 30"),
        ("from messages", {"url": "tube://127.0.0.1:1"}, "leave out one"),
        ("from services", {"as_of": 3}, "only messages"),
    ],
)
def test_what_cannot_be_answered(
    directory: Path, query: str, options: dict[str, int], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        headrace.sql(query, data=directory, **options)  # type: ignore[arg-type]


def test_a_running_hub_answers_from_its_files_and_over_the_link(tmp_path: Path) -> None:
    with Hub(data=tmp_path) as hub, hub.connect_sync("tube://") as link, hub.connect_sync("spp://") as spp:
        link.publish([b"a", b"b", b"c"], topic="orders/eu", attributes={"city": "Praha", "x": 5})
        spp.publish({"speed": 61}, topic="fleet/42")
        with link.consumer("billing", from_seq=1) as billing:
            billing.ack(next(billing))
        hub.wait_for(4)
        query = (
            "select seq, topic, decode(payload) as text, numbers['x'] as x from messages order by seq limit 1"
        )
        expected = [{"seq": 1, "topic": "orders/eu", "text": "a", "x": 5.0}]
        assert headrace.sql(query, data=tmp_path).to_pylist() == expected
        assert headrace.sql(query, url=hub.url("tube")).to_pylist() == expected
        for where in ({"data": tmp_path}, {"url": hub.url("tube")}):
            services = headrace.sql("select service, kind, decode(value) as value from services", **where)  # type: ignore[arg-type]
            assert services.to_pylist() == [{"service": "fleet/42", "kind": "json", "value": '{"speed":61}'}]
            (row,) = headrace.sql("select consumer, floor from consumers", **where).to_pylist()  # type: ignore[arg-type]
            assert row == {"consumer": "billing", "floor": 1}
        with pytest.raises(UsageError, match="--data"):
            headrace.sql("from subscriptions", url=hub.url("tube"))
