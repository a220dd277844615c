"""A reader of part of the topics gets just those, at every door; on the backbone the others are hollow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pyarrow as pa
import pytest
import pytest_asyncio
from tests.access.attempts import FAR, KEYS, ROOT, SETTINGS, SOME, claim, link_challenge, spp_challenge
from tests.net import attribute_peers as attribute
from tests.net import spp_peer as spp
from tests.net.linkpeer import PUBLISHED, LinkPeer, link_peer, opened, rows
from tests.net.raw import (
    SECONDS,
    TcpPeer,
    UdpPeer,
    ack,
    backbone_of,
    delivers,
    keepalive,
    request,
    running_hub,
    until,
)

from headrace import web
from headrace.hub.backbone.rules import SendForward
from headrace.hub.services.entries import ServiceKind, create
from headrace.message import Batch, Run, envelope_rows, map_column
from headrace.net.server.process import Server
from headrace.wire.fyrehose.stream import Forward

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOPICS = ["fleet/1", "town", "fleet/secret/key", "fleet/2", ""]
PAYLOADS = [topic.encode() or b"none" for topic in TOPICS]
READABLE = [b"fleet/1", b"fleet/2"]
HOLLOW = [payload if payload in READABLE else b"" for payload in PAYLOADS]
TOKEN = "bearer of a reader"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A hub with a message under each topic, and readers of two of them: by key, by address and by token."""
    data: Path = tmp_path_factory.mktemp("hub")
    sets = [
        "access.far.allow=read fleet/**",
        "access.far.deny=read fleet/secret/**",
        f"access.page.token_sha256={hashlib.sha256(TOKEN.encode()).hexdigest()}",
        "access.page.allow=read fleet/**,service fleet/**",
        "access.page.deny=read fleet/secret/**",
        "fyrehose.subscriber_seconds=600",
        "services.auto=true",
    ]
    async with running_hub(data, *SETTINGS, *sets, http=web.start) as server:
        for topic in TOPICS[:3]:
            server.hub.submit(create(topic, ServiceKind.LAST))
        await send(server)
        yield server


async def send(server: Server) -> int:
    """Publish a message under each topic, all about Oslo, some alone, some together; return the first's number."""
    first = server.hub.log.head + 1
    for topic, payload in zip(TOPICS[:2], PAYLOADS[:2], strict=True):
        server.hub.submit(Batch(Run.of([payload]), origin="test", topic=topic, columns=about_oslo([topic])))
    server.hub.submit(Batch(Run.of(PAYLOADS[2:]), origin="test", columns=about_oslo(TOPICS[2:])))
    await until(lambda: server.hub.log.head == first + len(TOPICS) - 1)
    return first


def about_oslo(topics: list[str]) -> pa.RecordBatch:
    count = len(topics)
    columns = {
        "attributes": map_column("attributes", [{"city": "Oslo"}] * count),
        "numbers": map_column("numbers", [{}] * count),
    }
    return envelope_rows(columns if count == 1 else {"topic": pa.array(topics), **columns})


@asynccontextmanager
async def link_as(server: Server, client: str) -> AsyncIterator[LinkPeer]:
    async with link_peer(server, greet=False) as peer:
        shown = claim(client, KEYS[client], await link_challenge(peer))
        assert (await peer.ask(op="hello", id=1, version=2, auth=shown))["ok"]
        yield peer


class TestBackbone:
    async def test_a_live_reader_over_tcp(self, server: Server) -> None:
        with await TcpPeer.connect(server, source=FAR) as peer:
            await peer.subscribe()
            first = await send(server)
            assert await peer.delivers(first, first + 4) == HOLLOW

    async def test_a_range_over_tcp(self, server: Server) -> None:
        with await TcpPeer.connect(server, source=FAR) as peer:
            await peer.send(request(1, 5))
            assert await peer.delivers(1, 5) == HOLLOW

    async def test_a_live_reader_over_udp_and_a_range(self, server: Server) -> None:
        with UdpPeer(server, address=FAR) as peer:
            peer.send(keepalive())
            assert await peer.datagram() == ack()
            first = await send(server)
            assert await peer.delivers(first, first + 4) == HOLLOW
            peer.send(request(1, 5))
            assert [
                payload for _, payload in [delivers(await peer.datagram())[0] for _ in range(5)]
            ] == HOLLOW

    async def test_others_do_not_forward_to_it_what_it_may_not_read(self, server: Server) -> None:
        udp, counters = backbone_of(server).udp, server.hub.counters
        assert udp is not None
        forwarded, lacking = (counters.get(name, door="fyrehose") for name in ("forwards", "unavailable"))
        udp._do([SendForward(("127.0.0.1", 9), Forward(FAR, 9, 1, 2))])
        assert counters.get("forwards", door="fyrehose") == forwarded
        assert counters.get("unavailable", door="fyrehose") == lacking + 2

    async def test_it_may_not_publish(self, server: Server) -> None:
        with await TcpPeer.connect(server, source=FAR) as peer:
            await peer.send(b"\x02\x00\x01x")
            assert await peer.rest() == b""


