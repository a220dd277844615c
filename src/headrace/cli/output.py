"""Facts on stdout: tables and lines for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

_WIDE: Final = 160
"""Columns where there is no terminal to ask: a table in a file or a pipe is not folded to 80."""

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


def console(*, stderr: bool = False) -> Console:
    """Where text for people is printed; colours and width are the terminal's."""
    from rich.console import Console

    class Quiet(Console):
        """Leaves a closed pipe to whoever ends the command."""

        def on_broken_pipe(self) -> NoReturn:
            """Let the error on."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return Quiet(stderr=stderr, width=None if stream.isatty() else _WIDE, highlight=False)


def print_json(facts: object) -> None:
    """Facts as JSON: indented for a person who asked for it, one line for a program."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(facts, indent=indent, ensure_ascii=False) + "\n")


def wants_json(*, asked: bool) -> bool:
    """Whether facts are printed as JSON: for a program, which reads a pipe or a file, or when asked for."""
    return asked or not on_terminal()


def on_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def size(count: int) -> str:
    """Bytes as people read them.

    >>> size(1000), size(65536), size(3 << 29)
    ('1000 B', '64.0 KiB', '1.5 GiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def moment(time: int | None) -> str | None:
    """A message's time (µs) as ISO 8601.

    >>> moment(1_700_000_000_000_001)
    '2023-11-14T22:13:20.000001Z'
    """
    if time is None:
        return None
    seconds, micros = divmod(time, 1_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=micros)
    return whole.isoformat(timespec="microseconds") + "Z"


def counted(number: int, what: str) -> str:
    """A number of things in words.

    >>> counted(1, "message"), counted(12_000, "message")
    ('1 message', '12,000 messages')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
