"""What ``decode`` prints: the rows of the pipeline's job of that name, made here and without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.cli.output import moment
from headrace.cli.rendering import Form, json_line, visible
from headrace.errors import UsageError
from headrace.spark.jobs.decode import is_capture, parse_ports, rows_of
from headrace.spark.jobs.folder import Folder

_ARROWS: Final = {False: "->", True: "<-", None: "  "}
"""To the hub, and from it."""


def show(captures: Sequence[Path], ports: str, form: Form) -> None:
    """Print every frame of some captures."""
    doors = parse_ports(ports)
    files = list(_files(captures))
    line = _json_line if form is Form.JSON else _text_line
    for file in files:
        for row in rows_of(Folder.at(str(file.parent)), file.name, doors):
            sys.stdout.buffer.write(line({**row, "capture": str(file)}))


def _files(captures: Sequence[Path]) -> Iterator[Path]:
    """The captures that are meant; each is looked for before the first is read."""
    for place in captures:
        if place.is_dir():
            found = sorted(path for path in place.iterdir() if is_capture(path.name) and path.is_file())
            if not found:
                raise UsageError(f"{place} has no captures (*.capture, *.pcap, *.cap)")
            yield from found
        elif not is_capture(place.name):
            raise UsageError(f"{place} is no capture by its name: expected *.capture, *.pcap or *.cap")
        elif not place.exists():
            raise UsageError(f"{place}: there is no such capture")
        else:
            yield place


def _json_line(row: dict[str, Any]) -> bytes:
    facts: dict[str, object] = {
        "capture": row["capture"],
        "door": row.get("door"),
        "peer": row.get("peer"),
        "outgoing": row.get("outgoing"),
        "time": moment(row.get("time")),
        "offset": row.get("offset"),
        "kind": row["kind"],
        "fields": msgspec.Raw(row["fields"].encode()),
        "error": row.get("error"),
    }
    return json_line(facts, row.get("payload") or b"")


def _text_line(row: dict[str, Any]) -> bytes:
    time = moment(row.get("time")) or ""
    said = f"{row['error']}: " if row.get("error") else ""
    fields = "" if row["fields"] == "{}" else f"{row['fields']} "
    parts = (
        f"{time:<27}",
        f"{row.get('door') or row['capture']:<10}",
        _ARROWS[row.get("outgoing")],
        f"{row.get('peer') or '':<21}",
        f"{row['kind']:<12}",
        f"{said}{visible(fields.encode())}{visible(row.get('payload') or b'')}",
    )
    return ("  ".join(parts).rstrip() + "\n").encode()
