"""Searches over HTTP: they end with their client, and hold up no durable consumer."""

from __future__ import annotations

import asyncio
import threading
from time import sleep

import aiohttp
import pytest
from tests.net.linkpeer import link_peer, opened, rows
from tests.net.raw import until

from headrace.net.server.process import Server
from headrace.web.search import Search

SEARCHES = 100


class Endless:
    """Searches whose steps never end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.threads: set[str] = set()

        def step(_search: Search) -> bool:
            self.steps += 1
            self.threads.add(threading.current_thread().name.rpartition("_")[0])
            sleep(0.001)
            return False

        patch.setattr(Search, "step", step)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    return Endless(monkeypatch)


async def search(http: aiohttp.ClientSession) -> None:
    await http.get("/api/messages", params={"topic": "rare"})


async def test_a_hundred_searches_hold_up_no_consumer_and_end_with_their_clients(
    server: Server, http: aiohttp.ClientSession, endless: Endless
) -> None:
    async with link_peer(server) as peer, link_peer(server) as member:
        assert (await member.ask(op="follow", id=1, consumer="c", **{"from": 1}))["event"] == "at"
        searches = [asyncio.ensure_future(search(http)) for _ in range(SEARCHES)]
        await until(lambda: endless.steps > SEARCHES)
        for number in range(5):
            assert (await peer.ask(rows(b"%d" % number), op="publish", id=1))["ok"]
            head, body = await member.hear()
            assert [message.payload for message in opened(body)] == [b"%d" % number]
            await member.say(op="more", id=1, bytes=len(body))
            assert (await peer.ask(op="ack", id=2, consumer="c", seqs=[[head["first"], head["last"]]]))["ok"]
        # Each of them still has its turns.
        before = endless.steps
        await until(lambda: endless.steps > before + SEARCHES)
        for each in searches:
            each.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        previous = -1
        while previous != endless.steps:
            previous = endless.steps
            await asyncio.sleep(0.1)
    assert endless.threads == {"headrace-bulk"}
