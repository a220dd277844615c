"""Requests that are made to harm the hub, its other users, or the people who look at its pages."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest
from tests.net.raw import running_hub

import headrace
from headrace import web
from headrace.hub.streams.streams import PRODUCER_BYTES, STREAM_BYTES
from headrace.net.server.process import Server

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
DEEP = b"[" * 100_000 + b"]" * 100_000


async def raw(server: Server, request: bytes) -> bytes:
    """Send bytes that no client would, and return the whole answer."""
    host, _, port = server.doors["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


async def test_what_a_stream_holds_never_acts_for_the_hub_in_a_browser(http: aiohttp.ClientSession) -> None:
    page = b'<script src="/v1/stream/evil.js"></script>'
    async with http.put("/v1/stream/page", data=page, headers={"Content-Type": "text/html"}) as answer:
        assert answer.status == 201
    async with http.get("/v1/stream/page") as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert "allow-scripts" not in policy


async def test_deep_json_is_refused_and_harms_no_reader(http: aiohttp.ClientSession) -> None:
    async with http.put("/v1/stream/values", headers=JSON) as answer:
        assert answer.status == 201
    async with http.post("/v1/stream/values", data=DEEP, headers=JSON) as answer:
        assert answer.status == 400
    async with http.post("/v1/publish/values", data=DEEP) as answer:
        assert answer.status == 200
    async with http.post("/v1/publish/values", data=b'"\xff"') as answer:
        assert answer.status == 200
    async with http.get("/v1/stream/values") as answer:
        assert answer.status == 200
        assert len(await answer.json()) == 2


@pytest.mark.parametrize(
    "header",
    [
        b"Producer-Id: \xff\r\nProducer-Epoch: 0\r\nProducer-Seq: 0",
        b"Producer-Id: a\r\nProducer-Epoch: \xff\r\nProducer-Seq: 0",
        b"Stream-Seq: \xff",
    ],
)
async def test_headers_that_are_no_text_are_refused(
    server: Server, http: aiohttp.ClientSession, header: bytes
) -> None:
    async with http.put("/v1/stream/a", headers=TEXT) as answer:
        assert answer.status == 201
    lines = b"POST /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1\r\n"
    answer = await raw(server, lines + b"Content-Type: text/plain\r\n" + header + b"\r\n\r\nx")
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Type: \xff",
        b"Stream-Forked-From: http://[",
        b"Stream-Forked-From: \xff",
        b"Stream-TTL: \xff",
        b"Stream-Expires-At: 9999-12-31T23:59:59-14:00",
    ],
)
async def test_a_stream_is_not_made_of_nonsense(server: Server, header: bytes) -> None:
    lines = b"PUT /v1/stream/b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n"
    answer = await raw(server, lines + header + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
    assert server.parts.streams.get("b") is None


async def test_published_attributes_are_text_and_not_too_many(server: Server) -> None:
    many = b"&".join(b"%x=1" % number for number in range(1100))
    for line, header in ((b"/v1/publish/c", b"Headrace-Attr-A: \xff"), (b"/v1/publish/c?" + many, b"A: b")):
        lines = (
            b"POST " + line + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1\r\n"
        )
        answer = await raw(server, lines + header + b"\r\n\r\nx")
        assert answer.startswith(b"HTTP/1.1 400"), answer[:200]


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "limits.slow_seconds=0.2", http=web.start) as server:
        paths = (b"PUT /v1/stream/a", b"POST /v1/stream/a", b"POST /v1/publish/a")
        head = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 10\r\n"
        rest = b"Content-Type: text/plain\r\n\r\nx"
        for answer in await asyncio.gather(*(raw(server, path + head + rest) for path in paths)):
            assert answer.startswith(b"HTTP/1.1 408"), answer[:200]


async def test_a_source_that_may_not_be_read_tells_nothing(tmp_path: Path) -> None:
    settings = {
        "auth.required": "true",
        "access.few.token_sha256": sha256(b"few").hexdigest(),
        "access.few.allow": "publish **,read open/**",
        "access.all.token_sha256": sha256(b"all").hexdigest(),
        "access.all.allow": "all **",
    }
    given = [f"{name}={value}" for name, value in settings.items()]
    async with (
        running_hub(tmp_path, *given, http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):
        few, every = ({"Authorization": f"Bearer {token}"} for token in ("few", "all"))
        async with http.put("/v1/stream/secret/a", data=b"hidden", headers=every | TEXT) as answer:
            assert answer.status == 201
        for source in ("secret/a", "secret/none"):
            fork = {"Stream-Forked-From": f"/v1/stream/{source}"}
            async with http.put("/v1/stream/open/a", headers=few | fork) as answer:
                assert answer.status == 403
        fork = {"Stream-Forked-From": "/v1/stream/secret/a"}
        async with http.put("/v1/stream/open/b", headers=every | fork | TEXT) as answer:
            assert answer.status == 201
        # A message keeps its topic, whichever stream it is in.
        for path in ("/v1/stream/open/b", "/v1/stream/open/b?offset=-1&live=sse"):
            async with http.get(path, headers=few) as answer:
                assert (answer.status, "secret" in await answer.text()) == (403, False)
        again = {"Stream-Forked-From": "/v1/stream/open/b"}
        async with http.put("/v1/stream/open/c", headers=few | again | TEXT) as answer:
            assert answer.status == 403


async def test_a_producer_too_many_is_refused(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.hub.streams.streams.MAX_PRODUCERS", 2)
    monkeypatch.setattr("headrace.web.streams.judged_changes.MAX_PRODUCERS", 2)
    async with http.put("/v1/stream/p", headers=TEXT) as answer:
        assert answer.status == 201
    statuses = []
    for name in ("a", "b", "c", "a"):
        headers = TEXT | {"Producer-Id": name, "Producer-Epoch": "0", "Producer-Seq": "0"}
        async with http.post("/v1/stream/p", data=b"x", headers=headers) as answer:
            statuses.append(answer.status)
    assert statuses == [200, 200, 429, 204]


async def test_a_body_of_the_api_that_is_no_text_is_refused(http: aiohttp.ClientSession) -> None:
    body = b'{"consumer": "\xff"}'
    async with http.post("/api/consumers/remove", data=body, headers={"X-Headrace": "1"}) as answer:
        assert answer.status == 400


async def test_a_rate_holds_for_messages_by_http(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, "limits.messages_per_second=2", http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):
        answers = [await http.post("/v1/publish/a", data=b"x") for _ in range(20)]
        assert answers[0].status == 200
        refused = [answer for answer in answers if answer.status == 429]
        assert refused
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)


async def test_streams_are_charged_to_whoever_makes_them(tmp_path: Path) -> None:
    budget = f"limits.state_bytes_per_client={2 * STREAM_BYTES + 2 * PRODUCER_BYTES}"
    async with (
        running_hub(tmp_path, budget, http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):

        async def put(name: str) -> int:
            async with http.put(f"/v1/stream/{name}", headers=TEXT) as answer:
                return answer.status

        async def append(producer: str) -> int:
            headers = {**TEXT, "Producer-Id": producer, "Producer-Epoch": "0", "Producer-Seq": "0"}
            async with http.post("/v1/stream/a", data=b"x", headers=headers) as answer:
                return answer.status

        assert [await put("a"), await put("b"), await put("a")] == [201, 201, 200]
        assert [await append("one"), await append("two"), await append("three")] == [200, 200, 429]
        assert await put("c") == 429
        account = next(iter(server.accounts))
        assert account.state_bytes == account.most_state_bytes
        assert server.hub.counters.get("refused", door="http", reason="state_bytes") == 2
        async with http.delete("/v1/stream/b") as answer:
            assert answer.status == 204
        assert [await append("three"), await put("d"), account.refused] == [200, 429, 3]
        async with http.delete("/v1/stream/a") as answer:
            assert answer.status == 204
        assert account.state_bytes == account.state_pending == 0


async def test_what_a_client_reads_is_in_its_account(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, "limits.sent_bytes_per_second=1000", http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):
        async with http.post("/v1/publish/a", data=bytes(100_000)) as answer:
            assert answer.status == 200
        async with http.get("/v1/stream/a") as answer:
            assert (answer.status, len(await answer.read())) == (200, 100_000)
        (account,) = server.accounts
        assert account.sent_bytes >= 100_000
        # A hundred seconds' worth: it has to wait for some of them.
        async with http.get("/v1/stream/a") as answer:
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) > 50
        assert account.paused == 1
        # Publishing, and what tells whether the hub is well, are not reading.
        async with http.post("/v1/publish/a", data=b"x") as answer:
            assert answer.status == 200
        async with http.get("/readyz") as answer:
            assert answer.status == 200


@pytest.mark.parametrize("path", ["/v1/service/fleet/42?live=sse", "/api/service/events?id=fleet/42"])
async def test_events_count_towards_what_a_client_is_sent(tmp_path: Path, path: str) -> None:
    async with (
        running_hub(tmp_path, "limits.sent_bytes_per_second=1000", http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):
        async with headrace.connect(f"spp://{server.doors['spp']}") as spp:
            await spp.publish({"long": "x" * 20_000}, topic="fleet/42")
        async with http.get(path) as answer:
            while not (await answer.content.readline()).startswith(b"data:"):
                pass
            async with http.get("/v1/service/fleet/42") as refused:
                assert refused.status == 429
