"""Join the parts of a sequence at their edges: the findings of ``verify``, and its state for the next micro-batch.

Runs are taken in the order in which their rows came. A run should begin after the highest number so far; numbers that
it skips are a **hole**. A late run either fills a hole, which makes it **disorder** instead, or is a **repeat**. Times
must not decrease and a publisher's numbers must increase along the sequence, late runs aside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.spark.jobs.verify.segment_scan import NUMBERS, RUN, TIMES

MAX_HOLES: Final = 10_000
"""Most holes remembered, to tell disorder from repeats."""
MAX_PUBLISHERS: Final = 100_000
"""Most publishers remembered, as many as the hub does; the one longest silent is forgotten first."""

FINDINGS: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("server", pa.string(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("last", pa.int64(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("evidence", pa.string(), nullable=False),
    ]
)
"""One row per finding: messages ``first`` to ``last`` of a server's log, and the evidence."""

HOLE: Final = "hole"
REPEAT: Final = "repeat"
DISORDER: Final = "disorder"
TIME: Final = "time"
NUMBER: Final = "number"
DISAGREEMENT: Final = "disagreement"

_begin: Final = itemgetter(0)
_end: Final = itemgetter(1)


class Finding(msgspec.Struct, frozen=True):
    """Something wrong with messages ``first`` to ``last``."""

    kind: str
    first: int
    last: int
    evidence: str
    publisher: str = ""
    server: str = ""


Reached = tuple[int, int, int]
"""The highest value so far, its message, and the last message checked."""


class SequenceChecker(msgspec.Struct):
    """What is known about one log so far; kept from micro-batch to micro-batch as JSON."""

    first: int | None = None
    """The lowest number seen; ``None`` before there was any."""
    last: int = 0
    """The highest number seen."""
    holes: list[tuple[int, int]] = []
    """In the order of the sequence; there may be many, so they are searched by bisection."""
    time: Reached = (0, 0, 0)
    numbers: dict[str, Reached] = {}
    """Each publisher's numbers."""

    def check(self, segments: pa.Table) -> list[Finding]:
        """Check the next segments; return what is wrong."""
        ordered = segments.sort_by([("part", "ascending"), ("at", "ascending")])
        known = list(self.holes)
        found: list[Finding] = []
        for row in ordered.to_pylist():
            match row["what"]:
                case what if what == RUN:
                    found += self._run(row["first"], row["last"])
                case what if what == TIMES:
                    found += self._times(row)
                case what if what == NUMBERS:
                    found += self._numbers(row)
        for first, last in self.holes:
            # What is left of a known hole is not a new finding.
            before = bisect_right(known, first, key=_begin) - 1
            if before < 0 or last > known[before][1]:
                evidence = f"message {first - 1} is followed by {last + 1}"
                found.append(Finding(HOLE, first, last, evidence))
        self._forget()
        return sorted(found, key=lambda finding: (finding.first, finding.kind))

    def _run(self, first: int, last: int) -> Iterator[Finding]:
        if self.first is None:
            self.first, self.last = first, last
            return
        if first > self.last + 1:
            self.holes.append((self.last + 1, first - 1))
        highest, self.last = self.last, max(self.last, last)
        if first > highest:
            return
        late_last = min(last, highest)
        if first < self.first:
            yield Finding(DISORDER, first, min(late_last, self.first - 1), f"after message {highest}")
            if late_last < self.first - 1:
                self.holes.insert(0, (late_last + 1, self.first - 1))
            first, self.first = self.first, first
        yield from self._late(first, late_last, highest)

    def _late(self, first: int, last: int, highest: int) -> Iterator[Finding]:
        """Check a late run: each message fills a hole or is a repeat."""
        at = first
        begins, ends = bisect_left(self.holes, first, key=_end), bisect_right(self.holes, last, key=_begin)
        kept: list[tuple[int, int]] = []
        for begin, end in self.holes[begins:ends]:
            fills, until = max(begin, first), min(end, last)
            if at < fills:
                yield Finding(REPEAT, at, fills - 1, f"again after message {highest}")
            yield Finding(DISORDER, fills, until, f"after message {highest}")
            at = until + 1
            if begin < fills:
                kept.append((begin, fills - 1))
            if until < end:
                kept.append((until + 1, end))
        if at <= last:
            yield Finding(REPEAT, at, last, f"again after message {highest}")
        self.holes[begins:ends] = kept

    def _times(self, row: Mapping[str, Any]) -> Iterator[Finding]:
        highest, seq, looked = self.time
        if row["end"] <= looked:
            return
        # A segment that begins with rows checked before counts only for those after them.
        if row["begin"] > looked and row["first"] < highest:
            last = row["end"] if row["last"] < highest else row["begin"]
            evidence = f"message {row['begin']} is of {_clock(row['first'])}, and {seq} before it of {_clock(highest)}"
            yield Finding(TIME, row["begin"], last, evidence)
        self.time = _reached(self.time, row)

    def _numbers(self, row: Mapping[str, Any]) -> Iterator[Finding]:
        publisher = row["publisher"]
        reached = highest, seq, looked = self.numbers.get(publisher, (-1, 0, 0))
        if row["end"] <= looked:
            return
        if row["begin"] > looked and row["first"] <= highest:
            last = row["end"] if row["last"] <= highest else row["begin"]
            evidence = f"message {row['begin']} has number {row['first']}, and {seq} before it {highest}"
            yield Finding(NUMBER, row["begin"], last, evidence, publisher)
        # Moved to the end: the most recent.
        self.numbers.pop(publisher, None)
        self.numbers[publisher] = _reached(reached, row)

    def _forget(self) -> None:
        del self.holes[:-MAX_HOLES]
        for publisher in list(self.numbers)[: max(len(self.numbers) - MAX_PUBLISHERS, 0)]:
            del self.numbers[publisher]


def _reached(before: Reached, row: Mapping[str, Any]) -> Reached:
    highest, seq, _ = before
    if row["last"] >= highest:
        highest, seq = row["last"], row["end"]
    return highest, seq, row["end"]


def table(findings: list[Finding]) -> pa.Table:
    """Convert findings to rows."""
    rows = [{name: getattr(finding, name) for name in FINDINGS.names} for finding in findings]
    return pa.Table.from_pylist(rows, schema=FINDINGS)


def _clock(time: int) -> str:
    return datetime.fromtimestamp(time / 1_000_000, UTC).isoformat(timespec="microseconds")
