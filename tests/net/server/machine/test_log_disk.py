"""Appends that are handed to a thread: the loop waits a moment, and whoever appends learns how it ended, once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.net.raw import until

from headrace.errors import HeadraceError, StorageError
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.message import Batch, Run
from headrace.net.server.log.maintenance import GroupCommit
from headrace.net.server.machine import log_disk
from headrace.net.server.machine.log_disk import LogDisk, let_append


class LateWriter:
    """A writer whose work is never over in time, and over right after: the worst moment for whoever waits."""

    def submit(self, work: Callable[[], Any], /) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except StorageError as error:
            future.set_exception(error)
        return future

    def wait(self, future: Future[Any], seconds: float) -> bool:
        return False

    def shutdown(self, wait: bool = True) -> None: ...


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = Log.open(tmp_path / "log", fsync="always")
    yield opened
    opened.close()


@pytest.mark.parametrize("commits", ["at once", "after a sync"])
async def test_an_append_that_ends_just_too_late_is_told_once(log: Log, commits: str) -> None:
    hub = Hub(log, 7, max_uncommitted=1 << 20)
    with ThreadPoolExecutor(1) as threads:
        if commits == "after a sync":
            hub.commit_by(GroupCommit(hub, threads))
        let_append(hub, LogDisk(log, threads, LateWriter()))
        told: list[int] = []
        woken = asyncio.Event()
        hub.wake = woken.set
        for number in range(1, 6):
            hub.submit(Batch(Run.one(b"%d" % number), origin="test"), lambda done: told.append(done.last))
            hub.turn(number)
            assert hub.paused
            # What comes meanwhile waits for its turn, and no sync commits what the hub does not know of yet.
            await asyncio.get_running_loop().run_in_executor(threads, log.sync)
            while hub.paused or len(told) < number:  # noqa: ASYNC110 -- the hub tells nobody
                await asyncio.sleep(0)
            assert told == list(range(1, number + 1))
    assert [batch.last for batch in log.scan(1)] == told


async def test_one_that_fails_late_is_refused(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(log, 7, max_uncommitted=1 << 20)
    with ThreadPoolExecutor(1) as threads:
        disk = LogDisk(log, threads, LateWriter())
        let_append(hub, disk)

        def fails(_: object) -> None:
            raise StorageError("the disk is on fire")

        monkeypatch.setattr(log, "append", fails)
        told: list[Any] = []
        hub.submit(Batch(Run.one(b"x"), origin="test"), told.append)
        hub.turn(1)
        while hub.paused:  # noqa: ASYNC110 -- the hub tells nobody
            await asyncio.sleep(0)
        assert [str(error) for error in told] == ["the disk is on fire"]
        assert disk.slow


async def test_a_frontend_awaits_an_append_that_ends_late(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as threads:
        disk = LogDisk(log, threads, LateWriter())
        await disk.appended([Batch(Run.one(b"x"), origin="test").numbered(0, 1, 1, 7)])
        assert log.tail == 1

        def fails(_: object) -> None:
            raise StorageError("the disk is on fire")

        monkeypatch.setattr(log, "append", fails)
        with pytest.raises(StorageError, match="on fire"):
            await disk.appended([Batch(Run.one(b"y"), origin="test").numbered(0, 2, 2, 7)])


@pytest.mark.parametrize("commits", ["at once", "after a sync"])
async def test_what_is_written_while_a_sync_fails_is_refused(log: Log, commits: str) -> None:
    """Nobody would answer its publisher any more, or somebody would acknowledge it."""
    hub = Hub(log, 7, max_uncommitted=1 << 20)
    with ThreadPoolExecutor(1) as threads:
        if commits == "after a sync":
            hub.commit_by(GroupCommit(hub, threads))
        let_append(hub, LogDisk(log, threads, LateWriter()))
        told: list[Batch | StorageError] = []
        hub.submit(Batch(Run.one(b"a"), origin="test"), told.append)
        hub.turn(1)
        assert hub.paused
        failure = StorageError("the disk failed to sync")
        log.failure = str(failure)
        hub.fail(failure)
        await until(lambda: not hub.paused)
        assert told == [failure]
        assert (log.head, hub.congested) == (0, False)
        log.failure = None


async def test_an_append_without_memory_is_refused_and_the_next_is_taken(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(log, 7, max_uncommitted=1 << 20)
    with ThreadPoolExecutor(1) as threads:
        let_append(hub, LogDisk(log, threads, LateWriter()))
        told: list[Batch | StorageError] = []
        write, calls = os.pwritev, 0

        def half(fd: int, pieces: list[Any], offset: int) -> int:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise MemoryError
            return write(fd, [bytes(pieces[0])[:40]], offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", half)
            hub.submit(Batch(Run.one(b"x" * 100), origin="test"), told.append)
            hub.turn(1)
            await until(lambda: not hub.paused)
        [refused] = told
        assert isinstance(refused, StorageError)
        assert "not enough memory" in str(refused)
        hub.submit(Batch(Run.one(b"y"), origin="test"), told.append)
        hub.turn(2)
        await until(lambda: not hub.paused)
        assert log.head == 1
        [kept] = log.read(1, 1)
        assert list(kept.run) == [b"y"]


async def test_after_an_append_on_the_loop_that_took_long_the_next_is_handed_over(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may make writers wait, as it does when too much is unwritten: the loop bears that once."""
    disk_clock = [0.0]
    monkeypatch.setattr(log_disk, "monotonic", lambda: disk_clock[0])
    appended = os.pwritev

    def slowly(*arguments: Any) -> int:
        disk_clock[0] += 2 * log_disk.PATIENCE
        return appended(*arguments)

    monkeypatch.setattr(os, "pwritev", slowly)
    with ThreadPoolExecutor(1) as threads:
        disk = LogDisk(log, threads, LateWriter(), alone=True)
        ended: list[HeadraceError | None] = []
        assert disk.append([Batch(Run.one(b"one"), first=1, origin="test")], ended.append)
        assert disk.slow
        assert not disk.append([Batch(Run.one(b"two"), first=2, origin="test")], ended.append)
        await until(lambda: bool(ended))
        # A second later it is trusted again.
        disk_clock[0] += log_disk.WARY_SECONDS
        disk.look(disk_clock[0])
        monkeypatch.setattr(os, "pwritev", appended)
        assert disk.append([Batch(Run.one(b"three"), first=3, origin="test")], ended.append)
        assert not disk.slow
    assert log.tail == 3


def test_a_node_appends_on_the_loop_only_while_its_disk_ends_syncs(log: Log) -> None:
    """A node's heartbeats go on if its disk hangs: it does not wait for a disk of which it has not heard lately."""
    handed: list[int] = []

    class PromptWriter(LateWriter):
        def submit(self, work: Callable[[], Any], /) -> Future[Any]:
            handed.append(log.tail + 1)
            return super().submit(work)

        def wait(self, future: Future[Any], seconds: float) -> bool:
            return True

    with ThreadPoolExecutor(1) as threads:
        disk = LogDisk(log, threads, PromptWriter())

        def append() -> None:
            assert disk.append(
                [Batch(Run.one(b"one"), first=log.tail + 1, origin="test")], lambda _error: None
            )

        append()
        disk.look(1.0)
        append()
        log.sync()
        disk.look(2.0)
        append()  # message 3, and the only one that the loop writes itself
        with log._syncing:
            append()
        disk.look(3.0)
        append()
    assert handed == [1, 2, 4, 5]
