"""The ``headrace`` command.

One module per command, and around them: ``app`` (which commands there are), ``exits`` (how a command ends),
``options`` (what several commands are told), ``access`` (where a hub is, and who asks it), ``prose`` (how help reads),
``output`` and ``pipes`` (what is printed, and how), ``places`` and ``seeking`` (where in the sequence), ``stderr``
(what a running hub says).

Strategy: these modules import the standard library, typer, settings and errors, nothing else. What is heavy (numba,
pyarrow, uvloop, aiohttp, and every room that needs them) is imported by the command that uses it, when it runs, so
that ``--help`` and shell completion answer at once. A test holds that.

What people read and what programs read are two forms of the same facts: text on a terminal, JSON in a pipe or under
``--json``.
Nothing but facts goes to stdout; errors, questions and progress go to stderr.
"""

from headrace.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line of this process; ends in ``SystemExit``."""
    app(prog_name="headrace")
