"""The matching stage: order, slices, the log behind it, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.net.raw import until

from headrace.errors import TrimmedError
from headrace.hub.routing.local_matcher import LocalMatcher
from headrace.hub.routing.subscription_parts import (
    serialize_fields,
)
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    subscribe,
)
from headrace.hub.sequence import Hub
from headrace.hub.state import HubState
from headrace.log import Log
from headrace.matching import Matches
from headrace.message import Batch, Run
from headrace.net.routing import match_queue as module
from headrace.net.routing.match_queue import FEW, SLICE, MatchQueue
from headrace.net.server.machine.reader_threads import ReaderThreads
from headrace.wire.sdk.predicate import Between

ALICE = bytes([7]) * 12
HERE = b"here0001"


class Scene:
    def __init__(self, directory: Path) -> None:
        self.log = Log.open(directory, fsync="never")
        self.subscriptions = Subscriptions()
        self.hub = Hub(self.log, 1, max_uncommitted=1 << 30, state=HubState(self.subscriptions))
        self.matching = LocalMatcher(self.subscriptions, lambda _client, _kept: True)
        self.readers, self.thread = ReaderThreads(), ThreadPoolExecutor(1)
        self.matched: list[tuple[int, int]] = []
        """The number and the count of clients of each message, as it was matched."""
        self.stage = MatchQueue(self.hub, self.matching, self.take, self.readers, self.thread)
        self.hub.doors.append(self.stage)  # type: ignore[arg-type]

    def take(self, batch: Batch, matches: Matches | None) -> None:
        counts = [0] * len(batch) if matches is None else [len(matches[n]) for n in range(len(matches))]
        self.matched += enumerate(counts, batch.first)

    def commit(self, count: int) -> None:
        if count:
            self.hub.submit(Batch(Run.of([b"x" * 10] * count), origin="test"))
        self.hub.turn(1)

    def subscribe(self) -> None:
        self.hub.submit(subscribe(ALICE, HERE, serialize_fields({"size": Between(10, 10)})))
        self.hub.turn(1)

    async def all(self) -> None:
        await until(lambda: self.stage.next > self.log.head)
        assert [seq for seq, _ in self.matched] == list(range(1, self.log.head + 1))

    def close(self) -> None:
        self.readers.shutdown()
        self.thread.shutdown()
        self.log.close()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


async def warm(scene: Scene) -> None:
    scene.subscribe()
    scene.commit(1)
    await scene.all()
    # On a busy machine the index may still be under way in its thread, and matching waits for it.
    await until(lambda: not (scene.stage._away or scene.stage._rebuilding))


async def test_without_subscriptions_nothing_is_looked_at(scene: Scene) -> None:
    scene.commit(3 * SLICE)
    scene.commit(1)
    await scene.all()
    assert not any(count for _, count in scene.matched)
    assert scene.hub.counters.get("matched", what="messages") == 0


async def test_a_few_messages_are_matched_in_their_turn(scene: Scene) -> None:
    await warm(scene)
    scene.commit(FEW)
    assert scene.stage.next == scene.log.head + 1
    assert scene.matched[-FEW:] == [(seq, 1) for seq in range(scene.log.head - FEW + 1, scene.log.head + 1)]


async def test_many_are_matched_aside_and_in_order(scene: Scene) -> None:
    await warm(scene)
    scene.commit(5 * SLICE + 3)
    scene.commit(1)  # Few as it is, it waits for those before it.
    assert scene.stage.next <= 3
    await scene.all()
    assert all(count == 1 for seq, count in scene.matched if seq > 1)


async def test_what_is_too_much_for_memory_is_read_from_the_log(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.stage._cache, "_max_bytes", 10 * 2 * SLICE)
    monkeypatch.setattr(module, "READ_BYTES", 10_000)
    await warm(scene)
    for _ in range(10):
        scene.commit(SLICE)
        assert scene.stage._cache._bytes <= 10 * 3 * SLICE
    await scene.all()


async def test_it_waits_while_there_is_no_room(scene: Scene) -> None:
    await warm(scene)
    full = True
    scene.stage.blocked = lambda: full
    before = list(scene.matched)
    scene.commit(2)
    await asyncio.sleep(0)
    assert scene.matched == before
    full = False
    scene.stage.go_on()
    await scene.all()


async def test_a_barrier_is_met_between_two_messages(scene: Scene) -> None:
    await warm(scene)
    head, seen = scene.log.head, []
    scene.stage.when(head + 700, lambda: seen.append(scene.stage.next))
    scene.stage.when(head + 3 * SLICE, lambda: seen.append(scene.stage.next))
    scene.commit(4 * SLICE)
    await scene.all()
    assert seen == [head + 701, head + 3 * SLICE + 1]


async def test_entries_alone_meet_a_barrier_and_match_nothing(scene: Scene) -> None:
    await warm(scene)
    head, matched, seen = scene.log.head, list(scene.matched), []
    scene.stage.when(head, lambda: seen.append(scene.stage.next))
    scene.subscribe()
    assert seen == [head + 1]
    scene.subscribe()
    assert (scene.log.head, scene.matched) == (head, matched)
    assert scene.log.head_op > head + 2


async def test_what_the_log_cannot_give_is_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await warm(scene)
    monkeypatch.setattr(scene.stage._cache, "_max_bytes", 1)

    def trimmed(first: int, last: int, _bytes: int) -> list[Batch]:
        raise TrimmedError(first, last, last + 1)

    full = True
    scene.stage.blocked = lambda: full
    for _ in range(3):
        scene.commit(10)
    monkeypatch.setattr(scene.log, "read", trimmed)
    full = False
    scene.stage.go_on()
    await until(lambda: scene.stage.next == scene.log.head + 1)
    assert scene.hub.counters.get("unmatched") == 20


async def test_what_retention_has_left_is_matched(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await warm(scene)
    monkeypatch.setattr(scene.stage._cache, "_max_bytes", 1)
    read, oldest = scene.log.read, scene.log.head + 16

    def trimmed(first: int, last: int, most: int) -> list[Batch]:
        if first < oldest:
            raise TrimmedError(first, last, oldest)
        return read(first, last, most)

    full = True
    scene.stage.blocked = lambda: full
    for _ in range(3):
        scene.commit(10)
    monkeypatch.setattr(scene.log, "read", trimmed)
    full = False
    scene.stage.go_on()
    await until(lambda: scene.stage.next == scene.log.head + 1)
    assert scene.hub.counters.get("unmatched") == 5
    assert [seq for seq, _ in scene.matched][-15:] == list(range(oldest, oldest + 15))


@pytest.mark.parametrize("count", [FEW, 2 * SLICE])
async def test_a_matcher_that_fails_holds_nobody_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    await warm(scene)
    head, pieces = scene.log.head, scene.matching.pieces

    def failing(batch: Batch) -> Iterator[tuple[Batch, Matches]]:
        if batch.first == head + 1:
            found = list(pieces(batch))
            yield found[0][0].slice(0, 10), Matches(found[0][1].offsets[:11], found[0][1].clients[:10])
            raise MemoryError("no more")
        yield from pieces(batch)

    monkeypatch.setattr(scene.matching, "pieces", failing)
    scene.commit(count)
    scene.commit(3)
    await until(lambda: scene.stage.next > scene.log.head)
    lost = min(count, SLICE) - 10
    assert scene.hub.counters.get("unmatched") == lost
    assert [seq for seq, _ in scene.matched] == [
        *range(1, head + 11),
        *range(head + 11 + lost, scene.log.head + 1),
    ]


async def test_the_index_is_rebuilt_aside(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt = []

    class Due:
        rebuild_due = True

        def rebuild(self) -> bool:
            rebuilt.append(True)
            self.rebuild_due = False
            return True

    monkeypatch.setattr(scene.matching, "matcher", Due())
    scene.stage.tick()
    scene.stage.tick()
    await until(lambda: rebuilt and not scene.stage._rebuilding)
    scene.stage.tick()
    assert rebuilt == [True]
