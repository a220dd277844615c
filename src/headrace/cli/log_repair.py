"""What ``log repair`` does: tell what is wrong and what would be done, ask, and do it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from headrace.cli import live
from headrace.cli.exits import FAILED
from headrace.cli.log_verify import problem_facts
from headrace.cli.output import print_json
from headrace.errors import LockedError, UsageError
from headrace.log.damage.repair import plan, repair
from headrace.log.damage.repair_plan import Keep, Report


def mend(directory: Path, keep: Keep, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Repair a log unless there is nothing to do, or nobody wants it done."""
    hub = live.find(directory)
    if hub is not None:
        raise LockedError(str(directory), str(hub))
    planned = plan(directory, keep)
    if not (planned.problems or planned.steps):
        _tell(planned, as_json=as_json)
        return
    if dry_run:
        _tell(planned, as_json=as_json)
        raise typer.Exit(FAILED)
    if not yes:
        _ask(planned)
    _tell(repair(directory, keep), as_json=as_json)


def _ask(planned: Report) -> None:
    for line in planned.lines():
        print(line, file=sys.stderr)
    if not sys.stdin.isatty():
        raise UsageError("there is nobody to ask: add --yes to repair, or --dry-run to see what it would do")
    if not typer.confirm("Repair it now?", err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(FAILED)


def _tell(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(_facts(report))
    else:
        for line in report.lines():
            print(line)


def _facts(report: Report) -> dict[str, Any]:
    return {
        "directory": str(report.directory),
        "problems": [problem_facts(problem) for problem in report.problems],
        "steps": [str(step) for step in report.steps],
        "first": report.first,
        "last": report.last,
        "lost": [{"first": first, "last": last} for first, last in report.lost],
        "log_before": None if report.uuid_before is None else str(report.uuid_before),
        "log": str(report.uuid_after),
        "aside": None if report.aside is None else str(report.aside),
    }
