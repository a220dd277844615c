"""How a command ends: an exit code that a script can branch on, and at most one line on stderr.

=====  ==================================================================
0      done
1      it failed, or it looked for something wrong and found it
2      it was asked for wrongly: an option, a setting, an argument
3      ``pipeline status``: a job of the pipeline has failed, or is being started again after it did
130    interrupted (Ctrl-C), as shells have it: 128 and the signal's number
141    nobody reads its output any more (``headrace sub | head``), likewise
143    ended by SIGTERM, where that is more than an end: ``sub --where`` withdraws
=====  ==================================================================

An error of ours, or the system's about a file, is one sentence and needs no traceback; ``HEADRACE_DEBUG=1`` shows it
all the same. Any other error is a mistake in Headrace, and is never hidden.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.core import TyperGroup

from headrace.errors import DamagedError, HeadraceError, UsageError

FAILED: Final = 1
WRONGLY_ASKED: Final = 2
UNWELL: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
TERMINATED: Final = 143

DEBUG_VARIABLE: Final = "HEADRACE_DEBUG"

_AskedWrongly: type[Exception] = typer.BadParameter.__bases__[0]
"""What is raised for every mistake in options and arguments; typer shows only some of its kinds by name."""


class Root(TyperGroup):
    """The command line's root: whatever a command raises becomes its exit code here."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read what comes before the command."""
        try:
            return super().make_context(*args, **extra)
        except _AskedWrongly as error:
            raise _asked_wrongly(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            result = super().invoke(ctx)
            # Here, where a closed pipe can still be answered: at the interpreter's end it would be a complaint.
            sys.stdout.flush()
        except HeadraceError as error:
            raise _failed(
                _sentence(error), WRONGLY_ASKED if isinstance(error, UsageError) else FAILED
            ) from None
        except _AskedWrongly as error:
            raise _asked_wrongly(error) from None
        except (KeyboardInterrupt, typer.Abort):
            # Abort is the same at a question, or its end of file.
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _drop_stdout()
            raise typer.Exit(PIPE_CLOSED) from None
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            raise _failed(f"{where}{(error.strerror or str(error)).lower()}", FAILED) from None
        return result


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """The same for a process that a command has forked: its end is that of the process."""
    try:
        yield
    except HeadraceError as error:
        code = WRONGLY_ASKED if isinstance(error, UsageError) else FAILED
        raise SystemExit(_failed(_sentence(error), code).exit_code) from None
    except OSError as error:
        raise SystemExit(_failed(str(error).lower(), FAILED).exit_code) from None


def debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def _sentence(error: HeadraceError) -> str:
    """An error, and where that is not said yet, what can be done about it."""
    if isinstance(error, DamagedError):
        return f"{error}; `headrace log repair --dry-run` shows what can be done"
    return str(error)


def _asked_wrongly(error: Any) -> Exception:
    """A mistake in options or arguments in one line, as every other; a group's help, for want of a command, stays."""
    if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":
        unchanged: Exception = error
        return unchanged
    sentence = " ".join(error.format_message().split()).rstrip(".")
    return _failed(
        f"{sentence[:1].lower()}{sentence[1:]}; see {error.ctx.command_path} --help", WRONGLY_ASKED
    )


def _failed(sentence: str, code: int) -> typer.Exit:
    if debugging():
        traceback.print_exc()
    print(f"headrace: {sentence}", file=sys.stderr)
    return typer.Exit(code)


def _drop_stdout() -> None:
    """Let what is still buffered go nowhere, quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
