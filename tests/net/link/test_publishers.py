"""Publishers over the link: what is acknowledged is in the log, once, as it was sent, whoever else uses the name."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.client.links import break_tubes, client, payloads
from tests.net.linkpeer import LinkPeer, link_peer, rows
from tests.net.raw import SECONDS, running_hub

from headrace.errors import RefusedError
from headrace.hub.publishing import publisher_numbers
from headrace.net.server.process import Server

ALICE, BOB = "a11ce0a11ce0a11ce0a11ce0", "b0bb0bb0bb0bb0bb0bb0bb0b"
AUTH = ("auth.required=true", f"auth.clients.{ALICE}=one", f"auth.clients.{BOB}=two")


async def publish(peer: LinkPeer, *row: bytes, number: int, name: str = "p", **more: Any) -> dict[str, Any]:
    return await peer.ask(rows(*row), op="publish", id=1, publisher=name, number=number, **more)


async def opened(peer: LinkPeer, holder: str, name: str = "p") -> dict[str, Any]:
    return await peer.ask(op="publisher", id=1, publisher=name, open=holder)


async def test_of_two_live_publishers_with_one_name_the_older_is_fenced(server: Server) -> None:
    async with client(server, name="first") as one, client(server, name="second") as two:
        old, new = one.publisher("orders"), two.publisher("orders")
        told, refused = [], []
        for turn in range(6):
            for who, publisher in (("old", old), ("new", new)):
                payload = b"%s %d" % (who.encode(), turn)
                try:
                    told.append(((await publisher.publish(payload)).first, payload))
                except RefusedError as error:
                    refused.append((error.code, "(second)" in error.reason, payload))
        assert refused == [("fenced", True, b"old %d" % turn) for turn in range(1, 6)]
        assert [payload for _, payload in told] == payloads(server)
        assert [seq for seq, _ in told] == list(range(1, 8))
        # The older may take the name back, and goes on behind what is there.
        again = one.publisher("orders")
        assert (await again.publish(b"back")).first == 8
        with pytest.raises(RefusedError, match="first"):
            await new.publish(b"no longer")


async def test_names_that_hubs_give_themselves_are_no_clients(server: Server) -> None:
    # The appends of HTTP's producers are marked so: whoever knew a mark could stop its producer.
    async with client(server) as link, link_peer(server) as peer:
        with pytest.raises(RefusedError, match="reserved for hubs"):
            await link.publisher("headrace/stream/1/ab").publish(b"no")
        refused = await publish(peer, b"no", number=2**62 - 1, name="headrace/stream/1/ab")
        assert refused["error"] == "malformed"
        assert payloads(server) == []


async def test_an_epoch_outlives_tubes_and_the_hub(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        one = await opened(peer, "one")
        assert one == {"id": 1, "ok": True, "epoch": one["epoch"], "newest": None}
        assert (await opened(peer, "one"))["epoch"] == one["epoch"]  # a repeat, not another
        assert (await publish(peer, b"a", number=0, epoch=one["epoch"]))["first"] == 1
        two = await opened(peer, "two")
        assert (two["epoch"] > one["epoch"], two["newest"]) == (True, 0)
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        for late in ({"epoch": one["epoch"]}, {}):
            assert (await publish(peer, b"b", number=1, **late))["error"] == "fenced"
        assert (await publish(peer, b"b", number=1, epoch=two["epoch"] + 1))["error"] == "fenced"
        assert (await publish(peer, b"c", number=1, epoch=two["epoch"]))["first"] == 2
        assert payloads(server) == [b"a", b"c"]


async def test_who_is_fenced_still_learns_what_was_taken_before(server: Server, peer: LinkPeer) -> None:
    one = (await opened(peer, "one"))["epoch"]
    await publish(peer, b"paid", number=0, epoch=one)  # its answer is lost
    two = (await opened(peer, "two"))["epoch"]
    again = await publish(peer, b"paid", number=0, epoch=one, retry=0)
    assert (again["first"], again["repeated"]) == (1, 1)
    # Other bytes, more than was taken, and what does not say that it comes again are refused as ever.
    for row, retry in (([b"sold"], 0), ([b"paid", b"b"], 0), ([b"paid"], None)):
        assert (await publish(peer, *row, number=0, epoch=one, retry=retry))["error"] == "fenced"
    # What the next holder has published is not the one's before, though it looks the same.
    assert (await publish(peer, b"tick", number=1, epoch=two))["first"] == 2
    refused = await publish(peer, b"tick", number=1, epoch=one, retry=0)
    assert refused["error"] == "fenced"
    assert "look in the log" in refused["reason"]
    assert payloads(server) == [b"paid", b"tick"]


async def test_a_named_publisher_keeps_its_epoch_when_tubes_break(server: Server) -> None:
    async with client(server) as link:
        publisher = link.publisher("orders")
        for turn in range(5):
            assert (await publisher.publish(b"%d" % turn)).first == turn + 1
            break_tubes(server)
        newest = await link.newest("orders")
    assert (newest, payloads(server)) == (4, [b"0", b"1", b"2", b"3", b"4"])


async def test_what_is_under_way_is_there_before_the_name_is_opened(
    server: Server, stack: AsyncExitStack
) -> None:
    """A fenced holder's rows stand in the log below the numbers that the next one begins with, or are refused."""
    one, two = [await stack.enter_async_context(link_peer(server)) for _ in range(2)]
    epoch = (await opened(one, "one"))["epoch"]
    server.hub.commit_by(lambda tail: None)
    await one.say(rows(b"a"), op="publish", id=1, publisher="p", number=0, epoch=epoch)
    await one.ask(op="head", id=9)
    await two.say(op="publisher", id=2, publisher="p", open="two")
    await two.ask(op="head", id=9)
    await one.say(rows(b"b"), op="publish", id=3, publisher="p", number=1, epoch=epoch)
    await one.ask(op="head", id=9)
    server.hub.committed(server.hub.log.tail_op)
    assert (await one.hear())[0]["first"] == 1
    assert (await two.hear())[0]["newest"] == 0
    assert (await one.hear())[0]["error"] == "fenced"
    assert payloads(server) == [b"a"]


