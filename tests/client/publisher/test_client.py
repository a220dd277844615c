"""The client of a publisher door against one that does as it is told."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest
from tests.client.connectors import SECONDS, PublisherSession, elsewhere, publisher_door
from tests.net.raw import until

import headrace
from headrace import connect
from headrace.client.publisher.client import PublisherClient
from headrace.errors import ClosedError, LimitError, UnreachableError, UsageError
from headrace.wire.attribute.publish import Publish


class Door:
    """What came in."""

    def __init__(self) -> None:
        self.published: list[Publish] = []

    async def take(self, session: PublisherSession) -> None:
        """Take messages until the publisher leaves."""
        while True:
            self.published.append(await session.publish())


@pytest.fixture
def door() -> Door:
    return Door()


def stalled(publisher: PublisherClient) -> bool:
    stream = publisher._failover.current
    return stream is not None and not stream._room.is_set()


class TestPublishing:
    async def test_as_the_page_shows_it(self, door: Door) -> None:
        async with publisher_door(door.take) as url:
            async with connect(url) as publisher:
                await publisher.publish(b"payload", attributes={"x": 5, "city": "Praha"})
                await publisher.publish(attributes={})
                await publisher.publish(bytearray(b"a"), numbers={"n": 1.5})
                await publisher.publish([{"attributes": {"n": 2}, "payload": memoryview(b"\xff")}])
                assert publisher.connected
                assert (publisher.stats.published, publisher.connects) == (4, 1)
            # Leaving waits until the hub has read everything.
            assert door.published == [
                Publish({"x": 5.0, "city": "Praha"}, b"payload"),
                Publish({}, b""),
                Publish({"n": 1.5}, b"a"),
                Publish({"n": 2.0}, b"\xff"),
            ]
        assert not publisher.connected

    async def test_many(self, door: Door) -> None:
        async with publisher_door(door.take) as url, connect(url) as publisher:
            await publisher.publish(
                {"attributes": {"n": number}, "payload": b"x" * 100} for number in range(10_000)
            )
            await publisher.publish([])
            await publisher.flush()
        assert [publish.attributes["n"] for publish in door.published] == list(range(10_000))

    async def test_publishers_wait_for_a_door_that_does_not_read(self, door: Door) -> None:
        async def script(session: PublisherSession) -> None:
            await reading.wait()
            await door.take(session)

        reading = asyncio.Event()
        messages = [{"attributes": {"n": number}, "payload": b"x" * 1900} for number in range(10_000)]
        async with publisher_door(script) as url, connect(url) as publisher:
            publishing = asyncio.ensure_future(publisher.publish(messages))
            await until(lambda: stalled(publisher))
            assert 256 < publisher.stats.published < len(messages)
            flushing = asyncio.ensure_future(publisher.flush())
            await asyncio.sleep(0)
            assert not publishing.done()
            assert not flushing.done()
            reading.set()
            async with asyncio.timeout(SECONDS):
                await publishing
                await flushing
                await publisher.flush()
        assert len(door.published) == len(messages)

    async def test_the_limit_is_told_before_anything_is_sent(self, door: Door) -> None:
        room = 2000 - 3 - 3 - len('{"n":1}')
        async with publisher_door(door.take) as url, connect(url) as publisher:
            with pytest.raises(LimitError, match="body length of a publish 2001 is over the limit: 2000"):
                await publisher.publish(
                    [b"fits"] * 1000 + [{"attributes": {"n": 1}, "payload": bytes(room + 1)}]
                )
            await publisher.publish(bytes(room), attributes={"n": 1})
        assert door.published == [Publish({"n": 1.0}, bytes(room))]

    @pytest.mark.parametrize(
        ("attributes", "payload", "complaint"),
        [
            ({"a": True}, b"", "attributes that cannot be published: expected a JSON object"),
            ({"a": None}, b"", "expected a JSON object of names to strings and finite numbers"),
            ({"a": math.nan}, b"", "finite numbers"),
            ({"a": ["b"]}, b"", "finite numbers"),
            ({"a": "\ud800"}, b"", "finite numbers"),
            ("a=1", b"", "attributes are a mapping of names to texts and numbers, not str"),
            ({}, "text", "a payload is bytes, not str"),
        ],
    )
    async def test_what_cannot_be_published(
        self, door: Door, attributes: Any, payload: Any, complaint: str
    ) -> None:
        async with publisher_door(door.take) as url, connect(url) as publisher:
            with pytest.raises(UsageError, match=complaint):
                await publisher.publish(payload, attributes=attributes)
            with pytest.raises(UsageError, match=complaint):
                await publisher.publish([b"", {"attributes": attributes, "payload": payload}])
            with pytest.raises(UsageError, match="payload, attributes, numbers here, not topic"):
                await publisher.publish([b"", {"payload": b"payload", "topic": "t"}])
        assert door.published == []


class TestConnecting:
    async def test_a_lost_connection_is_replaced(self, door: Door) -> None:
        async def first(session: PublisherSession) -> None:
            door.published.append(await session.publish())
            session.reset()

        async with publisher_door(first, door.take) as url, connect(url) as publisher:
            await publisher.publish(attributes={"n": 1})
            await until(lambda: publisher.connects == 2)
            await publisher.publish(attributes={"n": 2})
        assert [publish.attributes["n"] for publish in door.published] == [1, 2]

    async def test_what_was_never_taken_is_told(self, door: Door) -> None:
        async def first(session: PublisherSession) -> None:
            await breaking.wait()
            session.reset()

        breaking = asyncio.Event()
        async with publisher_door(first, door.take) as url, connect(url) as publisher:
            publishing = asyncio.ensure_future(publisher.publish([b"x" * 1900] * 10_000))
            await until(lambda: stalled(publisher))
            flushing = asyncio.ensure_future(publisher.flush())
            await asyncio.sleep(0)
            breaking.set()
            with pytest.raises(UnreachableError, match="what was published last may be lost"):
                await flushing
            async with asyncio.timeout(SECONDS):
                await publishing

    async def test_closing_says_if_the_door_may_not_have_read_everything(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def first(session: PublisherSession) -> None:
            await session.publish()
            await closing.wait()
            session.reset()

        closing = asyncio.Event()
        async with publisher_door(first) as url, connect(url) as publisher:
            await publisher.publish(attributes={"n": 1})
            ending = asyncio.ensure_future(publisher.close())
            await asyncio.sleep(0)
            closing.set()
            with caplog.at_level(logging.WARNING, "headrace.client"):
                await ending
        assert "what was published last may be lost" in caplog.text

    async def test_closing_in_good_order_says_nothing(
        self, door: Door, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with publisher_door(door.take) as url, connect(url) as publisher:
            await publisher.publish(attributes={"n": 1})
            await publisher.close()
            with pytest.raises(ClosedError):
                await publisher.publish(attributes={"n": 2})
            with pytest.raises(ClosedError):
                await publisher.flush()
            await publisher.close()
        assert caplog.text == ""

    async def test_nobody_there(self) -> None:
        with pytest.raises(UnreachableError, match="is the hub running there"):
            async with connect("publisher://127.0.0.1:1"):
                pass

    async def test_not_open(self) -> None:
        with pytest.raises(UsageError, match="not open"):
            await connect("publisher://127.0.0.1").publish(attributes={})


def test_without_an_event_loop(door: Door) -> None:
    with (
        elsewhere(lambda: publisher_door(door.take)) as url,
        headrace.connect_sync(url) as publisher,
    ):
        publisher.publish(b"payload", attributes={"city": "Praha"})
        publisher.publish(attributes={"n": 1})
        publisher.flush()
    assert door.published == [Publish({"city": "Praha"}, b"payload"), Publish({"n": 1.0}, b"")]
