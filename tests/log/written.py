"""A log of every kind of segment, to be damaged, surveyed and repaired."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from tests.log.content import append, batch, columns, content_of, flat, seal_all

from headrace.log import Log, sealing
from headrace.log.damage.repair import plan, repair
from headrace.log.damage.repair_plan import Keep, Report, Restamp
from headrace.log.damage.verify import Progress, verify
from headrace.log.sealed import SegmentIndex
from headrace.log.tail import TailFile
from headrace.message import Message

NAME = "{:016d}.{}".format


@dataclass(frozen=True)
class Written:
    """Messages 1 to 30, six in each segment: three sealed, one rotated, one open; by twos in appends and batches."""

    directory: Path
    uuid: UUID
    messages: list[Message]
    content: dict[str, bytes]

    def path(self, number: int, kind: str) -> Path:
        return self.directory / NAME(number, kind)

    def change(self, number: int, kind: str, offset: int) -> None:
        """Damage one byte."""
        path = self.path(number, kind)
        data = bytearray(path.read_bytes())
        data[offset] ^= 0x40
        path.write_bytes(data)

    def frame(self, number: int, index: int) -> int:
        """Where a frame of a tail begins."""
        tail, _ = TailFile.open(self.path(number, "open"), writable=False)
        return tail._offsets[index]

    def batch(self, number: int, index: int) -> int:
        """Where a record batch of a sealed segment begins."""
        return int(SegmentIndex.read(self.path(number, "index")).entries[index]["offset"])

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
            restamped = any(
                isinstance(step, Restamp) and step.path.stem == name[:16] for step in report.steps
            )
            assert kept or restamped or name.endswith(".open"), name
        assert [each for each in verify(self.directory) if not isinstance(each, Progress)] == []
        log = Log.open(self.directory)
        assert (log.torn, log.damaged_snapshots) == (None, [])
        assert (log.first, log.head) == (report.first, report.last)
        assert flat(log.scan(log.first)) == self.messages[report.first - 1 : report.last]
        assert log.uuid == report.uuid_after
        assert plan(self.directory).problems == ()
        assert report.uuid_before == self.uuid
        return report, log

    def check_goes_on(self, log: Log) -> None:
        expected = flat(log.scan(log.first))
        append(log, b"next", time=99)
        seal_all(log)
        log.close()
        again = Log.open(self.directory)
        assert flat(again.scan(again.first))[:-1] == expected
        again.close()


def write(directory: Path) -> Written:
    """Make that log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "ROWS", 2)
        log = Log.open(directory, fsync="never")
        for segment in range(5):
            for n in range(3):
                seq = 6 * segment + 2 * n + 1
                differing = columns(topic=["a", "b"]) if n == 1 else None
                log.append([batch(seq, b"%d" % seq, b"%d" % (seq + 1), time=seq, columns=differing)])
            log.commit(log.tail)
            if segment < 4:
                log.rotate()
            if segment < 3:
                log.seal_next()
    messages = flat(log.scan(1))
    log.close()
    return Written(directory, log.uuid, messages, content_of(directory))
