"""Logs whose older messages are in an archive, for tests of what reads them there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from headrace.archive.appending import append, ledger_for
from headrace.archive.ledger import Writer
from headrace.archive.past import ArchivedPast
from headrace.log import Log
from headrace.log.maintained import remove_files
from headrace.message import SCHEMA, Batch, Run, envelope_rows, map_column

BEGIN = 1_790_000_000_000_000
STEP = 1_000


def message_batches(first: int, last: int) -> Iterator[Batch]:
    """Messages in which every column of the envelope differs now and then, in batches of 100."""
    for begin in range(first, last + 1, 100):
        seqs = range(begin, min(begin + 99, last) + 1)
        run = Run.of([b"" if seq % 50 == 0 else f"message {seq}".encode() for seq in seqs])
        batch = Batch(
            run, first=begin, time=BEGIN + begin * STEP, origin="tube", topic=f"topics/{begin // 100 % 5}"
        )
        if begin // 100 % 2:
            yield replace(batch, publisher=f"publisher {begin // 100 % 3}", number=begin)
            continue
        columns = {
            "time": pa.array([BEGIN + seq * STEP for seq in seqs]).cast(SCHEMA.field("time").type),
            "number": pa.array([None if seq % 3 else seq for seq in seqs], pa.int64()),
            "topic": pa.array([f"rows/{seq % 7}" for seq in seqs]),
            "attributes": map_column("attributes", [{"kind": "ä"} if seq % 2 else {} for seq in seqs]),
            "numbers": map_column("numbers", [{"size": math.nan, "at": seq / 3} for seq in seqs]),
        }
        yield replace(batch, columns=envelope_rows(columns))


def write_log(directory: Path, last: int, *, per_segment: int = 1_000, first: int = 1) -> Log:
    """A log of such messages, all of them sealed."""
    log = Log.open(directory, fsync="never")
    for begin in range(first, last + 1, per_segment):
        for batch in message_batches(begin, min(begin + per_segment - 1, last)):
            log.append([batch])
        log.commit(log.tail_op)
        log.rotate()
        while log.seal_next():
            pass
    return log


def archive(log: Log, place: Path | str, last: int, *, first: int = 1, kind: str = "delta") -> None:
    """Archive a log's messages up to ``last``."""
    ledger = ledger_for(str(place), str(log.uuid), kind)
    rows = (batch.to_arrow() for batch in log.scan(max(first, ledger.through + 1), last))
    append(ledger, rows, Writer("tests", 0))


def trim(log: Log, past: ArchivedPast, *, keep: int = 1) -> None:
    """Remove from a log what its archive has, but for some of the newest segments."""
    log.write_snapshot(log.head_op, log.head, {})
    log.past = past
    assert past.look(), past.problem
    archived = 0
    while archived < (archived := past.vouched()):
        pass
    kept = sum(segment.size for segment in log.segments[-keep - 1 :])
    _, gone = log.let_go(0, retain_bytes=kept, retain_us=None, holds={}, archived=archived)
    remove_files(gone)


def rows_of(batches: list[Batch] | Iterator[Batch]) -> pa.Table:
    """Batches as rows, to compare whole envelopes."""
    return pa.Table.from_batches([batch.to_arrow() for batch in batches], SCHEMA).combine_chunks()


def same(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables have the same rows, bit by bit: what is no number equals itself."""
    bits = [
        each.set_column(
            each.schema.get_field_index("numbers"),
            "numbers",
            pa.array(map(repr, each["numbers"].to_pylist())),
        )
        for each in (one, other)
    ]
    return bool(bits[0].equals(bits[1]))
