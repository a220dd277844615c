"""A task that is cancelled at any of the client's waits leaves nothing behind, and loses nothing.

That no task is left is checked after every test (``tests/conftest.py``); that no socket is, by the hub's end of it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.client.connectors import PublisherSession, Session, connector, publisher_door
from tests.client.hubs import SECONDS, UdpHub, Visit, scripted_hub
from tests.net.raw import deliver, until

from headrace import connect, where
from headrace.message import Message
from headrace.wire.sdk.predicate import Equals
from headrace.wire.sdk.subscribe import Subscribe


async def cancelled(work: Coroutine[Any, Any, object], turns: int) -> None:
    """Let a task run for some turns of the loop, then cancel it and see it end."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def mute(visit: Visit) -> None:
    await visit.left()


@pytest.fixture(autouse=True, scope="module")
def _only_garbage_from_here() -> None:
    """Let the collector pass over what other tests have left: it would look at all of it after each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_garbage_complains() -> Any:
    """A transport that was not closed says so when it is collected."""
    yield
    gc.collect()


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 50])
async def test_opening(turns: int) -> None:
    # The script ends when the client's socket is closed.
    async with scripted_hub(mute) as url:
        client = connect(url)
        await cancelled(client.open(), turns)
        assert not client.connected
        await client.close()


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 50])
async def test_opening_by_udp(turns: int) -> None:
    with UdpHub() as hub:
        client = connect(hub.url)
        await cancelled(client.open(), turns)
        await client.close()


async def test_a_push_that_waits_for_room() -> None:
    release = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.subscription()
        await release.wait()

    async with scripted_hub(script) as url, connect(url) as client:
        pushing = asyncio.create_task(client.publish([bytes(60_000)] * 1000))
        await until(lambda: client.stats.published)
        pushed = -1
        while pushed != client.stats.published:
            pushed = client.stats.published
            for _ in range(100):
                await asyncio.sleep(0)
        await cancelled(client.publish(b"one more"), 5)
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        release.set()


async def test_a_push_that_waits_for_a_connection() -> None:
    async def cut(visit: Visit) -> None:
        await visit.subscription()

    async with scripted_hub(cut) as url:
        client = await connect(url).open()
        await until(lambda: client.stats.disconnects)
    await until(lambda: not client.connected)
    await cancelled(client.publish(b"x"), 5)
    await client.close()


async def test_an_iteration_that_waits_takes_nothing() -> None:
    go_on = asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.subscription()
        for seq in range(1, 4):
            await go_on.wait()
            go_on.clear()
            visit.send(deliver(seq, b"%d" % seq))
        await visit.end()

    async def one() -> Message:
        return await anext(client)

    async with scripted_hub(script) as url, connect(url) as client:
        for seq in range(1, 4):
            await cancelled(one(), 5)
            await cancelled(anext(client.batches()), 5)  # type: ignore[arg-type]
            waiting = asyncio.create_task(one())
            await asyncio.sleep(0)
            go_on.set()
            # It is cancelled in the very turn in which the message comes, or gets it: never both.
            await until(lambda seq=seq: client.stats.received == seq)
            if not waiting.cancel():
                message = await waiting
            else:
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                async with asyncio.timeout(SECONDS):
                    message = await one()
            assert message.seq == seq


async def test_closing() -> None:
    async def script(visit: Visit) -> None:
        await visit.subscription()
        await visit.left()

    async with scripted_hub(script) as url:
        client = await connect(url).open()
        # The hub never acknowledges the last KEEPALIVE, so that closing waits.
        await cancelled(client.close(), 5)
        assert not client.connected
        await client.close()


async def test_a_timeout_around_it_all() -> None:
    async def script(visit: Visit) -> None:
        await visit.subscription()
        await visit.end()

    async def use(url: str) -> None:
        async with connect(url) as client:
            await anext(client)

    async with scripted_hub(script) as url:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(use(url), 0.1)


class TestContentRouting:
    @pytest.mark.parametrize("turns", [1, 2, 3, 5, 50])
    async def test_opening(self, turns: int) -> None:
        async def mute(session: Session) -> None:
            while True:
                await session.command()

        async with connector(mute) as url:
            client = connect(url)
            await cancelled(client.open(), turns)
            assert not client.connected
            await client.close()

    async def test_a_subscription_that_waits_for_its_answer(self) -> None:
        async def script(session: Session) -> None:
            await session.welcome()
            asked.append(await session.command())
            await gone.wait()
            asked.append(await session.subscription())
            session.push(1)
            await session.stay()

        asked: list[object] = []
        gone = asyncio.Event()
        async with connector(script) as url, connect(url) as client:
            subscribing = asyncio.create_task(client.subscribe(where(a="1")))
            await until(lambda: asked)
            subscribing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await subscribing
            gone.set()
            async with asyncio.timeout(SECONDS):
                # The heartbeat behind the first is answered before the second: neither is taken for the other.
                await client.subscribe(where(b="2"))
                assert (await anext(client)).seq == 1
        assert asked == [Subscribe({"a": Equals("1")}), Subscribe({"b": Equals("2")})]

    async def test_a_subscription_that_waits_for_a_connection(self) -> None:
        async def cut(session: Session) -> None:
            await session.welcome()

        async with connector(cut) as url:
            client = await connect(url).open()
            await until(lambda: not client.connected)
            await cancelled(client.subscribe(where(a="1")), 1)
            await client.close()

    async def test_closing_that_waits_for_the_hub(self) -> None:
        async def script(session: Session) -> None:
            await session.welcome()
            await session.subscription()
            await release.wait()

        release = asyncio.Event()
        async with connector(script) as url:
            client = await connect(url).open()
            await client.subscribe(where(a="1"))
            await cancelled(client.close(), 5)
            assert not client.connected
            await client.close()
            release.set()

    async def test_a_publisher_that_waits_for_room_or_for_the_hub(self) -> None:
        async def script(session: PublisherSession) -> None:
            await release.wait()

        release = asyncio.Event()
        async with publisher_door(script) as url:
            client = await connect(url).open()
            publishing = asyncio.create_task(client.publish([bytes(1900)] * 10_000))
            await until(lambda: client._failover.current and not client._failover.current._room.is_set())
            await cancelled(client.publish(attributes={}), 5)
            await cancelled(client.flush(), 5)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            await cancelled(client.close(), 5)
            await client.close()
            release.set()
