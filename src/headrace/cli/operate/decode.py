"""``decode``: the frames in captured bytes, one per line.

The rows are those of the pipeline's job ``decode``, made here and without Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.cli.terminal.options import JsonLines, TextLines
from headrace.cli.terminal.output import moment
from headrace.errors import UsageError

EXAMPLES: Final = (
    ("Record, and look:", "headrace serve --record captures"),
    ("Everything that was recorded:", "headrace decode captures"),
    ("What was refused:", "headrace decode captures | jq -c 'select(.error)'"),
    ("A dump of another's traffic:", "headrace decode dump.pcap --ports 9000=spp"),
)

_ARROWS: Final = {False: "->", True: "<-", None: "  "}
"""To the hub, and from it."""


def decode(
    captures: Annotated[
        list[Path], typer.Argument(metavar="CAPTURE", help="Capture files, or folders with some.")
    ],
    ports: Annotated[
        str,
        typer.Option(
            "--ports",
            metavar="PORT=DOOR,…",
            help="The door of each port in a pcap file; by default the doors' default ports.",
        ),
    ] = "",
    as_json: JsonLines = False,
    text: TextLines = False,
) -> None:
    """Print the frames in captures, one per line with the bytes it carries, as the hub's own decoders read them.

    A capture is a file that headrace serve --record DIR wrote (*.capture), or a pcap file (tcpdump -w). A folder stands
    for all captures in it. Bytes that a decoder refuses are a line of kind refused, with the reason. For very many
    captures, the pipeline's job decode does the same in parallel, and writes Parquet.
    """
    from headrace.archive.folder import Folder
    from headrace.cli.terminal.rendering import LineFormat, choose_format
    from headrace.spark.jobs.decode import is_capture, parse_ports
    from headrace.spark.jobs.decode.capture_rows import rows_of

    form = choose_format(as_json=as_json, text=text, raw=False)
    doors = parse_ports(ports)

    def files(paths: Sequence[Path]) -> Iterator[Path]:
        for path in paths:
            if path.is_dir():
                found = sorted(each for each in path.iterdir() if is_capture(each.name) and each.is_file())
                if not found:
                    raise UsageError(f"{path} has no captures (*.capture, *.pcap, *.cap)")
                yield from found
            elif not is_capture(path.name):
                raise UsageError(
                    f"{path} does not have the name of a capture: expected *.capture, *.pcap or *.cap"
                )
            elif not path.exists():
                raise UsageError(f"{path}: there is no such capture")
            else:
                yield path

    line = _json_line if form is LineFormat.JSON else _text_line
    # A capture that is missing is reported before the first is read.
    for file in list(files(captures)):
        for row in rows_of(Folder.at(str(file.parent)), file.name, doors):
            sys.stdout.buffer.write(line({**row, "capture": str(file)}))


def _json_line(row: dict[str, Any]) -> bytes:
    import msgspec

    from headrace.cli.terminal.rendering import json_line

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
    from headrace.cli.terminal.rendering import visible

    time = moment(row.get("time")) or ""
    error = f"{row['error']}: " if row.get("error") else ""
    fields = "" if row["fields"] == "{}" else f"{row['fields']} "
    parts = (
        f"{time:<27}",
        f"{row.get('door') or row['capture']:<10}",
        _ARROWS[row.get("outgoing")],
        f"{row.get('peer') or '':<21}",
        f"{row['kind']:<12}",
        f"{error}{visible(fields.encode())}{visible(row.get('payload') or b'')}",
    )
    return ("  ".join(parts).rstrip() + "\n").encode()
