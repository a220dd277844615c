"""The client of services against a real hub, and against one that does as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.net.raw import address_of, running_hub, until
from tests.net.spp_peer import AUTH, integer, packet, string

import headrace
from headrace.client.spp.client import LiveService, Offers, SppClient
from headrace.errors import ClosedError, RefusedError, UnreachableError, UsageError, WireError
from headrace.hub.services.entries import ServiceKind, create, remove
from headrace.message import Batch
from headrace.net.server.process import Server

SECONDS = 20.0
CLIENT, KEY = "00112233445566778899aabb", "a key"


def url(server: Server) -> str:
    return "spp://{}:{}".format(*address_of(server, "spp"))


async def commit(server: Server, *batches: Batch) -> None:
    done = asyncio.get_running_loop().create_future()
    for batch in batches[:-1]:
        server.hub.submit(batch)
    server.hub.submit(batches[-1], done.set_result)
    await done


async def soon(waiting: Awaitable[Any]) -> Any:
    async with asyncio.timeout(SECONDS):
        return await waiting


async def some(offers: Offers, count: int) -> list[str]:
    return [(await soon(anext(offers))).service for _ in range(count)]


@pytest.fixture
async def spp(hub: Server) -> AsyncIterator[SppClient]:
    async with headrace.connect(url(hub)) as client:
        yield client


class TestServices:
    async def test_as_the_page_shows_it(self, hub: Server, spp: SppClient) -> None:
        offers = spp.offers()
        await spp.publish({"speed": 60, "driver": "Ada"}, topic="fleet/42")
        assert await some(offers, 1) == ["fleet/42"]
        async with spp.subscribe("fleet/42") as service:
            assert service.value == {"speed": 60, "driver": "Ada"}
            assert (service.kind, service.id, service.removed) == ("json", "fleet/42", False)
            await spp.publish({"speed": 61}, topic="fleet/42")
            await spp.publish({"driver": None}, topic="fleet/42")
            assert [await soon(anext(service)) for _ in range(2)] == [{"speed": 61}, {"driver": None}]
            assert service.value == {"speed": 61}
        assert spp.offered == ("fleet/42",)
        assert spp.connected

    @pytest.mark.parametrize("value", [b"\xff", bytearray(b"x"), memoryview(b"y"), "größe", "", b"[1]"])
    async def test_any_bytes(self, spp: SppClient, value: Any) -> None:
        await spp.publish(value, topic="a")
        async with spp.subscribe("a") as service:
            assert service.value == (value.encode() if isinstance(value, str) else bytes(value))
            assert service.kind == "last"
            await spp.publish(b"next", topic="a")
            assert await soon(anext(service)) == b"next"

    async def test_subscribing_waits_for_the_offer(self, hub: Server, spp: SppClient) -> None:
        async def value() -> Any:
            async with spp.subscribe("later") as service:
                return service.value

        waiting = asyncio.ensure_future(value())
        await spp.publish(b"1", topic="other")
        assert await some(spp.offers(), 1) == ["other"]
        assert not waiting.done()
        await spp.publish(b"1", topic="later")
        assert await soon(waiting) == b"1"

    async def test_several_here_share_one_subscription(self, hub: Server, spp: SppClient) -> None:
        await spp.publish({"x": 1}, topic="a")
        async with spp.subscribe("a") as first, spp.subscribe("a") as second:
            assert first.value == second.value == {"x": 1}
            assert hub.status()["subscribers"]["spp"] == 1  # type: ignore[index]
            await spp.publish({"x": 2}, topic="a")
            assert await soon(anext(first)) == await soon(anext(second)) == {"x": 2}
        await until(lambda: hub.status()["subscribers"]["spp"] == 0)  # type: ignore[index]

    async def test_subscribing_again_is_exact(self, hub: Server, spp: SppClient) -> None:
        """However quickly, and however many changes are on their way."""
        await spp.publish({"x": 0, "always": True}, topic="a")
        async with headrace.connect(url(hub)) as busy:
            stop = asyncio.Event()

            async def change() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    await busy.publish({"x": number}, topic="a")
                    await asyncio.sleep(0)

            changing = asyncio.ensure_future(change())
            try:
                for _ in range(10):
                    async with spp.subscribe("a") as service:
                        assert service.value.keys() == {"x", "always"}
                        await soon(anext(service))
            finally:
                stop.set()
                await changing

    async def test_a_removed_service_and_the_one_in_its_place(self, hub: Server, spp: SppClient) -> None:
        offers = spp.offers()
        await spp.publish({"x": 1}, topic="a")
        async with spp.subscribe("a") as service:
            await commit(hub, remove("a"))
            await until(lambda: service.removed)
            assert spp.offered == ()
            await spp.publish({"y": 2}, topic="a")
            assert await soon(anext(service)) == {"y": 2}
            await commit(hub, create("a", ServiceKind.LAST))
            await spp.publish(b"new", topic="a")
            assert await soon(anext(service)) == b""
            assert await soon(anext(service)) == b"new"
            assert (service.value, service.kind, service.removed) == (b"new", "last", False)
        assert await some(offers, 2) == ["a", "a"]

    async def test_a_kind_that_the_caller_knows(self, hub: Server, spp: SppClient) -> None:
        await commit(hub, create("a", ServiceKind.LAST))
        async with spp.subscribe("a", kind="last") as service:
            await spp.publish(b'{"x": 1}', topic="a")
            await soon(anext(service))
            await spp.publish({"y": 2}, topic="a")
            assert await soon(anext(service)) == b'{"y":2}' == service.value
            with pytest.raises(UsageError, match="not as 'json'"):
                await spp.subscribe("a", kind="json").open()

    async def test_offers_begin_with_what_there_is(self, hub: Server, spp: SppClient) -> None:
        for name in "cab":
            await spp.publish(b"1", topic=name)
        assert await some(spp.offers(), 3) == ["c", "a", "b"]
        again = spp.offers()
        assert await some(again, 3) == ["c", "a", "b"]
        await spp.publish(b"1", topic="d")
        assert await some(again, 1) == ["d"]

    async def test_a_slow_reader_gets_one_change_for_many(
        self, hub: Server, spp: SppClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.client.spp.object_copy.PENDING_BYTES", 2_000)
        await spp.publish({"first": 1}, topic="a")
        async with spp.subscribe("a") as service:
            for number in range(100):
                await spp.publish({"n": number}, topic="a")
            await until(lambda: service.value.get("n") == 99)
            assert await soon(anext(service)) == {"n": 99}
            assert service.conflated == 100

    async def test_much_is_published_and_all_of_it_arrives(self, hub: Server, spp: SppClient) -> None:
        """Closing waits until the hub has it."""
        await spp.publish(b"0", topic="a")
        async with spp.subscribe("a"):
            for number in range(1, 2_001):
                await spp.publish(b"%d" % number + b"x" * 1_000, topic="a")
            await spp.close()
        await until(lambda: hub.hub.counters.get("received", origin="spp") == 2_001)

    async def test_sync(self, hub: Server, spp: SppClient) -> None:
        def work() -> tuple[str, Any]:
            with headrace.connect_sync(url(hub)) as client:
                client.publish({"x": 0}, topic="a")
                return next(client.offers()).service, next(client.subscribe("a"))

        working = asyncio.ensure_future(asyncio.to_thread(work))
        number = 0
        while not working.done():
            # The first change after it has subscribed is the one it sees.
            number += 1
            if "a" in spp.offered:
                await spp.publish({"x": number}, topic="a")
            await asyncio.sleep(0.001)
        name, change = await soon(working)
        assert name == "a"
        assert change["x"] > 0


class TestConnections:
    async def test_a_new_connection_brings_everything_up_to_date(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path, "listen.http=off") as server:
            where = address_of(server, "spp")
            client = await headrace.connect(url(server)).open()
            offers = client.offers()
            await client.publish({"x": 1, "y": 1}, topic="a")
            await client.publish(b"1", topic="l")
            assert await some(offers, 2) == ["a", "l"]
            service = await client.subscribe("a").open()
            unchanged = await client.subscribe("l").open()
        await until(lambda: not client.connected)
        assert service.value == {"x": 1, "y": 1}, "what was last known stays"
        publishing = asyncio.ensure_future(client.publish({"z": 3}, topic="a"))
        async with running_hub(tmp_path, "listen.http=off", f"listen.spp={where[0]}:{where[1]}") as server:
            await soon(publishing)
            assert await soon(anext(service)) in ({"z": 3}, {"x": 1, "y": 1, "z": 3})
            assert service.value == {"x": 1, "y": 1, "z": 3}
            await client.publish(b"1", topic="b")
            assert await some(offers, 1) == ["b"], "known services are not offered twice"
            assert unchanged.value == b"1"
            reading = asyncio.ensure_future(anext(unchanged))
            await client.publish(b"2", topic="l")
            assert await soon(reading) == b"2", "that nothing happened meanwhile is no change"
            await client.close()

    async def test_it_tries_until_there_is_a_hub_again(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path, "listen.http=off") as server:
            where = address_of(server, "spp")
            client = await headrace.connect(url(server)).open()
        plan = client._services.failover.plan
        await until(lambda: plan.failures >= 3)
        async with running_hub(tmp_path, "listen.http=off", f"listen.spp={where[0]}:{where[1]}"):
            await soon(client.publish(b"1", topic="a"))
            assert await some(client.offers(), 1) == ["a"]
            await client.close()

    async def test_closed_while_there_is_no_hub(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path, "listen.http=off") as server:
            client = await headrace.connect(url(server)).open()
        await until(lambda: not client.connected)
        publishing = asyncio.ensure_future(client.publish(b"1", topic="a"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClosedError):
            await soon(publishing)

    async def test_opened_twice(self, spp: SppClient) -> None:
        with pytest.raises(UsageError, match="opened once"):
            await spp.open()

    async def test_nobody_there(self) -> None:
        with pytest.raises(UnreachableError, match="is the hub running there"):
            await headrace.connect("spp://127.0.0.1:1").open()

    async def test_the_next_host_is_tried(self, hub: Server) -> None:
        async with headrace.connect(f"spp://127.0.0.1:1,{hub.doors['spp']}") as client:
            assert client.connected

    async def test_who_waits_when_it_is_closed(self, hub: Server, spp: SppClient) -> None:
        await spp.publish(b"1", topic="a")
        service = await spp.subscribe("a").open()
        waiting = [asyncio.ensure_future(_rest(each)) for each in (spp.offers(), service)]
        never = asyncio.ensure_future(spp.subscribe("never").open())
        await asyncio.sleep(0)
        await spp.close()
        await spp.close()
        assert (await soon(waiting[0]))[-1].service == "a"
        assert await soon(waiting[1]) == []
        with pytest.raises(ClosedError):
            await soon(never)
        for use in (lambda: spp.offers(), lambda: spp.subscribe("a")):
            with pytest.raises(ClosedError):
                use()
        with pytest.raises(ClosedError):
            await spp.publish(b"1", topic="a")
        await service.close()
        with pytest.raises(ClosedError):
            await service.open()

    async def test_a_cancelled_reader_has_taken_nothing(self, hub: Server, spp: SppClient) -> None:
        await spp.publish(b"1", topic="a")
        async with spp.subscribe("a") as service:
            reading = asyncio.ensure_future(anext(service))
            await asyncio.sleep(0)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            await spp.publish(b"2", topic="a")
            assert await soon(anext(service)) == b"2"

    async def test_a_subscription_that_is_closed_elsewhere_ends(self, hub: Server, spp: SppClient) -> None:
        await spp.publish(b"1", topic="a")
        service = await spp.subscribe("a").open()
        waiting = asyncio.ensure_future(_rest(service))
        await asyncio.sleep(0)
        await service.close()
        assert await soon(waiting) == []
        assert service.value is None

    @pytest.mark.parametrize(
        ("service", "change"),
        [("", b""), ("x" * 1025, b""), ("a", 5), ("a", {"x": object()}), ("a", "\ud800")],
    )
    async def test_what_cannot_be_published(self, spp: SppClient, service: str, change: Any) -> None:
        with pytest.raises((UsageError, WireError)):
            await spp.publish(change, topic=service)

    async def test_a_kind_that_there_is_not(self, spp: SppClient) -> None:
        with pytest.raises(UsageError, match="expected 'json' or 'last'"):
            spp.subscribe("a", kind="xml")  # type: ignore[arg-type]

    async def test_used_before_it_is_open(self) -> None:
        client = headrace.connect("spp://127.0.0.1:1")
        with pytest.raises(UsageError, match="not open"):
            client.offers()
        with pytest.raises(UsageError, match="not open"):
            await client.publish(b"", topic="a")
        await client.close()


class TestAuth:
    async def test_accepted_again_and_again(self, tmp_path: Path) -> None:
        sets = ("listen.http=off", "auth.required=true", f"auth.clients.{CLIENT}={KEY}")
        async with running_hub(tmp_path, *sets) as server:
            async with headrace.connect(url(server), client_id=CLIENT, key=KEY) as client:
                await client.publish({"x": 1}, topic="a")
                for _ in range(3):  # each on a connection of its own
                    async with client.subscribe("a") as service:
                        assert service.value == {"x": 1}
            (row,) = [one for batch in server.hub.log.scan(1) for one in batch if one.topic == "a"]
            assert row.publisher == CLIENT

    async def test_refused(self, tmp_path: Path) -> None:
        sets = ("listen.http=off", "auth.required=true", f"auth.clients.{CLIENT}={KEY}")
        async with running_hub(tmp_path, *sets) as server:
            with pytest.raises(RefusedError) as caught:
                await headrace.connect(url(server), client_id=CLIENT, key="another").open()
            assert caught.value.code == "auth"

    async def test_with_auth_off_it_is_welcome(self, hub: Server) -> None:
        async with headrace.connect(url(hub), client_id=CLIENT, key=KEY) as client:
            await client.publish(b"1", topic="a")
            assert await some(client.offers(), 1) == ["a"]

    @pytest.mark.parametrize("options", [{"key": KEY}, {"client_id": CLIENT}, {"client_id": "x", "key": KEY}])
    def test_half_an_identity(self, options: dict[str, str]) -> None:
        with pytest.raises(UsageError, match="client_id"):
            headrace.connect("spp://127.0.0.1", **options)


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """A hub that does as it is told."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await script(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"spp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await soon(asyncio.gather(*tasks, return_exceptions=True))


