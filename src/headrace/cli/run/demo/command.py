"""The command ``demo``: start a hub and a Spark job, run the play against them, show it, stop both."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from typing import Annotated, Final

import typer

from headrace.cli.terminal.exits import FAILED
from headrace.cli.terminal.options import JsonLines
from headrace.cli.terminal.output import wants_json

EXAMPLES: Final = (
    ("A minute:", "headrace demo"),
    ("A shorter look, without Spark:", "headrace demo --seconds 15 --no-spark"),
    ("Keep the hub afterwards, to look around in the dashboard:", "headrace demo --keep"),
    ("What was computed, for a script:", "headrace demo --json | tail -1 | jq .spark"),
)

_POLL_SECONDS: Final = 0.05


def demo(
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1.0, max=3600.0, metavar="S", help="How long the vehicles drive."),
    ] = 60.0,
    vehicles: Annotated[
        int, typer.Option("--vehicles", min=4, max=400, metavar="N", help="The number of vehicles.")
    ] = 24,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Run without Spark.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the hub after the demo, until Ctrl-C.")] = False,
    as_json: JsonLines = False,
) -> None:
    """See the whole system at work for a minute, on this machine; nothing is left afterwards.

    It starts a hub with its log in a temporary directory, and a fleet of vehicles in a small town: taxis speak
    fyrehose, buses SPP, vans the attribute protocol, trams the link; a neighbour asks by parcel how far the sequence
    is. Geofences subscribe by ranges of x and y. A Spark job follows each vehicle, and what it finds comes back as
    services. At the end everything is checked: every number of the sequence, every message that a subscriber asked for,
    every message that Spark counted.

    On a terminal it is a live picture; in a pipe, or with --json, a line of JSON for each event: started, alert,
    progress (each second) and summary. Without PySpark or Java it runs without Spark, and says so. A default port
    that is taken is replaced by a free one. Ctrl-C stops everything, at any time.

    The exit code is 0 if all was well, 1 if something was missing at the end, 130 after Ctrl-C.
    """
    from headrace.cli.run.demo.processes import JOBS, started_processes

    # SIGTERM means the same as Ctrl-C: everything is stopped.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with started_processes(() if no_spark else JOBS) as processes:
        # Heavy imports only now: the children were forked from a small process.
        from headrace.cli.run.demo.json_lines import DemoLines
        from headrace.cli.run.demo.picture import DemoPicture
        from headrace.cli.terminal.event_loop import run_until_done
        from headrace.demo.play import Play

        # Clients of a hub that stops would log that in the middle of the picture.
        logging.getLogger("headrace").setLevel(logging.CRITICAL)
        spark_end = None if no_spark else processes.spark_end
        play = Play(processes.doors, vehicles=vehicles, seconds=seconds, spark=spark_end)
        view = DemoLines(play, processes.data) if wants_json(asked=as_json) else DemoPicture(play)
        with view:
            audit = run_until_done(lambda: play.run(view.update))
        view.show_summary(audit)
        if keep:
            with contextlib.suppress(KeyboardInterrupt):
                # Within this block: a reader may press Ctrl-C as soon as it appears.
                view.show_kept()
                while processes.hub.ended() is None:
                    time.sleep(_POLL_SECONDS)
    if not audit.good:
        raise typer.Exit(FAILED)
