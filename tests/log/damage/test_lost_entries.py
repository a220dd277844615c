"""Entries that are lost cost no message, and no state is ever restored from what lacks them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.log.content import append, append_entries, batch, content_of, entries, flat, operations, seal_all
from tests.log.written import NAME, Written, write

from headrace.errors import DamagedError, TrimmedError
from headrace.log import Log
from headrace.log.damage.findings import Problem
from headrace.log.damage.inspection import inspect_tail
from headrace.log.damage.repair import plan, repair
from headrace.log.damage.repair_plan import ForgetState, MarkLost, Reindex, Restamp, Rewrite, SetAside
from headrace.log.damage.verify import Progress, verify
from headrace.log.sealed.index import SegmentIndex
from headrace.log.sealed.segment import SealedSegment


@pytest.fixture
def mixed(tmp_path: Path) -> Written:
    return write(tmp_path / "log", mixed=True)


def problems(directory: Path) -> list[Problem]:
    return [each for each in verify(directory) if isinstance(each, Problem)]


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def cut_whole_frames(path: Path) -> None:
    os.truncate(path, 56)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def flip_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[30] ^= 4
    path.write_bytes(data)


def take_that_of_another_segment(path: Path) -> None:
    path.write_bytes((path.parent / NAME(1, "entries")).read_bytes())


def take_that_of_another_log(path: Path) -> None:
    other = write(path.parent.parent / "other", mixed=True)
    path.write_bytes((other.directory / path.name).read_bytes())


HARM = [
    remove,
    cut,
    cut_whole_frames,
    flip,
    flip_header,
    take_that_of_another_segment,
    take_that_of_another_log,
]


class TestFilesOfEntries:
    @pytest.mark.parametrize("harm", HARM)
    def test_it_is_noticed(self, mixed: Written, harm: Callable[[Path], None]) -> None:
        path = mixed.path(7, "entries")
        harm(path)
        [problem] = problems(mixed.directory)
        assert problem.path == path
        assert (problem.last or 0) < problem.first, "no message is in doubt"
        assert "; entries of the log after message " in str(problem)
        if harm in (remove, cut, cut_whole_frames):
            with pytest.raises(DamagedError, match="entries of the log after message 6 are in doubt"):
                Log.open(mixed.directory)

    @pytest.mark.parametrize("harm", HARM)
    def test_it_is_not_read(self, mixed: Written, harm: Callable[[Path], None]) -> None:
        """What changes under a log that is open is noticed when somebody reads it."""
        log = Log.open(mixed.directory)
        harm(mixed.path(7, "entries"))
        with pytest.raises(DamagedError):
            list(log.scan_ops(1))
        assert flat(log.scan(1)) == mixed.messages
        log.close()

    @pytest.mark.parametrize("harm", HARM)
    @pytest.mark.parametrize("keep", ["before", "after"])
    def test_without_a_snapshot_the_state_begins_empty(
        self, mixed: Written, harm: Callable[[Path], None], keep: str
    ) -> None:
        harm(mixed.path(7, "entries"))
        report, log = mixed.repaired("before" if keep == "before" else "after")
        assert (report.first, report.last, report.lost) == (1, 30, ())
        assert report.lost_entries == ((6, 12),)
        assert report.uuid_after == mixed.uuid
        assert [type(step) for step in report.steps if not isinstance(step, SetAside)] == [
            Reindex,
            ForgetState,
        ]
        said = list(report.lines())
        assert "lost: entries of the log after messages 6 to 12" in said
        assert any("begin with an empty state after message 12" in line for line in said)
        assert log.first_op == mixed.begins[13]
        assert log.snapshot is not None
        assert (log.snapshot.op, log.snapshot.seq, log.snapshot.sections) == (mixed.begins[13] - 1, 12, {})
        mixed.check_goes_on(log)

    def test_a_snapshot_has_all_that_matters(self, mixed: Written) -> None:
        mixed.snapshot(20, {"state": b"20"})
        mixed.path(7, "entries").unlink()
        report, log = mixed.repaired()
        assert (report.lost, report.uuid_after) == ((), mixed.uuid)
        [step] = report.steps
        assert isinstance(step, Reindex)
        assert str(step).endswith(", which says that its entries are lost")
        assert log.snapshot is not None
        assert log.snapshot.sections == {"state": b"20"}
        mixed.check_goes_on(log)

    def test_a_snapshot_from_before_it_is_not_enough(self, mixed: Written) -> None:
        mixed.snapshot(8, {"state": b"8"})
        mixed.path(7, "entries").unlink()
        report, log = mixed.repaired()
        assert isinstance(report.steps[-1], ForgetState)
        assert log.snapshot is not None
        assert log.snapshot.sections == {}
        # Nor is it used if the empty one is lost as well.
        log.close()
        mixed.directory.joinpath(NAME(mixed.begins[13] - 1, "snapshot")).unlink()
        with pytest.raises(DamagedError, match="the snapshot that covers trimmed messages and lost entries"):
            Log.open(mixed.directory)
        assert len(problems(mixed.directory)) == 1

    def test_operations_from_before_are_not_kept_any_more(self, mixed: Written) -> None:
        mixed.path(7, "entries").unlink()
        _, log = mixed.repaired()
        for op in (1, mixed.begins[7] - 1, mixed.begins[7], mixed.begins[13] - 1):
            with pytest.raises(TrimmedError):
                log.read_ops(op)
        for seq in (1, 7, 12):
            with pytest.raises(TrimmedError):
                log.op_of(seq)
        assert log.op_of(13) == mixed.op(13)
        assert log.seq_of(mixed.begins[13] - 1) == 12
        assert (log.first, flat(log.scan(1))) == (1, mixed.messages)
        assert [log.seq_at(message.time) for message in mixed.messages[::2]] == list(range(1, 31, 2))
        log.close()

    def test_with_its_index(self, mixed: Written) -> None:
        """The next segment tells how many there were."""
        mixed.path(7, "entries").unlink()
        mixed.path(7, "index").unlink()
        report, log = mixed.repaired()
        assert (report.lost, report.uuid_after) == ((), mixed.uuid)
        assert report.lost_entries == ((6, 12),)
        index = SegmentIndex.read(mixed.path(7, "index"))
        assert (index.first_op, index.last_op, index.entries_lost) == (
            mixed.begins[7],
            mixed.begins[13] - 1,
            True,
        )
        mixed.check_goes_on(log)

    def test_with_a_record_batch(self, mixed: Written) -> None:
        flip(mixed.path(7, "entries"))
        mixed.change(7, "arrow", mixed.batch(7, 1) + 50)
        report = repair(mixed.directory)
        assert (report.first, report.last, report.lost) == (1, 8, ((9, 30),))
        assert report.lost_entries == ((6, 8),)
        assert report.uuid_after != mixed.uuid
        log = Log.open(mixed.directory)
        assert flat(log.scan(1)) == mixed.messages[:8]
        # Nobody knows how many entries stood among these messages: none of their operations is taken again.
        assert log.tail_op >= mixed.op(8)
        assert (log.first_op, operations(log.scan_ops(log.first_op))) == (log.tail_op + 1, [])
        mixed.check_goes_on(log)

    def test_the_ones_after_a_record_batch(self, mixed: Written) -> None:
        """Entries stay with the messages that are kept."""
        mixed.change(7, "arrow", mixed.batch(7, 1) + 50)
        report, log = mixed.repaired("after")
        assert (report.first, report.last, report.lost) == (11, 30, ((1, 10),))
        # Those after message 10 are before any message that is kept.
        assert log.first_op == mixed.op(10) + 1
        assert operations(log.scan_ops(log.first_op)) == mixed.operations[mixed.op(10) :]
        mixed.check_goes_on(log)

    def test_one_that_no_index_knows(self, mixed: Written) -> None:
        log = Log.open(mixed.directory / "plain")
        append(log, b"x")
        seal_all(log)
        log.close()
        stray = log.directory / NAME(1, "entries")
        stray.write_bytes(mixed.path(1, "entries").read_bytes())
        [problem] = problems(log.directory)
        assert (problem.path, problem.reason) == (stray, "the segment's index does not mention it")
        report = repair(log.directory)
        [step] = report.steps
        assert isinstance(step, SetAside)
        assert (report.lost, report.lost_entries) == ((), ())
        assert problems(log.directory) == []
        again = Log.open(log.directory)
        assert (again.head, again.uuid) == (1, log.uuid)
        again.close()

    def test_the_uuid_is_put_into_them_too(self, mixed: Written) -> None:
        mixed.change(25, "open", mixed.frame(25, 0) + 20)
        report, log = mixed.repaired()
        assert report.uuid_after != mixed.uuid
        for segment in log.segments:
            if isinstance(segment, SealedSegment):
                assert segment.entries is not None
                assert segment.entries.header.uuid == report.uuid_after
        mixed.check_goes_on(log)


class TestFramesOfEntries:
    @pytest.mark.parametrize("number", [19, 25])
    @pytest.mark.parametrize(("index", "after"), [(0, 0), (1, 4), (2, 4), (3, 6)])
    @pytest.mark.parametrize("covered", [False, True])
    def test_the_messages_around_them_stay(
        self, mixed: Written, number: int, index: int, after: int, covered: bool
    ) -> None:
        after += number - 1
        if covered:
            mixed.snapshot(30, {"state": b"30"})
        if (number, index) == (25, 3):
            # At the very end they look like an append that a crash cut short, unless something follows.
            log = Log.open(mixed.directory)
            append_entries(log, b"more")
            log.close()
            mixed.operations.append((log_op := len(mixed.operations) + 1, mixed.operations[-1][1]))
            assert log_op == len(mixed.operations)
        mixed.change(number, "open", mixed.entries_frame(number, index) + 20)
        [problem, *gap] = problems(mixed.directory)
        assert (problem.first, problem.last) == (after + 1, after)
        assert len(gap) == ((number, index) == (19, 3))
        assert str(problem).endswith(f"entries of the log after message {after} are in doubt")
        with pytest.raises(DamagedError):
            Log.open(mixed.directory)
        before = content_of(mixed.directory)
        report = repair(mixed.directory)
        assert (report.first, report.last, report.lost) == (1, 30, ())
        assert report.lost_entries == ((after, after),)
        assert report.uuid_after == mixed.uuid
        assert any(isinstance(step, Rewrite) for step in report.steps)
        assert any(isinstance(step, MarkLost) for step in report.steps)
        last = any(isinstance(step, ForgetState) for step in report.steps)
        assert last == (not covered or after == 30)
        assert f"lost: entries of the log after message {after}" in list(report.lines())
        assert report.aside is not None
        kept = content_of(report.aside)
        assert kept[mixed.name(number, "open")] == before[mixed.name(number, "open")]
        log = Log.open(mixed.directory)
        assert flat(log.scan(1)) == mixed.messages
        assert log.snapshot is not None
        assert log.snapshot.op + 1 >= log.first_op
        lost = [op for op, message in mixed.operations if message.seq == after]
        assert log.first_op > min(lost)
        expected = [each for each in mixed.operations if each[0] >= log.first_op][:-1]
        assert operations(log.scan_ops(log.first_op))[: len(expected)] == expected
        assert problems(mixed.directory) == []
        assert plan(mixed.directory).steps == ()
        mixed.check_goes_on(log)

    def test_several_places(self, mixed: Written) -> None:
        places = [(19, 1), (19, 3), (25, 0), (25, 2)]
        for number, at in [(number, mixed.entries_frame(number, index)) for number, index in places]:
            mixed.change(number, "open", at + 20)
        report, log = mixed.repaired()
        assert (report.first, report.last, report.lost) == (1, 30, ())
        # The tail ends with entries, and the next begins with some: that is one place.
        assert report.lost_entries == ((22, 22), (24, 24), (28, 28))
        mixed.check_goes_on(log)

    def test_an_append_whose_entries_are_lost_keeps_its_messages(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        log.append(
            [batch(1, b"a"), entries(1, b"tied", topic="x"), batch(2, b"b"), entries(2, b"too", topic="y")]
        )
        append(log, b"c")
        log.close()
        path = tmp_path / NAME(1, "open")
        path.write_bytes(path.read_bytes().replace(b"tied", b"TIED"))
        report = repair(tmp_path)
        assert (report.first, report.last, report.lost, report.lost_entries) == (1, 3, (), ((1, 1),))
        again = Log.open(tmp_path)
        assert [message.payload for message in flat(again.scan(1))] == [b"a", b"b", b"c"]
        assert (again.torn, again.first_op) == (None, 3)
        assert [message.payload for _, message in operations(again.scan_ops(3))] == [b"b", b"too", b"c"]
        again.close()

    def test_a_log_that_goes_on_seals_and_trims(self, mixed: Written) -> None:
        """A place that is marked lies between tails, and goes as any segment does."""
        mixed.change(19, "open", mixed.entries_frame(19, 1) + 20)
        repair(mixed.directory)
        log = Log.open(mixed.directory)
        assert [type(segment) is SealedSegment for segment in log.segments] == [
            *[True] * 3,
            False,
            True,
            False,
            False,
        ]
        log.write_snapshot(log.head_op, log.head, {"state": b"30"})
        # What is sealed after a tail that is not cannot go before it.
        log.retain(99, retain_bytes=0, retain_us=None, holds={})
        assert log.first == 19
        seal_all(log)
        assert flat(log.scan(19)) == mixed.messages[18:]
        log.retain(99, retain_bytes=0, retain_us=None, holds={})
        assert (log.first, log.tail, len(log.segments)) == (31, 30, 1)
        append(log, b"next")
        assert log.op_of(31) == log.tail_op
        log.close()
        again = Log.open(mixed.directory)
        assert again.head == 31
        again.close()

    def test_a_lost_label(self, tmp_path: Path) -> None:
        """Messages whose label was in a damaged frame are damaged too."""
        log = Log.open(tmp_path)
        append(log, b"first", topic="shared")
        append(log, b"second", topic="shared")
        append(log, b"third", topic="own")
        append_entries(log, b"entry", topic="shared too")
        append_entries(log, b"other", topic="shared too")
        append(log, b"fourth", topic="own")
        log.close()
        path = tmp_path / NAME(1, "open")
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"first", b"FIRST"))
        found = inspect_tail(path)
        assert [(p.first, p.last) for p in found.problems] == [(1, 1), (2, 2)]
        assert "the label of its rows is lost" in found.problems[1].reason
        report = repair(tmp_path, "after")
        assert (report.first, report.last) == (3, 4) or (report.first, report.last) == (4, 4)
        again = Log.open(tmp_path)
        assert {message.topic for message in flat(again.scan(again.first))} == {"own"}
        again.close()

    def test_lost_labels_of_entries(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"one", topic="t")
        append_entries(log, b"entry", topic="shared")
        append_entries(log, b"other", topic="shared")
        append(log, b"two", topic="t")
        append_entries(log, b"last", topic="shared")
        append(log, b"three", topic="t")
        log.close()
        path = tmp_path / NAME(1, "open")
        path.write_bytes(path.read_bytes().replace(b"entry", b"ENTRY"))
        report = repair(tmp_path)
        assert (report.first, report.last, report.lost) == (1, 3, ())
        assert report.lost_entries == ((1, 1), (2, 2))
        again = Log.open(tmp_path)
        assert [message.payload for message in flat(again.scan(1))] == [b"one", b"two", b"three"]
        assert [message.topic for message in flat(again.scan(1))] == ["t"] * 3
        again.close()


class TestWholeSegments:
    @pytest.fixture
    def only_entries(self, tmp_path: Path) -> Log:
        """Messages, a segment of entries only, messages: sealed, and a tail."""
        log = Log.open(tmp_path)
        append(log, b"1", b"2")
        seal_all(log)
        append_entries(log, b"a", b"b")
        append_entries(log, b"c")
        seal_all(log)
        append(log, b"3")
        append_entries(log, b"d")
        log.close()
        return log

    def test_it_is_one_without_messages(self, only_entries: Log) -> None:
        index = SegmentIndex.read(only_entries.directory / NAME(3, "index"))
        assert (index.first_op, index.last_op, index.first, index.last) == (3, 5, 3, 2)
        assert problems(only_entries.directory) == []
        log = Log.open(only_entries.directory)
        assert [message.payload for message in flat(log.scan(1))] == [b"1", b"2", b"3"]
        assert [message.payload for _, message in operations(log.scan_ops(1))] == [
            b"1",
            b"2",
            b"a",
            b"b",
            b"c",
            b"3",
            b"d",
        ]
        log.close()

    @pytest.mark.parametrize("kinds", [("index",), ("arrow",), ("entries",), ("arrow", "index", "entries")])
    def test_files_that_are_gone(self, only_entries: Log, kinds: tuple[str, ...]) -> None:
        for kind in kinds:
            (only_entries.directory / NAME(3, kind)).unlink()
        found = problems(only_entries.directory)
        assert found
        assert all(problem.last is None or problem.last < problem.first for problem in found)
        with pytest.raises(DamagedError):
            Log.open(only_entries.directory)
        report = repair(only_entries.directory)
        assert (report.first, report.last, report.lost) == (1, 3, ())
        assert report.uuid_after == only_entries.uuid
        assert problems(only_entries.directory) == []
        assert plan(only_entries.directory).steps == ()
        log = Log.open(only_entries.directory)
        assert [message.payload for message in flat(log.scan(1))] == [b"1", b"2", b"3"]
        assert log.op_of(3) == 6
        if kinds == ("index",):
            # The file of entries tells it all.
            assert (report.lost_entries, log.first_op) == ((), 1)
            assert len(operations(log.scan_ops(1))) == 7
        else:
            assert (report.lost_entries, log.first_op) == (((2, 2),), 6)
            assert log.snapshot is not None
            assert (log.snapshot.op, log.snapshot.seq) == (5, 2)
        append(log, b"4")
        log.close()


class TestTheEnd:
    def test_entries_that_only_a_snapshot_tells_of(self, tmp_path: Path) -> None:
        """Their operations will be those of others, so copies of the log must not go on."""
        log = Log.open(tmp_path)
        append(log, b"1")
        size = (tmp_path / NAME(1, "open")).stat().st_size
        append_entries(log, b"a", b"b")
        log.write_snapshot(3, 1, {"state": b"3"})
        log.close()
        os.truncate(tmp_path / NAME(1, "open"), size)
        with pytest.raises(DamagedError, match=r"ahead of the log.*entries of the log after message 1"):
            Log.open(tmp_path)
        report = repair(tmp_path)
        assert (report.last, report.lost, report.lost_entries) == (1, (), ((1, 1),))
        assert report.uuid_after != log.uuid
        said = list(report.lines())
        assert said[-1] == "other nodes and copies of the log must start over"
        again = Log.open(tmp_path)
        assert (again.tail, again.tail_op, again.snapshot) == (1, 1, None)
        again.close()

    def test_entries_in_a_tail_that_was_rotated_in_vain(self, mixed: Written) -> None:
        """The last tail cannot be read, and nobody knows what was in it."""
        data = mixed.path(25, "open").read_bytes()
        mixed.path(25, "open").write_bytes(b"x" * len(data))
        report, log = mixed.repaired()
        assert (report.last, report.lost) == (24, ((25, None),))
        mixed.check_goes_on(log)


class TestTheBeginning:
    def test_entries_before_the_first_message_are_lost(self, mixed: Written) -> None:
        flip(mixed.path(1, "entries"))
        report, log = mixed.repaired()
        assert (report.first, report.last) == (1, 30)
        assert report.lost_entries == ((0, 6),)
        assert "lost: entries of the log before message 1 and after messages 1 to 6" in list(report.lines())
        mixed.check_goes_on(log)

    def test_a_log_that_has_lost_its_first_message_keeps_the_others(self, tmp_path: Path) -> None:
        """What comes before the damage is entries only: nobody would want those alone."""
        log = Log.open(tmp_path)
        append_entries(log, b"created", topic="e")
        append(log, b"1", topic="one")
        append(log, b"2", topic="two")
        append(log, b"3", topic="three")
        log.close()
        path = tmp_path / NAME(1, "open")
        path.write_bytes(path.read_bytes().replace(b"one1", b"one!"))
        report = repair(tmp_path)
        assert (report.first, report.last, report.lost) == (3, 3, ((1, 2),))
        assert isinstance(report.steps[-1], ForgetState)
        assert not any(isinstance(step, Restamp) for step in report.steps)
        again = Log.open(tmp_path)
        assert [message.payload for message in flat(again.scan(3))] == [b"3"]
        again.close()


def test_nothing_is_wrong_with_any_of_it(mixed: Written) -> None:
    assert [each for each in verify(mixed.directory) if not isinstance(each, Progress)] == []
    steps = [each for each in verify(mixed.directory) if isinstance(each, Progress)]
    assert steps[-1].done == sum(map(len, content_of(mixed.directory).values()))
