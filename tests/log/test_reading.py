from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.log.content import append, batch, flat, seal_all

from headrace.errors import DamagedError, StorageError, TrimmedError
from headrace.log import Log
from headrace.log.sealed.segment import SealedSegment
from headrace.message import SCHEMA


class TestReading:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        """Messages 1 to 9: sealed, rotated and open, three each."""
        log = Log.open(tmp_path)
        append(log, b"1", b"2", b"3", time=10, origin="tube")
        seal_all(log)
        append(log, b"4", b"5", b"6", time=20, number=5)
        log.rotate()
        append(log, b"7", b"8", b"9", time=30, topic="t")
        return log

    def test_every_range(self, log: Log) -> None:
        whole = flat(log.scan(1))
        assert [message.payload for message in whole] == [b"%d" % n for n in range(1, 10)]
        for first in range(1, 12):
            for last in range(12):
                assert flat(log.scan(first, last)) == whole[first - 1 : last]
                for most in (0, 1, 2, 1000):
                    read = flat(log.read(first, last, most))
                    assert read == whole[first - 1 : last][: len(read)]
                    assert bool(read) == (first <= min(last, 9))
        log.close()

    def test_a_scan_ends_at_the_head_it_began_with(self, log: Log) -> None:
        scan = log.scan(8)
        assert next(scan).last == 9
        append(log, b"10")
        assert list(scan) == []
        log.close()

    def test_times(self, log: Log) -> None:
        log.append([batch(10, time=40)])
        assert (log.first_time(), log.last_time) == (10, 40)
        for time, expected in ((0, 1), (10, 1), (11, 4), (20, 4), (21, 7), (30, 7), (31, 10), (41, 10)):
            assert log.seq_at(time) == expected
        log.close()

    def test_before_the_beginning(self, log: Log) -> None:
        with pytest.raises(TrimmedError, match="messages 0 to 9 are no longer kept; the oldest is 1"):
            log.read(0)
        log.close()

    def test_one_schema_wherever_it_lies(self, log: Log) -> None:
        for first in (1, 4, 7):
            [read] = log.read(first)
            assert read.to_arrow().schema.equals(SCHEMA)
        table = pa.Table.from_batches([each.to_arrow() for each in log.scan(1)])
        assert table.column("seq").to_pylist() == list(range(1, 10))
        log.close()

    def test_payloads_are_copied_once(self, log: Log) -> None:
        for first in (4, 7):
            [read] = log.read(first)
            base = read.run.data.base
            assert isinstance(base, bytes)
            assert np.shares_memory(read.run.offsets, np.frombuffer(base, np.uint8))
            column = read.to_arrow().column("payload")
            assert column.buffers()[2].address == read.run.data.ctypes.data
        [sealed] = log.read(1)
        segment = log.segments[0]
        assert isinstance(segment, SealedSegment)
        assert sealed.run.data.ctypes.data == segment.rows(0).column("payload").buffers()[2].address
        log.close()

    def test_a_file_that_vanished_is_damage(self, log: Log) -> None:
        segment = log.segments[0]
        segment.path.unlink()
        for read in (lambda: log.read(2), lambda: log.seq_at(5)):
            with pytest.raises(DamagedError, match="the file is gone") as caught:
                read()
            assert (caught.value.first, caught.value.last) == (1, 3)
        assert len(flat(log.scan(4))) == 6
        log.close()

    def test_a_disk_that_fails(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*_: object) -> bytes:
            raise OSError(errno.EIO, "")

        monkeypatch.setattr(os, "pread", failing)
        with pytest.raises(StorageError, match="input/output error"):
            log.read(7)
        monkeypatch.undo()
        log.close()


class TestReach:
    @pytest.mark.parametrize("sealed", [0, 1, 3])
    def test_so_many_bytes_reach_so_far(self, tmp_path: Path, sealed: int) -> None:
        """Whole frames or record batches of about the bytes asked for, whatever segments they lie in."""
        log = Log.open(tmp_path)
        for _ in range(3):
            for _ in range(10):
                append(log, *[bytes(100)] * 10)
            log.rotate()
        for _ in range(sealed):
            assert log.seal_next() is not None
        assert log.reach(1, log.size) == log.head == 300
        for first in (1, 5, 101, 250, 300):
            reached = [log.reach(first, size) for size in (1, 1500, 6000, 1 << 40)]
            assert reached == sorted(reached)
            assert reached[0] >= first
            assert reached[-1] == 300
        at, steps = 1, []
        while at <= 300:
            last = log.reach(at, 2500)
            steps.append(last - at + 1)
            at = last + 1
        assert sum(steps) == 300
        if not sealed:
            # A frame of ten has a little more than 1,000 bytes.
            assert set(steps) == {20}
        log.close()

    def test_it_does_not_reach_past_the_head(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.append([batch(1, b"a"), batch(2, b"b"), batch(3, b"c")])
        log.commit(2)
        assert log.reach(1, 1 << 20) == 2
        assert log.reach(3, 1 << 20) == 2
        log.close()