class TestLink:
    async def test_no_digests_of_what_it_may_not_read(self, server: Server) -> None:
        async with link_as(server, SOME) as peer:
            assert (await peer.ask(op="chain", id=2))["error"] == "forbidden"

    async def test_a_read(self, server: Server) -> None:
        async with link_as(server, SOME) as peer:
            got, heads = await peer.stream(op="read", id=2, first=1, last=5)
        assert [message.payload for message in got] == READABLE
        assert heads[-1]["ok"] is True

    async def test_a_follow(self, server: Server) -> None:
        async with link_as(server, SOME) as peer:
            first = server.hub.log.head + 1
            await peer.say(op="follow", id=2, **{"from": first})
            await send(server)
            got: list[bytes] = []
            while len(got) < 2:
                head, body = await peer.hear()
                if body:
                    got += [m.payload for m in opened(body) if head["first"] <= m.seq <= head["last"]]
        assert got == READABLE

    async def test_a_consumer_passes_over_the_rest(self, server: Server) -> None:
        async with link_as(server, SOME) as peer, link_as(server, ROOT) as other:
            await peer.say(op="follow", id=2, consumer="fleet-part", **{"from": 1})
            got: list[bytes] = []
            while len(got) < 2:
                head, body = await peer.hear()
                if body:
                    got += [m.payload for m in opened(body) if head["first"] <= m.seq <= head["last"]]
            assert got[:2] == READABLE
            # One that may read more would lack what is passed over.
            told = await other.ask(op="follow", id=2, consumer="fleet-part")
            assert told["error"] == "conflict"
        # So it would after those have gone, and whatever was done in between.
        async with link_as(server, ROOT) as later:
            told = await later.ask(op="follow", id=2, consumer="fleet-part")
            assert (told["error"], "other rights" in told["reason"]) == ("conflict", True)
            assert (await later.ask(op="consumers", id=3, action="remove", consumer="fleet-part"))["ok"]
            await later.say(op="follow", id=4, consumer="fleet-part", **{"from": 1})
            head, _ = await later.hear()
            assert head["id"] == 4
            assert "error" not in head

    @pytest.mark.parametrize("topic", ["town", "fleet/secret/key"])
    async def test_one_topic_that_it_may_not_read_is_refused(self, server: Server, topic: str) -> None:
        async with link_as(server, SOME) as peer:
            told = await peer.ask(op="read", id=2, first=1, topic=topic)
            assert told["error"] == "forbidden"
            assert "some may not read" in told["reason"]

    async def test_the_files_of_the_log_are_not_named(self, server: Server) -> None:
        async with link_as(server, SOME) as peer, link_as(server, ROOT) as root:
            assert (await peer.ask(op="head", id=2))["path"] == ""
            assert (await root.ask(op="head", id=2))["path"] != ""

    async def test_services_and_consumers_of_others_are_not_listed(self, server: Server) -> None:
        async with link_as(server, SOME) as peer, link_as(server, ROOT) as root:
            await root.say(op="follow", id=2, consumer="town-x")
            await root.hear()
            listed = await peer.ask(op="services", id=3)
            assert {service["id"] for service in listed["services"]} == {"fleet/1", "fleet/2"}
            listed = await peer.ask(op="consumers", id=4)
            assert {each["consumer"] for each in listed["consumers"]} <= {"fleet-part"}
            listed = await root.ask(op="consumers", id=4)
            assert "town-x" in {each["consumer"] for each in listed["consumers"]}

    async def test_its_status_says_nothing_of_others(self, server: Server) -> None:
        async with link_as(server, SOME) as peer:
            status = (await peer.ask(op="status", id=2))["status"]
        assert status["head"] == server.hub.log.head
        assert not {"consumers", "counters", "doors", "holds"} & status.keys()

    async def test_rows_of_several_topics_are_refused_for_one(self, server: Server) -> None:
        head = server.hub.log.tail
        both = pa.concat_batches(
            [
                pa.ipc.read_record_batch(pa.py_buffer(rows(b"x", topic=topic)), PUBLISHED)
                for topic in ("fleet/8", "town")
            ]
        )
        async with link_as(server, SOME) as peer:
            for op in ({"op": "publish"}, {"op": "stage", "query": "fleet-q", "batch": 9}):
                told = await peer.ask(both.serialize().to_pybytes(), id=2, **op)
                assert told["error"] == "forbidden"
            assert (await peer.ask(rows(b"x", topic="fleet/7"), op="publish", id=3))["error"] == "forbidden"
            assert (await peer.ask(rows(b"x", topic="fleet/8"), op="publish", id=4))["ok"]
        assert server.hub.log.tail == head + 1


async def test_sealed_messages_are_no_other(server: Server) -> None:
    await server.maintenance.seal()
    with await TcpPeer.connect(server, source=FAR) as peer:
        await peer.send(request(1, 5))
        assert await peer.delivers(1, 5) == HOLLOW
    async with link_as(server, SOME) as peer:
        got, _ = await peer.stream(op="read", id=2, first=1, last=5)
    assert [message.payload for message in got] == READABLE


