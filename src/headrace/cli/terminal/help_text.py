"""Help texts: paragraphs that fit any terminal, and examples that can be pasted."""

from __future__ import annotations

import re
from inspect import cleandoc


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
