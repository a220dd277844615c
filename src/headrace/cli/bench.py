"""``bench``: how fast Headrace is on this machine."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.options import Json
from headrace.cli.prose import examples, paragraphs

HELP: Final = paragraphs(
    """
    Measure how fast Headrace is on this machine, in about half a minute.

    It starts a hub of its own on free ports, with its log in a temporary directory, and measures messages delivered by
    the backbone, acknowledged publishes, reading from the log, and the latency of one message at a time. Everything
    runs on this machine at once, so the figures are what one machine does with all of it. Other programs disturb them.
    """
)
EXAMPLES: Final = examples(
    ("About half a minute:", "headrace bench"),
    ("For a script:", "headrace bench --json | jq '.[] | {what, rate}'"),
    ("Larger messages, a shorter look:", "headrace bench --size 1024 --seconds 2"),
)


def bench(
    size: Annotated[
        int, typer.Option("--size", min=1, max=65_000, metavar="BYTES", help="Of each message.")
    ] = 128,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=60.0, metavar="S", help="For each measurement.")
    ] = 5.0,
    as_json: Json = False,
) -> None:
    """Measure this machine."""
    from headrace.cli.benching import measure

    measure(size, seconds, as_json=as_json)
