"""``services``: named live objects: which there are, what they are, how they change."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.options import (
    HUB_PANEL,
    ClientId,
    Door,
    Json,
    LinkUrl,
    MessagesAsJson,
    access,
)
from headrace.cli.prose import examples, paragraphs
from headrace.errors import UsageError

HELP: Final = paragraphs(
    """
    Look at a hub's services, watch one, change one: named live objects that messages create and change.

    watch and put speak SPP, the others ask over the link.
    """
)
EXAMPLES: Final = examples(
    ("Which are there?", "headrace services list"),
    ("What is one now?", "headrace services get fleet/42"),
    ("Change it:", """headrace services put fleet/42 '{"speed": 61}'"""),
)

LIST_HELP: Final = paragraphs(
    """
    Show the services there are, in the order of their creation: id, kind, the message that changed each last, its size.

    A service of kind json is an object, and changes are merged into it; one of kind last is whatever came last.
    """
)
LIST_EXAMPLES: Final = examples(
    ("For people:", "headrace services list"),
    ("For a script:", "headrace services list --json | jq -r '.[].id'"),
)

GET_HELP: Final = paragraphs(
    """
    Print what a service is now: in a pipe or a file its bytes as they are, on a terminal as text. --json puts it into
    {"id":…,"value":…}, with "value_base64" in its place where it is not UTF-8.
    """
)
GET_EXAMPLES: Final = examples(
    ("Look:", "headrace services get fleet/42"),
    ("One member:", "headrace services get fleet/42 | jq .speed"),
)

WATCH_HELP: Final = paragraphs(
    """
    Print what a service is, and then each change; a service that does not exist yet is waited for.

    It goes on until --count, Ctrl-C or the end of whoever reads its output. In a pipe, one JSON object a line:
    {"value":{"speed":60}} first, then {"change":{"speed":61}} with what is merged into it. A service of kind last has
    no changes but new values: {"value":"text"}, with "value_base64" in its place where that is not UTF-8.
    """
)
WATCH_EXAMPLES: Final = examples(
    ("Watch:", "headrace services watch fleet/42"),
    ("Wait for the next change:", "headrace services watch fleet/42 --count 2 | tail -n 1"),
)

PUT_HELP: Final = paragraphs(
    """
    Change a service, or create it: of kind json if its first change is a JSON object, of kind last otherwise.

    What is put into a json service is merged into it (null removes a member). SPP does not acknowledge, but shows what
    has changed: it ends when the hub has sent the change back, and exits with 1 if that does not come for ten seconds.
    """
)
PUT_EXAMPLES: Final = examples(
    ("Merge:", """headrace services put fleet/42 '{"speed": 61}'"""),
    ("From a file:", "headrace services put site/logo --file logo.png"),
)

CREATE_HELP: Final = paragraphs(
    """
    Create a service before anything is put into it, or offer one again that was removed.

    Putting creates a service too, of a kind that follows from what is put. Here the kind is yours to choose, and it is
    the only way back for an id that was removed: those who are still subscribed move to the new, empty object. A
    service that is there already stays as it is.
    """
)
CREATE_EXAMPLES: Final = examples(
    ("An object:", "headrace services create fleet/42"),
    ("JSON text that is replaced, not merged:", "headrace services create config --kind last"),
)

REMOVE_HELP: Final = paragraphs(
    """
    Remove a service: it is offered to nobody any more.

    Those who have subscribed are told and stay subscribed: what is published under its id still reaches them. Nothing
    that is published brings it back, only services create does.
    """
)
REMOVE_EXAMPLES: Final = examples(
    ("Remove:", "headrace services remove fleet/42"),
    ("And offer it again, empty:", "headrace services create fleet/42"),
)


class Kind(StrEnum):
    """What a service's object is."""

    JSON = "json"
    LAST = "last"


Id = Annotated[str, typer.Argument(metavar="ID", help="The service's id.")]

SppUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        metavar="URL",
        help="The hub's spp door; without it, where the settings here have it: spp://127.0.0.1:3002.",
        rich_help_panel=HUB_PANEL,
    ),
]

services = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")


@services.command("list", help=LIST_HELP, epilog=LIST_EXAMPLES)
def list_services(url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show the services there are."""
    from headrace.cli import services_look

    services_look.show_all(access(url, Door.TUBE, client_id), as_json=as_json)


@services.command("get", help=GET_HELP, epilog=GET_EXAMPLES)
def get(service: Id, url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Print what a service is now."""
    from headrace.cli import services_look

    services_look.show(access(url, Door.TUBE, client_id), service, as_json=as_json)


@services.command("watch", help=WATCH_HELP, epilog=WATCH_EXAMPLES)
def watch(
    service: Id,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after this many lines.")
    ] = None,
    as_json: MessagesAsJson = False,
    url: SppUrl = None,
    client_id: ClientId = None,
) -> None:
    """Print what a service is, and each change."""
    from headrace.cli import services_live
    from headrace.cli.output import wants_json

    services_live.watch(access(url, Door.SPP, client_id), service, count, as_json=wants_json(asked=as_json))


@services.command("put", help=PUT_HELP, epilog=PUT_EXAMPLES)
def put(
    service: Id,
    change: Annotated[str | None, typer.Argument(metavar="CHANGE", help="What is put into it.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Put a file's bytes into it.")
    ] = None,
    url: SppUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Change a service, or create it."""
    if (change is None) == (file is None):
        raise UsageError("expected a CHANGE or --file FILE")
    from headrace.cli import services_live

    services_live.put(access(url, Door.SPP, client_id), service, change, file, as_json=as_json)


@services.command("create", help=CREATE_HELP, epilog=CREATE_EXAMPLES)
def create(
    service: Id,
    kind: Annotated[
        Kind,
        typer.Option("--kind", "-k", help="json: an object, changes are merged. last: what came last."),
    ] = Kind.JSON,
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Create a service, or offer a removed one again."""
    from headrace.cli import services_change

    services_change.create(
        access(url, Door.TUBE, client_id), service, "json" if kind is Kind.JSON else "last", as_json=as_json
    )


@services.command("remove", help=REMOVE_HELP, epilog=REMOVE_EXAMPLES)
def remove(service: Id, url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Offer a service no longer."""
    from headrace.cli import services_change

    services_change.remove(access(url, Door.TUBE, client_id), service, as_json=as_json)
