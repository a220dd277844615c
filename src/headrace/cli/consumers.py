"""``consumers``: durable consumers: which there are, how far each has come, where it goes on."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from headrace.cli.exits import FAILED
from headrace.cli.options import ClientId, Door, Json, LinkUrl, access
from headrace.cli.output import print_json, wants_json
from headrace.cli.prose import examples, paragraphs
from headrace.errors import UsageError

HELP: Final = paragraphs(
    """
    Look at a hub's durable consumers, have one go on elsewhere, remove one.

    A durable consumer is a name under which programs share messages; the hub keeps which of them are acknowledged.
    """
)
EXAMPLES: Final = examples(
    ("Which are there, and how far behind?", "headrace consumers list"),
    ("The last hour once more:", "headrace consumers reset billing --to -1h"),
)

LIST_HELP: Final = paragraphs(
    """
    Show the durable consumers there are, and how far each has come.

    Everything up to the floor is acknowledged; behind says how many messages of the log lie after it.
    """
)
LIST_EXAMPLES: Final = examples(
    ("For people:", "headrace consumers list"),
    ("For a script:", "headrace consumers list --json | jq '.[].behind'"),
)

SHOW_HELP: Final = paragraphs(
    """
    Show how far a durable consumer has come, and its terms: which messages it takes, and how often it tries.
    """
)
SHOW_EXAMPLES: Final = examples(
    ("For people:", "headrace consumers show billing"),
    ("For a script:", "headrace consumers show billing --json | jq .floor"),
)

RESET_HELP: Final = paragraphs(
    """
    Have everything from a place on delivered: again, or, where that is ahead, without what lies between.
    """
)
RESET_EXAMPLES: Final = examples(
    ("All that is kept, once more:", "headrace consumers reset billing --to earliest"),
    ("Skip what waits:", "headrace consumers reset billing --to now"),
)

REMOVE_HELP: Final = paragraphs(
    """
    Remove a durable consumer and what it knows. Programs that take part are told. It asks first.
    """
)
REMOVE_EXAMPLES: Final = examples(
    ("Asking first:", "headrace consumers remove billing"),
    ("In a script:", "headrace consumers remove billing --yes"),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")]

consumers = typer.Typer(help=HELP, epilog=EXAMPLES, no_args_is_help=True, rich_markup_mode="rich")


@consumers.command("list", help=LIST_HELP, epilog=LIST_EXAMPLES)
def list_consumers(url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show the durable consumers there are."""
    from headrace.cli import consumers_look

    consumers_look.show_all(access(url, Door.TUBE, client_id), as_json=as_json)


@consumers.command("show", help=SHOW_HELP, epilog=SHOW_EXAMPLES)
def show(name: Name, url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show how far a durable consumer has come."""
    from headrace.cli import consumers_look

    consumers_look.show(access(url, Door.TUBE, client_id), name, as_json=as_json)


@consumers.command("reset", help=RESET_HELP, epilog=RESET_EXAMPLES)
def reset(
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where it goes on: a number, earliest, now or a time, as tail has it.",
        ),
    ],
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Have a durable consumer go on elsewhere."""
    from headrace.cli import consumers_move
    from headrace.cli.places import here, parse_place

    place = parse_place("--to", to, here())
    seq = consumers_move.reset(access(url, Door.TUBE, client_id), name, place)
    if wants_json(asked=as_json):
        print_json({"consumer": name, "next": seq})
    else:
        print(f"{name} goes on with message {seq}")


@consumers.command("remove", help=REMOVE_HELP, epilog=REMOVE_EXAMPLES)
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Remove a durable consumer."""
    hub = access(url, Door.TUBE, client_id)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("there is nobody to ask: add --yes to remove it")
        if not typer.confirm(f"Remove {name} from {hub.url}?", err=True):
            print("nothing was changed", file=sys.stderr)
            raise typer.Exit(FAILED)
    from headrace.cli import consumers_move

    consumers_move.remove(hub, name)
    if wants_json(asked=as_json):
        print_json({"consumer": name, "removed": True})
    else:
        print(f"removed {name}")
