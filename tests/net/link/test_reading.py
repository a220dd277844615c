"""Reading and following over the link: ranges, filters, credit, and the state that can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event, Thread, current_thread, main_thread
from typing import Any

import pytest
from tests.net.linkpeer import LinkPeer, delivered, fill, link_peer, opened, refused, rows
from tests.net.raw import SECONDS, until

from headrace.errors import StorageError
from headrace.hub.consumers.group import ConsumerFilter
from headrace.hub.filters import Filter
from headrace.hub.routing import subscriptions
from headrace.log import Log
from headrace.log.proof.chain import Chain
from headrace.log.snapshots import snapshot
from headrace.matching.row_filter import RowFilter
from headrace.message import SCHEMA, Batch, Run
from headrace.net.link.operations import consumers
from headrace.net.link.streams import open_streams, row_bodies
from headrace.net.server.process import Server
from headrace.wire.link.message import SUBSCRIPTIONS, rows_of
from headrace.wire.link.plain_rows import published_body


@pytest.mark.parametrize("sealed", [False, True])
async def test_read_brings_the_range(server: Server, peer: LinkPeer, sealed: bool) -> None:
    await fill(peer, 1000)
    if sealed:
        assert await server.maintenance.seal() == 1
    for first, last in ((1, None), (1, 1000), (17, 18), (500, 999), (1000, 5000), (1001, None), (7, 6)):
        before = delivered(server)
        got, heads = await peer.stream(op="read", id=3, first=first, last=last)
        assert delivered(server) - before == len(got)
        expected = range(first, min(last or 1000, 1000) + 1)
        assert [m.seq for m in got] == list(expected)
        assert [m.payload for m in got] == [b"%010d" % (seq - 1) for seq in expected]
        assert heads[-1] == {"id": 3, "ok": True, "next": max(first, (expected[-1] + 1) if expected else 0)}


async def test_sealed_rows_travel_as_they_lie_on_disk(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 1000)
    await server.maintenance.seal()
    await peer.say(op="read", id=1, first=400)
    head, body = await peer.hear()
    assert (head["first"], head["last"]) == (400, 1000)
    assert body == server.hub.log.segments[0].message(0).tobytes()  # type: ignore[union-attr]


async def test_of_a_sealed_batch_a_few_rows_travel_alone(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 1000)
    await server.maintenance.seal()
    await peer.say(op="read", id=1, first=400, last=402)
    _, body = await peer.hear()
    assert [m.seq for m in opened(body)] == [400, 401, 402]


async def test_read_crosses_from_sealed_to_open(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 300)
    await server.maintenance.seal()
    await fill(peer, 300)
    got, _ = await peer.stream(op="read", id=1, first=1)
    assert [m.seq for m in got] == list(range(1, 601))


async def test_trimmed_ranges_are_named(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 10)
    await server.maintenance.seal()
    await fill(peer, 10)
    await server.maintenance.snapshot()
    server.hub.log.retain(0, retain_bytes=0, retain_us=None, holds={})
    assert server.hub.log.first == 11
    for head in ({"op": "read", "first": 3, "last": 12}, {"op": "follow", "from": 3}):
        answer = await peer.ask(id=1, **head)
        assert (answer["error"], answer["first"], answer["oldest"]) == ("trimmed", 3, 11)
    assert (await peer.ask(op="holds", id=1, name="h", seq=3))["error"] == "trimmed"


async def test_a_very_long_row_passes(server: Server, peer: LinkPeer) -> None:
    for payload in (b"small", b"x" * ((8 << 20) - 1), b"small"):
        server.hub.submit(Batch(Run.one(payload), origin="attribute"))
    await until(lambda: server.hub.log.head == 3)
    got, _ = await peer.stream(op="read", id=1, first=1)
    assert [len(m.payload) for m in got] == [5, (8 << 20) - 1, 5]


async def test_credit_bounds_what_is_under_way(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_bodies, "ROWS_BYTES", 2000)
    await fill(peer, 200, size=1000, per=1)
    await peer.say(op="read", id=1, first=1, credit=10_000)
    sizes = []
    while sum(sizes) < 8_000:
        _, body = await peer.hear()
        sizes.append(len(body))
    # The hub says nothing more before it is granted something: an answer comes next, not rows.
    assert (await peer.ask(op="head", id=2))["id"] == 2
    assert sum(sizes) <= 10_000
    await peer.say(op="more", id=1, bytes=sizes[0])
    assert (await peer.hear())[0]["event"] == "rows"
    assert (await peer.ask(op="cancel", id=1)) == {"id": 1, "ok": True, "cancelled": True}
    await peer.say(op="more", id=1, bytes=10)  # too late, and no harm
    await peer.say(op="cancel", id=1)
    assert (await peer.ask(op="head", id=1))["ok"]


async def test_filters(server: Server, peer: LinkPeer) -> None:
    for topic in ("a/b", "a/c", "b"):
        for colour in ("red", "blue"):
            await peer.ask(rows(b"x", topic=topic, colour=colour), op="publish", id=1)
    await peer.ask(op="holds", id=1, name="a/b", seq=1)
    red = {"colour": {"use": 1, "strval": "red"}}
    for sealed in (False, True):
        if sealed:
            await server.maintenance.seal()
        for head, expected in (
            ({"topic": "a/*"}, [1, 2, 3, 4]),
            ({"topic": "a/*", "where": red}, [1, 3]),
            ({"where": red}, [1, 3, 5]),
            ({"topic": "**"}, [1, 2, 3, 4, 5, 6]),
            ({"origin": "log"}, []),
            ({"origin": ["tube", "log"], "topic": "b"}, [5, 6]),
            ({"topic": "nothing"}, []),
            ({}, [1, 2, 3, 4, 5, 6]),
        ):
            before = delivered(server)
            got, heads = await peer.stream(op="read", id=1, first=1, **head)
            assert [m.seq for m in got] == expected
            assert delivered(server) - before == len(expected)
            assert heads[-1]["next"] == 7


MANY = 170_000
NAMED = {"publisher": "the thermometers of the house by the river", "number": 1}
"""So many messages of four bytes under this name are little to publish, and as rows more than a tube carries."""


@pytest.mark.parametrize("wanted", [{}, {"topic": "sensors/*"}])
async def test_a_large_commit_of_small_messages_reaches_those_who_follow(
    server: Server, peer: LinkPeer, wanted: dict[str, str]
) -> None:
    assert (await peer.ask(op="follow", id=1, **wanted))["event"] == "at"
    async with link_peer(server) as writer:
        large = published_body([b"21.5"] * MANY, "sensors/temperature")
        assert (await writer.ask(large, op="publish", id=1, **NAMED))["ok"]
        assert (await writer.ask(rows(b"!", topic="sensors/x"), op="publish", id=1))["ok"]
    reached = count = 0
    while reached < MANY + 1:
        head, body = await peer.hear()
        if head["event"] == "rows":
            assert head["first"] == reached + 1
            count += rows_of(body, SCHEMA).num_rows
            reached = head["last"]
            await peer.say(op="more", id=1, bytes=len(body))
    assert count == delivered(server) == MANY + 1


async def test_who_cannot_be_sent_an_event_is_told_and_hung_up(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_bodies, "MERGED_BYTES", 1000 << 20)
    await peer.ask(op="follow", id=1)
    async with link_peer(server) as writer:
        large = published_body([b"21.5"] * MANY, "sensors/temperature")
        assert (await writer.ask(large, op="publish", id=1, **NAMED))["ok"]
        head, _ = await peer.hear()
        assert (head["id"], head["error"]) == (1, "limit")
        assert await peer.gone()
    assert refused(server, "limit") == 1


@pytest.mark.parametrize("wanted", [None, Filter("**")])
async def test_few_bytes_that_are_many_as_rows_are_read_a_few_at_a_time(
    server: Server, wanted: Filter | None
) -> None:
    _submit_long_topics(server)
    piece = row_bodies.read_piece(server.hub.log, 1, server.hub.log.head, wanted)
    assert piece.body is not None
    assert piece.rows == piece.last
    assert 0 < memoryview(piece.body).nbytes < 8 << 20


async def test_a_consumer_is_read_such_a_few_at_a_time_too(server: Server, peer: LinkPeer) -> None:
    assert (await peer.ask(op="follow", id=1, consumer="c"))["event"] == "at"
    _submit_long_topics(server)
    (consumer,) = server.consumers
    log = server.hub.log
    found = consumers.find(log, 1, log.head, ConsumerFilter(consumer), 1 << 20)
    assert found.body is not None
    assert 0 < found.rows.num_rows < 100


def _submit_long_topics(server: Server) -> None:
    """Messages without payloads whose topics fill more than 2 GiB once each row says its own."""
    for _ in range(15):
        server.hub.submit(Batch(Run.of([b""] * 3000), origin="tube", topic="t" * 65_535))
    server.hub.take_turn()


@pytest.mark.parametrize("door", ["tube_tcp", "tube_ws"])
async def test_follow_has_no_seam_between_log_and_live(server: Server, door: str) -> None:
    async with link_peer(server) as writer, link_peer(server, door) as reader:
        await fill(writer, 250)
        await reader.say(op="follow", id=1, **{"from": 101})
        writing = asyncio.ensure_future(fill(writer, 2000, per=7))
        expected, seen = 101, 0
        assert (await reader.hear())[0] == {"id": 1, "event": "at", "seq": 100}
        while expected <= 2250:
            head, body = await reader.hear()
            assert head["first"] == expected
            seen += sum(head["first"] <= m.seq <= head["last"] for m in opened(body))
            expected = head["last"] + 1
            await reader.say(op="more", id=1, bytes=len(body))
        await writing
        assert seen == delivered(server) == 2150


async def test_follow_from_now_and_from_a_time(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 10, per=5)
    middle = server.hub.log.read(6)[0].time
    assert (await peer.ask(op="follow", id=1)) == {"id": 1, "event": "at", "seq": 10}
    await peer.say(op="follow", id=2, time=middle)
    assert (await peer.hear())[0] == {"id": 2, "event": "at", "seq": 5}
    head, _ = await peer.hear()
    assert (head["id"], head["first"], head["last"]) == (2, 6, 10)
    await peer.say(rows(b"new"), op="publish", id=3)
    heard = [(await peer.hear())[0] for _ in range(3)]
    assert sorted(h["id"] for h in heard) == [1, 2, 3]
    assert all(h["first"] == 11 for h in heard)


async def test_a_filter_says_how_far_it_has_come(server: Server, peer: LinkPeer) -> None:
    assert (await peer.ask(op="follow", id=1, topic="rare"))["event"] == "at"
    async with link_peer(server) as writer:
        await fill(writer, 50)
        assert (await peer.hear())[0] == {"id": 1, "event": "at", "seq": 50}
        await writer.ask(rows(b"!", topic="rare"), op="publish", id=1)
    head, body = await peer.hear()
    assert [m.seq for m in opened(body)] == [51]
    assert head["last"] == 51
    assert delivered(server) == 1


async def test_the_kernels_of_a_filter_are_loaded_off_the_event_loop(
    peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that routes nothing has not loaded them, and compiling them takes seconds."""
    threads: list[Thread] = []
    plainly = Filter._attributes

    def watched(self: Filter) -> RowFilter:
        if self._row_filter is None:
            threads.append(current_thread())
        return plainly(self)

    monkeypatch.setattr(Filter, "_attributes", watched)
    assert (await peer.ask(op="follow", id=1, where={"kind": {"use": 1, "strval": "a"}}))["event"] == "at"
    for seq, kind in enumerate("aba", 1):
        await peer.say(rows(b"!", kind=kind), op="publish", id=2)
        heard = [await peer.hear() for _ in range(2 if kind == "a" else 1)]
        assert [m.seq for _, body in heard if body for m in opened(body)] == [seq] * (kind == "a")
    assert len(threads) == 1
    assert threads != [main_thread()]


