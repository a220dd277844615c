"""Appends that are handed to a thread: the loop waits a moment, and whoever appends learns how it ended, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import StorageError
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.message import Batch, Run
from headrace.net.server.log.maintenance import GroupCommit
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
