"""``demo``: the whole system in a minute."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.prose import examples, paragraphs

HELP: Final = paragraphs(
    """
    See the whole system at work in a minute, on this machine, and leave nothing behind.

    It starts a hub with its log in a temporary directory, and a fleet of vehicles in a small town: taxis speak
    fyrehose, buses SPP, vans the attribute protocol, trams the link; a neighbour asks by parcel how far the sequence
    is. Geofences subscribe by ranges of x and y. A Spark job follows each vehicle, and what it finds comes back as
    services. At the end everything is compared: every number of the sequence, every message that a subscriber asked
    for, every message that Spark counted.

    On a terminal it is a live picture; in a pipe, or with --json, a line of JSON for each thing that happens: started,
    alert, progress (each second) and summary. Without PySpark or a Java it goes on without Spark, and says so. A
    default port that is taken is replaced by a free one. Ctrl-C stops everything, at any time.

    The exit code is 0 if all was well, 1 if something was missing at the end, 130 after Ctrl-C.
    """
)
EXAMPLES: Final = examples(
    ("A minute:", "headrace demo"),
    ("A shorter look, without Spark:", "headrace demo --seconds 15 --no-spark"),
    ("Keep the hub afterwards, to look around in the dashboard:", "headrace demo --keep"),
    ("What was computed, for a script:", "headrace demo --json | tail -1 | jq .spark"),
)


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, max=3600.0, metavar="S", help="How long vehicles drive.")
    ] = 60.0,
    vehicles: Annotated[
        int, typer.Option("--vehicles", min=4, max=400, metavar="N", help="How many there are.")
    ] = 24,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave the Spark job out.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Have the hub stay when the demo is over, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, on a terminal too.")] = False,
) -> None:
    """Show everything."""
    from headrace.cli.demo_run import show

    show(seconds, vehicles, spark=not no_spark, keep=keep, as_json=as_json)
