"""``log dump``: a range of the log as JSON lines, or as an Arrow file.

A file is written beside its name and renamed when it is finished, so it is whole or not there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.hubs.access import Credentials
from headrace.cli.terminal.options import (
    ClientId,
    Config,
    Data,
    existing_log,
    find_credentials,
    load_settings,
    position_option,
    until_option,
)
from headrace.cli.terminal.output import counted, print_result
from headrace.errors import StorageError, UsageError, system_reason

if TYPE_CHECKING:
    from headrace.cli.terminal.positions import SequencePosition
    from headrace.message import Batch

EXAMPLES: Final = (
    ("Everything:", "headrace log dump"),
    ("The payloads from message 1000 on:", "headrace log dump --from 1000 | jq -r .payload"),
    ("A range as Arrow:", "headrace log dump --to 5000 --format arrow --output part.arrow"),
)

_ROWS: Final = 16_384
_BYTES: Final = 4 << 20
"""A record batch is closed at this many messages or payload bytes."""


class DumpFormat(StrEnum):
    """The format of a dump."""

    JSON = "json"
    ARROW = "arrow"


def dump(
    begin: Annotated[str, position_option("--from")] = "earliest",
    until: Annotated[str, until_option("--to")] = "now",
    form: Annotated[DumpFormat, typer.Option("--format", help="What to write.")] = DumpFormat.JSON,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write; by default stdout."),
    ] = None,
    config: Config = None,
    data: Data = None,
    client_id: ClientId = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --output: print the result as JSON.")] = False,
) -> None:
    """Print messages with their whole envelope, one JSON object a line, or write them to an Arrow file.

    A payload that is not UTF-8 is base64 under "payload_base64". The range is cut to what is committed; a beginning
    that retention has removed is an error. An Arrow file has the schema of the log's own sealed segments, and any Arrow
    reader opens it.
    """
    from headrace.cli.terminal.positions import SequenceEnd, parse_end, parse_position

    first, last = parse_position("--from", begin), parse_end("--until", until)
    if first is SequenceEnd.NOW:
        raise UsageError("--from now: nothing is there yet")
    if isinstance(first, int) and isinstance(last, int) and first > last:
        raise UsageError(f"--from {first} is after --until {last}")
    if form is DumpFormat.ARROW and output is None:
        raise UsageError("an Arrow file needs a name: add --output FILE")
    settings = load_settings(config, data)
    directory = existing_log(settings)
    batches = scan(directory, *_range(directory, first, last), find_credentials(client_id, settings))
    with _open_output(output) as file:
        count = (_write_arrow if form is DumpFormat.ARROW else _write_json)(batches, file)
    if output is not None:
        facts = {"messages": count, "file": str(output)}
        print_result(facts, f"{counted(count, 'message')} in {output}", as_json=as_json)


def _range(
    directory: Path, begin: SequencePosition, until: SequencePosition
) -> tuple[int | None, int | None]:
    """Return the first message and the last; ``None`` stands for the ends of what is committed."""
    from headrace.archive.past import open_whole
    from headrace.cli.terminal.event_loop import run_until_done
    from headrace.cli.terminal.positions import FileLog, PointInTime, first_number, last_number

    if not isinstance(begin, PointInTime) and not isinstance(until, PointInTime):
        return begin if isinstance(begin, int) else None, until if isinstance(until, int) else None
    with open_whole(directory) as log:
        files = FileLog(log)
        first = run_until_done(partial(first_number, files, begin))
        return first, run_until_done(partial(last_number, files, until))


def scan(
    directory: Path, first: int | None, last: int | None, credentials: Credentials | None = None
) -> Iterator[Batch]:
    """Read the committed messages of a log's files, beside a hub or without."""
    from headrace.archive.past import open_whole
    from headrace.cli.hubs.running_hub import find_running_hub

    hub = find_running_hub(directory, credentials)
    try:
        with open_whole(directory) as log:
            committed = hub.head() if hub is not None else None
            if committed is not None:
                last = committed if last is None else min(last, committed)
            yield from log.scan(log.first if first is None else max(first, 1), last)
    except FileNotFoundError as error:
        problem = "the hub's retention removed it while it was being read"
        raise StorageError(f"{error.filename}: {problem}") from None


def gather_batches(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """Gather batches into lists, each large enough for a record batch."""
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


def _write_json(batches: Iterator[Batch], file: IO[bytes]) -> int:
    from headrace.cli.terminal.rendering import envelope_line

    count = 0
    for batch in batches:
        file.write(b"".join(map(envelope_line, batch)))
        count += len(batch)
    return count


def _write_arrow(batches: Iterator[Batch], file: IO[bytes]) -> int:
    import pyarrow as pa

    from headrace.message import SCHEMA, merge

    count = 0
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(file, SCHEMA, options=options) as writer:
        for some in gather_batches(batches):
            rows = merge(some)
            writer.write_batch(rows)
            count += rows.num_rows
    return count


@contextlib.contextmanager
def _open_output(output: Path | None) -> Iterator[IO[bytes]]:
    if output is None:
        yield sys.stdout.buffer
        return
    from headrace.log.files import making

    with making(output) as unfinished:
        try:
            file = unfinished.open("wb")
        except OSError as error:
            raise UsageError(f"{output} cannot be written: {system_reason(error)}") from None
        with file:
            yield file
        unfinished.replace(output)
