from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.log.content import append, batch, flat, seal_all

from headrace.errors import TrimmedError
from headrace.log import Log, maintained
from headrace.log.reading import Segment
from headrace.log.sealed.segment import SealedSegment
from headrace.log.tail import TailFile
from headrace.message import Batch


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
