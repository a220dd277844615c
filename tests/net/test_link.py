"""The link as a client sees it: bytes in, bytes out, through a real tube and a real log."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import cbor2
import pytest
from tests.net.conftest import Start
from tests.net.linkpeer import LinkPeer, link_peer, opened, rows
from tests.net.raw import running_hub, until
from tests.tube.stranger import request as websocket_request

from headrace.errors import FullError
from headrace.hub import subscriptions
from headrace.log import snapshot
from headrace.message import Batch, Run
from headrace.net import link_connection, link_rows
from headrace.net.link import _origins
from headrace.net.server import Server
from headrace.wire.auth import sign
from headrace.wire.link import SUBSCRIPTIONS, rows_of
from headrace.wire.tube import RAW, stream_pieces, websocket_pieces


@pytest.fixture
async def peer(server: Server, stack: AsyncExitStack) -> LinkPeer:
    return await stack.enter_async_context(link_peer(server))


def refused(server: Server, reason: str) -> int:
    return server.hub.counters.get("refused", door="tube", reason=reason)


def delivered(server: Server) -> int:
    return server.hub.counters.get("delivered", door="tube")


async def fill(peer: LinkPeer, count: int, size: int = 10, per: int = 100) -> None:
    for first in range(0, count, per):
        some = [b"%0*d" % (size, number) for number in range(first, min(first + per, count))]
        assert (await peer.ask(rows(*some), op="publish", id=1))["ok"]


# Opening


@pytest.mark.parametrize("door", ["tube_tcp", "tube_ws"])
async def test_hello_and_head(server: Server, door: str) -> None:
    async with link_peer(server, door, greet=False) as peer:
        hello = await peer.ask(op="hello", id=7, version=9, name="a tool")
        assert hello["id"] == 7
        assert hello["version"] == 1
        assert hello["log"] == str(server.hub.log.uuid)
        assert hello["max_message"] == 8 << 20
        assert await peer.ask(op="head", id=8) == {
            "id": 8,
            "ok": True,
            "log": hello["log"],
            "first": 1,
            "head": 0,
            "message": 0,
            "path": str(server.hub.log.directory),
            "first_time": None,
            "head_time": None,
        }


async def test_nothing_comes_before_hello(server: Server) -> None:
    async with link_peer(server, greet=False) as peer:
        assert (await peer.ask(op="head", id=1))["error"] == "hello"
        assert await peer.gone()


async def test_a_version_that_is_not_spoken(server: Server) -> None:
    async with link_peer(server, greet=False) as peer:
        answer = await peer.ask(op="hello", id=1, version=0)
        assert (answer["id"], answer["error"], answer["versions"]) == (1, "version", [1])
        assert answer["reason"] == "version 0 of the link is not spoken here, but 1"
        assert await peer.gone()
    assert refused(server, "version") == 1
    async with link_peer(server, greet=False) as peer:
        assert (await peer.ask(op="hello", id=1, version=-1))["error"] == "malformed"


async def test_hello_is_said_once(peer: LinkPeer) -> None:
    assert (await peer.ask(op="hello", id=1, version=1))["error"] == "hello"
    assert (await peer.ask(op="head", id=1))["ok"]


async def test_who_does_not_say_hello_is_let_go(start: Start) -> None:
    server = await start("limits.handshake_seconds=0.1")
    async with link_peer(server, greet=False) as peer:
        assert await peer.gone()
    assert refused(server, "deadline") == 1


@pytest.mark.parametrize("door", ["tube_tcp", "tube_ws"])
async def test_half_a_message_is_not_kept_for_long(start: Start, door: str) -> None:
    server = await start("limits.slow_seconds=0.3")
    async with link_peer(server, door) as idle, link_peer(server, door) as peer:
        # A header that announces two fragments, and only one of them.
        cut = stream_pieces if door == "tube_tcp" else websocket_pieces
        pieces = list(cut(bytes(2 << 18), 1 << 18, RAW))
        for piece in pieces[:-1]:
            peer.tube._session._line.write(bytes(piece))
        assert await peer.gone()
        assert (await idle.ask(op="head", id=1))["ok"]


async def test_no_longer_message_is_taken_than_a_client_may_send(server: Server) -> None:
    async with link_peer(server) as peer:
        assert (await peer.ask(b"\0" * 8_388_000, op="publish", id=1))["error"] == "malformed"
        await peer.tube.send(bytes((8 << 20) + 1))
        assert await peer.gone()
    assert refused(server, "limit") == 1


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, b"101"),
        ("http://127.0.0.1:8470", b"101"),
        ("https://localhost", b"101"),
        ("http://hub.localhost:1234", b"101"),
        ("https://known.example:8443", b"101"),
        ("https://known.example", b"403"),
        ("http://127.0.0.1.evil.example", b"403"),
        ("http://evil.example/127.0.0.1", b"403"),
        ("http://localhost@evil.example", b"403"),
        ("null", b"403"),
    ],
)
async def test_web_pages_of_others_are_kept_out(start: Start, origin: str | None, status: bytes) -> None:
    server = await start("auth.origins=https://known.example:8443")
    host, _, port = server.doors["tube_ws"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        # A page's own name for the hub tells nothing: it may have been made to lead here.
        said = [] if origin is None else [f"Origin: {origin}"]
        writer.write(websocket_request("/", *said).replace(b"Host: 127.0.0.1", b"Host: evil.example"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 " + status)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("host", "own", "other"),
    [
        ("10.0.0.7", "http://10.0.0.7:8470", "http://localhost:8470"),
        ("10.0.0.7", "https://10.0.0.7", "http://10.0.0x7"),
        ("fd00::7", "http://[fd00::7]:8470", "http://[fd00::8]"),
        ("::1", "http://[::1]:8470", "http://[::2]"),
        ("0.0.0.0", "http://localhost:1", "http://10.0.0.7"),
    ],
)
def test_the_origins_of_an_address(host: str, own: str, other: str) -> None:
    nobody, pattern, *named = _origins(host, ["https://a.example"])
    assert (nobody, named) == (None, ["https://a.example"])
    assert isinstance(pattern, re.Pattern)
    assert pattern.fullmatch(own)
    assert not pattern.fullmatch(other)


@pytest.mark.parametrize("message", [b"", b"\xff", b"\x80", cbor2.dumps({"op": "head"}), b"\xa1\x01\x02"])
async def test_what_is_no_request_closes_the_tube(server: Server, peer: LinkPeer, message: bytes) -> None:
    await peer.tube.send(message)
    assert await peer.gone()
    assert refused(server, "malformed") == 1


async def test_auth(start: Start) -> None:
    client, key = "0011223344556677889900aa", "secret"
    server = await start("auth.required=true", f"auth.clients.{client}={key}")
    stamp = f"{time.time():.3f}"
    good = {
        "client_id": client,
        "timestamp": stamp,
        "token": sign(key.encode(), bytes.fromhex(client), stamp),
    }
    for auth in (None, {}, {**good, "token": "00"}, {**good, "client_id": "ff" * 12}):
        async with link_peer(server, greet=False) as peer:
            assert (await peer.ask(op="hello", id=1, version=1, auth=auth))["error"] == "auth"
            assert await peer.gone()
    for code in (None, "auth"):  # a token is good once
        async with link_peer(server, greet=False) as peer:
            assert (await peer.ask(op="hello", id=1, version=1, auth=good)).get("error") == code


@pytest.mark.parametrize(
    ("head", "code", "field"),
    [
        ({"op": "dance"}, "unknown", None),
        ({}, "unknown", None),
        ({"op": "read"}, "malformed", "first"),
        ({"op": "read", "first": 0}, "malformed", "first"),
        ({"op": "read", "first": 1, "where": {"a": {"use": 9}}}, "malformed", "where.a"),
        ({"op": "read", "first": 1, "where": {"a": b"\xff"}}, "malformed", "where.a"),
        ({"op": "publish"}, "malformed", "body"),
        ({"op": "publish", "origin": "log"}, "malformed", None),
        ({"op": "follow", "from": 1, "time": 1}, "conflict", None),
        ({"op": "holds", "name": "h"}, "malformed", None),
        ({"op": "holds", "name": "h", "release": True}, "missing", None),
        ({"op": "services", "service": "nobody"}, "missing", None),
        ({"op": "commit", "query": "q", "batch": 1, "stages": ["gone"]}, "missing", None),
    ],
)
async def test_refusals(peer: LinkPeer, head: dict[str, Any], code: str, field: str | None) -> None:
    answer = await peer.ask(id=5, **head)
    assert (answer["id"], answer["error"], answer.get("field")) == (5, code, field)
    assert answer["reason"]
    assert (await peer.ask(op="head", id=5))["ok"]


# Publishing


async def test_publish_is_answered_with_its_place(server: Server, peer: LinkPeer) -> None:
    answer = await peer.ask(rows(b"a", b"b", topic="t", colour="red"), op="publish", id=1)
    assert answer == {"id": 1, "ok": True, "first": 1, "last": 2, "repeated": 0}
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
    assert (await one.hear())[0] == {"id": 1, "ok": True, "first": 1, "last": 2, "repeated": 0}
    assert (await two.hear())[0] == {"id": 1, "ok": True, "first": 1, "last": 2, "repeated": 2}
    await until(lambda: hub.log.tail == 3)
    hub.committed(3)
    assert (await two.hear())[0] == {"id": 2, "ok": True, "first": 2, "last": 3, "repeated": 1}


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
    monkeypatch.setattr(link_connection, "MAX_UNCOMMITTED", 1000)
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
        server.hub.committed(server.hub.log.tail)
        while answered < server.hub.log.head:
            assert (await peer.hear())[0]["ok"]
            answered += 1


async def test_too_many_open_requests_are_refused(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_connection, "MAX_OPEN", 2)
    monkeypatch.setattr(link_connection, "MAX_STREAMS", 1)
    assert (await peer.ask(op="follow", id=1))["event"] == "at"
    assert (await peer.ask(op="follow", id=2))["error"] == "busy"
    server.hub.commit_by(lambda tail: None)
    await peer.say(rows(b"a"), op="publish", id=3)
    answer = await peer.ask(op="head", id=4)
    assert (answer["error"], answer["limit"]) == ("busy", 2)
    server.hub.committed(1)


async def test_an_id_in_use_closes_the_tube(server: Server, peer: LinkPeer) -> None:
    assert (await peer.ask(op="follow", id=1))["event"] == "at"
    await peer.say(op="head", id=1)
    assert await peer.gone()
    await until(lambda: not server._doors[-1].facts()["tube"])


# Reading


@pytest.mark.parametrize("sealed", [False, True])
async def test_read_brings_the_range(server: Server, peer: LinkPeer, sealed: bool) -> None:
    await fill(peer, 1000)
    if sealed:
        assert await server.upkeep.seal() == 1
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
    await server.upkeep.seal()
    await peer.say(op="read", id=1, first=400)
    head, body = await peer.hear()
    assert (head["first"], head["last"]) == (400, 1000)
    assert body == server.hub.log.segments[0].message(0).tobytes()  # type: ignore[union-attr]


async def test_of_a_sealed_batch_a_few_rows_travel_alone(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 1000)
    await server.upkeep.seal()
    await peer.say(op="read", id=1, first=400, last=402)
    _, body = await peer.hear()
    assert [m.seq for m in opened(body)] == [400, 401, 402]


async def test_read_crosses_from_sealed_to_open(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 300)
    await server.upkeep.seal()
    await fill(peer, 300)
    got, _ = await peer.stream(op="read", id=1, first=1)
    assert [m.seq for m in got] == list(range(1, 601))


async def test_trimmed_ranges_are_named(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 10)
    await server.upkeep.seal()
    await fill(peer, 10)
    await server.upkeep.snapshot()
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
    monkeypatch.setattr(link_rows, "ROWS_BYTES", 2000)
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
            await server.upkeep.seal()
        for head, expected in (
            ({"topic": "a/*"}, [1, 2, 3, 4]),
            ({"topic": "a/*", "where": red}, [1, 3]),
            ({"where": red}, [1, 3, 5]),
            ({"topic": "**"}, [1, 2, 3, 4, 5, 6]),
            ({"origin": "log"}, [7]),
            ({"origin": ["tube", "log"], "topic": "hold/**"}, [7]),
            ({"topic": "nothing"}, []),
            ({}, [1, 2, 3, 4, 5, 6, 7]),
        ):
            before = delivered(server)
            got, heads = await peer.stream(op="read", id=1, first=1, **head)
            assert [m.seq for m in got] == expected
            assert delivered(server) - before == len(expected)
            assert heads[-1]["next"] == 8


# Following


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


async def test_a_follow_whose_tube_is_gone_leaves_nothing(server: Server) -> None:
    link: Any = server._doors[-1]
    async with link_peer(server) as peer:
        await peer.ask(op="follow", id=1)
        assert link.facts() == {"tube": 1, "tube_streams": 1}
    await until(lambda: not link.facts()["tube"])
    assert link._live.followers == 0
    await until(lambda: not server.connections)


# Holds, state, services


async def test_holds(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 5)
    assert (await peer.ask(op="holds", id=1, name="job", seq=3))["holds"] == {"job": 3}
    assert (await peer.ask(op="holds", id=1))["holds"] == {"job": 3}
    assert (await peer.ask(op="holds", id=1, name="job", release=True))["holds"] == {}
    assert (await peer.ask(op="holds", id=1))["holds"] == {}
    assert server.hub.log.head == 7


async def test_status(server: Server, peer: LinkPeer) -> None:
    answer = await peer.ask(op="status", id=1)
    assert answer["status"]["log"] == str(server.hub.log.uuid)
    assert answer["status"]["subscribers"]["tube"] == 1


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
    assert (head["seq"], head["size"]) == (2, len(data))
    taken = snapshot.parse(data)
    assert (taken.uuid, taken.seq) == (server.hub.log.uuid, 2)
    assert dict(taken.sections) == server.hub.state.sections()


# Subscriptions


async def test_subscriptions_come_as_rows_of_the_matchers_table(server: Server, peer: LinkPeer) -> None:
    fields = {"x": '{"use":2,"low":0.0,"high":9.0}'}
    for number in range(2500):
        server.hub.submit(subscriptions.subscribe(number.to_bytes(12), b"conn0001", fields))
    server._turn()
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
    assert head == {"id": 1, "ok": True, "head": 2500}
    assert len(found) == 2500
    assert found[7] == {
        "client": f"{7:024x}",
        "connector": "conn0001",
        "seq": 8,
        "fields": list(fields.items()),
    }


async def test_no_subscriptions_are_no_rows(server: Server, peer: LinkPeer) -> None:
    assert await peer.ask(op="subscriptions", id=1) == {"id": 1, "ok": True, "head": 0}


# Stages


async def test_stages_become_visible_in_one_append(server: Server, peer: LinkPeer) -> None:
    stages = [
        (await peer.ask(rows(*part), op="stage", id=1, query="q", batch=5, part=number))["stage"]
        for number, part in enumerate([(b"a", b"b"), (b"c",), (b"lost",)])
    ]
    assert server.hub.log.tail == 0
    answer = await peer.ask(op="commit", id=1, query="q", batch=5, stages=stages[:2])
    assert answer == {"id": 1, "ok": True, "first": 1, "last": 3, "repeated": False}
    assert server.hub.log.tail == 4  # and the mark
    for again in (stages[:2], []):
        answer = await peer.ask(op="commit", id=1, query="q", batch=5, stages=again)
        assert (answer["first"], answer["last"], answer["repeated"]) == (1, 3, True)
    assert (await peer.ask(op="commit", id=1, query="q", batch=4, stages=[]))["repeated"] is True
    other = await peer.ask(op="commit", id=1, query="q", batch=6, stages=[stages[2]])
    assert other["error"] == "conflict"
    assert (await peer.ask(op="abort", id=1, stages=[stages[2]]))["ok"]
    assert (await peer.ask(op="commit", id=1, query="q", batch=6, stages=[stages[2]]))["error"] == "missing"
    empty = await peer.ask(op="commit", id=1, query="q", batch=6, stages=[])
    assert (empty["first"], empty["last"]) == (None, None)
    got, _ = await peer.stream(op="read", id=2, first=1, origin="spark")
    assert [(m.payload, m.publisher) for m in got] == [(b"a", "q"), (b"b", "q"), (b"c", "q")]


async def test_a_commit_is_known_after_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        stage = (await peer.ask(rows(b"a"), op="stage", id=1, query="q", batch=1))["stage"]
        assert (await peer.ask(op="commit", id=1, query="q", batch=1, stages=[stage]))["first"] == 1
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        again = await peer.ask(op="commit", id=1, query="q", batch=1, stages=[stage])
        assert (again["first"], again["last"], again["repeated"]) == (1, 1, True)
        assert (await peer.ask(op="commit", id=1, query="q", batch=2, stages=[stage]))["error"] == "missing"


async def test_a_commit_of_service_changes_creates_what_is_missing(server: Server, peer: LinkPeer) -> None:
    async def commit(batch: int, **changes: bytes) -> dict[str, Any]:
        stages = [
            (await peer.ask(rows(change, topic=name), op="stage", id=1, query="q", batch=batch))["stage"]
            for name, change in changes.items()
        ]
        return await peer.ask(op="commit", id=1, query="q", batch=batch, stages=stages, services=True)

    answer = await commit(1, a=b'{"x":1}', b=b"plain")
    assert (answer["first"], answer["last"]) == (3, 4)  # behind the creations of both
    assert {service.id: service.snapshot for service in server.services} == {"a": b'{"x":1}', "b": b"plain"}
    refused = await commit(2, c=b"new", a=b"no object")
    assert refused["error"] == "malformed"
    assert "service 'a' is a JSON object" in refused["reason"]
    assert server.services.get("c") is None
    answer = await commit(2, a=b'{"y":2}')
    assert (answer["first"], answer["last"]) == (6, 6)
    assert await commit(2, a=b'{"y":2}') | {"repeated": False} == answer
    assert [entry.topic for entry in (await peer.stream(op="read", id=2, first=1))[0]] == [
        "service/a", "service/b", "a", "b", "query/q", "a", "query/q",
    ]  # fmt: skip


async def test_head_tells_the_newest_message_and_how_far_bytes_reach(server: Server, peer: LinkPeer) -> None:
    for _ in range(3):
        await peer.ask(rows(b"x" * 1000), op="publish", id=1)
    await peer.ask(op="holds", id=1, name="h", seq=1)
    head = await peer.ask(op="head", id=1, first=1, bytes=2500)
    assert (head["head"], head["message"], head["reach"]) == (4, 3, 2)
    assert "reach" not in await peer.ask(op="head", id=1)
    assert (await peer.ask(op="head", id=1, first=1, bytes=0))["error"] == "malformed"


async def test_two_commits_of_one_batch_append_once(server: Server, stack: AsyncExitStack) -> None:
    one, two = [await stack.enter_async_context(link_peer(server)) for _ in range(2)]
    stage = (await one.ask(rows(b"a"), op="stage", id=1, query="q", batch=1))["stage"]
    server.hub.commit_by(lambda tail: None)
    for each in (one, two):
        await each.say(op="commit", id=2, query="q", batch=1, stages=[stage])
    await until(lambda: server.hub.log.tail == 2)
    await two.ask(op="head", id=3)
    server.hub.committed(2)
    assert (await one.hear())[0]["repeated"] is False
    assert (await two.hear())[0] == {"id": 2, "ok": True, "first": 1, "last": 1, "repeated": True}
    assert server.hub.log.tail == 2


# The end


async def test_a_stopping_hub_ends_streams_and_answers_what_was_asked(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with running_hub(tmp_path, "log.fsync=always") as server:
            peer = await stack.enter_async_context(link_peer(server))
            await peer.ask(op="follow", id=1, topic="elsewhere")
            await peer.say(rows(b"last"), op="publish", id=2)
            await until(lambda: server.hub.log.tail == 1)
        heard = [(await peer.hear())[0] for _ in range(2)]
        assert sorted((h["id"], h.get("error"), h.get("first")) for h in heard) == [
            (1, "stopping", None),
            (2, None, 1),
        ]
        assert await peer.gone()
