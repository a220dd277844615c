"""One consumer's cursor: whatever is sent at once, read from the log or asked for again, each message comes once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DamagedError, HeadraceError, TrimmedError
from headrace.hub.cursor import NOWHERE, Cursor, EncodedCache, EncodedChunk, Lost, RequestedRange
from headrace.net.server.log.feed import FeedBounds, LogFeed


@dataclass
class Log:
    """What a feed asks of the log, and how it is read: some messages at a time, as in a text."""

    first: int = 1
    head: int = 0
    most: int = 3
    reads: list[tuple[int, int]] = field(default_factory=list)
    error: Exception | None = None

    @property
    def first_here(self) -> int:
        return self.first

    def encode(self, first: int, last: int) -> EncodedChunk:
        self.reads.append((first, last))
        if self.error is not None:
            raise self.error
        if first < self.first:
            raise TrimmedError(first, last, self.first)
        return chunk(first, min(last, first + self.most - 1))


def chunk(first: int, last: int) -> EncodedChunk:
    return EncodedChunk(first, last, " ".join(map(str, range(first, last + 1))).encode())


@dataclass
class Consumer:
    """Takes what it is sent, up to ``room`` chunks; then its buffer is full."""

    room: int = 1_000_000
    sent: list[int] = field(default_factory=list)
    cut: list[tuple[int, int]] = field(default_factory=list)
    failed: list[tuple[int, int, HeadraceError]] = field(default_factory=list)
    paused: bool = False
    feed: LogFeed[EncodedChunk] | None = None

    @property
    def ready(self) -> bool:
        return not self.paused

    def take_chunk(self, chunk: EncodedChunk) -> bool:
        seqs = [int(seq) for seq in bytes(chunk.data).split()]
        assert seqs == list(range(chunk.first, chunk.last + 1))
        self.sent += seqs
        self.room -= 1
        self.paused = self.room == 0
        return True

    def read_failed(self, lost: Lost, error: HeadraceError) -> None:
        if lost.ended:
            self.failed.append((lost.first, lost.last, error))
        else:
            assert isinstance(error, TrimmedError)
            assert error.oldest > lost.last
            self.cut.append((lost.first, lost.last))

    def pump(self) -> None:
        if self.feed is not None:
            self.feed.pump()


class Readers(Executor):
    """Reads when told to, so that a test says what happens meanwhile."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def at(self, _log: FeedBounds, _seq: int, usual: Executor | None = None) -> Executor:
        return usual or self

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args)))
        return future

    def read(self) -> None:
        """Do the one read that is waiting; a feed never has two."""
        ((future, work),) = self._waiting
        self._waiting.clear()
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 -- whatever a read raises
            future.set_exception(error)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)


@dataclass
class World:
    log: Log
    recent: EncodedCache[EncodedChunk]
    readers: Readers
    consumer: Consumer
    feed: LogFeed[EncodedChunk]

    @property
    def cursor(self) -> Cursor[EncodedChunk]:
        return self.feed.cursor

    def pause(self) -> None:
        self.consumer.paused = True

    def resume(self) -> None:
        self.consumer.paused = False
        self.feed.pump()

    def append(self, count: int) -> None:
        """Commit messages and hand them out, as a door does."""
        self.log.head += count
        self.recent.add(chunk(self.log.head - count + 1, self.log.head))
        self.feed.pump()

    async def settle(self) -> None:
        """Do every read until the feed has no more to do."""
        while self.readers.waiting:
            self.readers.read()
            await turns()

    def subscribe(self) -> None:
        self.cursor.next = self.log.head + 1
        self.feed.pump()

    def ask(self, first: int, last: int) -> None:
        self.cursor.ranges.append(RequestedRange(first, last))
        self.feed.pump()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
async def world() -> World:
    return make()


def make(recent_bytes: int = 1000) -> World:
    log, readers, consumer = Log(), Readers(), Consumer()
    recent: EncodedCache[EncodedChunk] = EncodedCache(lambda _: None, max_bytes=recent_bytes)
    feed = LogFeed(log, Cursor(find=recent.find, read_ahead=True), log.encode, readers, consumer)
    consumer.feed = feed
    return World(log, recent, readers, consumer, feed)


