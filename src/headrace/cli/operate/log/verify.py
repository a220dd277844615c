"""``log verify``: read every byte of a log, and report damage."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import typer

from headrace.cli.terminal.exits import FAILED
from headrace.cli.terminal.options import Config, Data, Json, existing_log, load_settings
from headrace.cli.terminal.output import console, counted, print_json, size, wants_json

if TYPE_CHECKING:
    from headrace.log.damage import verify as checking
    from headrace.log.damage.findings import Problem

EXAMPLES: Final = (
    ("Check:", "headrace log verify --data /var/lib/headrace"),
    ("In a script:", "headrace log verify --json | jq '.problems'"),
)


def verify(config: Config = None, data: Data = None, as_json: Json = False) -> None:
    """Check that every byte is as it was written: each segment, its entries and index, each snapshot, and their order.

    Nothing is changed, and a hub may be running. Exits with 1 if anything is wrong, and names the file, the offset and
    the messages in doubt.
    """
    from headrace.log.damage import verify as checking
    from headrace.log.damage.findings import Problem

    directory = existing_log(load_settings(config, data))
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
    if wants_json(asked=as_json):
        print_json(
            {
                "directory": str(directory),
                "ok": not problems,
                "bytes": read,
                "last": last,
                "problems": [problem_facts(problem) for problem in problems],
            }
        )
    elif problems:
        for problem in problems:
            print(problem)
        found = counted(len(problems), "problem")
        print(f"{found} in {directory}; headrace log repair shows what can be done")
    else:
        print(f"all is as it was written: {size(read)}, messages up to {last}")
    if problems:
        raise typer.Exit(FAILED)


def problem_facts(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON has it; ``last`` is null where it is unknown how far it reaches.

    Where no message is in doubt, only entries of the log, ``entries_after`` is the message they stand after.
    """
    only_entries = problem.last is not None and problem.last < problem.first
    return {
        "file": str(problem.path),
        "offset": problem.offset,
        "first": problem.first,
        "last": problem.last,
        "entries_after": problem.last if only_entries else None,
        "reason": problem.reason,
        "mends": problem.mends,
        "harmless": problem.harmless,
    }


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[checking.Progress], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=None)
        yield lambda progress: bar.update(
            task, description=progress.path.name, completed=progress.done, total=progress.total
        )
