"""Proving a log: sealing with its digests, and verifying all of the past by digests and by reading every message.

The log has messages of 100 bytes with a publisher and a topic, in batches of 256. The share of sealing is that of the
thread's processor time. Verifying by digests reads what the log has recorded; the other way computes every digest from
the rows again, by one thread and by two.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

import bench
from headrace.cli.operate.verify.copies import LogCopy
from headrace.log import Log
from headrace.log.proof import resumable_sha256
from headrace.log.proof.chain import ChainExtension
from headrace.log.proof.comparison import computed
from headrace.message import Batch, Run
from headrace.wire.numba_kernels import load

SHARING = 256


def measure(quick: bool) -> Iterator[bench.Table]:
    """Seal a log, then verify it."""
    load(resumable_sha256.__name__)
    count = 140_000 if quick else 4_000_000
    with tempfile.TemporaryDirectory() as directory:
        log = Log.open(Path(directory) / "log", fsync="never", segment_bytes=64 << 20)
        fill(log, count)
        yield sealing(log)
        yield verifying(log)
        log.close()


def fill(log: Log, count: int) -> None:
    run = Run.of([b"x" * 100] * SHARING)
    while log.tail < count:
        batch = Batch(
            run, log.tail + 1, origin="tube", publisher="p", number=log.tail, topic="fleet/7/position"
        )
        log.append([batch])
    log.commit(log.tail_op)
    log.rotate()


def sealing(log: Log) -> bench.Table:
    made = bench.Table(
        "sealing with digests", ("ns/message", "share"), note=f"{log.head:,} messages of 100 bytes"
    )
    spent = 0.0
    add = ChainExtension.add

    def timed(self: ChainExtension, rows: pa.RecordBatch) -> None:
        nonlocal spent
        begin = time.thread_time()
        add(self, rows)
        spent += time.thread_time() - begin

    ChainExtension.add = timed  # type: ignore[method-assign]
    try:
        begin = time.thread_time()
        while log.seal_next():
            pass
        whole = time.thread_time() - begin
    finally:
        ChainExtension.add = add  # type: ignore[method-assign]
    made.add("sealing", whole / log.head * 1e9, 1.0)
    made.add("of it, the digests", spent / log.head * 1e9, spent / whole)
    return made


def verifying(log: Log) -> bench.Table:
    made = bench.Table(
        "verifying all of the past", ("messages/s", "ms"), note=f"{log.head:,} messages of 100 bytes"
    )
    expected = log.chain.at(log.head)
    for name, threads in (
        ("every message, one thread", 1),
        ("every message, two threads", 2),
        ("by digests", 0),
    ):
        fresh = Log.open(log.directory, read_only=True)
        begin = time.perf_counter()
        copy = LogCopy(fresh, fresh.head)
        found = computed(copy, threads=threads)[0] if threads else copy.recorded()
        seconds = time.perf_counter() - begin
        if found != expected:
            raise AssertionError(f"{name}: another chain")
        base = None if threads else "every message, two threads"
        made.add(name, log.head / seconds, seconds * 1000, base=base, least=None if threads else 10)
        fresh.close()
    return made


def main(argv: Sequence[str] | None = None) -> int:
    return bench.run("proof", measure, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
