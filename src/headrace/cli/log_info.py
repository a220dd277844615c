"""What ``log info`` shows: what a log holds, in which files, and who writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from headrace.cli import live
from headrace.cli.access import Client
from headrace.cli.output import console, counted, moment, size
from headrace.log.sealed import SealedSegment
from headrace.log.store import Log, Segment


def facts(directory: Path, client: Client | None = None) -> dict[str, Any]:
    """Everything there is to say about a log, as JSON has it; times are UTC."""
    hub = live.find(directory, client)
    log = Log.open(directory, read_only=True)
    try:
        segments = [_segment(segment) for segment in log.segments]
        committed = hub.head() if hub is not None else None
        return {
            "directory": str(directory),
            "log": str(log.uuid),
            "first": log.first,
            "head": log.tail if committed is None else min(committed, log.tail),
            "tail": log.tail,
            "bytes": log.size,
            "segments": segments,
            "snapshot": None if log.snapshot is None else log.snapshot.seq,
            "damaged_snapshots": [error.path for error in log.damaged_snapshots],
            # A live hub's unfinished write is no damage: it is finishing it.
            "torn_bytes": 0 if log.torn is None or hub is not None else log.torn.size,
            "hub": None if hub is None else {"pid": hub.pid, "doors": hub.doors},
        }
    finally:
        log.close()


def show(info: dict[str, Any]) -> None:
    """The same for people."""
    out = console()
    hub = info["hub"]
    messages = info["head"] - info["first"] + 1
    rows = [
        ("log", info["log"]),
        ("directory", info["directory"]),
        ("messages", f"{messages:,}" + (f", {info['first']} to {info['head']}" if messages else "")),
        ("on disk", f"{size(info['bytes'])} in {counted(len(info['segments']), 'segment')}"),
        ("snapshot", "none yet" if info["snapshot"] is None else f"at {info['snapshot']}"),
        ("hub", "none is running" if hub is None else _hub(hub)),
    ]
    if info["tail"] > info["head"]:
        rows.append(("to commit", counted(info["tail"] - info["head"], "message")))
    if info["torn_bytes"]:
        rows.append(
            ("torn end", f"{size(info['torn_bytes'])} of an unfinished write; the next start cuts it off")
        )
    rows += [("damaged", path) for path in info["damaged_snapshots"]]
    for name, value in rows:
        out.print(f"[dim]{name:<10}[/dim] {value}", soft_wrap=True)
    out.print()
    out.print(_table(info["segments"]))


def _hub(hub: dict[str, Any]) -> str:
    doors = ", ".join(f"{door} {address}" for door, address in hub["doors"].items())
    return f"process {hub['pid']}" + (f": {doors}" if doors else "")


def _segment(segment: Segment) -> dict[str, Any]:
    empty = segment.last < segment.first
    return {
        "file": segment.path.name,
        "kind": "sealed" if isinstance(segment, SealedSegment) else "open",
        "first": segment.first,
        "last": segment.last,
        "bytes": segment.size,
        "first_time": None if empty else moment(segment.first_time()),
        "last_time": None if empty else moment(segment.last_time),
    }


def _table(segments: list[dict[str, Any]]) -> Table:
    """A line each, in 80 columns: a file's name says its first message, and its ending whether it is sealed."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("file", no_wrap=True)
    for heading in ("messages", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("when (UTC)", overflow="fold")
    for segment in segments:
        count = segment["last"] - segment["first"] + 1
        table.add_row(
            segment["file"],
            f"{count:,}",
            size(segment["bytes"]),
            when(segment["first_time"], segment["last_time"]),
        )
    return table


def when(first: str | None, last: str | None) -> str:
    """From one time to another, a day that is the same said once.

    >>> when("2026-01-31T10:00:00.5Z", "2026-01-31T10:01:00.5Z")
    '2026-01-31 10:00:00 - 10:01:00'
    >>> when("2026-01-31T10:00:00.5Z", "2026-02-01T10:01:00.5Z")
    '2026-01-31 10:00:00 - 2026-02-01 10:01:00'
    """
    if first is None or last is None:
        return ""
    (day, begun), (other, ended) = (time[:19].split("T") for time in (first, last))
    return f"{day} {begun} - {ended if other == day else f'{other} {ended}'}"
