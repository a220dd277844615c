"""Peers that mean harm, or behave so: each costs bounded memory, and one connection."""

from __future__ import annotations

import asyncio
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.tube.conftest import Start
from tests.tube.serving import echo, until, url
from tests.tube.stranger import WebSocketStranger, dial

from headrace.errors import HeadraceError, LimitError
from headrace.tube import Tube, TubeOptions, connect, serve
from headrace.wire.tube.frames import DEFLATE, stream_pieces, websocket_pieces

MIB = 1 << 20


@contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    """Check how much memory is held at any moment, beyond what is held now."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        yield
        grown = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert grown <= megabytes * MIB, f"{grown / MIB:.1f} MiB"


def bomb(size: int) -> bytes:
    """A zlib stream of ``size`` zeros, put together from one block."""
    packer = zlib.compressobj(9)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = (size % 65521) << 16 | 1
    return head + block * (size // MIB) + b"\x03\x00" + checksum.to_bytes(4)


def test_the_bomb_is_one() -> None:
    assert zlib.decompress(bomb(4 * MIB)) == bytes(4 * MIB)
    assert len(bomb(1 << 30)) < 2 * MIB


class Errors:
    """A handler that keeps how tubes end."""

    def __init__(self) -> None:
        self.errors: list[HeadraceError | None] = []

    async def __call__(self, tube: Tube) -> None:
        try:
            async for message in tube:
                await tube.send(message)
        except HeadraceError:
            pass
        self.errors.append(tube.error)


async def test_a_zlib_bomb(start: Start, transport: str) -> None:
    handler = Errors()
    server = await start(handler)
    cut = stream_pieces if transport == "tcp" else websocket_pieces
    pieces = [bytes(piece) for piece in cut(bomb(1 << 30), 1 << 18, DEFLATE)]
    async with connect(url(server)) as other:
        async with await dial(transport, server.addresses[0]) as stranger:
            stranger.say(b"\x02")
            await stranger.hear(3)
            with at_most(8 * 3 + 8):
                stranger.say(*pieces)
                await stranger.hear_end()
                await until(lambda: handler.errors)
        (error,) = handler.errors
        assert isinstance(error, LimitError)
        assert error.field == "inflated length"
        await other.send(b"unharmed")
        assert await other.receive() == b"unharmed"


async def test_two_billion_fragments(start: Start, transport: str) -> None:
    handler = Errors()
    server = await start(handler)
    async with connect(url(server)) as other:
        async with await dial(transport, server.addresses[0]) as stranger:
            stranger.say(b"\x02")
            await stranger.hear(3)
            with at_most(1):
                stranger.say(bytes.fromhex("00 feffffff0f"))
                await stranger.hear_end()
        (error,) = handler.errors
        assert isinstance(error, LimitError)
        assert (error.field, error.value) == ("fragment count", (1 << 31) - 1)
        await other.send(b"unharmed")
        assert await other.receive() == b"unharmed"


async def test_a_message_that_grows_past_the_limit(start: Start, transport: str) -> None:
    handler = Errors()
    server = await start(handler, TubeOptions(max_message=MIB))
    fragment = bytes(1 << 18)
    async with await dial(transport, server.addresses[0]) as stranger:
        stranger.say(b"\x02")
        await stranger.hear(3)
        # What the sender's own buffers take is not the point: so one at a time.
        with at_most(4):
            stranger.say(b"\x00\x64")
            for _ in range(5):
                stranger.say(*([b"\x80\x80\x20", fragment] if transport == "tcp" else [fragment]))
                await stranger.drain()
            await stranger.hear_end()
    (error,) = handler.errors
    assert isinstance(error, LimitError)
    assert error.field == "message length"


async def test_too_long_a_fragment(start: Start, transport: str) -> None:
    handler = Errors()
    server = await start(handler, TubeOptions(fragment_size=1000))
    async with await dial(transport, server.addresses[0]) as stranger:
        stranger.say(b"\x02")
        await stranger.hear(2)
        with at_most(1):
            if isinstance(stranger, WebSocketStranger):
                # The header announces a gigabyte; nothing of it comes.
                stranger.say(b"\x01")
                stranger.writer.write(bytes.fromhex("82 ff 0000000040000000 00000000"))
            else:
                stranger.say(bytes.fromhex("01 8080808008"))
            await stranger.hear_end()
    (error,) = handler.errors
    assert isinstance(error, LimitError)
    assert (error.field, error.value, error.limit) == ("fragment length", 1 << 30, 1000)


async def test_a_websocket_message_in_endless_frames() -> None:
    """Frames of nothing, or of a byte each: a message may not outgrow a fragment by being cut."""
    handler = Errors()
    options = TubeOptions(fragment_size=1000)
    async with (
        serve(handler, port=0, transport="websocket", options=options) as server,
        await dial("websocket", server.addresses[0]) as stranger,
    ):
        assert isinstance(stranger, WebSocketStranger)
        stranger.say(b"\x02")
        await stranger.hear(2)
        with at_most(4):
            stranger.say_frame(0x02, b"\x01")
            for _ in range(3000):
                stranger.say_frame(0x00, b"")
                await stranger.drain()
            for _ in range(1200):
                stranger.say_frame(0x00, b"a")
                await stranger.drain()
            await stranger.hear_end()
    (error,) = handler.errors
    assert isinstance(error, LimitError)
    assert error.field == "fragment length"


async def test_a_slow_consumer_holds_its_peer_back_and_not_the_memory(start: Start) -> None:
    """Sixty-four megabytes are sent to somebody who takes none; the sender is what waits."""
    go_on = asyncio.Event()
    sizes: list[int] = []

    async def slow(tube: Tube) -> None:
        await go_on.wait()
        sizes.extend([len(message) async for message in tube])

    server = await start(slow, TubeOptions(receive_buffer=2 * MIB))
    message = bytes(MIB // 2)
    options = TubeOptions(compress=False, write_buffer=MIB)
    async with connect(url(server), options=options) as tube:

        async def send() -> None:
            for _ in range(128):
                await tube.send(message)

        # The two buffers, a message over each, the fragments under way, and what WebSocket's framing copies.
        with at_most(2 + 1 + 0.5 * 2 + 2):
            sending = asyncio.create_task(send())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await asyncio.shield(sending)
        assert tube.paused
        go_on.set()
        await sending
    await until(lambda: len(sizes) >= 128)
    assert set(sizes) == {MIB // 2}


async def test_a_peer_that_takes_nothing_does_not_keep_a_closing_tube(start: Start, transport: str) -> None:
    closed: asyncio.Future[Tube] = asyncio.get_running_loop().create_future()

    async def flood(tube: Tube) -> None:
        tube.when_closed(closed.set_result)
        for _ in range(64):
            tube.write(bytes(MIB))

    server = await start(flood, TubeOptions(compress=False, close_seconds=0.1))
    async with await dial(transport, server.addresses[0]) as stranger:
        stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stranger.say(b"\x80\x80\x20")
        async with asyncio.timeout(5):
            tube = await closed
        assert "bytes were never taken" in str(tube.error)


async def test_a_half_closed_peer_that_takes_nothing() -> None:
    """It can answer no Ping any more; what shows that it lives is that it takes what it is sent."""
    failed: asyncio.Future[HeadraceError] = asyncio.get_running_loop().create_future()

    async def flood(tube: Tube) -> None:
        try:
            while True:
                await tube.send(bytes(MIB))
        except HeadraceError as error:
            failed.set_result(error)

    options = TubeOptions(compress=False, pong_seconds=0.1)
    async with (
        serve(flood, port=0, options=options) as server,
        await dial("tcp", server.addresses[0]) as stranger,
    ):
        stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stranger.say(b"\x80\x80\x20")
        stranger.finish()
        async with asyncio.timeout(5):
            assert "bytes were never taken" in str(await failed)


async def test_echo_survives_them_all(start: Start, transport: str) -> None:
    server = await start(echo)

    async def misbehave(number: int) -> None:
        stranger = await dial(transport, server.addresses[0])
        async with stranger:
            stranger.say([b"\x02", b"\x00", b"\xff" * 10, b""][number % 4])
            if number % 3 == 0:
                stranger.reset()
            elif number % 3 == 1:
                stranger.say(b"\x90")

    async with connect(url(server)) as tube:
        await asyncio.gather(*map(misbehave, range(50)))
        await tube.send(b"unharmed")
        assert await tube.receive() == b"unharmed"
