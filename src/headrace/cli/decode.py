"""``decode``: what is in captured bytes, a frame a line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.options import MessagesAsJson, MessagesAsText
from headrace.cli.prose import examples, paragraphs

HELP: Final = paragraphs(
    """
    Print the frames in captures, by the hub's own decoders: a frame a line, with the bytes it carries.

    A capture is what headrace serve --record DIR writes (*.capture), or a pcap file (tcpdump -w). A folder stands for
    all that are in it. What a decoder refuses is a line of kind refused, with the reason. For very many, the job decode
    of the pipeline does the same to Parquet, in parallel.
    """
)
EXAMPLES: Final = examples(
    ("Record, and look:", "headrace serve --record captures"),
    ("Everything that was recorded:", "headrace decode captures"),
    ("What was refused:", "headrace decode captures | jq -c 'select(.error)'"),
    ("A dump of another's traffic:", "headrace decode dump.pcap --ports 9000=spp"),
)


def decode(
    captures: Annotated[
        list[Path], typer.Argument(metavar="CAPTURE", help="Files, or folders that have some.")
    ],
    ports: Annotated[
        str,
        typer.Option(
            "--ports",
            metavar="PORT=DOOR,…",
            help="Which door a port of a pcap file is; without it, the doors' default ports.",
        ),
    ] = "",
    as_json: MessagesAsJson = False,
    text: MessagesAsText = False,
) -> None:
    """Print the frames in captures."""
    from headrace.cli.decoding import show
    from headrace.cli.rendering import chosen

    show(captures, ports, chosen(as_json=as_json, text=text, raw=False))
