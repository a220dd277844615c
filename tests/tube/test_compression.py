from __future__ import annotations

import asyncio
import os
import threading
import zlib

import pytest
from tests.tube.conftest import Start
from tests.tube.fake import server_side
from tests.tube.serving import echo, until, url

from headrace.tube import TubeOptions, compression, connect
from headrace.tube.compression import INLINE_BYTES, CompressIn, choose_place
from headrace.wire.tube.frames import COMPRESS_FROM

TEXT = b"the wheel turns while the water runs; "
OPENING = bytes.fromhex("808020")


def views(*parts: bytes) -> list[memoryview]:
    return [memoryview(part) for part in parts]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"a" * (COMPRESS_FROM - 1), CompressIn.NOWHERE),
        (b"a" * COMPRESS_FROM, CompressIn.LOOP),
        (b"a" * INLINE_BYTES, CompressIn.LOOP),
        (b"a" * (INLINE_BYTES + 1), CompressIn.THREAD),
        (os.urandom(INLINE_BYTES + 1), CompressIn.NOWHERE),
    ],
    ids=["short", "long enough", "the longest inline", "too long for inline", "incompressible"],
)
def test_where_a_message_is_compressed(message: bytes, expected: CompressIn) -> None:
    assert choose_place(views(message), None) is expected
    assert choose_place(views(message), lambda _: False) is CompressIn.NOWHERE


def test_of_several_parts_the_longest_is_the_sample() -> None:
    text, noise = TEXT * 5000, os.urandom(len(TEXT) * 6000)
    assert choose_place(views(b"head", text), None) is CompressIn.THREAD
    assert choose_place(views(text, noise), None) is CompressIn.NOWHERE
    asked: list[int] = []
    choose_place(views(b"head", text), lambda part: bool(asked.append(len(part))))
    assert asked == [len(text)]


async def test_what_is_worth_it_travels_compressed_once_the_peer_agreed(start: Start) -> None:
    server = await start(echo)
    async with connect(url(server)) as tube:
        await tube.send(TEXT * 1000)
        # On trial: until the Pong, the others go raw.
        await tube.send(TEXT * 1000)
        assert tube.counts.compressed_sent == 1
        for _ in range(2):
            assert await tube.receive() == TEXT * 1000
        for message in (TEXT * 1000, os.urandom(10_000), b"small"):
            await tube.send(message)
            assert await tube.receive() == message
        assert tube.counts.compressed_sent == 2


@pytest.mark.parametrize("compress", [False, lambda message: len(message) != 38_000])
async def test_who_does_not_want_it(start: Start, compress: bool) -> None:
    server = await start(echo)
    async with connect(url(server), options=TubeOptions(compress=compress)) as tube:
        await tube.send(TEXT * 1000)
        assert await tube.receive() == TEXT * 1000
        assert tube.counts.compressed_sent == 0


async def test_a_thread_keeps_the_order_and_the_loop_free(
    monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    let_go = threading.Event()
    pack = compression.pack

    def slow(parts: list[memoryview]) -> bytes | None:
        if threading.current_thread() is not threading.main_thread():
            assert let_go.wait(10)
        return pack(parts)

    monkeypatch.setattr("headrace.tube.outgoing.pack", slow)
    server = await start(echo)
    messages = [b"first", TEXT * 10_000, b"small", TEXT * 20_000, os.urandom(100_000), b"last"]
    async with connect(url(server), options=TubeOptions(write_buffer=1 << 22)) as tube:
        for message in messages:
            tube.write(message)
        assert tube.paused
        assert await tube.receive() == b"first"
        # The loop turns though the thread does not get on, and nothing overtakes what it works on.
        for _ in range(100):
            await asyncio.sleep(0)
        assert tube.paused
        assert tube.unsent > len(TEXT) * 30_000
        let_go.set()
        for message in messages[1:]:
            assert await tube.receive() == message
        assert tube.counts.compressed_sent >= 1


async def test_closing_while_a_thread_compresses() -> None:
    tube, transport = server_side()
    transport.feed(OPENING)
    tube.write(TEXT * 10_000)
    tube.start_closing()
    packed = zlib.compress(TEXT * 10_000, 1)
    await until(lambda: packed in transport.taken)
    # Had the peer no deflate, the message would have to be repeated.
    assert not transport.ended
    transport.feed(b"\x88")
    assert transport.ended
    transport.abort()
    await tube.wait_closed()


async def test_a_connection_lost_while_a_thread_compresses() -> None:
    tube, transport = server_side()
    transport.feed(OPENING)
    tube.write(TEXT * 10_000)
    transport.abort()
    await tube.wait_closed()
    assert tube.unsent == 0
    assert transport.taken == OPENING


async def test_a_refusal_while_a_thread_compresses_sends_the_message_raw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer agreed, then thought better of it: what the thread brings back is not used."""
    let_go = threading.Event()
    pack = compression.pack
    monkeypatch.setattr("headrace.tube.outgoing.pack", lambda parts: let_go.wait(10) and pack(parts))
    tube, transport = server_side(TubeOptions(max_message=1 << 24))
    transport.feed(OPENING)
    let_go.set()
    tube.write(TEXT * 100)
    transport.feed(b"\x88")
    let_go.clear()
    tube.write(TEXT * 10_000)
    transport.feed(b"\x48")
    let_go.set()
    await until(lambda: not tube.paused)
    raw = TEXT * 10_000
    assert raw[:1000] in transport.taken
    assert tube.counts.compressed_sent == 1
    assert tube.counts.refused == 1
    transport.abort()
    await tube.wait_closed()


async def test_strangers_answers_are_counted_and_change_nothing() -> None:
    tube, transport = server_side()
    transport.feed(OPENING + b"\x48\x78\x88" + b"\x11\x06abc")
    assert (tube.counts.ignored, tube.counts.discarded, tube.counts.refused) == (3, 1, 0)
    transport.abort()
    await tube.wait_closed()
