"""What a user of the library relies on, the same over both transports."""

from __future__ import annotations

import asyncio
import os
import random

import pytest
import uvloop
from tests.tube.conftest import Start
from tests.tube.serving import echo, until, url
from tests.tube.stranger import Stranger, dial, host

from headrace.errors import ClosedError, LimitError, RefusedError, UnreachableError, UsageError
from headrace.tube import Side, Transport, Tube, TubeOptions, connect, serve

TEXT = b"the wheel turns while the water runs; "
MESSAGES = [b"", b"a", TEXT, TEXT * 100, os.urandom(70_000), TEXT * 30_000, os.urandom(1 << 20), b"", b"z"]


async def test_messages_come_back_whole_and_in_order(start: Start) -> None:
    server = await start(echo)
    async with connect(url(server)) as tube:
        for message in MESSAGES:
            await tube.send(message)
        for message in MESSAGES:
            assert await tube.receive() == message


@pytest.mark.parametrize("transport", ["tcp", "websocket"])
def test_the_same_under_uvloop(transport: str) -> None:
    async def session() -> None:
        async with serve(echo, port=0, transport=transport) as server:  # type: ignore[arg-type]
            async with connect(url(server)) as tube:
                for message in MESSAGES:
                    await tube.send(message)
                for message in MESSAGES:
                    assert await tube.receive() == message
            with pytest.raises(ClosedError):
                await tube.send(b"late")

    uvloop.run(session())


async def test_what_a_tube_says_of_itself(start: Start, transport: str) -> None:
    met: list[Tube] = []

    async def meet(tube: Tube) -> None:
        met.append(tube)
        async for _ in tube:
            pass

    server = await start(meet, TubeOptions(fragment_size=1000))
    async with connect(url(server), options=TubeOptions(fragment_size=2000)) as tube:
        assert (tube.fragment_size, tube.options.fragment_size) == (1000, 2000)
        assert tube.transport is Transport(transport)
        assert (tube.side, tube.peer) == (Side.CLIENT, server.addresses[0])
        assert "open" in repr(tube)
        await until(lambda: met)
        assert server.tubes == met
        assert (met[0].side, met[0].peer, met[0].fragment_size) == (Side.SERVER, tube.local, 2000)
    assert "gone" in repr(tube)
    assert tube.closed
    assert tube.error is None


async def test_several_tasks_send_at_once(start: Start) -> None:
    server = await start(echo, TubeOptions(receive_buffer=50_000))
    options = TubeOptions(write_buffer=10_000, compress=False)
    async with connect(url(server), options=options) as tube:

        async def send(name: int) -> None:
            for number in range(50):
                await tube.send(bytes([name, number]) + os.urandom(2000))

        async with asyncio.TaskGroup() as group:
            for name in range(8):
                group.create_task(send(name))
            numbers: dict[int, list[int]] = {name: [] for name in range(8)}
            for _ in range(8 * 50):
                message = await tube.receive()
                numbers[message[0]].append(message[1])
    assert all(got == list(range(50)) for got in numbers.values())


async def test_a_message_in_parts(start: Start) -> None:
    server = await start(echo, TubeOptions(fragment_size=1000))
    head, body = b"head", os.urandom(100_000)
    async with connect(url(server), options=TubeOptions(compress=False)) as tube:
        await tube.send_parts([head, body, b"", memoryview(body)[:7]])
        tube.write_parts([])
        tube.write_parts(part for part in (b"a", b"b"))
        assert await tube.receive() == head + body + body[:7]
        assert await tube.receive() == b""
        assert await tube.receive() == b"ab"


async def test_memory_may_be_used_again_at_once(start: Start) -> None:
    server = await start(echo)
    async with connect(url(server), options=TubeOptions(compress=False, write_buffer=1)) as tube:
        memory = bytearray(os.urandom(1 << 20))
        for number in range(4):
            memory[:4] = bytes([number] * 4)
            tube.write(memory)
        for number in range(4):
            message = await tube.receive()
            assert message[:4] == bytes([number] * 4)
            assert message[4:] == memory[4:]


