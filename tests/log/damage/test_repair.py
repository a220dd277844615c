from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tests.log.content import SOAK, append, batch, content_of, flat, restore
from tests.log.written import NAME, Written

from headrace.errors import DamagedError, LockedError, StorageError
from headrace.log import Log, recovery
from headrace.log.damage.repair import plan, repair
from headrace.log.damage.repair_plan import ForgetState, Keep, Reindex, Restamp, Rewrite, SetAside
from headrace.log.damage.verify import Progress, verify
from headrace.log.frame_file import FileHeader
from headrace.log.tail import TailFile


def test_nothing_is_wrong(written: Written) -> None:
    report, log = written.repaired()
    assert (report.problems, report.steps, report.lost, report.aside) == ((), (), (), None)
    assert list(report.lines()) == [f"{written.directory}: nothing is wrong with this log"]
    assert report.uuid_after == written.uuid
    log.close()


def test_it_is_done_offline(written: Written) -> None:
    log = Log.open(written.directory)
    with pytest.raises(LockedError, match=f"in use by process {os.getpid()}"):
        repair(written.directory)
    plan(written.directory)
    log.close()


def test_where_there_is_nothing(tmp_path: Path) -> None:
    assert plan(tmp_path).problems == ()
    with pytest.raises(StorageError, match="no such file"):
        plan(tmp_path / "none")


class TestTails:
    def test_a_torn_end_needs_no_repair(self, written: Written) -> None:
        with written.path(25, "open").open("ab") as file:
            file.write(b"torn")
        report = plan(written.directory)
        assert report.steps == ()
        assert [problem.mends for problem in report.problems] == [True]
        assert "repaired when the log is next opened" in "".join(report.lines())
        report, log = written.repaired()
        assert (report.last, report.lost, report.uuid_after) == (30, (), written.uuid)
        written.check_goes_on(log)

    def test_a_bad_frame_in_the_open_tail(self, written: Written) -> None:
        where = written.frame(25, 1)
        written.change(25, "open", where + 30)
        [problem] = plan(written.directory).problems
        assert (problem.path, problem.offset) == (written.path(25, "open"), where)
        assert (problem.first, problem.last) == (27, 28)
        report, log = written.repaired()
        assert (report.first, report.last) == (1, 26)
        assert report.lost == ((27, 30),)
        assert report.uuid_after != written.uuid
        assert [type(step) for step in report.steps] == [Restamp] * 4 + [Rewrite]
        said = list(report.lines())
        assert "lost: messages 27 to 30" in said
        assert f"the log's uuid was {written.uuid}, it is {report.uuid_after} now" in said
        assert said[-1].startswith("numbers from 27 on go to other messages")
        assert log.tail == 26
        written.check_goes_on(log)

    def test_every_file_gets_the_new_uuid(self, written: Written) -> None:
        log = Log.open(written.directory)
        log.write_snapshot(written.op(10), 10, {"state": b"10"})
        log.close()
        written.change(25, "open", written.frame(25, 0) + 30)
        report, log = written.repaired()
        assert {segment.uuid for segment in log.segments} == {report.uuid_after}
        assert log.snapshot is not None
        assert (log.snapshot.uuid, log.snapshot.seq, log.snapshot.sections) == (
            report.uuid_after,
            10,
            {"state": b"10"},
        )
        written.check_goes_on(log)

    def test_a_bad_frame_in_a_rotated_tail(self, written: Written) -> None:
        written.change(19, "open", written.frame(19, 2) + 5)
        report, log = written.repaired()
        assert (report.last, report.lost) == (22, ((23, 30),))
        assert any(
            isinstance(step, SetAside) and step.path == written.path(25, "open") for step in report.steps
        )
        written.check_goes_on(log)

    def test_a_rotated_tail_cut_short(self, written: Written) -> None:
        os.truncate(written.path(19, "open"), written.frame(19, 2) + 9)
        report, log = written.repaired()
        assert (report.last, report.lost) == (22, ((23, 30),))
        written.check_goes_on(log)

    @pytest.mark.parametrize("number", [19, 25])
    def test_a_bad_header_loses_nothing(self, written: Written, number: int) -> None:
        written.change(number, "open", 20)
        report, log = written.repaired()
        assert (report.first, report.last, report.lost) == (1, 30, ())
        assert report.uuid_after == written.uuid
        [step] = report.steps
        assert isinstance(step, Rewrite)
        written.check_goes_on(log)

    def test_a_bad_header_and_a_bad_first_frame(self, written: Written) -> None:
        written.change(25, "open", 20)
        written.change(25, "open", 60)
        report, log = written.repaired()
        assert (report.last, report.lost) == (24, ((25, None),))
        assert "lost: messages from 25 on" in list(report.lines())
        assert report.uuid_after != written.uuid
        written.check_goes_on(log)

    def test_the_only_header(self, tmp_path: Path) -> None:
        """No other file knows the uuid, so the log gets a new one; the messages stay."""
        log = Log.open(tmp_path)
        append(log, b"one")
        append(log, b"two")
        log.close()
        path = tmp_path / NAME(1, "open")
        path.write_bytes(b"!" + path.read_bytes()[1:])
        report = repair(tmp_path)
        assert (report.uuid_before, report.lost) == (None, ())
        assert any("was unreadable" in line for line in report.lines())
        again = Log.open(tmp_path)
        assert [message.payload for message in flat(again.scan(1))] == [b"one", b"two"]
        assert again.uuid == report.uuid_after != log.uuid
        again.close()

    def test_the_only_header_where_a_snapshot_knows(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"one")
        log.write_snapshot(1, 1, {})
        log.close()
        path = tmp_path / NAME(1, "open")
        path.write_bytes(b"!" + path.read_bytes()[1:])
        assert repair(tmp_path).uuid_after == log.uuid
        Log.open(tmp_path).close()

    def test_an_append_that_is_not_whole_does_not_stay_in_part(self, tmp_path: Path) -> None:
        log = Log.open(tmp_path)
        append(log, b"one")
        log.append([batch(2, b"two"), batch(3, b"three"), batch(4, b"four")])
        log.append([batch(5, b"five")])
        log.append([batch(6, b"six")])
        log.close()
        path = tmp_path / NAME(1, "open")
        path.write_bytes(path.read_bytes().replace(b"four", b"FOUR"))
        report = repair(tmp_path)
        assert (report.last, report.lost) == (1, ((2, 6),))
        again = Log.open(tmp_path)
        assert (again.torn, again.tail) == (None, 1)
        again.close()

    def test_a_frame_out_of_place(self, written: Written) -> None:
        path = written.path(25, "open")
        data = path.read_bytes()
        begin, end = written.frame(25, 1), written.frame(25, 2)
        path.write_bytes(data[:begin] + data[end:])
        [problem] = plan(written.directory).problems
        assert (problem.first, problem.last, problem.reason) == (27, 28, "message 29 stands where 27 belongs")
        report, log = written.repaired()
        assert (report.last, report.lost) == (26, ((27, 30),))
        written.check_goes_on(log)


