from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest
from tests.log.content import (
    append,
    append_entries,
    batch,
    check_operations,
    content_of,
    flat,
    operations,
    restore,
    seal_all,
)

from headrace.errors import DamagedError, StorageError, UsageError
from headrace.log import Log, recovery
from headrace.log.damage.repair import plan, repair
from headrace.log.damage.verify import verify
from headrace.log.frame_file import HEADER_BYTES
from headrace.log.recovery import look, recover
from headrace.log.sealed import sealing
from headrace.log.tail import TailFile
from headrace.message import Batch, Message, Run

NAME = "{:016d}.{}".format


@pytest.fixture
def written(tmp_path: Path) -> list[Message]:
    """A log of three sealed segments, a rotated tail and an open one, messages 1 to 15."""
    log = Log.open(tmp_path)
    for segment in range(3):
        append(log, *[b"%d.%d" % (segment, n) for n in range(3)], time=segment)
        seal_all(log)
    append(log, b"rotated", b"tail", b"!", time=7)
    log.rotate()
    append(log, b"open", b"tail", b"!", time=8)
    messages = flat(log.scan(1))
    log.close()
    return messages


def reopened(directory: Path) -> list[Message]:
    log = Log.open(directory)
    messages = flat(log.scan(log.first))
    assert log.torn is None
    log.close()
    return messages


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"lock", "synced"}


def test_the_fixture_is_what_it_says(tmp_path: Path, written: list[Message]) -> None:
    expected = {NAME(n, kind) for n in (1, 4, 7) for kind in ("arrow", "index", "topics")}
    assert names(tmp_path) == expected | {NAME(10, "open"), NAME(13, "open"), "chain"}
    assert [message.seq for message in written] == list(range(1, 16))


