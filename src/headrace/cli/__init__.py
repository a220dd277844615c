"""The ``headrace`` command.

One module or package per command, in the groups of ``headrace --help``: ``run``, ``use``, ``operate``. ``app`` lists
them; ``terminal`` has what they share, and ``hubs`` tells which hub they talk to.

These modules import the standard library, typer, settings and errors, nothing else. Each function imports what is heavy
(asyncio, numba, pyarrow, uvloop, aiohttp, and all packages that need them) when it runs, so that ``--help`` and shell
completion answer at once. A test checks that.

People and programs read the same facts in two forms: text on a terminal, JSON in a pipe or with ``--json``. Only facts
go to stdout; errors, questions and progress go to stderr.
"""

import contextlib
import os
import sys
from typing import Final

__all__ = ["main"]

_INTERRUPTED: Final = 130
"""What :mod:`headrace.cli.terminal.exits`, which is not imported yet, calls ``INTERRUPTED``."""


def main() -> None:
    """Run the command line of this process; ends in ``SystemExit``, or at once."""
    try:
        # Imported here, so that Ctrl-C leaves no trace from the first module on.
        from headrace.cli.app import app

        app(prog_name="headrace")
    except KeyboardInterrupt:
        # It came before there was a command to be interrupted, or after it.
        sys.exit(_INTERRUPTED)
    except SystemExit as ending:
        if (
            sys.argv[1:2] == ["serve"]
            and "headrace.net.server.process" in sys.modules
            and isinstance(ending.code, int)
        ):
            # The hub has closed everything. What is left is to take down Arrow and numba with their threads, which
            # on a busy machine has crashed: a hub that stopped well would report a signal.
            for stream in (sys.stdout, sys.stderr):
                # On a full disk a last line is lost, and the hub has stopped well all the same.
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(ending.code)
        raise
