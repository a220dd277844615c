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
from tests.net.linkpeer import LinkPeer, fill, link_peer, refused, rows
from tests.net.raw import running_hub, until
from tests.tube.stranger import request as websocket_request

from headrace.net.link import connection
from headrace.net.link.door import LinkDoor, _origins
from headrace.net.link.streams import open_streams
from headrace.net.server.process import Server
from headrace.wire.link import requests as ask
from headrace.wire.sdk.auth import sign
from headrace.wire.tube.frames import RAW, stream_pieces, websocket_pieces


@pytest.mark.parametrize("door", ["tube_tcp", "tube_ws"])
async def test_hello_and_head(server: Server, door: str) -> None:
    async with link_peer(server, door, greet=False) as peer:
        hello = await peer.ask(op="hello", id=7, version=9, name="a tool")
        assert hello["id"] == 7
        assert hello["version"] == 2
        assert hello["log"] == str(server.hub.log.uuid)
        assert hello["max_message"] == 8 << 20
        assert await peer.ask(op="head", id=8) == {
            "id": 8,
            "ok": True,
            "log": hello["log"],
            "first": 1,
            "first_here": 1,
            "head": 0,
            "path": str(server.hub.log.directory),
            "first_time": None,
            "head_time": None,
            "ops": [1, 0],
        }


async def test_there_is_an_operation_for_whatever_can_be_asked(server: Server) -> None:
    (door,) = (door for door in server._doors if isinstance(door, LinkDoor))
    connections_own = {ask.HelloRequest, ask.MoreRequest, ask.CancelRequest}
    publishing = {ask.PublishRequest, ask.PassRequest}
    assert door.operations.table.keys() == set(ask.OPERATIONS.values()) - connections_own - publishing


async def test_nothing_comes_before_hello(server: Server) -> None:
    async with link_peer(server, greet=False) as peer:
        assert (await peer.ask(op="head", id=1))["error"] == "hello"
        assert await peer.gone()


async def test_a_version_that_is_not_spoken(server: Server) -> None:
    async with link_peer(server, greet=False) as peer:
        answer = await peer.ask(op="hello", id=1, version=1)
        assert (answer["id"], answer["error"], answer["versions"]) == (1, "version", [2])
        assert answer["reason"] == "this hub speaks version 2 of the link, not 1"
        assert await peer.gone()
    assert refused(server, "version") == 1
    async with link_peer(server, greet=False) as peer:
        assert (await peer.ask(op="hello", id=1, version=-1))["error"] == "malformed"


async def test_hello_is_said_once(peer: LinkPeer) -> None:
    assert (await peer.ask(op="hello", id=1, version=2))["error"] == "hello"
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
            peer.tube._session._connection.write([bytes(piece)])
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


CLIENT, KEY = "0011223344556677889900aa", "secret"
AUTH_ON = ("auth.required=true", f"auth.clients.{CLIENT}={KEY}")


async def challenge_of(peer: LinkPeer) -> str:
    """Ask for something to sign, as a client does that has a key."""
    told = await peer.ask(op="hello", id=1, version=2, auth={"client_id": CLIENT})
    assert "error" not in told
    return str(told["challenge"])


def signed(challenge: str, key: str = KEY, client: str = CLIENT) -> dict[str, str]:
    token = sign(key.encode(), bytes.fromhex(client), "1", challenge=challenge)
    return {"client_id": client, "timestamp": "1", "token": token, "challenge": challenge}


async def test_auth(start: Start) -> None:
    server = await start(*AUTH_ON)
    async with link_peer(server, greet=False) as peer:
        asked = await challenge_of(peer)
        assert asked.startswith(f"{server.hub.log.uuid}/")
        good = signed(asked)
        assert (await peer.ask(op="hello", id=2, version=2, auth=good))["ok"] is True
    stamp = f"{time.time():.3f}"
    unbound = {
        "client_id": CLIENT,
        "timestamp": stamp,
        "token": sign(KEY.encode(), bytes.fromhex(CLIENT), stamp),
    }
    wrong = {
        "check the key": lambda asked: signed(asked, key="other"),
        "check the client id": lambda asked: signed(asked, client="ff" * 12),
        "sign the challenge": lambda asked: signed(asked[:-1]),
        "that the hub gave this connection": lambda _: good,
        "the challenge that": lambda _: unbound,
        "a JSON object": lambda _: {},
    }
    for advice, make in wrong.items():
        async with link_peer(server, greet=False) as peer:
            told = await peer.ask(op="hello", id=2, version=2, auth=make(await challenge_of(peer)))
            assert told["error"] == "auth"
            assert advice in told["reason"]
            assert await peer.gone()
    for auth in (None, good):
        async with link_peer(server, greet=False) as peer:
            assert (await peer.ask(op="hello", id=1, version=2, auth=auth))["error"] == "auth"
            assert await peer.gone()


async def test_where_nobody_is_asked_a_hello_with_a_key_is_answered_at_once(server: Server) -> None:
    async with link_peer(server, greet=False) as peer:
        assert (await peer.ask(op="hello", id=1, version=2, auth={"client_id": CLIENT}))["ok"] is True


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


async def test_too_many_open_requests_are_refused(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_OPEN", 2)
    monkeypatch.setattr(open_streams, "MAX_STREAMS", 1)
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


async def test_holds(server: Server, peer: LinkPeer) -> None:
    await fill(peer, 5)
    assert (await peer.ask(op="holds", id=1, name="job", seq=3))["holds"] == {"job": 3}
    assert (await peer.ask(op="holds", id=1))["holds"] == {"job": 3}
    assert (await peer.ask(op="holds", id=1, name="job", release=True))["holds"] == {}
    assert (await peer.ask(op="holds", id=1))["holds"] == {}
    assert (server.hub.log.head, server.hub.log.head_op) == (5, 7)


async def test_status(server: Server, peer: LinkPeer) -> None:
    answer = await peer.ask(op="status", id=1)
    assert answer["status"]["log"] == str(server.hub.log.uuid)
    assert answer["status"]["subscribers"]["tube"] == 1


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
