"""What an operator asks for and changes over the http door."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from tests.net.raw import until
from tests.web.api.test_handlers import OURS, get, submit

import headrace
from headrace.message import Batch, Run
from headrace.net.server.process import Server


async def post(http: aiohttp.ClientSession, path: str, content: Any, status: int = 200) -> Any:
    async with http.post(path, json=content, headers=OURS) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def test_consumers_are_listed_moved_and_removed(server: Server, http: aiohttp.ClientSession) -> None:
    async with headrace.connect(f"tube://{server.doors['tube_tcp']}") as link:
        await link.publish([b"1", b"2", b"3"], topic="orders/eu")
        async with link.consumer("billing", topic="orders/*", from_seq=1) as billing:
            message = await anext(billing)
            await billing.ack(message)
            (shown,) = (await get(http, "/api/consumers"))["consumers"]
            assert (shown["consumer"], shown["members"], shown["floor"]) == ("billing", 1, 1)
            assert (shown["behind"], shown["terms"]["topic"]) == (2, "orders/*")
            assert (await get(http, "/api/consumers?contains=x"))["consumers"] == []
    await post(http, "/api/consumers/reset", {"consumer": "billing", "to": "now"})
    consumer = server.consumers.get("billing")
    assert consumer is not None
    assert consumer.floor == 3
    answer = await post(http, "/api/consumers/reset", {"consumer": "billing", "to": 2})
    assert answer["consumer"]["floor"] == 1
    await post(http, "/api/consumers/reset", {"consumer": "billing", "to": "earliest"})
    assert consumer.floor == 0
    for to, status in ((99, 409), ("soon", 400), (None, 400)):
        await post(http, "/api/consumers/reset", {"consumer": "billing", "to": to}, status)
    await post(http, "/api/consumers/remove", {"consumer": "nobody"}, 404)
    assert (await post(http, "/api/consumers/remove", {"consumer": "billing"})) == {"consumer": None}
    assert server.consumers.get("billing") is None


async def test_a_dead_letter_is_published_again(server: Server, http: aiohttp.ClientSession) -> None:
    async with headrace.connect(f"tube://{server.doors['tube_tcp']}") as link:
        await link.publish(b"bad", topic="orders/eu", attributes={"city": "Praha", "x": 5})
        async with link.consumer("billing", topic="orders/*", from_seq=1, max_tries=1) as billing:
            await billing.nack(await anext(billing))
            await until(lambda: server.hub.log.head == 2)
        answer = await post(http, "/api/consumers/redeliver", {"consumer": "billing", "seq": 2})
        assert answer == {"seq": 3}
        again = await get(http, "/api/messages/3")
        assert (again["topic"], again["payload"]) == ("orders/eu", "bad")
        assert (again["attributes"], again["numbers"]) == ({"city": "Praha"}, {"x": 5.0})
        await post(http, "/api/consumers/redeliver", {"consumer": "billing", "seq": 1}, 409)
        await post(http, "/api/consumers/redeliver", {"consumer": "billing", "seq": 9}, 404)


async def test_topics_are_counted_with_who_reads_them(server: Server, http: aiohttp.ClientSession) -> None:
    assert (await get(http, "/api/topics"))["topics"] == []
    await submit(server, Batch(Run.of([b"abc"] * 5), origin="tube", topic="orders/eu"))
    await submit(server, Batch(Run.of([b"x"]), origin="fyrehose"))
    async with (
        headrace.connect(f"tube://{server.doors['tube_tcp']}") as link,
        link.consumer("billing", topic="orders/*", from_seq=1),
    ):
        found = await get(http, "/api/topics")
    orders, rest = found["topics"]
    assert (orders["topic"], orders["messages"], orders["bytes"], orders["newest"]) == ("orders/eu", 5, 15, 5)
    assert (rest["topic"], rest["newest"], rest["readers"]) == ("", 6, [])
    assert orders["readers"] == ["billing"]
    assert orders["rate"] > 0
    assert [each["topic"] for each in (await get(http, "/api/topics?topic=orders/*"))["topics"]] == [
        "orders/eu"
    ]
    await get(http, "/api/topics?topic=" + "*a" * 100, 400)


async def test_connections_are_listed_and_closed(server: Server, http: aiohttp.ClientSession) -> None:
    host, _, port = server.doors["spp"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with headrace.connect(f"tube://{server.doors['tube_tcp']}") as link:
        await link.publish(b"1")

        async def shown() -> dict[str, Any]:
            return {each["door"]: each for each in (await get(http, "/api/connections"))["connections"]}

        await until(lambda: server.connections == 2)
        found = await shown()
        assert found["tube"]["received"] > 0
        assert found["tube"]["sent"] > 0
        assert found["spp"]["peer"].startswith("127.0.0.1:")
        assert (await get(http, "/api/connections?contains=spp"))["total"] == 1
        await post(http, "/api/connections/close", {"connection": found["spp"]["connection"]})
        assert await asyncio.wait_for(reader.read(), 20) is not None
        await until(lambda: server.connections == 1)
        await post(http, "/api/connections/close", {"connection": found["spp"]["connection"]}, 404)
    writer.close()


async def test_settings_tell_where_they_came_from(server: Server, http: aiohttp.ClientSession) -> None:
    found = {each["setting"]: each for each in (await get(http, "/api/settings"))["settings"]}
    assert found["node.name"]["value"] == "mill"
    assert found["node.name"]["source"] != "default"
    assert found["log.fsync"]["source"] == "default"
    assert all(each["doc"] for each in found.values())


@pytest.mark.parametrize(
    "path", ["consumers/reset", "consumers/remove", "consumers/redeliver", "connections/close"]
)
async def test_what_is_not_understood_is_refused(http: aiohttp.ClientSession, path: str) -> None:
    await post(http, f"/api/{path}", {"unknown": 1}, 400)
