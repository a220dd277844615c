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
from tests.log.content import SOAK, flat

from headrace.log import Log
from headrace.log.damage.verify import Progress, verify

WRITER = """
import os, sys, threading
from pathlib import Path
from headrace.log import Log
from headrace.message import Batch, Run

directory, fsync, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = Log.open(directory, fsync=fsync, segment_bytes=40_000)
os.write(1, b"ready---")

def upkeep():
    while True:
        log.seal_next()
        log.write_snapshot(log.head_op, log.head, {"state": b"x" * 100})
        log.retain(log.last_time, retain_bytes=400_000, retain_us=None, holds={})

threading.Thread(target=upkeep, daemon=True).start()
while True:
    first = log.tail + 1
    batches = []
    for n in range(seed % 4 + 1):
        payloads = [b"%d:" % (first + i) + b"x" * ((first + i) * 7919 % 900) for i in range(first % 5 + 1)]
        batches.append(Batch(Run.of(payloads), first=first, time=first, origin="kill", number=first))
        first += len(payloads)
    log.append(batches)
    if fsync == "always":
        log.sync()
    log.commit(log.tail_op)
    os.write(1, log.tail.to_bytes(8, "little"))
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
        assert log.tail >= reported, f"round {seed}: {reported} was reported, the log ends at {log.tail}"
        assert uuid in (None, log.uuid)
        uuid = log.uuid
        found = flat(log.scan(log.first))
        assert [message.seq for message in found] == list(range(log.first, log.tail + 1))
        for message in found[-2000:]:
            assert message.payload.startswith(b"%d:" % message.seq)
            assert message.time <= message.seq
        log.close()
    assert reported > 100 * ROUNDS
    assert list(tmp_path.glob("*.snapshot"))
