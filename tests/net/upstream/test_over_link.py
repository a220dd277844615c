"""A frontend and its upstream hub in one process: where they meet, what is refused, what is said when they part."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import aiohttp
import pyarrow as pa
import pytest
from tests.net.linkpeer import LinkPeer, link_peer
from tests.net.raw import SECONDS, running_hub, until
from tests.ports import lasting_port

import headrace
from headrace import web
from headrace.client.link.client import LinkClient
from headrace.client.link.requests import LinkSession
from headrace.config import DOORS, load
from headrace.errors import ConfigError, RefusedError, StorageError, UnreachableError, UsageError
from headrace.hub.holds import hold
from headrace.hub.publishing.relaying.passed import pack_passed
from headrace.hub.sequence import Hub
from headrace.hub.state import entry
from headrace.log import Log, frame
from headrace.log.checksum import crc32c
from headrace.log.replication_frames import SALT, pack
from headrace.message import Batch, Message, Run, column_type, envelope_rows
from headrace.net.server.process import Server
from headrace.net.upstream.over_link import TubeUpstream
from headrace.wire.link import requests as ask
from headrace.wire.link.message import parse
from headrace.wire.link.plain_rows import published_body

QUIET = ("listen.http=off", "listen.fyrehose=off")
SOON = "node.upstream_seconds=0.2"


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


def kept(log: Log) -> list[tuple[int, Message]]:
    """Everything in a log, messages and entries, by position."""
    return [
        (batch.op + index, row) for batch in log.scan_ops(log.first_op) for index, row in enumerate(batch)
    ]


def published(log: Log) -> list[Message]:
    return [message for batch in log.scan(log.first) for message in batch]


def upstream_facts(server: Server) -> dict[str, Any]:
    facts: Any = server.status()["upstream"]
    return dict(facts)


def with_columns(origin: str, /, **values: Any) -> Batch:
    """Two rows that have columns of their own, with some value in the second."""
    columns = {
        name: pa.array([0 if type(value) is int else "fine", value], column_type(name))
        for name, value in values.items()
    }
    if "origin" in columns:
        columns["origin"] = pa.array(["tube", values["origin"]])
    return Batch(
        Run.of([b"a", b"b"]), origin=origin, publisher="p", topic="t", columns=envelope_rows(columns)
    )


async def passed(server: Server, peer: LinkPeer, *batches: Batch, number: int = 0) -> dict[str, Any]:
    body = pack_passed(server.hub.log.uuid, batches)
    rows = sum(map(len, batches)) or 1
    return await peer.ask(body, op="pass", id=1, frontend="f", number=number, rows=rows)


def sealed(body: bytes | bytearray) -> bytes:
    """Packed batches whose first frame has a checksum that fits it, whatever it says."""
    data = bytearray(body)
    length = int.from_bytes(data[24:28], "little")
    end = min(16 + max(length, 28), len(data))
    data[20:24] = crc32c(bytes(data[24:end]), SALT).to_bytes(4, "little")
    return bytes(data)


def flipped(body: bytes, flag: int) -> bytes:
    """Packed batches with a flag of the first frame changed."""
    data = bytearray(body)
    head = list(frame.HEADER.unpack_from(data, 16))
    head[3] ^= flag
    frame.HEADER.pack_into(data, 16, *head)
    return sealed(data)


async def stopped(data: Path, *sets: str) -> Server:
    """A hub that ran on some data, and what it says of itself."""
    async with running_hub(data, *QUIET, *sets) as server, client(server) as link:
        await link.publish([b"one", b"two", b"three"], topic="t")
    return server


@contextmanager
def silence(above: Server, unheard: Callable[[Any], bool] = lambda head: head["id"] != 0) -> Iterator[None]:
    """Have an upstream hub's answers come to nobody: all but its hello, or those that ``unheard`` says."""
    hear = LinkSession.on_message

    def on_message(session: LinkSession, message: Any) -> None:
        if str(session.tube.peer) != above.doors["tube_tcp"] or not unheard(parse(message).head):
            hear(session, message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LinkSession, "on_message", on_message)
        yield


