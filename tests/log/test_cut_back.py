from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from tests.log.content import SOAK, append, batch, columns, content_of, flat, restore, seal_all

from headrace.errors import StorageError, UsageError
from headrace.log import Log, tail, tail_writer

GROUPS = [
    [batch(1, b"a", b"b", b"c", time=1)],
    [batch(4, b"d", time=2), batch(5, b"e", b"f", time=3), batch(7, b"g", time=3)],
    [batch(8, b"h", b"i", time=4, topic="t", columns=columns(time=[4, 9]))],
    [batch(10, b"j" * 300, time=9)],
]
"""Appends, of one batch and of several; with times of their own."""

TAIL = 10


def build(directory: Path, *, rotate: tuple[int, ...] = (), **options: Any) -> Log:
    """A log with everything appended and nothing committed, in a new file after each append of ``rotate``."""
    log = Log.open(directory, **options)
    for place, group in enumerate(GROUPS):
        log.append(group)
        if place in rotate:
            log.rotate()
    return log


def everything(log: Log) -> list[Any]:
    found = []
    while batches := log.read_ops(len(found) + 1, uncommitted=True):
        found += flat(batches)
    return found


EXPECTED = flat(itertools.chain.from_iterable(GROUPS))


@pytest.mark.parametrize("last", range(TAIL + 1))
@pytest.mark.parametrize("rotate", [(), (0,), (1, 2), (0, 1, 2, 3)])
class TestEveryPlace:
    def test_what_is_before_stays_and_the_log_goes_on(
        self, tmp_path: Path, last: int, rotate: tuple[int, ...]
    ) -> None:
        log = build(tmp_path, rotate=rotate)
        log.commit(last // 2)
        log.cut_back(last)
        assert (log.tail, log.head) == (last, last // 2)
        assert everything(log) == EXPECTED[:last]
        assert log.last_time == (EXPECTED[last - 1].time if last else 0)
        following = batch(last + 1, b"other", b"next", time=log.last_time)
        log.append([following])
        log.commit(log.tail_op)
        assert flat(log.scan(1)) == EXPECTED[:last] + flat([following])
        log.close()
        again = Log.open(tmp_path)
        assert again.torn is None
        assert flat(again.scan(1)) == EXPECTED[:last] + flat([following])
        again.close()

    def test_it_lasts(self, tmp_path: Path, last: int, rotate: tuple[int, ...]) -> None:
        log = build(tmp_path, rotate=rotate, fsync="always")
        log.cut_back(last)
        left = content_of(tmp_path)
        log.close()
        restore(tmp_path, left)
        again = Log.open(tmp_path, committed=0)
        assert (again.head, again.tail, again.torn) == (0, last, None)
        assert everything(again) == EXPECTED[:last]
        again.close()


class _PowerFailureError(Exception):
    pass


@pytest.mark.parametrize("rotate", [(), (0,), (1, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("last", range(TAIL) if SOAK else [0, 2, 3, 5, 7, 9])
def test_a_crash_at_any_step_leaves_no_less_and_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, rotate: tuple[int, ...]
) -> None:
    """Each step that changes the directory is the last one, in turn."""
    for step in itertools.count():
        directory = tmp_path / str(step)
        log = build(directory, rotate=rotate)
        steps = itertools.count()

        def fail(original: Any, steps: Any = steps, step: int = step) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                if next(steps) == step:
                    raise _PowerFailureError
                return original(*args, **kwargs)

            return run

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", fail(os.ftruncate))
            patch.setattr(os, "fsync", fail(os.fsync))
            patch.setattr(os, "pread", fail(os.pread))
            patch.setattr(Path, "unlink", fail(Path.unlink))
            patch.setattr(Path, "rename", fail(Path.rename))
            patch.setattr(tail_writer, "sync_directory", fail(tail_writer.sync_directory))
            patch.setattr(tail, "sync_directory", fail(tail.sync_directory))
            try:
                log.cut_back(last)
            except _PowerFailureError:
                failed = True
            else:
                failed = False
            left = content_of(directory)
        assert log.lock is not None
        log.lock.release()
        restore(directory, left)
        again = Log.open(directory, committed=0)
        assert last <= again.tail <= TAIL
        assert everything(again) == EXPECTED[: again.tail]
        again.cut_back(last)
        assert everything(again) == EXPECTED[:last]
        again.close()
        if not failed:
            assert step > 1
            return


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
        assert log.tail == TAIL
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
    log.append([batch(4, b"other", time=log.last_time)])
    assert log.dirty
    assert log.sync() == 4
    log.close()


def test_readers_keep_what_they_read(tmp_path: Path) -> None:
    log = build(tmp_path)
    log.commit(5)
    scan = log.scan(1, max_bytes=1)
    first = next(scan)
    log.cut_back(5)
    assert flat([first, *scan]) == EXPECTED[:5]
    log.close()


def test_sealing_goes_on_after_a_cut(tmp_path: Path) -> None:
    log = build(tmp_path, rotate=(0, 1, 2))
    log.commit(5)
    log.cut_back(5)
    append(log, b"more")
    seal_all(log)
    assert flat(log.scan(1))[:5] == EXPECTED[:5]
    log.close()


class TestCommittedAtOpening:
    @pytest.mark.parametrize(("known", "head"), [(None, TAIL), (0, 0), (4, 4), (99, TAIL)])
    def test_what_is_known(self, tmp_path: Path, known: int | None, head: int) -> None:
        build(tmp_path).close()
        log = Log.open(tmp_path, committed=known)
        assert log.head == head
        log.close()

    def test_snapshots_and_sealed_segments_tell_more(self, tmp_path: Path) -> None:
        log = build(tmp_path)
        log.commit(3)
        log.write_snapshot(3, 3, {})
        log.close()
        log = Log.open(tmp_path, committed=0)
        assert log.head == 3
        log.commit(TAIL)
        seal_all(log)
        append(log, b"more")
        log.close()
        log = Log.open(tmp_path, committed=0)
        assert (log.head, log.tail) == (TAIL, TAIL + 1)
        log.close()
