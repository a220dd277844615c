"""Logs on disk for the tests of ``headrace log``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from headrace.log import Log
from headrace.message import NOT_A_MESSAGE, Batch, Run


def write_log(
    data: Path, *segments: list[bytes], sealed: bool = False, entries_after: Collection[int] = ()
) -> Path:
    """A log of these payloads in a data directory, a segment for each list; return the log's directory.

    All but the last segment are sealed, and the last too if told so. Message ``n`` has the time 1,000,000 × n µs. Two
    entries stand after each of the messages ``entries_after``.
    """
    log = Log.open(data / "log")
    for place, payloads in enumerate(segments):
        if place:
            _seal(log)
        for payload in payloads:
            seq = log.tail + 1
            message = Batch(Run.of([payload]), origin="fyrehose", topic="t")
            log.append([message.numbered(log.tail_op + 1, seq, seq * 1_000_000, 0)])
            if seq in entries_after:
                kept = Batch(Run.of([b"a", b"b"]), origin=NOT_A_MESSAGE, topic="holds/h")
                log.append([kept.numbered(log.tail_op + 1, seq, seq * 1_000_000, 0)])
        log.commit(log.tail_op)
    if sealed:
        _seal(log)
    log.close()
    return data / "log"


def write_trimmed_log(data: Path, first: int, *segments: list[bytes]) -> None:
    """The same log after retention: it begins with ``first``."""
    log = Log.open(write_log(data, *segments))
    log.write_snapshot(log.tail_op, log.tail, {})
    log.retain(1, retain_bytes=1, retain_us=None, holds={})
    assert log.first == first
    log.close()


def _seal(log: Log) -> None:
    log.rotate()
    while log.seal_next() is not None:
        pass


def flip(path: Path, offset: int) -> None:
    """Damage one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)
