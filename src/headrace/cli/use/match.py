"""``match``: what a subscription would have delivered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.hubs.access import HubAccess, run_client
from headrace.cli.terminal.options import (
    ClientId,
    Count,
    DoorScheme,
    FullLines,
    JsonLines,
    LinkUrl,
    RawLines,
    TextLines,
    hub_access,
)

if TYPE_CHECKING:
    from headrace.cli.terminal.positions import SequencePosition
    from headrace.cli.terminal.rendering import LineFormat
    from headrace.client.conditions import AnyConditions

EXAMPLES: Final = (
    ("Since October:", "headrace match --where city=Praha --where 'x=0..10' --from 2026-10-01"),
    ("Either of two conditions:", "headrace match --where city=Praha --or 'x>100'"),
    ("How many would it have been?", "headrace match --where city=Praha --json | wc -l"),
)


def match(
    where: Annotated[
        list[str],
        typer.Option(
            "--where", "-w", metavar="CONDITION", help="A condition on an attribute; all of them must hold."
        ),
    ],
    either: Annotated[
        list[str] | None,
        typer.Option("--or", metavar="CONDITION", help="An alternative: this condition alone. Repeatable."),
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where to begin: a number, earliest, a time (2026-01-31, 10:30) or -5m (s, m, h, d).",
        ),
    ] = "earliest",
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="SEQ", min=1, help="The last message; by default the newest."),
    ] = None,
    json_attributes: Annotated[
        bool, typer.Option("--json-attributes", help="Count members of JSON payloads as attributes.")
    ] = False,
    count: Count = None,
    as_json: JsonLines = False,
    text: TextLines = False,
    raw: RawLines = False,
    full: FullLines = False,
    url: LinkUrl = None,
    client_id: ClientId = None,
) -> None:
    """Print what a content subscription would have delivered, from the log and, where the hub serves one, its archive.

    Conditions are those of headrace sub --where, and mean the same: the matcher's own code judges them. It stops at the
    message that is newest when it starts.
    """
    from headrace.cli.terminal.attribute_syntax import parse_conditions
    from headrace.cli.terminal.positions import parse_position
    from headrace.cli.terminal.rendering import choose_format
    from headrace.client.conditions import alternatives_of

    wanted = alternatives_of(parse_conditions(where))
    for condition in either or ():
        wanted |= parse_conditions([condition])
    form = choose_format(as_json=as_json, text=text, raw=raw)
    position = parse_position("--from", begin)
    hub = hub_access(url, DoorScheme.TUBE, client_id)
    run_client(_match(hub, wanted, position, to, count, form, full=full, json_attributes=json_attributes))


async def _match(
    hub: HubAccess,
    wanted: AnyConditions,
    position: SequencePosition,
    to: int | None,
    count: int | None,
    form: LineFormat,
    *,
    full: bool,
    json_attributes: bool,
) -> None:
    from headrace.cli.terminal.pipes import PipeWriter
    from headrace.cli.terminal.positions import sequence_number
    from headrace.cli.terminal.rendering import print_rows

    output = PipeWriter(sys.stdout.fileno())
    with output.while_read():
        async with hub.link("headrace match") as link:
            first = await sequence_number(link, position)
            found = link.match(wanted, first, to, json_attributes=json_attributes)
            await print_rows(output, found, form, count=count, full=full)
