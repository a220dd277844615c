"""Durable consumers from the client's side: a real hub, tubes that break, and a hub that is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.client.links import break_tubes, client
from tests.hubprocess import HubProcess
from tests.net.raw import SECONDS, until

import headrace
from headrace.client.link.client import LinkClient
from headrace.client.link.consumer import Consumer
from headrace.client.link.requests import Inbox
from headrace.errors import ClosedError, RefusedError, UsageError
from headrace.hub.consumers.cursors import Consumers
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.net.server.process import Server


async def take(consumer: Consumer, count: int) -> list[headrace.Message]:
    async with asyncio.timeout(SECONDS):
        return [await anext(consumer) for _ in range(count)]


def facts(server: Server, name: str = "c") -> Any:
    consumer = server.consumers.get(name)
    assert consumer is not None
    return consumer


async def test_messages_come_until_they_are_acknowledged(server: Server, link: LinkClient) -> None:
    async with link.consumer("c", topic="t") as consumer:
        first, last = await link.publish([b"a", b"b", b"c"], topic="t")
        got = await take(consumer, 3)
        assert [m.payload for m in got] == [b"a", b"b", b"c"]
        assert await consumer.ack(got[0])
    async with link.consumer("c") as consumer:
        assert [m.seq for m in await take(consumer, 2)] == [first + 1, last]
        assert await consumer.ack(range(first, last + 1))
    assert facts(server).floor >= last


@pytest.mark.parametrize(
    "form",
    [
        lambda got: got,
        lambda got: [m.seq for m in got],
        lambda got: reversed(got),
        lambda got: range(got[0].seq, got[-1].seq + 1),
    ],
)
async def test_acknowledging_in_every_form(server: Server, link: LinkClient, form: Any) -> None:
    async with link.consumer("c") as consumer:
        _, last = await link.publish([b"x"] * 20)
        assert await consumer.ack(form(await take(consumer, 20)))
    assert facts(server).floor >= last
    with pytest.raises(UsageError):
        await consumer.ack("1")  # type: ignore[arg-type]


async def test_leaving_ends_the_iteration_that_waits(server: Server, link: LinkClient) -> None:
    consumer = await link.consumer("c", topic="t").join()
    taken: list[bytes] = []

    async def handle() -> None:
        async for message in consumer:
            taken.append(message.payload)  # noqa: PERF401 -- one by one, for who looks meanwhile

    handling = asyncio.ensure_future(handle())
    async with asyncio.timeout(SECONDS):
        await link.publish(b"a", topic="t")
        await until(lambda: taken)
        await consumer.leave()
        await handling
    assert taken == [b"a"]


async def test_leaving_before_the_hub_has_answered_ends_the_wait_for_it(
    server: Server, link: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inbox, "put", lambda inbox, message: None)
    consumer = link.consumer("c", topic="t")
    joining = asyncio.ensure_future(consumer.join())
    await until(lambda: server.consumers.get("c"))
    await consumer.leave()
    with pytest.raises(ClosedError, match="has left"):
        async with asyncio.timeout(SECONDS):
            await joining


async def test_batches(server: Server, link: LinkClient) -> None:
    async with link.consumer("c", from_seq=1) as consumer:
        _, last = await link.publish([b"x"] * 1000)
        seen = 0
        async for rows in consumer.batches():
            seen += rows.num_rows
            assert await consumer.ack(rows)
            if seen == 1000:
                break
    assert facts(server).floor >= last


async def test_two_members_share_and_nothing_comes_twice(server: Server, link: LinkClient) -> None:
    seen: list[int] = []
    shares: list[int] = []

    async def work(other: LinkClient) -> None:
        share = 0
        async with other.consumer("c", from_seq=1, credit=4000) as consumer:
            async for message in consumer:
                assert await consumer.ack(message)
                seen.append(message.seq)
                share += 1
                if message.payload == b"last" or len(seen) == 300:
                    break
        shares.append(share)

    await link.publish([b"x"] * 300)
    async with client(server) as other, asyncio.timeout(SECONDS):
        workers = [asyncio.create_task(work(each)) for each in (link, other)]
        done, pending = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*done)
        await asyncio.gather(*pending, return_exceptions=True)
    assert sorted(seen) == list(range(1, 301))
    assert shares
    assert shares[0] < 300


async def test_what_is_late_comes_again(server: Server, link: LinkClient) -> None:
    async with link.consumer("c", ack_seconds=0.05) as consumer:
        await link.publish(b"slow")
        (first,) = await take(consumer, 1)
        (again,) = await take(consumer, 1)
        assert first.seq == again.seq
        assert await consumer.ack(again)


async def test_what_fails_too_often_becomes_a_dead_letter(server: Server, link: LinkClient) -> None:
    async with link.consumer("c", max_tries=3, dead_letter="graveyard") as consumer:
        first, _ = await link.publish([b"bad", b"good"], topic="t", attributes={"colour": "red"})
        tries = 0
        async with asyncio.timeout(SECONDS):
            async for message in consumer:
                if message.payload == b"good":
                    assert await consumer.ack(message)
                else:
                    tries += 1
                    await consumer.nack(message)
                if tries == 3 and facts(server).floor >= first:
                    break
                if tries == 3:
                    await until(lambda: facts(server).dead == 1)
                    break
    assert tries == 3
    async with asyncio.timeout(SECONDS):
        async for letter in link.follow(from_seq=1, topic="graveyard"):
            assert letter.payload == b"bad"
            assert letter.attributes["colour"] == "red"
            assert letter.attributes["dead.consumer"] == "c"
            assert letter.attributes["dead.seq"] == str(first)
            break


async def fail_at_once(link: LinkClient) -> None:
    async with link.consumer("c", from_seq=1, max_tries=2) as consumer:
        async for message in consumer:
            assert message.payload == b"bad"
            raise ZeroDivisionError


async def test_an_exception_is_a_failed_try(server: Server, link: LinkClient) -> None:
    await link.publish([b"bad", b"next"])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await fail_at_once(link)
    await until(lambda: facts(server).dead == 1)
    async with link.consumer("c") as consumer:
        assert (await take(consumer, 1))[0].payload == b"next"


async def test_a_lost_tube_is_replaced_and_the_member_joins_again(server: Server, link: LinkClient) -> None:
    await link.publish([b"%d" % n for n in range(50)])
    done: set[bytes] = set()
    breaks = [10, 30]
    async with client(server) as other, other.consumer("c", from_seq=1, credit=2000) as consumer:
        async with asyncio.timeout(SECONDS):
            async for message in consumer:
                if breaks and len(done) >= breaks[0]:
                    breaks.pop(0)
                    break_tubes(server)
                if await consumer.ack(message):
                    done.add(message.payload)
                if len(done) == 50:
                    break
    assert done == {b"%d" % n for n in range(50)}
    assert facts(server).floor >= 50


async def test_listing_resetting_and_removing(server: Server, link: LinkClient) -> None:
    await link.publish([b"a", b"b"])
    async with link.consumer("c", from_seq=1, ack_seconds=5) as consumer:
        await consumer.ack(await take(consumer, 2))
        (listed,) = await link.consumers()
        assert (listed["consumer"], listed["members"], listed["dead"]) == ("c", 1, 0)
        assert (await link.show_consumer("c"))["terms"]["ack_seconds"] == 5
        with pytest.raises(RefusedError, match="another ack_seconds"):
            await link.consumer("c", ack_seconds=6).join()
        await link.reset_consumer("c", 2)
        assert [m.payload for m in await take(consumer, 1)] == [b"b"]
        await link.remove_consumer("c")
        with pytest.raises(RefusedError, match="was removed"):
            await take(consumer, 1)
    assert await link.consumers() == []
    with pytest.raises(RefusedError, match="no consumer"):
        await link.remove_consumer("c")


async def test_a_killed_hub_loses_nothing_and_repeats_nothing_done(tmp_path: Path) -> None:
    total, kill_at = 300, 100
    with HubProcess.start(tmp_path, "log.fsync=always") as hub:
        done: set[bytes] = set()
        received = 0
        async with headrace.connect(
            f"tube://{hub.doors['tube_tcp']}", timeout=60, reconnect_timeout=60
        ) as link:
            await link.publish([b"%d" % n for n in range(total)], topic="work")
            async with link.consumer("c", from_seq=1, topic="work", max_tries=0, credit=8000) as consumer:
                killed = False
                async with asyncio.timeout(120):
                    async for message in consumer:
                        received += 1
                        assert message.payload not in done, "what is done never comes again"
                        if message.seq % 7 == 0 and received % 2:
                            continue  # left for another time
                        if not killed and len(done) >= kill_at:
                            killed = True
                            acking = asyncio.ensure_future(consumer.ack(message))
                            await asyncio.sleep(0)
                            await asyncio.to_thread(hub.kill9)
                            await asyncio.to_thread(hub.restart)
                            if await acking:
                                done.add(message.payload)
                        elif await consumer.ack(message):
                            done.add(message.payload)
                        if len(done) >= total * 3 // 4:
                            break
            shown = await link.show_consumer("c")
            async with link.consumer("c") as consumer, asyncio.timeout(60):
                async for message in consumer:
                    assert message.payload not in done
                    if await consumer.ack(message):
                        done.add(message.payload)
                    if len(done) == total:
                        break
            assert done == {b"%d" % n for n in range(total)}
            assert shown["floor"] <= (await link.show_consumer("c"))["floor"]
            told = (await link.show_consumer("c"))["floor"]
        hub.kill9()
        log = Log.open(hub.data / "log", fsync="never")
        try:
            consumers = Consumers()
            HubState(consumers).restore(log)
            (consumer_state,) = consumers
            assert consumer_state.floor == told >= total
            assert consumer_state.lost == consumer_state.dead == 0
        finally:
            log.close()
