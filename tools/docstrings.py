"""Makes Markdown of docstrings for the API reference: they are written for people who read the code.

Roles (``:class:`~headrace.message.Batch```) become links within the reference, examples become blocks of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):`~?([\w.]+)`")
_OPTION = re.compile(r"^(``[\w`, ]+``)\n    (?=\S)", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites each docstring once, when it has been read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """A docstring has come with what it describes."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """A docstring as Markdown.

    >>> markdown("See :func:`headrace.connect`.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['See `connect`.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    text = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", text)
    # A definition list, as Markdown has it.
    text = _OPTION.sub(r"\1\n:   ", text)
    blocks = text.replace("``", "`").split("\n\n")
    return "\n\n".join(f"```pycon\n{each}\n```" if each.startswith(">>> ") else each for each in blocks)
