from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.log.content import append, content_of, flat, seal_all
from tests.log.written import NAME, Written

from headrace.log import Log
from headrace.log.damage import inspection, verify
from headrace.log.damage.findings import InspectedSegment, Problem
from headrace.log.damage.inspection import inspect_tail
from headrace.log.damage.verify import Progress
from headrace.log.frame_file import HEADER_BYTES


def problems(directory: Path) -> list[Problem]:
    return [each for each in verify.verify(directory) if isinstance(each, Problem)]


class TestFindings:
    def test_nothing(self, written: Written) -> None:
        before = content_of(written.directory)
        found = list(verify.verify(written.directory))
        assert all(isinstance(each, Progress) for each in found)
        assert content_of(written.directory) == before

    def test_progress_covers_every_byte(self, written: Written) -> None:
        log = Log.open(written.directory)
        log.write_snapshot(written.op(30), 30, {"state": b"x" * 1000})
        log.close()
        steps = [each for each in verify.verify(written.directory) if isinstance(each, Progress)]
        total = sum(map(len, content_of(written.directory).values()))
        assert {step.total for step in steps} == {total}
        assert [step.done for step in steps] == sorted(step.done for step in steps)
        assert steps[-1].done == total
        assert steps[-1].last == 30
        assert [step.path.name for step in steps] == [
            written.name(30, "snapshot"),
            "chain",
            *(written.name(n, "arrow") for n in (1, 7, 13)),
            written.name(19, "open"),
            written.name(25, "open"),
        ]

    def test_damaged_digests_are_told_and_harm_nothing(self, written: Written) -> None:
        chain = written.directory / "chain"
        chain.write_bytes(chain.read_bytes()[:-1] + b"x")
        (found,) = (each for each in verify.verify(written.directory) if isinstance(each, Problem))
        assert (found.path, found.reason) == (chain, "the digests do not match their checksum")
        assert found.harmless
        Log.open(written.directory).close()

    def test_everything_that_is_wrong_is_named(self, written: Written) -> None:
        """One finding for each problem, and a problem does not hide the next."""
        log = Log.open(written.directory)
        log.write_snapshot(written.op(8), 8, {})
        log.write_snapshot(written.op(9), 9, {})
        log.close()
        written.change(1, "arrow", written.batch(1, 0) + 60)
        written.change(1, "arrow", written.batch(1, 2) + 60)
        written.change(7, "index", 20)
        written.change(19, "open", written.frame(19, 0) + 20)
        second = written.frame(25, 1)
        third = written.frame(25, 2)
        written.change(25, "open", second + 20)
        with written.path(25, "open").open("ab") as file:
            file.write(b"torn")
        written.change(9, "snapshot", 12)
        found = [(p.path.name, p.first, p.last, p.mends) for p in problems(written.directory)]
        assert found == [
            (written.name(9, "snapshot"), 1, None, False),
            (written.name(1, "arrow"), 1, 2, False),
            (written.name(1, "arrow"), 5, 6, False),
            (written.name(7, "index"), 7, None, False),
            (written.name(19, "open"), 19, 20, False),
            (written.name(25, "open"), 27, 28, False),
            (written.name(25, "open"), 31, None, True),
        ]
        offsets = [p.offset for p in problems(written.directory) if p.path.name == written.name(25, "open")]
        assert offsets == [second, third + (written.path(25, "open").stat().st_size - 4 - third)]

    def test_each_reads_as_a_sentence(self, written: Written) -> None:
        written.change(7, "arrow", written.batch(7, 1) + 60)
        os.truncate(written.path(25, "open"), written.frame(25, 2) + 3)
        damaged, torn = map(str, problems(written.directory))
        where = (
            f"{written.path(7, 'arrow')}: a record batch's checksum is wrong at byte {written.batch(7, 1)}"
        )
        assert damaged == f"{where}; messages 9 to 10 are in doubt"
        assert torn.endswith(
            "messages from 29 on are in doubt (left by a crash; repaired when the log is next opened)"
        )

    def test_holes_and_overlaps(self, written: Written) -> None:
        written.path(7, "arrow").unlink()
        [hole] = problems(written.directory)
        assert (hole.path, hole.first, hole.last) == (written.path(13, "arrow"), 7, 12)
        os.truncate(written.path(19, "open"), HEADER_BYTES)
        assert [(p.first, p.last) for p in problems(written.directory)] == [(7, 12), (19, 24)]

    def test_snapshots_that_do_not_fit(self, written: Written) -> None:
        log = Log.open(written.directory)
        log.write_snapshot(written.op(30), 30, {})
        log.close()
        os.truncate(written.path(25, "open"), HEADER_BYTES)
        [ahead] = problems(written.directory)
        assert (ahead.first, ahead.last) == (25, 30)
        assert "the snapshot at message 30 is ahead of the log, which ends at 24" in ahead.reason
        for number, kind in ((1, "arrow"), (1, "index"), (30, "snapshot")):
            written.path(number, kind).unlink()
        [missing] = problems(written.directory)
        assert (missing.first, missing.last) == (1, 6)
        assert "the snapshot that covers trimmed messages and lost entries is missing" in missing.reason

    def test_another_logs_files(self, written: Written) -> None:
        other = Log.open(written.directory / "other")
        append(other, *[b""] * 30)
        other.write_snapshot(30, 30, {})
        other.rotate()
        other.close()
        for kind in ((31, "open"), (30, "snapshot")):
            (written.directory / "other" / NAME(*kind)).rename(written.directory / NAME(*kind))
        snapshot, segment = problems(written.directory)
        assert snapshot.reason == f"it belongs to log {other.uuid}, not to this one"
        assert segment.reason == f"it belongs to log {other.uuid}, its neighbours to log {written.uuid}"

    def test_a_tail_that_was_never_begun(self, written: Written) -> None:
        written.path(31, "open").write_bytes(b"")
        [torn] = problems(written.directory)
        assert (torn.path, torn.first, torn.mends) == (written.path(31, "open"), 31, True)

    def test_a_damaged_header_hides_nothing(self, written: Written) -> None:
        written.change(25, "open", 9)
        [header] = problems(written.directory)
        assert (header.path, header.offset, header.first, header.last) == (
            written.path(25, "open"),
            0,
            25,
            None,
        )
        inspected = inspect_tail(written.path(25, "open"))
        assert [(good.first, good.last) for good in inspected.good] == [(25, 30)]


