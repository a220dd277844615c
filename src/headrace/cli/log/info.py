"""``log info``: what a log holds, in which files, and which hub writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.terminal.access import Credentials
from headrace.cli.terminal.options import (
    ClientId,
    Config,
    Data,
    Json,
    existing_log,
    find_credentials,
    load_settings,
)
from headrace.cli.terminal.output import console, counted, moment, plain_table, print_json, size, wants_json

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.log.store import Segment

EXAMPLES: Final = (
    ("For people:", "headrace log info"),
    ("For a script:", "headrace log info --json | jq .head"),
)


def info(config: Config = None, data: Data = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show what a log holds: uuid, first and last message, segments, snapshot, and the hub that has it open."""
    settings = load_settings(config, data)
    facts = _facts(existing_log(settings), find_credentials(client_id, settings))
    if wants_json(asked=as_json):
        print_json(facts)
    else:
        _show(facts)


def _facts(directory: Path, credentials: Credentials | None) -> dict[str, Any]:
    """Return all facts about a log, as JSON has them; times are UTC."""
    from headrace.cli.terminal.running_hub import find_running_hub
    from headrace.log.store import Log

    hub = find_running_hub(directory, credentials)
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
            # A live hub is still finishing its write: that is no damage.
            "torn_bytes": 0 if log.torn is None or hub is not None else log.torn.size,
            "hub": None if hub is None else {"pid": hub.pid, "doors": hub.doors},
        }
    finally:
        log.close()


def _show(info: dict[str, Any]) -> None:
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
    from headrace.log.sealed import SealedSegment

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
    """Make a table for 80 columns: a file's name has its first message, and its suffix says whether it is sealed."""
    table = plain_table("file", ">messages", ">size", fold=False)
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
    """Write a span of time, its day once if it is the same.

    >>> when("2026-01-31T10:00:00.5Z", "2026-01-31T10:01:00.5Z")
    '2026-01-31 10:00:00 - 10:01:00'
    >>> when("2026-01-31T10:00:00.5Z", "2026-02-01T10:01:00.5Z")
    '2026-01-31 10:00:00 - 2026-02-01 10:01:00'
    """
    if first is None or last is None:
        return ""
    (day, begun), (other, ended) = (time[:19].split("T") for time in (first, last))
    return f"{day} {begun} - {ended if other == day else f'{other} {ended}'}"
