"""What is done to the log in the background: syncs, sealing, snapshots, retention."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from tests.archive.logs import archive, write_log
from tests.net.conftest import Dial, Start
from tests.net.raw import SECONDS, backbone_of, push, running_hub, until

from headrace.archive.past import ArchivedPast
from headrace.config import load
from headrace.errors import DamagedError, FullError, StorageError
from headrace.hub.consumers import unused
from headrace.hub.consumers.cursors import Consumers, create
from headrace.hub.consumers.terms import Terms
from headrace.hub.holds import hold
from headrace.hub.sequence import Hub
from headrace.hub.state import entry
from headrace.hub.state_parts import StateParts
from headrace.hub.steady_clock import SteadyClock
from headrace.log import Log
from headrace.log.maintained import remove_files
from headrace.log.sealed.segment import SealedSegment
from headrace.message import Batch, Run
from headrace.net.server import assembly
from headrace.net.server.log import maintenance as upkeeps
from headrace.net.server.log.maintenance import GroupCommit, LogMaintenance
from headrace.net.server.machine.clock import machine_clock
from headrace.net.server.machine.disk_room import DiskRoom
from headrace.net.server.process import Server

SECOND = 1_000_000


@pytest.fixture
def disk() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    log = Log.open(tmp_path / "log", segment_bytes=1 << 20)
    yield Hub(log, 7, max_uncommitted=1 << 20)
    log.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeeps, "_PAUSE", 0.01)


def publish(hub: Hub, *payloads: bytes, now: int = 0) -> None:
    hub.submit(Batch(Run.of(payloads), origin="test"))
    hub.turn(now)


def make(hub: Hub, disk: ThreadPoolExecutor, *sets: str) -> LogMaintenance:
    return LogMaintenance(hub, load(environ={}, sets=sets), disk, trusted_after=0)


class Running:
    """The loops of log maintenance, running."""

    def __init__(self, upkeep: LogMaintenance) -> None:
        self._upkeep = upkeep
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.ensure_future(loop()) for loop in self._upkeep.loops()]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        errors = [
            each for each in outcomes if each is not None and not isinstance(each, asyncio.CancelledError)
        ]
        assert errors == []


def sealed(hub: Hub) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in hub.log.segments if isinstance(each, SealedSegment)]


class SlowDisk:
    """Inside the ``with``, a log's ``sync`` ends when the test says so."""

    def __init__(self, log: Log) -> None:
        self.syncs: list[int] = []
        """The tail at the beginning of each sync."""
        self.error: StorageError | None = None
        self._log = log
        self._plainly = log.sync
        self._may_end = threading.Semaphore(0)

    def let(self, count: int = 1) -> None:
        """Let so many syncs end."""
        self._may_end.release(count)

    def __enter__(self) -> Self:
        self._log.sync = self._sync  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._log.sync
        self.let(1000)

    def _sync(self) -> int:
        upto = self._log.tail_op
        self.syncs.append(upto)
        self._may_end.acquire(timeout=SECONDS)
        if self.error is not None:
            raise self.error
        self._plainly()
        return upto


@pytest.fixture
def synced(hub: Hub, disk: ThreadPoolExecutor) -> Iterator[SlowDisk]:
    """A disk under a hub that commits what is synced."""
    with SlowDisk(hub.log) as slow:
        hub.commit_by(GroupCommit(hub, disk))
        yield slow


