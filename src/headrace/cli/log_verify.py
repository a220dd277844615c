"""What ``log verify`` does: read every byte, showing how far it has come, and tell what is wrong."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.cli.output import console, counted, size
from headrace.log.damage import verify as checking
from headrace.log.damage.inspection import Problem

Advance = Callable[[checking.Progress], None]


def check(directory: Path) -> tuple[list[Problem], dict[str, Any]]:
    """What is wrong, and the facts as JSON has them."""
    problems: list[Problem] = []
    read = last = 0
    with _progress() as advance:
        for each in checking.verify(directory):
            match each:
                case Problem():
                    problems.append(each)
                case checking.Progress():
                    read, last = each.done, each.last or last
                    advance(each)
    facts = {
        "directory": str(directory),
        "ok": not problems,
        "bytes": read,
        "last": last,
        "problems": [problem_facts(problem) for problem in problems],
    }
    return problems, facts


def problem_facts(problem: Problem) -> dict[str, Any]:
    """A problem as JSON has it; ``last`` is null where nobody knows how far it reaches."""
    return {
        "file": str(problem.path),
        "offset": problem.offset,
        "first": problem.first,
        "last": problem.last,
        "reason": problem.reason,
        "mends": problem.mends,
    }


def show(problems: list[Problem], facts: dict[str, Any]) -> None:
    """The same for people."""
    for problem in problems:
        print(problem)
    if problems:
        found = counted(len(problems), "problem")
        print(f"{found} in {facts['directory']}; headrace log repair shows what can be done")
    else:
        print(f"all is as it was written: {size(facts['bytes'])}, messages up to {facts['last']}")


@contextlib.contextmanager
def _progress() -> Iterator[Advance]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=None)
        yield lambda progress: bar.update(
            task, description=progress.path.name, completed=progress.done, total=progress.total
        )
