"""``doctor``: check this machine and the hub on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.terminal.exits import FAILED
from headrace.cli.terminal.options import ClientId, Config, Data, Json, Sets, find_credentials, load_settings
from headrace.cli.terminal.output import console, print_json, wants_json

if TYPE_CHECKING:
    from headrace.cli.run.doctor_checks import Finding

EXAMPLES: Final = (
    ("Before the first start:", "headrace doctor"),
    ("Does Spark really start here?", "headrace doctor --spark"),
    ("What is wrong, for a script:", "headrace doctor --json | jq '.[] | select(.verdict != \"ok\")'"),
)

_MARKS: Final = {
    "ok": "[green]ok[/green]",
    "warning": "[yellow]look[/yellow]",
    "wrong": "[red]wrong[/red]",
}


def doctor(
    config: Config = None,
    data: Data = None,
    sets: Sets = None,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark too, and run a small job.")] = False,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Check that this machine is ready and that any hub on it is healthy.

    It checks Python, the disk under the data directory, memory, open files, the doors' ports, UDP buffers, Java and
    PySpark; and, if a hub runs with these settings, the problems that hub has counted. Each finding says what to do
    about it. Nothing is changed. With --spark it also starts Spark and runs a job, which takes some ten seconds.

    The exit code is 1 if something must be fixed before Headrace can work.
    """
    from headrace.cli.run.doctor_checks import Verdict, run_checks

    settings = load_settings(config, data, sets)
    found = list(run_checks(settings, find_credentials(client_id, settings), spark=spark))
    if wants_json(asked=as_json):
        print_json([finding._asdict() for finding in found])
    else:
        _print_table(found)
    if any(finding.verdict is Verdict.WRONG for finding in found):
        raise typer.Exit(FAILED)


def _print_table(found: list[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        text = escape(finding.found)
        if finding.remedy:
            text += f"\n[dim]{escape(finding.remedy)}[/dim]"
        table.add_row(_MARKS[finding.verdict.value], finding.subject, text)
    console().print(table)
