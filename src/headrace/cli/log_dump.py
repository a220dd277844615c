"""What ``log dump`` writes: a range of the log as JSON lines, or as an Arrow file.

Either is whole or not there: a file is written beside its name and renamed when it is finished.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from headrace.cli import live
from headrace.cli.access import Client
from headrace.cli.rendering import envelope_line
from headrace.errors import StorageError, UsageError
from headrace.log.store import Log
from headrace.message import SCHEMA, Batch, merge

_ROWS: Final = 16_384
_BYTES: Final = 4 << 20
"""A record batch is closed at this many messages or payload bytes."""


def dump_json(
    directory: Path, first: int | None, last: int | None, output: Path | None, client: Client | None
) -> int:
    """Write messages as JSON lines, to stdout if there is no file to write to; return how many."""
    count = 0
    with _sink(output) as file:
        for batch in scan(directory, first, last, client):
            file.write(b"".join(map(envelope_line, batch)))
            count += len(batch)
    return count


def dump_arrow(
    directory: Path, first: int | None, last: int | None, output: Path, client: Client | None
) -> int:
    """Write messages as an Arrow IPC file in the envelope's schema; return how many."""
    count = 0
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with _sink(output) as file, pa.ipc.new_file(file, SCHEMA, options=options) as writer:
        for batches in gathered(scan(directory, first, last, client)):
            rows = merge(batches)
            writer.write_batch(rows)
            count += rows.num_rows
    return count


def scan(
    directory: Path, first: int | None, last: int | None, client: Client | None = None
) -> Iterator[Batch]:
    """The committed messages of a log's files, a hub beside it or not."""
    hub = live.find(directory, client)
    log = Log.open(directory, read_only=True)
    try:
        committed = hub.head() if hub is not None else None
        if committed is not None:
            last = committed if last is None else min(last, committed)
        yield from log.scan(log.first if first is None else max(first, 1), last)
    except FileNotFoundError as error:
        problem = "the hub's retention removed it while it was being read"
        raise StorageError(f"{error.filename}: {problem}") from None
    finally:
        log.close()


def gathered(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """Batches in lists of a size worth a record batch."""
    collected: list[Batch] = []
    rows = size = 0
    for batch in batches:
        if collected and (rows + len(batch) > _ROWS or size + batch.run.size > _BYTES):
            yield collected
            collected, rows, size = [], 0, 0
        collected.append(batch)
        rows += len(batch)
        size += batch.run.size
    if collected:
        yield collected


@contextlib.contextmanager
def _sink(output: Path | None) -> Iterator[IO[bytes]]:
    if output is None:
        yield sys.stdout.buffer
        return
    making = output.with_name(output.name + ".making")
    try:
        file = making.open("wb")
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {(error.strerror or str(error)).lower()}") from None
    try:
        with file:
            yield file
        making.replace(output)
    finally:
        making.unlink(missing_ok=True)