class TestRunningHubs:
    """What a hub is just doing is not damage."""

    def test_an_append_under_way(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        path = written.path(25, "open")
        whole = path.read_bytes()
        path.write_bytes(whole[:-10])
        original = verify.inspect_tail

        def meanwhile(which: Path, *more: Any) -> InspectedSegment:
            path.write_bytes(whole)
            return original(which, *more)

        monkeypatch.setattr(verify, "inspect_tail", meanwhile)
        assert problems(written.directory) == []

    def test_an_append_that_a_busy_machine_does_not_come_to(self, written: Written) -> None:
        log = Log.open(written.directory)
        path = written.path(25, "open")
        os.truncate(path, path.stat().st_size - 10)
        assert problems(written.directory) == []
        log.close()
        (torn,) = problems(written.directory)
        assert torn.mends

    def test_sealing_and_trimming_under_way(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        log = Log.open(written.directory)
        original = inspection.inspect_segment
        done = []

        def meanwhile(directory: Path, number: int, *more: Any) -> InspectedSegment | None:
            if not done:
                seal_all(log)
                append(log, b"next")
                log.write_snapshot(written.op(31), 31, {})
                log.retain(0, retain_bytes=30_000, retain_us=None, holds={})
                done.append(log.first)
            return original(directory, number, *more)

        monkeypatch.setattr(inspection, "inspect_segment", meanwhile)
        assert problems(written.directory) == []
        assert done
        log.close()

    def test_files_that_vanish(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        """A tail that was torn a moment ago, and a snapshot, are gone when we come to them."""
        log = Log.open(written.directory)
        log.write_snapshot(written.op(20), 20, {})
        log.close()
        os.truncate(written.path(25, "open"), written.frame(25, 2) + 3)
        shown = verify.snapshot.paths

        def vanishing(directory: Path) -> list[Path]:
            found = shown(directory)
            for path in found:
                path.unlink()
            return found

        monkeypatch.setattr(verify.snapshot, "paths", vanishing)
        inspected = verify.inspect_tail

        def gone(path: Path, *more: Any) -> InspectedSegment:
            path.unlink(missing_ok=True)
            return inspected(path, *more)

        monkeypatch.setattr(verify, "inspect_tail", gone)
        assert problems(written.directory) == []

    def test_for_real(self, tmp_path: Path) -> None:
        """Beside a process that appends, seals and trims all the time."""
        script = """
import sys
from pathlib import Path
from typing import Any
from headrace.log import Log
from tests.log.content import append
log = Log.open(Path(sys.argv[1]), segment_bytes=20_000, fsync="never")
print("ready", flush=True)
while True:
    for n in range(40):
        append(log, b"x" * (n * 100 % 3000), b"y")
    log.seal_next()
    log.write_snapshot(log.head_op, log.head, {})
    log.retain(0, retain_bytes=200_000, retain_us=None, holds={})
"""
        with subprocess.Popen(
            [sys.executable, "-c", script, tmp_path], cwd=Path(__file__).parents[3], stdout=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                for _ in range(60):
                    assert problems(tmp_path) == []
            finally:
                process.kill()
        assert all(problem.mends for problem in problems(tmp_path))
        log = Log.open(tmp_path)
        assert flat(log.scan(log.first))
        log.close()
