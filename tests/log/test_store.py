from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.log.content import append, append_entries, batch, columns, content_of, flat, seal_all

from headrace.errors import ClosedError, DamagedError, FullError, StorageError, TrimmedError, UsageError
from headrace.log import Log, maintained, store
from headrace.log.reading import Segment
from headrace.log.sealed.segment import SealedSegment
from headrace.log.snapshots import snapshot
from headrace.log.tail import TailFile
from headrace.message import MAX_SEQUENCE, SCHEMA, Batch


class TestAppending:
    def test_tail_and_head(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        assert (log.first, log.head, log.tail) == (1, 0, 0)
        log.append([batch(1, b"a", b"b"), batch(3, b"c")])
        assert (log.head, log.tail) == (0, 3)
        assert log.read(1) == []
        assert list(log.scan(1)) == []
        log.commit(2)
        assert [message.payload for message in flat(log.scan(1))] == [b"a", b"b"]
        log.commit(3)
        log.commit(1)
        assert log.head == 3
        with pytest.raises(UsageError, match="cannot commit 4: the tail is 3"):
            log.commit(4)
        log.close()

    def test_a_note_of_what_is_committed_may_end_within_a_group_and_what_is_shown_does_not(
        self, tmp_path: Path
    ) -> None:
        """A node notes no more than is synced, and a group may be synced in parts."""
        log = Log.open(tmp_path)
        append(log, b"one", b"two")
        log.append([replace(batch(3, b"a"), tied=True), replace(batch(4, b"b"), tied=True)])
        log.append([replace(batch(5, b"c", b"d"), tied=True)])
        log.append([replace(batch(7, b"mark"), tied=False), replace(batch(8, b"e"), tied=False)])
        log.close()
        shown = []
        for noted in range(10):
            log = Log.open(tmp_path, committed=noted)
            shown.append(log.head_op)
            log.close()
        assert shown == [0, 1, 2, 2, 2, 2, 2, 7, 8, 8]

    @pytest.mark.parametrize(
        "batches",
        [
            [batch(2)],
            [batch(4)],
            [batch(3, time=4)],
            [batch(3, time=5), batch(3, time=5)],
            [batch(3, time=6), batch(4, time=5)],
            [batch(3, columns=columns(time=[4]))],
            [batch(3, b"", b"", columns=columns(time=[6, 5]))],
            [batch(3, time=9, columns=columns(time=[7])), batch(4, time=6)],
            [batch(3, time=5).slice(0, 0)],
            [batch(3, time=5), batch(4, time=5, origin="x" * 300)],
        ],
    )
    def test_what_cannot_follow_changes_nothing(self, tmp_path: Path, batches: list[Batch]) -> None:
        log = Log.open(tmp_path)
        append(log, b"one", b"two", time=5)
        before = content_of(tmp_path)
        with pytest.raises(UsageError):
            log.append(batches)
        assert content_of(tmp_path) == before
        assert (log.tail, log.last_time) == (2, 5)
        append(log, b"three")
        assert len(flat(log.scan(1))) == 3
        log.close()

    def test_nothing_at_all(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.append([])
        assert log.tail == 0
        log.close()

    def test_more_pieces_than_one_system_call_takes(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.append([batch(n, b"%d" % n) for n in range(1, 3001)])
        log.append([batch(n, b"x" * 20_000) for n in range(3001, 3301)])
        log.commit(3300)
        assert [message.seq for message in flat(log.scan(1))] == list(range(1, 3301))
        log.close()

    def test_writes_that_the_system_cuts_short(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = Log.open(tmp_path)
        original = os.pwritev

        def short(fd: int, pieces: list[memoryview], offset: int) -> int:
            whole = b"".join(pieces)
            return original(fd, [whole[: max(1, len(whole) // 3)]], offset)

        monkeypatch.setattr(os, "pwritev", short)
        log.append([batch(1, b"a" * 30_000, b"b"), batch(3, b"c" * 17_000, columns=columns(node=[1]))])
        log.commit(3)
        monkeypatch.undo()
        log.close()
        log = Log.open(tmp_path)
        assert log.torn is None
        assert [len(message.payload) for message in flat(log.scan(1))] == [30_000, 1, 17_000]
        log.close()

    def test_sequence_numbers_end(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.close()
        (tmp_path / f"{1:016d}.open").unlink()
        op = MAX_SEQUENCE // 2
        TailFile.create(tmp_path / f"{op:016d}.open", log.uuid, op, MAX_SEQUENCE, sync=False)
        snapshot.write(tmp_path, snapshot.Snapshot(log.uuid, op - 1, MAX_SEQUENCE - 1, {}), sync=False)
        log = Log.open(tmp_path)
        with pytest.raises(UsageError, match=f"sequence numbers end at {MAX_SEQUENCE}"):
            log.append([batch(MAX_SEQUENCE, b"last", b"one too many")])
        append(log, b"last")
        assert log.tail == MAX_SEQUENCE
        with pytest.raises(UsageError, match=r"sequence numbers end|not within"):
            append(log, b"one too many")
        append_entries(log, b"entries go on")
        assert (log.tail, log.tail_op) == (MAX_SEQUENCE, op + 1)
        log.close()

    def test_a_segment_of_its_size_is_followed_by_another(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path, segment_bytes=1000)
        for _ in range(50):
            append(log, b"x" * 100)
        assert len(log.segments) == 8
        assert all(1000 <= segment.size < 1200 for segment in log.segments[:-1])
        assert log.size == sum(path.stat().st_size for path in tmp_path.glob("*.open"))
        log.close()


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


class TestSealing:
    def test_committed_tails_are_sealed_oldest_first(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        assert log.seal_next() is None
        for n in range(1, 4):
            log.append([batch(n)])
            log.rotate()
        log.commit(2)
        first, second = log.seal_next(), log.seal_next()
        assert first is not None
        assert second is not None
        assert (first.first, second.first) == (1, 2)
        assert log.seal_next() is None
        log.commit(3)
        assert log.seal_next() is not None
        assert log.seal_next() is None
        assert [type(segment) for segment in log.segments] == [SealedSegment] * 3 + [TailFile]
        assert {path.suffix for path in tmp_path.iterdir()} == {"", ".arrow", ".index", ".topics", ".open"}
        log.close()

    def test_an_empty_tail_is_not_rotated(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.rotate()
        log.rotate()
        assert len(log.segments) == 1
        log.close()

    def test_a_reader_half_way_is_not_disturbed(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        for n in range(10):
            append(log, b"%d" % n)
        scan = log.scan(1, max_bytes=1)
        read = [next(scan), next(scan)]
        seal_all(log)
        read.append(next(scan))
        log.write_snapshot(10, 10, {})
        read += scan
        assert [message.payload for message in flat(read)] == [b"%d" % n for n in range(10)]
        log.close()


class TestSync:
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        calls: list[str] = []
        for name in ("fsync", "fdatasync"):
            original = getattr(os, name)
            monkeypatch.setattr(os, name, lambda fd, o=original, n=name: (calls.append(n), o(fd))[1])
        return calls

    def test_it_covers_what_was_appended_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log.open(tmp_path)
        calls = self.counted(monkeypatch)
        assert not log.dirty
        assert log.sync() == 0
        assert calls == []
        append(log, b"a", b"b")
        assert log.dirty
        assert log.sync() == 2
        assert calls == ["fdatasync"]
        assert not log.dirty
        append(log, b"c")
        log.rotate()
        append(log, b"d")
        assert log.sync() == 4
        assert calls == ["fdatasync"] * 3 + ["fsync"]
        log.close()

    def test_never_is_never(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = self.counted(monkeypatch)
        log = Log.open(tmp_path, fsync="never")
        append(log, b"x")
        seal_all(log)
        log.write_snapshot(1, 1, {})
        log.close()
        assert calls == []

    def test_a_log_that_is_closed_is_on_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log.open(tmp_path)
        append(log, b"x")
        calls = self.counted(monkeypatch)
        log.close()
        assert calls == ["fdatasync"]

    def test_a_snapshot_is_never_ahead_of_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log.open(tmp_path)
        append(log, b"x")
        calls = self.counted(monkeypatch)
        log.write_snapshot(1, 1, {})
        assert calls == ["fdatasync", "fsync", "fsync"]
        log.close()

    def test_a_failure_is_for_good(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        log = Log.open(tmp_path)
        append(log, b"a")
        log.sync()
        append(log, b"b")

        def failing(_: int) -> None:
            raise OSError(errno.EIO, "")

        monkeypatch.setattr(os, "fdatasync", failing)
        with pytest.raises(
            StorageError, match=r"messages from 2 on may not be on the disk \(input/output error\)"
        ):
            log.sync()
        monkeypatch.undo()
        assert log.dirty
        with pytest.raises(StorageError, match="may not be on the disk"):
            log.sync()
        with pytest.raises(StorageError, match="may not be on the disk"):
            log.write_snapshot(2, 2, {})
        with pytest.raises(StorageError, match="may not be on the disk"):
            log.close()
        log.close()
        again = Log.open(tmp_path)
        assert again.sync() == 2
        again.close()


class TestSnapshots:
    def test_it_is_there_after_opening(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        assert log.snapshot is None
        append(log, b"a", b"b")
        log.write_snapshot(1, 1, {"x": b"1"})
        log.write_snapshot(2, 2, {"x": b"2"})
        log.write_snapshot(2, 2, {"x": b"3"})
        log.close()
        log = Log.open(tmp_path)
        assert log.snapshot is not None
        assert (log.snapshot.uuid, log.snapshot.seq, log.snapshot.sections) == (log.uuid, 2, {"x": b"3"})
        log.close()

    def test_only_of_what_is_committed_and_newer(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.append([batch(1, b"a", b"b")])
        log.commit(1)
        with pytest.raises(UsageError, match="cannot write a snapshot at 2: the head is 1"):
            log.write_snapshot(2, 2, {})
        log.commit(2)
        log.write_snapshot(2, 2, {})
        with pytest.raises(UsageError, match="cannot write a snapshot at 1: there is a newer one at 2"):
            log.write_snapshot(1, 1, {})
        log.close()


class TestRetention:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        """Four sealed segments of ten messages, times 0 to 3, and an open tail."""
        log = Log.open(tmp_path)
        for n in range(4):
            append(log, *[b"x"] * 10, time=n)
            seal_all(log)
        append(log, b"open", time=9)
        return log

    def test_by_bytes(self, log: Log) -> None:
        log.write_snapshot(41, 41, {})
        size = log.segments[0].size
        verdict = log.retain(
            99, retain_bytes=log.size - size - 1, retain_us=None, holds={"a": 3, "b": 15, "c": 21}
        )
        assert (verdict.keep_from, verdict.broken) == (21, ("a", "b"))
        assert (log.first, log.head) == (21, 41)
        with pytest.raises(TrimmedError, match="messages 20 to 41 are no longer kept; the oldest is 21"):
            log.read(20)
        assert len(flat(log.scan(21))) == 21
        assert log.first_time() == 2
        log.close()
        again = Log.open(log.directory)
        assert (again.first, again.head, again.uuid) == (21, 41, log.uuid)
        again.close()

    def test_by_age(self, log: Log) -> None:
        log.write_snapshot(25, 25, {})
        verdict = log.retain(4, retain_bytes=1 << 40, retain_us=1, holds={"a": 12})
        assert (verdict.keep_from, verdict.broken, log.first) == (11, (), 11)
        log.retain(4, retain_bytes=1 << 40, retain_us=1, holds={})
        assert log.first == 21
        log.close()

    def test_never_without_a_snapshot(self, log: Log) -> None:
        log.retain(99, retain_bytes=0, retain_us=0, holds={})
        assert log.first == 1
        log.write_snapshot(10, 10, {})
        log.retain(99, retain_bytes=0, retain_us=0, holds={})
        assert log.first == 11
        log.close()

    def test_everything_sealed_may_go(self, log: Log) -> None:
        log.write_snapshot(41, 41, {})
        log.retain(99, retain_bytes=0, retain_us=None, holds={})
        assert (log.first, log.head) == (41, 41)
        seal_all(log)
        log.retain(99, retain_bytes=0, retain_us=None, holds={})
        assert (log.first, log.head, log.tail) == (42, 41, 41)
        assert log.first_time() is None
        assert log.seq_at(0) == 42
        assert list(log.scan(42)) == []
        log.close()
        again = Log.open(log.directory)
        # Time does not go back, although no message is left to tell.
        assert (again.first, again.head, again.last_time) == (42, 41, 9)
        append(again, b"next")
        assert again.tail == 42
        again.close()

    def test_what_was_kept_aside_goes_with_its_segment(self, log: Log) -> None:
        torn = log.segments[0].path.with_suffix(".torn")
        torn.write_bytes(b"torn")
        log.write_snapshot(41, 41, {})
        log.retain(99, retain_bytes=0, retain_us=None, holds={})
        assert not torn.exists()
        log.close()

    def test_a_reader_that_comes_too_late_is_told(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between finding a segment and opening its file, retention may remove it."""
        log.write_snapshot(41, 41, {})
        original = SealedSegment.read

        def late(segment: SealedSegment, *arguments: int) -> list[Batch]:
            log.retain(99, retain_bytes=0, retain_us=None, holds={})
            return original(segment, *arguments)

        monkeypatch.setattr(SealedSegment, "read", late)
        with pytest.raises(TrimmedError, match="messages 5 to 41 are no longer kept"):
            log.read(5)
        log.close()

    def test_a_reader_in_another_process_is_told_too(self, log: Log) -> None:
        reader = Log.open(log.directory, read_only=True)
        log.write_snapshot(41, 41, {})
        log.retain(99, retain_bytes=0, retain_us=None, holds={})
        with pytest.raises(TrimmedError, match="messages 5 to 41 are no longer kept; the oldest is 11"):
            reader.read(5)
        assert len(flat(reader.scan(41))) == 1
        reader.close()
        log.close()


class TestIdentity:
    def test_a_uuid_is_for_life(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path / "one")
        uuid = log.uuid
        for _ in range(3):
            append(log, b"x")
            seal_all(log)
            log.close()
            log = Log.open(tmp_path / "one")
            assert log.uuid == uuid
        log.close()
        other = Log.open(tmp_path / "other")
        assert other.uuid != uuid
        other.close()


class TestReadOnly:
    def test_it_only_reads(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"a")
        log.rotate()
        append(log, b"b")
        reader = Log.open(tmp_path, read_only=True)
        before = content_of(tmp_path)
        for change in (
            lambda: reader.append([batch(3)]),
            reader.rotate,
            reader.seal_next,
            lambda: reader.write_snapshot(1, 1, {}),
            lambda: reader.retain(0, retain_bytes=0, retain_us=None, holds={}),
        ):
            with pytest.raises(UsageError, match="open for reading only"):
                change()
        assert content_of(tmp_path) == before
        assert (reader.tail, reader.head, reader.uuid) == (2, 2, log.uuid)
        # It sees the log as it was when it was opened.
        append(log, b"c")
        seal_all(log)
        assert [message.payload for message in flat(reader.scan(1))] == [b"a", b"b"]
        reader.close()
        log.close()

    def test_a_log_that_ends_sealed(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"a")
        seal_all(log)
        log.close()
        (tmp_path / f"{2:016d}.open").unlink()
        reader = Log.open(tmp_path, read_only=True)
        assert (reader.tail, reader.head, reader.dirty) == (1, 1, False)
        assert reader.sync() == 1
        reader.close()


class TestClosing:
    def test_twice(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.close()
        log.close()

    def test_nothing_works_afterwards(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"x")
        log.close()
        for use in (
            lambda: log.read(1),
            lambda: list(log.scan(1)),
            lambda: log.append([batch(2)]),
            lambda: log.first,
            lambda: log.seq_at(0),
            log.first_time,
            log.rotate,
            log.seal_next,
            log.sync,
            lambda: log.write_snapshot(1, 1, {}),
            lambda: log.retain(0, retain_bytes=0, retain_us=None, holds={}),
        ):
            with pytest.raises(ClosedError):
                use()
        assert log.size == 0

    def test_a_segment_half_sealed_is_finished_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log.open(tmp_path)
        append(log, b"x")
        log.rotate()
        sealing, go_on = threading.Event(), threading.Event()
        original = maintained.seal

        def slow(*arguments: object, **keywords: object) -> object:
            sealing.set()
            assert go_on.wait(10)
            return original(*arguments, **keywords)

        monkeypatch.setattr(maintained, "seal", slow)
        sealer = threading.Thread(target=log.seal_next)
        sealer.start()
        assert sealing.wait(10)
        closer = threading.Thread(target=log.close)
        closer.start()
        closer.join(0.05)
        assert closer.is_alive()
        go_on.set()
        closer.join(10)
        sealer.join(10)
        assert {path.suffix for path in tmp_path.iterdir()} == {"", ".arrow", ".index", ".topics", ".open"}
        assert not (tmp_path / f"{1:016d}.open").exists()


class TestDropping:
    @staticmethod
    def drop_all(log: Log) -> list[Segment]:
        log.write_snapshot(log.head_op, log.head, {})
        _, gone = log.let_go(1 << 60, retain_bytes=0, retain_us=None, holds={}, unsealed=True)
        return gone

    def test_a_tail_that_is_dropped_is_not_sealed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is dropped after it was chosen, and before sealing begins."""
        log = Log.open(tmp_path)
        for _ in range(3):
            append(log, b"x")
            log.rotate()
        append(log, b"x")
        original = Log._seal

        def late(self: Log, tail: TailFile) -> SealedSegment | None:
            maintained.remove_files(TestDropping.drop_all(log))
            monkeypatch.setattr(Log, "_seal", original)
            return original(self, tail)

        monkeypatch.setattr(Log, "_seal", late)
        assert log.seal_next() is None
        assert log.first == 4
        log.close()
        again = Log.open(tmp_path)
        assert (again.first, again.head) == (4, 4)
        again.close()

    def test_a_tail_that_is_being_sealed_is_not_dropped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Log.open(tmp_path)
        append(log, b"x")
        log.rotate()
        original = maintained.seal

        def meanwhile(*arguments: object, **keywords: object) -> object:
            assert TestDropping.drop_all(log) == []
            return original(*arguments, **keywords)

        monkeypatch.setattr(maintained, "seal", meanwhile)
        assert log.seal_next() is not None
        assert log.first == 1
        log.close()

    def test_a_file_that_cannot_be_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is left of the dropped segments opens again."""
        log = Log.open(tmp_path)
        for _ in range(3):
            append(log, b"x")
            seal_all(log)
        original = Path.unlink

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if path.name == f"{2:016d}.arrow":
                raise OSError(errno.EIO, "broken")
            original(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", unlink)
            assert len(self.drop_all(log)) == 3
            log.close()
            again = Log.open(tmp_path)
            maintained.remove_files(self.drop_all(again))
            again.close()
        log = Log.open(tmp_path)
        assert (log.first, log.head) == (2, 3)
        log.close()


class TestFailures:
    def test_a_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match="not a directory"):
            Log.open(tmp_path / "file" / "log")

    def test_the_lock_is_released_if_opening_fails_late(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(directory: Path) -> None:
            raise OSError(errno.ENOSPC, "no room")

        with monkeypatch.context() as patch:
            patch.setattr(store, "begin", fail)
            with pytest.raises(FullError):
                Log.open(tmp_path)
        Log.open(tmp_path).close()

    def test_leftovers_are_cut_off_before_anything_follows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An append fails, and so does cutting off what it left: the next append or rotation has to."""
        log = Log.open(tmp_path)
        append(log, b"one")
        original = os.pwritev
        broken = True

        def failing(fd: int, pieces: list[memoryview], offset: int) -> int:
            if not broken:
                return original(fd, pieces, offset)
            original(fd, [b"".join(pieces)[:30]], offset)
            raise OSError(errno.ENOSPC, "")

        def stuck(*_: object) -> None:
            raise OSError(errno.EIO, "")

        monkeypatch.setattr(os, "pwritev", failing)
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", stuck)
            with pytest.raises(FullError):
                append(log, b"refused")
            for follow in (lambda: append(log, b"refused"), log.rotate):
                with pytest.raises(StorageError, match="input/output error"):
                    follow()
        assert log.segments[-1].path.stat().st_size == log.segments[-1].size + 30
        log.rotate()
        assert log.segments[0].path.stat().st_size == log.segments[0].size
        broken = False
        append(log, b"two")
        log.close()
        again = Log.open(tmp_path)
        assert again.torn is None
        assert [message.payload for message in flat(again.scan(1))] == [b"one", b"two"]
        again.close()

    def test_a_directory_that_vanished(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path / "log")
        append(log, b"x")
        (tmp_path / "log").rename(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="no such file or directory"):
            log.rotate()
        with pytest.raises(StorageError, match="no such file or directory"):
            log.write_snapshot(1, 1, {})
        append(log, b"y")
        assert len(flat(log.scan(1))) == 2
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
