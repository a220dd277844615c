"""Queries over HTTP: read-only, bounded, and only by whoever may read everything."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.net.raw import running_hub
from tests.web.access.test_check import CLIENT, KEY

import headrace
from headrace import web
from headrace.client.sql import worker
from headrace.net.server.process import Server
from headrace.web.api import sql

OURS = {"X-Headrace": "1"}


async def ask(http: aiohttp.ClientSession, query: str, status: int = 200, **more: Any) -> dict[str, Any]:
    async with http.post("/api/sql", json={"query": query, **more}, headers=OURS) as answer:
        content: dict[str, Any] = await answer.json()
        assert answer.status == status, content
        return content


@pytest.fixture
async def messages(server: Server) -> None:
    async with headrace.connect(f"tube://{server.doors['tube_tcp']}") as link:
        await link.publish([b"one", b"two"], topic="orders/eu")
        await link.publish(b"\xff", topic="orders/us")
    async with headrace.connect(f"spp://{server.doors['spp']}") as spp:
        await spp.publish({"speed": 61}, topic="fleet/42")


@pytest.mark.usefixtures("messages")
async def test_an_answer_says_what_it_is_exact_for(server: Server, http: aiohttp.ClientSession) -> None:
    answer = await ask(http, "select topic, count(*) as n from messages group by 1 order by 1")
    assert answer["rows"] == [["fleet/42", 1], ["orders/eu", 2], ["orders/us", 1]]
    assert [column["name"] for column in answer["columns"]] == ["topic", "n"]
    assert (answer["head"], answer["more"]) == (4, False)
    assert answer["log"] == str(server.hub.log.uuid)
    answer = await ask(http, "select max(seq) as last, max(seq) as last from messages", as_of=2)
    assert answer["rows"] == [[2, 2]]
    answer = await ask(http, "select service, decode(value) as value from services")
    assert answer["rows"] == [["fleet/42", '{"speed":61}']]


@pytest.mark.usefixtures("messages")
async def test_a_query_gets_little(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = await ask(http, "select range as n, repeat('x', 5000) as long from range(100000)")
    assert (len(answer["rows"]), answer["more"]) == (1000, True)
    assert len(answer["rows"][0][1]) == 1001
    greedy = await ask(http, "select list(range) from range(200000000)", 422)
    assert "memory" in greedy["error"].lower()
    for query in (
        f"copy messages to '{tmp_path}/stolen.csv'",
        "select * from read_csv('/etc/passwd')",
        "install httpfs",
        "attach '/tmp/other.db'",
        "set memory_limit = '1TB'",
    ):
        await ask(http, query, 422)
    assert not (tmp_path / "stolen.csv").exists()
    await ask(http, "x" * 20_000, 400)
    async with http.post("/api/sql", json={"query": "select 1"}) as foreign:
        assert foreign.status == 403
    monkeypatch.setattr(sql, "SECONDS", 2.0)
    endless = await ask(
        http, "select count(*) from range(10000000000000) a, range(1000) b where a.range % 7 = b.range", 422
    )
    assert "more than 2 s" in endless["error"]
    monkeypatch.setattr(sql, "AT_A_TIME", 0)
    await ask(http, "select 1", 429)


async def test_what_python_does_not_have_is_said(http: aiohttp.ClientSession) -> None:
    far = await ask(
        http, "select date 'infinity', timestamp '290000-01-01', [date 'infinity'], interval 3 month"
    )
    assert all("out of range" in shown for shown in far["rows"][0][:3])
    # Deeper than Python reads it, and than Arrow shows it.
    assert (await ask(http, f"select count(*) from messages where {'not ' * 900} topic = 'a'"))["rows"] == [
        [0]
    ]
    deep = await ask(http, f"select {'[' * 100}1{']' * 100}", 422)
    assert "cannot be given" in deep["error"]


async def test_the_hub_takes_no_more_of_an_answer_than_it_gives(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    feed = asyncio.StreamReader.feed_data

    def count(reader: asyncio.StreamReader, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        feed(reader, data)

    monkeypatch.setattr(asyncio.StreamReader, "feed_data", count)
    monkeypatch.setattr(sql, "MAX_ANSWER", 100_000)
    large = await ask(http, "select repeat(chr(1), 999) as a, a as b, a as c from range(1000)", 422)
    assert "too large" in large["error"]
    assert 100_000 < taken < 1_000_000


async def test_a_query_ends_though_its_hub_was_killed(server: Server) -> None:
    log = server.hub.log
    query = "select count(*) from range(10000000000000) a, range(1000) b where a.range % 7 = b.range"
    question = msgspec.json.encode(worker.Question(query, str(log.directory.absolute()), log.head))
    brief = "from headrace.client.sql import worker; worker._LIFE = 1; worker.main()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", brief, stdin=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(120):
            await process.communicate(question)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == -signal.SIGALRM


async def test_only_who_may_read_everything_asks(tmp_path: Path) -> None:
    sets = (
        "auth.required=true",
        f"access.reader.client_id={CLIENT}",
        f"access.reader.key={KEY}",
        "access.reader.allow=read **",
        "access.other.client_id=00112233445566778899aacc",
        f"access.other.key={KEY}",
        "access.other.allow=read fleet/**",
    )
    async with running_hub(tmp_path, *sets, http=web.start) as server:
        for client, status in ((CLIENT, 200), ("00112233445566778899aacc", 403)):
            proof = {"Authorization": aiohttp.encode_basic_auth(client, KEY)}
            async with aiohttp.ClientSession(f"http://{server.doors['http']}", headers=proof) as http:
                await ask(http, "select count(*) from messages", status)
                # The state is for operators.
                await ask(http, "select count(*) from subscriptions", 403)
