"""``kill -9`` at any moment: what was reported as committed is there afterwards."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.log.content import SOAK, flat, messages_of, operations

from headrace.log import Log
from headrace.log.damage.verify import Progress, verify
from headrace.message import NOT_A_MESSAGE

WRITER = """
import os, sys, threading
from pathlib import Path
from headrace.log import Log
from headrace.message import NOT_A_MESSAGE, Batch, Run

directory, fsync, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = Log.open(directory, fsync=fsync, segment_bytes=40_000)
os.write(1, b"ready---")

def upkeep():
    while True:
        log.seal_next()
        op = log.head_op
        log.write_snapshot(op, log.seq_of(op), {"state": b"%d" % op})
        log.retain(log.last_time, retain_bytes=400_000, retain_us=None, holds={})

threading.Thread(target=upkeep, daemon=True).start()
while True:
    first, op = log.tail + 1, log.tail_op + 1
    batches = []
    for n in range(seed % 4 + 1):
        # Entries before, between and after messages, in appends of their own and within others; each says where it is.
        if op % 3 == 0:
            payloads = [b"entry %d after %d" % (op + i, first - 1) for i in range(op % 4 + 1)]
            batches.append(Batch(Run.of(payloads), first=first - 1, time=op, origin=NOT_A_MESSAGE, topic="kill"))
        else:
            payloads = [b"%d:" % (first + i) + b"x" * ((first + i) * 7919 % 900) for i in range(first % 5 + 1)]
            batches.append(Batch(Run.of(payloads), first=first, time=op, origin="kill", number=first))
            first += len(payloads)
        op += len(payloads)
    log.append(batches)
    if fsync == "always":
        log.sync()
    log.commit(log.tail_op)
    os.write(1, log.tail_op.to_bytes(8, "little"))
"""

ROUNDS = 200 if SOAK else 7


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_nothing_reported_is_missing(tmp_path: Path, fsync: str) -> None:
    chance = random.Random(fsync)
    uuid = None
    reported = 0
    for seed in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, fsync, str(seed)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            pipe = process.stdout.fileno()
            assert os.read(pipe, 8) == b"ready---"
            reports = b""
            for _ in range(chance.randrange(1, 400)):
                reports += os.read(pipe, 8 * chance.randrange(1, 4))
            # A slow disk may take longer for a snapshot than any of these moments; the later rounds have one.
            while seed == ROUNDS // 2 and not list(tmp_path.glob("*.snapshot")):
                reports += os.read(pipe, 8)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            # Whatever is still in the pipe was reported before the end. Writes this small to a pipe are whole.
            while block := os.read(pipe, 1 << 16):
                reports += block
        reported = struct.unpack("<Q", reports[-8:])[0]
        problems = [each for each in verify(tmp_path) if not isinstance(each, Progress)]
        assert all(problem.mends for problem in problems), problems
        log = Log.open(tmp_path)
        assert log.tail_op >= reported, (
            f"round {seed}: {reported} was reported, the log ends at {log.tail_op}"
        )
        assert uuid in (None, log.uuid)
        uuid = log.uuid
        found = flat(log.scan(log.first))
        assert [message.seq for message in found] == list(range(log.first, log.tail + 1))
        for message in found[-2000:]:
            assert message.payload.startswith(b"%d:" % message.seq)
        # Nothing that follows the snapshot is missing, or in another place than it was written in.
        known = operations(log.scan_ops(log.first_op))
        assert [op for op, _ in known] == list(range(log.first_op, log.tail_op + 1))
        assert messages_of(known) == found
        seq = log.first - 1
        for op, message in known:
            if message.origin == NOT_A_MESSAGE:
                assert message.payload == b"entry %d after %d" % (op, seq)
            else:
                seq += 1
            assert message.seq == seq
            assert message.time <= op
        for op, message in known[:: max(len(known) // 50, 1)]:
            assert log.seq_of(op) == message.seq
            if message.origin != NOT_A_MESSAGE:
                assert log.op_of(message.seq) == op
        if log.snapshot is not None:
            assert log.snapshot.sections == {"state": b"%d" % log.snapshot.op}
            assert log.snapshot.op + 1 >= log.first_op
        assert any(message.origin == NOT_A_MESSAGE for _, message in known)
        log.close()
    assert reported > 100 * ROUNDS
    assert list(tmp_path.glob("*.snapshot"))
