"""One end of a tube over a transport made of lists: chunks, bounds and calls exactly when a test wants them."""

from __future__ import annotations

import asyncio
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tube.fake import FakeTransport, server_side
from tests.tube.serving import until
from tests.tube.stranger import BINARY, PING, PONG, frame, request
from tests.wire.golden import cut

from headrace.errors import ClosedError, HeadraceError, LimitError, UnreachableError, UsageError
from headrace.tube import Received, Tube, TubeOptions
from headrace.tube.fair_turns import AT_ONCE, FairTurns
from headrace.tube.incoming import MAX_OWED
from headrace.tube.receiver import MESSAGE_COST
from headrace.tube.session import MAX_TRIFLES
from headrace.tube.transport import READ_BYTES, SMALLEST_READ
from headrace.wire.tube.connection import Transport
from headrace.wire.tube.frames import DEFLATE, RAW, Ping, serialize, stream_pieces
from headrace.wire.tube.reassembly import CRUMB

OPENING = bytes.fromhex("808020")
MESSAGES = [b"", b"a", b"hello" * 20, os.urandom(300), b"tube " * 200]


class Collector:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.rooms = 0
        self.ends: list[HeadraceError | None] = []

    def on_message(self, message: Received) -> None:
        self.messages.append(bytes(message))

    def on_room(self) -> None:
        self.rooms += 1

    def on_end(self, error: HeadraceError | None) -> None:
        self.ends.append(error)


def wire(messages: Iterable[bytes], fragment_size: int = 64, compression: int = RAW) -> bytes:
    return b"".join(
        bytes(piece)
        for message in messages
        for piece in stream_pieces(
            zlib.compress(message) if compression else message, fragment_size, compression
        )
    )


