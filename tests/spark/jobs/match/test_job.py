"""The matcher fleet against real hubs: clients get what a hub's own matcher would give them, whatever is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.client.link.moving import drive, expected, published
from tests.hubprocess import HubProcess
from tests.spark.hubs import until
from tests.spark.jobs.fleet import COLOURS, Client, Named, Relay, linked, publish, status

from headrace import between, circle, connect_sync, fence, where
from headrace.errors import UnreachableError, UsageError
from headrace.message import SCHEMA
from headrace.spark import register
from headrace.spark.jobs.job import JobRun, RunningJob, find
from headrace.spark.jobs.match import backtest, match
from headrace.spark.jobs.match.subscription_index import ENTRIES
from headrace.spark.options import HubOptions, SourceOptions
from headrace.spark.source.range_source import frame

pytestmark = pytest.mark.spark

Begin = Callable[..., RunningJob]


@pytest.fixture
def begin(spark: SparkSession, tmp_path: Path) -> Iterator[Begin]:
    """Start fleets; they end with the test."""
    register(spark)
    queries = []

    def start(hub: HubProcess, dispatchers: str | None = None, **params: Any) -> RunningJob:
        told = {
            "path": str(tmp_path / "match"),
            "dispatchers": dispatchers or hub.doors["dispatcher"],
            **{name: str(value) for name, value in params.items()},
        }
        patience = float(told.pop("patience", "30"))
        access = HubOptions(hub.doors["tube_tcp"], patience=patience)
        run = JobRun(
            spark, "match", access, told, find("match").PARAMETERS, bool(told.pop("available_now", ""))
        )
        started = find("match").start(run)
        assert isinstance(started, RunningJob)
        queries.append(started.query)
        return started

    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    with HubProcess.start(tmp_path / "hub", "matching.engine=spark") as running:
        yield running


def behind(hub: HubProcess) -> int:
    """How many clients are fed from the log."""
    count: int = status(hub)["subscribers"]["sdk_behind"]
    return count


def counted(hub: HubProcess, name: str) -> int:
    return int(status(hub)["counters"].get(name, {}).get("sdk", 0))


def settled(hub: HubProcess, started: RunningJob | None) -> None:
    """Wait until all that is in the log has been matched and pushed."""
    if started is not None:
        newest = linked_head(hub)
        until(lambda: int(str(started.facts()["through"])) >= newest)
        until(lambda: behind(hub) == 0)


def linked_head(hub: HubProcess) -> int:
    with linked(hub) as link:
        newest: int = link.head().head
        return newest


def changed(hub: HubProcess, act: Callable[[], object]) -> None:
    """Do something that adds an entry to the log, and wait for it: both hubs are to have the same log."""
    with linked(hub) as link:

        def entries() -> int:
            return sum(rows.num_rows for rows in link.entries(0, link.head().head, topic=ENTRIES))

        before = entries()
        act()
        until(lambda: entries() > before)


def play(hub: HubProcess, started: RunningJob | None, seed: int) -> dict[int, list[Named]]:
    """Clients that come, change their minds, go and come back while messages flow; what each of them got."""
    random = Random(seed)
    clients: dict[int, Client] = {}
    got: dict[int, list[Named]] = {}
    published = 0
    withdrawn: set[int] = set()
    with ExitStack() as stack:
        witness = stack.enter_context(closing(Client(hub, 99, x=(0, 99))))
        until(lambda: status(hub)["subscribers"]["subscriptions"] == 1)
        for _ in range(40):
            if started is None:
                # The hub takes a change up at once, and may have messages of before it still to match.
                until(lambda published=published: len(witness.got) == published)  # type: ignore[misc]
            number = random.randrange(8)
            wanted: dict[str, Any] = {"x": (low := random.randrange(90), low + random.randrange(60))}
            if random.random() < 0.4:
                wanted["colour"] = random.choice(COLOURS)
            what = random.random()
            client = clients.get(number)
            if client is None:
                if number in got and what < 0.5:
                    # With what it wanted before; to say something else as well would be a race.
                    after = got[number][-1][0] if got[number] else None
                    clients[number] = stack.enter_context(closing(Client(hub, number + 1, after=after)))
                    until(lambda: status(hub)["subscribers"]["sdk"] == len(clients) + 1)
                else:

                    def come(number: int = number, wanted: Any = wanted) -> None:
                        clients[number] = stack.enter_context(closing(Client(hub, number + 1, **wanted)))

                    changed(hub, come)
                    withdrawn -= {number}
            elif what < 0.3:
                other = {"colour": random.choice(COLOURS)}
                name = random.choice(("one", "two"))
                changed(
                    hub,
                    lambda client=client, wanted=(wanted, other), name=name: client.subscribe_as(
                        name, *wanted
                    ),
                )
            elif what < 0.6:
                withdrawn -= {number}
                changed(hub, lambda client=client, wanted=wanted: client.subscribe(**wanted))
            else:
                # What is under way to a client that goes would be lost with its connection.
                settled(hub, started)
                if what < 0.8:
                    # Named subscriptions stay. One that was withdrawn already is made again: that is an entry, too.
                    again = wanted if number in withdrawn else {}
                    withdrawn ^= {number}
                    changed(hub, lambda client=client, again=again: client.subscribe(**again))
                else:
                    until_quiet(clients)
                    client.close()
                    until(lambda: status(hub)["subscribers"]["sdk"] == len(clients))
                    got.setdefault(number, []).extend(client.named())
                    del clients[number]
            publish(hub, published + 1, published + 25)
            published += 25
        settled(hub, started)
        until(lambda: len(witness.got) == published)
        until_quiet(clients)
        for number, client in clients.items():
            got.setdefault(number, []).extend(client.named())
    return got


def until_quiet(clients: dict[int, Client]) -> None:
    """Wait until clients have read all that they were sent: an answer comes behind it."""
    for client in clients.values():
        client.ping()


def test_clients_cannot_tell_it_from_the_hubs_own_matcher(
    hub: HubProcess, begin: Begin, tmp_path: Path
) -> None:
    started = begin(hub, shares=3)
    ours = play(hub, started, 1)
    with HubProcess.start(tmp_path / "other") as other:
        theirs = play(other, None, 1)
    assert ours == theirs
    assert sum(map(len, ours.values())) > 500
    assert started.facts()["pushed"]


def test_who_comes_before_the_fleet_and_after_it_misses_nothing(hub: HubProcess, begin: Begin) -> None:
    with closing(Client(hub, 1, x=(0, 49))) as early:
        until(lambda: status(hub)["subscribers"]["subscriptions"] == 1)
        publish(hub, 1, 100)
        started = begin(hub)
        until(lambda: behind(hub) == 0)
        publish(hub, 101, 200)
        settled(hub, started)
        # All of the second hundred was pushed, nothing of the first.
        until(lambda: len(early.got) == 100)
        assert started.facts()["pushed"] == 50
        started.query.stop()
        until(lambda: behind(hub) == 1)
        publish(hub, 201, 300)
        until(lambda: len(early.got) == 150)
        started = begin(hub)
        until(lambda: behind(hub) == 0)
        last = publish(hub, 301, 400)
        settled(hub, started)
        until(lambda: len(early.got) == 200)
        assert [int(payload) for _, payload in early.got] == [n for n in range(1, 401) if n % 100 < 50]
        with closing(Client(hub, 2, after=last - 10, x=(0, 99))) as late:
            until(lambda: len(late.got) == 10)
    assert counted(hub, "repeats") == 0


def test_tasks_that_lose_the_dispatcher_push_again(hub: HubProcess, begin: Begin) -> None:
    with closing(Relay(hub.address("dispatcher"))) as relay, ExitStack() as stack:
        started = begin(hub, relay.address, shares=2)
        clients = [stack.enter_context(closing(Client(hub, n, x=(0, 99)))) for n in range(1, 9)]
        until(lambda: status(hub)["subscribers"]["subscriptions"] == 8 and behind(hub) == 0)
        relay.cut_after = 9000
        publish(hub, 1, 3000)
        until(lambda: relay.cuts >= 3)
        relay.cut_after = None
        settled(hub, started)
        until(lambda: all(len(client.got) == 3000 for client in clients))
        for client in clients:
            assert [int(payload) for _, payload in client.got] == list(range(1, 3001))
    assert counted(hub, "repeats") > 0


def test_when_its_lifeline_breaks_clients_are_fed_from_the_log(hub: HubProcess, begin: Begin) -> None:
    with closing(Relay(hub.address("dispatcher"))) as relay, closing(Client(hub, 1, x=(0, 99))) as client:
        started = begin(hub, relay.address)
        until(lambda: status(hub)["subscribers"]["subscriptions"] == 1 and behind(hub) == 0)
        publish(hub, 1, 100)
        settled(hub, started)
        relay.cut_all()
        until(lambda: behind(hub) == 1)
        publish(hub, 101, 200)
        settled(hub, started)
        publish(hub, 201, 300)
        until(lambda: len(client.got) == 300)
        assert [int(payload) for _, payload in client.got] == list(range(1, 301))
        assert started.query.isActive


def test_a_dispatcher_that_is_not_there_is_named(hub: HubProcess, begin: Begin) -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1: no dispatcher answers there"):
        begin(hub, "127.0.0.1:1", patience=0)
    with pytest.raises(UsageError, match="match has no end"):
        begin(hub, available_now="yes")


def test_fences_have_the_hubs_events(hub: HubProcess, spark: SparkSession) -> None:
    """Each task begins in the middle, and reads what is before its range."""
    wanted = fence("x", "y", circle(50, 50, 20), key="taxi", events=("enter", "inside", "exit"))
    moves = drive(Random(6), 400)
    with linked(hub) as link, connect_sync(f"sdk://{hub.doors['sdk']}") as sdk:
        sdk.subscribe(wanted)
        first = link.head().head + 1
        link.publish(published(moves))
        events = expected(wanted, moves, first)
        got = {message.seq: message.events[""] for message in (next(sdk) for _ in events)}
        reading = SourceOptions(HubOptions(hub.doors["tube_tcp"]))
        ranges = frame(spark, link.head())
        tried = backtest(ranges, wanted, reading=reading).collect()
        matched = match(ranges, link.subscriptions(), reading=reading).collect()
        register(spark)
        rows = spark.read.format("headrace").option("servers", hub.doors["tube_tcp"]).load()
        with pytest.raises(UsageError, match="needs the messages before"):
            backtest(rows, wanted)
    assert got == events
    assert {row["seq"]: tuple(row["events"]) for row in tried} == events
    assert sorted(row["seq"] for row in matched) == list(events)


def test_the_function_tells_the_clients_of_messages(hub: HubProcess, spark: SparkSession) -> None:
    with ExitStack() as stack, linked(hub) as link:
        for number in range(4):
            wanted = {"x": (0, 24)} if number < 2 else {"x": (20, 30), "colour": "red"}
            stack.enter_context(closing(Client(hub, number, **wanted)))
        until(lambda: link.subscriptions().num_rows == 4)
        first = link.head().head + 1
        publish(hub, 0, 99)
        register(spark)
        rows = spark.read.format("headrace").option("servers", hub.doors["tube_tcp"]).load()
        found = match(rows, link.subscriptions()).collect()
        reading = SourceOptions(HubOptions(hub.doors["tube_tcp"]))
        ranges = frame(spark, link.head())
        assert ranges.rdd.getNumPartitions() == ranges.count() == spark.sparkContext.defaultParallelism
        again = match(ranges, link.subscriptions(), reading=reading).collect()
        either = where(x=between(0, 24)) | where(x=between(20, 30), colour="red")
        tried = backtest(ranges, either, reading=reading).collect()
    assert list(rows.columns) == SCHEMA.names
    assert sorted(again) == sorted(found)
    expected = {}
    for n in range(100):
        clients = {number for number in range(4) if (n <= 24 if number < 2 else 20 <= n <= 30 and n % 3 == 0)}
        if clients:
            expected[first + n] = clients
    assert {row["seq"]: {int.from_bytes(each) for each in row["clients"]} for row in found} == expected
    assert sorted(row["seq"] for row in tried) == sorted(expected)
