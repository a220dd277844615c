"""What ``replay`` does: read a range of one log and publish it to another hub, once.

A replay's publisher is named after the source's log; :mod:`~headrace.client.link.replay` says what makes it repeatable.

Log entries that are no messages (a service created, a cursor moved) are not replayed. They leave gaps in the numbers,
so rows are sent in runs without a gap.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.cli import log_dump
from headrace.cli.access import Access
from headrace.cli.output import console
from headrace.cli.places import End, Place, Then
from headrace.cli.seeking import seek
from headrace.cli.stderr import speak_briefly
from headrace.client.link.client import LinkClient
from headrace.client.link.replay import ReplayTarget, runs
from headrace.errors import UsageError
from headrace.log.store import Log
from headrace.message import NOT_A_MESSAGE, merge

_MICROSECONDS: Final = 1_000_000


@dataclass(slots=True)
class Replayed:
    """What came of it: the range asked for, how many messages were sent, and their numbers at the other hub."""

    log: str
    from_seq: int
    until_seq: int
    skipped: int | None = None
    """Up to which message the other hub had the log already, if that is in the range."""
    messages: int = 0
    first: int | None = None
    last: int | None = None

    def facts(self) -> dict[str, object]:
        """The same for a program."""
        facts = asdict(self)
        return {
            "log": facts.pop("log"),
            "from": facts.pop("from_seq"),
            "until": facts.pop("until_seq"),
            **facts,
        }


def replay(source: Access | Path, target: Access, begin: Place, until: Place, name: str | None) -> Replayed:
    """Publish messages ``begin`` to ``until`` of a hub or of a log's files (a directory) to ``target``."""
    speak_briefly()
    return asyncio.run(_replay(source, target, begin, until, name))


class _Source(Protocol):
    """Where the messages are."""

    log: str

    async def bounds(self) -> tuple[int, int]:
        """The first message and the head."""

    async def seq_at(self, seconds: float) -> int:
        """The first message at or after a time; behind the head if all are older."""

    def rows(self, first: int, last: int) -> AsyncIterator[pa.RecordBatch]:
        """Messages in the envelope's schema."""


class _Hub:
    """Messages of a running hub."""

    def __init__(self, link: LinkClient) -> None:
        self._link = link
        self.log = link.log

    async def bounds(self) -> tuple[int, int]:
        extent = await self._link.head()
        return extent.first, extent.head

    async def seq_at(self, seconds: float) -> int:
        return await seek(self._link, Then(seconds))

    def rows(self, first: int, last: int) -> AsyncIterator[pa.RecordBatch]:
        return self._link.read(first, last)


class _Files:
    """Messages of a log's files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        log = Log.open(directory, read_only=True)
        try:
            self.log = str(log.uuid)
            self._bounds = log.first, log.head
        finally:
            log.close()

    async def bounds(self) -> tuple[int, int]:
        return self._bounds

    async def seq_at(self, seconds: float) -> int:
        log = Log.open(self._directory, read_only=True)
        try:
            return log.seq_at(int(seconds * _MICROSECONDS))
        finally:
            log.close()

    async def rows(self, first: int, last: int) -> AsyncIterator[pa.RecordBatch]:
        for batches in log_dump.gathered(log_dump.scan(self._directory, first, last)):
            rows = merge(batches)
            yield rows.filter(pc.not_equal(rows.column("origin"), NOT_A_MESSAGE))
            # Files are always ready: without this the connection would not get a turn.
            await asyncio.sleep(0)


def _target(hub: Access) -> ReplayTarget:
    """The hub that gets the messages."""
    if hub.url.rstrip("/").endswith(":"):
        raise UsageError(f"{hub.url!r} names no host: expected tube://host:port")
    return ReplayTarget.at(hub.url, name="headrace replay", **hub.proof)


async def _replay(
    source: Access | Path, target: Access, begin: Place, until: Place, name: str | None
) -> Replayed:
    async with _target(target) as there:
        if isinstance(source, Path):
            return await _copy(_Files(source), there, begin, until, name)
        return await _copy_hub(source, there, begin, until, name)


async def _copy_hub(
    source: Access, there: ReplayTarget, begin: Place, until: Place, name: str | None
) -> Replayed:
    async with source.link("headrace replay") as link:
        return await _copy(_Hub(link), there, begin, until, name)


async def _copy(
    source: _Source, there: ReplayTarget, begin: Place, until: Place, name: str | None
) -> Replayed:
    if source.log == there.log:
        raise UsageError(f"both hubs have the log {source.log}: a log is replayed to another one")
    first, last = await _range(source, begin, until)
    done = Replayed(source.log, first, last)
    publisher = name or f"replay {source.log}"
    newest = await there.newest(publisher)
    if newest is not None and newest >= first:
        done.skipped = min(newest, last)
        first = newest + 1
    if first > last:
        return done
    with _bar() as bar:
        shown = bar.add_task("replaying", total=last - first + 1)
        async for rows in source.rows(first, last):
            for number, run in runs(rows):
                at_first, at_last = await there.append(publisher, number, run)
                done.first = at_first if done.first is None else done.first
                done.last = at_last
                done.messages += run.num_rows
                bar.update(shown, completed=number + run.num_rows - first)
        bar.update(shown, completed=last - first + 1)
    return done


async def _range(source: _Source, begin: Place, until: Place) -> tuple[int, int]:
    oldest, head = await source.bounds()
    match begin:
        case Then(seconds):
            first = max(oldest, await source.seq_at(seconds))
        case End():
            first = oldest
        case int():
            first = begin
    match until:
        case Then(seconds):
            last = await source.seq_at(seconds) - 1
        case End():
            last = head
        case int():
            last = min(until, head)
    return first, last


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