class TestSealedSegments:
    @pytest.mark.parametrize(("batch", "kept"), [(0, 6), (1, 8), (2, 10)])
    def test_a_bad_record_batch(self, written: Written, batch: int, kept: int) -> None:
        written.change(7, "arrow", written.batch(7, batch) + 50)
        report, log = written.repaired()
        assert (report.first, report.last) == (1, kept)
        assert report.lost == ((kept + 1, 30),)
        assert report.uuid_after != written.uuid
        written.check_goes_on(log)

    def test_bytes_around_the_record_batches(self, written: Written) -> None:
        """Only other readers need them: they are written anew, and nothing is lost."""
        written.change(7, "arrow", -3)
        report, log = written.repaired()
        assert (report.lost, report.uuid_after) == ((), written.uuid)
        [step] = report.steps
        assert isinstance(step, Rewrite)
        assert pa.ipc.open_file(written.path(7, "arrow")).read_all().num_rows == 6
        written.check_goes_on(log)

    def test_a_file_cut_short(self, written: Written) -> None:
        os.truncate(written.path(7, "arrow"), written.batch(7, 1) + 10)
        report, log = written.repaired()
        assert (report.last, report.lost) == (8, ((9, 30),))
        written.check_goes_on(log)

    @pytest.mark.parametrize("harm", ["change", "cut", "remove"])
    def test_a_lost_index_is_rebuilt(self, written: Written, harm: str) -> None:
        index = written.path(7, "index")
        match harm:
            case "change":
                written.change(7, "index", 40)
            case "cut":
                os.truncate(index, 30)
            case "remove":
                index.unlink()
        report, log = written.repaired()
        assert (report.lost, report.uuid_after) == ((), written.uuid)
        [step] = report.steps
        assert isinstance(step, Reindex)
        assert "there are no checksums to check its bytes against" in "".join(report.lines())
        assert index.read_bytes() == written.content[written.name(7, "index")]
        written.check_goes_on(log)

    def test_an_index_and_its_file(self, written: Written) -> None:
        written.change(7, "index", 40)
        os.truncate(written.path(7, "arrow"), written.path(7, "arrow").stat().st_size // 2)
        report, log = written.repaired()
        assert (report.last, report.lost) == (6, ((7, 30),))
        assert len(report.problems) == 2
        written.check_goes_on(log)

    def test_a_missing_segment(self, written: Written) -> None:
        written.path(7, "arrow").unlink()
        report, log = written.repaired()
        assert (report.last, report.lost) == (6, ((7, 30),))
        assert "messages 7 to 12 are missing before it" in "".join(report.lines())
        written.check_goes_on(log)

    def test_the_first_segment_of_all(self, written: Written) -> None:
        """Nothing comes before the hole, so what follows it stays; the state before it is forgotten."""
        written.change(1, "index", 40)
        os.truncate(written.path(1, "arrow"), 100)
        report, log = written.repaired()
        assert (report.first, report.last, report.lost) == (7, 30, ((1, 6),))
        assert report.uuid_after == written.uuid
        assert isinstance(report.steps[-1], ForgetState)
        assert "begin with an empty state after message 6" in "".join(report.lines())
        assert log.snapshot is not None
        assert (log.snapshot.seq, log.snapshot.sections) == (6, {})
        written.check_goes_on(log)

    def test_a_tail_that_makes_up_for_it(self, written: Written) -> None:
        """A crash while sealing leaves both; neither is damage."""
        log = Log.open(written.directory)
        tail = written.path(19, "open").read_bytes()
        log.seal_next()
        log.close()
        written.path(19, "open").write_bytes(tail)
        written.change(19, "arrow", 1500)
        report = repair(written.directory)
        assert (report.problems, report.steps, report.lost) == ((), (), ())
        log = Log.open(written.directory)
        assert flat(log.scan(1)) == written.messages
        written.check_goes_on(log)


class TestKeepingWhatComesAfter:
    def test_with_a_snapshot_it_is_as_if_trimmed(self, written: Written) -> None:
        log = Log.open(written.directory)
        log.write_snapshot(written.op(20), 20, {"state": b"20"})
        log.close()
        written.change(7, "arrow", written.batch(7, 0) + 50)
        report, log = written.repaired("after")
        assert (report.first, report.last, report.lost) == (9, 30, ((1, 8),))
        assert report.uuid_after == written.uuid
        assert log.snapshot is not None
        assert log.snapshot.sections == {"state": b"20"}
        assert not written.path(7, "arrow").exists()
        assert written.path(9, "arrow").exists()
        written.check_goes_on(log)

    def test_without_one_the_state_is_forgotten(self, written: Written) -> None:
        written.change(19, "open", written.frame(19, 0) + 30)
        report, log = written.repaired("after")
        # The first append behind the damage may belong to one that is not whole.
        assert (report.first, report.last, report.lost) == (23, 30, ((1, 22),))
        assert report.uuid_after == written.uuid
        assert isinstance(report.steps[-1], ForgetState)
        written.check_goes_on(log)

    def test_the_last_of_several_runs(self, written: Written) -> None:
        written.path(7, "arrow").unlink()
        written.change(19, "open", written.frame(19, 2) + 8)
        report, log = written.repaired("after")
        assert (report.first, report.last) == (25, 30)
        written.check_goes_on(log)


class TestSnapshots:
    def test_a_damaged_one_goes_aside(self, written: Written) -> None:
        log = Log.open(written.directory)
        log.write_snapshot(written.op(10), 10, {"state": b"10"})
        log.write_snapshot(written.op(20), 20, {"state": b"20"})
        log.close()
        written.change(20, "snapshot", 10)
        report, log = written.repaired()
        assert (report.lost, report.uuid_after) == ((), written.uuid)
        assert [str(step) for step in report.steps] == [
            f"set {written.name(20, 'snapshot')} aside: the snapshot does not match its checksum"
        ]
        assert log.snapshot is not None
        assert log.snapshot.seq == 10
        written.check_goes_on(log)

    def trimmed(self, written: Written) -> None:
        log = Log.open(written.directory)
        log.write_snapshot(written.op(20), 20, {"state": b"20"})
        log.retain(0, retain_bytes=0, retain_us=None, holds={})
        assert log.first == 19
        log.close()

    def test_one_that_trimmed_messages_need(self, written: Written) -> None:
        self.trimmed(written)
        written.change(20, "snapshot", 10)
        report, log = written.repaired()
        assert (report.first, report.last, report.lost) == (19, 30, ())
        assert isinstance(report.steps[-1], ForgetState)
        assert log.snapshot is not None
        assert (log.snapshot.seq, log.snapshot.sections) == (18, {})
        written.check_goes_on(log)

    def test_one_ahead_of_the_log(self, written: Written) -> None:
        log = Log.open(written.directory)
        log.write_snapshot(written.op(30), 30, {})
        log.close()
        os.truncate(written.path(25, "open"), written.frame(25, 1))
        with pytest.raises(
            DamagedError, match="the snapshot at message 30 is ahead of the log, which ends at 26"
        ):
            Log.open(written.directory)
        report, log = written.repaired()
        assert (report.last, report.lost) == (26, ((27, 30),))
        assert report.uuid_after != written.uuid
        written.check_goes_on(log)

    def test_nothing_left_but_a_snapshot(self, written: Written) -> None:
        """The numbers go on behind it, and so does the state: nobody is confused."""
        log = Log.open(written.directory)
        log.write_snapshot(written.op(30), 30, {"state": b"30"})
        log.close()
        for path in written.directory.iterdir():
            if path.suffix != ".snapshot":
                path.unlink()
        report = repair(written.directory)
        assert (report.first, report.last, report.uuid_after) == (31, 30, written.uuid)
        log = Log.open(written.directory)
        assert log.snapshot is not None
        assert log.snapshot.sections == {"state": b"30"}
        append(log, b"next")
        assert log.tail == 31
        log.close()

    def test_one_of_another_log(self, written: Written) -> None:
        other = Log.open(written.directory / "other")
        append(other, *[b""] * 12)
        other.write_snapshot(12, 12, {})
        other.close()
        shutil.move(written.directory / "other" / NAME(12, "snapshot"), written.directory)
        shutil.rmtree(written.directory / "other")
        report, log = written.repaired()
        assert f"it belongs to log {other.uuid}, not to this one" in "".join(report.lines())
        written.check_goes_on(log)


class TestForeignSegments:
    def test_they_go_aside(self, written: Written) -> None:
        other = Log.open(written.directory / "other")
        append(other, *[b"foreign"] * 30)
        other.rotate()
        append(other, b"foreign")
        other.close()
        shutil.move(written.directory / "other" / NAME(31, "open"), written.directory)
        shutil.rmtree(written.directory / "other")
        report, log = written.repaired()
        assert (report.last, report.lost, report.uuid_after) == (30, (), written.uuid)
        written.check_goes_on(log)

    def test_a_sealed_segment_under_another_name(self, written: Written) -> None:
        for kind in ("arrow", "index"):
            written.path(13, kind).rename(written.path(14, kind))
        report, log = written.repaired()
        assert (report.last, report.lost) == (12, ((13, 30),))
        assert "it does not begin where its name says" in "".join(report.lines())
        written.check_goes_on(log)

    def test_messages_that_are_there_twice(self, written: Written) -> None:
        """A tail that somebody put back beside the segment that was sealed from it, under a number within."""
        log = Log.open(written.directory)
        TailFile.create(written.path(28, "open"), log.uuid, written.op(28), 28, sync=False)
        log.close()
        report, log = written.repaired()
        assert (report.last, report.lost, report.uuid_after) == (30, (), written.uuid)
        written.check_goes_on(log)

    def test_a_file_under_another_name(self, written: Written) -> None:
        written.path(25, "open").rename(written.path(26, "open"))
        report, log = written.repaired()
        assert (report.last, report.lost) == (24, ((25, None),))
        written.check_goes_on(log)


class TestNothingLeft:
    def test_it_begins_again(self, written: Written) -> None:
        for path in written.directory.iterdir():
            path.write_bytes(b"garbage" * 50)
        report = repair(written.directory)
        assert (report.first, report.last) == (1, 0)
        assert report.lost == ((1, None),)
        log = Log.open(written.directory)
        assert log.uuid == report.uuid_after
        append(log, b"first")
        log.close()


class TestInterruption:
    class InterruptionError(Exception):
        pass

    def test_at_any_moment(self, written: Written) -> None:
        """However far a repair has come, the next one ends where an uninterrupted one would have."""
        log = Log.open(written.directory)
        log.write_snapshot(written.op(3), 3, {"state": b"3"})
        log.write_snapshot(written.op(20), 20, {"state": b"20"})
        log.close()
        written.change(7, "arrow", written.batch(7, 1) + 50)
        written.change(13, "index", 40)
        damaged = content_of(written.directory)
        names = ("rename", "replace", "link", "unlink", "mkdir", "fsync", "rmdir")
        stopped = 0
        for moment in range(200):
            restore(written.directory, damaged)
            calls = 0

            def interrupting(name: str, moment: int = moment) -> None:
                original = getattr(os, name)

                def call(*arguments: object, **keywords: object) -> object:
                    nonlocal calls
                    calls += 1
                    if calls > moment:
                        raise self.InterruptionError
                    return original(*arguments, **keywords)

                patch.setattr(os, name, call)

            with pytest.MonkeyPatch.context() as patch:
                for name in names:
                    interrupting(name)
                try:
                    repair(written.directory)
                except self.InterruptionError:
                    stopped += 1
                else:
                    break
            keep: Keep = "before"
            if (written.directory / recovery.REPAIRING).exists():
                # It is not too late to decide otherwise.
                keep = "before" if moment % 3 else "after"
                with pytest.raises(DamagedError, match="a repair was interrupted: run it again"):
                    Log.open(written.directory)
                assert any("interrupted" in str(each) for each in verify(written.directory))
            plan(written.directory, keep)
            report = repair(written.directory, keep)
            log = Log.open(written.directory)
            assert (log.first, log.head) == ((1, 8) if keep == "before" else (11, 30))
            assert flat(log.scan(log.first)) == written.messages[log.first - 1 : log.head]
            assert (log.uuid == written.uuid) == (keep == "after")
            assert log.uuid == report.uuid_after
            assert log.snapshot is not None
            assert log.snapshot.sections == {"state": b"3" if keep == "before" else b"20"}
            log.close()
            assert [each for each in verify(written.directory) if not isinstance(each, Progress)] == []
        assert stopped > 20


class TestAnything:
    def harm(self, written: Written, chance: random.Random) -> None:
        path = chance.choice(
            sorted(p for p in written.directory.iterdir() if p.name not in ("lock", "synced"))
        )
        data = path.read_bytes()
        match chance.randrange(6):
            case 0 | 1 | 2 if data:
                place = chance.randrange(len(data))
                path.write_bytes(
                    data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
                )
            case 3:
                path.write_bytes(data[: chance.randrange(len(data) + 1)])
            case 4:
                path.unlink()
            case _:
                place = chance.randrange(len(data) + 1)
                path.write_bytes(data[:place] + chance.randbytes(chance.randrange(60)) + data[place:])

    @pytest.mark.parametrize("seed", range(3000 if SOAK else 40))
    def test_any_damage_can_be_repaired(self, written: Written, seed: int) -> None:
        """Whatever happened, afterwards the log opens, and holds only what was written under those numbers."""
        chance = random.Random(seed)
        log = Log.open(written.directory)
        log.write_snapshot(written.op(8), 8, {"state": b"8"})
        log.write_snapshot(written.op(16), 16, {"state": b"16"})
        if chance.random() < 0.5:
            log.retain(0, retain_bytes=0, retain_us=None, holds={})
        log.close()
        for _ in range(chance.randrange(1, 5)):
            self.harm(written, chance)
        keep: Keep = chance.choice(["before", "after"])
        planned = plan(written.directory, keep)
        report = repair(written.directory, keep)
        assert planned.problems == report.problems
        log = Log.open(written.directory)
        assert (log.first, log.head) == (report.first, report.last)
        found = flat(log.scan(log.first))
        assert [message.seq for message in found] == list(range(log.first, log.head + 1))
        if not any(isinstance(step, Reindex | Rewrite) and step.source.rebuilt for step in report.steps):
            # Where an index is lost with its checksums, a changed payload may go unnoticed; nowhere else.
            assert found == written.messages[log.first - 1 : log.head]
            written.check_state(report, log)
        lost_later = any(last is None or last > report.last for _, last in report.lost)
        if lost_later:
            assert report.uuid_after != report.uuid_before
        elif report.uuid_before is not None and log.tail_op == len(written.operations):
            assert log.uuid == written.uuid
        covered = 0 if log.snapshot is None else log.snapshot.op
        assert covered + 1 >= log.first_op
        written.check_goes_on(log)
        assert plan(written.directory).steps == ()
        assert [each for each in verify(written.directory) if not isinstance(each, Progress)] == []


def test_the_report_names_a_header(written: Written) -> None:
    """The numbers of a tail whose header is lost come from its frames and its name."""
    before = FileHeader.parse(written.path(25, "open").read_bytes(), written.path(25, "open"))
    written.change(25, "open", 41)
    _, log = written.repaired()
    log.close()
    after = FileHeader.parse(written.path(25, "open").read_bytes(), written.path(25, "open"))
    assert (after.uuid, after.op, after.first) == (before.uuid, before.op, before.first)