async def test_too_long_a_message_is_not_sent(start: Start) -> None:
    server = await start(echo)
    async with connect(url(server), options=TubeOptions(max_message=100)) as tube:
        with pytest.raises(LimitError, match="message length 101"):
            await tube.send(bytes(101))
        with pytest.raises(LimitError):
            tube.write_parts([bytes(100), b"a"])
        await tube.send(bytes(100))
        assert await tube.receive() == bytes(100)


async def test_what_is_sent_may_be_longer_than_what_is_taken(start: Start) -> None:
    async def twice(tube: Tube) -> None:
        async for message in tube:
            await tube.send(bytes(message) * 2)

    server = await start(twice, TubeOptions(max_message=100, max_sent=200))
    async with connect(url(server)) as tube:
        await tube.send(bytes(100))
        assert await tube.receive() == bytes(200)
        await tube.send(bytes(101))
        with pytest.raises((UnreachableError, RefusedError)):
            await tube.receive()


# Fragments


@pytest.mark.parametrize("fragment_size", [1, 2, 100])
async def test_tiny_fragments_both_ways(start: Start, fragment_size: int) -> None:
    """64 KiB in one-byte fragments is 65,536 of them, and on WebSocket as many messages."""
    options = TubeOptions(fragment_size=fragment_size, compress=False)
    server = await start(echo, options)
    message = os.urandom(1 << 16)
    async with connect(url(server), options=options) as tube:
        await tube.send(message)
        assert await tube.receive() == message