async def test_nothing_is_sent_that_is_not_wanted(world: World) -> None:
    world.append(5)
    assert world.consumer.sent == []
    assert world.log.reads == []


async def test_who_keeps_up_is_sent_from_memory(world: World) -> None:
    world.append(5)
    world.subscribe()
    world.append(1)
    world.append(3)
    assert world.consumer.sent == [6, 7, 8, 9]
    assert world.log.reads == []


async def test_who_is_a_little_behind_takes_older_chunks(world: World) -> None:
    world.subscribe()
    world.pause()
    for count in (1, 2, 3):
        world.append(count)
    assert world.consumer.sent == []
    world.resume()
    assert world.consumer.sent == [1, 2, 3, 4, 5, 6]
    assert world.log.reads == []


async def test_who_is_further_behind_is_fed_from_the_log_and_rejoins() -> None:
    world = make(recent_bytes=10)
    world.subscribe()
    world.pause()
    for _ in range(6):
        world.append(2)
    world.resume()
    await world.settle()
    assert world.consumer.sent == list(range(1, 13))
    assert world.log.reads
    world.log.reads.clear()
    world.append(2)
    assert world.consumer.sent == list(range(1, 15))
    assert world.log.reads == []


async def test_from_the_middle_of_a_chunk(world: World) -> None:
    world.append(10)
    world.cursor.next = 4
    world.feed.pump()
    await world.settle()
    world.append(2)
    assert world.consumer.sent == list(range(4, 13))


async def test_what_comes_while_the_log_is_read(world: World) -> None:
    world.append(4)
    world.recent.clear()
    world.cursor.next = 1
    world.feed.pump()
    assert world.readers.waiting
    world.append(2)
    world.append(1)
    assert world.consumer.sent == []
    await world.settle()
    assert world.consumer.sent == [1, 2, 3, 4, 5, 6, 7]


async def test_a_full_buffer_stops_it_and_room_goes_on(world: World) -> None:
    world.subscribe()
    world.consumer.room = 2
    for _ in range(5):
        world.append(1)
    assert world.consumer.sent == [1, 2]
    world.consumer.room = 1
    world.resume()
    assert world.consumer.sent == [1, 2, 3]
    world.consumer.room = 100
    world.resume()
    assert world.consumer.sent == [1, 2, 3, 4, 5]


async def test_paused_while_the_log_is_read_it_keeps_one_chunk_and_sends_it_first(world: World) -> None:
    world.append(9)
    world.ask(1, 9)
    world.pause()
    await world.settle()
    assert world.consumer.sent == []
    world.resume()
    await world.settle()
    assert world.consumer.sent == list(range(1, 10))


async def test_one_chunk_and_no_more_is_read_ahead_of_a_consumer_that_takes_nothing(world: World) -> None:
    world.append(9)
    world.consumer.room = 1
    world.ask(1, 9)
    await world.settle()
    assert world.consumer.sent == [1, 2, 3]
    assert world.log.reads == [(1, 9), (4, 9)]
    world.resume()
    await world.settle()
    assert world.consumer.sent == list(range(1, 10))


async def test_ranges_go_first_and_in_their_order(world: World) -> None:
    world.append(9)
    world.subscribe()
    world.ask(5, 6)
    world.ask(1, 2)
    world.append(1)
    await world.settle()
    assert world.consumer.sent == [5, 6, 1, 2, 10]
    assert not world.cursor.ranges


async def test_an_empty_range_is_done_at_once(world: World) -> None:
    world.ask(3, 2)
    assert not world.cursor.ranges
    assert world.log.reads == []


async def test_a_range_asked_for_while_the_live_sequence_is_read(world: World) -> None:
    # It begins with the very number that is being read, and is shorter than what comes: neither may suffer.
    world.append(6)
    world.recent.clear()
    world.cursor.next = 4
    world.feed.pump()
    world.ask(4, 4)
    await world.settle()
    world.append(1)
    assert world.consumer.sent == [4, 5, 6, 4, 7]


