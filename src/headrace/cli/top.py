"""``top``: what a hub does, live in the terminal."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.options import HUB_PANEL, ClientId, Json
from headrace.cli.prose import examples, paragraphs

HELP: Final = paragraphs(
    """
    Show what a hub does, each second: messages in and out by protocol, the head of the sequence, consumers and how far
    they are behind, refusals, the disk. Ctrl-C ends it.

    In a pipe, or with --json, it prints one line of JSON each second instead.
    """
)
EXAMPLES: Final = examples(
    ("The hub here:", "headrace top"),
    ("Another one:", "headrace top --url http://10.0.0.5:8470"),
    ("Ten seconds for a script:", "headrace top --json --count 10 | jq .received"),
)


def top(
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "-u",
            metavar="URL",
            help="The hub's http door; without it, where the settings here have it: http://127.0.0.1:8470.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="End after so many seconds.")
    ] = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Watch a hub."""
    from headrace.cli.access import Access
    from headrace.cli.options import gather, identified
    from headrace.cli.watching import watch
    from headrace.config import Settings

    settings = gather(None, None)
    where = settings.listen.http or Settings().listen.http
    watch(Access(url or f"http://{where}", identified(client_id, settings)), count=count, as_json=as_json)
