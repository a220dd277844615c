"""Durable consumers as a client of the link sees them, through a real tube, hub and log."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.net.conftest import Start
from tests.net.linkpeer import Head, LinkPeer, link_peer, opened, rows
from tests.net.raw import running_hub, until

from headrace.errors import FullError
from headrace.net.server.process import Server
from headrace.protocols import DEAD_LETTER


async def publish(server: Server, *payloads: bytes, topic: str = "") -> None:
    async with link_peer(server) as writer:
        assert (await writer.ask(rows(*payloads, topic=topic), op="publish", id=1))["ok"]


async def join(peer: LinkPeer, stream: int = 1, name: str = "c", **terms: Any) -> None:
    told = await peer.ask(op="follow", id=stream, consumer=name, **terms)
    assert (told.get("event"), told["id"]) == ("at", stream), told


async def take(peer: LinkPeer, count: int) -> list[int]:
    """The numbers of the next messages, which must come in so many."""
    got: list[int] = []
    while len(got) < count:
        head, body = await peer.hear()
        assert head.get("event") == "rows", head
        got += [m.seq for m in opened(body) if head["first"] <= m.seq <= head["last"]]
        await peer.say(op="more", id=head["id"], bytes=len(body))
    assert len(got) == count
    return got


async def ack(peer: LinkPeer, *ranges: tuple[int, int], name: str = "c", **members: Any) -> Head:
    answer = await peer.ask(op="ack", id=99, consumer=name, seqs=[list(r) for r in ranges], **members)
    assert answer["id"] == 99
    return answer


def floor(server: Server, name: str = "c") -> int:
    consumer = server.consumers.get(name)
    assert consumer is not None
    return consumer.floor


def link_door(server: Server) -> Any:
    return server._doors[-1]


# Joining


async def test_a_new_consumer_begins_behind_the_head(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"before")
    await join(peer)
    await publish(server, b"after")
    assert await take(peer, 1) == [2]


async def test_a_new_consumer_begins_where_it_is_told(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"1", b"2", b"3")
    await join(peer, **{"from": 2})
    assert await take(peer, 2) == [2, 3]
    assert server.hub.counters.get("delivered", door="tube") == 2


@pytest.mark.parametrize(
    ("head", "code", "field"),
    [
        ({"op": "follow", "consumer": "c", "time": 1}, "conflict", None),
        ({"op": "follow", "consumer": "c", "from": 9}, "malformed", "from"),
        ({"op": "follow", "consumer": "c", "ack_seconds": 0}, "malformed", "ack_seconds"),
        ({"op": "follow", "consumer": "c", "ack_seconds": 1e9}, "malformed", "ack_seconds"),
        ({"op": "follow", "consumer": "c", "max_tries": -1}, "malformed", "max_tries"),
        ({"op": "follow", "consumer": "c", "origin": "log"}, "malformed", "origin"),
        ({"op": "follow", "consumer": "c", "where": {"a": {"use": 9}}}, "malformed", "where.a"),
        ({"op": "follow", "consumer": "known", "topic": "other"}, "conflict", None),
        ({"op": "ack", "consumer": "c", "seqs": [[1, 1]]}, "missing", None),
        ({"op": "ack", "consumer": "known", "seqs": [[2, 1]]}, "malformed", "seqs"),
        ({"op": "consumers", "action": "show"}, "malformed", None),
        ({"op": "consumers", "action": "show", "consumer": "c"}, "missing", None),
        ({"op": "consumers", "action": "reset", "consumer": "known"}, "malformed", None),
        ({"op": "consumers", "action": "reset", "consumer": "known", "to": 9}, "malformed", "to"),
        ({"op": "consumers", "action": "remove", "consumer": "c"}, "missing", None),
    ],
)
async def test_refusals(peer: LinkPeer, head: dict[str, Any], code: str, field: str | None) -> None:
    await join(peer, name="known", topic="t")
    answer = await peer.ask(id=5, **head)
    assert (answer["id"], answer.get("error"), answer.get("field")) == (5, code, field), answer
    assert (await peer.ask(op="head", id=5))["ok"]


async def test_who_says_no_terms_takes_them_as_they_are(server: Server, peer: LinkPeer) -> None:
    where = {"colour": {"use": 1, "strval": "red"}}
    await join(peer, 1, topic="a/*", where=where, origin=["tube", "spp"], ack_seconds=5)
    await join(peer, 2)
    await join(peer, 3, topic="a/*", where=where, origin=["spp", "tube"], ack_seconds=5.0)
    assert server.hub.log.head_op == 1
    assert len(server.consumers) == 1


async def test_two_who_create_it_at_once_are_both_members(server: Server, peer: LinkPeer) -> None:
    await peer.say(op="follow", id=1, consumer="c")
    await peer.say(op="follow", id=2, consumer="c")
    await peer.say(op="follow", id=3, consumer="c", topic="else")
    heard = [(await peer.hear())[0] for _ in range(3)]
    assert sorted((h["id"], h.get("event"), h.get("error")) for h in heard) == [
        (1, "at", None),
        (2, "at", None),
        (3, None, "conflict"),
    ]


# Acknowledging


async def test_acked_is_done_and_in_the_log(server: Server, peer: LinkPeer) -> None:
    await join(peer)
    await publish(server, b"a", b"b", b"c")
    assert await take(peer, 3) == [1, 2, 3]
    assert await ack(peer, (1, 1), (3, 3)) == {"id": 99, "ok": True, "missed": 0}
    assert floor(server) == 1
    assert await ack(peer, (2, 2)) == {"id": 99, "ok": True, "missed": 0}
    assert floor(server) == 3
    assert (await ack(peer, (1, 3)))["missed"] == 0  # again, and no harm
    assert server.hub.log.head == 3


async def test_what_was_not_handed_out_is_missed(server: Server, peer: LinkPeer) -> None:
    await publish(server, *[b"x"] * 10)
    await join(peer, **{"from": 1})
    await take(peer, 10)
    assert (await ack(peer, (1, 10), (1000, 1009)))["missed"] == 10
    async with link_peer(server) as other:
        assert (await other.ask(op="follow", id=1, consumer="idle", **{"from": 5}))["event"] == "at"
        await other.ask(op="cancel", id=1)
    await until(lambda: not link_door(server).consumers.members("idle"))


async def test_many_acks_of_one_turn_are_one_entry(server: Server, peer: LinkPeer) -> None:
    await publish(server, *[b"x"] * 100)
    await join(peer, **{"from": 1})
    await take(peer, 100)
    before = server.hub.log.head_op
    for seq in range(1, 101):
        await peer.say(op="ack", id=seq + 1, consumer="c", seqs=[[seq, seq]])
    answers = [(await peer.hear())[0] for _ in range(100)]
    assert sorted(answer["id"] for answer in answers) == list(range(2, 102))
    assert all(answer["missed"] == 0 for answer in answers)
    assert floor(server) >= 100
    assert server.hub.log.head == 100
    assert server.hub.log.head_op - before < 50


async def test_what_several_consumers_acknowledge_in_a_turn_is_one_batch(
    server: Server, peer: LinkPeer
) -> None:
    await publish(server, b"x")
    for stream, name in enumerate("abc", 1):
        await join(peer, stream, name, **{"from": 1})
        await take(peer, 1)
    server.hub.commit_by(lambda tail: None)
    before = server.hub.log.tail_op
    group = link_door(server).consumers._groups
    for name in "abc":
        group[name].ack([(1, 1)], lambda error: None)
    await until(lambda: server.hub.log.tail_op == before + 3)
    (batch,) = server.hub.appended_from(before + 1)
    assert (batch.topic, len(batch), batch.columns) == ("consumer/", 3, None)
    server.hub.committed(before + 3)
    assert [floor(server, name) for name in "abc"] == [1, 1, 1]


async def test_an_acknowledgement_costs_few_bytes(tmp_path: Path) -> None:
    count = 1000
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        await publish(server, *[b"x"] * count)
        await join(peer, **{"from": 1})
        await take(peer, count)
        before = server.hub.log.size
        for seq in range(1, count + 1):
            await ack(peer, (seq, seq))
        cost = (server.hub.log.size - before) / count
        assert (server.hub.log.head, floor(server)) == (count, count)
        # The payload is about 8 bytes; the rest is the frame that a turn's entries share.
        assert cost <= 50, cost


# How far behind


async def behind(peer: LinkPeer, name: str = "c") -> tuple[int, bool]:
    (shown,) = (await peer.ask(op="consumers", id=98, action="show", consumer=name))["consumers"]
    return shown["behind"], shown["behind_exact"]


async def test_behind_reaches_0(server: Server, peer: LinkPeer) -> None:
    await publish(server, *[b"x"] * 10)
    await join(peer, **{"from": 1})
    await take(peer, 10)
    assert await behind(peer) == (10, True)
    await ack(peer, (1, 4), (7, 7))
    assert await behind(peer) == (5, True)
    await ack(peer, (1, 10))
    assert await behind(peer) == (0, True)
    # Entries of any kind leave it there.
    assert (await peer.ask(op="holds", id=2, name="job", seq=3))["ok"]
    assert (await peer.ask(op="services", id=3, action="create", service="s", kind="last"))["ok"]
    assert await behind(peer) == (0, True)


async def test_behind_counts_what_the_filter_chooses(server: Server, stack: AsyncExitStack) -> None:
    peer, asking = [await stack.enter_async_context(link_peer(server)) for _ in range(2)]
    await publish(server, *[b"no"] * 20, topic="b")
    await publish(server, b"yes", b"yes", topic="a")
    await publish(server, *[b"no"] * 20, topic="b")
    await join(peer, topic="a", **{"from": 1})
    await take(peer, 2)
    consumer = server.consumers.get("c")
    assert consumer is not None
    await until(lambda: server.consumers.lag(consumer, 42).exact)
    assert await behind(asking) == (2, True)
    await ack(peer, (21, 22))
    assert await behind(asking) == (0, True)
    assert (await peer.ask(op="cancel", id=1))["cancelled"]
    await until(lambda: not link_door(server).consumers._groups)
    assert await behind(asking) == (0, True)
    await publish(server, *[b"no"] * 5, topic="b")
    assert await behind(asking) == (5, False)
    await join(peer)
    await until(lambda: server.consumers.lag(consumer, 47).exact)
    assert await behind(asking) == (0, True)


async def test_behind_does_not_count_its_own_dead_letters(server: Server, peer: LinkPeer) -> None:
    await publish(server, *[b"x"] * 3)
    await join(peer, max_tries=1, **{"from": 1})
    await take(peer, 3)
    assert (await ack(peer, (2, 2), nack=True))["ok"]
    consumer = server.consumers.get("c")
    assert consumer is not None
    await until(lambda: consumer.dead == 1)
    assert await behind(peer) == (2, True)
    await ack(peer, (1, 3))
    assert await behind(peer) == (0, True)
    assert server.hub.log.head == floor(server) == 4


async def test_an_ack_waits_for_its_commit(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"a")
    await join(peer, **{"from": 1})
    await take(peer, 1)
    server.hub.commit_by(lambda tail: None)
    await peer.say(op="ack", id=2, consumer="c", seqs=[[1, 1]])
    await until(lambda: server.hub.log.tail_op == 3)
    await peer.say(op="ack", id=3, consumer="c", seqs=[[1, 1]])
    assert (await peer.ask(op="head", id=4))["id"] == 4
    server.hub.committed(3)
    assert [(await peer.hear())[0] for _ in range(2)] == [
        {"id": 2, "ok": True, "missed": 0},
        {"id": 3, "ok": True, "missed": 0},
    ]


async def test_what_the_log_refuses_is_not_done(
    server: Server, peer: LinkPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(server, b"a", b"b")
    await join(peer, **{"from": 1})
    await take(peer, 2)

    def full(_: object) -> None:
        raise FullError("log", 1)

    with monkeypatch.context() as patched:
        patched.setattr(server.hub.log, "append", full)
        await peer.say(op="ack", id=2, consumer="c", seqs=[[1, 1]])
        head, _ = await peer.hear()
    assert (head["id"], head["error"]) == (2, "storage")
    assert await take(peer, 1) == [1]
    assert (await ack(peer, (1, 2)))["missed"] == 0


# Sharing


async def test_two_members_share(server: Server, stack: AsyncExitStack) -> None:
    one, two = [await stack.enter_async_context(link_peer(server)) for _ in range(2)]
    await join(one, credit=1)
    await join(two, credit=1)
    await publish(server, *[b"%d" % n for n in range(20)])
    _, body = await two.hear()  # and no more than that, for it grants nothing
    (slow,) = [m.seq for m in opened(body)]
    quick = await take(one, 19)
    assert sorted([slow, *quick]) == list(range(1, 21))
    assert (await ack(one, (1, 20)))["missed"] == 0


async def test_what_a_lost_member_had_goes_to_another(server: Server, stack: AsyncExitStack) -> None:
    await publish(server, b"a", b"b", b"c")
    async with link_peer(server) as one:
        await join(one, **{"from": 1})
        assert await take(one, 3) == [1, 2, 3]
        assert (await ack(one, (2, 2)))["ok"]
        two = await stack.enter_async_context(link_peer(server))
        await join(two)
        one.tube.abort()
        head, body = await two.hear()
    assert [m.seq for m in opened(body)] == [1]
    assert head["tries"] == 2
    assert await take(two, 1) == [3]


async def test_who_leaves_in_good_order_has_not_tried(server: Server, stack: AsyncExitStack) -> None:
    await publish(server, b"a")
    peer = await stack.enter_async_context(link_peer(server))
    for stream in range(5):
        await join(peer, stream, max_tries=1, **{"from": 1})
        head, _ = await peer.hear()
        assert (head["first"], head["tries"]) == (1, 1)
        assert (await peer.ask(op="cancel", id=stream))["cancelled"]
    assert server.consumers.get("c").dead == 0  # type: ignore[union-attr]


async def test_only_what_concerns_it(server: Server, peer: LinkPeer) -> None:
    await join(peer, topic="a/*")
    await publish(server, b"no", topic="b")
    await publish(server, b"yes", b"yes", topic="a/x")
    await publish(server, b"no", topic="b")
    got = await take(peer, 2)
    assert (await ack(peer, (got[0], got[1])))["missed"] == 0


async def test_credit_bounds_what_a_member_is_sent(server: Server, stack: AsyncExitStack) -> None:
    one, two = [await stack.enter_async_context(link_peer(server)) for _ in range(2)]
    await publish(server, *[bytes(1000)] * 50)
    await join(one, credit=10_000, **{"from": 1})
    size = 0
    got: list[int] = []
    while not got or got[-1] < 5:
        _, body = await one.hear()
        size += len(body)
        got += [m.seq for m in opened(body)]
    assert size <= 10_000
    assert (await one.ask(op="head", id=2))["id"] == 2
    # What does not fit there is for others.
    await join(two, 1)
    assert len(await take(two, 50 - len(got))) == 50 - len(got)


# Failing


async def test_what_is_not_acked_in_time_comes_again(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"a", b"b")
    await join(peer, ack_seconds=0.05, **{"from": 1})
    assert await take(peer, 2) == [1, 2]
    head, body = await peer.hear()
    assert [m.seq for m in opened(body)] == [1, 2]
    assert head["tries"] == 2
    assert server.hub.counters.get("consumer_expired") >= 2


async def test_nacked_comes_again_at_once_and_then_is_a_dead_letter(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"good", b"bad", topic="t")
    await join(peer, max_tries=2, **{"from": 1})
    assert await take(peer, 2) == [1, 2]
    await peer.say(op="ack", id=2, consumer="c", seqs=[[2, 2]], nack=True)
    heard = [await peer.hear() for _ in range(2)]
    (again, body) = next(each for each in heard if each[0]["id"] == 1)
    assert (again["first"], again["tries"]) == (2, 2)
    assert {"id": 2, "ok": True} in [head for head, _ in heard]
    assert (await ack(peer, (2, 2), nack=True))["ok"]
    consumer = server.consumers.get("c")
    assert consumer is not None
    await until(lambda: consumer.dead == 1)
    assert (await ack(peer, (1, 1)))["missed"] == 0
    await until(lambda: consumer.floor >= 2)
    async with link_peer(server) as reader:
        (letter,), _ = await reader.stream(op="read", id=1, first=1, origin=DEAD_LETTER)
    assert (letter.payload, letter.topic) == (b"bad", "dead/c")
    assert (letter.attributes["dead.seq"], letter.attributes["dead.tries"]) == ("2", "2")
    assert opened(body)[0].payload == b"bad"


async def test_of_nacks_that_are_too_many_the_first_are_dead_letters_all_the_same(
    server: Server, peer: LinkPeer
) -> None:
    await publish(server, *[b"x"] * 2000)
    await join(peer, max_tries=1, **{"from": 1})
    await take(peer, 2000)
    assert (await ack(peer, *((seq, seq) for seq in range(2, 2000, 2)), nack=True))["error"] == "limit"
    consumer = server.consumers.get("c")
    assert consumer is not None
    await until(lambda: consumer.dead > 500)
    assert "ok" in await ack(peer, (1, 2000))
    assert consumer.floor >= 2000


async def test_a_hub_that_stops_amid_dead_letters_reads_no_more_of_them(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as server:
        await publish(server, *[b"x"] * 1000)
        async with link_peer(server) as peer:
            await join(peer, max_tries=1, **{"from": 1})
            await take(peer, 1000)
            assert (await ack(peer, *((seq, seq) for seq in range(2, 1000, 2)), nack=True))["ok"]
    consumer = server.consumers.get("c")
    assert consumer is not None
    assert consumer.dead < 499


async def test_nobody_nacks_what_another_has(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"a")
    await join(peer, max_tries=1, **{"from": 1})
    await take(peer, 1)
    async with link_peer(server) as other:
        assert (await ack(other, (1, 1), nack=True))["ok"]
        assert (await ack(other, (1, 1)))["missed"] == 0  # but may acknowledge it
    assert floor(server) >= 1


async def test_what_retention_took_is_lost_and_counted(server: Server, peer: LinkPeer) -> None:
    await publish(server, *[b"x"] * 10)
    assert (await peer.ask(op="follow", id=1, consumer="c", credit=1, **{"from": 1}))["event"] == "at"
    head, body = await peer.hear()
    assert (head["first"], head["last"]) == (1, 1)
    await server.maintenance.seal()
    await publish(server, b"kept")
    kept = server.hub.log.head
    await server.maintenance.snapshot()
    server.hub.log.retain(0, retain_bytes=0, retain_us=None, holds={})
    await peer.say(op="more", id=1, bytes=len(body))
    assert await take(peer, 1) == [kept]
    consumer = server.consumers.get("c")
    assert consumer is not None
    await until(lambda: consumer.lost)
    assert consumer.lost == server.hub.log.first - 2
    assert (await ack(peer, (1, kept)))["missed"] == 0


# Looking, moving, removing


async def test_list_and_show(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"a", b"b")
    await join(peer, topic="**", **{"from": 1})
    await take(peer, 2)
    await ack(peer, (1, 1))
    (listed,) = (await peer.ask(op="consumers", id=5))["consumers"]
    assert (listed["consumer"], listed["floor"], listed["members"]) == ("c", 1, 1)
    assert (await peer.ask(op="consumers", id=5, after=listed["created"]))["consumers"] == []
    (shown,) = (await peer.ask(op="consumers", id=5, action="show", consumer="c"))["consumers"]
    assert (shown["terms"]["topic"], shown["terms"]["dead_letter"]) == ("**", "dead/c")
    status: Any = server.status()
    assert (listed["behind"], listed["behind_exact"]) == (1, True)
    assert status["consumers"] == {"c": {"floor": 1, "behind": 1, "behind_exact": True, "dead": 0, "lost": 0}}
    assert status["holds"] == {"consumer/c": 2}


async def test_reset(server: Server, peer: LinkPeer) -> None:
    await publish(server, b"a", b"b", b"c")
    await join(peer, **{"from": 1})
    await take(peer, 3)
    await ack(peer, (1, 3))
    await peer.say(op="consumers", id=5, action="reset", consumer="c", to=2)
    heard = [await peer.hear() for _ in range(2)]
    (answer,) = [head for head, _ in heard if head["id"] == 5]
    assert answer["consumers"][0]["floor"] == 1
    (body,) = [body for head, body in heard if head["id"] == 1]
    assert [m.seq for m in opened(body)] == [2, 3]
    assert (await ack(peer, (2, 3)))["missed"] == 0


async def test_remove_ends_its_streams(server: Server, peer: LinkPeer) -> None:
    await join(peer)
    await peer.say(op="consumers", id=5, action="remove", consumer="c")
    heard = {head["id"]: head for head, _ in [await peer.hear() for _ in range(2)]}
    assert heard[1]["error"] == "missing"
    assert heard[5]["consumers"] == []
    assert len(server.consumers) == 0
    await join(peer)


async def test_holds_keep_messages_from_going_by_age(start: Start) -> None:
    server = await start("log.retain_seconds=0.001", "log.segment_seconds=0.05")
    async with link_peer(server) as peer:
        await publish(server, b"a", b"b")
        await join(peer, **{"from": 2})
        assert await take(peer, 1) == [2]
        await server.maintenance.seal()
        await publish(server, b"c")
        assert await take(peer, 1) == [3]
        await server.maintenance.snapshot()
        await server.maintenance._trim()
        assert server.hub.log.first == 1
        await ack(peer, (2, 3))
        await server.maintenance.seal()
        await publish(server, b"d")
        await server.maintenance.snapshot()
        await until(lambda: server.hub.log.first > 2)


async def test_drivers_that_know_nothing_are_forgotten(server: Server) -> None:
    drivers = link_door(server).consumers._groups
    await publish(server, b"a")
    async with link_peer(server) as peer:
        await join(peer, **{"from": 1})
        await take(peer, 1)
        await ack(peer, (1, 1))
        assert list(drivers) == ["c"]
    await until(lambda: not drivers)


async def test_the_state_is_the_logs_after_a_restart(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        await publish(server, b"a", b"b", b"c")
        await join(peer, **{"from": 1})
        await take(peer, 3)
        await ack(peer, (1, 1), (3, 3))
    async with running_hub(tmp_path) as server, link_peer(server) as peer:
        assert (await ack(peer, (2, 2)))["missed"] == 1
        await join(peer)
        assert await take(peer, 1) == [2]
