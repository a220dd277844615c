"""Publishing over the link: every row once, in its place, and no more under way than there is room for."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from tests.net.conftest import Start
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import until

from headrace.errors import FullError
from headrace.hub.publishing.query_marks import mark
from headrace.hub.publishing.relaying.passed import pack_passed
from headrace.hub.sequencer import Commit
from headrace.net.link import connection
from headrace.net.server.process import Server


async def test_publish_is_answered_with_its_place(server: Server, peer: LinkPeer) -> None:
    answer = await peer.ask(rows(b"a", b"b", topic="t", colour="red"), op="publish", id=1)
    assert answer == {"id": 1, "ok": True, "first": 1, "last": 2, "repeated": 0, "op": 2}
    answer = await peer.ask(rows(b"c"), op="publish", id=1, publisher="me", number=7, origin="spark")
    assert (answer["first"], answer["last"]) == (3, 3)
    a, _, c = [message for batch in server.hub.log.scan(1) for message in batch]
    assert (a.payload, a.topic, a.attributes, a.origin, a.number) == (
        b"a",
        "t",
        {"colour": "red"},
        "tube",
        None,
    )
    assert (c.payload, c.publisher, c.number, c.origin) == (b"c", "me", 7, "spark")


async def test_rows_that_are_there_are_not_appended_again(server: Server, peer: LinkPeer) -> None:
    assert (await peer.ask(rows(b"a", b"b"), op="publish", id=1, publisher="p", number=0))["last"] == 2
    assert (await peer.ask(rows(b"x"), op="publish", id=1))["last"] == 3
    again = await peer.ask(rows(b"a", b"b"), op="publish", id=1, publisher="p", number=0)
    assert (again["first"], again["last"], again["repeated"]) == (1, 2, 2)
    rest = await peer.ask(rows(b"b", b"c"), op="publish", id=1, publisher="p", number=1)
    assert (rest["first"], rest["last"], rest["repeated"]) == (2, 4, 1)
    assert [p for batch in server.hub.log.scan(1) for p in batch.run] == [b"a", b"b", b"x", b"c"]
    assert (await peer.ask(op="publisher", id=1, publisher="p"))["newest"] == 2


async def test_a_repeat_waits_for_a_first_try_that_is_under_way(
    server: Server, stack: AsyncExitStack
) -> None:
    hub = server.hub
    hub.commit_by(lambda tail: None)
    one, two = [await stack.enter_async_context(link_peer(server)) for _ in range(2)]
    await one.say(rows(b"a", b"b"), op="publish", id=1, publisher="p", number=0)
    await until(lambda: hub.log.tail == 2)
    await two.say(rows(b"a", b"b"), op="publish", id=1, publisher="p", number=0)
    await two.say(rows(b"b", b"c"), op="publish", id=2, publisher="p", number=1)
    await two.ask(op="head", id=3)
    assert hub.log.tail == 2
    hub.committed(2)
    assert (await one.hear())[0] == {"id": 1, "ok": True, "first": 1, "last": 2, "repeated": 0, "op": 2}
    assert (await two.hear())[0] == {"id": 1, "ok": True, "first": 1, "last": 2, "repeated": 2, "op": 2}
    await until(lambda: hub.log.tail == 3)
    hub.committed(3)
    assert (await two.hear())[0] == {"id": 2, "ok": True, "first": 2, "last": 3, "repeated": 1, "op": 3}


async def test_behind_a_publish_that_failed_nothing_is_taken_that_follows_it(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_batches: object) -> None:
        raise FullError("log", "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(server.hub.log, "append", full)
        answer = await peer.ask(rows(b"a"), op="publish", id=1, publisher="p", number=0)
        assert answer["error"] == "storage"
    behind = await peer.ask(rows(b"b"), op="publish", id=2, publisher="p", number=1, follows=True)
    assert behind["error"] == "conflict"
    assert (await peer.ask(rows(b"a"), op="publish", id=1, publisher="p", number=0))["first"] == 1
    assert (await peer.ask(rows(b"b"), op="publish", id=2, publisher="p", number=1, follows=True))[
        "first"
    ] == 2


async def test_empty_rows_are_refused(peer: LinkPeer) -> None:
    assert (await peer.ask(rows(), op="publish", id=1))["error"] == "malformed"


async def test_a_payload_past_the_hubs_limit_is_refused(start: Start) -> None:
    server = await start("limits.message_bytes=10")
    async with link_peer(server) as peer:
        answer = await peer.ask(rows(b"x" * 11), op="publish", id=1)
        assert (answer["error"], answer["limit"]) == ("limit", 10)
        assert (await peer.ask(rows(b"x" * 10), op="publish", id=1))["ok"]


async def test_a_client_with_much_uncommitted_is_not_read(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_UNCOMMITTED", 1000)
    server.hub.commit_by(lambda tail: None)
    for number in range(20):
        await peer.say(rows(b"x" * 400), op="publish", id=number)
    await until(lambda: server.hub.log.tail >= 1)
    async with link_peer(server) as other:  # a round trip of another client: everything readable was read
        await other.ask(op="head", id=1)
    assert server.hub.log.tail < 20
    answered = 0
    while answered < 20:
        await until(lambda: server.hub.log.tail > server.hub.log.head)
        server.hub.committed(server.hub.log.tail_op)
        while answered < server.hub.log.head:
            assert (await peer.hear())[0]["ok"]
            answered += 1


async def test_more_attributes_than_a_message_may_have_are_refused(start: Start) -> None:
    server = await start("limits.attributes=3", "limits.message_bytes=100")
    async with link_peer(server) as peer:
        few = dict.fromkeys("abc", "x")
        assert (await peer.ask(rows(b"x", b"y", **few), op="publish", id=1))["ok"]
        answer = await peer.ask(rows(b"x", **few, d="x"), op="publish", id=2)
        assert (answer["error"], answer["limit"]) == ("limit", 3)
        answer = await peer.ask(rows(b"x", b"y", a="x" * 100), op="publish", id=3)
        assert (answer["error"], answer["limit"]) == ("limit", 100)
        assert server.hub.log.head == 2


async def test_a_relayed_entry_with_a_long_name_is_refused(server: Server, peer: LinkPeer) -> None:
    for number, (name, error) in enumerate([("a" * 200, None), ("a" * 60_000, "limit")]):
        entries = pack_passed(server.hub.log.uuid, [mark(name, 0, 1, Commit())])
        answer = await peer.ask(entries, op="pass", id=1, frontend="f", number=number, rows=1)
        assert answer.get("error") == error, answer
    assert list(server.parts.queries) == ["a" * 200]
