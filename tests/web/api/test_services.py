"""Services over HTTP."""

from __future__ import annotations

import json

import aiohttp
import pytest
from tests.web.streams.test_door import ask

import headrace
from headrace.net.server.process import Server


async def event(answer: aiohttp.ClientResponse) -> tuple[str, dict[str, object]]:
    """The next event of a stream."""
    name = ""
    while line := await answer.content.readline():
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data:"):
            return name, json.loads(line[5:])
    raise AssertionError("the stream has ended")


async def test_an_object_is_read_and_changed_with_plain_requests(
    server: Server, http: aiohttp.ClientSession
) -> None:
    await ask(http, "GET", "/v1/service/fleet/42", 404)
    async with headrace.connect(f"spp://{server.doors['spp']}") as spp:
        await spp.publish({"speed": 60, "driver": "Ada"}, topic="fleet/42")
    answer, headers = await ask(http, "GET", "/v1/service/fleet/42", 200)
    assert json.loads(answer) == {"speed": 60, "driver": "Ada"}
    assert (headers["Content-Type"], headers["Stream-Next-Offset"]) == ("application/json", "1")
    await ask(http, "POST", "/v1/publish/fleet/42", 200, b'{"speed": 61}')
    answer, _ = await ask(http, "GET", "/v1/service/fleet/42", 200)
    assert json.loads(answer) == {"speed": 61, "driver": "Ada"}
    await ask(http, "GET", "/v1/service/fleet/42?live=long-poll", 400)


async def test_an_object_is_followed(server: Server, http: aiohttp.ClientSession) -> None:
    async with headrace.connect(f"spp://{server.doors['spp']}") as spp:
        await spp.publish({"speed": 60}, topic="fleet/42")
    async with http.get("/v1/service/fleet/42?live=sse") as answer:
        assert await event(answer) == ("service", {"seq": 1, "value": {"speed": 60}})
        await ask(http, "POST", "/v1/publish/fleet/42", 200, b'{"speed": 61}')
        assert await event(answer) == ("service", {"seq": 2, "value": {"speed": 61}})
        async with headrace.connect(f"tube://{server.doors['tube_tcp']}") as link:
            await link.remove_service("fleet/42")
        assert await event(answer) == ("removed", {"id": "fleet/42"})


@pytest.mark.parametrize("query", ["", "?live=sse"])
async def test_there_is_no_such_object(http: aiohttp.ClientSession, query: str) -> None:
    answer, _ = await ask(http, "GET", f"/v1/service/nothing{query}", 404)
    assert b"nothing" in answer