async def test_a_subscription_that_lapses_while_the_log_is_read(world: World) -> None:
    world.append(4)
    world.recent.clear()
    world.cursor.next = 1
    world.feed.pump()
    world.cursor.next = NOWHERE
    await world.settle()
    assert world.consumer.sent == []


async def test_one_that_begins_anew_meanwhile(world: World) -> None:
    world.append(4)
    world.recent.clear()
    world.cursor.next = 1
    world.feed.pump()
    world.cursor.next = NOWHERE
    world.subscribe()
    world.append(1)
    await world.settle()
    assert world.consumer.sent == [5]


class TestTrimmed:
    async def test_of_a_range_what_is_gone_is_passed_over(self, world: World) -> None:
        world.append(9)
        world.log.first = 4
        world.ask(1, 6)
        await world.settle()
        assert world.consumer.cut == [(1, 3)]
        assert world.consumer.sent == [4, 5, 6]
        assert (world.consumer.failed, len(world.cursor.ranges)) == ([], 0)

    async def test_a_range_that_is_gone_whole(self, world: World) -> None:
        world.append(9)
        world.log.first = 8
        world.ask(1, 6)
        world.ask(8, 9)
        await world.settle()
        assert world.consumer.cut == [(1, 6)]
        assert world.consumer.sent == [8, 9]

    async def test_the_live_sequence_ends(self, world: World) -> None:
        world.append(9)
        world.recent.clear()
        world.log.first = 4
        world.cursor.next = 2
        world.feed.pump()
        await world.settle()
        ((first, last, error),) = world.consumer.failed
        assert (first, last) == (2, 9)
        assert isinstance(error, TrimmedError)
        world.append(1)
        world.ask(10, 10)
        assert world.consumer.sent == []
        assert not world.readers.waiting

    async def test_the_live_sequence_ends_whatever_was_asked_for_meanwhile(self, world: World) -> None:
        world.append(9)
        world.recent.clear()
        world.log.first = 4
        world.cursor.next = 2
        world.feed.pump()
        world.ask(7, 8)
        await world.settle()
        assert len(world.consumer.failed) == 1
        assert world.consumer.cut == []
        assert world.consumer.sent == []


async def test_damage_ends_it(world: World) -> None:
    world.append(5)
    world.log.error = DamagedError("0001.arrow", 0, 1, 5, "torn")
    world.ask(1, 5)
    await world.settle()
    assert world.consumer.failed == [(1, 5, world.log.error)]
    assert not world.cursor.ranges


async def test_a_read_that_fails_unexpectedly_is_tried_again(world: World) -> None:
    raised: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: raised.append(what["exception"]))
    world.append(5)
    world.log.error = MemoryError()
    world.ask(1, 5)
    await world.settle()
    assert raised == [world.log.error]
    world.log.error = None
    world.feed.pump()
    await world.settle()
    assert world.consumer.sent == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("fails", [False, True])
async def test_closed_while_the_log_is_read(world: World, *, fails: bool) -> None:
    world.append(5)
    world.ask(1, 5)
    if fails:
        world.log.error = DamagedError("0001.arrow", 0, 1, 5, "torn")
    world.cursor.close()
    await world.settle()
    assert (world.consumer.sent, world.consumer.failed) == ([], [])
    world.append(1)
    world.resume()
    assert world.consumer.sent == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.just("room"), st.integers(1, 4)),
        st.tuples(st.just("forget"), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 60), st.integers(1, 4))
def test_without_hole_or_repeat_whatever_happens(
    script: list[tuple[str, int]], recent_bytes: int, most: int
) -> None:
    async def play() -> None:
        world = make(recent_bytes)
        world.log.most = most
        world.append(3)
        world.subscribe()
        for what, count in script:
            match what:
                case "append":
                    world.append(count)
                case "read" if world.readers.waiting:
                    world.readers.read()
                    await turns()
                case "room":
                    world.consumer.room = count
                    world.resume()
                case "forget":
                    world.recent.clear()
            assert world.consumer.sent == list(range(4, 4 + len(world.consumer.sent)))
        world.consumer.room = 1_000_000
        world.resume()
        await world.settle()
        assert world.consumer.sent == list(range(4, world.log.head + 1))

    asyncio.run(play())
