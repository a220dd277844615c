"""Tasks of the fleet against a real log: what they push is what the hub's own matcher sent, however the log is cut."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.hubprocess import HubProcess
from tests.spark.hubs import seal, until
from tests.spark.jobs.fleet import Client, linked, publish, status
from tests.spark.jobs.match.dispatcher import Dispatcher

from headrace.archive.folder import Folder
from headrace.errors import LostRangeError
from headrace.spark.hub_connections import close_links
from headrace.spark.jobs.match.fleet_tasks import (
    BatchFacts,
    Fleet,
    batch_facts,
    match_and_push,
    match_range,
    push_blocks,
)
from headrace.spark.jobs.match.subscription_index import ENTRIES, forget_indexes
from headrace.spark.jobs.match.tables import SubscriptionTables
from headrace.spark.options import parse_source_options
from headrace.spark.source.range_rows import LogRange
from headrace.wire.attribute.messages import CLIENT_ID_BYTES, ROUTE_BYTES, seq_of

SHARES = 3
Pushed = dict[int, list[int]]
"""The messages that each client gets."""


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    with closing(Dispatcher()) as made:
        yield made
    forget_indexes()


def taken(dispatcher: Dispatcher) -> Pushed:
    """What has been pushed since the last call."""
    found: Pushed = defaultdict(list)
    for push in dispatcher.pushes:
        for at in range(0, len(push.clients), ROUTE_BYTES):
            client = int.from_bytes(push.clients[at : at + CLIENT_ID_BYTES])
            found[client].append(seq_of(push.msg_id) or 0)
    dispatcher.pushes.clear()
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HubProcess, Pushed, Path]]:
    """A hub, what its own matcher sent to whom, and a folder with tables of its subscriptions."""
    folder = tmp_path_factory.mktemp("tables")
    with HubProcess.start(tmp_path_factory.mktemp("hub")) as hub:
        yield hub, play(hub, SubscriptionTables(Folder.at(str(folder)))), folder
        close_links()


def play(hub: HubProcess, tables: SubscriptionTables) -> Pushed:
    """Clients change their minds between messages, often several times; sometimes everything is sealed."""
    random = Random(8)
    with ExitStack() as stack:
        link = stack.enter_context(linked(hub))
        witness = stack.enter_context(closing(Client(hub, 99, x=(0, 99))))
        clients = {
            number: stack.enter_context(closing(Client(hub, number, x=(0, 49)))) for number in range(1, 9)
        }
        until(lambda: status(hub)["subscribers"]["subscriptions"] == 9)
        tables.add(link.subscriptions())
        wanting, count, last = set(clients), 0, 0
        for turn in range(60):
            for _ in range(random.randrange(4)):
                number, before = random.choice(list(clients)), entries(link)
                if number in wanting and random.random() < 0.2:
                    wanting.remove(number)
                    clients[number].subscribe()
                else:
                    wanting.add(number)
                    low = random.uniform(0, 90)
                    clients[number].subscribe(x=(low, low + random.uniform(0, 60)))
                until(lambda before=before: entries(link) > before)  # type: ignore[misc]
            if turn == 30:
                tables.add(link.subscriptions())
            if turn % 20 == 19:
                seal(hub)
            more = random.choice([1, 1, 2, 7])
            last = publish(hub, count + 1, count + more)
            count += more
            # The hub takes a change up at once, and may have messages of before it still to match.
            until(lambda count=count: len(witness.got) == count)  # type: ignore[misc]
        assert last == count
        for client in clients.values():
            client.ping()
        return {
            number: [seq for seq, _ in client.got] for number, client in [*clients.items(), (99, witness)]
        }


def entries(link: Any) -> int:
    return sum(rows.num_rows for rows in link.entries(0, link.head().head, topic=ENTRIES))


def fleet(hub: HubProcess, dispatcher: Dispatcher, tables: Path, **options: str) -> tuple[Fleet, LogRange]:
    """The fleet, and all that is in the log."""
    with linked(hub) as link:
        extent = link.head()
    given = parse_source_options({"servers": hub.doors["tube_tcp"], **options}, stream=True)
    span = LogRange(extent.log, extent.path, 1, extent.head)
    return Fleet(given, dispatcher.door, str(tables), SHARES), span


def edges_of(random: Random, span: LogRange, cuts: int) -> list[LogRange]:
    """Cut a range at random places."""
    places = range(span.first + 1, span.last + 1)
    edges = sorted({span.first, *random.sample(places, min(cuts, len(places))), span.last + 1})
    return [span._replace(first=first, last=end - 1) for first, end in itertools.pairwise(edges)]


def run(fleet: Fleet, *ranges: LogRange) -> BatchFacts:
    """Do what Spark does with a micro-batch of several ranges, in any order."""
    blocks = pa.Table.from_batches(
        [rows for each in ranges for rows in match_range(fleet, each, fleet.shares)]
    )
    told = []
    for share in range(fleet.shares):
        own = blocks.filter(pc.equal(blocks["share"], share)).sort_by("seq")
        told += [row for rows in push_blocks(fleet, own.to_batches()) for row in rows.to_pylist()]
    facts = batch_facts(told)
    assert facts is not None
    return facts


@pytest.mark.parametrize("files", ["true", "false"])
@pytest.mark.parametrize("cuts", [0, 1, 20, 1000])
def test_pushes_are_those_of_the_hubs_own_matcher(
    played: tuple[HubProcess, Pushed, Path], dispatcher: Dispatcher, cuts: int, files: str
) -> None:
    """Each client gets its messages in their order, though every range is matched alone, the last one perhaps first."""
    hub, expected, tables = played
    fleet_, whole = fleet(hub, dispatcher, tables, files=files)
    random = Random(cuts)
    for span in edges_of(random, whole, cuts):
        ranges = edges_of(random, span, random.randrange(4))
        random.shuffle(ranges)
        facts = run(fleet_, *ranges)
        assert sum(each.read for each in facts.ranges) == span.last - span.first + 1
        assert facts.last == span.last
    assert taken(dispatcher) == {who: seqs for who, seqs in expected.items() if seqs}


def test_a_task_that_is_done_again_pushes_the_same(
    played: tuple[HubProcess, Pushed, Path], dispatcher: Dispatcher
) -> None:
    """The process may have kept the index of after the range, or of long before it."""
    hub, expected, tables = played
    fleet_, whole = fleet(hub, dispatcher, tables)
    random = Random(9)
    for _ in range(40):
        first = random.randrange(1, whole.last + 1)
        span = whole._replace(first=first, last=min(first + random.choice([0, 1, 5, 100]), whole.last))
        within = {
            who: [seq for seq in seqs if span.first <= seq <= span.last] for who, seqs in expected.items()
        }
        wanted = {who: seqs for who, seqs in within.items() if seqs}
        run(fleet_, *edges_of(random, span, 2))
        assert taken(dispatcher) == wanted
        alone = pa.RecordBatch.from_pylist([span._asdict()])
        assert sum(rows["pushes"][0].as_py() for rows in match_and_push(fleet_, [alone])) > 0 or not wanted
        assert taken(dispatcher) == wanted


def test_ranges_that_leave_a_hole_are_not_marked(
    played: tuple[HubProcess, Pushed, Path], dispatcher: Dispatcher
) -> None:
    hub, _, tables = played
    fleet_, span = fleet(hub, dispatcher, tables)
    with pytest.raises(LostRangeError, match="messages 11 to 20 are lost: no task has matched them"):
        run(fleet_, span._replace(last=10), span._replace(first=21))


def test_a_range_that_the_hub_does_not_have_is_lost(
    played: tuple[HubProcess, Pushed, Path], dispatcher: Dispatcher
) -> None:
    hub, _, tables = played
    fleet_, span = fleet(hub, dispatcher, tables, patience="0")
    with pytest.raises(LostRangeError, match="the log now ends before them"):
        run(fleet_, span._replace(last=span.last + 5))


@pytest.mark.parametrize("changed", [False, True])
def test_entries_that_retention_removed_are_missed_and_messages_are_not(
    dispatcher: Dispatcher, tmp_path: Path, changed: bool
) -> None:
    """The share's last message is gone, and with it perhaps a change after it, though nothing unmatched is."""
    tables = SubscriptionTables(Folder.at(str(tmp_path / "tables")))
    with (
        HubProcess.start(tmp_path / "hub", "log.retain_bytes=28000") as hub,
        linked(hub) as link,
        closing(Client(hub, 1, x=(0, 49))) as client,
    ):
        until(lambda: status(hub)["subscribers"]["subscriptions"] == 1)
        tables.add(link.subscriptions())
        before = entries(link)
        publish_large(link)
        fleet_, first = fleet(hub, dispatcher, tmp_path / "tables")
        assert run(fleet_, first).pushed == 1
        if changed:
            client.subscribe(x=(50, 99))
            until(lambda: entries(link) > before)
        seal(hub)
        publish_large(link)
        seal(hub)
        until(lambda: link.head().first == 2)
        second = first._replace(first=2, last=2)
        if changed:
            with pytest.raises(LostRangeError, match="to 1 are lost: retention removed them"):
                run(fleet_, second)
            # A newer table has the change.
            tables.add(link.subscriptions())
            publish_large(link)
            assert run(fleet_, first._replace(first=3, last=3)).pushed == 0
        else:
            assert run(fleet_, second).pushed == 1
    close_links()


def publish_large(link: Any) -> None:
    link.publish(b"large", attributes={"padding": os.urandom(10_000).hex()}, numbers={"x": 7})
