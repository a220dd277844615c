from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.log.content import append, append_entries, batch, columns, content_of, flat, seal_all

from headrace.errors import ClosedError, FullError, StorageError, UsageError
from headrace.log import Log, maintained, store
from headrace.log.snapshots import snapshot
from headrace.log.tail import TailFile
from headrace.message import MAX_SEQUENCE, Batch


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
        # The thread that syncs may not know yet, if it was another one's sync that failed.
        with pytest.raises(StorageError, match="may not be on the disk"):
            append(log, b"c")
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
