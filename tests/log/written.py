"""A log of every kind of segment, to be damaged, surveyed and repaired."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from tests.log.content import (
    append,
    append_entries,
    batch,
    check_operations,
    columns,
    content_of,
    entries,
    flat,
    messages_of,
    operations,
    seal_all,
)

from headrace.errors import TrimmedError
from headrace.log import Log
from headrace.log.damage.repair import plan, repair
from headrace.log.damage.repair_plan import ForgetState, Keep, Report, Restamp
from headrace.log.damage.verify import Progress, verify
from headrace.log.sealed import sealing
from headrace.log.sealed.index import SegmentIndex
from headrace.log.tail import TailFile
from headrace.message import NOT_A_MESSAGE, Message

NAME = "{:016d}.{}".format


@dataclass(frozen=True)
class Written:
    """Messages 1 to 30, six in each segment: three sealed, one rotated, one open; by twos in appends and batches.

    A mixed one has entries too, in each segment: before its first message, in the append of its second two messages
    after them, and three at its end. Files are spoken of by the first message they hold.
    """

    directory: Path
    uuid: UUID
    operations: list[tuple[int, Message]]
    begins: dict[int, int]
    """The first operation of each file, by its first message; of the file that would come next, too."""
    content: dict[str, bytes]

    @property
    def mixed(self) -> bool:
        return len(self.operations) > 30

    @property
    def messages(self) -> list[Message]:
        return messages_of(self.operations)

    def op(self, seq: int) -> int:
        """The operation of a message; after the last, the next of all."""
        found = (op for op, each in self.operations if each.seq == seq and each.origin != NOT_A_MESSAGE)
        return next(found, len(self.operations) + 1)

    def path(self, number: int, kind: str) -> Path:
        op = self.op(number) if kind == "snapshot" else self.begins.get(number) or self.op(number)
        return self.directory / NAME(op, kind)

    def name(self, number: int, kind: str) -> str:
        return self.path(number, kind).name

    def snapshot(self, seq: int, sections: dict[str, bytes]) -> None:
        """Write the state after a message."""
        log = Log.open(self.directory)
        log.write_snapshot(self.op(seq), seq, sections)
        log.close()

    def change(self, number: int, kind: str, offset: int) -> None:
        """Damage one byte."""
        path = self.path(number, kind)
        data = bytearray(path.read_bytes())
        data[offset] ^= 0x40
        path.write_bytes(data)

    def frame(self, number: int, index: int) -> int:
        """Where a frame of a tail begins; only frames of messages are counted."""
        tail, _ = TailFile.open(self.path(number, "open"), writable=False)
        return tail._columns.offsets[tail._columns.frames[index]]

    def entries_frame(self, number: int, index: int) -> int:
        """Where a frame of entries of a tail begins."""
        tail, _ = TailFile.open(self.path(number, "open"), writable=False)
        return [at for place, at in enumerate(tail._columns.offsets) if place not in tail._columns.frames][
            index
        ]

    def batch(self, number: int, index: int) -> int:
        """Where a record batch of a sealed segment begins."""
        return int(SegmentIndex.read(self.path(number, "index")).batches[index]["offset"])

    def repaired(self, keep: Keep = "before") -> tuple[Report, Log]:
        """Plan, repair, and check all that holds for any repair."""
        before = content_of(self.directory)
        planned = plan(self.directory, keep)
        assert content_of(self.directory) == before
        assert planned.aside is None
        report = repair(self.directory, keep)
        assert [str(step) for step in report.steps] == [str(step) for step in planned.steps]
        assert report.problems == planned.problems
        assert (report.first, report.last, report.lost) == (planned.first, planned.last, planned.lost)
        after = content_of(self.directory)
        if any(not isinstance(step, Restamp) for step in report.steps):
            assert report.aside is not None
            assert after[f"{report.aside.name}/report.txt"].decode().splitlines() == list(report.lines())
        for name, data in before.items():
            # Nothing is deleted: what is not the same any more is kept aside as it was.
            kept = data in (after.get(name), after.get(f"{report.aside and report.aside.name}/{name}"))
            restamped = report.uuid_after != report.uuid_before and name in after
            assert kept or restamped or name.endswith(".open"), name
        assert [each for each in verify(self.directory) if not isinstance(each, Progress)] == []
        log = Log.open(self.directory)
        assert (log.torn, log.damaged_snapshots) == (None, [])
        assert (log.first, log.head) == (report.first, report.last)
        assert flat(log.scan(log.first)) == self.messages[report.first - 1 : report.last]
        self.check_state(report, log)
        assert log.uuid == report.uuid_after
        ended = any(last is None or last > report.last for _, last in report.lost)
        assert (log.uuid != self.uuid) == (ended or log.tail_op < len(self.operations))
        assert (plan(self.directory).problems, plan(self.directory).steps) == ((), ())
        assert report.uuid_before == self.uuid
        return report, log

    def check_state(self, report: Report, log: Log) -> None:
        """No state is restored from what lacks entries: all operations after the snapshot are as they were written."""
        check_operations(log, self.operations[: log.tail_op])
        covered = 0 if log.snapshot is None else log.snapshot.op
        assert covered + 1 >= log.first_op
        forgotten = any(isinstance(step, ForgetState) for step in report.steps)
        if log.snapshot is not None and not log.snapshot.sections:
            assert forgotten
        if report.lost_entries and not forgotten:
            assert covered >= log.first_op - 1
        if log.first_op > 1:
            with pytest.raises(TrimmedError):
                log.read_ops(log.first_op - 1)

    def check_goes_on(self, log: Log) -> None:
        expected = flat(log.scan(log.first)), operations(log.scan_ops(log.first_op))
        # A time may have changed unnoticed where an index was lost with its checksums.
        append(log, b"next", time=max(99, log.last_time))
        append_entries(log, b"next")
        seal_all(log)
        log.close()
        again = Log.open(self.directory)
        assert flat(again.scan(again.first))[:-1] == expected[0]
        assert operations(again.scan_ops(again.first_op))[:-2] == expected[1]
        again.close()


def write(directory: Path, *, mixed: bool) -> Written:
    """Make that log."""
    begins = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "ROWS", 2)
        log = Log.open(directory, fsync="never")
        for segment in range(5):
            seq = 6 * segment + 1
            begins[seq] = log.tail_op + 1
            if mixed:
                append_entries(log, b"begin %d" % seq, time=seq, topic=f"begin {seq}")
            for n in range(3):
                seq = 6 * segment + 2 * n + 1
                differing = columns(topic=["a", "b"]) if n == 1 else None
                payloads = b"%d" % seq, b"%d" % (seq + 1)
                written = [batch(seq, *payloads, time=seq, topic=f"t{seq}", columns=differing)]
                if mixed and n == 1:
                    written.append(entries(seq + 1, b"tied", b"too", time=seq, topic=f"tied {seq}"))
                    written.append(entries(seq + 1, b"again", time=seq, topic=f"again {seq}"))
                log.append(written)
            if mixed:
                append_entries(log, b"end %d" % seq, b"", b"%d" % seq, time=seq, topic=f"end {seq}")
            log.commit(log.tail_op)
            if segment < 4:
                log.rotate()
            if segment < 3:
                log.seal_next()
    found = operations(log.scan_ops(1))
    begins[31] = log.tail_op + 1
    log.close()
    return Written(directory, log.uuid, found, begins, content_of(directory))
