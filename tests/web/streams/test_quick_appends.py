"""Plain appends without aiohttp: the same answers as by aiohttp, and whatever is not plain goes there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.net.raw import running_hub, until

from headrace import web
from headrace.errors import FullError
from headrace.message import Batch
from headrace.net.server.process import Server
from headrace.web.streams import quick_appends
from headrace.web.streams.quick_appends import is_whole, parse_head

TEXT = {"Content-Type": "text/plain"}
DEADLINE = 20.0


class Raw:
    """A connection whose bytes a test chooses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send bytes in one piece; return the answer to the first request among them."""
        self.writer.write(request)
        await self.writer.drain()
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(DEADLINE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body


@asynccontextmanager
async def raw(server: Server) -> AsyncIterator[Raw]:
    host, _, port = server.doors["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


def post(path: str, body: bytes, *headers: str, kind: str = "text/plain") -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {kind}",
        *headers,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics of the appends that were taken the quick way."""
    topics: list[str] = []
    init = quick_appends._Append.__init__

    def noted(self: quick_appends._Append, *arguments: object) -> None:
        topics.append(arguments[-1].topic)  # type: ignore[attr-defined]
        init(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(quick_appends._Append, "__init__", noted)
    return topics


@pytest.mark.parametrize("path", ["/v1/stream/s", "/v1/publish/s"])
async def test_both_ways_give_the_same_answer(
    server: Server, http: aiohttp.ClientSession, taken: list[str], path: str
) -> None:
    assert (await http.put("/v1/stream/s", headers=TEXT)).status == 201
    async with raw(server) as quick, raw(server) as slow:
        for _ in range(3):
            one = await quick.ask(post(path, b"x"))
            other = await slow.ask(post(path, b"x", "X-Other: by aiohttp"))
            assert one[0] == other[0]
            varying = ("date", "stream-next-offset")
            assert {k: v for k, v in one[1].items() if k not in varying} == {
                k: v for k, v in other[1].items() if k not in varying
            }
            assert set(one[1]) == set(other[1])
        assert taken == ["s"] * 3
    assert server.hub.log.head == 6
    (batch, *_) = server.hub.log.scan(1)
    assert (batch.origin, batch.publisher, batch.topic) == ("http", "127.0.0.1", "s")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post("/v1/stream/none", b"x"), 404),
        (post("/v1/stream/s", b""), 400),
        (post("/v1/stream/s", b"x", kind="application/json"), 409),
        (post("/v1/stream/json", b"{", kind="application/json"), 400),
        (post("/v1/stream/json", b"[]", kind="application/json"), 400),
        (post("/v1/stream/closed", b"x"), 409),
        (post("/v1/stream/s", b"x", "Stream-Closed: true"), 204),
        (post("/v1/stream/s", b"x", "Origin: http://evil.example"), 403),
        (post("/v1/stream/s", b"x", "Stream-Seq: 1"), 204),
        (post("/v1/publish/s?a=1", b"x"), 200),
        (post("/v1/publish/s", b"x", "Headrace-Attr-a: 1"), 200),
        (post("/v1/publish/s", b"x").replace(b"127.0.0.1", b"evil.example"), 421),
        (post("/v1/publish/s", b"x").replace(b"Content-Length: 1", b"Content-Length: +1"), 400),
        (post("/v1/publish/s", b"x", "Content-Length: 1"), 400),
    ],
)
async def test_what_is_not_plain_is_left_to_aiohttp(
    server: Server, http: aiohttp.ClientSession, taken: list[str], request_bytes: bytes, status: int
) -> None:
    assert (await http.put("/v1/stream/s", headers=TEXT)).status == 201
    assert (await http.put("/v1/stream/closed", headers={**TEXT, "Stream-Closed": "true"})).status == 201
    assert (await http.put("/v1/stream/json", headers={"Content-Type": "application/json"})).status == 201
    async with raw(server) as peer:
        assert (await peer.ask(request_bytes))[0] == status
    assert taken == []


async def test_a_connection_changes_between_the_ways(
    server: Server, http: aiohttp.ClientSession, taken: list[str]
) -> None:
    assert (await http.put("/v1/stream/s", headers=TEXT)).status == 201
    async with raw(server) as peer:
        for _ in range(3):
            assert (await peer.ask(post("/v1/stream/s", b"quick;")))[0] == 204
            assert (await peer.ask(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))[0] == 200
            assert (await peer.ask(post("/v1/stream/s", b"slow;", "X-Other: 1")))[0] == 204
        assert len(taken) == 3
        # In pieces: aiohttp has the connection from then on.
        whole = post("/v1/stream/s", b"pieces;")
        peer.writer.write(whole[:-3])
        await peer.writer.drain()
        # Once this is answered, the hub has read that piece.
        assert (await http.get("/healthz")).status == 200
        peer.writer.write(whole[-3:])
        assert (await peer.answer())[0] == 204
        assert (await peer.ask(post("/v1/stream/s", b"after;")))[0] == 204
        assert len(taken) == 3
    async with http.get("/v1/stream/s?offset=-1") as page:
        assert await page.text() == "quick;slow;" * 3 + "pieces;after;"


