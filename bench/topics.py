"""Reading a rare topic: one message in a million, by the index of topics and by looking at every row.

The log has messages of 100 bytes, most of them of a thousand topics, in batches of a hundred that share theirs; or each
of a topic of its own, as where every device has one. A reader asks for one topic, of which every millionth message is,
or for a pattern that only this topic matches. Rates are of messages that are read or passed over. The plain way reads
every message and compares its topic, a whole record batch at a time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa

import bench
from headrace.hub.filtered_read import read_passing
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.message import Batch, Run, envelope_rows, merge

SIZE = 100
SHARING = 100
"""Messages of a batch."""
TOPICS = 1_000
RARE = "alarms/42"
STEP = 1 << 20
"""Bytes that a reader takes at a time, as over the link."""


def measure(quick: bool) -> Iterator[bench.Table]:
    """One message in a million, beside looking at every row."""
    million = 10_000 if quick else 1_000_000
    for title, make, sealed, least in (
        ("sealed segments, a thousand topics", few_topics, True, 50),
        ("sealed segments, a topic for each message", own_topics, True, 20),
        ("the open tail, a thousand topics", few_topics, False, 50),
    ):
        with tempfile.TemporaryDirectory() as directory:
            log = Log.open(Path(directory) / "log", fsync="never")
            make(log, 3 * million, million)
            if sealed:
                log.rotate()
                while log.seal_next():
                    pass
            yield table(title, log, sealed, least, quick)
            log.close()


def table(title: str, log: Log, sealed: bool, least: float, quick: bool) -> bench.Table:
    made = bench.Table(
        f"{title}: one message in a million",
        ("messages/s", "ms"),
        note=f"{log.head:,} messages of {SIZE} bytes; nothing was read before, but the files are in the system's cache",
    )
    exact, pattern = Filter(RARE), Filter("alarms/**")
    expected = [seq for seq in range(1, log.head + 1) if seq % (log.head // 3) == 0]
    ways: list[tuple[str, Callable[[Log, Filter], list[int]], Filter, str | None, float | None]] = [
        ("every row", every_row, exact, None, None),
        ("every row, by a pattern", every_row, pattern, None, None),
        ("by the index", by_index, exact, "every row", least),
        ("by the index, by a pattern", by_index, pattern, "every row, by a pattern", None),
    ]
    for name, way, wanted, base, ratio in ways:
        times = []
        for _ in range(1 if quick else 3):
            # Another one of the same files has none of their content in memory yet.
            fresh = Log.open(log.directory, read_only=True) if sealed else log
            begin = time.perf_counter()
            found = way(fresh, wanted)
            times.append(time.perf_counter() - begin)
            if found != expected:
                raise AssertionError(f"{name}: {found}, not {expected}")
        seconds = min(times)
        made.add(name, log.head / seconds, seconds * 1000, base=base, least=ratio)
    return made


def every_row(log: Log, wanted: Filter) -> list[int]:
    """Find messages as one does without an index."""
    found: list[int] = []
    at = 1
    while at <= log.head:
        batches = log.read(at, None, STEP)
        if any(wanted.passes(batch) is not False for batch in batches):
            found += wanted.apply(merge(batches)).column("seq").to_pylist()
        at = batches[-1].last + 1
    return found


def by_index(log: Log, wanted: Filter) -> list[int]:
    """Find messages as the hub does."""
    found: list[int] = []
    at = 1
    while at <= log.head:
        passing, upto, _ = read_passing(log, at, log.head, wanted, STEP)
        for rows in passing:
            found += rows.column("seq").to_pylist()
        at = upto + 1
    return found


def few_topics(log: Log, count: int, million: int) -> None:
    """Fill a log with batches whose messages share a topic; every millionth message is a batch of its own."""
    chance = Random(7)
    while log.tail < count:
        payloads = [chance.randbytes(SIZE) for _ in range(SHARING)]
        many, one = Run.of(payloads[1:]), Run.of(payloads[:1])
        topic = f"fleet/{log.tail // SHARING % TOPICS}/position"
        last = RARE if (log.tail + SHARING) % million == 0 else topic
        _append(log, [Batch(many, log.tail + 1, topic=topic), Batch(one, log.tail + SHARING, topic=last)])


def own_topics(log: Log, count: int, million: int) -> None:
    """Fill a log with messages that have a topic each."""
    chance = Random(7)
    while log.tail < count:
        run = Run.of([chance.randbytes(SIZE) for _ in range(1000)])
        numbers = range(log.tail + 1, log.tail + 1001)
        topics = [f"device/{number}" if number % million else RARE for number in numbers]
        columns = envelope_rows({"topic": pa.array(topics, pa.string())})
        _append(log, [Batch(run, log.tail + 1, columns=columns)])


def _append(log: Log, batches: Sequence[Batch]) -> None:
    log.append(batches)
    log.commit(log.tail_op)


def main(argv: Sequence[str] | None = None) -> int:
    return bench.run("topics", measure, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