class TestBeginning:
    async def test_a_new_frontend_begins_behind_a_snapshot(self, tmp_path: Path, backbone: Server) -> None:
        async with client(backbone) as link:
            await link.publish([b"one", b"two"])
            await link.hold("mine", 1)
            async with frontend(tmp_path / "front", backbone) as front, client(front) as near:
                assert (front.hub.log.uuid, front.hub.log.first) == (backbone.hub.log.uuid, 3)
                assert front.hub.log.first_op == 4
                assert await near.holds() == {"mine": 1}
                await link.publish([b"three"], attributes={"a": "b"}, numbers={"n": 1.5})
                await until(lambda: front.hub.log.head == 3)
                assert kept(front.hub.log) == kept(backbone.hub.log)[3:]
                assert near.log == link.log

    async def test_of_an_empty_hub_it_is_empty(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path / "backbone", *QUIET, "services.max=100000") as backbone:
            assert backbone.hub.log.head_op == 0
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
        port = f"127.0.0.1:{lasting_port()}"
        async with AsyncExitStack() as hubs:
            backbone = await hubs.enter_async_context(
                running_hub(tmp_path / "backbone", *QUIET, f"listen.tube_tcp={port}")
            )
            async with client(backbone) as link, frontend(tmp_path / "front", backbone) as front:
                await link.publish(b"one")
                await until(lambda: front.hub.log.head == 1)
            address = upstream(backbone)
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

    async def test_a_log_whose_entries_went_another_way_is_refused(self, tmp_path: Path) -> None:
        """The messages are the same; what stands after the last of them is not."""
        await stopped(tmp_path / "one")
        await asyncio.to_thread(shutil.copytree, tmp_path / "one", tmp_path / "two")
        for name in ("one", "two"):
            async with running_hub(tmp_path / name, *QUIET) as hub, client(hub) as link:
                await link.hold(name, 1)
        async with running_hub(tmp_path / "one", *QUIET) as backbone:
            with pytest.raises(UsageError, match=r"the entry after message 3 in .* is another one"):
                await _fails(tmp_path / "two", upstream(backbone))

    async def test_a_log_that_is_ahead_by_an_entry_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.net.upstream.log_alignment._PATIENCE_SECONDS", 0.0)
        await stopped(tmp_path / "ahead")
        await asyncio.to_thread(shutil.copytree, tmp_path / "ahead", tmp_path / "backbone")
        async with running_hub(tmp_path / "ahead", *QUIET) as ahead, client(ahead) as link:
            await link.hold("h", 1)
        async with running_hub(tmp_path / "backbone", *QUIET) as backbone:
            with pytest.raises(UsageError, match="has lost its end"):
                await _fails(tmp_path / "ahead", upstream(backbone))

    async def test_one_that_is_too_old_begins_anew(self, tmp_path: Path) -> None:
        sets = (*QUIET, "log.segment_bytes=1KiB", "log.retain_bytes=1KiB", "log.segment_seconds=0.001")
        async with running_hub(tmp_path / "backbone", *sets) as backbone, client(backbone) as link:
            async with frontend(tmp_path / "front", backbone) as front:
                await link.publish([b"early"])
                await until(lambda: front.hub.log.head_op == backbone.hub.log.head_op)
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
                    backbone.hub.log.head_op == one.hub.log.head_op == two.hub.log.head_op
                    and upstream_facts(one)["waiting_bytes"] == 0
                )
            )
            assert kept(one.hub.log) == kept(two.hub.log) == kept(backbone.hub.log)
            assert {row.node for _, row in kept(one.hub.log)} == {backbone.hub.node}
            assert [message.seq for message in published(one.hub.log)] == list(range(1, one.hub.log.head + 1))

    async def test_its_log_is_the_same_sequence_of_operations(self, tmp_path: Path, backbone: Server) -> None:
        """Wherever it stopped, among sealed segments and in the open tail, with entries in every position."""
        random = Random(7)
        async with client(backbone) as link:

            async def write() -> None:
                for number in range(random.randint(1, 6)):
                    match random.randrange(4):
                        case 0:
                            await link.publish([b"%d" % number] * random.randint(1, 3), topic="t")
                        case 1:
                            await link.publish(b"x", attributes={"number": str(number), "n": number})
                        case 2:
                            await link.hold(f"h{number}", 1)
                        case 3:
                            await link.create_service(f"s{random.random()}")

            async with frontend(tmp_path / "front", backbone):
                pass
            for turn in range(6):
                await write()
                if turn % 2:
                    await backbone.maintenance.seal()
                await write()
                async with frontend(tmp_path / "front", backbone) as front:
                    await write()
                    await until(lambda: front.hub.log.head_op == backbone.hub.log.head_op)
                    assert kept(front.hub.log) == kept(backbone.hub.log)
                    assert front.hub.log.head == backbone.hub.log.head
                    assert front.hub.state.sections() == backbone.hub.state.sections()

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
            await until(lambda: backbone.hub.log.head_op == end.hub.log.head_op)
            assert kept(end.hub.log) == kept(backbone.hub.log)

    async def test_a_publisher_goes_on_behind_numbers_that_its_frontend_does_not_have_yet(
        self, tmp_path: Path, backbone: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with frontend(tmp_path / "front", backbone) as front, client(backbone) as link:
            await until(lambda: front.problem is None)
            append = TubeUpstream._append
            held: list[Any] = []

            async def hold(_: TubeUpstream, batches: Any) -> bool:
                held.append(batches)
                return True

            monkeypatch.setattr(TubeUpstream, "_append", hold)
            body = published_body([b"a", b"b"], "")
            await link.ask(lambda n: ask.PublishRequest(id=n, publisher="me", number=0), body)
            async with client(front) as near:
                await until(lambda: held)
                assert await near.newest("me") == 1
                monkeypatch.setattr(TubeUpstream, "_append", append)
                for batches in held:
                    front.hub.follow(batches)
                assert await near.publisher("me").publish([b"c"]) == (3, 3)

    async def test_names_are_opened_and_fenced_wherever_their_publishers_are(
        self, tmp_path: Path, backbone: Server
    ) -> None:
        async with (
            frontend(tmp_path / "one", backbone) as one,
            frontend(tmp_path / "two", one) as two,
            client(backbone, name="far") as far,
            client(two, name="near") as near,
        ):
            old = near.publisher("orders")
            assert await old.publish(b"a") == (1, 1)
            new = far.publisher("orders")
            assert await new.publish(b"b") == (2, 2)
            with pytest.raises(RefusedError, match=r"\(far\)") as refused:
                await old.publish(b"c")
            assert refused.value.code == "fenced"
            assert await near.publisher("orders").publish(b"d") == (3, 3)
            with pytest.raises(RefusedError, match=r"\(near\)"):
                await new.publish(b"e")
            assert [row.payload for row in published(two.hub.log)] == [b"a", b"b", b"d"]
            # Other bytes under a number that is there are refused at a frontend, too.
            for payload, error in ((b"x", None), (b"y", "conflict")):
                async with link_peer(two) as peer:
                    answer = await peer.ask(
                        published_body([payload], ""), op="publish", id=1, publisher="plain", number=0
                    )
                assert answer.get("error") == error
            assert kept(two.hub.log) == kept(backbone.hub.log)

    async def test_a_batch_of_a_query_is_compared_wherever_it_is_committed(
        self, tmp_path: Path, backbone: Server
    ) -> None:
        async with (
            frontend(tmp_path / "front", backbone) as front,
            client(front) as near,
            client(backbone) as far,
        ):
            stages = [await near.stage("q", 3, [b"a", b"b"]), await near.stage("q", 3, [b"c"])]
            for _ in range(2):
                assert await near.commit("q", 3, stages) == (1, 3)
            for link in (far, near):
                again = await link.stage("q", 3, [b"c", b"b", b"a"])
                assert await link.commit("q", 3, [again]) == (1, 3)
                for batch in (2, 3):
                    other = await link.stage("q", batch, [b"a", b"b", b"d"])
                    with pytest.raises(RefusedError, match="nothing was appended") as refused:
                        await link.commit("q", batch, [other])
                    assert refused.value.code == "conflict"
            assert backbone.hub.log.head == 3

    async def test_a_name_is_its_clients_at_every_frontend(self, tmp_path: Path) -> None:
        alice, bob, front_id = "a1" * 12, "b0" * 12, "f0" * 12
        auth = ("auth.required=true", *(f"auth.clients.{who}=key" for who in (alice, bob, front_id)))
        async with (
            running_hub(tmp_path / "backbone", *QUIET, *auth) as backbone,
            frontend(tmp_path / "front", backbone, *auth, f"node.upstream_client={front_id}") as front,
            client(front, client_id=alice, key="key") as near,
            client(backbone, client_id=alice, key="key") as far,
            client(front, client_id=bob, key="key") as other,
        ):
            assert await near.publisher("orders").publish(b"a") == (1, 1)
            with pytest.raises(RefusedError, match="belongs to client a1a1") as refused:
                await other.publisher("orders").publish(b"b")
            assert refused.value.code == "forbidden"
            assert await far.publisher("orders").publish(b"c") == (2, 2)

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
            await until(lambda: one.hub.log.head_op == two.hub.log.head_op == backbone.hub.log.head_op)
            kinds = [[(s.id, s.kind) for s in hub.services] for hub in (backbone, one, two)]
            assert kinds[0] == kinds[1] == kinds[2]

    async def test_the_services_policy_is_the_upstream_hubs(self, tmp_path: Path, backbone: Server) -> None:
        async with frontend(tmp_path / "front", backbone, "services.auto=true", "services.max=5") as front:
            await until(lambda: front.problem is None)
            assert front.services.policy == backbone.services.policy
            assert backbone.hub.log.head_op == 0


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
            held: list[Any] = []
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Hub, "followed", lambda _hub, batches: held.append(batches))
                await link.publish([b"a", b"b"])
                await until(lambda: upstream_facts(front)["lag"] == 2)
            for batches in held:
                front.hub.followed(batches)
            await until(lambda: upstream_facts(front)["lag"] == 0)

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
            # As a principal that it has in its own settings, too.
            sets = (f"access.up.client_id={who}", f"access.up.key={key}", f"node.upstream_client={who}")
            async with frontend(tmp_path / "front", backbone, *sets) as front:
                await until(lambda: front.problem is None)


