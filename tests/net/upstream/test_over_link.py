"""A frontend and its upstream hub in one process: where they meet, what is refused, what is said when they part."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.net.linkpeer import link_peer
from tests.net.raw import SECONDS, running_hub, until

import headrace
from headrace import web
from headrace.client.link.client import LinkClient
from headrace.config import DOORS, load
from headrace.errors import ConfigError, RefusedError, StorageError, UnreachableError, UsageError
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.message import Batch, Message, Run
from headrace.net.server.process import Server

QUIET = ("listen.http=off", "listen.fyrehose=off")


@pytest.fixture
async def backbone(tmp_path: Path) -> AsyncIterator[Server]:
    """The hub that numbers; a test may drain it."""
    hubs = AsyncExitStack()
    server = await hubs.enter_async_context(running_hub(tmp_path / "backbone", *QUIET))
    yield server
    if server.hub.log.segments:
        await hubs.aclose()


def upstream(*servers: Server) -> str:
    return f"node.upstream=tube://{','.join(server.doors['tube_tcp'] for server in servers)}"


@asynccontextmanager
async def frontend(data: Path, above: Server, *sets: str, http: Any = None) -> AsyncIterator[Server]:
    async with running_hub(data, *(() if http else QUIET), upstream(above), *sets, http=http) as server:
        yield server


def client(server: Server, **options: Any) -> LinkClient:
    made: LinkClient = headrace.connect(f"tube://{server.doors['tube_tcp']}", **options)
    return made


def kept(log: Log) -> list[Message]:
    return [message for batch in log.scan(log.first) for message in batch]


def upstream_facts(server: Server) -> dict[str, Any]:
    facts: Any = server.status()["upstream"]
    return dict(facts)


async def stopped(data: Path, *sets: str) -> Server:
    """A hub that ran on some data, and what it says of itself."""
    async with running_hub(data, *QUIET, *sets) as server, client(server) as link:
        await link.publish([b"one", b"two", b"three"], topic="t")
    return server


class TestBeginning:
    async def test_a_new_frontend_begins_behind_a_snapshot(self, tmp_path: Path, backbone: Server) -> None:
        async with client(backbone) as link:
            await link.publish([b"one", b"two"])
            await link.hold("mine", 1)
            async with frontend(tmp_path / "front", backbone) as front, client(front) as near:
                assert (front.hub.log.uuid, front.hub.log.first) == (backbone.hub.log.uuid, 4)
                assert await near.holds() == {"mine": 1}
                await link.publish([b"three"], attributes={"a": "b"}, numbers={"n": 1.5})
                await until(lambda: front.hub.log.head == 4)
                assert kept(front.hub.log) == kept(backbone.hub.log)[3:]
                assert near.log == link.log

    async def test_of_an_empty_hub_it_is_empty(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path / "backbone", *QUIET, "services.max=100000") as backbone:
            assert backbone.hub.log.head == 0
            async with frontend(tmp_path / "front", backbone) as front, client(front) as near:
                assert await near.publish(b"first") == (1, 1)
                assert kept(front.hub.log) == kept(backbone.hub.log)

    async def test_it_goes_on_where_it_stopped(self, tmp_path: Path, backbone: Server) -> None:
        async with client(backbone) as link:
            async with frontend(tmp_path / "front", backbone):
                await link.publish(b"one")
            await link.publish(b"two")
            async with frontend(tmp_path / "front", backbone) as front:
                await until(lambda: front.hub.log.head == 2)
                assert kept(front.hub.log) == kept(backbone.hub.log)

    async def test_a_beginning_that_was_interrupted_is_made_again(
        self, tmp_path: Path, backbone: Server
    ) -> None:
        async with client(backbone) as link:
            await link.publish([b"one", b"two"])
        async with frontend(tmp_path / "front", backbone):
            pass
        for tail in (tmp_path / "front" / "log").glob("*.open"):
            tail.unlink()
        async with frontend(tmp_path / "front", backbone) as front:
            assert front.hub.log.first == 3

    async def test_without_a_log_there_must_be_an_upstream_hub(
        self, tmp_path: Path, backbone: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.net.upstream.over_link.START_SECONDS", 0.3)
        address = upstream(backbone)
        await backbone.drain()
        with pytest.raises(UnreachableError, match="a new frontend needs its upstream hub"):
            await _fails(tmp_path / "front", address)

    async def test_with_one_it_starts_alone_and_follows_later(self, tmp_path: Path) -> None:
        async with AsyncExitStack() as hubs:
            backbone = await hubs.enter_async_context(running_hub(tmp_path / "backbone", *QUIET))
            async with client(backbone) as link, frontend(tmp_path / "front", backbone) as front:
                await link.publish(b"one")
                await until(lambda: front.hub.log.head == 1)
            address, port = upstream(backbone), backbone.doors["tube_tcp"]
            await hubs.aclose()
            async with running_hub(tmp_path / "front", *QUIET, address) as front:
                assert front.ready
                assert front.problem is not None
                assert front.hub.log.head == 1
                async with running_hub(tmp_path / "backbone", *QUIET, f"listen.tube_tcp={port}") as again:
                    await until(lambda: front.problem is None)
                    async with client(front) as near:
                        assert await near.publish(b"two") == (2, 2)
                    assert again.hub.log.head == 2

    async def test_a_copy_does_not_go_on_by_itself(self, tmp_path: Path, backbone: Server) -> None:
        async with frontend(tmp_path / "front", backbone) as front:
            await until(lambda: front.problem is None)
        with pytest.raises(UsageError, match="is a copy of") as refused:
            await _fails(tmp_path / "front")
        assert str(backbone.hub.log.uuid) in str(refused.value)
        (tmp_path / "front" / "log" / "copy").unlink()
        async with running_hub(tmp_path / "front", *QUIET) as alone, client(alone) as link:
            assert await link.publish(b"mine") == (1, 1)


class TestSeam:
    async def test_another_log_is_refused_and_both_are_named(self, tmp_path: Path, backbone: Server) -> None:
        other = await stopped(tmp_path / "front")
        with pytest.raises(UsageError) as refused:
            await _fails(tmp_path / "front", upstream(backbone))
        assert str(other.hub.log.uuid) in str(refused.value)
        assert str(backbone.hub.log.uuid) in str(refused.value)
        async with running_hub(tmp_path / "front", *QUIET) as alone:
            assert alone.hub.log.uuid == other.hub.log.uuid, "it is no copy for that"

    async def test_a_log_that_is_ahead_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.net.upstream.log_alignment._PATIENCE_SECONDS", 0.0)
        await stopped(tmp_path / "ahead")
        copy = tmp_path / "backbone"
        await asyncio.to_thread(shutil.copytree, tmp_path / "ahead", copy)
        async with running_hub(tmp_path / "ahead", *QUIET) as ahead, client(ahead) as link:
            await link.publish(b"four")
        async with running_hub(copy, *QUIET) as backbone:
            with pytest.raises(UsageError, match=r"ends with message 4, the upstream hub at .* with 3"):
                await _fails(tmp_path / "ahead", upstream(backbone))

    async def test_a_log_that_went_another_way_is_refused(self, tmp_path: Path) -> None:
        await stopped(tmp_path / "one")
        await asyncio.to_thread(shutil.copytree, tmp_path / "one", tmp_path / "two")
        for name in ("one", "two"):
            async with running_hub(tmp_path / name, *QUIET) as hub, client(hub) as link:
                await link.publish(name.encode())
        async with running_hub(tmp_path / "one", *QUIET) as backbone:
            with pytest.raises(UsageError, match=r"message 4 in .* is another one"):
                await _fails(tmp_path / "two", upstream(backbone))

    async def test_one_that_is_too_old_begins_anew(self, tmp_path: Path) -> None:
        sets = (*QUIET, "log.segment_bytes=1KiB", "log.retain_bytes=1KiB", "log.segment_seconds=0.001")
        async with running_hub(tmp_path / "backbone", *sets) as backbone, client(backbone) as link:
            async with frontend(tmp_path / "front", backbone) as front:
                await link.publish([b"early"])
                await until(lambda: front.hub.log.head == backbone.hub.log.head)
                old = front.hub.log.tail
            for number in range(20):
                await link.publish([b"%d" % number * 500])
            await until(lambda: backbone.hub.log.first > old + 1)
            async with frontend(tmp_path / "front", backbone) as front:
                assert front.hub.log.first > old + 1
                assert not (tmp_path / "front" / "log" / f"{1:016d}.open").exists()
                await link.publish(b"late")
                await until(lambda: front.hub.log.head == backbone.hub.log.head)
                assert kept(front.hub.log)[-1] == kept(backbone.hub.log)[-1]

    async def test_one_that_becomes_too_old_while_it_runs_says_so(self, tmp_path: Path) -> None:
        sets = (*QUIET, "log.segment_bytes=1KiB", "log.retain_bytes=1KiB", "log.segment_seconds=0.001")
        async with AsyncExitStack() as hubs:
            backbone = await hubs.enter_async_context(running_hub(tmp_path / "backbone", *sets))
            where = backbone.doors["tube_tcp"]
            async with frontend(tmp_path / "front", backbone, "node.upstream_seconds=0") as front:
                await until(lambda: front.problem is None)
                await hubs.aclose()
                async with running_hub(tmp_path / "backbone", *sets) as elsewhere, client(elsewhere) as link:
                    for number in range(20):
                        await link.publish([b"%d" % number * 500])
                    await until(lambda: elsewhere.hub.log.first > 2)
                async with running_hub(tmp_path / "backbone", *sets, f"listen.tube_tcp={where}"):
                    await until(lambda: not front.ready)
                    assert front.problem is not None
                    assert "restart this hub" in front.problem
                    async with client(front) as near:
                        with pytest.raises(RefusedError, match="restart this hub"):
                            await near.publish(b"x")


class TestPassing:
    async def test_every_door_and_operation(self, tmp_path: Path, backbone: Server) -> None:
        async with (
            frontend(tmp_path / "one", backbone) as one,
            frontend(tmp_path / "two", backbone) as two,
            client(one) as near,
            client(two) as far,
            headrace.connect(f"spp://{one.doors['spp']}") as spp,
        ):
            assert await near.publish([b"a", b"b"], topic="t") == (1, 2)
            assert await far.publish([b"c"], topic="t") == (3, 3)
            await spp.publish({"speed": 61}, topic="fleet/1")
            await until(lambda: two.services.get("fleet/1") is not None)
            await near.hold("h", 2)
            await until(lambda: two.hub.state.holds == {"h": 2})
            stages = [await far.stage("query", 0, [b"row"]), await far.stage("query", 0, [b"row2"])]
            first, last = await far.commit("query", 0, stages)
            assert await far.commit("query", 0, stages) == (first, last)
            assert last == (first or 0) + 1
            async with near.consumer("work", from_seq=1) as consumer:
                async for message in consumer:
                    await consumer.ack(message)
                    break
            await until(lambda: backbone.consumers.get("work") is not None)
            await until(
                lambda: (
                    backbone.hub.log.head == one.hub.log.head == two.hub.log.head
                    and upstream_facts(one)["waiting_bytes"] == 0
                )
            )
            assert kept(one.hub.log) == kept(two.hub.log) == kept(backbone.hub.log)
            assert {m.node for m in kept(one.hub.log)} == {backbone.hub.node}

    async def test_a_frontend_of_a_frontend(self, tmp_path: Path, backbone: Server) -> None:
        async with (
            frontend(tmp_path / "middle", backbone) as middle,
            frontend(tmp_path / "end", middle) as end,
            client(end) as link,
            headrace.connect(f"spp://{end.doors['spp']}") as spp,
        ):
            assert await link.publish(b"a") == (1, 1)
            await spp.publish(b"value", topic="s")
            await until(lambda: all(hub.services.get("s") for hub in (backbone, middle, end)))
            await until(lambda: backbone.hub.log.head == end.hub.log.head)
            assert kept(end.hub.log) == kept(backbone.hub.log)

    async def test_a_publisher_goes_on_behind_numbers_that_its_frontend_does_not_have_yet(
        self, tmp_path: Path, backbone: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with frontend(tmp_path / "front", backbone) as front, client(backbone) as link:
            await until(lambda: front.problem is None)
            follow = Hub.follow
            held: list[Any] = []
            monkeypatch.setattr(Hub, "follow", lambda hub, batches: held.append((hub, batches)))
            await link.publisher("me").publish([b"a", b"b"])
            async with client(front) as near:
                ack = await near.publisher("me").send([b"c"])
                await until(lambda: held)
                monkeypatch.setattr(Hub, "follow", follow)
                for hub, batches in held:
                    hub.follow(batches)
                assert await ack == (3, 3)

    async def test_two_frontends_that_create_one_service_agree(
        self, tmp_path: Path, backbone: Server
    ) -> None:
        async with (
            frontend(tmp_path / "one", backbone) as one,
            frontend(tmp_path / "two", backbone) as two,
            headrace.connect(f"spp://{one.doors['spp']}") as first,
            headrace.connect(f"spp://{two.doors['spp']}") as second,
        ):
            await asyncio.gather(
                *(
                    spp.publish(value, topic=f"s{n}")
                    for n in range(20)
                    for spp, value in ((first, b"text"), (second, {}))
                )
            )
            await until(lambda: len(backbone.services) == len(one.services) == len(two.services) == 20)
            await until(lambda: one.hub.log.head == two.hub.log.head == backbone.hub.log.head)
            kinds = [[(s.id, s.kind) for s in hub.services] for hub in (backbone, one, two)]
            assert kinds[0] == kinds[1] == kinds[2]

    async def test_the_services_policy_is_the_upstream_hubs(self, tmp_path: Path, backbone: Server) -> None:
        async with frontend(tmp_path / "front", backbone, "services.auto=true", "services.max=5") as front:
            await until(lambda: front.problem is None)
            assert front.services.policy == backbone.services.policy
            assert backbone.hub.log.head == 0


class TestLost:
    async def test_publishers_wait_and_are_refused_and_readers_are_served(
        self, tmp_path: Path, backbone: Server
    ) -> None:
        async with (
            frontend(tmp_path / "front", backbone, "node.upstream_seconds=0.5", http=web.start) as front,
            client(front) as near,
            aiohttp.ClientSession() as browser,
        ):
            await near.publish([b"one"])
            url = f"http://{front.doors['http']}"
            async with browser.get(f"{url}/readyz") as answer:
                assert (answer.status, await answer.json()) == (200, {"ready": True})
            await backbone.drain()
            await until(lambda: front.problem is not None)
            with pytest.raises(RefusedError, match=r"has not answered for 0\.5 s") as refused:
                await near.publish(b"two")
            assert refused.value.code == "unavailable"
            assert [m.payload async for rows in near.read(1) for m in _messages(rows)] == [b"one"]
            async with browser.get(f"{url}/readyz") as answer:
                told = await answer.json()
                assert (answer.status, told["ready"]) == (503, False)
                assert "the upstream hub is lost" in told["reason"]
            async with browser.get(f"{url}/metrics") as answer:
                metrics = (await answer.text()).splitlines()
                assert {"headrace_upstream_connected 0.0", "headrace_upstream_lag 0.0"} <= set(metrics)
            status = front.status()
            assert status["mode"] == "FRONTEND"
            assert upstream_facts(front)["connected"] is False

    async def test_the_status_tells_the_lag(
        self, tmp_path: Path, backbone: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.net.upstream.over_link._LOOK_SECONDS", 0.01)
        async with frontend(tmp_path / "front", backbone) as front, client(backbone) as link:
            await until(lambda: front.problem is None)
            monkeypatch.setattr(Hub, "follow", lambda _hub, _batches: None)
            await link.publish([b"a", b"b"])
            await until(lambda: upstream_facts(front)["lag"] == 2)

    async def test_under_auth_it_proves_itself(self, tmp_path: Path) -> None:
        who, key = "5f0c5f0c5f0c5f0c5f0c5f0c", "secret"
        auth = ("auth.required=true", f"auth.clients.{who}={key}")
        async with running_hub(tmp_path / "backbone", *QUIET, *auth) as backbone:
            with pytest.raises(RefusedError, match="auth"):
                await _fails(tmp_path / "front", upstream(backbone))
            with pytest.raises(ConfigError, match="upstream_client"):
                await _fails(tmp_path / "front", upstream(backbone), f"node.upstream_client={who}")
            sets = (f"auth.clients.{who}={key}", f"node.upstream_client={who}")
            async with frontend(tmp_path / "front", backbone, *sets) as front:
                await until(lambda: front.problem is None)


class TestPass:
    """The operation itself, as a stranger would ask for it."""

    async def test_it_is_taken_once(self, backbone: Server) -> None:
        body = _passed(Batch(Run.of([b"a", b"b"]), origin="spp", publisher="p", topic="t"))
        async with link_peer(backbone) as peer:
            for number, answer in (
                (0, (1, 2, False)),
                (0, (1, 2, True)),
                (1, (4, 5, False)),
                (0, (1, 2, True)),
            ):
                told = await peer.ask(body, op="pass", id=1, frontend="f", number=number)
                assert (told["first"], told["last"], told["repeated"]) == answer
            told = await peer.ask(body, op="pass", id=1, frontend="f", number=3)
            assert told["error"] == "conflict"
        assert [(m.origin, m.publisher, m.topic, m.number) for m in kept(backbone.hub.log)][:3] == [
            ("spp", "p", "t", None),
            ("spp", "p", "t", None),
            ("log", "f", "frontend/f", 0),
        ]

    @pytest.mark.parametrize(
        ("batch", "error"),
        [
            (Batch(Run.of([b"a"])), "malformed"),
            (Batch(Run.of([b"a"]), origin="o" * 300), "malformed"),
            (Batch(Run.of([b"a"]), origin="of its own"), "malformed"),
            (Batch(Run.of([b"a"]), origin="spp", topic="t" * 70_000), "limit"),
            (Batch(Run.of([b"a"]), origin="spp", publisher="p" * 256), "limit"),
            (Batch(Run.of([b"a"]), origin="spp", publisher="p", number=-1), "limit"),
            (Batch(Run.of([b"a"]), origin="spp", publisher="p", number=1 << 62), "limit"),
            (Batch(Run.of([]), origin="spp"), "malformed"),
            (Batch(Run.of([b'{"auto": true, "max": 0}']), origin="log", topic="service/"), "malformed"),
        ],
    )
    async def test_what_cannot_be_kept_is_refused(self, backbone: Server, batch: Batch, error: str) -> None:
        async with link_peer(backbone) as peer:
            told = await peer.ask(_passed(batch), op="pass", id=1, frontend="f", number=0)
            assert told["error"] == error
        assert backbone.hub.log.head == 0

    @pytest.mark.parametrize("origin", ["tube", "fyrehose", "replay", "consumer"])
    async def test_a_message_past_the_hubs_limit_is_refused(self, tmp_path: Path, origin: str) -> None:
        sets = (*QUIET, "limits.message_bytes=100")
        async with running_hub(tmp_path / "backbone", *sets) as backbone, link_peer(backbone) as peer:
            body = _passed(Batch(Run.of([b"a", bytes(101)]), origin=origin))
            told = await peer.ask(body, op="pass", id=1, frontend="f", number=0)
            assert (told["error"], backbone.hub.log.head) == ("limit", 0)
            assert "101" in told["reason"]
            assert "100" in told["reason"]
            # What the state needs is no message.
            for number, each in enumerate([(origin, bytes(100)), ("log", bytes(101))]):
                body = _passed(Batch(Run.of([each[1]]), origin=each[0], topic="no/part"))
                told = await peer.ask(body, op="pass", id=1, frontend="f", number=number)
                assert told["ok"] is True

    async def test_a_message_too_long_for_the_upstream_hub_costs_only_its_publisher(
        self, tmp_path: Path
    ) -> None:
        sets = (*QUIET, "limits.message_bytes=100")
        async with (
            running_hub(tmp_path / "backbone", *sets) as backbone,
            frontend(tmp_path / "front", backbone) as front,
        ):
            await until(lambda: front.problem is None)
            told: list[Any] = []
            # In one turn, so that they would go up together.
            for payload in (b"before", bytes(101), b"after"):
                front.hub.submit(Batch(Run.of([payload]), origin="spp"), told.append)
            await until(lambda: len(told) == 3)
            assert ["100 bytes" in str(each) for each in told if isinstance(each, StorageError)] == [True]
            assert [m.payload for m in kept(backbone.hub.log) if m.origin == "spp"] == [b"before", b"after"]
            assert front.hub.counters.get("refused_messages", origin="spp", reason="limit") == 1

    @pytest.mark.parametrize(
        ("topic", "payload"),
        [
            ("hold/x", b'{"seq": 18446744073709551616}'),
            ("hold/x", b'{"seq": -9223372036854775809}'),
            ("hold/" + "x" * 256, b'{"seq": 1}'),
            ("consumer/x", b'{"create": {"max_tries": 18446744073709551616}}'),
            ("consumer/x", b'{"create": {"where": {"a": -18446744073709551616}}}'),
            ("consumer/x", b'{"create": {"ack_seconds": -1}}'),
            ("consumer/" + "x" * 256, b'{"create": {}}'),
            ("consumer/x", b'{"create": {}, "from": 18446744073709551616}'),
            ("query/x", b'{"batch": 18446744073709551616, "rows": 1}'),
            ("reader/x", b'{"first": 1, "last": 18446744073709551616}'),
        ],
    )
    async def test_no_entry_keeps_the_hub_from_writing_its_snapshot(
        self, backbone: Server, topic: str, payload: bytes
    ) -> None:
        empty = backbone.hub.state.sections()
        body = _passed(Batch(Run.of([payload]), origin="log", topic=topic))
        async with link_peer(backbone) as peer:
            assert (await peer.ask(body, op="pass", id=1, frontend="f", number=0))["ok"] is True
        sections = backbone.hub.state.sections()
        assert {name: section for name, section in sections.items() if name != "publisher"} == {
            name: section for name, section in empty.items() if name != "publisher"
        }
        assert backbone.hub.state.unread == 1

    @pytest.mark.parametrize("part", ["hold", "service", "consumer", "query", "publisher", "frontend", "no"])
    async def test_entries_that_are_none_change_nothing(
        self, tmp_path: Path, backbone: Server, part: str
    ) -> None:
        batch = Batch(Run.of([b"{", b"[1]", b'{"create": 7}']), origin="log", topic=f"{part}/x")
        async with link_peer(backbone) as peer, client(backbone) as link:
            told = await peer.ask(_passed(batch), op="pass", id=1, frontend="f", number=0)
            assert told["ok"] is True
            assert await link.publish(b"next") == (5, 5)
            assert backbone.hub.state.holds == {}
        await backbone.drain()
        async with running_hub(tmp_path / "backbone", *QUIET) as again:
            assert again.hub.log.head == 5


def _passed(batch: Batch) -> bytes:
    rows = batch.to_arrow().drop_columns(["seq", "time", "node"])
    body: bytes = rows.serialize().to_pybytes()
    return body


def _messages(rows: Any) -> list[Message]:
    return list(Batch.over(rows))


async def _fails(data: Path, *sets: str) -> None:
    free = [f"listen.{door}=127.0.0.1:0" for door in DOORS]
    async with asyncio.timeout(SECONDS):
        await Server(load(environ={}, sets=[*free, *QUIET, f"node.data={data}", *sets])).start()
