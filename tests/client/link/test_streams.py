"""Streams of the link: what is chosen, all of it and once, though tubes break."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.links import break_tubes, client, read_all, some
from tests.net.raw import SECONDS, until

from headrace.client.link.client import LinkClient
from headrace.errors import UsageError
from headrace.net.server.process import Server


async def test_a_small_credit_is_enough(server: Server) -> None:
    async with client(server, credit=1000) as link:
        for _ in range(50):
            await link.publish([b"x" * 100] * 20)
        assert await read_all(link) == list(range(1, 1001))


async def test_a_message_longer_than_the_credit_comes_behind_others(link: LinkClient) -> None:
    """The client has taken some of its credit and not yet granted it again when the long one is due."""
    long = bytes(7 << 20)
    async with asyncio.timeout(SECONDS), link.follow() as stream:
        await stream.begun()
        for payload in (bytes(1 << 20), long, bytes(1 << 20), long, b"end"):
            await link.publish(payload)
            assert (await anext(stream)).payload == payload


async def test_a_loop_that_is_left_leaves_no_stream(server: Server, link: LinkClient) -> None:
    door: Any = server._doors[-1]
    await link.publish(b"x")
    async for _ in link.follow(from_seq=1):
        break
    await until(lambda: not door.facts()["tube_streams"])
    async with link.follow(from_seq=1) as follow:
        await anext(follow)
    await until(lambda: not door.facts()["tube_streams"])


@pytest.mark.parametrize("batches", [True, False])
async def test_closing_a_stream_ends_the_iteration_that_waits(
    server: Server, link: LinkClient, batches: bool
) -> None:
    door: Any = server._doors[-1]
    follow = link.follow(from_seq=1)
    stream: Any = follow.batches() if batches else follow
    taken: list[object] = []

    async def take() -> None:
        async for each in stream:
            taken.append(each)  # noqa: PERF401 -- one by one, for who looks meanwhile

    taking = asyncio.ensure_future(take())
    async with asyncio.timeout(SECONDS):
        await link.publish(b"x")
        await until(lambda: taken)
        await stream.aclose()
        await taking
    assert len(taken) == 1
    await until(lambda: not door.facts()["tube_streams"])


async def test_closing_a_stream_that_waits_for_a_connection_leaves_none_behind(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    door: Any = server._doors[-1]
    follow = link.follow(from_seq=1)
    connected = asyncio.Event()
    connect = link._connection.session

    async def session() -> Any:
        await connected.wait()
        return await connect()

    monkeypatch.setattr(link._connection, "session", session)
    waiting = asyncio.ensure_future(anext(follow, None))
    beginning = asyncio.ensure_future(link.follow().begun())
    await asyncio.sleep(0)
    await follow.aclose()
    connected.set()
    async with asyncio.timeout(SECONDS):
        assert await waiting is None
        await beginning
    del beginning
    await until(lambda: not door.facts()["tube_streams"])


async def test_a_follow_goes_on_when_tubes_break(server: Server, link: LinkClient) -> None:
    async def write() -> None:
        async with client(server) as writer:
            for number in range(300):
                await writer.publish([b"%d" % number] * 10)
                if number % 60 == 30:
                    break_tubes(server)

    writing = asyncio.ensure_future(write())
    follow = link.follow(from_seq=1)
    assert [m.seq async for m in some(follow, 3000)] == list(range(1, 3001))
    await writing


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
    monkeypatch.setattr("headrace.net.link.streams.row_bodies.SCAN_BYTES", 1)
    monkeypatch.setattr("headrace.net.link.streams.row_bodies.ROWS_BYTES", 200)
    for number in range(3):
        await link.publish([bytes(100)] * 10, topic="other")
        await link.publish(b"%d" % number, topic="wanted")
    assert await read_all(link, topic="wanted") == [11, 22, 33]


async def test_entries_come_once_though_tubes_break(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many stand after one message; the stream resumes amid them."""
    monkeypatch.setattr("headrace.net.link.streams.operation_bodies.ROWS_BYTES", 1000)
    holds = [f"{number}" for number in range(200)]

    async def write() -> None:
        async with client(server) as writer:
            for number in holds:
                await writer.hold(number, 1)
                if int(number) % 40 == 20:
                    await writer.publish(b"x")
                if int(number) % 50 == 30:
                    break_tubes(server)

    writing = asyncio.ensure_future(write())
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(SECONDS), link.entries(0, None, topic="hold/*") as stream:
        async for rows in stream:
            found += rows.to_pylist()
            if len(found) == len(holds):
                break
    await writing
    # A request that was lost with its tube is repeated: a hold that is set again is an entry of its own.
    topics = list(dict.fromkeys(row["topic"] for row in found))
    assert topics == [f"hold/{number}" for number in holds][: len(topics)]
    ops = [row["op"] for row in found]
    assert ops == sorted(set(ops))
    bounded = [row async for rows in link.entries(0, 1 << 40, topic="hold/*") for row in rows.to_pylist()]
    assert bounded[: len(found)] == found
    seqs = [row["seq"] for row in bounded]
    assert seqs == sorted(seqs)
    assert set(seqs) == set(range(server.hub.log.head + 1))


async def test_a_loop_over_entries_that_is_left_leaves_no_stream(server: Server, link: LinkClient) -> None:
    door: Any = server._doors[-1]
    await link.hold("h", 1)
    async for rows in link.entries(0, None):
        assert rows.num_rows == 1
        break
    await until(lambda: not door.facts()["tube_streams"])


async def test_messages_alone_are_read_and_followed(link: LinkClient) -> None:
    await link.hold("h", 1)
    await link.publish([b"a", b"b"])
    await link.create_service("s")
    await link.publish(b"c")
    await link.hold("h", 2)
    assert await read_all(link) == [1, 2, 3]
    follow = link.follow(from_seq=1)
    assert [(m.seq, m.payload) async for m in some(follow, 3)] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert follow.cursor == (await link.head()).head + 1


async def test_what_a_hub_could_not_read_is_not_asked(link: LinkClient) -> None:
    """It would drop the tube, and be asked again over the next one, without end."""
    for ask in (
        lambda: link.read(1 << 70),
        lambda: link.read(1, 1 << 70),
        lambda: link.follow(1 << 70),
        lambda: link.follow(from_time=1.7e18),
        lambda: link.follow(from_time=-1.0),
        lambda: link.entries(-1, 1),
        lambda: link.entries(0, 1 << 70),
    ):
        with pytest.raises(UsageError):
            ask()
    with pytest.raises(UsageError, match="no message is of"):
        await link.first_at(1 << 70)
