"""``log info``: what a log holds, in which files, and which hub writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.hubs.access import Credentials
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

    from headrace.log.reading import Segment

_SUMS: Final = ("messages", "entries", "bytes", "message_bytes", "entry_bytes")

EXAMPLES: Final = (
    ("For people:", "headrace log info"),
    ("For a script:", "headrace log info --json | jq .head"),
)


def info(config: Config = None, data: Data = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show what a log holds: its messages, its own entries, segments, snapshot, and the hub that has it open.

    Entries are the hub's bookkeeping (services, holds, acknowledgements). They lie between the messages and have no
    numbers.
    """
    settings = load_settings(config, data)
    facts = _facts(existing_log(settings), find_credentials(client_id, settings))
    if wants_json(asked=as_json):
        print_json(facts)
    else:
        _show(facts)


def _facts(directory: Path, credentials: Credentials | None) -> dict[str, Any]:
    from headrace.archive.past import ArchivedPast, open_whole
    from headrace.cli.hubs.running_hub import find_running_hub

    hub = find_running_hub(directory, credentials)
    with open_whole(directory) as log:
        segments = [_segment(segment) for segment in log.segments]
        committed = hub.head() if hub is not None else None
        return {
            "directory": str(directory),
            "log": str(log.uuid),
            "first": log.first,
            "first_here": log.first_here,
            "archive": log.past.facts() if isinstance(log.past, ArchivedPast) else None,
            "head": log.tail if committed is None else min(committed, log.tail),
            "tail": log.tail,
            **{name: sum(segment[name] for segment in segments) for name in _SUMS},
            "segments": segments,
            "snapshot": None if log.snapshot is None else log.snapshot.seq,
            "damaged_snapshots": [error.path for error in log.damaged_snapshots],
            # A live hub is still finishing its write: that is no damage.
            "torn_bytes": 0 if log.torn is None or hub is not None else log.torn.size,
            "hub": None if hub is None else {"pid": hub.pid, "doors": hub.doors},
        }


def _show(info: dict[str, Any]) -> None:
    out = console()
    hub = info["hub"]
    messages = info["head"] - info["first"] + 1
    rows = [
        ("log", info["log"]),
        ("directory", info["directory"]),
        ("messages", f"{messages:,}" + (_extent(info) if messages else "")),
        ("entries", f"{info['entries']:,} of the hub's own, {size(info['entry_bytes'])}"),
        ("on disk", f"{size(info['bytes'])} in {counted(len(info['segments']), 'segment')}"),
        ("snapshot", _snapshot(info["snapshot"])),
        ("hub", "none is running" if hub is None else _hub(hub)),
    ]
    if info["archive"] is not None:
        rows.insert(3, ("archive", _archive(info["archive"])))
        rows.insert(4, ("here", f"from message {info['first_here']} on"))
    if info["tail"] > info["head"]:
        rows.append(("to commit", counted(info["tail"] - info["head"], "message")))
    if info["torn_bytes"]:
        rows.append(
            ("torn end", f"{size(info['torn_bytes'])} of an unfinished write; the next start cuts it off")
        )
    rows += [("damaged", path) for path in info["damaged_snapshots"]]
    if times := when(info["segments"]):
        rows.insert(3, ("when", times))
    for name, value in rows:
        out.print(f"[dim]{name:<10}[/dim] {value}", soft_wrap=True)
    out.print()
    out.print(_table(info["segments"]))


def _extent(info: dict[str, Any]) -> str:
    return f", {info['first']} to {info['head']}, {size(info['message_bytes'])}"


def _snapshot(seq: int | None) -> str:
    if seq is None:
        return "none yet"
    return f"after message {seq}" if seq else "before the first message"


def _archive(archive: dict[str, Any]) -> str:
    if archive["problem"] is not None:
        return f"{archive['place']}: {archive['problem']}"
    return f"messages {archive['first']} to {archive['last']} in {archive['place']}"


def _hub(hub: dict[str, Any]) -> str:
    doors = ", ".join(f"{door} {address}" for door, address in hub["doors"].items())
    return f"process {hub['pid']}" + (f": {doors}" if doors else "")


def _segment(segment: Segment) -> dict[str, Any]:
    from headrace.log.sealed.segment import SealedSegment

    messages = segment.last - segment.first + 1
    return {
        "file": segment.path.name,
        "kind": "sealed" if isinstance(segment, SealedSegment) else "open",
        "first": segment.first,
        "last": segment.last,
        "messages": messages,
        "entries": segment.last_op - segment.first_op + 1 - messages,
        "bytes": segment.size,
        "message_bytes": segment.size - segment.entries_size,
        "entry_bytes": segment.entries_size,
        "first_time": moment(segment.first_time()) if messages else None,
        "last_time": moment(segment.last_time) if messages else None,
    }


def _table(segments: list[dict[str, Any]]) -> Table:
    """Make a table for 80 columns: a file's suffix says whether it is sealed."""
    table = plain_table("file", ">messages", ">size", ">entries", ">size", "from (UTC)", fold=False)
    table.collapse_padding = True
    for segment in segments:
        begun = segment["first_time"]
        table.add_row(
            segment["file"],
            f"{segment['messages']:,}",
            size(segment["message_bytes"]),
            f"{segment['entries']:,}",
            size(segment["entry_bytes"]),
            "" if begun is None else begun[:16].replace("T", " "),
        )
    return table


def when(segments: list[dict[str, Any]]) -> str:
    """Write the span of time of the messages, its day once if it is the same.

    >>> when([{"first_time": "2026-01-31T10:00:00.5Z", "last_time": "2026-01-31T10:01:00.5Z"}])
    '2026-01-31 10:00:00 to 10:01:00 UTC'
    >>> when([{"first_time": "2026-01-31T10:00:00.5Z", "last_time": "2026-02-01T10:01:00.5Z"}])
    '2026-01-31 10:00:00 to 2026-02-01 10:01:00 UTC'
    """
    timed = [segment for segment in segments if segment["first_time"] is not None]
    if not timed:
        return ""
    span = timed[0]["first_time"], timed[-1]["last_time"]
    (day, begun), (other, ended) = (time[:19].split("T") for time in span)
    return f"{day} {begun} to {ended if other == day else f'{other} {ended}'} UTC"
