"""Budgets at the doors: who sends too much waits, who wants too much is refused, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.net.conftest import Bind, Dial, Start
from tests.net.linkpeer import link_peer, rows
from tests.net.raw import address_of, backbone_of, push, running_hub, until

from headrace.config import load
from headrace.hub.access.accounts import Account
from headrace.net.server.process import Server
from headrace.wire.spp import Publish, Subscribe, Unsubscribe, serialize
from headrace.wire.tube.frames import FragmentSize
from headrace.wire.tube.frames import serialize as frame


def account_of(server: Server, name: str = "127.0.0.1") -> Account:
    (account,) = (each for each in server.accounts if each.name == name)
    return account


async def test_a_publisher_above_its_rate_is_not_read_from(start: Start, dial: Dial) -> None:
    server = await start("limits.messages_per_second=100")
    publisher = await dial(server)
    await publisher.send(push(b"x") * 100)
    await until(lambda: server.hub.log.head == 100)
    (connection,) = backbone_of(server).connections
    assert not connection.reading_paused
    # What is too much by a thousand costs ten seconds.
    await publisher.send(push(b"x") * 1000)
    await until(lambda: connection.reading_paused)
    await publisher.send(push(b"y"))
    assert connection.held_back
    assert server.hub.counters.get("rate_pauses", door="fyrehose") >= 1
    assert account_of(server).facts()["received_messages"] == server.hub.log.head
    # An operator gives it more.
    server.accounts.reload(load(environ={}))
    connection._within_rate()
    await until(lambda: server.hub.log.head == 1101)


async def test_a_client_of_the_link_above_its_rate_waits(start: Start) -> None:
    server = await start("limits.bytes_per_second=20000")
    async with link_peer(server) as peer:
        for number in range(3):
            assert (await peer.ask(rows(bytes(8000)), op="publish", id=number + 1))["ok"]
        assert server.hub.counters.get("rate_pauses", door="tube") >= 1
        assert server.hub.log.head == 3


async def test_a_reader_above_its_rate_gets_everything_later(start: Start) -> None:
    server = await start("limits.sent_bytes_per_second=40000")
    async with link_peer(server) as peer:
        for number in range(6):
            assert (await peer.ask(rows(bytes(8000)), op="publish", id=number + 1))["ok"]
        for request in (10, 11):
            await peer.say(op="read", id=request, first=1, last=6)
            head: dict[str, Any] = {}
            while not (head.get("id") == request and head.get("ok")):
                head, _ = await peer.hear()
                if request == 10 and head.get("last") == 6:
                    # What comes next has to wait.
                    assert account_of(server).wait_to_send(asyncio.get_running_loop().time()) > 0
    assert account_of(server).sent_bytes > 2 * 48_000


async def test_datagrams_above_the_rate_are_dropped_and_counted(start: Start, bind: Bind) -> None:
    server = await start("limits.messages_per_second=10")
    peer = bind(server)
    for _ in range(20):
        peer.send(push(b"x"))
    # Datagrams that are read together are taken or dropped together.
    await until(lambda: server.hub.log.head >= 10)
    taken = server.hub.log.head
    peer.send(push(b"y"))
    await until(lambda: server.hub.counters.get("dropped", door="fyrehose", reason="rate") >= 21 - taken)
    assert server.hub.log.head == taken
    assert account_of(server).refused > 0


async def test_more_connections_and_streams_than_a_client_may_have(
    start: Start, stack: AsyncExitStack
) -> None:
    server = await start("limits.connections_per_client=2", "limits.subscriptions_per_client=3")
    first = await stack.enter_async_context(link_peer(server))
    second = await stack.enter_async_context(link_peer(server))
    _, writer = await asyncio.open_connection(*address_of(server, "tube_tcp"))
    writer.write(frame(FragmentSize(1 << 18)))
    await until(lambda: server.hub.counters.get("refused", door="tube", reason="connections") == 1)
    writer.close()
    for peer, number in ((first, 1), (first, 2), (second, 3)):
        await peer.say(op="follow", id=number)
    await until(lambda: account_of(server).facts()["subscriptions"] == 3)
    await second.say(op="follow", id=4)
    answer: dict[str, Any] = {}
    while answer.get("id") != 4:
        answer, _ = await second.hear()
    assert (answer["error"], "limits.subscriptions_per_client" in answer["reason"]) == ("limit", True)
    await first.say(op="cancel", id=1)
    await until(lambda: account_of(server).facts()["subscriptions"] == 2)


async def test_what_filters_cost_counts_until_their_streams_end(start: Start) -> None:
    server = await start("limits.filter_cost_per_client=7")
    async with link_peer(server) as peer:
        await peer.say(op="follow", id=1)
        await peer.say(op="follow", id=2, topic="a/*/**")
        await peer.say(op="follow", id=3, topic="b", where={"x": {"use": 1, "strval": "1"}})
        await until(lambda: account_of(server).facts()["filter_cost"] == 3 + 2)
        await peer.say(op="follow", id=4, topic="*/*")
        while (answer := (await peer.hear())[0]).get("event") == "at":
            pass
        assert (answer["error"], "limits.filter_cost_per_client" in answer["reason"]) == ("limit", True)
        await peer.say(op="cancel", id=2)
        await until(lambda: account_of(server).facts()["filter_cost"] == 2)
    await until(lambda: account_of(server).facts()["filter_cost"] == 0)


async def test_a_filter_costs_the_vertices_of_its_polygon(start: Start) -> None:
    server = await start("limits.filter_cost_per_client=12")
    inside = {"y": "y", "polygon": [[0, 0], [4, 0], [4, 4], [2, 6], [0, 4]]}
    where = {"x": {"use": 3, "extra": json.dumps({"inside": inside})}}
    async with link_peer(server) as peer:
        await peer.say(op="follow", id=1, where=where)
        await until(lambda: account_of(server).facts()["filter_cost"] == 1 + 1 + 5)
        await peer.say(op="follow", id=2, where=where)
        while (answer := (await peer.hear())[0]).get("event") == "at":
            pass
        assert (answer["error"], "limits.filter_cost_per_client" in answer["reason"]) == ("limit", True)
    await until(lambda: account_of(server).facts()["filter_cost"] == 0)


async def test_subscriptions_to_services_count(start: Start) -> None:
    server = await start("limits.subscriptions_per_client=2")
    _, writer = await asyncio.open_connection(*address_of(server, "spp"))
    for name in "abc":
        writer.write(serialize(Publish(name, b"value")))
    await until(lambda: len(server.services) == 3)
    for name in "abc":
        writer.write(serialize(Subscribe(name)))
        await until(lambda name=name: account_of(server).facts()["subscriptions"] == min(ord(name) - 96, 2))
    await until(lambda: server.hub.counters.get("refused", door="spp", reason="subscriptions") == 1)
    for name in "ab":
        writer.write(serialize(Unsubscribe(name)))
    await until(lambda: account_of(server).facts()["subscriptions"] == 0)
    writer.close()
    assert account_of(server).state_bytes == len("abc") + 3 * len("value")


async def test_a_principals_own_budget_holds_for_it_alone(tmp_path: Path, dial: Dial) -> None:
    sets = (
        "access.narrow.addresses=127.0.0.9/32",
        "access.narrow.allow=all",
        "access.narrow.limits=connections 1",
    )
    async with running_hub(tmp_path, *sets) as server:
        place, mine = address_of(server), ("127.0.0.9", 0)
        writers = [(await asyncio.open_connection(*place, local_addr=mine))[1] for _ in range(2)]
        await until(lambda: server.hub.counters.get("refused", door="fyrehose", reason="connections") == 1)
        assert account_of(server, "narrow").facts()["connections"] == 1
        await dial(server)
        await dial(server)
        await until(lambda: account_of(server).facts()["connections"] == 2)
        for writer in writers:
            writer.close()
