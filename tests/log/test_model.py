"""The log against a list: whatever is done to it, in whatever order, it holds what the list holds."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.log.content import SOAK, contents, flat, place

from headrace.errors import TrimmedError, UsageError
from headrace.log import Log, sealing
from headrace.log.damage.verify import Progress, verify
from headrace.log.tail import TailFile
from headrace.message import Batch, Message


class LogMachine(RuleBasedStateMachine):
    """``messages`` are all that were ever appended and not lost, ``first`` the oldest that must still be there."""

    log: Log
    uuid: UUID

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-log-"))
        self.directory = self.root / "log"
        self.copies = 0
        self.messages: list[Message] = []
        self.appends = {0}
        """Where appends end: what one brought is there whole or not at all."""
        self.head = 0
        self.now = 0
        self.synced = 0
        """Bytes of the open tail that a torn end may not reach: what was there at the last sync."""
        self.snapshot: tuple[int, dict[str, bytes]] | None = None
        self.rows = sealing.ROWS

    def teardown(self) -> None:
        sealing.ROWS = self.rows
        self.log.close()
        shutil.rmtree(self.root)

    @property
    def tail(self) -> TailFile:
        last = self.log.segments[-1]
        assert isinstance(last, TailFile)
        return last

    @initialize(rows=st.sampled_from([1, 3, 16_384]), segment_bytes=st.sampled_from([300, 2000, 1 << 30]))
    def begin(self, rows: int, segment_bytes: int) -> None:
        sealing.ROWS = rows
        self.segment_bytes = segment_bytes
        self.log = self.open()
        self.uuid = self.log.uuid
        self.settle()

    def open(self) -> Log:
        return Log.open(self.directory, fsync="never", segment_bytes=self.segment_bytes)

    def settle(self) -> None:
        """Everything appended so far is on the disk."""
        self.synced = self.tail.size
        self.kept = len(self.messages)
        self.kept_time = self.now
        self.torn_file = self.tail.path

    # Appending and committing ------------------------------------------------------------------------------

    @rule(drawn=st.lists(contents(), min_size=1, max_size=4), later=st.integers(0, 5))
    def append(self, drawn: list[Batch], later: int) -> None:
        before = self.tail
        now, following = self.now + later, len(self.messages) + 1
        batches = []
        for content in drawn:
            batches.append(place(content, following, now))
            following, now = batches[-1].last + 1, batches[-1].last_time
        self.log.append(batches)
        if self.tail is not before:
            # What was rotated away was whole.
            self.synced = self.tail.size - sum(
                self.tail.encode(b, b.time, continued=False)[1] for b in batches
            )
            self.kept, self.kept_time, self.torn_file = len(self.messages), self.now, self.tail.path
        self.messages += flat(batches)
        self.appends.add(len(self.messages))
        self.now = now

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, len(self.messages)))
        self.log.commit(seq)
        self.head = max(self.head, seq)

    @rule()
    def commit_all(self) -> None:
        self.log.commit(self.log.tail)
        self.head = len(self.messages)

    @rule()
    def commit_too_much(self) -> None:
        with pytest.raises(UsageError):
            self.log.commit(len(self.messages) + 1)

    @rule(data=st.data())
    def cut_back(self, data: st.DataObject) -> None:
        last = data.draw(st.integers(self.head, len(self.messages)))
        before = len(self.messages)
        self.log.cut_back(last)
        del self.messages[last:]
        self.appends = {end for end in self.appends if end < last} | {last}
        self.now = self.messages[-1].time if self.messages else 0
        if last < before:
            self.settle()

    @rule()
    def cut_back_too_far(self) -> None:
        if self.head:
            with pytest.raises(UsageError):
                self.log.cut_back(self.head - 1)

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == len(self.messages)
        assert not self.log.dirty
        self.settle()

    # Reading -------------------------------------------------------------------------------------------------

    @rule(data=st.data(), most=st.sampled_from([0, 1, 10, 100, 1 << 20]))
    def read(self, data: st.DataObject, most: int) -> None:
        first = data.draw(st.integers(0, len(self.messages) + 2))
        last = data.draw(st.none() | st.integers(0, len(self.messages) + 2))
        upto = self.head if last is None else min(last, self.head)
        if first < self.log.first and first <= upto:
            with pytest.raises(TrimmedError) as caught:
                self.log.read(first, last, most)
            assert caught.value.oldest == self.log.first
            return
        read = flat(self.log.read(first, last, most))
        assert read == self.messages[first - 1 : upto][: len(read)]
        assert bool(read) == (first <= upto)
        assert flat(self.log.scan(first, last, most)) == (
            self.messages[first - 1 : upto] if first <= upto else []
        )

    @rule(data=st.data())
    def seq_at(self, data: st.DataObject) -> None:
        time = data.draw(st.integers(-1, self.now + 2))
        committed = self.messages[self.log.first - 1 : self.head]
        expected = next((message.seq for message in committed if message.time >= time), self.head + 1)
        assert self.log.seq_at(time) == max(expected, min(self.log.first, self.head + 1))

    @rule()
    def read_everything(self) -> None:
        assert flat(self.log.scan(self.log.first)) == self.messages[self.log.first - 1 : self.head]

    @rule()
    def look(self) -> None:
        """Another process sees all that was appended, and nothing wrong with it."""
        reader = Log.open(self.directory, read_only=True)
        assert (reader.uuid, reader.torn, reader.head) == (self.uuid, None, len(self.messages))
        assert flat(reader.scan(reader.first)) == self.messages[reader.first - 1 :]
        reader.close()
        assert [each for each in verify(self.directory) if not isinstance(each, Progress)] == []

    # Segments ------------------------------------------------------------------------------------------------

    @rule()
    def rotate(self) -> None:
        empty = self.tail.empty
        self.log.rotate()
        assert self.tail.empty
        if not empty:
            self.settle()

    @rule()
    def seal_next(self) -> None:
        rotated = [s for s in self.log.segments[:-1] if isinstance(s, TailFile)]
        sealed = self.log.seal_next()
        assert (sealed is not None) == bool(rotated and rotated[0].last <= self.head)
        if sealed is not None:
            assert (sealed.first, sealed.last) == (rotated[0].first, rotated[0].last)
            assert not rotated[0].path.exists()

    @rule(sections=st.dictionaries(st.text(max_size=3), st.binary(max_size=9), max_size=3))
    def write_snapshot(self, sections: dict[str, bytes]) -> None:
        # With fsync=never it is for us not to lose what a snapshot stands on.
        self.settle()
        self.log.write_snapshot(self.head, self.head, sections)
        self.snapshot = (self.head, sections)

    @rule(data=st.data(), age=st.none() | st.integers(0, 9))
    def retain(self, data: st.DataObject, age: int | None) -> None:
        size, first = self.log.size, self.log.first
        retain_bytes = data.draw(st.integers(0, size + 10))
        holds = data.draw(st.dictionaries(st.sampled_from("ab"), st.integers(1, len(self.messages) + 1)))
        before = {s.path for s in self.log.segments}
        verdict = self.log.retain(self.now, retain_bytes=retain_bytes, retain_us=age, holds=holds)
        covered = 0 if self.snapshot is None else self.snapshot[0]
        assert self.log.first <= max(first, covered + 1)
        assert set(verdict.broken) == {name for name, seq in holds.items() if first <= seq < self.log.first}
        if self.log.first > first and size <= retain_bytes:
            assert not verdict.broken
        gone = before - {s.path for s in self.log.segments}
        assert not any(path.exists() for path in gone)

    # Closing and crashing ------------------------------------------------------------------------------------

    def check_reopened(self, log: Log) -> None:
        assert log.uuid == self.uuid
        assert log.head == log.tail == len(self.messages)
        assert log.last_time == self.now
        assert (log.snapshot and (log.snapshot.seq, dict(log.snapshot.sections))) == self.snapshot
        assert flat(log.scan(log.first)) == self.messages[log.first - 1 :]

    @rule()
    def reopen(self) -> None:
        first = self.log.first
        self.log.close()
        self.log = self.open()
        assert self.log.torn is None
        assert self.log.first == first
        self.head = len(self.messages)
        self.check_reopened(self.log)
        self.settle()

    @rule()
    def crash(self) -> None:
        """The process dies: nothing is closed, and all that was written is there."""
        lock = self.log.lock
        assert lock is not None
        lock.release()
        self.log.lock = None
        self.reopen()

    @rule(cut=st.floats(0, 1))
    def lose_power(self, cut: float) -> None:
        """The end of the tail that was not synced is lost, from any byte on: whole appends go."""
        size = self.tail.size
        keep = self.synced + round((size - self.synced) * cut)
        path = self.tail.path
        assert path == self.torn_file
        self.log.close()
        os.truncate(path, keep)
        self.log = self.open()
        lost = len(self.messages) - self.log.tail
        assert self.log.tail >= self.kept
        assert self.log.tail in self.appends
        assert (self.log.torn is None) == (self.tail.size == keep)
        if self.log.torn is not None:
            assert (self.log.torn.offset, self.log.torn.size) == (self.tail.size, keep - self.tail.size)
            assert path.with_suffix(".torn").stat().st_size == self.log.torn.size
        assert lost or keep == size
        self.messages = self.messages[: self.log.tail]
        self.appends = {end for end in self.appends if end <= self.log.tail}
        self.now = self.messages[-1].time if self.log.tail > self.kept else self.kept_time
        self.head = len(self.messages)
        self.check_reopened(self.log)
        self.settle()

    @rule()
    def copy(self) -> None:
        """A backup taken while the log is in use opens as the log would after a crash."""
        self.copies += 1
        target = self.root / f"copy-{self.copies}"
        shutil.copytree(self.directory, target)
        log = Log.open(target, fsync="never")
        assert log.torn is None
        self.check_reopened(log)
        log.close()
        shutil.rmtree(target)

    # Always ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "uuid"))
    @invariant()
    def ends(self) -> None:
        assert self.log.uuid == self.uuid
        assert (self.log.tail, self.log.head) == (len(self.messages), self.head)
        assert 1 <= self.log.first <= self.head + 1 or self.log.first <= len(self.messages) + 1
        assert self.log.last_time == self.now
        edges = [(s.first, s.last) for s in self.log.segments]
        assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(edges))


LogMachine.TestCase.settings = settings(
    max_examples=1000 if SOAK else 100, stateful_step_count=80 if SOAK else 50, deadline=None
)
TestLog = LogMachine.TestCase