class TestSilent:
    """An upstream hub that holds the connection, and does not answer."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.hub.publishing.relaying.backlog.LEAST_SECONDS", 0.1)

    async def test_whatever_it_is_asked_for_has_an_end(self, tmp_path: Path, backbone: Server) -> None:
        async with frontend(tmp_path / "front", backbone, SOON) as front, client(front) as near:
            await until(lambda: front.problem is None)
            stage = await near.stage("query", 1, [b"row"])
            # It tells its head, as a hub does whose disk hangs.
            with silence(backbone, lambda head: "ops" not in head):
                asked = {
                    "publish": near.publish(b"one"),
                    "newest": near.ask(lambda n: ask.PublisherRequest(id=n, publisher="p")),
                    "open": near.ask(lambda n: ask.PublisherRequest(id=n, publisher="p", open="me")),
                    "commit": near.commit("query", 1, [stage]),
                    "commit without rows": near.commit("other", 1, []),
                    "hold": near.hold("mine", 1),
                    "consumer": anext(aiter(near.consumer("c"))),
                }
                async with asyncio.timeout(SECONDS):
                    told = await asyncio.gather(*asked.values(), return_exceptions=True)
            for name, error in zip(asked, told, strict=True):
                assert isinstance(error, RefusedError), (name, error)
                assert error.code == "unavailable", name
                url = f"tube://{backbone.doors['tube_tcp']}"
                assert error.reason.startswith(f"the upstream hub {url} has not answered for 0.6 s"), name
            assert front.problem is None
            stage = await near.stage("query", 2, [b"row"])
            first, last = await near.commit("query", 2, [stage])
            assert first == last == backbone.hub.log.head

    async def test_one_that_says_nothing_is_lost_and_the_next_host_has_its_turn(
        self, tmp_path: Path, backbone: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.net.upstream.over_link._LOOK_SECONDS", 0.01)
        async with (
            frontend(tmp_path / "one", backbone) as one,
            frontend(tmp_path / "two", backbone) as two,
            running_hub(tmp_path / "front", *QUIET, upstream(one, two), SOON) as front,
            client(front) as near,
        ):
            await until(lambda: upstream_facts(front)["connected"])
            hubs = {server.doors["tube_tcp"]: server for server in (one, two)}
            silent = hubs.pop(upstream_facts(front)["peer"])
            with silence(silent):
                await until(lambda: upstream_facts(front)["peer"] in hubs)
                assert await near.publish(b"one") == (1, 1)

    async def test_one_that_says_nothing_at_the_start_is_not_waited_for(
        self, tmp_path: Path, backbone: Server
    ) -> None:
        async with frontend(tmp_path / "front", backbone):
            pass
        async with AsyncExitStack() as hubs:
            with silence(backbone):
                with pytest.raises(UnreachableError, match=r"it has not answered for 0\.6 s"):
                    await _fails(tmp_path / "new", upstream(backbone), SOON)
                front = await hubs.enter_async_context(frontend(tmp_path / "front", backbone, SOON))
                await until(lambda: "has not answered for 0.6 s" in str(front.problem))
            await until(lambda: front.problem is None)


class TestPass:
    """The operation itself, as a stranger would ask for it."""

    async def test_it_is_taken_once(self, backbone: Server) -> None:
        log = backbone.hub.log
        body = pack_passed(log.uuid, [Batch(Run.of([b"a", b"b"]), origin="spp", publisher="p", topic="t")])
        async with link_peer(backbone) as peer:
            for number, answer in (
                (0, (1, 2, False, 3)),
                (0, (1, 2, True, 3)),
                (1, (3, 4, False, 6)),
                (0, (1, 2, True, 3)),
            ):
                told = await peer.ask(body, op="pass", id=1, frontend="f", number=number, rows=2)
                assert (told["first"], told["last"], told["repeated"], told["op"]) == answer
            told = await peer.ask(body, op="pass", id=1, frontend="f", number=3, rows=2)
            assert told["error"] == "conflict"
        assert [(m.seq, m.origin, m.publisher, m.topic, m.number) for _, m in kept(log)][:3] == [
            (1, "spp", "p", "t", None),
            (2, "spp", "p", "t", None),
            (2, "log", "f", "frontend/f", 0),
        ]

    @pytest.mark.parametrize("kinds", ["em", "me", "eme", "mem", "e", "ee", "mm", "eemmeem"])
    async def test_messages_and_entries_come_in_any_order(self, backbone: Server, kinds: str) -> None:
        batches = [
            entry("hold", f"h{place}", hold(1))
            if kind == "e"
            else Batch(Run.of([b"%d" % place] * (place + 1)), origin="spp", topic="t")
            for place, kind in enumerate(kinds)
        ]
        log, rows = backbone.hub.log, sum(map(len, batches))
        count = sum(len(batch) for batch in batches if not batch.is_entries)
        async with client(backbone) as link, link_peer(backbone) as peer:
            await link.publish([b"before"])
            body = pack_passed(log.uuid, batches)
            for repeated in (False, True):
                told = await peer.ask(body, op="pass", id=1, frontend="f", number=0, rows=rows)
                assert (told["repeated"], told["op"]) == (repeated, 1 + rows + 1)
                # Without messages, an empty range after the message that the entries stand after.
                assert (told["first"], told["last"]) == (2, 1 + count)
        expected, seq = [], 1
        for batch in batches:
            for row in batch:
                seq += not batch.is_entries
                expected.append((seq, row.topic, row.payload))
        got = [(row.seq, row.topic, row.payload) for _, row in kept(log)]
        assert got == [(1, "", b"before"), *expected, (seq, "frontend/f", b"")]

    @pytest.mark.parametrize(
        ("batch", "error"),
        [
            (Batch(Run.of([b"a"])), "malformed"),
            (Batch(Run.of([b"a"]), origin="of its own"), "malformed"),
            (with_columns("spp", origin="o" * 300), "malformed"),
            (with_columns("log", origin="spp"), "malformed"),
            (with_columns("spp", topic="t" * 70_000), "limit"),
            (with_columns("spp", publisher="p" * 256), "limit"),
            (with_columns("log", topic="t" * 70_000), "limit"),
            (with_columns("log", topic="service/"), "malformed"),
            (with_columns("spp", number=-1), "limit"),
            (with_columns("spp", number=1 << 62), "limit"),
            (Batch(Run.of([b"a"]), origin="spp", publisher="p" * 256), "limit"),
            (Batch(Run.of([b"a"]), origin="spp", publisher="p", number=-1), "limit"),
            (Batch(Run.of([b"a"]), origin="spp", publisher="p", number=1 << 62), "limit"),
            (Batch(Run.of([b"a"] * 2), origin="spp", publisher="p", number=(1 << 62) - 1), "limit"),
            (Batch(Run.of([]), origin="spp"), "malformed"),
            (Batch(Run.of([b'{"auto": true, "max": 0}']), origin="log", topic="service/"), "malformed"),
        ],
    )
    async def test_what_cannot_be_kept_is_refused(self, backbone: Server, batch: Batch, error: str) -> None:
        good = Batch(Run.of([b"good"]), origin="spp")
        async with link_peer(backbone) as peer:
            for batches in ([batch], [good, batch], [batch, good]):
                told = await passed(backbone, peer, *batches)
                assert told["error"] == error
                assert told["reason"]
        assert backbone.hub.log.head_op == 0

    async def test_bytes_that_are_no_batches_are_refused(self, backbone: Server) -> None:
        uuid = backbone.hub.log.uuid
        batches = [entry("hold", "h", hold(1)), Batch(Run.of([b"a", b"b"]), origin="spp")]
        good = pack_passed(uuid, batches)
        later = [batch.numbered(2, 1, 0, 0) for batch in batches[1:]]
        mixed = pack_passed(uuid, [with_columns("spp", origin="lug")])
        bad = {
            "nothing": (b"", 3),
            "no batch": (uuid.bytes, 3),
            "rows as they were": (batches[1].to_arrow().serialize().to_pybytes(), 2),
            "too few": (good, 4),
            "too many": (good, 2),
            "cut short": (good[:-8], 3),
            "more after them": (good + bytes(8), 3),
            "not from the beginning": (pack(uuid, later), 2),
            "twice": (good + good[16:], 6),
            "entries that say they are messages": (flipped(good, frame.ENTRIES), 3),
            "messages and entries in one batch": (sealed(mixed.replace(b"lug", b"log")), 2),
            "another message's number": (
                pack(uuid, [batches[0].numbered(1, 0, 0, 0), batches[1].numbered(2, 9, 0, 0)]),
                3,
            ),
        }
        async with link_peer(backbone) as peer:
            for what, (body, rows) in bad.items():
                told = await peer.ask(body, op="pass", id=1, frontend="f", number=0, rows=rows)
                assert told["error"] == "malformed", what
                assert told["reason"], what
            other = await peer.ask(
                pack_passed(UUID(int=7), batches), op="pass", id=1, frontend="f", number=0, rows=3
            )
            assert other["error"] == "conflict"
            assert str(uuid) in other["reason"]
            for asked in ({}, {"rows": 0}, {"rows": -1}, {"rows": "3"}):
                told = await peer.ask(good, op="pass", id=1, frontend="f", number=0, **asked)
                assert (told["error"], told["field"]) == ("malformed", "rows")
            assert backbone.hub.log.head_op == 0
            random = Random(3)
            for _ in range(300):
                changed = bytearray(good)
                changed[random.randrange(16, len(good))] ^= 1 << random.randrange(8)
                told = await peer.ask(sealed(changed), op="pass", id=1, frontend="x", number=0, rows=3)
                # A change may be to a payload, a text or a time: then there is nothing wrong with it.
                assert told.get("ok") or told["error"] in ("malformed", "limit")
            assert (await peer.ask(good, op="pass", id=1, frontend="f", number=0, rows=3))["ok"] is True

    @pytest.mark.parametrize("origin", ["tube", "fyrehose", "replay", "consumer"])
    async def test_a_message_past_the_hubs_limit_is_refused(self, tmp_path: Path, origin: str) -> None:
        sets = (*QUIET, "limits.message_bytes=100")
        async with running_hub(tmp_path / "backbone", *sets) as backbone, link_peer(backbone) as peer:
            told = await passed(backbone, peer, Batch(Run.of([b"a", bytes(101)]), origin=origin))
            assert (told["error"], backbone.hub.log.head) == ("limit", 0)
            assert "101" in told["reason"]
            assert "100" in told["reason"]
            # What the state needs is no message.
            for number, each in enumerate([(origin, bytes(100)), ("log", bytes(101))]):
                batch = Batch(Run.of([each[1]]), origin=each[0], topic="no/part")
                assert (await passed(backbone, peer, batch, number=number))["ok"] is True

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
            assert [m.payload for m in published(backbone.hub.log)] == [b"before", b"after"]
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
        batch = Batch(Run.of([payload]), origin="log", topic=topic)
        async with link_peer(backbone) as peer:
            assert (await passed(backbone, peer, batch))["ok"] is True
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
            assert (await passed(backbone, peer, batch))["ok"] is True
            assert await link.publish(b"next") == (1, 1)
            assert backbone.hub.state.holds == {}
        await backbone.drain()
        async with running_hub(tmp_path / "backbone", *QUIET) as again:
            assert (again.hub.log.head, again.hub.log.head_op) == (1, 5)


def _messages(rows: Any) -> list[Message]:
    return list(Batch.over(rows))


async def _fails(data: Path, *sets: str) -> None:
    free = [f"listen.{door}=127.0.0.1:0" for door in DOORS]
    async with asyncio.timeout(SECONDS):
        await Server(load(environ={}, sets=[*free, *QUIET, f"node.data={data}", *sets])).start()