class TestNames:
    async def test_a_publishers_name_is_its_principals(self, server: Server) -> None:
        async with link_as(server, SOME) as peer, link_as(server, ROOT) as other:
            assert (await peer.ask(op="publisher", id=2, publisher="meter", open="one"))["epoch"]
            told = await other.ask(op="publisher", id=2, publisher="meter", open="two")
            assert told["error"] == "forbidden"
            assert SOME in told["reason"]

    @pytest.mark.parametrize(
        "spoof",
        [
            {"op": "publish", "client": ROOT},
            {"op": "publisher", "publisher": "x", "open": "y", "client": ROOT},
            {"op": "publisher", "publisher": "x", "open": "y", "by": "root"},
            {"op": "commit", "query": "fleet-q", "batch": 1, "stages": [], "token": 1},
            {"op": "commit", "query": "fleet-q", "batch": 1, "stages": [], "client": ROOT},
            {"op": "pass", "frontend": "f", "number": 1, "rows": 1},
        ],
        ids=lambda spoof: " ".join(map(str, spoof.values())),
    )
    async def test_nobody_speaks_for_another_but_hubs(self, server: Server, spoof: dict[str, object]) -> None:
        async with link_as(server, SOME) as peer:
            told = await peer.ask(rows(b"x", topic="fleet/1"), id=2, **spoof)
        assert (told["error"], told["reason"]) == ("forbidden", "some lacks the right admin")

    async def test_a_client_id_is_its_principals_at_the_sdk_door(self, server: Server) -> None:
        with await attribute.SdkPeer.connect(server) as peer:
            await peer.send(attribute.auth(bytes.fromhex(SOME)))
            assert await peer.line() == b"-command error\r\n"


class TestContent:
    async def test_an_sdk_client(self, server: Server) -> None:
        with await attribute.SdkPeer.connect(server) as peer:
            shown = {**claim(SOME, KEYS[SOME]), "after": 0}
            await peer.send(attribute.command(b"auth", json.dumps(shown).encode()))
            assert await peer.line() == b"+authsuccess\r\n"
            await peer.send(attribute.sub(city="Oslo"))
            pushed = await peer.pushes(2)
            assert [payload for _, payload in pushed] == READABLE
            first = await send(server)
            while (push := await peer.push())[0] < first:
                assert push[1] in READABLE
            assert push == (first, READABLE[0])
            assert await peer.push() == (first + 3, READABLE[1])

    async def test_services(self, server: Server) -> None:
        with await spp.SppPeer.connect(server) as peer:
            challenge = await spp_challenge(peer, claim(SOME, KEYS[SOME]))
            shown = claim(SOME, KEYS[SOME], challenge)
            await peer.send(spp.packet(spp.AUTH, spp.string(json.dumps(shown))))
            await peer.packet()
            tail, refused = server.hub.log.tail, denied(server)
            await peer.send(
                spp.subscribe("fleet/secret/key") + spp.subscribe("town") + spp.publish("town", b"x")
            )
            await peer.send(spp.publish("fleet/7", b"x") + spp.subscribe("fleet/1"))
            # What it may see comes, and nothing of the others before it.
            offered = set()
            while (packet := await peer.packet()).msgtype == 1:
                offered.add(packet)
            shown_services = {spp.offer(name) for name in ("fleet/1", "fleet/2", "fleet/8")}
            assert {spp.offer("fleet/1"), spp.offer("fleet/2")} <= offered <= shown_services
            assert packet.data.startswith(spp.string("fleet/1"))
            assert denied(server) == refused + 4
            assert server.hub.log.tail == tail

    async def test_the_http_api(self, server: Server) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Headrace": "1"}
        timeout = aiohttp.ClientTimeout(SECONDS)
        async with aiohttp.ClientSession(
            f"http://{server.doors['http']}", timeout=timeout, headers=headers
        ) as http:

            async def get(path: str) -> dict[str, object]:
                async with http.get(path) as response:
                    return {"status_code": response.status, **await response.json()}

            found = await get("/api/messages?from=1&count=2")
            assert [each["payload"].encode() for each in found["messages"]] == READABLE  # type: ignore[union-attr]
            assert (await get("/api/messages/1"))["payload"] == "fleet/1"
            refused = await get("/api/messages/2")
            assert (refused["status_code"], refused["error"]) == (403, "page may not read")
            listed = await get("/api/services")
            assert listed["total"] == len(listed["services"])  # type: ignore[arg-type]
            assert {each["id"] for each in listed["services"]} <= {"fleet/1", "fleet/2", "fleet/8"}  # type: ignore[union-attr]
            assert (await get("/api/service?id=fleet/1"))["status_code"] == 200
            assert (await get("/api/service?id=fleet/secret/key"))["status_code"] == 403
            assert "counters" not in await get("/api/status")
            async with http.get("/api/history") as response:
                assert await response.json() == []
            assert (await get("/api/consumers"))["total"] == 0


def denied(server: Server) -> int:
    return sum(
        value
        for name, labels, value in server.hub.counters
        if name == "refused_access" and labels["door"] == "spp"
    )
