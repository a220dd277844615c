"""``tail``: print messages from any position on, with their envelope."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.hubs.access import HubAccess, run_client
from headrace.cli.terminal import completion
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
    position_option,
)

if TYPE_CHECKING:
    from headrace.cli.terminal.positions import SequencePosition
    from headrace.cli.terminal.rendering import LineFormat

EXAMPLES: Final = (
    ("Watch:", "headrace tail"),
    ("The last five minutes, and what follows:", "headrace tail --from -5m"),
    ("Some topics only, from the beginning:", "headrace tail --from earliest --topic 'orders/*'"),
    ("Since this morning, for a script:", "headrace tail --from 08:00 --json | jq -r .topic"),
)


def tail(
    begin: Annotated[str, position_option("--from")] = "now",
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="PATTERN", help="Only topics that match this pattern."),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="ORIGIN",
            help="Only messages that came in this way: fyrehose, tube, spp, … Repeatable.",
            autocompletion=completion.origins,
        ),
    ] = None,
    count: Count = None,
    as_json: JsonLines = False,
    text: TextLines = False,
    raw: RawLines = False,
    full: FullLines = False,
    url: LinkUrl = None,
    client_id: ClientId = None,
) -> None:
    """Print messages from any position on, with their number, time, origin and topic, and go on as they are committed.

    It reads over the link, and the hub selects the messages. In a topic pattern, * stands for anything but a slash and
    ** for anything. It runs until --count, Ctrl-C or until nobody reads its output. On a terminal it prints text, and
    cuts payloads to the terminal's width unless --full is given; in a pipe, one JSON object a line with the whole
    envelope, as log dump does.
    """
    from headrace.cli.terminal.positions import parse_position
    from headrace.cli.terminal.rendering import choose_format

    form = choose_format(as_json=as_json, text=text, raw=raw)
    position = parse_position("--from", begin)
    hub = hub_access(url, DoorScheme.TUBE, client_id)
    run_client(_follow(hub, position, topic, origins or None, count, form, full=full))


async def _follow(
    hub: HubAccess,
    position: SequencePosition,
    topic: str | None,
    origins: list[str] | None,
    count: int | None,
    form: LineFormat,
    *,
    full: bool,
) -> None:
    from headrace.cli.terminal.pipes import PipeWriter
    from headrace.cli.terminal.positions import HubLog, PointInTime, SequenceEnd, first_number
    from headrace.cli.terminal.rendering import print_rows

    output = PipeWriter(sys.stdout.fileno())
    with output.while_read():
        async with hub.link("headrace tail") as link:
            from_seq: int | None = None
            from_time: float | None = None
            if isinstance(position, PointInTime):
                from_time = position.seconds
            elif position is not SequenceEnd.NOW:
                from_seq = await first_number(HubLog(link), position)
            stream = link.follow(from_seq, from_time=from_time, topic=topic, origin=origins).batches()
            async with stream:
                await print_rows(output, stream, form, count=count, full=full)
