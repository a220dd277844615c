"""The publisher door, from bytes to the log."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from tests.net.attribute_peers import PublisherPeer, item, message, publish
from tests.net.conftest import Start
from tests.net.raw import until

from headrace.message import Message
from headrace.net.routing.publisher_door import columns_of
from headrace.net.server.process import Server


def logged(server: Server) -> list[Message]:
    log = server.hub.log
    return [m for batch in log.scan(1) for m in batch if m.origin != "log"]


@pytest.fixture
async def publisher(server: Server, stack: AsyncExitStack) -> PublisherPeer:
    return stack.enter_context(await PublisherPeer.connect(server))


async def test_a_publish_is_a_numbered_message_with_its_attributes_apart(
    server: Server, publisher: PublisherPeer
) -> None:
    await publisher.send(publish({"city": "Praha", "x": 5}, b"hello"))
    await until(lambda: logged(server))
    (message,) = logged(server)
    assert (message.origin, message.publisher, message.payload) == ("attribute", publisher.name, b"hello")
    assert message.attributes == {"city": "Praha"}
    assert message.numbers == {"x": 5.0}


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_many_publishes_keep_their_order_however_they_are_cut(
    server: Server, publisher: PublisherPeer, size: int
) -> None:
    wire = b"".join(publish({"n": n, "even": "yes"} if n % 2 == 0 else {}, b"p%d" % n) for n in range(40))
    for at in range(0, len(wire), size):
        await publisher.send(wire[at : at + size])
    await until(lambda: len(logged(server)) == 40)
    for n, found in enumerate(logged(server)):
        assert found.payload == b"p%d" % n
        assert found.numbers == ({"n": float(n)} if n % 2 == 0 else {})
        assert found.attributes == ({"even": "yes"} if n % 2 == 0 else {})


async def test_the_longest_message_is_taken_and_one_byte_more_refused(
    server: Server, publisher: PublisherPeer
) -> None:
    attributes = item(1, b"{}")
    longest = message(1, attributes, item(2, bytes(2000 - len(attributes) - 3)), extra=0)
    assert len(longest) == 2004
    await publisher.send(longest)
    await publisher.send(message(1, attributes, item(2, bytes(2001 - len(attributes) - 3)), extra=0))
    assert await publisher.rest() == b""
    assert len(logged(server)) == 1
    assert server.hub.counters.get("refused", door="publisher", reason="limit") == 1


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (message(2, item(2, b"x")), "malformed"),
        (message(1, item(1, b'{"a": [1]}')), "malformed"),
        (message(1, item(1, b"{}") + b"\x02\x00\x09ab"), "malformed"),
    ],
    ids=["command", "attributes", "overrun"],
)
async def test_what_is_wrong_is_refused_and_what_came_before_is_kept(
    server: Server, publisher: PublisherPeer, wire: bytes, reason: str
) -> None:
    await publisher.send(publish({}, b"before") + wire + publish({}, b"behind"))
    assert await publisher.rest() == b""
    assert [m.payload for m in logged(server)] == [b"before"]
    assert server.hub.counters.get("refused", door="publisher", reason=reason) == 1


async def test_a_stream_that_ends_inside_a_message_is_counted(
    server: Server, publisher: PublisherPeer
) -> None:
    await publisher.send(publish({}, b"whole") + publish({}, b"half")[:-1])
    publisher.close()
    await until(lambda: server.hub.counters.get("refused", door="publisher", reason="cut_short"))
    assert [m.payload for m in logged(server)] == [b"whole"]


async def test_a_message_left_unfinished_is_cut_off(start: Start, stack: AsyncExitStack) -> None:
    server = await start("limits.slow_seconds=0.3")
    publisher = stack.enter_context(await PublisherPeer.connect(server))
    await publisher.send(publish({}, b"half")[:-1])
    assert await publisher.rest() == b""
    assert server.hub.counters.get("refused", door="publisher", reason="stalled") == 1


async def test_a_publisher_is_not_read_while_the_hub_is_congested(
    server: Server, publisher: PublisherPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.hub, "_max_uncommitted", -1)
    await publisher.send(publish({}, b"first"))
    await until(lambda: logged(server))
    await publisher.send(publish({}, b"second"))
    (stream,) = next(door for door in server._doors if getattr(door, "name", "") == "publisher").connections  # type: ignore[attr-defined]
    await until(lambda: stream.reading_paused)
    monkeypatch.setattr(server.hub, "_max_uncommitted", 1 << 20)
    server._relieved()
    await until(lambda: len(logged(server)) == 2)


def test_messages_that_say_nothing_have_no_columns() -> None:
    assert columns_of([{}, {}]) is None
