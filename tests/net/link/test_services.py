"""Services over the link: looked at, created and removed, while plain SPP peers watch."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from tests.net.conftest import Start
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import until
from tests.net.spp_peer import SppPeer, info, offer, publish, removed, subscribe

from headrace.errors import FullError
from headrace.net.link.operations import services
from headrace.net.server.process import Server


async def spp_peer(server: Server, stack: AsyncExitStack) -> SppPeer:
    return stack.enter_context(await SppPeer.connect(server))


async def test_removed_for_new_ones_and_kept_for_subscribers(
    server: Server, peer: LinkPeer, stack: AsyncExitStack
) -> None:
    spp = await spp_peer(server, stack)
    await spp.send(publish("a", b'{"x":1}'))
    assert await spp.packet() == offer("a")
    await spp.send(subscribe("a"))
    assert await spp.packet() == info("a", b'{"x":1}')

    answer = await peer.ask(op="services", id=1, service="a", action="remove")
    assert answer == {"id": 1, "ok": True, "removed": True}
    assert await spp.packet() == removed("a")
    assert (await peer.ask(op="services", id=2, service="a"))["error"] == "missing"
    assert (await peer.ask(op="services", id=2))["services"] == []

    # What is published under the id reaches who had subscribed, by whichever door, and offers it to nobody.
    assert (await peer.ask(rows(b'{"y":2}', topic="a"), op="publish", id=3))["ok"]
    assert await spp.packet() == info("a", b'{"y":2}')
    late = await spp_peer(server, stack)
    await late.send(publish("a", b'{"z":3}') + publish("b", b"1"))
    assert await spp.packet() == info("a", b'{"z":3}')
    assert await late.packet() == offer("b")
    assert await spp.packet() == offer("b")

    again = await peer.ask(op="services", id=4, service="a", action="remove")
    assert again == {"id": 4, "ok": True, "removed": False}

    # Only an explicit creation offers it again; who still subscribes moves to the new object.
    made = await peer.ask(op="services", id=5, service="a", action="create", kind="last")
    assert [(each["id"], each["kind"], each["bytes"]) for each in made["services"]] == [("a", "last", 0)]
    assert await spp.packet() == offer("a")
    assert await spp.packet() == info("a", b"")
    assert await late.packet() == offer("a")
    assert (await peer.ask(rows(b"new", topic="a"), op="publish", id=6))["ok"]
    assert await spp.packet() == info("a", b"new")


async def test_created_once(peer: LinkPeer) -> None:
    made = await peer.ask(op="services", id=1, service="s", action="create")
    assert made["services"] == [{"id": "s", "kind": "json", "created": 1, "seq": 0, "bytes": 2}]
    again = await peer.ask(op="services", id=2, service="s", action="create", kind="json")
    assert again["services"] == made["services"]
    other = await peer.ask(op="services", id=3, service="s", action="create", kind="last")
    assert (other["error"], other["reason"]) == ("conflict", "service 's' exists already, with kind json")
    assert (await peer.ask(op="head", id=4))["ops"] == [1, 1], "what changes nothing is no entry"


async def test_two_at_once_agree(server: Server, peer: LinkPeer, stack: AsyncExitStack) -> None:
    """Both are on their way before either is in the log."""
    server.hub.commit_by(lambda tail: None)
    other = await stack.enter_async_context(link_peer(server))
    await peer.say(op="services", id=1, service="s", action="create", kind="json")
    await until(lambda: server.hub.log.tail_op == 1)
    await other.say(op="services", id=1, service="s", action="create", kind="last")
    await until(lambda: server.hub.log.tail_op == 2)
    server.hub.committed(2)
    assert (await peer.hear())[0]["ok"]
    assert (await other.hear())[0]["error"] == "conflict"


async def test_no_more_than_services_max(start: Start) -> None:
    server = await start("services.max=1")
    async with link_peer(server) as peer, link_peer(server) as other:
        server.hub.commit_by(lambda tail: None)
        tail = server.hub.log.tail_op
        await peer.say(op="services", id=1, service="a", action="create")
        await until(lambda: server.hub.log.tail_op == tail + 1)
        await other.say(op="services", id=1, service="b", action="create")
        await until(lambda: server.hub.log.tail_op == tail + 2)
        server.hub.committed(tail + 2)
        assert (await peer.hear())[0]["ok"]
        refusal = (await other.hear())[0]
        assert (refusal["error"], refusal["limit"]) == ("limit", 1)
        refusal = await other.ask(op="services", id=2, service="c", action="create")
        assert (refusal["error"], refusal["limit"]) == ("limit", 1)


@pytest.mark.parametrize("action", ["create", "remove"])
async def test_a_disk_that_is_full(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    assert (await peer.ask(op="services", id=1, service="there", action="create"))["ok"]

    def full(_: object) -> None:
        raise FullError("tail", "no room")

    monkeypatch.setattr(server.hub.log, "append", full)
    name = "there" if action == "remove" else "new"
    assert (await peer.ask(op="services", id=2, service=name, action=action))["error"] == "storage"


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"action": "create"}, "malformed"),
        ({"action": "remove"}, "malformed"),
        ({"action": "remove", "service": "never"}, "missing"),
        ({"action": "dance", "service": "s"}, "malformed"),
        ({"action": "create", "service": ""}, "malformed"),
        ({"action": "create", "service": "s" * 1025}, "limit"),
        ({"action": "create", "service": "s", "kind": "first"}, "malformed"),
    ],
)
async def test_refusals(peer: LinkPeer, asked: dict[str, str], error: str) -> None:
    assert (await peer.ask(op="services", id=1, **asked))["error"] == error
    assert (await peer.ask(op="head", id=2))["ops"] == [1, 0]


async def test_listed_by_and_by(server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "SERVICES_A_TIME", 2)
    for name in ("c", "a", "b"):
        await peer.ask(op="services", id=1, service=name, action="create")
    first = (await peer.ask(op="services", id=2))["services"]
    assert [each["id"] for each in first] == ["c", "a"]
    rest = (await peer.ask(op="services", id=3, after=first[-1]["created"]))["services"]
    assert [each["id"] for each in rest] == ["b"]
