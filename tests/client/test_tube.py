"""The link's client against a real hub, with tubes that break when it hurts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.net.raw import SECONDS, running_hub, until

import headrace
from headrace.client import tube_connection
from headrace.client.tube import LinkClient
from headrace.client.tube_rows import published_rows
from headrace.errors import (
    ClosedError,
    RefusedError,
    TrimmedError,
    UnexpectedError,
    UnreachableError,
    UsageError,
)
from headrace.hub import subscriptions
from headrace.log import snapshot
from headrace.net.server import Server
from headrace.wire.link import PUBLISHED
from headrace.wire.predicate import Equals


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_hub(tmp_path / "one", "listen.http=off") as server:
        yield server


@pytest.fixture
async def link(server: Server) -> AsyncIterator[LinkClient]:
    async with client(server) as link:
        yield link


def client(server: Server, **options: Any) -> LinkClient:
    made: LinkClient = headrace.connect(f"tube://{server.doors['tube_tcp']}", **options)
    return made


def break_tubes(server: Server) -> None:
    """Cut every tube off, as a network does."""
    door: Any = server._doors[-1]
    for connection in tuple(door._connections):
        connection.tube.abort()


def payloads(server: Server) -> list[bytes]:
    return [payload for batch in server.hub.log.scan(1) for payload in batch.run]


async def read_all(link: LinkClient, *args: Any, **options: Any) -> list[int]:
    return [seq async for rows in link.read(*args, **options) for seq in rows.column("seq").to_pylist()]


# Connecting


async def test_a_request_that_breaks_every_tube_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tube_connection, "_RESTLESS_MOST_SECONDS", 0.01)
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    async with client(server) as link:
        door: Any = server._doors[-1]
        monkeypatch.setattr(door.operations, "_status", lambda: break_tubes(server) or {})
        monkeypatch.setattr(tube_connection.asyncio, "sleep", noted)
        with pytest.raises(UnreachableError, match="lost 10 times over one request"):
            await link.status()
        assert len([seconds for seconds in slept if seconds]) >= 8
        assert (await link.head()).head == 0


# Publishing and reading


async def test_publish_in_every_form(server: Server, link: LinkClient) -> None:
    assert await link.publish(b"one", topic="t") == (1, 1)
    assert await link.publish([b"two", bytearray(b"three")]) == (2, 3)
    mixed = [{"payload": b"four", "topic": "x", "numbers": {"n": 4}}, b"five"]
    assert await link.publish(mixed, topic="y", attributes={"a": "b"}) == (4, 5)
    assert await link.publish({"payload": b"six"}) == (6, 6)
    assert await link.publish(pa.record_batch({"payload": pa.array([b"seven"], pa.large_binary())})) == (7, 7)
    assert await link.publish(pa.table({"payload": [b"8"], "topic": ["z"]})) == (8, 8)
    got = [m async for m in _some(link.follow(from_seq=1), 8)]
    assert [m.payload for m in got] == [b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"8"]
    assert [m.topic for m in got] == ["t", "", "", "x", "y", "", "", "z"]
    assert (got[3].attributes, got[3].numbers) == ({"a": "b"}, {"n": 4.0})
    assert [m.number for m in got] == list(range(8))


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        [7],
        [None],
        {"payload": "text"},
        {"load": b""},
        [],
        {"payload": b"", "attributes": {"a": 1}},
        {"payload": b"", "numbers": {"a": "x"}},
        pa.record_batch({"seq": [1]}),
        pa.record_batch({"payload": [[1]]}),
    ],
)
async def test_what_cannot_be_published_is_said_so(link: LinkClient, wrong: Any) -> None:
    with pytest.raises(UsageError):
        await link.publish(wrong)


@pytest.mark.parametrize("topic", [None, 5, b"orders"])
async def test_a_topic_is_text(link: LinkClient, topic: Any) -> None:
    with pytest.raises(UsageError, match="a topic is text"):
        await link.publish(pa.record_batch({"payload": [b"x"]}), topic=topic)


def test_rows_are_completed() -> None:
    rows = published_rows(pa.table({"payload": [b"a", b"b"]}), "t", {"a": "b"})
    assert rows.schema.equals(PUBLISHED)
    assert rows.column("topic").to_pylist() == ["t", "t"]


async def test_too_much_at_once_fails_alone(link: LinkClient) -> None:
    with pytest.raises(headrace.LimitError):
        await link.publish(bytes(9 << 20))
    assert await link.publish(b"fine") == (1, 1)


async def test_read_and_head(server: Server, link: LinkClient) -> None:
    await link.publish([b"%d" % n for n in range(1000)], topic="a")
    await server.upkeep.seal()
    await link.publish([b"x"], topic="b", attributes={"c": "d"})
    await link.hold("job", 5)
    extent = await link.head()
    assert (extent.log, extent.first, extent.head) == (link.log, 1, 1002)
    assert await read_all(link) == list(range(1, 1002))
    assert await read_all(link, entries=True) == list(range(1, 1003))
    assert await read_all(link, 10, 20) == list(range(10, 21))
    assert await read_all(link, topic="b") == [1001]
    assert await read_all(link, where={"c": Equals("d")}) == [1001]
    assert await read_all(link, where={"c": {"use": 1, "strval": "d"}}) == [1001]
    assert await read_all(link, origin="log") == [1002]
    assert await link.holds() == {"job": 5}
    await link.release("job")
    assert await link.holds() == {}
    assert (await link.status())["head"] == 1003
    assert snapshot.parse(await link.snapshot()).seq == 1003
    assert await link.services() == []


async def test_services_are_created_and_removed(link: LinkClient) -> None:
    await link.create_service("a")
    await link.create_service("b", "last")
    assert [(each["id"], each["kind"]) for each in await link.services()] == [("a", "json"), ("b", "last")]
    with pytest.raises(RefusedError) as refused:
        await link.create_service("a", "last")
    assert refused.value.code == "conflict"
    assert await link.remove_service("a") is True
    assert await link.remove_service("a") is False
    assert [each["id"] for each in await link.services()] == ["b"]
    with pytest.raises(RefusedError) as refused:
        await link.remove_service("never")
    assert refused.value.code == "missing"


async def test_a_hub_of_another_version(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tube_connection, "VERSION", 0)
    with pytest.raises(RefusedError) as refused:
        await client(server).open()
    assert refused.value.code == "version"
    monkeypatch.setattr(tube_connection, "VERSION", 3)
    monkeypatch.setattr(tube_connection, "VERSIONS", (2, 3))
    with pytest.raises(UnexpectedError, match="this client speaks 2, 3"):
        await client(server).open()


async def test_refusals_can_be_branched_on(server: Server, link: LinkClient) -> None:
    with pytest.raises(RefusedError) as refused:
        await link.release("nothing")
    assert refused.value.code == "missing"
    await link.publish([b"x"] * 10)
    await server.upkeep.seal()
    await link.publish(b"y")
    await server.upkeep.snapshot()
    server.hub.log.retain(0, retain_bytes=0, retain_us=None, holds={})
    with pytest.raises(TrimmedError) as trimmed:
        await read_all(link, 3, 5)
    assert (trimmed.value.first, trimmed.value.last, trimmed.value.oldest) == (3, 5, 11)


async def test_a_small_credit_is_enough(server: Server) -> None:
    async with client(server, credit=1000) as link:
        for _ in range(50):
            await link.publish([b"x" * 100] * 20)
        assert await read_all(link) == list(range(1, 1001))


async def test_a_loop_that_is_left_leaves_no_stream(server: Server, link: LinkClient) -> None:
    door: Any = server._doors[-1]
    await link.publish(b"x")
    async for _ in link.follow(from_seq=1):
        break
    await until(lambda: not door.facts()["tube_streams"])
    async with link.follow(from_seq=1) as follow:
        await anext(follow)
    await until(lambda: not door.facts()["tube_streams"])


# Breaking


async def test_publishing_goes_on_when_tubes_break(server: Server, link: LinkClient) -> None:
    publisher = link.publisher(window=5_000)
    acks = []
    for number in range(3000):
        acks.append(await publisher.publish(b"%06d" % number))
        if number % 500 == 250:
            break_tubes(server)
    await publisher.flush()
    seqs = [ack.result().first for ack in acks]
    log = payloads(server)
    assert log == [b"%06d" % number for number in range(3000)]
    assert seqs == list(range(1, 3001))


async def test_a_follow_goes_on_when_tubes_break(server: Server, link: LinkClient) -> None:
    async def write() -> None:
        async with client(server) as writer:
            for number in range(300):
                await writer.publish([b"%d" % number] * 10)
                if number % 60 == 30:
                    break_tubes(server)

    writing = asyncio.ensure_future(write())
    follow = link.follow(from_seq=1)
    assert [m.seq async for m in _some(follow, 3000)] == list(range(1, 3001))
    await writing


async def test_everything_goes_on_behind_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "listen.http=off") as server:
        link = client(server)
        await link.open()
        follow = link.follow()
        assert await follow.begun() == 1
        assert await link.publish(b"before") == (1, 1)
        door = f"listen.tube_tcp={server.doors['tube_tcp']}"
    async with running_hub(tmp_path, "listen.http=off", door):
        assert await link.publish(b"after") == (2, 2)
        assert [m.payload async for m in _some(follow, 2)] == [b"before", b"after"]
        await link.close()


async def test_another_log_is_an_error_that_names_both(tmp_path: Path) -> None:
    async with running_hub(tmp_path / "a", "listen.http=off") as server:
        link = client(server)
        await link.open()
        mine = link.log
        door = f"listen.tube_tcp={server.doors['tube_tcp']}"
    async with running_hub(tmp_path / "b", "listen.http=off", door) as server:
        with pytest.raises(UnexpectedError) as refused:
            await link.head()
        assert mine in str(refused.value)
        assert str(server.hub.log.uuid) in str(refused.value)
        await link.close()


async def test_a_named_publisher_goes_on_where_it_stopped(server: Server) -> None:
    for turn in range(2):
        async with client(server) as link:
            publisher = link.publisher("sensor")
            await (await publisher.publish([b"%d" % turn] * 3))
    numbers = [m.number for batch in server.hub.log.scan(1) for m in batch]
    assert numbers == [0, 1, 2, 3, 4, 5]


async def test_the_next_host_is_tried(server: Server) -> None:
    link: LinkClient = headrace.connect(f"tube://127.0.0.1:9,{server.doors['tube_tcp']}")
    async with link:
        assert (await link.head()).head == 0


async def test_nobody_there() -> None:
    with pytest.raises(UnreachableError):
        async with headrace.connect("tube://127.0.0.1:9", timeout=2.0):
            pass


async def test_patience_ends(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "listen.http=off") as server:
        link = client(server, patience=0.05)
        await link.open()
    with pytest.raises(UnreachableError):
        await link.head()
    with pytest.raises(UnreachableError):
        await link.publish(b"x")
    await link.close()


async def test_after_close_nothing_works(server: Server) -> None:
    link = client(server)
    with pytest.raises(UsageError):
        await link.head()
    await link.open()
    await link.close()
    await link.close()
    with pytest.raises(ClosedError):
        await link.head()
    with pytest.raises(ClosedError):
        await link.publish(b"x")


async def test_auth(tmp_path: Path) -> None:
    who = "0011223344556677889900aa"
    sets = ("listen.http=off", "auth.required=true", f"auth.clients.{who}=secret")
    async with running_hub(tmp_path, *sets) as server:
        async with client(server, client_id=who, key="secret") as link:
            await link.publish(b"x")
            break_tubes(server)
            assert (await link.head()).head == 1
        with pytest.raises(RefusedError) as refused:
            await client(server).open()
        assert refused.value.code == "auth"


async def test_stages(link: LinkClient) -> None:
    stages = [await link.stage("q", 3, [b"a", b"b"]), await link.stage("q", 3, [b"c"], part=1)]
    assert (await link.head()).head == 0
    assert await link.commit("q", 3, stages) == (1, 3)
    assert await link.commit("q", 3, stages) == (1, 3)
    gone = await link.stage("q", 4, [b"d"])
    await link.abort([gone])
    with pytest.raises(RefusedError):
        await link.commit("q", 4, [gone])


def test_without_an_event_loop(tmp_path: Path) -> None:
    from tests.hubprocess import HubProcess

    with HubProcess.start(tmp_path) as hub, headrace.connect_sync(f"tube://{hub.doors['tube_tcp']}") as link:
        assert link.publish([b"a", b"b"]) == (1, 2)
        assert sum(rows.num_rows for rows in link.read()) == 2


async def _some(messages: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    async with asyncio.timeout(SECONDS):
        for _ in range(count):
            yield await anext(messages)


async def test_a_message_longer_than_the_credit_comes_behind_others(link: LinkClient) -> None:
    """The client has taken some of its credit and not yet granted it again when the long one is due."""
    long = bytes(7 << 20)
    async with asyncio.timeout(SECONDS), link.follow() as stream:
        await stream.begun()
        for payload in (bytes(1 << 20), long, bytes(1 << 20), long, b"end"):
            await link.publish(payload)
            assert (await anext(stream)).payload == payload


async def test_what_comes_while_requests_are_under_way_gathers(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    call = tube_connection.Session.call

    def counted(session: Any, make: Any, body: Any = None) -> Any:
        asked.append(make)
        return call(session, make, body)

    monkeypatch.setattr(tube_connection.Session, "call", counted)
    hub = server.hub
    hub.commit_by(lambda tail: None)
    publisher = link.publisher()
    acks = []
    for number in range(1000):
        acks.append(await publisher.publish(b"%d" % number))
        await asyncio.sleep(0)
    assert len(asked) == 4
    await until(lambda: hub.log.tail == 4)
    hub.commit_by(hub.committed)
    hub.committed(4)
    assert [(await ack).first for ack in acks] == list(range(1, 1001))
    assert payloads(server) == [b"%d" % number for number in range(1000)]
    assert len(asked) == 5


async def test_topics_and_shapes_keep_their_order(server: Server, link: LinkClient) -> None:
    publisher = link.publisher()
    mine = [b"b", b"c"]
    acks = [
        await publisher.publish(b"a", topic="t"),
        await publisher.publish(mine, topic="t"),
        await publisher.publish(b"d", topic="u"),
        await publisher.publish(b"e", topic="t", attributes={"k": "v"}),
        await publisher.publish([b"f", bytearray(b"g")], topic="t"),
        await publisher.publish(b"h", topic="t"),
    ]
    mine.append(b"not published")
    assert [tuple(await ack) for ack in acks] == [(1, 1), (2, 3), (4, 4), (5, 5), (6, 7), (8, 8)]
    found = [message for batch in server.hub.log.scan(1) for message in batch]
    assert b"".join(message.payload for message in found) == b"abcdefgh"
    assert [message.topic for message in found] == list("tttutttt")
    assert [dict(message.attributes) for message in found][4] == {"k": "v"}
    assert [message.number for message in found] == list(range(8))


async def test_subscriptions_are_a_table(server: Server, link: LinkClient) -> None:
    client = bytes(range(12))
    server.hub.submit(subscriptions.subscribe(client, b"conn0001", {"city": '{"use":1,"strval":"Oslo"}'}))
    server._turn()
    table = await link.subscriptions()
    assert table.schema.metadata == {b"head": b"1"}
    (row,) = table.to_pylist()
    assert (row["client"], row["connector"]) == (client.hex(), "conn0001")
    assert dict(row["fields"]) == {"city": '{"use":1,"strval":"Oslo"}'}


@pytest.mark.parametrize("live", [True, False])
async def test_a_filter_may_pass_over_much(server: Server, link: LinkClient, live: bool) -> None:
    """Pieces in which nothing passes are not told of; what comes behind them is no surprise."""
    follow = link.follow(from_seq=1, topic="wanted")
    if live:
        await follow.begun()
    for number in range(3):
        for _ in range(3):
            await link.publish([b"other"] * 10, topic="other")
        await link.publish(b"%d" % number, topic="wanted")
    async with asyncio.timeout(SECONDS):
        got = [await anext(follow) for _ in range(3)]
    assert [(message.seq, message.payload) for message in got] == [(31, b"0"), (62, b"1"), (93, b"2")]
    assert follow.cursor == 94
    await follow.aclose()


async def test_a_read_with_a_filter_may_pass_over_much(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.net.link_rows._SCAN_BYTES", 1)
    monkeypatch.setattr("headrace.net.link_rows.ROWS_BYTES", 200)
    for number in range(3):
        await link.publish([bytes(100)] * 10, topic="other")
        await link.publish(b"%d" % number, topic="wanted")
    assert await read_all(link, topic="wanted") == [11, 22, 33]


async def test_what_a_hub_could_not_read_is_not_asked(link: LinkClient) -> None:
    """It would drop the tube, and be asked again over the next one, without end."""
    for ask in (
        lambda: link.read(1 << 70),
        lambda: link.read(1, 1 << 70),
        lambda: link.follow(1 << 70),
        lambda: link.follow(from_time=1.7e18),
        lambda: link.follow(from_time=-1.0),
    ):
        with pytest.raises(UsageError):
            ask()
    with pytest.raises(UsageError, match="no message is of"):
        await link.first_at(1 << 70)
