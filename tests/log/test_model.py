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
from msgspec.structs import replace
from tests.log.content import (
    SOAK,
    bookkeeping,
    check_operations,
    flat,
    messages_of,
    operations,
    place,
    submitted,
)

from headrace.errors import TrimmedError, UsageError
from headrace.log import Log
from headrace.log.damage.verify import Progress, verify
from headrace.log.frame_file import HEADER_BYTES
from headrace.log.sealed import sealing
from headrace.log.tail import TailFile
from headrace.message import Batch, Message


class LogMachine(RuleBasedStateMachine):
    """``known`` are all operations that were ever appended and not lost: messages and entries, in order.

    From this plain list follows everything that the log is asked for: numbers, positions, and what is where.
    """

    log: Log
    uuid: UUID

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-log-"))
        self.directory = self.root / "log"
        self.copies = 0
        self.known: list[tuple[int, Message]] = []
        self.appends = {0}
        """Operations where appends end: what one brought is there whole or not at all."""
        self.head_op = 0
        self.now = 0
        self.synced = 0
        """Bytes of the open tail that a torn end may not reach: what was there at the last sync."""
        self.snapshot: tuple[int, int, dict[str, bytes]] | None = None
        self.rows = sealing.ROWS

    def teardown(self) -> None:
        sealing.ROWS = self.rows
        self.log.close()
        shutil.rmtree(self.root)

    @property
    def messages(self) -> list[Message]:
        """Every message appended."""
        return messages_of(self.known)

    @property
    def head(self) -> int:
        """The newest message committed."""
        return self.seq_of(self.head_op)

    def seq_of(self, op: int) -> int:
        """The newest message at an operation."""
        return len(messages_of(self.known[:op]))

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
        self.kept = len(self.known)
        self.kept_time = self.now
        self.torn_file = self.tail.path

    # Appending and committing ------------------------------------------------------------------------------

    @rule(drawn=st.lists(submitted(), min_size=1, max_size=4), later=st.integers(0, 5))
    def append(self, drawn: list[Batch], later: int) -> None:
        before = self.tail
        now, following = self.now + later, len(self.messages) + 1
        batches = []
        for content in drawn:
            batches.append(place(content, following, now))
            following, now = batches[-1].last + 1, batches[-1].last_time
        self.log.append(batches)
        self.note_rotation(before)
        self.known += enumerate(flat(batches), len(self.known) + 1)
        self.appends.add(len(self.known))
        self.now = now

    def note_rotation(self, before: TailFile) -> None:
        """What was rotated away was whole."""
        if self.tail is not before:
            self.synced = HEADER_BYTES
            self.kept, self.kept_time, self.torn_file = len(self.known), self.now, self.tail.path

    @rule(drawn=st.lists(bookkeeping(), min_size=1, max_size=3))
    def append_entries(self, drawn: list[Batch]) -> None:
        """Entries alone, wherever the tail ends: at the beginning of a file, several appends in a row."""
        self.append(drawn, 0)

    @rule(content=submitted(), wrong=st.sampled_from([-1, 1]))
    def append_in_the_wrong_place(self, content: Batch, wrong: int) -> None:
        """A message that does not follow, an entry after another message, an operation that is not the next."""
        before = self.tail
        made = place(content, len(self.messages) + 1, self.now)
        for mistaken in (
            replace(made, first=max(made.first + wrong, 0)),
            replace(made, op=max(len(self.known) + 1 + wrong, 1)),
        ):
            if (mistaken.first, mistaken.op) not in {(made.first, 0), (made.first, len(self.known) + 1)}:
                with pytest.raises(UsageError):
                    self.log.append([mistaken])
        self.note_rotation(before)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        op = data.draw(st.integers(0, len(self.known)))
        self.log.commit(op)
        self.head_op = max(self.head_op, op)

    @rule()
    def commit_all(self) -> None:
        self.log.commit(self.log.tail_op)
        self.head_op = len(self.known)

    @rule()
    def commit_too_much(self) -> None:
        with pytest.raises(UsageError):
            self.log.commit(len(self.known) + 1)

    @rule(data=st.data())
    def cut_back(self, data: st.DataObject) -> None:
        last = data.draw(st.integers(self.head_op, len(self.known)))
        before = len(self.known)
        self.log.cut_back(last)
        del self.known[last:]
        self.appends = {end for end in self.appends if end < last} | {last}
        self.now = self.known[-1][1].time if self.known else 0
        if last < before:
            self.settle()

    @rule()
    def cut_back_too_far(self) -> None:
        if self.head_op:
            with pytest.raises(UsageError):
                self.log.cut_back(self.head_op - 1)

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == len(self.known)
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

    @rule(data=st.data(), most=st.sampled_from([0, 1, 10, 100, 1 << 20]), uncommitted=st.booleans())
    def read_operations(self, data: st.DataObject, most: int, uncommitted: bool) -> None:
        first = data.draw(st.integers(0, len(self.known) + 2))
        last = data.draw(st.none() | st.integers(0, len(self.known) + 2))
        end = len(self.known) if uncommitted else self.head_op
        upto = end if last is None else min(last, end)
        if first < self.log.first_op and first <= upto:
            with pytest.raises(TrimmedError):
                self.log.read_ops(first, last, most, uncommitted=uncommitted)
            return
        read = operations(self.log.read_ops(first, last, most, uncommitted=uncommitted))
        assert read == self.known[first - 1 : upto][: len(read)]
        assert bool(read) == (first <= upto)

    @rule(data=st.data())
    def positions(self, data: st.DataObject) -> None:
        """Numbers and operations are told from one another as a list tells them."""
        op = data.draw(st.integers(self.log.first_op, len(self.known) + 1))
        assert self.log.seq_of(op) == self.seq_of(op)
        if self.log.first <= self.log.tail:
            seq = data.draw(st.integers(self.log.first, self.log.tail))
            expected = next(op for op, message in self.known if message == self.messages[seq - 1])
            assert self.log.op_of(seq) == expected
        with pytest.raises((UsageError, TrimmedError)):
            self.log.op_of(len(self.messages) + 1)

    @rule(data=st.data())
    def reach(self, data: st.DataObject) -> None:
        if self.log.first <= self.head:
            first = data.draw(st.integers(self.log.first, self.head))
            reached = [self.log.reach(first, size) for size in (0, 200, 1 << 30)]
            assert reached == sorted(reached)
            assert (reached[0] >= first, reached[-1]) == (True, self.head)

    @rule(data=st.data())
    def seq_at(self, data: st.DataObject) -> None:
        time = data.draw(st.integers(-1, self.now + 2))
        committed = self.messages[self.log.first - 1 : self.head]
        expected = next((message.seq for message in committed if message.time >= time), self.head + 1)
        assert self.log.seq_at(time) == max(expected, min(self.log.first, self.head + 1))

    @rule()
    def read_everything(self) -> None:
        assert flat(self.log.scan(self.log.first)) == self.messages[self.log.first - 1 : self.head]
        check_operations(self.log, self.known)

    @rule()
    def look(self) -> None:
        """Another process sees all that was appended, and nothing wrong with it."""
        reader = Log.open(self.directory, read_only=True)
        assert (reader.uuid, reader.torn, reader.head) == (self.uuid, None, len(self.messages))
        assert flat(reader.scan(reader.first)) == self.messages[reader.first - 1 :]
        check_operations(reader, self.known)
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
        assert (sealed is not None) == bool(rotated and rotated[0].last_op <= self.head_op)
        if sealed is not None:
            tail = rotated[0]
            assert (sealed.first, sealed.last) == (tail.first, tail.last)
            assert (sealed.first_op, sealed.last_op, sealed.last_time) == (
                tail.first_op,
                tail.last_op,
                tail.last_time,
            )
            assert not tail.path.exists()
            assert sealed.entries_path.exists() == (tail.last_op - tail.first_op != tail.last - tail.first)

    @rule(sections=st.dictionaries(st.text(max_size=3), st.binary(max_size=9), max_size=3))
    def write_snapshot(self, sections: dict[str, bytes]) -> None:
        # With fsync=never it is for us not to lose what a snapshot stands on.
        self.settle()
        self.log.write_snapshot(self.head_op, self.head, sections)
        self.snapshot = (self.head_op, self.head, sections)

    @rule(data=st.data(), age=st.none() | st.integers(0, 9))
    def retain(self, data: st.DataObject, age: int | None) -> None:
        size, first, first_op = self.log.size, self.log.first, self.log.first_op
        retain_bytes = data.draw(st.integers(0, size + 10))
        holds = data.draw(st.dictionaries(st.sampled_from("ab"), st.integers(1, len(self.messages) + 1)))
        before = {s.path for s in self.log.segments}
        verdict = self.log.retain(self.now, retain_bytes=retain_bytes, retain_us=age, holds=holds)
        covered = 0 if self.snapshot is None else self.snapshot[0]
        assert self.log.first_op <= max(first_op, covered + 1)
        assert self.log.first == self.seq_of(self.log.first_op - 1) + 1
        assert set(verdict.broken) == {name for name, seq in holds.items() if first <= seq < self.log.first}
        if self.log.first > first and size <= retain_bytes:
            assert not verdict.broken
        gone = before - {s.path for s in self.log.segments}
        assert not any(path.exists() or path.with_suffix(".entries").exists() for path in gone)

    # Closing and crashing ------------------------------------------------------------------------------------

    def check_reopened(self, log: Log) -> None:
        assert log.uuid == self.uuid
        assert log.head == log.tail == len(self.messages)
        assert log.head_op == log.tail_op == len(self.known)
        assert log.last_time == self.now
        found = log.snapshot
        assert (found and (found.op, found.seq, dict(found.sections))) == self.snapshot
        assert flat(log.scan(log.first)) == self.messages[log.first - 1 :]
        check_operations(log, self.known)

    @rule()
    def reopen(self) -> None:
        first = self.log.first
        self.log.close()
        self.log = self.open()
        assert self.log.torn is None
        assert self.log.first == first
        self.head_op = len(self.known)
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
        end = self.log.tail_op
        lost = len(self.known) - end
        assert end >= self.kept
        assert end in self.appends
        assert (self.log.torn is None) == (self.tail.size == keep)
        if self.log.torn is not None:
            assert (self.log.torn.offset, self.log.torn.size) == (self.tail.size, keep - self.tail.size)
            assert path.with_suffix(".torn").stat().st_size == self.log.torn.size
        assert lost or keep == size
        self.known = self.known[:end]
        self.appends = {each for each in self.appends if each <= end}
        self.now = self.known[-1][1].time if end > self.kept else self.kept_time
        self.head_op = len(self.known)
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
        assert (self.log.tail_op, self.log.head_op) == (len(self.known), self.head_op)
        assert 1 <= self.log.first <= self.head + 1 or self.log.first <= len(self.messages) + 1
        assert self.log.last_time == self.now
        assert [message.seq for message in self.messages] == list(range(1, len(self.messages) + 1))
        for before, after in itertools.pairwise(self.log.segments):
            assert (before.last + 1, before.last_op + 1) == (after.first, after.first_op)


LogMachine.TestCase.settings = settings(
    max_examples=1000 if SOAK else 60, stateful_step_count=80 if SOAK else 50, deadline=None
)
TestLog = LogMachine.TestCase
