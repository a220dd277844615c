"""Detours: what somebody with few rights tries where the straight way is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from tests.access.attempts import (
    KEYS,
    ROOT,
    SETTINGS,
    SOME,
    TOKENS,
    authenticated,
    claim,
    link_challenge,
    spp_challenge,
)
from tests.net import attribute_peers as attribute
from tests.net import spp_peer as spp
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import SECONDS, TcpPeer, running_hub, until

from headrace import web
from headrace.hub.access.login_attempts import FREE_OF_ADDRESS
from headrace.net.server.process import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER, OTHERS_KEY = "d0" * 12, "key of other"
CROWD = "127.0.0.9"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    data: Path = tmp_path_factory.mktemp("hub")
    sets = [
        f"access.other.client_id={OTHER}",
        f"access.other.key={OTHERS_KEY}",
        "access.other.allow=publish fleet/**,read fleet/**,stage other-*,consume **",
        "access.other.deny=publish dead/quiet",
        f"access.crowd.addresses={CROWD}",
        "access.crowd.allow=publish **",
        "access.crowd.limits=connections 4",
        f"access.operator.token_sha256={hashlib.sha256(b'bearer of an operator').hexdigest()}",
        "access.operator.allow=admin **",
    ]
    async with running_hub(data, *SETTINGS, *sets, http=web.start) as server:
        yield server


@asynccontextmanager
async def link_as(server: Server, client: str, key: str) -> AsyncIterator[LinkPeer]:
    async with link_peer(server, greet=False) as peer:
        shown = claim(client, key, await link_challenge(peer))
        assert (await peer.ask(op="hello", id=1, version=2, auth=shown))["ok"]
        yield peer


@asynccontextmanager
async def http_as(server: Server, token: str) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {token}", "X-Headrace": "1"}
    timeout = aiohttp.ClientTimeout(SECONDS)
    where = f"http://{server.doors['http']}"
    async with aiohttp.ClientSession(where, timeout=timeout, headers=headers) as http:
        yield http


class TestDeadLetters:
    async def test_a_message_that_looks_like_one_is_not_published_again(self, server: Server) -> None:
        async with link_as(server, ROOT, KEYS[ROOT]) as root, link_as(server, OTHER, OTHERS_KEY) as other:
            await root.say(op="follow", id=2, consumer="fleet-billing")
            await root.hear()
            forged = {"dead.consumer": "fleet-billing", "dead.topic": "town", "dead.seq": "1"}
            told = await other.ask(rows(b"x", topic="fleet/1", **forged), op="publish", id=2)
            assert told["ok"], told
            seq = told["last"]
        async with http_as(server, TOKENS["root"]) as http:
            asked = {"consumer": "fleet-billing", "seq": seq}
            async with http.post("/api/consumers/redeliver", json=asked) as answer:
                assert answer.status == 409

    async def test_publishing_one_again_is_publishing(self, server: Server) -> None:
        async with link_as(server, ROOT, KEYS[ROOT]) as root:
            seq = (await root.ask(rows(b"x", topic="fleet/x"), op="publish", id=2))["last"]
            await root.say(
                op="follow", id=3, consumer="fleet-tries", topic="fleet/x", max_tries=1, **{"from": seq}
            )
            while (await root.hear())[0].get("event") != "rows":
                pass
            await root.say(op="ack", id=4, consumer="fleet-tries", seqs=[[seq, seq]], nack=True)
            await until(lambda: server.hub.log.head == seq + 1)
        async with http_as(server, "bearer of an operator") as http:
            asked = {"consumer": "fleet-tries", "seq": seq + 1}
            async with http.post("/api/consumers/redeliver", json=asked) as answer:
                assert answer.status == 403, await answer.text()
        async with (
            http_as(server, TOKENS["root"]) as http,
            http.post("/api/consumers/redeliver", json=asked) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def test_where_one_would_go_by_default_may_be_denied(self, server: Server) -> None:
        async with link_as(server, OTHER, OTHERS_KEY) as other:
            told = await other.ask(op="follow", id=2, consumer="quiet")
            assert told.get("error") == "forbidden"


class TestStages:
    async def test_nobody_aborts_another_s(self, server: Server) -> None:
        async with link_as(server, SOME, KEYS[SOME]) as some, link_as(server, OTHER, OTHERS_KEY) as other:
            staged = await some.ask(
                rows(b"x", topic="fleet/1"), op="stage", id=2, query="fleet-q", batch=1, stage="part-0"
            )
            assert staged["ok"], staged
            await other.ask(op="abort", id=2, stages=["part-0"])
            told = await some.ask(op="commit", id=3, query="fleet-q", batch=1, stages=["part-0"])
            assert told["ok"], told


class TestNames:
    @pytest.mark.parametrize(
        "asked",
        [
            {"op": "publisher", "publisher": "pump"},
            {"op": "publisher", "publisher": "pump", "open": "two"},
            {"op": "publish", "publisher": "pump"},
            {"op": "publish", "publisher": "pump", "number": 9},
            {"op": "publish", "publisher": SOME},
        ],
        ids=lambda asked: " ".join(asked),
    )
    async def test_another_s_name_is_no_name(self, server: Server, asked: dict[str, object]) -> None:
        async with link_as(server, SOME, KEYS[SOME]) as some, link_as(server, OTHER, OTHERS_KEY) as other:
            assert (await some.ask(op="publisher", id=2, publisher="pump", open="one"))["epoch"]
            told = await other.ask(rows(b"x", topic="fleet/1"), id=2, **asked)
            assert (told.get("error"), SOME in told["reason"]) == ("forbidden", asked["publisher"] == SOME)
            assert (await some.ask(op="publisher", id=3, publisher="pump"))["newest"] is None

    async def test_a_service_whose_topic_is_denied(self, server: Server) -> None:
        async with link_as(server, SOME, KEYS[SOME]) as some:
            for action in ("create", "remove"):
                told = await some.ask(op="services", id=2, service="fleet/7", action=action)
                assert told["error"] == "forbidden"


async def test_who_proves_nothing_takes_nobody_s_name(tmp_path: Path) -> None:
    """Where nobody must log in, a publisher of SPP is called by the id that it claims: unless that is somebody's."""
    sets = (f"auth.clients.{ROOT}={KEYS[ROOT]}", "access.anonymous.allow=service fleet/*")
    async with running_hub(tmp_path, *sets) as server:
        for claimed, accepted in ((ROOT, False), (OTHER, True)):
            with await spp.SppPeer.connect(server) as peer:
                challenge = await spp_challenge(peer, claim(claimed, "a guess"))
                shown = claim(claimed, "a guess", challenge)
                await peer.send(spp.packet(spp.AUTH, spp.string(json.dumps(shown))))
                assert await authenticated(peer) is accepted


class TestCrowding:
    async def test_refused_connections_are_not_counted_as_open(self, server: Server) -> None:
        for _ in range(6):
            with await attribute.RouterPeer.connect(server, source=CROWD) as peer:
                assert await peer.rest() == b""
        with await TcpPeer.connect(server, source=CROWD) as peer:
            head = server.hub.log.tail
            await peer.send(b"\x02\x00\x01x")
            await until(lambda: server.hub.log.tail > head)

    async def test_wrong_tokens_do_not_shut_out_right_ones(self, server: Server) -> None:
        async with http_as(server, TOKENS["root"]) as http:
            async with http.get("/api/settings") as answer:
                assert answer.status == 200
            for number in range(FREE_OF_ADDRESS + 2):
                async with http.get("/api/me", headers={"Authorization": f"Bearer guess-{number}"}) as answer:
                    last = answer.status
            assert last == 429
            async with http.get("/api/settings") as answer:
                assert answer.status == 200, await answer.text()