@pytest.mark.parametrize("fragment_size", [4 << 10, 1_000_000])
async def test_a_hundred_megabytes_in_one_message(start: Start, fragment_size: int) -> None:
    size = 100_000_000
    options = TubeOptions(fragment_size=fragment_size, max_message=size, compress=False)
    block = os.urandom(1_000_003)
    message = block * (size // len(block))

    async def take(tube: Tube) -> None:
        assert await tube.receive() == message
        await tube.send(b"whole")

    server = await start(take, options)
    async with connect(url(server), options=options) as tube:
        await tube.send(message)
        assert await tube.receive() == b"whole"


# Ends


async def test_iteration_ends_when_the_peer_closes(start: Start) -> None:
    async def count(tube: Tube) -> None:
        for number in range(3):
            await tube.send(bytes([number]))

    server = await start(count)
    async with connect(url(server)) as tube:
        assert [bytes(message) async for message in tube] == [b"\0", b"\1", b"\2"]
        assert [message async for message in tube] == []
        with pytest.raises(UnreachableError, match="closed the tube"):
            await tube.receive()
        with pytest.raises(UnreachableError, match="closed the tube"):
            await tube.send(b"anybody?")
        assert tube.error is None


async def test_closing_is_for_ever_and_as_often_as_you_like(start: Start) -> None:
    server = await start(echo)
    tube = await connect(url(server))
    await tube.send(b"unread")
    waiting = asyncio.create_task(anext(tube, None))
    await asyncio.gather(tube.close(), tube.close())
    await tube.close()
    tube.start_closing()
    tube.abort()
    assert await waiting in (None, b"unread")
    assert [message async for message in tube] == []
    for use in (tube.receive(), tube.send(b"late"), tube.send_parts([b"late"]), tube.drain()):
        with pytest.raises(ClosedError):
            await use


async def test_all_that_was_sent_arrives_before_the_end(start: Start) -> None:
    got: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def take(tube: Tube) -> None:
        got.set_result(sum([len(message) async for message in tube]))

    server = await start(take, TubeOptions(receive_buffer=1 << 16))
    async with connect(url(server), options=TubeOptions(compress=False)) as tube:
        for _ in range(10):
            tube.write(os.urandom(1 << 20))
    assert await got == 10 << 20


async def test_aborting_loses_what_has_not_gone_out(start: Start) -> None:
    ends: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def take(tube: Tube) -> None:
        with pytest.raises(UnreachableError):
            async for _ in tube:
                pass
        ends.set_result(tube.error)

    server = await start(take)
    tube = await connect(url(server), options=TubeOptions(compress=False))
    tube.write(os.urandom(8 << 20))
    tube.abort()
    await tube.wait_closed()
    assert isinstance(await ends, UnreachableError)


async def test_a_reset_ends_in_an_error_after_what_came_before(transport: str) -> None:
    async def behave(stranger: Stranger) -> None:
        await stranger.hear(3)
        stranger.say(b"\x02")
        stranger.say(*([b"\x01\x02a"] if transport == "tcp" else [b"\x01a"]))
        await stranger.hear(1)
        stranger.reset()

    async with host(transport, behave) as url, connect(url) as tube:
        assert await tube.receive() == b"a"
        await tube.send(b"go")
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
            await anext(tube)
        with pytest.raises(UnreachableError):
            await tube.send(b"b")


async def test_a_connection_that_ends_inside_a_message(start: Start, transport: str) -> None:
    ends: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def take(tube: Tube) -> None:
        assert await anext(tube) == b"a"
        with pytest.raises(
            UnreachableError, match=r"2 bytes into a message|without a closing handshake"
        ) as caught:
            await anext(tube)
        ends.set_result(caught.value)

    server = await start(take)
    async with await dial(transport, server.addresses[0]) as stranger:
        pieces = [b"\x02", b"\x01\x02a", b"\x01\x08"] if transport == "tcp" else [b"\x02", b"\x01a", b"\x02a"]
        stranger.say(*pieces)
        stranger.finish()
        assert isinstance(await ends, UnreachableError)


# Cancelling


async def test_a_cancelled_receive_loses_nothing(start: Start) -> None:
    server = await start(echo)
    async with connect(url(server)) as tube:
        chance = random.Random(1)
        received: list[int] = []
        for number in range(200):
            await tube.send(bytes([number]))
        while len(received) < 200:
            task = asyncio.create_task(tube.receive())
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if not task.cancel():
                received.append((await task)[0])
            else:
                with pytest.raises(asyncio.CancelledError):
                    await task
    assert received == list(range(200))


async def test_a_send_cancelled_while_it_waits_sends_nothing(start: Start) -> None:
    released = asyncio.Event()
    received: list[bytes] = []

    async def late(tube: Tube) -> None:
        await released.wait()
        received.extend([bytes(message[:4]) async for message in tube])

    server = await start(late, TubeOptions(receive_buffer=1 << 16))
    async with connect(url(server), options=TubeOptions(compress=False, write_buffer=1 << 16)) as tube:
        sent = 0
        while not tube.paused:
            await tube.send(b"sent" + bytes(100_000))
            sent += 1
            await asyncio.sleep(0)
        task = asyncio.create_task(tube.send(b"lost"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        released.set()
        await tube.send(b"last")
    await until(lambda: not server.tubes)
    assert received[-1] == b"last"
    assert received.count(b"lost") == 0


async def test_only_one_may_wait_for_the_next_message(start: Start) -> None:
    server = await start(echo)
    async with connect(url(server)) as tube:
        first = asyncio.create_task(tube.receive())
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="already waiting"):
            await tube.receive()
        await tube.send(b"a")
        assert await first == b"a"


async def test_cancelling_the_block_closes_the_tube(start: Start) -> None:
    server = await start(echo)
    tubes: list[Tube] = []

    async def use() -> None:
        async with connect(url(server)) as tube:
            tubes.append(tube)
            await tube.receive()

    task = asyncio.create_task(use())
    await until(lambda: tubes)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tubes[0].closed
    await tubes[0].wait_closed()
