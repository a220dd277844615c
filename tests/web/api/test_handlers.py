"""What the dashboard asks, answered by a running hub."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.net.raw import running_hub, until

from headrace import web
from headrace.hub.routing import subscriptions
from headrace.hub.services import entries as services
from headrace.hub.services.entries import ServiceKind
from headrace.message import Batch, Run
from headrace.net.server.process import Server
from headrace.web.api import handlers as api

OURS = {"X-Headrace": "1"}


async def submit(server: Server, batch: Batch) -> None:
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    server.hub.submit(batch, told.set_result)
    await told


async def get(http: aiohttp.ClientSession, path: str, status: int = 200) -> Any:
    async with http.get(path) as answer:
        assert answer.status == status, await answer.text()
        assert answer.headers["Content-Type"].startswith("application/json")
        return await answer.json()


async def event(answer: aiohttp.ClientResponse, wanted: str) -> Any:
    """The next event of a kind."""
    kind = b""
    async with asyncio.timeout(20):
        async for line in answer.content:
            if line.startswith(b"event: "):
                kind = line[7:].strip()
            elif line.startswith(b"data: ") and kind == wanted.encode():
                return json.loads(line[6:])
    raise AssertionError("the stream ended")


async def test_history_and_events(server: Server, http: aiohttp.ClientSession) -> None:
    assert len(await get(http, "/api/history")) >= 1
    async with http.get("/api/events") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert (await event(answer, "status"))["head"] == server.hub.log.head
        await submit(server, Batch(Run.of([b"x"] * 10), origin="fyrehose"))
        sample = await event(answer, "sample")
        assert sample["head"] == server.hub.log.head
        assert sample["received"]["fyrehose"] > 0
    assert len(await get(http, "/api/history")) >= 2


async def test_sampling_goes_on_whatever_is_published_as_measured(
    server: Server, http: aiohttp.ClientSession
) -> None:
    await submit(server, services.create("measure/second", ServiceKind.JSON))
    await submit(server, services.create("measure/minute", ServiceKind.JSON))
    for messages in ("1", "9" * 400):
        window = b'{"start":"12:00","lag":{},"messages":%s}' % messages.encode()
        for span in ("second", "minute"):
            await submit(server, Batch(Run.of([window]), origin="spp", topic=f"measure/{span}"))
        async with http.get("/api/events") as answer:
            for _ in range(2):
                assert (await event(answer, "sample"))["measured"] == {}
    assert server.hub.counters.get("background_failures") == 0


async def test_sampling_survives_a_mistake(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: object) -> None:
        raise OverflowError("too large")

    async with http.get("/api/events") as answer:
        with monkeypatch.context() as patch:
            patch.setattr(api, "measured_from", mistaken)
            await until(lambda: server.hub.counters.get("background_failures"))
        assert (await event(answer, "sample"))["head"] == 0


class TestMessages:
    async def test_found(self, server: Server, http: aiohttp.ClientSession) -> None:
        await submit(server, Batch(Run.of([b"a", b"b"]), origin="spp", topic="t/1"))
        await submit(server, Batch(Run.of([b"c"]), origin="tube", topic="u"))
        assert [m["payload"] for m in (await get(http, "/api/messages"))["messages"]] == ["a", "b", "c"]
        assert [m["payload"] for m in (await get(http, "/api/messages?topic=t/*"))["messages"]] == ["a", "b"]
        assert [m["payload"] for m in (await get(http, "/api/messages?origin=tube"))["messages"]] == ["c"]
        found = await get(http, "/api/messages?from=2&count=1")
        assert [m["payload"] for m in found["messages"]] == ["b"]
        assert (await get(http, "/api/messages?time=0&count=1"))["messages"][0]["seq"] == 1
        assert (await get(http, "/api/messages?before=2"))["messages"][0]["payload"] == "a"

    @pytest.mark.parametrize(
        "asked", ["count=0", "count=9999", "count=x", "from=-1", "before=9999999999999999999999"]
    )
    async def test_asked_for_wrongly(self, http: aiohttp.ClientSession, asked: str) -> None:
        assert "expected a number" in (await get(http, f"/api/messages?{asked}", 400))["error"]

    async def test_one(self, server: Server, http: aiohttp.ClientSession) -> None:
        await submit(server, Batch(Run.of([b"x" * 5000]), origin="spp"))
        assert len((await get(http, "/api/messages/1"))["payload"]) == 5000
        assert "messages 1 to 1 are kept" in (await get(http, "/api/messages/2", 404))["error"]

    async def test_as_they_come(self, server: Server, http: aiohttp.ClientSession) -> None:
        await submit(server, Batch(Run.of([b"before"]), origin="spp", topic="t"))
        async with http.get("/api/tail?topic=t&from=2") as answer:
            await submit(server, Batch(Run.of([b"other"]), origin="spp", topic="u"))
            await submit(server, Batch(Run.of([b"one"]), origin="spp", topic="t"))
            told = await event(answer, "messages")
            assert [m["payload"] for m in told["messages"]] == ["one"]
            await submit(server, Batch(Run.of([b"%d" % i for i in range(200)]), origin="spp", topic="t"))
            told = await event(answer, "messages")
            assert told["left_out"]
            assert told["messages"][-1]["payload"] == "199"


class TestPublish:
    async def test_text_and_attributes(self, server: Server, http: aiohttp.ClientSession) -> None:
        body = {"topic": "t", "payload": "žluť", "attributes": {"city": "Praha", "x": 5}}
        async with http.post("/api/messages", json=body, headers=OURS) as answer:
            assert (answer.status, await answer.json()) == (200, {"seq": 1})
        message = await get(http, "/api/messages/1")
        assert (message["payload"], message["topic"], message["origin"]) == ("žluť", "t", "http")
        assert (message["attributes"], message["numbers"]) == ({"city": "Praha"}, {"x": 5.0})

    async def test_bytes(self, server: Server, http: aiohttp.ClientSession) -> None:
        body = {"payload_base64": b64encode(b"\xff\x00").decode()}
        async with http.post("/api/messages", json=body, headers=OURS) as answer:
            assert answer.status == 200
        assert [bytes(p) for p in server.hub.log.read(1)[0].run] == [b"\xff\x00"]

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b'{"topic": 1}', b'{"other": 1}', b'{"payload_base64": "?"}']
    )
    async def test_what_is_no_message(self, server: Server, http: aiohttp.ClientSession, body: bytes) -> None:
        async with http.post("/api/messages", data=body, headers=OURS) as answer:
            assert answer.status == 400
            assert "not a message" in (await answer.json())["error"]
        assert server.hub.log.head == 0

    async def test_one_that_is_too_long(self, tmp_path: Path) -> None:
        async with (
            running_hub(tmp_path, "limits.message_bytes=10", http=web.start) as server,
            aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
            http.post("/api/messages", json={"payload": "x" * 11}, headers=OURS) as answer,
        ):
            assert answer.status == 422
            assert "limits.message_bytes" in (await answer.json())["error"]


class TestServices:
    async def test_listed_and_looked_at(self, server: Server, http: aiohttp.ClientSession) -> None:
        assert await get(http, "/api/services") == {"services": [], "total": 0}
        await submit(server, services.create("fleet/42", ServiceKind.JSON))
        await submit(server, services.create("blob", ServiceKind.LAST))
        await submit(server, Batch(Run.of([b'{"speed": 61}']), origin="spp", topic="fleet/42"))
        await submit(server, Batch(Run.of([b"\xff"]), origin="spp", topic="blob"))
        listed = await get(http, "/api/services")
        assert [(s["id"], s["kind"]) for s in listed["services"]] == [("fleet/42", "json"), ("blob", "last")]
        assert listed["services"][1]["value_base64"] == "/w=="
        assert [s["id"] for s in (await get(http, "/api/services?contains=fleet"))["services"]] == [
            "fleet/42"
        ]
        assert (await get(http, "/api/services?after=1"))["services"][0]["id"] == "blob"
        assert json.loads((await get(http, "/api/service?id=fleet/42"))["value"]) == {"speed": 61}
        assert "no service" in (await get(http, "/api/service?id=nobody", 404))["error"]

    async def test_a_cut_through_a_character_is_still_text(
        self, server: Server, http: aiohttp.ClientSession
    ) -> None:
        text = "x" + "ž" * 400
        await submit(server, services.create("a", ServiceKind.LAST))
        await submit(server, Batch(Run.of([text.encode()]), origin="spp", topic="a"))
        (listed,) = (await get(http, "/api/services"))["services"]
        assert (listed["value"], listed["size"]) == (text[:256], 801)
        assert (await get(http, "/api/service?id=a"))["value"] == text

    async def test_live_until_it_is_removed(self, server: Server, http: aiohttp.ClientSession) -> None:
        await submit(server, services.create("a", ServiceKind.JSON))
        async with http.get("/api/service/events?id=a") as answer:
            assert (await event(answer, "service"))["value"] == "{}"
            await submit(server, Batch(Run.of([b'{"x":1}']), origin="spp", topic="a"))
            assert json.loads((await event(answer, "service"))["value"]) == {"x": 1}
            await submit(server, services.remove("a"))
            assert await event(answer, "removed") == {"id": "a"}
            async with asyncio.timeout(20):
                assert (await answer.content.read()).strip() == b"", "the stream ends there"


class TestSubscriptions:
    async def test_who_subscribes_what_and_who_would_get_it(
        self, server: Server, http: aiohttp.ClientSession
    ) -> None:
        assert await get(http, "/api/subscriptions") == {"subscriptions": [], "total": 0}
        here = server.routing.id
        for client, city in ((b"a" * 12, "Praha"), (b"b" * 12, "Oslo")):
            field = json.dumps({"use": 1, "strval": city})
            await submit(server, subscriptions.subscribe(client, here, {"city": field}))
        await until(lambda: len(server.routing.matching) == 2)
        told = (await get(http, "/api/status"))["subscribers"]
        assert (told["subscriptions"], told["subscriptions_here"]) == (2, 2)
        assert told["subscription_bytes"] >= 2 * 12
        assert told["bytes_per_subscription"] == round(told["subscription_bytes"] / 2)
        listed = await get(http, "/api/subscriptions")
        assert listed["total"] == 2
        assert listed["subscriptions"][0]["fields"]["city"]["strval"] == "Praha"
        assert not listed["subscriptions"][0]["connected"]
        found = await get(http, f"/api/subscriptions?contains={(b'b' * 12).hex()}")
        assert [each["client"] for each in found["subscriptions"]] == [(b"b" * 12).hex()]
        body = {"attributes": {"city": "Oslo"}}
        async with http.post("/api/subscriptions/try", json=body, headers=OURS) as answer:
            assert await answer.json() == {"clients": [(b"b" * 12).hex()], "total": 1}
        async with http.post("/api/subscriptions/try", json={}, headers=OURS) as answer:
            assert await answer.json() == {"clients": [], "total": 0}


async def test_open_streams_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    async with running_hub(tmp_path, http=web.start) as server:
        session = aiohttp.ClientSession(f"http://{server.doors['http']}")
        answers = [await session.get(path) for path in ("/api/events", "/api/tail")]
        await event(answers[0], "status")
        loop = asyncio.get_running_loop()
        begun = loop.time()
    assert loop.time() - begun < server.settings.limits.drain_seconds
    for answer in answers:
        answer.close()
    await session.close()


async def test_a_costly_topic_pattern_is_refused(http: aiohttp.ClientSession) -> None:
    for path in ("/api/messages", "/api/tail"):
        async with http.get(path, params={"topic": "a*" * 100}) as answer:
            assert answer.status == 400
            assert "topic pattern" in (await answer.json())["error"]


async def test_messages_are_found_by_text_and_attributes(server: Server, http: aiohttp.ClientSession) -> None:
    for payload, attributes in (
        ("Hello, World", {}),
        ("hello", {"city": "Praha", "x": 5}),
        ("other", {"city": "Praha", "x": 6}),
    ):
        content = {"payload": payload, "attributes": attributes}
        async with http.post("/api/messages", json=content, headers=OURS) as answer:
            assert answer.status == 200

    async def seqs(query: str) -> list[int]:
        return [each["seq"] for each in (await get(http, f"/api/messages?{query}"))["messages"]]

    assert await seqs("text=WORLD") == [1]
    assert await seqs("text=hello") == [1, 2]
    assert await seqs('where={"city":"Praha"}') == [2, 3]
    assert await seqs('where={"city":"Praha","x":5}') == [2]
    assert await seqs('text=o&where={"x":6}') == [3]
    for wrong in ("5", "{", '{"x":null}'):
        await get(http, f"/api/messages?where={wrong}", 400)
