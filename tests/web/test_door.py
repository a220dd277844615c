"""The ``http`` door of a running hub."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from tests.net.raw import TcpPeer, push, running_hub, until

from headrace import __version__, web
from headrace.errors import FullError, StorageError
from headrace.log.sealed.segment import SealedSegment
from headrace.net.server.process import Server
from headrace.web import connections


async def published(server: Server, *payloads: bytes) -> None:
    head = server.hub.log.head + len(payloads)
    with await TcpPeer.connect(server) as peer:
        await peer.send(b"".join(map(push, payloads)))
        await until(lambda: server.hub.log.head == head)


def sealed(server: Server) -> int:
    return sum(isinstance(segment, SealedSegment) for segment in server.hub.log.segments)


async def test_the_status(server: Server, http: aiohttp.ClientSession) -> None:
    await published(server, b"a", b"b")
    async with http.get("/api/status") as answer:
        assert answer.status == 200
        assert answer.content_type == "application/json"
        status = await answer.json()
    assert status["version"] == __version__
    assert status["log"] == str(server.hub.log.uuid)
    assert (status["first"], status["head"], status["tail"]) == (1, 2, 2)
    assert status["node"]["name"] == "mill"
    assert status["mode"] == "WRK"
    assert status["doors"] == server.doors
    assert {"fyrehose", "http"} <= status["doors"].keys()
    assert status["counters"]["received"] == {"fyrehose": 2}
    assert status["uptime"] >= 0


async def test_a_refusal_is_in_the_status(server: Server, http: aiohttp.ClientSession) -> None:
    with await TcpPeer.connect(server) as peer:
        await peer.send(b"\x00")
        assert await peer.rest() == b""
    async with http.get("/api/status") as answer:
        assert (await answer.json())["counters"]["refused"] == {"fyrehose/malformed": 1}


async def test_healthy_and_ready(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.get("/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})
    async with http.get("/readyz") as answer:
        assert (answer.status, await answer.json()) == (200, {"ready": True})


async def test_a_hub_that_stops_is_healthy_and_not_ready(server: Server, http: aiohttp.ClientSession) -> None:
    server.ready = False
    async with http.get("/healthz") as answer:
        assert answer.status == 200
    async with http.get("/readyz") as answer:
        assert (answer.status, await answer.json()) == (503, {"ready": False})


async def test_the_front_page(http: aiohttp.ClientSession) -> None:
    async with http.get("/") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert "/api/status" in await answer.text()


class TestSeal:
    async def test_it_seals_what_is_committed(self, server: Server, http: aiohttp.ClientSession) -> None:
        await published(server, b"a", b"b")
        async with http.post("/api/log/seal", headers={"X-Headrace": "1"}) as answer:
            assert (answer.status, await answer.json()) == (200, {"sealed": 1})
        assert sealed(server) == 1
        async with http.post("/api/log/seal", headers={"X-Headrace": "1"}) as answer:
            assert (answer.status, await answer.json()) == (200, {"sealed": 0})

    async def test_a_foreign_page_cannot(self, server: Server, http: aiohttp.ClientSession) -> None:
        # A form or a script of another site can POST here, but not with a header of its own.
        await published(server, b"a")
        async with http.post("/api/log/seal", headers={"Origin": "https://example.org"}) as answer:
            assert answer.status == 403
            assert "X-Headrace" in (await answer.json())["error"]
        assert sealed(server) == 0
        preflight = {"Origin": "https://example.org", "Access-Control-Request-Headers": "X-Headrace"}
        async with http.options("/api/log/seal", headers=preflight) as answer:
            assert answer.status == 405
            assert "Access-Control-Allow-Origin" not in answer.headers

    async def test_not_by_get(self, http: aiohttp.ClientSession) -> None:
        async with http.get("/api/log/seal", headers={"X-Headrace": "1"}) as answer:
            assert answer.status == 405

    @pytest.mark.parametrize(
        ("error", "status"),
        [(FullError("log", "no space left on device"), 507), (StorageError("the disk is broken"), 500)],
    )
    async def test_a_disk_that_fails_is_said_to_fail(
        self,
        server: Server,
        http: aiohttp.ClientSession,
        monkeypatch: pytest.MonkeyPatch,
        error: StorageError,
        status: int,
    ) -> None:
        def fail() -> None:
            raise error

        await published(server, b"a")
        with monkeypatch.context() as patch:
            patch.setattr(server.hub.log, "rotate", fail)
            async with http.post("/api/log/seal", headers={"X-Headrace": "1"}) as answer:
                assert (answer.status, await answer.json()) == (status, {"error": str(error)})


async def test_what_is_not_there(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/nothing") as answer:
        assert answer.status == 404


async def test_silent_connections_give_way(tmp_path: Path) -> None:
    async with running_hub(tmp_path, http=web.start) as server, AsyncExitStack() as stack:
        for _ in range(connections.MAX_CONNECTIONS + 12):
            _, writer = await asyncio.open_connection(*server.doors["http"].split(":"))
            stack.callback(writer.close)
        for _ in range(10):
            async with aiohttp.request("GET", f"http://{server.doors['http']}/healthz") as answer:
                assert answer.status == 200
        assert server.hub.counters.get("refused", door="http", reason="connections") >= 12
        assert len(server._http.admission) <= connections.MAX_CONNECTIONS * 3 // 4  # type: ignore[union-attr]


async def test_health_checks_answer_however_many_streams_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 16)
    monkeypatch.setattr(connections, "SPARE", 8)
    async with running_hub(tmp_path, http=web.start) as server, AsyncExitStack() as stack:
        where = f"http://{server.doors['http']}"
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(where, connector=connector))
        answers = [await stack.enter_async_context(http.get("/api/events")) for _ in range(8)]
        assert [answer.status for answer in answers] == [200] * 8
        refused = [await stack.enter_async_context(http.get("/api/events")) for _ in range(6)]
        assert [answer.status for answer in refused] == [503] * 6
        for path in ("/healthz", "/readyz", "/metrics"):
            async with aiohttp.request("GET", where + path) as answer:
                assert answer.status == 200
        # A stream that ends makes room.
        answers[0].close()
        async with asyncio.timeout(20):
            while True:
                async with http.get("/api/status") as answer:
                    if answer.status == 200:
                        break


async def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    async with running_hub(tmp_path, http=web.start) as server, AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://{server.doors['http']}"))
        await stack.enter_async_context(http.get("/api/events"))
        # All that this address may have is under way: nothing gives way.
        with pytest.raises(aiohttp.ClientError):
            await http.get("/healthz")
        assert server.hub.counters.get("refused", door="http", reason="connections") >= 1


async def test_there_is_room_however_many_connections_other_doors_have(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "limits.connections_per_address=1", http=web.start) as server:
        with await TcpPeer.connect(server) as peer:
            await peer.subscribe()
            async with aiohttp.request("GET", f"http://{server.doors['http']}/healthz") as answer:
                assert answer.status == 200
            assert server.connections == 1
        await until(lambda: not len(server._http.admission))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "]
)
async def test_a_connection_that_sends_no_request_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with running_hub(tmp_path, "limits.handshake_seconds=0.2", http=web.start) as server:
        reader, writer = await asyncio.open_connection(*server.doors["http"].split(":"))
        writer.write(sent)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        assert server.hub.counters.get("refused", door="http", reason="stalled") == 1
        writer.close()


async def test_a_connection_that_asked_in_time_stays(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "limits.handshake_seconds=0.2", http=web.start) as server:
        reader, writer = await asyncio.open_connection(*server.doors["http"].split(":"))
        asking = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        writer.write(asking)
        assert await reader.readuntil(b"}") != b""
        loop = asyncio.get_running_loop()
        passed = loop.time() + 0.4
        await until(lambda: loop.time() > passed)
        writer.write(asking)
        assert await reader.readuntil(b"}") != b""
        assert server.hub.counters.get("refused", door="http", reason="stalled") == 0
        writer.close()


async def test_a_failed_sync_is_not_ready(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.hub.log, "failure", "the disk is gone")
    async with http.get("/readyz") as answer:
        assert answer.status == 503
        assert (await answer.json())["reason"] == "the disk is gone"
    monkeypatch.undo()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: [::zz\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost:99999\r\n\r\n",
    ],
)
async def test_a_flood_of_malformed_requests_writes_little(
    server: Server, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    for _ in range(100):
        reader, writer = await asyncio.open_connection(*server.doors["http"].split(":"))
        writer.write(sent)
        async with asyncio.timeout(20):
            assert b" 400 " in await reader.readline()
        writer.close()
    assert len(caplog.text) < 20_000
    assert "Traceback" not in caplog.text
