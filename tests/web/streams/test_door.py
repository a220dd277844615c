"""Streams over HTTP beside the other doors; the protocol's own suite has the rest (test_durable_streams)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.net.raw import running_hub

import headrace
from headrace import web
from headrace.net.server.process import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    settings = ("limits.poll_seconds=0.2", "auth.origins=https://shop.example")
    async with running_hub(tmp_path, *settings, http=web.start) as server:
        yield server


@pytest.fixture
async def link(server: Server) -> AsyncIterator[headrace.LinkClient]:
    async with headrace.connect(f"tube://{server.doors['tube_tcp']}") as link:
        yield link


async def ask(
    http: aiohttp.ClientSession,
    method: str,
    path: str,
    status: int,
    body: bytes | None = None,
    **headers: str,
) -> tuple[bytes, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.request(method, path, data=body, headers=named) as answer:
        content = await answer.read()
        assert answer.status == status, content
        return content, answer.headers


async def test_whatever_is_posted_is_published(
    http: aiohttp.ClientSession, link: headrace.LinkClient
) -> None:
    answer, _ = await ask(
        http, "POST", "/v1/publish/orders/eu?city=Praha&x=5", 200, b"hello", Headrace_Attr_zip='"11000"'
    )
    assert json.loads(answer) == {"seq": 1}
    message = await anext(link.follow(from_seq=1))
    assert (message.topic, message.payload, message.origin) == ("orders/eu", b"hello", "http")
    assert (message.attributes, message.numbers) == ({"city": "Praha", "zip": "11000"}, {"x": 5.0})


async def test_a_topic_with_messages_is_a_stream(
    server: Server, http: aiohttp.ClientSession, link: headrace.LinkClient
) -> None:
    await ask(http, "GET", "/v1/stream/orders", 404)
    await link.publish([b"one ", b"two "], topic="orders")
    await link.publish(b"other", topic="elsewhere")
    body, headers = await ask(http, "GET", "/v1/stream/orders", 200)
    assert body == b"one two "
    assert headers["Stream-Next-Offset"].startswith("0000000000000002_")
    body, _ = await ask(http, "GET", "/v1/stream/orders?offset=1", 200)
    assert body == b"two "
    _, headers = await ask(http, "POST", "/v1/stream/orders", 204, b"three", Content_Type="text/plain")
    assert headers["Stream-Next-Offset"].startswith("0000000000000004_")
    assert server.hub.log.head == 4
    # Deleted, it is gone, until somebody publishes under its topic again.
    await ask(http, "DELETE", "/v1/stream/orders", 204)
    await ask(http, "GET", "/v1/stream/orders", 404)
    await link.publish(b"again", topic="orders")
    assert (await ask(http, "GET", "/v1/stream/orders", 200))[0] == b"again"


async def test_what_other_doors_publish_stands_in_a_stream_of_json(
    http: aiohttp.ClientSession, link: headrace.LinkClient
) -> None:
    await ask(http, "PUT", "/v1/stream/events", 201, b'[{"a": 1}]', Content_Type="application/json")
    await link.publish([b'{"b": 2}', b"no JSON", b"\xff"], topic="events")
    body, _ = await ask(http, "GET", "/v1/stream/events", 200)
    assert json.loads(body) == [{"a": 1}, {"b": 2}, "no JSON", "\ufffd"]


async def test_a_reader_waits_for_what_another_door_publishes(
    http: aiohttp.ClientSession, link: headrace.LinkClient
) -> None:
    await link.publish(b"old", topic="orders")
    poll = asyncio.create_task(ask(http, "GET", "/v1/stream/orders?offset=now&live=long-poll", 200))
    async with http.get("/v1/stream/orders?offset=-1&live=sse") as events:
        assert await events.content.readuntil(b"\n\n") == b"event: data\ndata:" + b"b2xk\n\n"
        assert b'"upToDate":true' in await events.content.readuntil(b"\n\n")
        while not poll.done():
            await link.publish(b"new", topic="orders")
            await asyncio.sleep(0.02)
        assert (await events.content.readuntil(b"\n\n")).startswith(b"event: data\n")
    assert (await poll)[0].startswith(b"new")
    await ask(http, "GET", "/v1/stream/orders?offset=now&live=long-poll", 204)


async def test_streams_survive_a_restart(tmp_path: Path) -> None:
    producer = {"Producer_Id": "p", "Producer_Epoch": "0", "Content_Type": "text/plain"}
    for first in (True, False):
        async with (
            running_hub(tmp_path, http=web.start) as server,
            aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
        ):
            if first:
                await ask(
                    http, "PUT", "/v1/stream/a", 201, b"one", Content_Type="text/plain", Stream_TTL="3600"
                )
                await ask(http, "POST", "/v1/stream/a", 200, b"two", Producer_Seq="0", **producer)
                await ask(
                    http,
                    "PUT",
                    "/v1/stream/b",
                    201,
                    Stream_Forked_From="/v1/stream/a",
                    Stream_Closed="true",
                    Content_Type="text/plain",
                )
                await server.maintenance.snapshot()
                await ask(http, "POST", "/v1/stream/a", 200, b"three", Producer_Seq="1", **producer)
            else:
                await ask(http, "POST", "/v1/stream/a", 204, b"three", Producer_Seq="1", **producer)
                assert (await ask(http, "GET", "/v1/stream/a", 200))[0] == b"onetwothree"
                body, headers = await ask(http, "GET", "/v1/stream/b", 200)
                assert (body, headers["Stream-Closed"]) == (b"onetwo", "true")
                assert (await ask(http, "HEAD", "/v1/stream/a", 200))[1]["Stream-TTL"] == "3600"


async def test_pages_of_other_sites_may_write_only_where_the_settings_say_so(
    http: aiohttp.ClientSession,
) -> None:
    await ask(http, "POST", "/v1/publish/orders", 403, b"x", Origin="https://evil.example")
    _, headers = await ask(http, "POST", "/v1/publish/orders", 200, b"x", Origin="https://shop.example")
    assert headers["Access-Control-Allow-Origin"] == "https://shop.example"
    _, headers = await ask(http, "GET", "/v1/stream/orders", 200, Origin="https://evil.example")
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("name", ["", "a*b", "x" * 2000])
async def test_names_that_are_no_topics_are_refused(http: aiohttp.ClientSession, name: str) -> None:
    async with http.put(f"/v1/stream/{name}") as answer:
        assert answer.status in (400, 404, 405)


async def test_a_message_over_the_limit_is_refused(server: Server, http: aiohttp.ClientSession) -> None:
    await ask(http, "PUT", "/v1/stream/a", 201)
    body = BytesIO(bytes(server.settings.limits.message_bytes + 1))
    headers = {"Content-Type": "application/octet-stream"}
    async with http.post("/v1/stream/a", data=body, headers=headers) as answer:
        assert answer.status == 413


async def test_rights_hold_for_streams(tmp_path: Path) -> None:
    settings = ("access.anonymous.allow=read open/**,publish open/**",)
    async with (
        running_hub(tmp_path, *settings, http=web.start) as server,
        aiohttp.ClientSession(f"http://{server.doors['http']}") as http,
    ):
        await ask(http, "PUT", "/v1/stream/open/a", 201, b"x")
        await ask(http, "GET", "/v1/stream/open/a", 200)
        for method, path in (
            ("PUT", "/v1/stream/shut/a"),
            ("POST", "/v1/stream/shut/a"),
            ("DELETE", "/v1/stream/shut/a"),
            ("GET", "/v1/stream/shut/a"),
            ("HEAD", "/v1/stream/shut/a"),
            ("POST", "/v1/publish/shut/a"),
        ):
            await ask(http, method, path, 403, None if method in ("GET", "HEAD") else b"x")
        await ask(http, "PUT", "/v1/stream/open/b", 403, Stream_Forked_From="/v1/stream/shut/a")
