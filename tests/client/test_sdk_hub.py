"""The clients of content routing against a real hub: its doors, its log, its death."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.client.connectors import SECONDS
from tests.hubprocess import HubProcess
from tests.net.raw import running_hub, until

import headrace
from headrace import (
    any_of,
    at_least,
    at_most,
    between,
    connect,
    exists,
    missing,
    not_,
    one_of,
    starts_with,
    where,
)
from headrace.client.sdk.client import SdkClient
from headrace.errors import RefusedError
from headrace.net.server.process import Server

CLIENT, KEY = "00112233445566778899aabb", "a key"
OTHER = "ffeeddccbbaa998877665544"


def url(server: Server, door: str) -> str:
    return f"{door}://{server.doors[door]}"


def link_url(server: Server) -> str:
    return f"tube://{server.doors['tube_tcp']}"


async def soon(waiting: Awaitable[Any]) -> Any:
    async with asyncio.timeout(SECONDS):
        return await waiting


async def take(sdk: SdkClient, count: int) -> list[bytes]:
    return [(await soon(anext(sdk))).payload for _ in range(count)]


async def test_as_the_page_shows_it(hub: Server) -> None:
    async with connect(url(hub, "sdk")) as sdk, connect(url(hub, "publisher")) as publisher:
        await sdk.subscribe(where(city="Praha", x=between(0, 10), kind=one_of("a", "b")))
        await publisher.publish(b"not for us", attributes={"city": "Brno", "x": 5, "kind": "a"})
        await publisher.publish(b"for us", attributes={"city": "Praha", "x": 5, "kind": "a"})
        message = await soon(anext(sdk))
        assert message.payload == b"for us"
        assert message.seq == hub.hub.log.head


@pytest.mark.parametrize(
    ("condition", "matched"),
    [
        ("a", "a"),
        (["a", 5], "a5"),
        (5, "5"),
        (at_least(5), "5"),
        (starts_with("a"), "ab"),
        (exists(), "ab57"),
        (missing(), "-"),
        (not_("a"), "b57-"),
        (any_of("a", missing()), "a-"),
    ],
)
async def test_every_condition_means_what_the_page_says(hub: Server, condition: Any, matched: str) -> None:
    said: dict[str, dict[str, Any]] = {
        "a": {"v": "a"},
        "b": {"v": "ab"},
        "5": {"v": 5},
        "7": {"v": "5"},
        "-": {},
    }
    async with connect(url(hub, "sdk")) as sdk, connect(url(hub, "publisher")) as publisher:
        await sdk.subscribe(where(v=condition, end=missing()))
        await publisher.publish(
            {"payload": name.encode(), "attributes": attributes} for name, attributes in said.items()
        )
        seen = await take(sdk, len(matched))
        # Nothing more was for us.
        await sdk.subscribe(where(end=exists()))
        await publisher.publish(b".", attributes={"end": 1})
        seen += await take(sdk, 1)
        assert b"".join(seen).decode() == matched + "."


async def test_many_names_and_each_message_once(hub: Server) -> None:
    async with connect(url(hub, "sdk")) as sdk, connect(url(hub, "publisher")) as publisher:
        await sdk.subscribe(where(city="Brno"))
        await sdk.subscribe("near", where(x=between(0, 10)) | where(y=between(0, 10)))
        await sdk.subscribe("praha", where(city="Praha"))
        assert set(sdk.subscriptions) == {"", "near", "praha"}
        assert sdk.subscriptions["near"] == where(x=between(0, 10)) | where(y=between(0, 10))
        said: list[dict[str, Any]] = [
            {"x": 5, "y": 5, "city": "Praha"},
            {"x": 50, "y": 5, "city": "Brno"},
            {"city": "Brno"},
            {"city": "Oslo"},
            {"city": "Praha"},
        ]
        await publisher.publish({"payload": b"%d" % n, "attributes": each} for n, each in enumerate(said))
        got = [await soon(anext(sdk)) for _ in range(4)]
        assert [(message.payload, message.subs) for message in got] == [
            (b"0", ("near", "praha")),
            (b"1", ("near",)),
            (b"2", ()),
            (b"4", ("praha",)),
        ]
        await sdk.subscribe("near", where(x=7))
        await sdk.unsubscribe("praha")
        await sdk.unsubscribe()
        assert set(sdk.subscriptions) == {"near"}
        await publisher.publish(
            [{"payload": b"5", "attributes": said[0]}, {"payload": b"7", "attributes": {"x": 7}}]
        )
        last = await soon(anext(sdk))
        assert (last.payload, last.subs) == (b"7", ("near",))


async def test_a_name_is_kept_for_who_comes_back(hub: Server) -> None:
    async with connect(url(hub, "sdk"), client_id=CLIENT) as sdk:
        await sdk.subscribe("mine", where(x=1))
    async with connect(link_url(hub)) as link:
        seq = (await link.publish(b"meanwhile", attributes={"x": 1})).first
        rows = (await link.subscriptions()).to_pylist()
        assert [(row["client"], row["name"]) for row in rows] == [(CLIENT, "mine")]
    async with connect(url(hub, "sdk"), client_id=CLIENT, from_seq=seq) as sdk:
        message = await soon(anext(sdk))
        assert (message.payload, message.subs) == (b"meanwhile", ("mine",))
        await sdk.unsubscribe("mine")
    assert not len(hub.subscriptions)


async def test_a_made_up_client_takes_its_names_along(hub: Server) -> None:
    async with connect(url(hub, "sdk")) as sdk:
        await sdk.subscribe("one", where(x=1) | where(y=1))
        await sdk.subscribe("two", where(x=1))
        await until(lambda: len(hub.subscriptions) == 3)
    await until(lambda: not len(hub.subscriptions))


async def test_names_are_charged_and_bounded(tmp_path: Path) -> None:
    async with running_hub(tmp_path, "limits.subscriptions_per_client=3") as server:
        async with connect(url(server, "sdk"), client_id=CLIENT) as sdk:
            await sdk.subscribe("a", where(x=1) | where(y=1))
            await sdk.subscribe("b", where(x=1))
            await sdk.subscribe("b", where(x=2))  # takes no more than before
            with pytest.raises(RefusedError):
                await sdk.subscribe("c", where(x=1))
        assert server.hub.counters.get("refused", door="sdk", reason="subscriptions") == 1
        async with connect(url(server, "sdk"), client_id=OTHER) as other:
            await other.subscribe("c", where(x=1) | where(x=2) | where(x=3))


async def test_messages_of_other_doors_are_matched_by_their_attributes(hub: Server) -> None:
    async with connect(url(hub, "sdk")) as sdk, connect(link_url(hub)) as link:
        await sdk.subscribe(where(city="Praha", x=at_least(5)))
        await link.publish(b"too small", attributes={"city": "Praha"}, numbers={"x": 4.5})
        first, _ = await link.publish(b"\xff", attributes={"city": "Praha"}, numbers={"x": 5})
        message = await soon(anext(sdk))
        assert (message.seq, message.payload) == (first, b"\xff")


async def test_what_the_publisher_sent_is_in_the_log_when_it_is_closed(hub: Server) -> None:
    async with connect(url(hub, "publisher")) as publisher:
        await publisher.publish(
            {"payload": b"%d" % number, "attributes": {"n": number, "s": "x"}} for number in range(3000)
        )
    async with connect(link_url(hub)) as link:
        rows = [row async for batch in link.read(1, 3000) for row in batch.to_pylist()]
    assert [row["payload"] for row in rows] == [b"%d" % number for number in range(3000)]
    assert {row["origin"] for row in rows} == {"attribute"}
    assert rows[2999]["numbers"] == [("n", 2999.0)]
    assert rows[2999]["attributes"] == [("s", "x")]


async def test_resuming_with_an_id_and_a_number(hub: Server) -> None:
    async with connect(link_url(hub)) as link:
        async with connect(url(hub, "sdk"), client_id=CLIENT) as sdk:
            await sdk.subscribe(where(n=exists()))
            await link.publish(b"1", numbers={"n": 1})
            assert await take(sdk, 1) == [b"1"]
            cursor = sdk.cursor
        await link.publish(b"2", numbers={"n": 2})
        await link.publish(b"not for us")
        await link.publish(b"3", numbers={"n": 3})
        async with connect(url(hub, "sdk"), client_id=CLIENT, from_seq=cursor) as sdk:
            # The hub has kept what was subscribed, and asking again changes nothing.
            await sdk.subscribe(where(n=exists()))
            await link.publish(b"4", numbers={"n": 4})
            assert await take(sdk, 3) == [b"2", b"3", b"4"]
            await sdk.unsubscribe()
        assert hub.hub.log.head >= 5


async def test_from_any_number_on_without_an_id(hub: Server) -> None:
    async with connect(link_url(hub)) as link:
        for number in range(5):
            await link.publish(b"%d" % number, numbers={"n": number})
    async with connect(url(hub, "sdk"), from_seq=3) as sdk:
        await sdk.subscribe(where(n=exists()))
        assert await take(sdk, 3) == [b"2", b"3", b"4"]


async def test_a_made_up_client_leaves_nothing_behind(hub: Server) -> None:
    async with connect(url(hub, "sdk")) as sdk, connect(url(hub, "sdk"), client_id=CLIENT) as known:
        await sdk.subscribe(where(n=exists()))
        await known.subscribe(where(n=exists()))
        await until(lambda: hub.status()["subscribers"]["subscriptions"] == 2)  # type: ignore[index]
    await until(lambda: hub.status()["subscribers"]["subscriptions"] == 1)  # type: ignore[index]


async def test_a_slow_consumer_gets_everything(hub: Server) -> None:
    count = 3000
    async with (
        connect(url(hub, "sdk"), buffer_bytes=1 << 14) as sdk,
        connect(url(hub, "publisher")) as publisher,
    ):
        await sdk.subscribe(where(n=exists()))
        await publisher.publish(
            {"payload": b"%d" % number + b" " * 1500, "attributes": {"n": number}} for number in range(count)
        )
        await until(lambda: sdk._waiting.full)
        assert [int(payload) for payload in await take(sdk, count)] == list(range(count))
        assert (sdk.connects, sdk.stats.repeated) == (1, 0)


async def test_who_may_come_in(tmp_path: Path) -> None:
    sets = ["auth.required=true", f"auth.clients.{CLIENT}={KEY}", "listen.http=off"]
    async with running_hub(tmp_path, *sets) as server:
        where_to = url(server, "sdk")
        for options in (
            {"client_id": CLIENT, "key": "another"},
            {"client_id": OTHER, "key": KEY},
            {"client_id": CLIENT},
            {},
        ):
            with pytest.raises(RefusedError, match="check its id, its key and this clock") as told:
                async with connect(where_to, **options):
                    pass
            assert told.value.code == "auth"
        # Each connection has a token of its own.
        for _ in range(3):
            async with connect(where_to, client_id=CLIENT, key=KEY) as sdk:
                await sdk.subscribe(where(n=1))


async def test_a_subscription_over_the_hubs_limits(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, "matching.max_predicates=2", "listen.http=off") as server,
        connect(url(server, "sdk")) as sdk,
        connect(link_url(server)) as link,
    ):
        await sdk.subscribe(where(a=1, b=2))
        with pytest.raises(RefusedError, match="over the hub's limits") as told:
            await sdk.subscribe(where(a=1, b=2, c=3))
        assert told.value.code == "sub"
        await until(lambda: sdk.connects == 2)
        await link.publish(b"still", numbers={"a": 1, "b": 2})
        assert await take(sdk, 1) == [b"still"]


async def test_of_two_with_one_id_the_newer_stays(hub: Server) -> None:
    older, newer = (connect(url(hub, "sdk"), client_id=CLIENT) for _ in range(2))
    async with older:
        await older.subscribe(where(n=exists()))
        await newer.open()
        await until(lambda: not older.connected or older.connects > 1)
        await older.close()
    await newer.close()


async def test_a_hub_that_is_killed_costs_no_message(tmp_path: Path) -> None:
    """Published with acknowledgement, received exactly once and in order, over three lives of the hub."""
    total = 3000
    # The publisher is never far ahead of the subscriber, so that the hub dies in the middle of it.
    ahead = asyncio.Semaphore(300)

    async def publish() -> None:
        async with connect(f"tube://{process.doors['tube_tcp']}") as link:
            publisher = link.publisher()
            for number in range(total):
                numbers = {"n": number, "even": float(number % 2 == 0)}
                await publisher.send(b"%d" % number, numbers=numbers)
                await ahead.acquire()
            await publisher.flush()

    with HubProcess.start(tmp_path, "listen.http=off") as process:
        async with connect(process.url("sdk"), client_id=CLIENT) as sdk:
            await sdk.subscribe("even", where(even=1))
            await sdk.subscribe("ends", where(even=1, n=at_most(99)) | where(even=1, n=at_least(2000)))
            publishing = asyncio.ensure_future(publish())
            seen = []
            for wanted in (total // 6, total // 3, total // 2):
                while len(seen) < wanted:
                    seen.append(await soon(anext(sdk)))
                    ahead.release()
                    ahead.release()
                if wanted < total // 2:
                    await asyncio.to_thread(process.kill9)
                    await asyncio.to_thread(process.restart)
            await soon(publishing)
            assert [int(message.payload) for message in seen] == list(range(0, total, 2))
            seqs = [message.seq for message in seen]
            assert seqs == sorted(set(seqs))
            for number, message in zip(range(0, total, 2), seen, strict=True):
                assert message.subs == (("even",) if 100 <= number < 2000 else ("ends", "even"))
            assert sdk.connects >= 3


def test_without_an_event_loop(tmp_path: Path) -> None:
    with (
        HubProcess.start(tmp_path, "listen.http=off") as process,
        headrace.connect_sync(process.url("sdk")) as sdk,
        headrace.connect_sync(process.url("publisher")) as publisher,
    ):
        sdk.subscribe(where(city="Praha"))
        publisher.publish(
            {"payload": city.encode(), "attributes": {"city": city}} for city in ("Brno", "Praha")
        )
        assert next(iter(sdk)).payload == b"Praha"
