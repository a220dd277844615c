"""``match``: print what a subscription would have delivered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.hubs.access import HubAccess, run_client
from headrace.cli.terminal.options import (
    ClientId,
    Count,
    DoorScheme,
    Either,
    FullLines,
    JsonLines,
    LinkUrl,
    RawLines,
    TextLines,
    hub_access,
    position_option,
    until_option,
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
    either: Either = None,
    begin: Annotated[str, position_option("--from")] = "earliest",
    until: Annotated[str, until_option("--to")] = "now",
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
    from headrace.cli.terminal.attribute_syntax import parse_alternatives
    from headrace.cli.terminal.positions import parse_end, parse_position
    from headrace.cli.terminal.rendering import choose_format

    wanted = parse_alternatives(where, either)
    form = choose_format(as_json=as_json, text=text, raw=raw)
    first, last = parse_position("--from", begin), parse_end("--until", until)
    hub = hub_access(url, DoorScheme.TUBE, client_id)
    run_client(_match(hub, wanted, first, last, count, form, full=full, json_attributes=json_attributes))


async def _match(
    hub: HubAccess,
    wanted: AnyConditions,
    begin: SequencePosition,
    until: SequencePosition,
    count: int | None,
    form: LineFormat,
    *,
    full: bool,
    json_attributes: bool,
) -> None:
    from headrace.cli.terminal.pipes import PipeWriter
    from headrace.cli.terminal.positions import HubLog, first_number, last_number
    from headrace.cli.terminal.rendering import print_rows

    output = PipeWriter(sys.stdout.fileno())
    with output.while_read():
        async with hub.link("headrace match") as link:
            log = HubLog(link)
            first, last = await first_number(log, begin), await last_number(log, until)
            found = link.match(wanted, first, last, json_attributes=json_attributes)
            await print_rows(output, found, form, count=count, full=full)
