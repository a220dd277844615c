"""``doctor``: is everything here that Headrace needs, and is a running hub well?"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.exits import FAILED
from headrace.cli.options import ClientId, Config, Data, Json, Sets, gather, identified
from headrace.cli.prose import examples, paragraphs

HELP: Final = paragraphs(
    """
    Look whether this machine has what Headrace needs, and whether a hub that runs here is well.

    It looks at Python, the disk under the data directory, memory, open files, the doors' ports, UDP's buffers, Java and
    PySpark; and, if a hub runs with these settings, at what that hub counts as wrong. Each finding says what to do
    about it. Nothing is changed. With --spark it also starts Spark and runs a job, which takes some ten seconds.

    The exit code is 1 if something must be mended before Headrace can work.
    """
)
EXAMPLES: Final = examples(
    ("Before the first start:", "headrace doctor"),
    ("Does Spark really start here?", "headrace doctor --spark"),
    ("What is wrong, for a script:", "headrace doctor --json | jq '.[] | select(.verdict != \"ok\")'"),
)


def doctor(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark too, and run a small job.")] = False,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Look for what is wrong."""
    settings = gather(config, data, sets)
    from headrace.cli.checkup import examine

    if not examine(settings, identified(client_id, settings), spark=spark, as_json=as_json):
        raise typer.Exit(FAILED)