class TestWhatACrashLeaves:
    def test_nothing(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path / "new" / "log")
        assert (log.first, log.head, log.tail) == (1, 0, 0)
        assert names(log.directory) == {NAME(1, "open")}
        log.close()

    def test_files_in_the_making(self, tmp_path: Path, written: list[Message]) -> None:
        before = names(tmp_path)
        for name in (
            NAME(10, "arrow"),
            NAME(10, "index"),
            NAME(10, "entries"),
            NAME(16, "open"),
            NAME(15, "snapshot"),
        ):
            (tmp_path / f"{name}.making").write_bytes(b"half")
        assert reopened(tmp_path) == written
        assert names(tmp_path) == before

    def test_a_tail_beside_its_good_segment(self, tmp_path: Path, written: list[Message]) -> None:
        tail = (tmp_path / NAME(10, "open")).read_bytes()
        log = Log.open(tmp_path)
        seal_all(log)
        log.close()
        (tmp_path / NAME(10, "open")).write_bytes(tail)
        assert reopened(tmp_path) == written
        assert NAME(10, "open") not in names(tmp_path)

    @pytest.mark.parametrize("harm", ["cut", "flip", "no index", "bad index", "index only", "empty"])
    def test_a_tail_beside_a_bad_segment(self, tmp_path: Path, written: list[Message], harm: str) -> None:
        tail = (tmp_path / NAME(10, "open")).read_bytes()
        log = Log.open(tmp_path)
        seal_all(log)
        log.close()
        (tmp_path / NAME(10, "open")).write_bytes(tail)
        segment, index = tmp_path / NAME(10, "arrow"), tmp_path / NAME(10, "index")
        match harm:
            case "cut":
                os.truncate(segment, 1000)
            case "flip":
                data = bytearray(segment.read_bytes())
                data[len(data) // 2] ^= 1
                segment.write_bytes(data)
            case "no index":
                index.unlink()
            case "bad index":
                os.truncate(index, 20)
            case "index only":
                segment.unlink()
            case "empty":
                segment.write_bytes(b"")
        assert reopened(tmp_path) == written
        assert {NAME(10, "arrow"), NAME(10, "index")} & names(tmp_path) == set()
        log = Log.open(tmp_path)
        seal_all(log)
        assert flat(log.scan(1)) == written
        log.close()

    def test_an_index_alone(self, tmp_path: Path, written: list[Message]) -> None:
        log = Log.open(tmp_path)
        log.write_snapshot(15, 15, {})
        log.close()
        (tmp_path / NAME(1, "arrow")).unlink()
        assert reopened(tmp_path) == written[3:]
        assert NAME(1, "index") not in names(tmp_path)

    def test_no_tail_at_all(self, tmp_path: Path, written: list[Message]) -> None:
        for number in (10, 13):
            (tmp_path / NAME(number, "open")).unlink()
        log = Log.open(tmp_path)
        assert flat(log.scan(1)) == written[:9]
        append(log, b"next")
        assert log.tail == 10
        log.close()

    def test_a_torn_end_is_kept_aside(self, tmp_path: Path, written: list[Message]) -> None:
        tail = tmp_path / NAME(13, "open")
        size = tail.stat().st_size
        with tail.open("ab") as file:
            file.write(b"torn")
        log = Log.open(tmp_path)
        assert log.torn is not None
        assert (log.torn.offset, log.torn.size) == (size, 4)
        assert (tmp_path / NAME(13, "torn")).read_bytes() == b"torn"
        assert flat(log.scan(1)) == written
        append(log, b"next")
        log.close()
        assert reopened(tmp_path)[-1].payload == b"next"

    def test_no_room_to_keep_it_aside(
        self, tmp_path: Path, written: list[Message], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with (tmp_path / NAME(13, "open")).open("ab") as file:
            file.write(b"torn")

        def full(*_: object) -> int:
            raise OSError(28, "no space")

        monkeypatch.setattr(Path, "write_bytes", full)
        log = Log.open(tmp_path)
        assert log.torn is not None
        assert flat(log.scan(1)) == written
        log.close()

    @pytest.mark.parametrize("left", [b"", b"HRTAIL", bytes(HEADER_BYTES), bytes(5000)])
    def test_a_rotation_that_did_not_reach_the_disk(
        self, tmp_path: Path, written: list[Message], left: bytes
    ) -> None:
        (tmp_path / NAME(16, "open")).write_bytes(left)
        looked = Log.open(tmp_path, read_only=True)
        assert flat(looked.scan(1)) == written
        log = Log.open(tmp_path)
        assert log.torn is not None
        assert (log.torn.offset, log.torn.size) == (0, len(left))
        assert flat(log.scan(1)) == written
        append(log, b"next")
        assert log.tail == 16
        log.close()
        assert len(reopened(tmp_path)) == 16

    @pytest.mark.parametrize("left", [None, b"", b"HRTAIL", bytes(HEADER_BYTES), bytes(5000)])
    @pytest.mark.parametrize("lost", ["nothing", "a part", "a message"])
    def test_power_that_fails_just_after_a_rotation(
        self, tmp_path: Path, left: bytes | None, lost: str
    ) -> None:
        """Neither the end of the old tail nor the beginning of the new one is synced yet."""
        log = Log.open(tmp_path)
        ends = []
        for payload in (b"one", b"two", b"three"):
            append(log, payload)
            ends.append((tmp_path / NAME(1, "open")).stat().st_size)
        log.rotate()
        log.close()
        os.truncate(
            tmp_path / NAME(1, "open"),
            {"nothing": ends[2], "a part": ends[2] - 1, "a message": ends[1]}[lost],
        )
        if left is not None:
            (tmp_path / NAME(4, "open")).write_bytes(left)
        kept = [b"one", b"two", b"three"][: 3 if lost == "nothing" else 2]
        looked = Log.open(tmp_path, read_only=True)
        assert [message.payload for message in flat(looked.scan(1))] == kept
        log = Log.open(tmp_path)
        assert (log.torn is None) is (lost == "nothing" and left is None)
        append(log, b"next")
        assert [message.payload for message in flat(log.scan(1))] == [*kept, b"next"]
        log.close()
        assert [message.payload for message in reopened(tmp_path)] == [*kept, b"next"]

    def test_the_same_without_a_log_before_it_is_damage(self, tmp_path: Path) -> None:
        (tmp_path / NAME(1, "open")).write_bytes(b"")
        with pytest.raises(DamagedError, match="the file header is cut short"):
            Log.open(tmp_path)


class TestRefusals:
    """Damage is named, and the directory is left as it is."""

    def refused(self, directory: Path, said: str) -> DamagedError:
        before = content_of(directory)
        for read_only in (False, True):
            with pytest.raises(DamagedError, match=said) as caught:
                Log.open(directory, read_only=read_only)
        assert content_of(directory) == before
        return caught.value

    def test_a_missing_segment(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / NAME(4, "arrow")).unlink()
        error = self.refused(tmp_path, "messages 4 to 6 are missing before it")
        assert (error.path, error.first, error.last) == (str(tmp_path / NAME(7, "arrow")), 4, 6)
        assert NAME(4, "index") in names(tmp_path)

    def test_messages_that_are_there_twice(self, tmp_path: Path, written: list[Message]) -> None:
        log = Log.open(tmp_path)
        TailFile.create(tmp_path / NAME(15, "open"), log.uuid, 15, 15, sync=False)
        log.close()
        error = self.refused(tmp_path, "messages 15 to 15 are also in the segment before it")
        assert (error.first, error.last) == (15, 15)

    def test_a_missing_tail(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / NAME(10, "open")).unlink()
        self.refused(tmp_path, "messages 10 to 12 are missing before it")

    def test_a_missing_index(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / NAME(4, "index")).unlink()
        error = self.refused(tmp_path, "its index is missing")
        assert (error.path, error.first) == (str(tmp_path / NAME(4, "arrow")), 4)

    def test_a_torn_end_before_other_messages(self, tmp_path: Path, written: list[Message]) -> None:
        tail = tmp_path / NAME(10, "open")
        os.truncate(tail, tail.stat().st_size - 1)
        error = self.refused(tmp_path, "cut short")
        assert (error.path, error.offset, error.first, error.last) == (str(tail), HEADER_BYTES, 10, 12)

    def test_a_torn_end_before_a_tail_that_was_never_used(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"one")
        append(log, b"two")
        uuid = log.uuid
        log.rotate()
        log.close()
        tail = tmp_path / NAME(1, "open")
        os.truncate(tail, tail.stat().st_size - 1)
        log = Log.open(tmp_path)
        assert (log.uuid, log.tail) == (uuid, 1)
        assert log.torn is not None
        append(log, b"two again")
        assert [message.payload for batch in log.scan(1) for message in batch] == [b"one", b"two again"]
        log.close()

    def test_a_rotated_tail_without_its_header(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / NAME(10, "open")).write_bytes(b"")
        self.refused(tmp_path, "the file header is cut short")

    def test_a_file_of_another_log(self, tmp_path: Path, written: list[Message]) -> None:
        other = Log.open(tmp_path / "other")
        append(other, *[b""] * 15)
        other.rotate()
        other.close()
        shutil.move(tmp_path / "other" / NAME(16, "open"), tmp_path)
        shutil.rmtree(tmp_path / "other")
        error = self.refused(tmp_path, f"it belongs to log {other.uuid}, its neighbours to log")
        assert error.path == str(tmp_path / NAME(16, "open"))

    @pytest.mark.parametrize("kind", ["open", "arrow"])
    def test_a_file_under_another_name(self, tmp_path: Path, written: list[Message], kind: str) -> None:
        number = 1 if kind == "arrow" else 10
        for suffix in (kind, "index"):
            path = tmp_path / NAME(number, suffix)
            if path.exists():
                path.rename(tmp_path / NAME(number + 1, suffix))
        self.refused(tmp_path, f"it begins at {number}, not at {number + 1} as its name says")

    def test_a_snapshot_ahead_of_the_log(self, tmp_path: Path, written: list[Message]) -> None:
        log = Log.open(tmp_path)
        log.write_snapshot(15, 15, {})
        log.close()
        (tmp_path / NAME(13, "open")).unlink()
        error = self.refused(tmp_path, "the snapshot at message 15 is ahead of the log, which ends at 12")
        assert (error.first, error.last) == (13, 15)

    def test_trimmed_messages_without_their_snapshot(self, tmp_path: Path, written: list[Message]) -> None:
        log = Log.open(tmp_path)
        log.write_snapshot(7, 7, {})
        log.retain(0, retain_bytes=0, retain_us=None, holds={})
        assert log.first == 7
        log.close()
        (tmp_path / NAME(7, "snapshot")).unlink()
        error = self.refused(
            tmp_path, "the snapshot that covers trimmed messages and lost entries is missing"
        )
        assert (error.first, error.last) == (1, 6)

    def test_trimmed_messages_with_a_damaged_snapshot(self, tmp_path: Path, written: list[Message]) -> None:
        log = Log.open(tmp_path)
        log.write_snapshot(7, 7, {})
        log.retain(0, retain_bytes=0, retain_us=None, holds={})
        log.close()
        os.truncate(tmp_path / NAME(7, "snapshot"), 30)
        error = self.refused(tmp_path, "the snapshot is cut short")
        assert error.path == str(tmp_path / NAME(7, "snapshot"))

    @pytest.mark.parametrize("kept", ["snapshot", "index"])
    def test_traces_of_a_log_without_its_messages(
        self, tmp_path: Path, written: list[Message], kept: str
    ) -> None:
        log = Log.open(tmp_path)
        log.write_snapshot(15, 15, {})
        log.close()
        for path in tmp_path.iterdir():
            if path.suffix != f".{kept}":
                path.unlink()
        with pytest.raises(DamagedError, match="traces of a log, but no messages"):
            Log.open(tmp_path)

    def test_an_interrupted_repair(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / recovery.REPAIRING).write_bytes(b"{}")
        self.refused(tmp_path, "a repair was interrupted: run it again")


class TestDamagedSnapshots:
    def test_the_one_before_is_used_and_the_damage_told(self, tmp_path: Path, written: list[Message]) -> None:
        log = Log.open(tmp_path)
        log.write_snapshot(5, 5, {"a": b"5"})
        log.write_snapshot(9, 9, {"a": b"9"})
        log.close()
        os.truncate(tmp_path / NAME(9, "snapshot"), 30)
        log = Log.open(tmp_path)
        assert log.snapshot is not None
        assert (log.snapshot.seq, log.snapshot.sections) == (5, {"a": b"5"})
        assert [error.path for error in log.damaged_snapshots] == [str(tmp_path / NAME(9, "snapshot"))]
        log.close()

    def test_none_is_needed_while_everything_is_there(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / NAME(9, "snapshot")).write_bytes(b"nonsense")
        log = Log.open(tmp_path)
        assert log.snapshot is None
        assert len(log.damaged_snapshots) == 1
        assert flat(log.scan(1)) == written
        log.close()


class TestForeignFiles:
    def test_they_are_left_alone(self, tmp_path: Path, written: list[Message]) -> None:
        foreign = {
            name: name.encode()
            for name in (
                "notes.txt",
                "1.making",
                "7x.open.making",
                "12.open",
                "0.arrow",
                "000000000000000a.open",
            )
        }
        for name, content in foreign.items():
            (tmp_path / name).write_bytes(content)
        (tmp_path / "directory").mkdir()
        assert reopened(tmp_path) == written
        log = Log.open(tmp_path)
        seal_all(log)
        log.write_snapshot(15, 15, {})
        log.retain(0, retain_bytes=0, retain_us=None, holds={})
        log.close()
        assert {name: (tmp_path / name).read_bytes() for name in foreign} == foreign


class TestEverySealingMoment:
    def test_a_crash_at_any_point_of_sealing_and_trimming(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Copy the directory before each change of a name or a file, and recover from every copy."""
        log = Log.open(tmp_path / "log")
        monkeypatch.setattr(sealing, "ROWS", 4)
        copies: list[dict[str, bytes]] = []

        def watched(name: str) -> None:
            original = getattr(os, name)

            def watch(*arguments: object, **keywords: object) -> object:
                copies.append(content_of(tmp_path / "log"))
                return original(*arguments, **keywords)

            monkeypatch.setattr(os, name, watch)

        append_entries(log, b"first of all")
        for n in range(3):
            append(log, *[b"%d" % n] * 5)
            append_entries(log, b"entry", b"%d" % n)
        log.rotate()
        append_entries(log, b"at the border")
        append(log, b"last")
        messages = flat(log.scan(1))
        known = operations(log.scan_ops(1))
        for name in ("rename", "unlink", "pread", "fsync"):
            watched(name)
        assert log.seal_next()
        sealed = len(copies)
        log.write_snapshot(log.head_op, 16, {})
        log.retain(0, retain_bytes=0, retain_us=None, holds={})
        monkeypatch.undo()
        log.close()
        assert sealed > 10
        assert len(copies) > sealed + 4
        for number, content in enumerate(copies):
            directory = tmp_path / "copy"
            directory.mkdir(exist_ok=True)
            restore(directory, content)
            again = Log.open(directory)
            assert again.torn is None
            assert again.uuid == log.uuid
            found = flat(again.scan(again.first))
            assert found == (messages if number < sealed else messages[again.first - 1 :])
            assert number >= sealed or again.first_op == 1
            check_operations(again, known)
            again.close()


class TestEntries:
    """A crash leaves entries in every position: recovered as messages are, and never without one another."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        """Two sealed segments, the second of entries only, a rotated tail of entries only, and an open one."""
        log = Log.open(tmp_path)
        append_entries(log, b"before the first", time=1)
        append(log, b"1", b"2", time=2)
        append_entries(log, b"a", b"b", time=2)
        append(log, b"3", time=3)
        seal_all(log)
        append_entries(log, b"c", time=4)
        append_entries(log, b"d", b"e", time=4)
        seal_all(log)
        append_entries(log, b"f", time=5)
        log.rotate()
        append_entries(log, b"g", time=6)
        append(log, b"4", time=7)
        append_entries(log, b"h", time=8)
        log.close()
        return log

    EXPECTED: Final = [b"before the first", b"1", b"2", b"a", b"b", b"3", *b"c d e f g 4 h".split()]

    def payloads(self, log: Log) -> list[bytes]:
        return [message.payload for _, message in operations(log.scan_ops(log.first_op))]

    def test_the_fixture_is_what_it_says(self, tmp_path: Path, log: Log) -> None:
        assert names(tmp_path) == {
            *(NAME(op, kind) for op in (1, 7) for kind in ("arrow", "index", "entries", "topics")),
            NAME(10, "open"),
            NAME(11, "open"),
            "chain",
        }
        again = Log.open(tmp_path)
        assert self.payloads(again) == self.EXPECTED
        assert (again.head, again.head_op, again.last_time) == (4, 13, 8)
        edges = [(s.first_op, s.last_op, s.first, s.last) for s in again.segments]
        assert edges == [(1, 6, 1, 3), (7, 9, 4, 3), (10, 10, 4, 3), (11, 13, 4, 4)]
        check_operations(again, operations(again.scan_ops(1)))
        # A reader of messages passes over segments that have none.
        assert [message.payload for message in flat(again.scan(1))] == [b"1", b"2", b"3", b"4"]
        assert (again.read(4)[0].run[0], again.seq_at(4), again.reach(4, 1)) == (b"4", 4, 4)
        again.close()

    def test_every_length_of_the_last_tail(self, tmp_path: Path, log: Log) -> None:
        path = tmp_path / NAME(11, "open")
        whole = path.read_bytes()
        tail, _ = TailFile.open(path, writable=False)
        ends = [*tail._columns.offsets, tail.size]
        before = content_of(tmp_path)
        for size in range(len(whole)):
            restore(tmp_path, before | {path.name: whole[:size]})
            kept = sum(1 for end in ends[1:] if end <= size)
            again = Log.open(tmp_path)
            assert self.payloads(again) == self.EXPECTED[: 10 + kept]
            assert (again.tail_op, again.tail) == (10 + kept, 3 + (kept > 1))
            assert again.last_time == [5, 6, 7][kept]
            assert (again.torn is None) == (size == ends[kept] if kept or size >= HEADER_BYTES else False)
            append_entries(again, b"next")
            append(again, b"next")
            again.close()
            again = Log.open(tmp_path)
            assert self.payloads(again) == [*self.EXPECTED[: 10 + kept], b"next", b"next"]
            again.close()

    @pytest.mark.parametrize("left", [None, b"", bytes(HEADER_BYTES)])
    def test_power_that_fails_after_a_rotation_takes_only_entries(
        self, tmp_path: Path, left: bytes | None
    ) -> None:
        log = Log.open(tmp_path)
        append(log, b"1")
        size = (tmp_path / NAME(1, "open")).stat().st_size
        append_entries(log, b"a")
        log.rotate()
        log.close()
        os.truncate(tmp_path / NAME(1, "open"), size)
        if left is not None:
            (tmp_path / NAME(3, "open")).write_bytes(left)
        looked = Log.open(tmp_path, read_only=True)
        assert (looked.tail, looked.tail_op) == (1, 1)
        log = Log.open(tmp_path)
        assert log.torn is not None
        if left is None:
            assert log.torn.reason == "entries of the log after message 1 had not reached the disk"
        append_entries(log, b"b")
        assert self.payloads(log) == [b"1", b"b"]
        log.close()
        assert len(reopened(tmp_path)) == 1

    def test_a_tail_beside_its_segment(self, tmp_path: Path, log: Log) -> None:
        tail = (tmp_path / NAME(10, "open")).read_bytes()
        again = Log.open(tmp_path)
        assert again.seal_next() is not None
        again.close()
        sealed = content_of(tmp_path)
        whole = sealed[NAME(10, "entries")]
        for entries_left in (whole, whole[:-4], b"", None, whole[:-1] + b"!"):
            restore(tmp_path, sealed | {NAME(10, "open"): tail})
            if entries_left is None:
                (tmp_path / NAME(10, "entries")).unlink()
            else:
                (tmp_path / NAME(10, "entries")).write_bytes(entries_left)
            again = Log.open(tmp_path)
            assert self.payloads(again) == self.EXPECTED
            # A good segment stays, a bad one goes; the tail makes up for it.
            good = entries_left == whole
            assert (NAME(10, "open") in names(tmp_path)) == (not good)
            assert {NAME(10, kind) for kind in ("arrow", "index", "entries")} & names(tmp_path) == (
                {NAME(10, kind) for kind in ("arrow", "index", "entries")} if good else set()
            )
            seal_all(again)
            assert self.payloads(again) == self.EXPECTED
            again.close()

    @pytest.mark.parametrize("left", [("entries",), ("index",), ("entries", "index")])
    def test_what_trimming_left(self, tmp_path: Path, log: Log, left: tuple[str, ...]) -> None:
        again = Log.open(tmp_path)
        again.write_snapshot(6, 3, {"state": b"6"})
        again.close()
        for kind in {"arrow", "entries", "index"} - set(left):
            (tmp_path / NAME(1, kind)).unlink()
        again = Log.open(tmp_path)
        assert (again.first, again.first_op) == (4, 7)
        assert self.payloads(again) == self.EXPECTED[6:]
        assert not any(name.startswith(f"{1:016d}") for name in names(tmp_path))
        again.close()

    @pytest.mark.parametrize(
        ("number", "kinds", "said"),
        [
            (1, ("entries",), "entries of the log before message 1 are in doubt"),
            (7, ("entries",), "entries of the log after message 3 are in doubt"),
            (7, ("arrow",), "entries of the log after message 3 are missing before it"),
            (7, ("index",), "its index is missing at byte 0; messages from 4 on"),
            (10, ("open",), "entries of the log after message 3 are missing before it"),
        ],
    )
    def test_refusals(self, tmp_path: Path, log: Log, number: int, kinds: tuple[str, ...], said: str) -> None:
        for kind in kinds:
            (tmp_path / NAME(number, kind)).unlink()
        before = content_of(tmp_path)
        for read_only in (False, True):
            with pytest.raises(DamagedError, match=said):
                Log.open(tmp_path, read_only=read_only)
        assert content_of(tmp_path) == before

    def test_a_snapshot_ahead_by_entries_only(self, tmp_path: Path, log: Log) -> None:
        again = Log.open(tmp_path)
        append_entries(again, b"i")
        again.write_snapshot(14, 4, {})
        again.close()
        tail, _ = TailFile.open(tmp_path / NAME(11, "open"), writable=False)
        os.truncate(tmp_path / NAME(11, "open"), tail._columns.offsets[-1])
        with pytest.raises(
            DamagedError, match=r"ahead of the log.*; entries of the log after message 4 are in"
        ):
            Log.open(tmp_path)

    def test_trimmed_entries_without_their_snapshot(self, tmp_path: Path, log: Log) -> None:
        """The messages are all there, but the state before them is not."""
        again = Log.open(tmp_path / "other")
        append_entries(again, b"state")
        seal_all(again)
        append(again, b"1")
        again.write_snapshot(2, 1, {})
        again.retain(0, retain_bytes=0, retain_us=None, holds={})
        assert (again.first, again.first_op) == (1, 2)
        again.close()
        (tmp_path / "other" / NAME(2, "snapshot")).unlink()
        with pytest.raises(DamagedError, match=r"lost entries is missing.*before message 1 are in doubt"):
            Log.open(tmp_path / "other")


class TestOlderVersions:
    """A log of the first version, where entries had numbers, is refused by name and left as it is."""

    @pytest.mark.parametrize("kind", ["open", "index", "snapshot"])
    @pytest.mark.parametrize("read_only", [False, True])
    def test_it_is_refused(self, tmp_path: Path, written: list[Message], kind: str, read_only: bool) -> None:
        log = Log.open(tmp_path)
        log.write_snapshot(15, 15, {})
        log.close()
        path = {
            "open": tmp_path / NAME(13, "open"),
            "index": tmp_path / NAME(1, "index"),
            "snapshot": tmp_path / NAME(15, "snapshot"),
        }[kind]
        data = bytearray(path.read_bytes())
        place = 7 if kind == "index" else 6
        assert data[place] == 2
        data[place] = 1
        path.write_bytes(data)
        before = content_of(tmp_path)
        said = f"{path.name} has version 1 of the log's format, and this Headrace reads version 2: begin with"
        with pytest.raises(StorageError, match=said) as caught:
            Log.open(tmp_path, read_only=read_only)
        assert not isinstance(caught.value, DamagedError), (
            "nothing is damaged, and repair must not be advised"
        )
        assert content_of(tmp_path) == before
        for use in (lambda: list(verify(tmp_path)), lambda: plan(tmp_path), lambda: repair(tmp_path)):
            with pytest.raises(StorageError, match=said):
                use()
        assert content_of(tmp_path) == before


class TestLook:
    def test_nothing_changes(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / NAME(16, "open.making")).write_bytes(b"half")
        with (tmp_path / NAME(13, "open")).open("ab") as file:
            file.write(b"torn")
        before = content_of(tmp_path)
        log = Log.open(tmp_path, read_only=True)
        assert flat(log.scan(1)) == written
        assert log.torn is not None
        log.close()
        assert content_of(tmp_path) == before
        assert not (tmp_path / "lock").exists() or (tmp_path / "lock").read_bytes() == b""

    def test_where_there_is_no_log(self, tmp_path: Path) -> None:
        for directory in (tmp_path, tmp_path / "none"):
            with pytest.raises(UsageError, match="holds no log; name the hub's data directory"):
                Log.open(directory, read_only=True)
        assert not (tmp_path / "none").exists()
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StorageError, match="not a directory"):
            Log.open(tmp_path / "file", read_only=True)

    def test_a_hub_that_seals_between_two_looks(
        self, tmp_path: Path, written: list[Message], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The list of names is older than the files: what is missed the first time is found the next."""
        log = Log.open(tmp_path)
        listed = Path.iterdir
        lists = []

        def iterdir(path: Path) -> object:
            found = list(listed(path))
            if not lists:
                seal_all(log)
            lists.append(found)
            return iter(found)

        monkeypatch.setattr(Path, "iterdir", iterdir)
        found = look(tmp_path)
        monkeypatch.undo()
        assert len(lists) == 2
        assert sum(segment.last - segment.first + 1 for segment in found.segments) == 15
        log.close()

    def test_damage_that_stays_is_told(self, tmp_path: Path, written: list[Message]) -> None:
        (tmp_path / NAME(7, "arrow")).unlink()
        with pytest.raises(DamagedError, match="messages 7 to 9 are missing"):
            look(tmp_path)


def test_recovery_is_told_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    recover(tmp_path, sync=False)
    assert synced == []
    (tmp_path / NAME(1, "open")).unlink()
    recover(tmp_path, sync=True)
    assert len(synced) == 2


def test_many_segments_open_in_order(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    for n in range(30):
        log.append([batch(n + 1, b"%d" % n)])
        log.commit(n + 1)
        log.rotate()
        if n % 2:
            log.seal_next()
    log.close()
    log = Log.open(tmp_path)
    assert [message.payload for message in flat(log.scan(1))] == [b"%d" % n for n in range(30)]
    log.close()


def test_a_leftover_that_cannot_be_removed_keeps_no_log_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path)
    log.append([Batch(Run.one(b"x"), first=1, origin="test")])
    log.close()
    (tmp_path / f"{1:016d}.arrow.making").write_bytes(b"unfinished")
    plainly = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.name.endswith(".making"):
            raise PermissionError(1, "Operation not permitted")
        plainly(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    log = Log.open(tmp_path)
    assert log.head == 1
    log.close()