@pytest.fixture
def long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read is as long as a read can be."""
    monkeypatch.setattr("headrace.tube.transport.SMALLEST_READ", READ_BYTES)


def gone(transport: FakeTransport) -> None:
    transport.abort()


@given(st.lists(st.integers(0, 4000), max_size=30), st.integers(CRUMB, 300))
def test_any_chunking_gives_the_same_messages(places: list[int], fragment_size: int) -> None:
    async def session() -> None:
        tube, transport = server_side()
        collector = Collector()
        tube.attach(collector)
        data = OPENING + wire(MESSAGES, fragment_size) + wire(MESSAGES, fragment_size, DEFLATE)
        for chunk in cut(data, places):
            transport.feed(chunk)
        transport.feed(b"")
        assert collector.messages == MESSAGES * 2
        assert transport.taken == OPENING
        gone(transport)
        await tube.wait_closed()
        assert len(collector.ends) == 1

    asyncio.run(session())


async def test_byte_by_byte() -> None:
    tube, transport = server_side()
    for byte in OPENING + wire(MESSAGES, 7):
        transport.feed(bytes([byte]))
    for message in MESSAGES:
        assert await tube.receive() == message
    gone(transport)
    await tube.wait_closed()


# Bounds


async def test_a_slow_consumer_stops_reading_and_gets_everything() -> None:
    options = TubeOptions(receive_buffer=10_000)
    tube, transport = server_side(options)
    transport.feed(OPENING)
    sent = [bytes([i % 256]) * 1000 for i in range(50)]
    received, fed = [], 0
    for message in sent:
        if not transport.reading:
            break
        transport.feed(wire([message]))
        fed += 1
    assert not transport.reading
    assert fed * (1000 + MESSAGE_COST) < 10_000 + 2000
    while len(received) < fed:
        received.append(bytes(await tube.receive()))
    assert transport.reading
    assert received == sent[:fed]
    gone(transport)
    await tube.wait_closed()


@pytest.mark.usefixtures("long_reads")
async def test_many_messages_in_one_read_are_looked_at_as_they_are_wanted() -> None:
    """A thousand compressed messages fit one read and a thousand megabytes do not fit memory."""
    big = bytes(1 << 20)
    packed = wire([big], 1 << 18, DEFLATE)
    options = TubeOptions(receive_buffer=2 << 20)
    tube, transport = server_side(options)
    count = (200 << 10) // len(packed)
    assert count > 100
    transport.feed(OPENING)
    transport.feed(packed * count)
    assert not transport.reading
    assert tube.counts.messages_received <= 3
    for _ in range(count):
        assert await tube.receive() == big
        assert tube.counts.messages_received <= count
    assert transport.reading
    gone(transport)
    await tube.wait_closed()


async def test_what_was_read_outlives_the_connection() -> None:
    tube, transport = server_side(TubeOptions(receive_buffer=1))
    transport.feed(OPENING)
    transport.feed(wire([b"one", b"two", b"three"]))
    assert tube.counts.messages_received == 1
    gone(transport)
    await tube.wait_closed()
    assert [await tube.receive() for _ in range(3)] == [b"one", b"two", b"three"]
    with pytest.raises(UnreachableError):
        await tube.receive()


@pytest.mark.usefixtures("long_reads")
async def test_empty_messages_count_toward_the_bound() -> None:
    tube, transport = server_side(TubeOptions(receive_buffer=100 * MESSAGE_COST))
    transport.feed(OPENING)
    transport.feed(b"\x01\x00" * 100_000)
    assert tube.counts.messages_received == 100
    gone(transport)
    await tube.wait_closed()


@pytest.mark.parametrize("question", [serialize(Ping()), b"\x11\x02a"], ids=["ping", "unknown compression"])
async def test_who_asks_and_does_not_take_the_answers_is_not_read(question: bytes) -> None:
    tube, transport = server_side(TubeOptions(write_buffer=100), stuck=True)
    transport.feed(OPENING)
    asked = 0
    while transport.reading:
        transport.feed(question)
        asked += 1
        await asyncio.sleep(0)
        assert asked < 10 * MAX_OWED
    assert tube.unsent < 10 * MAX_OWED
    # It takes them after all.
    while not transport.reading:
        transport.take()
        await asyncio.sleep(0)
    for _ in range(10 * MAX_OWED):
        transport.take()
        await asyncio.sleep(0)
    answer = b"\x88" if question == b"\x80" else b"\x50"
    assert transport.taken == OPENING + answer * asked
    gone(transport)
    await tube.wait_closed()


async def test_websocket_pings_whose_pongs_nobody_takes() -> None:
    tube, transport = server_side(TubeOptions(write_buffer=1000), transport=Transport.WEBSOCKET, stuck=True)
    transport.feed(request())
    transport.feed(frame(BINARY, b"\x02", masked=True))
    transport.take()
    asked = 0
    while transport.reading:
        transport.feed(frame(PING, b"there?", masked=True))
        asked += 1
        assert asked < 10 * MAX_OWED
    taken = transport.take()
    assert transport.reading
    assert taken == frame(PONG, b"there?", masked=False) * asked
    gone(transport)
    await tube.wait_closed()


@pytest.mark.usefixtures("long_reads")
async def test_a_flood_of_pings_in_one_read_is_answered_in_turns() -> None:
    tube, transport = server_side()
    transport.feed(OPENING)
    transport.feed(b"\x80" * MAX_TRIFLES)
    assert len(transport.taken) < 3 * MAX_OWED
    await until(lambda: len(transport.taken) >= len(OPENING) + MAX_TRIFLES)
    assert set(transport.taken[3:]) == {0x88}
    await until(lambda: transport.reading)
    # An honest peer asks once in many seconds.
    transport.feed(b"\x80" * MAX_TRIFLES)
    await until(lambda: tube.closed)
    assert isinstance(tube.error, LimitError)
    gone(transport)
    await tube.wait_closed()


async def test_tiny_fragments_go_out_in_turns() -> None:
    """A peer that wants one-byte fragments slows itself down, not the event loop or the memory."""
    tube, transport = server_side(TubeOptions(compress=False, write_buffer=1000), stuck=True)
    transport.feed(b"\x02")
    message = os.urandom(1 << 20)
    tube.write(message)
    assert tube.paused
    assert len(transport.waiting) < 1 << 20
    while tube.paused:
        transport.take()
        await asyncio.sleep(0)
    transport.take()
    assert transport.taken[3:] == b"".join(map(bytes, stream_pieces(message, 1)))
    gone(transport)
    await tube.wait_closed()


@pytest.mark.usefixtures("long_reads")
@pytest.mark.parametrize("transport", Transport)
async def test_messages_of_one_read_come_in_turns_and_in_order(transport: Transport) -> None:
    turns, due = FairTurns(), list[Callable[[], None]]()
    turns.call_soon = due.append
    tube, line = server_side(transport=transport, turns=turns)
    got = Collector()
    tube.attach(got)
    sent = [b"%d" % number for number in range(5 * AT_ONCE)]
    if transport is Transport.TCP:
        line.feed(OPENING + wire(sent))
    else:
        line.feed(request())
        pieces = (OPENING, *(b"\x01" + message for message in sent))
        line.feed(b"".join(frame(BINARY, piece, masked=True) for piece in pieces))
    assert 0 < len(got.messages) <= AT_ONCE
    assert not line.reading
    while due:
        due.pop()()
    assert got.messages == sent
    assert line.reading
    gone(line)
    await tube.wait_closed()


async def test_a_line_reads_more_at_a_time_while_that_goes_quickly() -> None:
    tube, transport = server_side()

    class Pensive(Collector):
        def on_message(self, message: Received) -> None:
            if message == b"think":
                time.sleep(0.006)

    tube.attach(Pensive())
    assert len(transport.protocol.get_buffer(-1)) == SMALLEST_READ
    transport.feed(OPENING + wire([bytes(1 << 20)], 1 << 18))
    grown = len(transport.protocol.get_buffer(-1))
    assert SMALLEST_READ < grown <= READ_BYTES
    for _ in range(4):
        transport.feed(wire([b"think"]))
    assert len(transport.protocol.get_buffer(-1)) == SMALLEST_READ
    gone(transport)
    await tube.wait_closed()


# Sending with callbacks


async def test_room() -> None:
    tube, transport = server_side(TubeOptions(write_buffer=1000, compress=False), stuck=True)
    collector = Collector()
    tube.attach(collector)
    transport.feed(OPENING)
    transport.take()
    rooms = collector.rooms
    assert not tube.paused
    tube.write(b"x" * 900)
    assert not tube.paused
    tube.write_parts([b"y" * 100, b"z" * 100])
    assert tube.paused
    assert tube.unsent > 1000
    tube.write(b"more, though it was told not to")
    assert transport.waiting.count(b"more") == 0
    while tube.paused:
        transport.take()
    assert collector.rooms == rooms + 1
    assert transport.waiting.count(b"more") + transport.taken.count(b"more") == 1
    gone(transport)
    await tube.wait_closed()


async def test_pausing_and_resuming_from_within_a_callback() -> None:
    tube, transport = server_side()

    class Hesitant(Collector):
        def on_message(self, message: Received) -> None:
            super().on_message(message)
            tube.pause_reading()
            if len(self.messages) % 2:
                tube.resume_reading()

    receiver = Hesitant()
    tube.attach(receiver)
    transport.feed(OPENING)
    transport.feed(wire([b"one", b"two", b"three", b"four"]))
    assert receiver.messages == [b"one", b"two"]
    assert not transport.reading
    tube.resume_reading()
    assert receiver.messages == [b"one", b"two", b"three", b"four"]
    assert not transport.reading
    tube.resume_reading()
    assert transport.reading
    gone(transport)
    await tube.wait_closed()


async def test_neither_the_owner_nor_the_queue_overrules_the_other() -> None:
    tube, transport = server_side(TubeOptions(receive_buffer=4 * MESSAGE_COST))
    transport.feed(OPENING)
    transport.feed(wire([b"one", b"two", b"three", b"four"]))
    assert not transport.reading
    # The owner's word does not let in more than the queue holds,
    tube.pause_reading()
    tube.resume_reading()
    assert not transport.reading
    tube.pause_reading()
    assert [await tube.receive() for _ in range(4)] == [b"one", b"two", b"three", b"four"]
    # nor does the empty queue let in what the owner does not want.
    assert not transport.reading
    tube.resume_reading()
    assert transport.reading
    gone(transport)
    await tube.wait_closed()


async def test_a_receiver_that_pauses_while_it_gets_what_waited() -> None:
    tube, transport = server_side(TubeOptions(receive_buffer=2 * MESSAGE_COST))
    transport.feed(OPENING)
    transport.feed(wire([b"one", b"two", b"three"]))

    class Hesitant(Collector):
        def on_message(self, message: Received) -> None:
            super().on_message(message)
            tube.pause_reading()

    receiver = Hesitant()
    tube.attach(receiver)
    assert receiver.messages == [b"one", b"two"]
    assert not transport.reading
    tube.resume_reading()
    assert receiver.messages == [b"one", b"two", b"three"]
    gone(transport)
    await tube.wait_closed()


async def test_answering_and_closing_from_within_a_callback() -> None:
    tube, transport = server_side()

    class Brief(Collector):
        def on_message(self, message: Received) -> None:
            super().on_message(message)
            tube.write(message)
            if message == b"bye":
                tube.start_closing()

    receiver = Brief()
    tube.attach(receiver)
    transport.feed(OPENING + wire([b"hello", b"bye", b"never seen"]))
    assert receiver.messages == [b"hello", b"bye"]
    assert receiver.ends == [None]
    assert transport.taken == OPENING + wire([b"hello", b"bye"])
    assert transport.ended
    # What still comes is thrown away, until the peer closes as well.
    transport.feed(wire([b"neither"]))
    assert not transport.protocol.eof_received()
    gone(transport)
    await tube.wait_closed()
    assert receiver.messages == [b"hello", b"bye"]


async def test_a_receiver_gets_what_waited_and_is_the_only_one() -> None:
    tube, transport = server_side()
    transport.feed(OPENING + wire([b"one", b"two"]))
    collector = Collector()
    tube.attach(collector)
    transport.feed(wire([b"three"]))
    assert collector.messages == [b"one", b"two", b"three"]
    with pytest.raises(UsageError):
        tube.attach(Collector())
    gone(transport)
    await tube.wait_closed()
    assert len(collector.ends) == 1


async def test_a_receiver_that_comes_too_late_hears_the_end() -> None:
    tube, transport = server_side()
    transport.feed(OPENING + wire([b"one"]))
    gone(transport)
    await tube.wait_closed()
    collector = Collector()
    tube.attach(collector)
    assert collector.messages == [b"one"]
    assert isinstance(collector.ends[0], UnreachableError)


@pytest.mark.parametrize("before", [True, False])
async def test_what_is_written_goes_out_before_the_end(before: bool) -> None:
    """Closing waits for the network, whether the peer has shut its side down before or does so meanwhile."""
    options = TubeOptions(write_buffer=1000, compress=False, close_seconds=math.inf)
    tube, transport = server_side(options, stuck=True)
    transport.feed(OPENING)
    if before:
        assert transport.protocol.eof_received()
    assert not tube.closed
    messages = [os.urandom(2000) for _ in range(5)]
    for message in messages:
        tube.write(message)
    tube.start_closing()
    with pytest.raises(ClosedError):
        tube.write(b"too late")
    if not before:
        assert transport.protocol.eof_received()
    async with asyncio.timeout(5):
        while not transport.gone:
            transport.take()
            await asyncio.sleep(0)
    assert transport.taken == OPENING + wire(messages, 1 << 18)
    await tube.wait_closed()


async def test_callbacks_when_it_is_gone() -> None:
    tube, transport = server_side()
    told: list[Tube] = []
    tube.when_closed(told.append)
    gone(transport)
    await tube.wait_closed()
    assert told == [tube]
    tube.when_closed(told.append)
    await asyncio.sleep(0)
    assert told == [tube, tube]