@pytest.mark.parametrize(
    "other",
    [rows(b"b"), rows(b"a", topic="t"), rows(b"a", colour="red")],
    ids=["payload", "topic", "attribute"],
)
async def test_a_number_that_is_there_with_other_bytes_is_a_conflict(
    server: Server, peer: LinkPeer, other: bytes
) -> None:
    assert (await publish(peer, b"a", number=0))["first"] == 1
    answer = await peer.ask(other, op="publish", id=1, publisher="p", number=0)
    assert answer["error"] == "conflict"
    assert server.hub.counters.get("repeated") == 0
    assert (await publish(peer, b"a", number=0))["repeated"] == 1
    assert server.hub.counters.get("repeated") == 1
    # Neither is a batch taken that begins with other bytes.
    assert (await publish(peer, b"x", b"new", number=0))["error"] == "conflict"
    assert payloads(server) == [b"a"]


async def test_repeats_are_compared_by_threads_in_order_and_answered_in_order(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To unpack sealed rows takes milliseconds: a flood of repeats must not stop the event loop."""
    read, threads = server.hub.log.read, set()

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread())
        return read(*arguments)

    async with link_peer(server) as peer, link_peer(server) as other:
        for number in range(20):
            assert (await publish(peer, b"%d" % number, number=number))["first"] == number + 1
        server.hub.log.rotate()
        assert server.hub.log.seal_next() is not None
        monkeypatch.setattr(server.hub.log, "read", noted)
        for number in range(20):
            await peer.say(rows(b"%d" % number), op="publish", id=number, publisher="p", number=number)
        await peer.say(rows(b"other"), op="publish", id=20, publisher="p", number=3)
        await peer.say(rows(b"20"), op="publish", id=21, publisher="p", number=20, follows=True)
        # Whoever publishes something new does not wait for them.
        assert (await publish(other, b"new", number=0, name="q"))["ok"]
        answers = [(await peer.hear())[0] for _ in range(22)]
        assert [answer["id"] for answer in answers] == list(range(22))
        assert [answer["first"] for answer in answers[:20]] == list(range(1, 21))
        assert answers[20]["error"] == "conflict"
        assert answers[21]["ok"]
        assert threads
        assert threading.current_thread() not in threads


async def test_attributes_come_again_as_they_were(server: Server, peer: LinkPeer) -> None:
    body = rows(b"a", b"b", topic="t", colour="red")
    assert (await peer.ask(body, op="publish", id=1, publisher="p", number=5))["first"] == 1
    again = await peer.ask(body, op="publish", id=1, publisher="p", number=5)
    assert (again["first"], again["last"], again["repeated"]) == (1, 2, 2)


async def test_a_jump_in_numbers_makes_nobodys_messages_vanish(server: Server, peer: LinkPeer) -> None:
    assert (await publish(peer, b"mine", number=0))["first"] == 1
    assert (await publish(peer, b"evil", number=10**15))["first"] == 2
    for number in range(1, 4):
        refused = await publish(peer, b"mine", number=number)
        assert refused["error"] == "conflict"
        assert "10000" in refused["reason"]
    assert (await publish(peer, b"mine", number=0))["repeated"] == 1
    # With an epoch, nobody else can jump.
    epoch = (await opened(peer, "me", "q"))["epoch"]
    assert (await publish(peer, b"mine", number=0, name="q", epoch=epoch))["first"] == 3
    assert (await publish(peer, b"evil", number=10**15, name="q"))["error"] == "fenced"
    assert (await publish(peer, b"mine", number=1, name="q", epoch=epoch))["first"] == 4
    assert payloads(server) == [b"mine", b"evil", b"mine", b"mine"]


@pytest.mark.parametrize("how", ["jumps", "opens"])
async def test_a_made_up_name_that_somebody_else_uses_is_given_up(
    server: Server, peer: LinkPeer, how: str
) -> None:
    async with client(server) as link:
        publisher = link.publisher()
        await publisher.publish(b"0")
        name = publisher.name
        if how == "jumps":
            await publish(peer, b"evil", number=10**15, name=name)
        else:
            await opened(peer, "evil", name)
        with pytest.raises(RefusedError):
            await publisher.publish(b"1")
        assert [await publisher.publish(b"%d" % turn) for turn in (2, 3)]
        assert publisher.name != name
        assert await link.newest(publisher.name) == 1
    assert [each for each in payloads(server) if each != b"evil"] == [b"0", b"2", b"3"]


async def test_a_name_of_ours_with_other_numbers_is_opened_again(server: Server, peer: LinkPeer) -> None:
    async with client(server) as link:
        publisher = link.publisher("orders")
        await publisher.publish(b"0")
        await publish(peer, b"1000", number=1000, name="orders", epoch=publisher._epoch)
        with pytest.raises(RefusedError) as refused:
            await publisher.publish(b"1")
        assert refused.value.code == "conflict"
        await publisher.publish(b"1001")
        assert await link.newest("orders") == 1001
    assert payloads(server) == [b"0", b"1000", b"1001"]


async def test_where_clients_are_known_a_name_is_its_clients(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, *AUTH) as server,
        client(server, client_id=ALICE, key="one") as alice,
        client(server, client_id=BOB, key="two") as bob,
    ):
        mine = alice.publisher("orders")
        assert (await mine.publish(b"a")).first == 1
        with pytest.raises(RefusedError, match="belongs to client a11ce") as refused:
            await bob.publisher("orders").publish(b"b")
        assert refused.value.code == "forbidden"
        assert (await mine.publish(b"c")).first == 2
        assert payloads(server) == [b"a", b"c"]


async def test_a_retry_of_what_is_forgotten_is_refused_and_not_appended_twice(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_numbers, "MAX_PUBLISHERS", 10)
    first = await publish(peer, b"once", number=0, name="one")
    epoch = (await opened(peer, "me", "opened"))["epoch"]
    for number in range(11):
        await publish(peer, b"x", number=0, name=f"n{number}")
    again = await publish(peer, b"once", number=0, name="one", retry=first["op"] - 1)
    assert again["error"] == "unknown"
    assert "may have been forgotten" in again["reason"]
    assert payloads(server).count(b"once") == 1
    # An epoch that is forgotten is known to be.
    assert (await publish(peer, b"y", number=0, name="opened", epoch=epoch))["error"] == "unknown"
    # A retry of what came after all that is forgotten cannot have been forgotten itself.
    now = server.hub.log.head_op
    assert (await publish(peer, b"new", number=0, name="two", retry=now))["ok"]


async def test_a_publisher_that_was_forgotten_opens_its_name_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_numbers, "MAX_PUBLISHERS", 10)
    async with client(server) as link:
        publisher = link.publisher("orders")
        await publisher.publish(b"a")
        for number in range(11):
            await link.publisher(f"n{number}").publish(b"x")
        with pytest.raises(RefusedError, match="forgotten") as refused:
            await publisher.publish(b"b")
        assert refused.value.code == "unknown"
        async with asyncio.timeout(SECONDS):
            assert (await publisher.publish(b"b")).first == 13
