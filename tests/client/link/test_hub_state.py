"""What a hub keeps beside its messages, asked over the link."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.links import break_tubes, client

from headrace.client.link import requests
from headrace.client.link.client import LinkClient
from headrace.errors import RefusedError
from headrace.hub.routing import subscriptions
from headrace.log.snapshots import snapshot
from headrace.net.server.process import Server


async def test_services_are_created_and_removed(link: LinkClient) -> None:
    await link.create_service("a")
    await link.create_service("b", "last")
    assert [(each["id"], each["kind"]) for each in await link.services()] == [("a", "json"), ("b", "last")]
    with pytest.raises(RefusedError) as refused:
        await link.create_service("a", "last")
    assert refused.value.code == "conflict"
    assert await link.remove_service("a") is True
    assert await link.remove_service("a") is False
    assert [each["id"] for each in await link.services()] == ["b"]
    with pytest.raises(RefusedError) as refused:
        await link.remove_service("never")
    assert refused.value.code == "missing"


async def test_subscriptions_are_a_table(server: Server, link: LinkClient) -> None:
    subscriber = bytes(range(12))
    server.hub.submit(subscriptions.subscribe(subscriber, b"conn0001", {"city": '{"use":1,"strval":"Oslo"}'}))
    server.hub.take_turn()
    table = await link.subscriptions()
    assert table.schema.metadata == {b"head": b"0", b"op": b"1"}
    (row,) = table.to_pylist()
    assert (row["client"], row["connector"]) == (subscriber.hex(), "conn0001")
    assert (row["seq"], row["op"]) == (0, 1)
    assert dict(row["fields"]) == {"city": '{"use":1,"strval":"Oslo"}'}


async def test_what_comes_in_pieces_is_whole_though_its_tube_breaks(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        await link.create_service(f"service/{number}")
    whole = await link.snapshot()
    monkeypatch.setattr("headrace.net.link.streams.pieces._PIECE", 100)
    get = requests.Inbox.get
    got: list[Any] = []

    async def broken_once(inbox: requests.Inbox) -> Any:
        got.append(await get(inbox))
        if len(got) == 1:
            break_tubes(server)
        return got[-1]

    monkeypatch.setattr(requests.Inbox, "get", broken_once)
    async with client(server, credit=len(whole) // 4) as other:
        assert snapshot.parse(await other.snapshot()) == snapshot.parse(whole)
    assert [message.head["at"] for message in got if message is not None].count(0) == 2, "begun anew"