class TestAStrangersHub:
    async def test_what_was_not_subscribed_and_what_is_no_protocol_of_ours_is_ignored(self) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(
                packet(16, string("b") + string("unasked")) + packet(0, b"test") + packet(99, b"theirs")
            )
            writer.write(packet(1, string("a")))
            assert await reader.readexactly(13) == packet(1, string("a"))
            writer.write(packet(16, string("b") + string("unasked")) + packet(16, string("a") + string("1")))
            assert await reader.readexactly(13) == packet(2, string("a"))
            assert await reader.read() == b""

        async with (
            scripted(script) as where,
            headrace.connect(where) as client,
            client.subscribe("a") as service,
        ):
            assert service.value == b"1"

    async def test_bytes_that_break_the_protocol_end_the_connection_and_a_new_one_is_made(self) -> None:
        visits = 0

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal visits
            visits += 1
            writer.write(packet(1, string("a")))
            await reader.readexactly(13)
            writer.write(packet(16, string("a") + string(b"%d" % visits)))
            if visits == 1:
                writer.write(packet(1, b"\xff"))
            await reader.read()

        async with scripted(script) as where, headrace.connect(where) as client:
            service = await client.subscribe("a").open()
            assert service.value in (b"1", b"2")
            if service.value == b"1":
                assert await soon(anext(service)) == b"2"
            assert visits == 2

    async def test_auth_that_nobody_answers(self) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with scripted(script) as where:
            begin = time.monotonic()
            with pytest.raises(UnreachableError, match="no answer"):
                await headrace.connect(where, client_id=CLIENT, key=KEY, timeout=0.1).open()
            assert time.monotonic() - begin < SECONDS

    async def test_a_hub_that_closes_instead_of_answering(self) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)

        async with scripted(script) as where:
            with pytest.raises(UnreachableError):
                await headrace.connect(where, client_id=CLIENT, key=KEY).open()

    async def test_a_hub_that_refuses_later_is_final(self) -> None:
        visits = 0

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal visits
            visits += 1
            header = await reader.readexactly(8)
            await reader.readexactly(int.from_bytes(header[4:]))
            writer.write(packet(AUTH, integer(0 if visits == 1 else 1) + string(b"")))
            if visits > 1:
                await reader.read()

        async with scripted(script) as where:
            client: SppClient = await headrace.connect(where, client_id=CLIENT, key=KEY).open()
            service: LiveService = client.subscribe("never")
            with pytest.raises(RefusedError):
                await soon(service.open())
            with pytest.raises(RefusedError):
                await client.publish(b"1", topic="a")
            await client.close()


async def _rest(iterator: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in iterator]
