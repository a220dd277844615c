"""How the cost of a log grows with its size: to open it, to read a message anywhere in it, and the memory it takes.

Each log has messages of a thousand bytes that hardly compress, in sealed segments and a last open tail, as a hub leaves
them. It is opened and read by a process of its own, after a first look at nothing: so what is measured is the log, not
Python's start. Files are in the system's cache as far as that has room. ``HEADRACE_BENCH_GIGABYTES`` (such as
``1,5,20``) chooses other sizes.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.queues import Queue
from pathlib import Path
from random import Random

import numpy as np

import bench
from headrace.log import Log
from headrace.message import Batch, Run

SIZE = 1_000
PER_BATCH = 1_000
READS = 500
GIGABYTES = os.environ.get("HEADRACE_BENCH_GIGABYTES") or "0.5,1,2"

_spawn = multiprocessing.get_context("spawn")


def main(argv: Sequence[str]) -> int:
    return bench.run("log_size", measure, argv)


def measure(quick: bool) -> Iterator[bench.Table]:
    """Write logs of several sizes, open each, and read messages anywhere in it."""
    table = bench.Table(
        "a log by its size",
        ("ms to open", "µs to read a message anywhere, p50", "p99", "MB of memory"),
        note=f"messages of {SIZE:,} bytes; memory beside that of an empty log",
        less_is_better=True,
    )
    sizes = [0.002, 0.004] if quick else [float(each) for each in GIGABYTES.split(",")]
    *_, empty = _of(0, quick)
    for gigabytes in sizes:
        opened, p50, p99, memory = _of(int(gigabytes * 1e9), quick)
        table.add(f"{gigabytes:g} GB", opened * 1e3, p50 * 1e6, p99 * 1e6, max(memory - empty, 0) / 1e6)
    yield table


def _of(size: int, quick: bool) -> tuple[float, float, float, float]:
    with tempfile.TemporaryDirectory(prefix="bench-log-") as directory:
        last = _write(Path(directory), size, segment_bytes=(1 << 20) if quick else (256 << 20))
        told: Queue[tuple[float, float, float, float]] = _spawn.Queue()
        process = _spawn.Process(target=_use, args=(Path(directory), last, told))
        process.start()
        found = told.get(timeout=600)
        process.join()
    return found


def _write(directory: Path, size: int, segment_bytes: int) -> int:
    """Write a log of about so many bytes, all but its tail sealed; return its last message."""
    random = np.random.default_rng(1)
    payload = random.integers(0, 256, SIZE * PER_BATCH, np.uint8)
    run = Run(payload, np.arange(PER_BATCH + 1, dtype=np.int32) * SIZE)
    log = Log.open(directory, fsync="never", segment_bytes=segment_bytes)
    for first in range(1, size // SIZE, PER_BATCH):
        log.append([Batch(run, first=first, time=first, origin="bench", publisher="bench", topic="bench")])
        log.commit(log.tail_op)
        if len(log.segments) > 2:
            log.seal_next()
    while log.seal_next() is not None:
        pass
    last = log.head
    log.close()
    return last


def _use(directory: Path, last: int, told: Queue[tuple[float, float, float, float]]) -> None:
    begin = time.perf_counter()
    log = Log.open(directory, fsync="never")
    opened = time.perf_counter() - begin
    random = Random(1)
    times = []
    for _ in range(READS if last else 0):
        seq = random.randrange(1, last + 1)
        begin = time.perf_counter()
        [batch] = log.read(seq, seq)
        times.append(time.perf_counter() - begin)
        assert batch.first == seq
    # Mapped pages of sealed files are the system's, and not counted.
    with Path("/proc/self/statm").open() as file:
        _, resident, shared, *_ = map(int, file.read().split())
    log.close()
    times.sort()
    p50, p99 = (times[int(len(times) * part)] if times else 0.0 for part in (0.5, 0.99))
    told.put((opened, p50, p99, (resident - shared) * float(resource.getpagesize())))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
