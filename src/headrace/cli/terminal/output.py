"""Results on stdout: tables and lines for people, JSON for programs. Questions go to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from headrace.cli.terminal.exits import FAILED
from headrace.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE: Final = 160
"""Columns where there is no terminal: a table in a file or a pipe is not folded to 80."""

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
_BARS: Final = "▁▂▃▄▅▆▇█"


def console(*, stderr: bool = False) -> Console:
    """Make a console for text that people read; colours and width are the terminal's."""
    from rich.console import Console

    class PipeAwareConsole(Console):
        """A console that leaves a closed pipe to the end of the command."""

        def on_broken_pipe(self) -> NoReturn:
            """Let the error through."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return PipeAwareConsole(stderr=stderr, width=None if stream.isatty() else _WIDE, highlight=False)


def plain_table(*headings: str, fold: bool = True) -> Table:
    """Make a table without lines. Columns whose heading begins with ``>`` are numbers; others may ``fold``."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        if heading.startswith(">"):
            table.add_column(heading[1:], justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold", no_wrap=not fold)
    return table


def print_result(facts: object, sentence: str, *, as_json: bool) -> None:
    """Print the facts for a program, or a sentence for a person."""
    if wants_json(asked=as_json):
        print_json(facts)
    else:
        print(sentence)


def print_json(facts: object) -> None:
    """Print facts as JSON: indented for a person who asked for it, one line for a program."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(facts, indent=indent, ensure_ascii=False) + "\n")


def print_json_line(facts: object) -> None:
    """Print facts as one line of JSON, at once."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def wants_json(*, asked: bool) -> bool:
    """Return whether to print JSON: for a program, which reads a pipe or a file, or when asked for."""
    return asked or not on_terminal()


def on_terminal() -> bool:
    """Return whether a person reads stdout."""
    return sys.stdout.isatty()


def confirm(question: str, *, yes: bool, remedy: str) -> None:
    """Ask a person before something is changed, unless ``yes``; a no ends the command.

    ``remedy`` says what to add where there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"there is nobody to ask: {remedy}")
    if not typer.confirm(question, err=True):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(FAILED)


def size(count: int) -> str:
    """Write a number of bytes as people read it.

    >>> size(1000), size(65536), size(3 << 29)
    ('1000 B', '64.0 KiB', '1.5 GiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def moment(time: int | None) -> str | None:
    """Write a message's time (µs) as ISO 8601.

    >>> moment(1_700_000_000_000_001)
    '2023-11-14T22:13:20.000001Z'
    """
    if time is None:
        return None
    seconds, micros = divmod(time, 1_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=micros)
    return whole.isoformat(timespec="microseconds") + "Z"


def at_most(number: int, *, exact: bool) -> str:
    """Write a number that may be only a bound.

    >>> at_most(7, exact=True), at_most(12345, exact=False)
    ('7', '≤12,345')
    """
    return f"{'' if exact else '≤'}{number:,}"


def counted(number: int, what: str) -> str:
    """Write a number of things in words.

    >>> counted(1, "message"), counted(12_000, "message")
    ('1 message', '12,000 messages')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def open_to_everyone(doors: Sequence[str]) -> str:
    """Warn of doors that strangers reach and that ask nobody who they are.

    >>> open_to_everyone(["fyrehose", "http"])
    'everyone who reaches fyrehose and http may do everything there (--insecure)'
    """
    named = " and ".join(filter(None, [", ".join(doors[:-1]), doors[-1]]))
    return f"everyone who reaches {named} may do everything there (--insecure)"


def sparkline(values: Iterable[float]) -> str:
    """Draw values as a line of bars, the largest the highest.

    >>> sparkline([0, 1, 2, 4])
    '▁▃▅█'
    """
    values = list(values)
    most = max(values, default=0)
    if most <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)
