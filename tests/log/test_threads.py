"""Readers in threads of their own, while others append, rotate, seal and trim: nothing wrong is ever read."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.log.content import SOAK

from headrace.errors import TrimmedError, UsageError
from headrace.log import Log
from headrace.log.sealed import sealing
from headrace.message import NOT_A_MESSAGE, Batch, Run

GOALS = {"read": 8_000, "operations": 8_000, "sealed": 4, "trims": 2, "looks": 2}
"""What must have been done before it is enough."""

TIMES = 125 if SOAK else 1
SECONDS = 60 * (50 if SOAK else 1)


def payload(seq: int) -> bytes:
    return b"%d." % seq + b"x" * (seq * 31 % 200)


def note(op: int, after: int) -> bytes:
    """What an entry says: where it is."""
    return b"%d after %d" % (op, after)


def check(batches: list[Batch], first: int) -> int:
    """Every message is the one its number says, and they follow; return the number after the last."""
    for each in batches:
        assert not each.is_entries
        assert each.first == first
        assert list(each.run) == [payload(seq) for seq in range(first, first + len(each))]
        assert each.last // 10 <= each.last_time <= each.last // 10 + 3
        first = each.last + 1
    return first


def check_ops(batches: list[Batch], op: int, seq: int | None) -> tuple[int, int]:
    """Every operation is what and where it was; return the operation after the last, and the newest message."""
    for each in batches:
        assert each.op == op
        seq = seq if seq is not None else each.first - (not each.is_entries)
        if each.is_entries:
            assert each.first == seq
            assert list(each.run) == [note(op + n, seq) for n in range(len(each))]
        else:
            check([each], seq + 1)
        op, seq = each.last_op + 1, each.last
    assert seq is not None
    return op, seq


@pytest.mark.slow
def test_one_writer_many_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(tmp_path, segment_bytes=30_000, fsync="never")
    monkeypatch.setattr(sealing, "ROWS", 64)
    over = threading.Event()
    failures: list[BaseException] = []
    done = dict.fromkeys(GOALS, 0)

    def append(chance: random.Random) -> None:
        first, op, now = log.tail + 1, log.tail_op + 1, log.last_time
        batches = []
        for _ in range(chance.randrange(1, 4)):
            if chance.random() < 0.4:
                count = chance.randrange(1, 4)
                run = Run.of([note(op + n, first - 1) for n in range(count)])
                batches.append(Batch(run, first=first - 1, time=now, origin=NOT_A_MESSAGE, op=op))
            else:
                count = chance.randrange(1, 30)
                run = Run.of([payload(seq) for seq in range(first, first + count)])
                now = (first + count - 1) // 10
                batches.append(Batch(run, first=first, time=now, node=count, op=op))
                first += count
            op += count
        log.append(batches)
        log.commit(log.tail_op - chance.randrange(2))
        if chance.random() < 0.02:
            log.rotate()
        if log.tail - log.first > 40_000:
            over.wait(0.001)

    def follow(chance: random.Random) -> None:
        """From somewhere to the head, in steps of any size."""
        at = log.first + chance.choice([0, chance.randrange(log.head - log.first + 2)])
        while at <= log.head and not over.is_set():
            try:
                after = check(log.read(at, max_bytes=chance.choice([1, 500, 20_000, 1 << 20])), at)
            except TrimmedError:
                assert at < log.first
                return
            assert after > at
            done["read"] += after - at
            at = after

    def follow_ops(chance: random.Random) -> None:
        """The same for who copies the log: operations, messages and entries alike."""
        at = log.first_op + chance.choice([0, chance.randrange(max(log.head_op - log.first_op, 0) + 2)])
        seq: int | None = None
        while at <= log.head_op and not over.is_set():
            most, uncommitted = chance.choice([1, 500, 20_000, 1 << 20]), chance.random() < 0.3
            try:
                after, seq = check_ops(log.read_ops(at, max_bytes=most, uncommitted=uncommitted), at, seq)
                assert log.seq_of(after - 1) == seq or after - 1 < log.first_op
            except TrimmedError:
                assert at < log.first_op
                return
            assert after > at
            done["operations"] += after - at
            at = after

    def positions(chance: random.Random) -> None:
        """Where a message is, and back."""
        seq = log.first + chance.randrange(max(log.head - log.first, 0) + 1)
        try:
            op = log.op_of(seq)
            assert log.seq_of(op) == seq or op < log.first_op
            if op > log.first_op:
                assert log.seq_of(op - 1) == seq - 1 or op - 1 < log.first_op
        except TrimmedError:
            assert seq < log.first
        except UsageError:
            assert seq > log.head

    def find(chance: random.Random) -> None:
        wanted = chance.randrange(log.last_time + 2)
        try:
            found = log.seq_at(wanted)
            [one, *_] = log.read(found, found) or [None]
        except TrimmedError:
            return
        if one is not None:
            assert one.last_time >= wanted

    def upkeep(chance: random.Random) -> None:
        done["sealed"] += log.seal_next() is not None
        log.sync()
        if chance.random() < 0.5:
            before = log.first
            op = log.head_op
            log.write_snapshot(op, log.seq_of(op), {"n": b"%d" % op})
            log.retain(0, retain_bytes=chance.randrange(log.size), retain_us=None, holds={})
            done["trims"] += log.first > before

    def look(chance: random.Random) -> None:
        """As another process does."""
        reader = Log.open(tmp_path, read_only=True)
        at = chance.randrange(reader.first, reader.head + 2)
        op = chance.randrange(reader.first_op, reader.head_op + 2)
        seq: int | None = None
        try:
            for each in reader.scan(at):
                at = check([each], at)
            for each in reader.scan_ops(op):
                op, seq = check_ops([each], op, seq)
        except TrimmedError:
            pass
        finally:
            reader.close()
        done["looks"] += 1

    def thread(task: Callable[[random.Random], None], seed: int) -> threading.Thread:
        chance = random.Random(seed)

        def run() -> None:
            try:
                while not over.is_set():
                    task(chance)
            except BaseException as failure:  # noqa: BLE001 - told by the main thread
                failures.append(failure)
                over.set()

        return threading.Thread(target=run, name=task.__name__)

    tasks = [append, follow, follow, follow_ops, follow_ops, positions, find, upkeep, look]
    threads = [thread(task, seed) for seed, task in enumerate(tasks)]
    for each in threads:
        each.start()
    deadline = time.monotonic() + SECONDS
    while any(done[goal] < TIMES * count for goal, count in GOALS.items()):
        if over.wait(0.05) or time.monotonic() > deadline:
            break
    over.set()
    for each in threads:
        each.join(30)
    if failures:
        raise failures[0]
    assert all(done[goal] >= TIMES * count for goal, count in GOALS.items()), done
    log.commit(log.tail_op)
    first = log.first
    assert check(list(log.scan(first)), first) == log.tail + 1
    assert check_ops(list(log.scan_ops(log.first_op)), log.first_op, first - 1) == (log.tail_op + 1, log.tail)
    log.close()


def test_reading_waits_for_nobody(tmp_path: Path) -> None:
    """A reader takes none of the writer's locks: with all of them held, it still reads; and so does an append."""
    log = Log.open(tmp_path)
    log.append([Batch(Run.of([b"x"]), first=1)])
    log.commit(1)
    log.rotate()
    log.append([Batch(Run.of([b"y"]), first=2)])
    log.commit(2)
    results: list[object] = []

    def use() -> None:
        results.append([each.first for each in log.scan(1)])
        results.append(log.seq_at(0))
        log.append([Batch(Run.of([b"z"]), first=3)])
        results.append(log.tail)

    with log._sealing, log._changing:
        reader = threading.Thread(target=use)
        reader.start()
        reader.join(10)
        assert not reader.is_alive()
    assert results == [[1, 2], 1, 3]
    log.close()


def test_a_slow_reader_keeps_its_bytes(tmp_path: Path) -> None:
    log = Log.open(tmp_path)
    noise = np.random.default_rng(3).bytes(100_000)
    log.append([Batch(Run.of([noise]), first=1)])
    log.commit(1)
    [held] = log.read(1)
    log.rotate()
    log.seal_next()
    [sealed] = log.read(1)
    log.write_snapshot(1, 1, {})
    log.retain(time.time_ns() // 1000, retain_bytes=0, retain_us=None, holds={})
    log.close()
    assert list(tmp_path.glob("*.arrow")) == []
    assert held.run[0] == sealed.run[0] == noise