async def test_what_is_sent_ahead_is_answered_in_order(
    server: Server, http: aiohttp.ClientSession, taken: list[str]
) -> None:
    """The next requests come while one is under way, in any pieces."""
    assert (await http.put("/v1/stream/s", headers=TEXT)).status == 201
    async with raw(server) as peer:
        for size in (1, 7, 40, 200):
            stream = b"".join(post("/v1/publish/s", b"%d;" % number) for number in range(20))
            peer.writer.write(post("/v1/publish/s", b"first;"))
            for at in range(0, len(stream), size):
                peer.writer.write(stream[at : at + size])
            await peer.writer.drain()
            seqs = [(await peer.answer())[2] for _ in range(21)]
            first = int(seqs[0][7:-2])
            assert seqs == [b'{"seq":%d}\n' % seq for seq in range(first, first + 21)]
    assert server.hub.log.head == 4 * 21


async def test_a_full_disk_is_told(
    server: Server, http: aiohttp.ClientSession, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await http.put("/v1/stream/s", headers=TEXT)).status == 201

    def full(_batches: object) -> None:
        raise FullError("log", "no space")

    async with raw(server) as peer:
        with monkeypatch.context() as patched:
            patched.setattr(server.hub.log, "append", full)
            status, _, body = await peer.ask(post("/v1/stream/s", b"x"))
        assert (status, taken) == (507, ["s"])
        assert b"no space" in body
        assert (await peer.ask(post("/v1/stream/s", b"x")))[0] == 204


async def test_what_is_closed_meanwhile_is_told(
    server: Server, http: aiohttp.ClientSession, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody closes the stream between the look at it and the turn that appends."""
    assert (await http.put("/v1/stream/s", headers=TEXT)).status == 201
    submit, closing = server.hub.submit, {**TEXT, "Stream-Closed": "true"}
    held: list[tuple[object, ...]] = []

    def hold(batch: Batch, done: object = None, *, tied: bool = False) -> None:
        held.append((batch, done, tied))

    async with raw(server) as peer:
        with monkeypatch.context() as patched:
            patched.setattr(server.hub, "submit", hold)
            peer.writer.write(post("/v1/stream/s", b"late"))
            await until(lambda: held)
        assert (await http.post("/v1/stream/s", data=b"end", headers=closing)).status == 204
        batch, done, tied = held[0]
        submit(batch, done, tied=tied)  # type: ignore[arg-type]
        status, headers, _ = await peer.answer()
    assert (status, headers["stream-closed"]) == (409, "true")
    async with http.get("/v1/stream/s?offset=-1") as page:
        assert await page.text() == "end"


async def test_who_hangs_up_leaves_nothing_behind(server: Server, http: aiohttp.ClientSession) -> None:
    assert (await http.put("/v1/stream/s", headers=TEXT)).status == 201
    for _ in range(150):  # More than there may be at once.
        async with raw(server) as peer:
            peer.writer.write(post("/v1/publish/s", b"x"))
            await peer.writer.drain()
    await until(lambda: len(server._http.admission) <= 1)  # type: ignore[union-attr]
    async with raw(server) as peer:
        assert (await peer.ask(post("/v1/publish/s", b"x")))[0] == 200


async def test_under_auth_a_stranger_is_turned_away(tmp_path: Path, taken: list[str]) -> None:
    sets = ("auth.required=true", "auth.clients.0102030405060708090a0b0c=secret-key-of-many-characters")
    async with running_hub(tmp_path, *sets, http=web.start) as server, raw(server) as peer:
        assert (await peer.ask(post("/v1/publish/s", b"x")))[0] == 401
    assert taken == []


async def test_rights_are_checked(tmp_path: Path, taken: list[str]) -> None:
    sets = ("access.anonymous.allow=publish open/**",)
    async with running_hub(tmp_path, *sets, http=web.start) as server, raw(server) as peer:
        assert (await peer.ask(post("/v1/publish/open/a", b"x")))[0] == 200
        assert (await peer.ask(post("/v1/publish/shut", b"x")))[0] == 403
    assert taken == ["open/a"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1",
        b"POST /v1/stream/a HTTP/1.0\r\nHost: a\r\nContent-Length: 1",
        b"POST /v1/stream/a%2Fb HTTP/1.1\r\nHost: a\r\nContent-Length: 1",
        b"POST /v1/stream/../api HTTP/1.1\r\nHost: a\r\nContent-Length: 1",
        b"POST /v1/stream//a HTTP/1.1\r\nHost: a\r\nContent-Length: 1",
        b"POST /v1/stream/a* HTTP/1.1\r\nHost: a\r\nContent-Length: 1",
        b"POST /v1/stream/a HTTP/1.1\r\nContent-Length: 1",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 01",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\ncontent-length: 1",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length : 1",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n folded: 1",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nConnection: close",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nAuthorization: Bearer x",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Type: \xff",
        b"POST /v1/stream/a HTTP/1.1\nHost: a\nContent-Length: 1",
        b"POST /v1/stream/a HTTP/1.1\r\nHost: user@a\r\nContent-Length: 1",
    ],
)
def test_only_plain_heads_are_parsed(head: bytes) -> None:
    assert parse_head(head) is None


def test_whether_bytes_are_one_whole_request() -> None:
    assert is_whole(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert is_whole(post("/", b"abc"))
    assert not is_whole(post("/", b"abc")[:-1])
    assert not is_whole(post("/", b"abc") + b"G")
    assert not is_whole(post("/", b"abc", "Content-Length: 3"))
    assert not is_whole(b"GET / HTTP/1.1\r\nHost: a\r\n")
    assert not is_whole(b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
