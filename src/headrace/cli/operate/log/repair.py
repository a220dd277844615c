"""``log repair``: show the damage and the repair, ask, and do it."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.operate.log.verify import problem_facts
from headrace.cli.terminal.exits import FAILED
from headrace.cli.terminal.options import Config, Data, Json, Yes, existing_log, load_settings
from headrace.cli.terminal.output import confirm, print_result
from headrace.errors import LockedError

if TYPE_CHECKING:
    from headrace.log.damage.repair_plan import Report

EXAMPLES: Final = (
    ("What would it do?", "headrace log repair --dry-run"),
    ("Do it, asking first:", "headrace log repair"),
    ("Keep the newest instead of the oldest, without asking:", "headrace log repair --keep after --yes"),
)


class KeptSide(StrEnum):
    """The side of the damage that stays."""

    BEFORE = "before"
    AFTER = "after"


def repair(
    keep: Annotated[
        KeptSide, typer.Option("--keep", help="The side of the damage that stays.")
    ] = KeptSide.BEFORE,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and stop.")] = False,
    config: Config = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Repair a damaged log so that it opens again. It shows what is wrong and what it would do, and asks first.

    A log has no holes: it keeps the messages before the first damage, or, with --keep after, those after the last.
    Nothing is deleted: files that leave the log go to a folder damaged-N in it, with the report. If numbers will be
    given to other messages, the log gets a new uuid, so that nobody takes it for the old one. Where only the hub's own
    entries are lost, every message stays; the hub's state is then that of a later snapshot, or begins empty.
    """
    from headrace.cli.hubs.running_hub import find_running_hub
    from headrace.log.damage import repair as repairing

    directory = existing_log(load_settings(config, data))
    hub = find_running_hub(directory)
    if hub is not None:
        raise LockedError(str(directory), str(hub))
    plan = repairing.plan(directory, keep.value)
    if not (plan.problems or plan.steps) or dry_run:
        _print_report(plan, as_json=as_json)
        if plan.problems or plan.steps:
            raise typer.Exit(FAILED)
        return
    if not yes:
        print("\n".join(plan.lines()), file=sys.stderr)
    confirm("Repair it now?", yes=yes, remedy="add --yes to repair, or --dry-run to see what it would do")
    _print_report(repairing.repair(directory, keep.value), as_json=as_json)


def _print_report(report: Report, *, as_json: bool) -> None:
    print_result(_facts(report), "\n".join(report.lines()), as_json=as_json)


def _facts(report: Report) -> dict[str, Any]:
    return {
        "directory": str(report.directory),
        "problems": [problem_facts(problem) for problem in report.problems],
        "steps": [str(step) for step in report.steps],
        "first": report.first,
        "last": report.last,
        "lost": [{"first": first, "last": last} for first, last in report.lost],
        "lost_entries": [{"first": first, "last": last} for first, last in report.lost_entries],
        "log_before": None if report.uuid_before is None else str(report.uuid_before),
        "log": str(report.uuid_after),
        "aside": None if report.aside is None else str(report.aside),
    }
