from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.log.content import (
    SOAK,
    append,
    batch,
    check_operations,
    columns,
    content_of,
    entries,
    flat,
    messages_of,
    operations,
    restore,
    seal_all,
)
from tests.log.interruption import Interruption, PowerFailureError

from headrace.errors import StorageError, UsageError
from headrace.log import Log, tail_writer
from headrace.message import Batch, Message, Run

GROUPS = [
    [entries(0, b"1", time=1), batch(1, b"a", b"b", time=1)],
    [
        batch(3, b"c", time=2),
        entries(3, b"2", b"3", time=3),
        entries(3, b"4", time=3),
        batch(4, b"d", time=3),
    ],
    [entries(4, b"5", b"6", time=3)],
    [batch(5, b"e", b"f", time=4, topic="t", columns=columns(time=[4, 9]))],
    [batch(7, b"g" * 300, time=9), entries(7, b"7", time=9, columns=columns(time=[10]))],
]
"""Appends, of one batch and of several, messages and entries; with times of their own."""

MESSAGES, TAIL = 7, 14
"""The last message and the last operation."""


def build(directory: Path, *, rotate: tuple[int, ...] = (), **options: Any) -> Log:
    """A log with everything appended and nothing committed, in a new file after each append of ``rotate``."""
    log = Log.open(directory, **options)
    for place, group in enumerate(GROUPS):
        log.append(group)
        if place in rotate:
            log.rotate()
    return log


def everything(log: Log) -> list[tuple[int, Message]]:
    """What was appended, committed or not, by operation."""
    found: list[tuple[int, Message]] = []
    while batches := log.read_ops(len(found) + 1, uncommitted=True):
        found += operations(batches)
    return found


EXPECTED = list(enumerate(flat(itertools.chain.from_iterable(GROUPS)), 1))


def messages_upto(op: int) -> int:
    """The newest message at an operation."""
    return len(messages_of(EXPECTED[:op]))