class TestGroupCommit:
    async def test_nothing_is_committed_before_its_sync(self, hub: Hub, synced: SlowDisk) -> None:
        outcomes: list[object] = []
        hub.submit(Batch(Run.of([b"a", b"b"]), origin="test"), outcomes.append)
        hub.turn(0)
        await until(lambda: synced.syncs == [2])
        assert (hub.log.tail, hub.log.head, outcomes) == (2, 0, [])
        synced.let()
        await until(lambda: hub.log.head == 2)
        assert len(outcomes) == 1

    async def test_one_sync_for_all_that_came_during_the_last(self, hub: Hub, synced: SlowDisk) -> None:
        publish(hub, b"first")
        await until(lambda: synced.syncs == [1])
        for number in range(100):
            publish(hub, b"%d" % number)
        await asyncio.sleep(0)
        assert synced.syncs == [1]
        synced.let()
        # What was appended during a sync is not known to be covered by it.
        await until(lambda: synced.syncs == [1, 101])
        assert hub.log.head == 1
        synced.let()
        await until(lambda: hub.log.head == 101)
        assert synced.syncs == [1, 101]

    async def test_a_failed_sync_acknowledges_nothing_ever_after(
        self, hub: Hub, synced: SlowDisk, caplog: pytest.LogCaptureFixture
    ) -> None:
        synced.error = StorageError("messages from 1 on may not be on the disk")
        outcomes: list[object] = []
        for count in (1, 2):
            hub.submit(Batch(Run.of([b"a"]), origin="test"), outcomes.append)
            hub.turn(0)
            synced.let()
            await until(lambda count=count: len(outcomes) == count)
        assert (hub.log.head, outcomes) == (0, [synced.error, synced.error])
        assert hub.counters.get("sync_failures") == 1
        assert "nothing more is acknowledged" in caplog.text


