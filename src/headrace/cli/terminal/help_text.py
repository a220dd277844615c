"""Help texts: paragraphs that fit any terminal, and examples that can be pasted."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import TypeVar

import typer

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., None])


def add_command(
    group: typer.Typer, name: str, *shown: tuple[str, str], panel: str | None = None, short: str | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """Add a command to a group: the function's docstring is its help, and ``shown`` are its examples.

    In the group's own help it is listed in a ``panel``, with its first paragraph or something ``short``.
    """

    def add(function: CommandFunction) -> CommandFunction:
        group.command(
            name,
            help=paragraphs(function.__doc__ or ""),
            epilog=examples(*shown),
            rich_help_panel=panel,
            short_help=short,
        )(function)
        return function

    return add


def make_group(text: str, *shown: tuple[str, str]) -> typer.Typer:
    """Make a group of commands with this help and these examples."""
    return typer.Typer(
        help=paragraphs(text), epilog=examples(*shown), no_args_is_help=True, rich_markup_mode="rich"
    )


def paragraphs(text: str) -> str:
    """Put each paragraph of a text on one line, so that the terminal wraps it.

    >>> paragraphs('''One
    ... paragraph.
    ...
    ... Another.''')
    'One paragraph.\\n\\nAnother.'

    Brackets are text, not markup:

    >>> print(paragraphs("pip install 'headrace[spark]'"))
    pip install 'headrace\\[spark]'
    """
    text = re.sub(r"(?=\[[a-z])", r"\\", cleandoc(text))
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def examples(*shown: tuple[str, str]) -> str:
    """List commands, each under a line that says what it does.

    >>> print(examples(("Start it:", "headrace serve")))
    [bold]Examples[/bold]
    [dim]Start it:[/dim]
      headrace serve
    """
    lines = [f"[dim]{what}[/dim]\n  {command}" for what, command in shown]
    return "\n".join(["[bold]Examples[/bold]", *lines])
