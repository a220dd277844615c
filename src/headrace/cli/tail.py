"""``tail``: print messages from any place on, with all that is known of them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli import completing
from headrace.cli.options import (
    ClientId,
    Door,
    LinkUrl,
    MessagesAsJson,
    MessagesAsText,
    MessagesRaw,
    access,
)
from headrace.cli.prose import examples, paragraphs

HELP: Final = paragraphs(
    """
    Print messages from any place on, with their number, time, origin and topic, and go on as they are committed.

    It reads over the link, and the hub picks out what is asked for. In a topic, * stands for anything but a slash and
    ** for anything. It goes on until --count, Ctrl-C or the end of whoever reads its output. On a terminal it prints
    text; in a pipe, one JSON object a line, with the whole envelope, as log dump has it.
    """
)
EXAMPLES: Final = examples(
    ("Watch:", "headrace tail"),
    ("What came in the last five minutes, and on:", "headrace tail --from -5m"),
    ("Some topics only, from the beginning:", "headrace tail --from earliest --topic 'orders/*'"),
    ("Since this morning, for a script:", "headrace tail --from 08:00 --json | jq -r .topic"),
)


def tail(
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to begin: a number, earliest, now, a time (2026-01-31T10:30, 10:30) or -5m (s, m, h, d).",
        ),
    ] = "now",
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="PATTERN", help="Only topics like this.")
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="ORIGIN",
            help="Only what came in this way: fyrehose, tube, spp, … Repeatable.",
            autocompletion=completing.origins,
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after this many.")
    ] = None,
    as_json: MessagesAsJson = False,
    text: MessagesAsText = False,
    raw: MessagesRaw = False,
    url: LinkUrl = None,
    client_id: ClientId = None,
) -> None:
    """Print messages from any place on."""
    from headrace.cli.places import here, parse_place
    from headrace.cli.rendering import chosen
    from headrace.cli.tailing import follow

    form = chosen(as_json=as_json, text=text, raw=raw)
    place = parse_place("--from", begin, here())
    follow(access(url, Door.TUBE, client_id), place, topic, origins or None, count, form)
