"""A node that was just started may know of less than it has shown: no door tells of its head until it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import running_hub
from tests.net.spp_peer import SppPeer, info, offer, publish, subscribe

from headrace import web
from headrace.net.server.process import Server

DOUBT = "this node does not know yet"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running_hub(tmp_path, "cluster.publish_seconds=0.5", http=web.start) as server:
        yield server


@pytest.fixture
async def peer(server: Server, stack: AsyncExitStack) -> LinkPeer:
    return await stack.enter_async_context(link_peer(server))


def doubt(server: Server) -> None:
    server.hub.head_doubt = lambda: DOUBT


def know(server: Server) -> None:
    server.hub.head_doubt = lambda: None


@pytest.mark.parametrize(
    "question",
    [
        {"op": "head"},
        {"op": "read", "first": 1},
        {"op": "read", "first": 1, "last": 99},
        {"op": "entries", "first": 1, "last": 1},
        {"op": "snapshot"},
        {"op": "chain"},
        {"op": "services"},
    ],
    ids=str,
)
async def test_a_question_about_the_head_waits(
    server: Server, peer: LinkPeer, question: dict[str, object]
) -> None:
    assert (await peer.ask(rows(b"x", topic="t"), op="publish", id=1))["ok"]
    doubt(server)
    # Nobody knows within its patience: that is the answer.
    refused = await peer.ask(id=2, **question)
    assert (refused["error"], DOUBT in refused["reason"]) == ("unavailable", True)
    await peer.say(id=3, **question)
    # Whatever does not depend on the head is answered before it.
    assert (await peer.ask(op="status", id=4))["status"]["head"] == 1
    know(server)
    answer, _ = await peer.hear()
    assert (answer["id"], "error" in answer) == (3, False)


async def test_a_read_of_what_is_known_to_be_committed_does_not_wait(server: Server, peer: LinkPeer) -> None:
    assert (await peer.ask(rows(b"x", topic="t"), op="publish", id=1))["ok"]
    doubt(server)
    assert "error" not in await peer.ask(op="read", first=1, last=1, id=2)


async def test_a_service_is_sent_when_it_is_known_to_be_the_newest(
    server: Server, stack: AsyncExitStack
) -> None:
    spp = stack.enter_context(await SppPeer.connect(server))
    await spp.send(publish("a", b'{"x":1}'))
    assert await spp.packet() == offer("a")
    doubt(server)
    await spp.send(subscribe("a") + publish("b", b'{"y":1}'))
    assert await spp.packet() == offer("b")
    know(server)
    assert await spp.packet() == info("a", b'{"x":1}')


async def test_readers_by_http_are_told_to_come_again(server: Server) -> None:
    async with aiohttp.ClientSession(f"http://{server.doors['http']}") as http:
        assert (await http.post("/v1/publish/t", data=b"x")).status < 300
        doubt(server)
        for path in ("/v1/stream/t", "/api/messages", "/api/messages/1", "/api/services"):
            answer = await http.get(path)
            assert (answer.status, DOUBT in await answer.text()) == (503, True)
        for path in ("/api/status", "/healthz", "/metrics"):
            assert (await http.get(path)).status == 200
        assert (await http.post("/v1/publish/t", data=b"y")).status < 300
        know(server)
        assert (await http.get("/v1/stream/t")).status == 200


async def test_a_follow_that_was_cancelled_while_it_waited_does_not_begin(
    server: Server, peer: LinkPeer
) -> None:
    doubt(server)
    await peer.say(op="follow", id=1)
    await peer.say(op="cancel", id=1)
    assert (await peer.ask(op="status", id=2))["ok"]
    know(server)
    while "ok" not in (answer := (await peer.hear())[0]):
        assert answer == {"id": 1, "event": "at", "seq": 0}
    assert answer == {"id": 1, "ok": True, "cancelled": True}
    # The id is free again, and its next stream is not cancelled.
    assert (await peer.ask(op="follow", id=1))["event"] == "at"
    assert (await peer.ask(rows(b"x", topic="t"), op="publish", id=2))["event"] == "rows"


async def test_a_change_that_waited_is_told_to_the_audit_log_once(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(server.access, "changed", lambda *facts: told.append(facts[3]))
    doubt(server)
    await peer.say(op="services", id=1, service="s", action="create")
    assert (await peer.ask(op="status", id=2))["ok"]
    assert told == []
    know(server)
    assert (await peer.hear())[0]["ok"]
    assert told == ["create service"]
