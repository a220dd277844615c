"""Publishing over the link: rows in every form, in order and once, though tubes break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.client.links import break_tubes, client, payloads, some
from tests.net.raw import SECONDS, running_hub, until

import headrace
from headrace.client.link import publisher as tube_publisher
from headrace.client.link import requests
from headrace.client.link.client import LinkClient
from headrace.client.link.rows import published_rows
from headrace.errors import UsageError
from headrace.net.server.process import Server
from headrace.wire.link.message import PUBLISHED


async def test_publish_in_every_form(server: Server, link: LinkClient) -> None:
    assert await link.publish(b"one", topic="t") == (1, 1)
    assert await link.publish([b"two", bytearray(b"three")]) == (2, 3)
    mixed = [{"payload": b"four", "topic": "x", "numbers": {"n": 4}}, b"five"]
    assert await link.publish(mixed, topic="y", attributes={"a": "b"}) == (4, 5)
    assert await link.publish({"payload": b"six"}) == (6, 6)
    assert await link.publish(pa.record_batch({"payload": pa.array([b"seven"], pa.large_binary())})) == (7, 7)
    assert await link.publish(pa.table({"payload": [b"8"], "topic": ["z"]})) == (8, 8)
    got = [m async for m in some(link.follow(from_seq=1), 8)]
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
        {"payload": b"", "attributes": {"a": True}},
        {"payload": b"", "attributes": {"a": None}},
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


@pytest.mark.parametrize("topic", [None, 5, b"orders", "\udcff"])
@pytest.mark.parametrize("rows", [b"x", [b"x", b"y"], [bytearray(b"x")], {"payload": b"x"}], ids=str)
async def test_a_topic_that_cannot_be_sent_fails_alone(
    server: Server, link: LinkClient, rows: Any, topic: Any
) -> None:
    async with asyncio.timeout(SECONDS):
        publisher = link.publisher()
        good = [await publisher.send(b"before")]
        with pytest.raises(UsageError, match="a topic is text"):
            await publisher.publish(rows, topic=topic)
        good.append(await publisher.send(b"behind"))
        assert [(await ack).first for ack in good] == [1, 2]
        await publisher.flush()


async def test_a_publisher_is_named_in_text(link: LinkClient) -> None:
    with pytest.raises(UsageError, match="a publisher's name is text"):
        link.publisher("\udcff")
    with pytest.raises(UsageError, match="an origin is text"):
        link.publisher(origin="\udcff")


async def test_rows_that_cannot_be_encoded_fail_alone(
    link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = tube_publisher.published_body

    def encoded(payloads: Any, topic: str) -> bytes:
        if topic == "too much":
            raise MemoryError
        return encode(payloads, topic)

    monkeypatch.setattr(tube_publisher, "published_body", encoded)
    async with asyncio.timeout(SECONDS):
        publisher = link.publisher()
        topics = ("a", "too much", "b")
        before, failing, behind = [await publisher.send(b"x", topic=topic) for topic in topics]
        assert [(await ack).first for ack in (before, behind)] == [1, 2]
        with pytest.raises(MemoryError):
            await failing
        await publisher.flush()


def test_rows_are_completed() -> None:
    rows = published_rows(pa.table({"payload": [b"a", b"b"]}), "t", {"a": "b"})
    assert rows.schema.equals(PUBLISHED)
    assert rows.column("topic").to_pylist() == ["t", "t"]


async def test_too_much_at_once_fails_alone(link: LinkClient) -> None:
    with pytest.raises(headrace.LimitError):
        await link.publish(bytes(9 << 20))
    assert await link.publish(b"fine") == (1, 1)


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[Server]:
    """A hub that takes short messages only."""
    async with running_hub(tmp_path, "listen.http=off", "limits.message_bytes=1000") as server:
        yield server


async def test_behind_a_refused_message_the_next_are_taken_though_others_are_under_way(
    strict: Server,
) -> None:
    hub = strict.hub
    hub.commit_by(lambda tail: None)
    async with client(strict) as link, asyncio.timeout(SECONDS):
        publisher = link.publisher()
        before = await publisher.send(b"before")
        await until(lambda: hub.log.tail == 1)
        with pytest.raises(headrace.RefusedError) as refused:
            await publisher.publish(bytes(1001))
        assert refused.value.code == "limit"
        behind = []
        for number in range(3):
            behind.append(await publisher.send(b"%d" % number, topic=f"{number}"))
            await asyncio.sleep(0)
        hub.commit_by(hub.committed)
        hub.committed(1)
        assert [(await ack).first for ack in (before, *behind)] == [1, 2, 3, 4]
    assert payloads(strict) == [b"before", b"0", b"1", b"2"]


async def test_what_is_refused_is_not_in_the_log_and_all_else_is_when_tubes_break(strict: Server) -> None:
    async with client(strict) as link, asyncio.timeout(SECONDS):
        publisher = link.publisher(window=2_000)
        acks = []
        for number in range(400):
            payload = bytes(1001) if number % 70 == 50 else b"%06d" % number
            acks.append((payload, await publisher.send(payload, topic=f"{number % 3}")))
            if number in (50, 122, 197):
                break_tubes(strict)
        await publisher.flush()
    taken = [(ack.result().first, payload) for payload, ack in acks if ack.exception() is None]
    assert [payload for _, payload in taken] == payloads(strict)
    assert [seq for seq, _ in taken] == list(range(1, len(taken) + 1))


async def test_publishing_goes_on_when_tubes_break(server: Server, link: LinkClient) -> None:
    publisher = link.publisher(window=5_000)
    acks = []
    for number in range(3000):
        acks.append(await publisher.send(b"%06d" % number))
        if number % 500 == 250:
            break_tubes(server)
    await publisher.flush()
    seqs = [ack.result().first for ack in acks]
    log = payloads(server)
    assert log == [b"%06d" % number for number in range(3000)]
    assert seqs == list(range(1, 3001))


async def test_a_named_publisher_goes_on_where_it_stopped(server: Server) -> None:
    for turn in range(2):
        async with client(server) as link:
            publisher = link.publisher("sensor")
            await publisher.publish([b"%d" % turn] * 3)
    numbers = [m.number for batch in server.hub.log.scan(1) for m in batch]
    assert numbers == [0, 1, 2, 3, 4, 5]


async def test_what_comes_while_requests_are_under_way_gathers(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ask = requests.LinkSession.ask

    def counted(session: Any, request: Any, answered: Any, body: Any = None) -> bool:
        asked.append(request)
        return ask(session, request, answered, body)

    monkeypatch.setattr(requests.LinkSession, "ask", counted)
    hub = server.hub
    hub.commit_by(lambda tail: None)
    publisher = link.publisher()
    acks = []
    for number in range(1000):
        acks.append(await publisher.send(b"%d" % number))
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
        await publisher.send(b"a", topic="t"),
        await publisher.send(mine, topic="t"),
        await publisher.send(b"d", topic="u"),
        await publisher.send(b"e", topic="t", attributes={"k": "v"}),
        await publisher.send([b"f", bytearray(b"g")], topic="t"),
        await publisher.send(b"h", topic="t"),
    ]
    mine.append(b"not published")
    assert [tuple(await ack) for ack in acks] == [(1, 1), (2, 3), (4, 4), (5, 5), (6, 7), (8, 8)]
    found = [message for batch in server.hub.log.scan(1) for message in batch]
    assert b"".join(message.payload for message in found) == b"abcdefgh"
    assert [message.topic for message in found] == list("tttutttt")
    assert [dict(message.attributes) for message in found][4] == {"k": "v"}
    assert [message.number for message in found] == list(range(8))