@pytest.mark.parametrize("last", range(TAIL + 1))
@pytest.mark.parametrize("rotate", [(), (0,), (1, 2), (0, 1, 2, 3, 4)])
class TestEveryPlace:
    def test_what_is_before_stays_and_the_log_goes_on(
        self, tmp_path: Path, last: int, rotate: tuple[int, ...]
    ) -> None:
        log = build(tmp_path, rotate=rotate)
        log.commit(last // 2)
        log.cut_back(last)
        assert (log.tail_op, log.head_op) == (last, last // 2)
        assert (log.tail, log.head) == (messages_upto(last), messages_upto(last // 2))
        assert everything(log) == EXPECTED[:last]
        assert log.last_time == (EXPECTED[last - 1][1].time if last else 0)
        seq = log.tail
        following = [
            entries(seq, b"other", time=log.last_time, topic="t"),
            batch(seq + 1, b"other", b"next", time=log.last_time, topic="t"),
            entries(seq + 2, b"after", time=log.last_time, topic="t"),
        ]
        log.append(following)
        log.commit(log.tail_op)
        expected = EXPECTED[:last] + list(enumerate(flat(following), last + 1))
        assert operations(log.scan_ops(1)) == expected
        assert flat(log.scan(1)) == messages_of(expected)
        log.close()
        again = Log.open(tmp_path)
        assert again.torn is None
        assert (again.tail, again.tail_op) == (seq + 2, last + 4)
        check_operations(again, expected)
        seal_all(again)
        check_operations(again, expected)
        assert flat(again.scan(1)) == messages_of(expected)
        again.close()

    def test_it_lasts(self, tmp_path: Path, last: int, rotate: tuple[int, ...]) -> None:
        log = build(tmp_path, rotate=rotate, fsync="always")
        log.cut_back(last)
        left = content_of(tmp_path)
        log.close()
        restore(tmp_path, left)
        again = Log.open(tmp_path, committed=0)
        assert (again.head_op, again.tail_op, again.torn) == (0, last, None)
        assert (again.head, again.tail) == (0, messages_upto(last))
        assert everything(again) == EXPECTED[:last]
        again.close()


@pytest.mark.parametrize("rotate", [(), (0,), (1, 2), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("last", range(TAIL) if SOAK else [0, 1, 3, 5, 7, 9, 12, 13])
def test_a_crash_at_any_step_leaves_no_less_and_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, rotate: tuple[int, ...]
) -> None:
    """Each step that changes the directory is the last one, in turn."""
    for step in itertools.count():
        directory = tmp_path / str(step)
        log = build(directory, rotate=rotate)
        fail = Interruption(step)
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fail(os.ftruncate))
            patch.setattr(os, "fsync", fail(os.fsync))
            patch.setattr(os, "pread", fail(os.pread))
            patch.setattr(Path, "unlink", fail(Path.unlink))
            patch.setattr(Path, "rename", fail(Path.rename))
            patch.setattr(tail_writer, "sync_path", fail(tail_writer.sync_path))
            try:
                log.cut_back(last)
            except PowerFailureError:
                failed = True
            else:
                failed = False
            left = content_of(directory)
        assert log.lock is not None
        log.lock.release()
        restore(directory, left)
        again = Log.open(directory, committed=0)
        assert last <= again.tail_op <= TAIL
        assert everything(again) == EXPECTED[: again.tail_op]
        again.cut_back(last)
        assert everything(again) == EXPECTED[:last]
        again.close()
        if not failed:
            assert step > 1
            return


@pytest.mark.parametrize("rotate", [(), (0,), (1, 2), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("last", [0, 1, 5, 7, 12])
def test_after_a_failure_at_any_step_the_log_is_what_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, rotate: tuple[int, ...]
) -> None:
    for step in itertools.count():
        directory = tmp_path / str(step)
        log = build(directory, rotate=rotate, committed=0)
        fail = Interruption(step, OSError(errno.ENOSPC, "no room"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fail(os.ftruncate))
            patch.setattr(os, "fsync", fail(os.fsync))
            patch.setattr(Path, "rename", fail(Path.rename))
            patch.setattr(tail_writer, "sync_path", fail(tail_writer.sync_path))
            try:
                log.cut_back(last)
            except StorageError:
                failed = True
            else:
                failed = False
        assert last <= log.tail_op <= TAIL
        kept = everything(log)
        assert kept == EXPECTED[: log.tail_op]
        # Once a sync of messages has failed, so does every later one, and nothing more is appended.
        later = [b"later"] if log.failure is None else []
        with contextlib.nullcontext() if later else pytest.raises(StorageError):
            append(log, b"later")
        log.commit(log.tail_op)
        with contextlib.nullcontext() if later else pytest.raises(StorageError):
            log.close()
        again = Log.open(directory)
        assert everything(again)[: len(kept)] == kept
        assert [message.payload for _, message in everything(again)[len(kept) :]] == later
        again.close()
        if not failed:
            return


def test_what_is_committed_is_read_meanwhile(tmp_path: Path) -> None:
    log = Log.open(tmp_path, fsync="never", committed=0)
    for number in range(1, 6):
        log.append([batch(number, b"x", topic=str(number % 2))])
    log.commit(5)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            assert [message.payload for message in flat(log.read(5))] == [b"x"]
            assert len(log.read_ops(5)) == 1
            assert (log.seq_of(4), log.op_of(5), log.reach(5, 10), log.seq_at(0)) == (4, 5, 5, 1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for _ in range(1500):
                for number in (6, 7, 8):
                    log.append([batch(number, b"y")])
                log.cut_back(5)
        finally:
            done.set()
            sys.setswitchinterval(before)
        for reader in readers:
            reader.result()
    log.close()


class TestRefusals:
    def test_what_is_committed_stays(self, tmp_path: Path) -> None:
        log = build(tmp_path)
        log.commit(6)
        before = content_of(tmp_path)
        with pytest.raises(UsageError, match="cannot cut back to 5: 6 is committed"):
            log.cut_back(5)
        assert content_of(tmp_path) == before
        log.close()

    def test_what_is_sealed_stays(self, tmp_path: Path) -> None:
        log = build(tmp_path)
        log.commit(log.tail_op)
        seal_all(log)
        log.head_op = 0
        with pytest.raises(UsageError, match="operation 4 is sealed"):
            log.cut_back(3)
        log.close()

    def test_a_log_open_for_reading(self, tmp_path: Path) -> None:
        log = build(tmp_path)
        with pytest.raises(UsageError, match="reading only"):
            Log.open(tmp_path, read_only=True).cut_back(3)
        log.close()

    def test_a_disk_that_refuses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = build(tmp_path)

        def refuse(*_: Any) -> None:
            raise OSError(5, "I/O error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", refuse)
            with pytest.raises(StorageError):
                log.cut_back(3)
        assert (log.tail_op, log.tail) == (TAIL, MESSAGES)
        log.cut_back(3)
        assert everything(log) == EXPECTED[:3]
        log.close()


def test_nothing_to_cut(tmp_path: Path) -> None:
    log = build(tmp_path)
    before = content_of(tmp_path)
    log.cut_back(TAIL)
    log.cut_back(TAIL + 5)
    assert content_of(tmp_path) == before
    log.close()


def test_what_follows_a_cut_is_synced_anew(tmp_path: Path) -> None:
    log = build(tmp_path)
    log.sync()
    log.cut_back(3)
    assert not log.dirty
    log.append([batch(3, b"other", time=log.last_time)])
    assert log.dirty
    assert log.sync() == 4
    log.close()


def test_readers_keep_what_they_read(tmp_path: Path) -> None:
    log = build(tmp_path)
    log.commit(5)
    scan = log.scan_ops(1, max_bytes=1)
    first = next(scan)
    log.cut_back(5)
    assert operations([first, *scan]) == EXPECTED[:5]
    log.close()


def test_sealing_goes_on_after_a_cut(tmp_path: Path) -> None:
    log = build(tmp_path, rotate=(0, 1, 2))
    log.commit(5)
    log.cut_back(5)
    append(log, b"more")
    seal_all(log)
    assert operations(log.scan_ops(1))[:5] == EXPECTED[:5]
    log.close()


class TestCommittedAtOpening:
    @pytest.mark.parametrize(("known", "head"), [(None, TAIL), (0, 0), (3, 3), (4, 3), (99, TAIL)])
    def test_what_is_known(self, tmp_path: Path, known: int | None, head: int) -> None:
        build(tmp_path).close()
        log = Log.open(tmp_path, committed=known)
        assert (log.head_op, log.head) == (head, messages_upto(head))
        log.close()

    def test_snapshots_and_sealed_segments_tell_more(self, tmp_path: Path) -> None:
        log = build(tmp_path)
        log.commit(3)
        log.write_snapshot(3, 2, {})
        log.close()
        log = Log.open(tmp_path, committed=0)
        assert (log.head_op, log.head) == (3, 2)
        log.commit(TAIL)
        seal_all(log)
        append(log, b"more")
        log.close()
        log = Log.open(tmp_path, committed=0)
        assert (log.head_op, log.tail_op) == (TAIL, TAIL + 1)
        assert (log.head, log.tail) == (MESSAGES, MESSAGES + 1)
        log.close()


def test_a_cut_whose_sync_fails_makes_every_later_one_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have forgotten what was appended before: nothing more is promised."""
    log = Log.open(tmp_path, fsync="always", committed=0)
    for seq in (1, 2):
        log.append([Batch(Run.of([b"x"]), first=seq, time=seq, origin="tube")])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "it is broken")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(StorageError):
            log.cut_back(1)
    assert "may not be on the disk" in str(log.failure)
    with pytest.raises(StorageError, match="may not be on the disk"):
        log.sync()
    with pytest.raises(StorageError):
        log.close()
