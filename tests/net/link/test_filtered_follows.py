"""Many filtered follows: equal filters are evaluated once, a turn of the event loop filters little, and all are right.

And shares of the readers: reads of ranges wait for each other, consumers do not wait for them.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
import pytest
from tests.net.linkpeer import PUBLISHED, Head, LinkPeer, link_peer, opened, rows
from tests.net.raw import until

from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.log.topics.found import Found
from headrace.net.link.streams import rounds as stream_rounds
from headrace.net.server.machine.reader_threads import BULK
from headrace.net.server.process import Server

CITIES = 60


class Applied:
    """How often filters were applied to rows, and where."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.by_thread: Counter[str] = Counter()
        self.by_filter: Counter[Filter] = Counter()
        self.turns: list[int] = []
        apply, next_turn = Filter.apply, stream_rounds.FilterBudget._next_turn

        def counted(wanted: Filter, batch: pa.RecordBatch) -> pa.RecordBatch:
            self.by_thread[threading.current_thread().name.rpartition("_")[0]] += 1
            self.by_filter[wanted] += 1
            return apply(wanted, batch)

        def ended(budget: stream_rounds.FilterBudget) -> None:
            self.turns.append(budget.spent)
            next_turn(budget)

        patch.setattr(Filter, "apply", counted)
        patch.setattr(stream_rounds.FilterBudget, "_next_turn", ended)

    @property
    def on_the_loop(self) -> int:
        return self.by_thread[""]


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Applied:
    return Applied(monkeypatch)


def commit(number: int) -> bytes:
    """A body of messages that differ: one for each city."""
    parts = [rows(b"%d" % number, city=str(city)) for city in range(CITIES)]
    tables = [pa.ipc.read_record_batch(pa.ipc.read_message(part), PUBLISHED) for part in parts]
    return pa.concat_batches(tables).serialize().to_pybytes()


def where(city: int) -> dict[str, Any]:
    return {"city": {"use": 1, "strval": str(city)}}


async def begin(peer: LinkPeer, streams: dict[int, dict[str, Any]]) -> None:
    for number, wanted in streams.items():
        await peer.say(op="follow", id=number, **wanted)
    for _ in streams:
        head, _ = await peer.hear()
        assert head["event"] == "at"


async def collect(peer: LinkPeer, streams: int, last: int) -> dict[int, list[int]]:
    """The messages that each stream brings, until all have come to ``last``."""
    got: dict[int, list[int]] = {}
    reached: dict[int, int] = {}
    while len(reached) < streams or min(reached.values()) < last:
        head: Head
        head, body = await peer.hear()
        place = head["seq"] if head["event"] == "at" else head["last"]
        if head["event"] == "rows":
            got.setdefault(head["id"], []).extend(message.seq for message in opened(body))
        reached[head["id"]] = max(place, reached.get(head["id"], 0))
    return got


async def test_equal_filters_are_evaluated_once(
    server: Server, peer: LinkPeer, stack: AsyncExitStack, applied: Applied
) -> None:
    followers = [await stack.enter_async_context(link_peer(server)) for _ in range(4)]
    for follower in followers:
        await begin(follower, {number: {"where": where(7)} for number in range(1, 64)})
    for number in range(5):
        assert (await peer.ask(commit(number), op="publish", id=1))["ok"]
    expected = [number * CITIES + 8 for number in range(5)]
    for follower in followers:
        got = await collect(follower, 63, expected[-1])
        assert list(got.values()) == [expected] * 63
    # 252 streams, five commits. The loop and a thread may do the same at once, or a reader may come late.
    assert sum(applied.by_filter.values()) <= 3 * 5


async def test_a_turn_filters_little_however_many_filters_there_are(
    server: Server, peer: LinkPeer, stack: AsyncExitStack, applied: Applied
) -> None:
    followers = [await stack.enter_async_context(link_peer(server)) for _ in range(4)]
    for place, follower in enumerate(followers):
        wanted = {
            n: {"topic": f"**{place}-{n}" if n > 60 else None, "where": where(n - 1)} for n in range(1, 64)
        }
        await begin(follower, wanted)
    for number in range(5):
        assert (await peer.ask(commit(number), op="publish", id=1))["ok"]
    for follower in followers:
        got = await collect(follower, 63, 5 * CITIES)
        assert got == {n: [number * CITIES + n for number in range(5)] for n in range(1, CITIES + 1)}
    assert applied.turns
    assert max(applied.turns) <= stream_rounds.TURN
    assert applied.on_the_loop <= len(applied.turns) * stream_rounds.TURN / 100
    assert applied.by_thread["headrace-filter"] > 0


async def test_reads_of_ranges_hold_up_no_consumer(server: Server, peer: LinkPeer) -> None:
    hold, begun = threading.Event(), threading.Semaphore(0)

    def occupy() -> None:
        begun.release()
        hold.wait(20)

    try:
        for _ in range(BULK):
            server.readers.bulk.submit(occupy)
        await until(lambda: begun.acquire(blocking=False))
        async with link_peer(server) as reader, link_peer(server) as member:
            assert (await peer.ask(rows(b"a", b"b"), op="publish", id=1))["ok"]
            for number in range(2, 60):
                await reader.say(op="read", id=number, first=1, topic="x*")
            await member.ask(op="follow", id=2, **{"from": 1}, consumer="c")
            _, body = await member.hear()
            assert [message.payload for message in opened(body)] == [b"a", b"b"]
    finally:
        hold.set()


async def test_what_waits_for_a_client_that_has_gone_is_not_read(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, finds = threading.Event(), 0
    find = Log.find

    def counted(log: Log, *arguments: Any) -> Found:
        nonlocal finds
        finds += 1
        return find(log, *arguments)

    monkeypatch.setattr(Log, "find", counted)
    assert (await peer.ask(rows(b"a", topic="t"), op="publish", id=1))["ok"]
    for _ in range(BULK):
        server.readers.bulk.submit(hold.wait, 20)
    try:
        async with link_peer(server) as reader:
            for number in range(2, 60):
                await reader.say(op="read", id=number, first=1, topic="t")
            await reader.ask(op="head", id=1)
        await until(lambda: server.status()["connections"] == 1)
    finally:
        hold.set()
    assert (await peer.stream(op="read", id=3, first=1, topic="t"))[0][0].payload == b"a"
    assert finds == 1
