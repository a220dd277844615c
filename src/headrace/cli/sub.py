"""``sub``: print messages as they are delivered."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from headrace.cli.exits import FAILED
from headrace.cli.options import (
    HUB_PANEL,
    ClientId,
    Door,
    HubTransport,
    MessagesAsJson,
    MessagesAsText,
    MessagesRaw,
    default_url,
    hub_url,
    key_of,
)
from headrace.cli.prose import examples, paragraphs
from headrace.config.sources import CLIENT_VARIABLE
from headrace.errors import UsageError

HELP: Final = paragraphs(
    """
    Print the hub's messages, in order and without a hole, as they are delivered.

    It begins with the first message delivered after it has subscribed, or with --from, and goes on until --count,
    Ctrl-C or the end of whoever reads its output. Messages that nobody could deliver any more are named on stderr, and
    make it exit with 1. On a terminal it prints text; in a pipe, one JSON object a line:
    {"seq":1,"payload":"hello"}, with "payload_base64" in place of "payload" where it is not UTF-8.

    With --where it prints only messages whose attributes are so: city=Praha a value, kind=a|b one of several, x=0..10 a
    range (0.. and ..10 too), name^=pre a beginning, kind!=a no such value, city and !city that the attribute is there,
    or is not. Of several, all must hold. These messages come from the sdk door.
    """
)
EXAMPLES: Final = examples(
    ("Watch:", "headrace sub"),
    ("Everything from the beginning:", "headrace sub --from 1"),
    ("The payloads of the next ten:", "headrace sub --count 10 | jq -r .payload"),
    ("Just the bytes, a line each:", "headrace sub --raw > messages.txt"),
    ("Only what is about this:", "headrace sub --where 'x=0..10' --where city=Praha"),
)


def sub(
    from_seq: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="SEQ", help="Begin with this message, fetching what is past."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after this many.")
    ] = None,
    wheres: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            metavar="CONDITION",
            help="Only messages of which this is true, by their attributes. Repeatable: all must be true.",
        ),
    ] = None,
    as_json: MessagesAsJson = False,
    text: MessagesAsText = False,
    raw: MessagesRaw = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "-u",
            metavar="URL",
            help="The hub's door; without it, where the settings here have it: fyrehose://127.0.0.1:2323, or"
            " sdk://127.0.0.1:7253 with --where.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None,
    transport: HubTransport = None,
    client_id: ClientId = None,
) -> None:
    """Print messages as they are delivered."""
    from headrace.cli.rendering import chosen

    form = chosen(as_json=as_json, text=text, raw=raw)
    if not wheres:
        if client_id is not None:
            raise UsageError("--client-id is for --where: the backbone knows no clients")
        address = url or default_url(Door.FYREHOSE)
        if address.lower().startswith("sdk:"):
            raise UsageError("the sdk door needs --where: what messages must be about")
        from headrace.cli import subscribing

        if subscribing.subscribe(address, transport, from_seq, count, form):
            raise typer.Exit(FAILED)
        return
    if transport is not None:
        raise UsageError("--transport is fyrehose's: leave it out, or --where")
    address = hub_url(url, Door.SDK)
    from headrace.cli import subscribing
    from headrace.cli.attributes import conditions

    asked = conditions(wheres)
    client_id = client_id or os.environ.get(CLIENT_VARIABLE) or None
    key = None if client_id is None else key_of(client_id)
    subscribing.subscribe_where(address, asked, client_id, key, from_seq, count, form)
