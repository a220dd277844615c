"""``replay``: publish a range of one log to another hub, once.

This command finds the range and reads it; :mod:`headrace.client.link.replay` decides what is sent and makes it
repeatable.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer

from headrace.cli.hubs.access import HubAccess, run_client
from headrace.cli.terminal.options import (
    ClientId,
    DoorScheme,
    Json,
    LinkUrl,
    existing_log,
    hub_access,
    load_settings,
    position_option,
    until_option,
)
from headrace.cli.terminal.output import console, counted, print_result
from headrace.cli.terminal.positions import (
    FileLog,
    HubLog,
    PointInTime,
    PositionedLog,
    SequenceEnd,
    SequencePosition,
    first_number,
    last_number,
    parse_end,
    parse_position,
)
from headrace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.progress import Progress

    from headrace.client.link.client import LinkClient
    from headrace.client.link.replay import ReplayTarget
    from headrace.log import Log

EXAMPLES: Final = (
    ("All of this hub's log to another:", "headrace replay --to tube://10.0.0.7:8081"),
    (
        "A range of a stopped hub's files:",
        "headrace replay --data ./old --from 100 --until 200 --to tube://10.0.0.7",
    ),
    ("The last hour once more:", "headrace replay --from -1h --as again --to tube://10.0.0.7"),
)

MAX_NAME: Final = 255


def replay(
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The link of the hub that gets them.")],
    begin: Annotated[str, position_option("--from")] = "earliest",
    until: Annotated[str, until_option()] = "now",
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Remember it under this name, not under the log's."),
    ] = None,
    url: LinkUrl = None,
    client_id: ClientId = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="DIR", help="Read a data directory's log instead of a hub's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish a range of a hub's messages, or of a log's files, to another hub.

    Payload, topic and attributes stay; number and time are the other hub's, and the origin is replay. The other hub
    remembers how much of this log it has, so a replay that was interrupted or is repeated continues from there and
    duplicates nothing. A log is therefore replayed forward only: older messages are left out, and stderr says so. --as
    replays under another name, which starts from nothing. With --client-id, this is the same client to both hubs.
    """
    if url is not None and data is not None:
        raise UsageError("--url and --data both say where the messages are: leave out one")
    if name is not None and not 1 <= len(name) <= MAX_NAME:
        raise UsageError(f"--as {name}: expected 1 to {MAX_NAME} characters")
    first, last = parse_position("--from", begin), parse_end("--until", until)
    if first is SequenceEnd.NOW:
        raise UsageError("--from now: nothing is there yet")
    if isinstance(first, int) and isinstance(last, int) and first > last:
        raise UsageError(f"--from {first} is after --until {last}")
    target = hub_access(to, DoorScheme.TUBE, client_id)
    source = (
        existing_log(load_settings(None, data))
        if data is not None
        else hub_access(url, DoorScheme.TUBE, client_id)
    )
    done = run_client(_replay(source, target, first, last, name))
    if done.skipped:
        typer.echo(
            f"headrace: messages up to {done.skipped} were left out: the other hub has this log up to there",
            err=True,
        )
    if done.messages == 1:
        sentence = f"replayed 1 message; it is {done.first} there"
    elif done.messages:
        sentence = f"replayed {counted(done.messages, 'message')}; they are {done.first}-{done.last} there"
    else:
        sentence = "there was nothing to replay"
    print_result(done.facts(), sentence, as_json=as_json)


@dataclass(slots=True)
class Replayed:
    """The range that was asked for, the number of messages sent, and their numbers at the other hub."""

    log: str
    from_seq: int
    until_seq: int
    skipped: int | None = None
    """The last message of the range that the other hub had already, if any."""
    messages: int = 0
    first: int | None = None
    last: int | None = None

    def facts(self) -> dict[str, object]:
        """Return the same as JSON has it."""
        facts = asdict(self)
        return {
            "log": facts.pop("log"),
            "from": facts.pop("from_seq"),
            "until": facts.pop("until_seq"),
            **facts,
        }


class ReplaySource(PositionedLog, Protocol):
    """A log to replay."""

    log: str

    def rows(self, first: int, last: int) -> AsyncIterator[pa.RecordBatch]:
        """Return messages in the envelope's schema."""


class _HubSource(HubLog):
    """The log of a running hub."""

    def __init__(self, link: LinkClient) -> None:
        super().__init__(link)
        self.log = link.log

    def rows(self, first: int, last: int) -> AsyncIterator[pa.RecordBatch]:
        return self.link.read(first, last)


class _FileSource(FileLog):
    """A log's files."""

    def __init__(self, directory: Path, opened: Log) -> None:
        super().__init__(opened)
        self._directory = directory
        self.log = str(opened.uuid)

    async def rows(self, first: int, last: int) -> AsyncIterator[pa.RecordBatch]:
        import asyncio

        from headrace.cli.operate.log.dump import gather_batches, scan
        from headrace.message import merge

        for batches in gather_batches(scan(self._directory, first, last)):
            yield merge(batches)
            # Files are always ready: without this the connection would not get a turn.
            await asyncio.sleep(0)


async def _replay(
    origin: HubAccess | Path,
    target: HubAccess,
    begin: SequencePosition,
    until: SequencePosition,
    name: str | None,
) -> Replayed:
    from headrace.archive.past import open_whole
    from headrace.client.link.replay import ReplayTarget

    async with ReplayTarget.at(target.url, name="headrace replay", **target.client_options) as there:
        match origin:
            case HubAccess():
                async with origin.link("headrace replay") as link:  # noqa: ASYNC240 -- no path
                    return await _copy(_HubSource(link), there, begin, until, name)
            case Path():
                with open_whole(origin) as log:
                    return await _copy(_FileSource(origin, log), there, begin, until, name)


async def _copy(
    source: ReplaySource,
    there: ReplayTarget,
    begin: SequencePosition,
    until: SequencePosition,
    name: str | None,
) -> Replayed:
    from headrace.client.link.replay import publisher_name

    if source.log == there.log:
        raise UsageError(f"both hubs have the log {source.log}: a log is replayed to another one")
    first, last = await _range(source, begin, until)
    done = Replayed(source.log, first, last)
    newest = await there.resume(name or publisher_name(source.log))
    if newest is not None and newest >= first:
        done.skipped = min(newest, last)
        first = newest + 1
    if first > last:
        return done
    with _progress_bar() as bar:
        task = bar.add_task("replaying", total=last - first + 1)
        async for rows in source.rows(first, last):
            await there.send(rows)
            bar.update(task, advance=rows.num_rows)
    done.messages, done.first, done.last = there.messages, there.first_seq, there.last_seq
    return done


async def _range(source: ReplaySource, begin: SequencePosition, until: SequencePosition) -> tuple[int, int]:
    oldest, head = await source.bounds()
    first, last = await first_number(source, begin), await last_number(source, until)
    # A number that is no longer kept is an error, a time is not.
    return max(oldest, first) if isinstance(begin, PointInTime) else first, min(last, head)


def _progress_bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
