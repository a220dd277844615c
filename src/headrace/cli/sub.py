"""``sub``: print messages as they are delivered."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.exits import FAILED
from headrace.cli.options import (
    Door,
    HubTransport,
    HubUrl,
    MessagesAsJson,
    MessagesAsText,
    MessagesRaw,
    default_url,
)
from headrace.cli.prose import examples, paragraphs

HELP: Final = paragraphs(
    """
    Print the hub's messages, in order and without a hole, as they are delivered.

    It begins with the first message delivered after it has subscribed, or with --from, and goes on until --count,
    Ctrl-C or the end of whoever reads its output. Messages that nobody could deliver any more are named on stderr, and
    make it exit with 1. On a terminal it prints text; in a pipe, one JSON object a line:
    {"seq":1,"payload":"hello"}, with "payload_base64" in place of "payload" where it is not UTF-8.
    """
)
EXAMPLES: Final = examples(
    ("Watch:", "headrace sub"),
    ("Everything from the beginning:", "headrace sub --from 1"),
    ("The payloads of the next ten:", "headrace sub --count 10 | jq -r .payload"),
    ("Just the bytes, a line each:", "headrace sub --raw > messages.txt"),
)


def sub(
    from_seq: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="SEQ", help="Begin with this message, fetching what is past."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after this many.")
    ] = None,
    as_json: MessagesAsJson = False,
    text: MessagesAsText = False,
    raw: MessagesRaw = False,
    url: HubUrl = None,
    transport: HubTransport = None,
) -> None:
    """Print messages as they are delivered."""
    from headrace.cli import subscribing
    from headrace.cli.rendering import chosen

    form = chosen(as_json=as_json, text=text, raw=raw)
    if subscribing.subscribe(url or default_url(Door.FYREHOSE), transport, from_seq, count, form):
        raise typer.Exit(FAILED)