async def test_a_follow_whose_tube_is_gone_leaves_nothing(server: Server) -> None:
    link: Any = server._doors[-1]
    async with link_peer(server) as peer:
        await peer.ask(op="follow", id=1)
        assert link.facts() == {"tube": 1, "tube_streams": 1}
    await until(lambda: not link.facts()["tube"])
    assert link._cache.readers == 0
    await until(lambda: not server.connections)


async def test_snapshot_is_the_state_now(server: Server, peer: LinkPeer) -> None:
    await peer.ask(rows(b"a"), op="publish", id=1, publisher="p", number=4)
    await peer.ask(op="holds", id=1, name="job", seq=1)
    await peer.say(op="snapshot", id=1)
    data = b""
    while True:
        head, body = await peer.hear()
        if "event" not in head:
            break
        data += body
    assert (head["seq"], head["size"]) == (1, len(data))
    taken = snapshot.parse(data)
    assert (taken.uuid, taken.op, taken.seq) == (server.hub.log.uuid, 2, 1)
    sections = dict(taken.sections)
    assert Chain.parse(sections.pop("chain"), "section") == server.hub.log.chain.at(1)
    assert sections == server.hub.state.sections()


async def test_the_chain_covers_everything_committed(server: Server, peer: LinkPeer) -> None:
    log = server.hub.log
    for _ in range(2):
        await fill(peer, 1000)
        await peer.say(op="chain", id=1)
        (event, data), (end, _) = await peer.hear(), await peer.hear()
        assert (event["event"], event["at"]) == ("chain", 0)
        assert (end["seq"], end["size"]) == (log.head, len(data))
        rows = (each.to_arrow() for each in log.scan(1))
        assert Chain.parse(data, "answer") == Chain(log.uuid).extended(rows, log.head)
        assert await server.maintenance.seal() == 1


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Snapshots are packed only once this is set."""
    may = Event()

    def packed(log: Log, taken: snapshot.FrozenState) -> bytes:
        may.wait(SECONDS)
        return snapshot.packed(log.uuid, taken)

    monkeypatch.setattr(Log, "packed_snapshot", packed)
    yield may
    may.set()


async def test_one_snapshot_at_a_time_is_packed_for_a_tube(
    server: Server, peer: LinkPeer, packing: Event
) -> None:
    await peer.say(op="snapshot", id=1)
    refusal = await peer.ask(op="snapshot", id=2)
    assert (refusal["id"], refusal["error"], refusal["limit"]) == (2, "busy", 1)
    async with link_peer(server) as other:
        await other.say(op="snapshot", id=1)
        packing.set()
        assert (await other.hear())[0]["event"] == "snapshot"
    assert [(await peer.hear())[0].get("event") for _ in range(2)] == ["snapshot", None]
    assert (await peer.ask(op="snapshot", id=3))["event"] == "snapshot"


async def test_a_snapshot_that_cannot_be_packed_is_not_the_last(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise StorageError("no room for it")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "packed_snapshot", failing)
        assert (await peer.ask(op="snapshot", id=1))["error"] == "storage"
    assert (await peer.ask(op="snapshot", id=1))["event"] == "snapshot"


async def test_a_snapshot_is_a_stream_too_many_even_when_it_is_packed_late(
    server: Server, peer: LinkPeer, packing: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_streams, "MAX_STREAMS", 1)
    await peer.say(op="snapshot", id=1)
    assert (await peer.ask(op="follow", id=2))["event"] == "at"
    packing.set()
    refusal, _ = await peer.hear()
    assert (refusal["id"], refusal["error"]) == (1, "busy")


async def test_subscriptions_come_as_rows_of_the_matchers_table(server: Server, peer: LinkPeer) -> None:
    fields = {"x": '{"use":2,"low":0.0,"high":9.0}'}
    for number in range(2500):
        server.hub.submit(subscriptions.subscribe(number.to_bytes(12), b"conn0001", fields))
    server.hub.take_turn()
    await peer.say(op="subscriptions", id=1, credit=1)
    found, ats = [], []
    while True:
        head, body = await peer.hear()
        if "event" not in head:
            break
        ats.append(head["at"])
        found += rows_of(body, SUBSCRIPTIONS).to_pylist()
        await peer.say(op="more", id=1, bytes=1 << 20)
    assert ats == [0, 1024, 2048]
    assert head == {"id": 1, "ok": True, "head": 0, "op": 2500}
    assert len(found) == 2500
    assert found[7] == {
        "client": f"{7:024x}",
        "connector": "conn0001",
        "seq": 0,
        "op": 8,
        "name": "",
        "fields": list(fields.items()),
    }


async def test_no_subscriptions_are_no_rows(server: Server, peer: LinkPeer) -> None:
    assert await peer.ask(op="subscriptions", id=1) == {"id": 1, "ok": True, "head": 0, "op": 0}


async def test_head_tells_how_far_messages_operations_and_bytes_reach(server: Server, peer: LinkPeer) -> None:
    for _ in range(3):
        await peer.ask(rows(b"x" * 1000), op="publish", id=1)
    await peer.ask(op="holds", id=1, name="h", seq=1)
    head = await peer.ask(op="head", id=1, first=1, bytes=2500)
    assert (head["first"], head["head"], head["ops"], head["reach"]) == (1, 3, [1, 4], 2)
    assert "reach" not in await peer.ask(op="head", id=1)
    assert (await peer.ask(op="head", id=1, first=1, bytes=0))["error"] == "malformed"