class TestFsyncAlways:
    """The same through the doors."""

    async def test_subscribers_see_what_is_synced_and_no_more(self, start: Start, dial: Dial) -> None:
        server = await start("log.fsync=always")
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        with SlowDisk(server.hub.log) as slow:
            await publisher.send(push(b"one"))
            await until(lambda: slow.syncs == [1])
            await publisher.send(push(b"two"))
            await until(lambda: server.hub.log.tail == 2)
            assert server.hub.log.head == 0
            # The acknowledgement comes now, so nothing was sent before it.
            await subscriber.subscribe()
            slow.let(2)
            assert await subscriber.delivers(1, 2) == [b"one", b"two"]
        assert server.status()["fsync"] == "always"

    async def test_congestion_pauses_publishers_and_relief_resumes_them(
        self, start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(assembly, "MAX_UNCOMMITTED", 100_000)
        server = await start("log.fsync=always")
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        count = 40_000
        everything = b"".join(push(b"%07d" % number * 100) for number in range(count))
        with SlowDisk(server.hub.log):
            sending = asyncio.ensure_future(publisher.send(everything))
            await until(lambda: any(stream.reading_paused for stream in backbone_of(server).connections))
            assert server.hub.congested
            # Its socket is not read: what the hub holds grows no further, whatever the publisher has to say.
            await asyncio.sleep(0)
            held = server.hub.log.tail
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert server.hub.log.tail == held
            assert not sending.done()
        for number, payload in enumerate(await subscriber.delivers(1, count)):
            assert payload == b"%07d" % number * 100
        await sending
        assert not server.hub.congested

    async def test_a_failed_sync_delivers_nothing(self, tmp_path: Path, dial: Dial) -> None:
        hub = running_hub(tmp_path, "log.fsync=always")
        server = await hub.__aenter__()
        subscriber, publisher = await dial(server), await dial(server)
        await subscriber.subscribe()
        with SlowDisk(server.hub.log) as slow:
            slow.error = StorageError("messages from 1 on may not be on the disk")
            slow.let(1000)
            await publisher.send(push(b"lost"))
            await until(lambda: server.hub.counters.get("sync_failures") == 1)
            await subscriber.subscribe()
            assert server.hub.log.head == 0
            # Neither what waited for the sync nor what comes later is left without an answer.
            refused: list[object] = []
            server.hub.submit(Batch(Run.of([b"later"])), refused.append)
            await until(lambda: len(refused) == 1)
            assert isinstance(refused[0], StorageError)
            assert server.hub.counters.get("refused_messages", origin="fyrehose", reason="storage") == 1
            # Stopping cannot keep its promise and says so; everything is closed all the same.
            with pytest.raises(StorageError, match="may not be on the disk"):
                await hub.__aexit__(None, None, None)
        assert await subscriber.rest() == b""
        async with running_hub(tmp_path) as again:
            assert again.ready


class TestInterval:
    async def test_it_syncs_what_is_dirty(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        async with Running(make(hub, disk, "log.fsync_interval=0.01")):
            for number in range(3):
                publish(hub, b"%d" % number)
                assert hub.log.head == number + 1  # committed at once
                assert hub.log.dirty
                await until(lambda: not hub.log.dirty)

    async def test_a_failed_sync_is_said_once(
        self, hub: Hub, disk: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        with SlowDisk(hub.log) as slow:
            slow.error = StorageError("messages from 1 on may not be on the disk")
            slow.let(1000)
            async with Running(make(hub, disk, "log.fsync_interval=0.01")):
                publish(hub, b"a")
                await until(lambda: hub.counters.get("sync_failures"))
                publish(hub, b"b")
                for _ in range(30):
                    await asyncio.sleep(0.001)
        assert hub.counters.get("sync_failures") == 1
        assert [record.levelno for record in caplog.records] == [logging.CRITICAL, logging.WARNING]

    async def test_after_a_failed_sync_nothing_is_acknowledged(
        self, hub: Hub, disk: ThreadPoolExecutor
    ) -> None:
        outcomes: list[object] = []
        with SlowDisk(hub.log) as slow:
            slow.error = StorageError("messages from 1 on may not be on the disk")
            slow.let(1000)
            upkeep = make(hub, disk, "log.fsync_interval=0.01")
            async with Running(upkeep):
                publish(hub, b"a")
                await until(lambda: hub.counters.get("sync_failures"))
                hub.submit(Batch(Run.of([b"b"]), origin="test"), outcomes.append)
                hub.turn(0)
        assert outcomes == [slow.error]
        assert hub.log.tail == 1
        assert upkeep.told()["sync"] == str(slow.error)

    async def test_a_cluster_says_itself_what_follows_a_failed_sync(
        self, hub: Hub, disk: ThreadPoolExecutor
    ) -> None:
        told: list[StorageError] = []
        settings = load(environ={}, sets=["log.fsync_interval=0.01"])
        with SlowDisk(hub.log) as slow:
            slow.error = StorageError("messages from 1 on may not be on the disk")
            slow.let(1000)
            async with Running(LogMaintenance(hub, settings, disk, sync_failed=told.append)):
                publish(hub, b"a")
                await until(lambda: told)
        assert (told, hub.failed) == ([slow.error], None)

    @pytest.mark.parametrize("fsync", ["always", "never"])
    async def test_only_under_interval(self, hub: Hub, disk: ThreadPoolExecutor, fsync: str) -> None:
        others = len(make(hub, disk, f"log.fsync={fsync}").loops())
        assert others == len(make(hub, disk, "log.fsync=interval").loops()) - 1


class TestSealing:
    async def test_by_command(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk)
        assert await upkeep.seal() == 0
        publish(hub, b"a", b"b")
        publish(hub, b"c")
        assert await upkeep.seal() == 1
        assert sealed(hub) == [(1, 3)]
        assert await upkeep.seal() == 0
        assert hub.counters.get("segments_sealed") == 1
        publish(hub, b"d")
        assert [payload for batch in hub.log.scan(1) for payload in batch.run] == [b"a", b"b", b"c", b"d"]

    async def test_only_what_is_committed(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        hub.commit_by(lambda _tail: None)
        upkeep = make(hub, disk)
        publish(hub, b"a")
        assert await upkeep.seal() == 0
        hub.committed(1)
        assert await upkeep.seal() == 1

    async def test_by_age(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        async with Running(make(hub, disk, "log.segment_seconds=0.2")):
            publish(hub, b"a")
            began = loop.time()
            await until(lambda: sealed(hub) == [(1, 1)])
            assert loop.time() - began >= 0.2
            # An empty one is never sealed.
            later = loop.time() + 0.5
            await until(lambda: loop.time() > later)
            assert len(hub.log.segments) == 2

    async def test_a_segment_that_bytes_have_ended_does_not_age_the_next(
        self, hub: Hub, disk: ThreadPoolExecutor
    ) -> None:
        loop = asyncio.get_running_loop()
        upkeep = make(hub, disk, "log.segment_seconds=0.3")
        publish(hub, b"old")
        await upkeep._rotate_by_age()
        later = loop.time() + 0.4
        await until(lambda: loop.time() > later)
        hub.log.rotate()
        publish(hub, b"new")
        await upkeep._rotate_by_age()
        assert (hub.log.segments[-1].first, hub.log.segments[-1].last) == (2, 2)  # it stays open
        await until(lambda: loop.time() > later + 0.4)
        await upkeep._rotate_by_age()
        assert hub.log.segments[-1].first == 3

    async def test_by_bytes(self, tmp_path: Path, disk: ThreadPoolExecutor) -> None:
        log = Log.open(tmp_path / "log", segment_bytes=1000)
        hub = Hub(log, 7, max_uncommitted=1 << 20)
        async with Running(make(hub, disk)):
            for _ in range(10):
                publish(hub, bytes(500))
            await until(lambda: len(sealed(hub)) >= 3)
        assert [last - first for first, last in sealed(hub)] == [1] * len(sealed(hub))
        log.close()

    async def test_a_disk_that_fails_is_tried_again(
        self,
        hub: Hub,
        disk: ThreadPoolExecutor,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def full() -> None:
            raise FullError("log", "no space left on device")

        publish(hub, b"a")
        hub.log.rotate()
        async with Running(make(hub, disk)):
            with monkeypatch.context() as patch:
                patch.setattr(hub.log, "seal_next", full)
                await until(lambda: hub.counters.get("upkeep_failures") >= 2)
            await until(lambda: sealed(hub) == [(1, 1)])
        assert "no space left on device" in caplog.text


class TestDamage:
    async def test_a_bad_bit_in_a_tail_is_set_aside_and_the_rest_goes_on(
        self, hub: Hub, disk: ThreadPoolExecutor
    ) -> None:
        upkeep = make(hub, disk)
        publish(hub, b"a" * 100)
        publish(hub, b"b" * 100)
        [tail] = hub.log.segments
        hub.log.rotate()
        publish(hub, b"c")
        hub.log.rotate()
        with tail.path.open("r+b") as file:
            file.seek(-10, 2)
            file.write(b"X")
        async with Running(upkeep):
            await until(lambda: sealed(hub) == [(3, 3)])
        assert hub.counters.get("damaged_tails") == 1
        assert hub.counters.get("upkeep_failures") == 0
        assert "messages 2 to 2 are in doubt" in upkeep.told()["damage"]
        assert [payload for batch in hub.log.read(1, 1) for payload in batch.run] == [b"a" * 100]
        with pytest.raises(DamagedError):
            hub.log.read(2)
        assert [payload for batch in hub.log.read(3) for payload in batch.run] == [b"c"]

    async def test_retention_does_not_stop_there(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=1")
        publish(hub, b"a" * 100)
        [tail] = hub.log.segments
        hub.log.rotate()
        publish(hub, b"b")
        hub.log.rotate()
        with tail.path.open("r+b") as file:
            file.seek(-10, 2)
            file.write(b"X")
        async with Running(upkeep):
            await until(lambda: hub.log.first == 3)
            await until(lambda: upkeep.told() == {})


class TestRoom:
    async def test_publishers_are_told_before_the_disk_is_full(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        free = 1 << 30
        monkeypatch.setattr(DiskRoom, "_free", lambda _: free)
        upkeep = make(hub, disk, "log.retain_bytes=64MiB")
        reserve = hub.log.directory / "reserve"
        outcomes: list[object] = []
        async with Running(upkeep):
            await until(reserve.exists)
            free = 1 << 20
            await until(lambda: "room" in upkeep.told())
            hub.submit(Batch(Run.of([b"x"]), origin="test"), outcomes.append)
            hub.submit(entry("hold", "job", hold(1)), outcomes.append)
            hub.turn(0)
            assert isinstance(outcomes[0], FullError)
            assert isinstance(outcomes[1], Batch)
            free = 1 << 30
            await until(lambda: upkeep.told() == {})
            hub.submit(Batch(Run.of([b"x"]), origin="test"), outcomes.append)
            hub.turn(0)
        assert isinstance(outcomes[2], Batch)

    async def test_the_reserve_makes_room_for_a_snapshot(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upkeep = make(hub, disk)
        reserve = hub.log.directory / "reserve"
        upkeep.room.look()
        assert reserve.stat().st_size > 0
        plainly = hub.log.write_snapshot

        def full(*arguments: Any) -> None:
            if reserve.exists():
                raise FullError("log", "no space left on device")
            plainly(*arguments)

        monkeypatch.setattr(hub.log, "write_snapshot", full)
        publish(hub, b"a")
        await upkeep._try_snapshot()
        assert hub.log.snapshot is not None
        assert upkeep.told() == {}


class TestSnapshots:
    async def test_a_state_that_cannot_be_written_is_told_and_tried_again(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upkeep = make(hub, disk)
        publish(hub, b"a")

        def too_long() -> dict[str, bytes]:
            raise OverflowError("can't serialize ints")

        with monkeypatch.context() as broken:
            broken.setattr(hub.state, "freeze", too_long)
            await upkeep._try_snapshot()
            assert "OverflowError" in upkeep.told()["snapshot"]
            assert hub.counters.get("upkeep_failures") == 1
        await upkeep._try_snapshot()
        assert upkeep.told() == {}
        assert hub.log.snapshot is not None

    async def test_the_state_and_where_it_was(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk)
        await upkeep.snapshot()
        assert hub.log.snapshot is None  # there is nothing to keep yet
        publish(hub, b"a")
        hub.submit(entry("hold", "job", hold(1)))
        hub.turn(0)
        await upkeep.snapshot()
        assert hub.log.snapshot is not None
        assert (hub.log.snapshot.op, hub.log.snapshot.seq) == (2, 1)
        kept = list((hub.log.directory).glob("*.snapshot"))
        await upkeep.snapshot()
        assert list((hub.log.directory).glob("*.snapshot")) == kept

    async def test_regularly(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        async with Running(make(hub, disk, "log.snapshot_seconds=0.01")):
            for seq in (1, 2):
                publish(hub, b"a")
                await until(lambda seq=seq: hub.log.snapshot is not None and hub.log.snapshot.seq == seq)

    async def test_side_by_side_the_newest_stays(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk)
        for _ in range(20):
            publish(hub, b"a")
            first = asyncio.ensure_future(upkeep.snapshot())
            await asyncio.sleep(0)
            publish(hub, b"b")
            await asyncio.gather(first, upkeep.snapshot())
            assert hub.log.snapshot is not None
            assert hub.log.snapshot.seq == hub.log.head

    async def test_a_disk_that_fails_is_tried_again(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise FullError("log", "no space left on device")

        publish(hub, b"a")
        async with Running(make(hub, disk, "log.snapshot_seconds=0.01")):
            with monkeypatch.context() as patch:
                patch.setattr(hub.log, "write_snapshot", full)
                await until(lambda: hub.counters.get("upkeep_failures") >= 2)
            await until(lambda: hub.log.snapshot is not None)

    async def test_a_restart_goes_on_from_it(self, tmp_path: Path) -> None:
        async with running_hub(tmp_path) as server:
            server.hub.submit(entry("hold", "job", hold(5)))
            await until(lambda: server.hub.state.holds == {"job": 5})
        async with running_hub(tmp_path) as server:
            assert server.hub.log.snapshot is not None
            assert server.hub.log.snapshot.seq == 0
            assert server.hub.state.holds == {"job": 5}


class TestRetention:
    async def segments(self, hub: Hub, upkeep: LogMaintenance, count: int, now: int = 0) -> None:
        """So many sealed segments of two messages each."""
        for _ in range(count):
            publish(hub, b"a", b"b", now=now)
            await upkeep.seal()

    async def test_by_bytes(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=1")
        await self.segments(hub, upkeep, 4)
        publish(hub, b"open")
        async with Running(upkeep):
            await until(lambda: hub.counters.get("trimmed") == 8)
        assert hub.log.first == 9
        assert [payload for batch in hub.log.scan(9) for payload in batch.run] == [b"open"]
        # What was removed can still be accounted for: a snapshot precedes it.
        assert hub.log.snapshot is not None
        assert hub.log.snapshot.seq >= 8

    async def test_not_below_the_limit(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=1MiB", "log.retain_seconds=off")
        await self.segments(hub, upkeep, 3)
        await upkeep._trim()
        assert hub.log.first == 1

    async def test_off(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=off")
        await self.segments(hub, upkeep, 3)
        await upkeep._trim()
        assert (hub.log.first, hub.log.snapshot) == (1, None)

    async def test_by_age(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        # Stamped in 1970, so old whatever the machine's clock says; the next ones are of far in the future.
        upkeep = make(hub, disk, "log.retain_bytes=off", "log.retain_seconds=60")
        await self.segments(hub, upkeep, 2, now=1)
        await self.segments(hub, upkeep, 1, now=1 << 52)
        await upkeep.snapshot()
        await upkeep._trim()
        assert hub.log.first == 5

    async def test_a_hold_delays_age(self, hub: Hub, disk: ThreadPoolExecutor) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=off", "log.retain_seconds=60")
        await self.segments(hub, upkeep, 4)
        self.keep(hub, "job", 4)
        await upkeep.snapshot()
        await upkeep._trim()
        assert hub.log.first == 3  # message 4 is in the segment that begins with 3
        assert hub.counters.get("holds_broken") == 0
        self.keep(hub, "job", None)
        await upkeep.snapshot()
        await upkeep._trim()
        assert hub.log.first == 9

    async def test_bytes_break_a_hold_and_say_so_once(
        self, hub: Hub, disk: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=1")
        self.keep(hub, "job", 2)
        self.keep(hub, "later", 100)
        await self.segments(hub, upkeep, 3)
        await upkeep._trim()
        assert hub.log.first > 6
        assert hub.counters.get("holds_broken") == hub.log.first - 2
        assert f"holds_broken: messages 2 to {hub.log.first - 1}: held by job" in caplog.text
        await self.segments(hub, upkeep, 1)
        await upkeep._trim()
        assert caplog.text.count("holds_broken") == 1

    async def test_a_hold_that_moved_on_can_be_broken_again(
        self, hub: Hub, disk: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
    ) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=1")
        for _ in range(2):
            self.keep(hub, "job", hub.log.head + 1)
            await self.segments(hub, upkeep, 2)
            await upkeep._trim()
        assert caplog.text.count("holds_broken") == 2

    async def test_a_full_disk_gets_room(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing can be sealed, and no snapshot taken: what the last one covers is removed all the same."""

        def full(*_: object) -> None:
            raise FullError("log", "no space left on device")

        upkeep = make(hub, disk, "log.retain_bytes=1")
        await self.segments(hub, upkeep, 3)
        await upkeep.snapshot()
        publish(hub, b"more")
        hub.log.rotate()
        publish(hub, b"open")
        for name in ("seal_next", "write_snapshot"):
            monkeypatch.setattr(hub.log, name, full)
        async with Running(upkeep):
            await until(lambda: hub.counters.get("trimmed") == 6)
        assert hub.log.first == 7

    async def test_a_disk_too_full_to_seal_is_trimmed_all_the_same(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only sealed segments used to go, and sealing needs room: a full disk locked itself up."""

        def full(*_: object) -> None:
            raise FullError("log", "no space left on device")

        monkeypatch.setattr(hub.log, "seal_next", full)
        upkeep = make(hub, disk, "log.retain_bytes=1")
        for _ in range(3):
            publish(hub, b"a", b"b")
            hub.log.rotate()
        async with Running(upkeep):
            await until(lambda: hub.log.first == 7)
            assert "no space left on device" in upkeep.told()["seal"]
            monkeypatch.undo()
            await until(lambda: upkeep.told() == {})
        hub.log.close()
        again = Log.open(hub.log.directory)
        assert (again.first, again.head) == (7, 6)
        again.close()

    async def test_a_clock_that_is_wrong_for_a_while_removes_nothing(
        self, hub: Hub, disk: ThreadPoolExecutor
    ) -> None:
        wall, uptime = 1 << 50, 0
        clock = SteadyClock(lambda: wall, lambda: uptime)
        settings = load(environ={}, sets=["log.retain_bytes=off", "log.retain_seconds=60"])
        upkeep = LogMaintenance(hub, settings, disk, clock=clock, trusted_after=0)
        await self.segments(hub, upkeep, 2, now=clock.now())
        await upkeep.snapshot()
        wall, uptime = wall + 25 * 3600 * SECOND, uptime + SECOND
        await upkeep._trim()
        assert (hub.log.first, "clock" in upkeep.told()) == (1, True)
        publish(hub, b"meanwhile", now=clock.now())
        assert hub.log.last_time == (1 << 50) + SECOND
        wall, uptime = wall - 25 * 3600 * SECOND + 4 * SECOND, uptime + 4 * SECOND
        await upkeep._trim()
        assert (hub.log.first, upkeep.told()) == (1, {})

    async def test_the_clock_is_looked_at_while_nothing_else_happens(
        self, hub: Hub, disk: ThreadPoolExecutor
    ) -> None:
        wall = 1 << 50
        clock = SteadyClock(lambda: wall, lambda: 0)
        settings = load(environ={}, sets=["log.retain_bytes=off", "log.retain_seconds=off"])
        async with Running(LogMaintenance(hub, settings, disk, clock=clock)):
            wall += 3600 * SECOND
            await until(lambda: clock.stepped)
            wall -= 3600 * SECOND
            await until(lambda: not clock.stepped)

    async def test_nothing_is_old_before_the_clock_can_be_trusted(
        self, hub: Hub, disk: ThreadPoolExecutor
    ) -> None:
        settings = load(environ={}, sets=["log.retain_bytes=off", "log.retain_seconds=60"])
        upkeep = LogMaintenance(hub, settings, disk)
        await self.segments(hub, upkeep, 2, now=1)
        await upkeep.snapshot()
        await upkeep._trim()
        assert hub.log.first == 1

    async def test_a_hold_that_is_acknowledged_is_kept(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is to go is decided at once, however long its files take to remove."""
        removing, goes_on = threading.Event(), threading.Event()

        def slowly(gone: list[SealedSegment]) -> None:
            removing.set()
            assert goes_on.wait(30)
            remove_files(gone)

        monkeypatch.setattr(upkeeps, "remove_files", slowly)
        upkeep = make(hub, disk, "log.retain_bytes=off", "log.retain_seconds=60")
        await self.segments(hub, upkeep, 2, now=1)
        await self.segments(hub, upkeep, 1, now=1 << 52)
        await upkeep.snapshot()
        trimming = asyncio.ensure_future(upkeep._trim())
        await until(removing.is_set)
        # Who asks for a hold is judged by this.
        assert hub.log.first == 5
        goes_on.set()
        await trimming
        assert hub.log.first == 5

    async def test_while_the_hub_runs(self, start: Start, dial: Dial) -> None:
        server: Server = await start(
            "log.segment_seconds=0.02", "log.retain_bytes=1", "log.snapshot_seconds=0.02"
        )
        publisher = await dial(server)
        await publisher.send(push(b"a") + push(b"b"))
        await until(lambda: server.hub.log.first == 3)
        subscriber = await dial(server)
        await subscriber.subscribe()
        await publisher.send(push(b"c"))
        assert await subscriber.deliver() == (3, b"c")
        await until(lambda: server.hub.counters.get("trimmed") == 3)

    def keep(self, hub: Hub, name: str, seq: int | None) -> None:
        hub.submit(entry("hold", name, hold(seq)))
        hub.turn(0)


class TestBusy:
    """Sealing leaves the machine to messages while many come."""

    async def test_sealing_waits_while_messages_come_fast(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upkeep = make(hub, disk)
        assert not upkeep._too_busy_to_seal()
        monkeypatch.setattr(upkeeps, "_BUSY", 0)
        publish(hub, b"x" * 1000)
        assert upkeep._too_busy_to_seal()
        assert upkeep._too_busy_to_seal(), "more may come"
        monkeypatch.setattr(upkeeps, "_CALM", 0.0)
        assert not upkeep._too_busy_to_seal(), "nothing more has come"

    async def test_not_when_much_is_waiting(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upkeep = make(hub, disk)
        monkeypatch.setattr(upkeeps, "_BUSY", 0)
        monkeypatch.setattr(upkeeps, "_MAX_BACKLOG", 0)
        publish(hub, b"x" * 1000)
        assert upkeep._too_busy_to_seal(), "the open tail is not waiting"
        hub.log.rotate()
        publish(hub, b"x" * 1000)
        assert not upkeep._too_busy_to_seal()

    async def test_not_when_retention_needs_sealed_segments(
        self, hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upkeep = make(hub, disk, "log.retain_bytes=500")
        monkeypatch.setattr(upkeeps, "_BUSY", 0)
        publish(hub, b"x" * 1000)
        assert not upkeep._too_busy_to_seal()


async def test_a_consumer_that_nobody_uses_is_removed_by_the_age_of_what_waits(
    hub: Hub, disk: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unused, "GRACE_SECONDS", 0.0)
    known = Consumers()
    known.apply("old", create("old", Terms(), 1).run[0], 0, 1)
    known.apply("new", create("new", Terms(), 3).run[0], 0, 2)
    publish(hub, b"a", b"b", now=1_000_000)
    day = 86_400 * SECOND
    publish(hub, b"c", now=200 * day)
    clock = machine_clock()
    monkeypatch.setattr(clock, "now", lambda: 200 * day)
    upkeep = LogMaintenance(hub, load(environ={}), disk, consumers=known, clock=clock)
    removed: list[str] = []
    monkeypatch.setattr(hub, "submit", lambda batch: removed.append(batch.topic))
    await upkeep.tidy()
    assert removed == ["consumer/old"]
    assert hub.counters.get("consumers_expired") == 1


async def test_an_index_of_topics_that_is_missing_is_written(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as server:
        publish(server.hub, b"x")
        assert await server.maintenance.seal() == 1
        segment = server.hub.log.segments[0]
        assert isinstance(segment, SealedSegment)
        path = segment.topics_path
    good = path.read_bytes()
    path.unlink()
    async with running_hub(tmp_path):
        await until(path.exists)
    assert path.read_bytes() == good


async def test_nothing_is_removed_while_the_archive_is_gone(tmp_path: Path, disk: ThreadPoolExecutor) -> None:
    log = write_log(tmp_path / "log", 3_000)
    place = tmp_path / "archive"
    archive(log, place, 3_000)
    hub = Hub(log, 7, max_uncommitted=1 << 20, state=StateParts().state())
    past = ArchivedPast(log, str(place))
    upkeep = LogMaintenance(hub, load(environ={}, sets=["log.retain_bytes=1"]), disk, past=past)
    await upkeep._look(past)
    # What was compared then is the only copy now.
    away = place.rename(tmp_path / "away")
    await upkeep._look(past)
    await upkeep._trim()
    assert log.first_here == 1
    assert "there is none any more" in upkeep.problems["archive"]
    away.rename(place)
    await upkeep._look(past)
    await upkeep._trim()
    assert log.first_here == 3_001
    assert "archive" not in upkeep.problems
    log.close()
