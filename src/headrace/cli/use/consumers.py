"""``consumers``: a hub's durable consumers."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from headrace.cli.terminal.help_text import add_command, make_group
from headrace.cli.terminal.options import (
    ClientId,
    DoorScheme,
    Json,
    LinkUrl,
    Yes,
    hub_access,
    position_option,
)
from headrace.cli.terminal.output import (
    at_most,
    confirm,
    console,
    plain_table,
    print_json,
    print_result,
    wants_json,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")]

_CLIENT: Final = "headrace consumers"
_COUNTS: Final = ("floor", "behind", "members", "dead", "lost")

consumers = make_group(
    """
    Show a hub's durable consumers, move one to another message, remove one.

    A durable consumer is a name under which programs share messages; the hub remembers which are acknowledged.
    """,
    ("Which are there, and how far behind?", "headrace consumers list"),
    ("The last hour once more:", "headrace consumers reset billing --to -1h"),
)


@add_command(
    consumers,
    "list",
    ("For people:", "headrace consumers list"),
    ("For a script:", "headrace consumers list --json | jq '.[].behind'"),
)
def list_consumers(url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """List the durable consumers, and how far each has come.

    Everything up to the floor is acknowledged. Behind is the number of messages that are not, whether they wait or are
    at a member; with ≤ it is at most that, since it is not known yet which of them match the consumer's filter.
    """
    found = hub_access(url, DoorScheme.TUBE, client_id).ask(_CLIENT, lambda link: link.consumers())
    if wants_json(asked=as_json):
        print_json(found)
    elif not found:
        print("there are no consumers")
    else:
        table = plain_table("consumer", *(f">{name}" for name in _COUNTS))
        for consumer in found:
            behind = at_most(consumer["behind"], exact=consumer["behind_exact"])
            counts = (behind if each == "behind" else f"{consumer[each]}" for each in _COUNTS)
            table.add_row(_escaped(consumer["consumer"]), *counts)
        console().print(table)


@add_command(
    consumers,
    "show",
    ("For people:", "headrace consumers show billing"),
    ("For a script:", "headrace consumers show billing --json | jq .floor"),
)
def show(name: Name, url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Show how far a durable consumer has come, and its terms: which messages it takes, and how often it tries."""
    facts = hub_access(url, DoorScheme.TUBE, client_id).ask(_CLIENT, lambda link: link.show_consumer(name))
    if wants_json(asked=as_json):
        print_json(facts)
        return
    out = console()
    terms = facts.pop("terms", {})
    facts["behind"] = at_most(facts["behind"], exact=facts.pop("behind_exact"))
    for key, value in (*facts.items(), *terms.items()):
        if value is not None:
            out.print(f"[dim]{key:<12}[/dim] {_escaped(value)}", soft_wrap=True)


@add_command(
    consumers,
    "reset",
    ("All that is kept, once more:", "headrace consumers reset billing --to earliest"),
    ("Skip what waits:", "headrace consumers reset billing --to now"),
)
def reset(
    name: Name,
    to: Annotated[str, position_option("--to", what="The next message to deliver")],
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Rewind or skip: deliver everything from this point on."""
    from headrace.cli.terminal.positions import HubLog, first_number, parse_position
    from headrace.client.link.client import LinkClient

    position = parse_position("--to", to)

    async def move(link: LinkClient) -> int:
        seq = await first_number(HubLog(link), position)
        await link.reset_consumer(name, seq)
        return seq

    seq = hub_access(url, DoorScheme.TUBE, client_id).ask(_CLIENT, move)
    print_result({"consumer": name, "next": seq}, f"{name} continues with message {seq}", as_json=as_json)


@add_command(
    consumers,
    "remove",
    ("Asking first:", "headrace consumers remove billing"),
    ("In a script:", "headrace consumers remove billing --yes"),
)
def remove(
    name: Name, yes: Yes = False, url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False
) -> None:
    """Remove a durable consumer and its state. Its members get an error that says so. It asks first."""
    hub = hub_access(url, DoorScheme.TUBE, client_id)
    confirm(f"Remove {name} from {hub.url}?", yes=yes, remedy="add --yes to remove it")
    hub.ask(_CLIENT, lambda link: link.remove_consumer(name))
    print_result({"consumer": name, "removed": True}, f"removed {name}", as_json=as_json)


def _escaped(value: object) -> str:
    from rich.markup import escape

    from headrace.cli.terminal.rendering import visible

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return escape(visible(text.encode()))
