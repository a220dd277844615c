"""How a command ends: an exit code that a script can branch on, and at most one line on stderr.

``docs/cli.md`` lists the codes; those above 128 are, as in shells, 128 plus a signal's number. An error of ours, or
the system's about a file, is one sentence without a traceback; ``HEADRACE_DEBUG=1`` adds the traceback. Any other error
is a mistake in Headrace, and is never hidden.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperGroup

from headrace.errors import DamagedError, HeadraceError, UsageError, system_reason

FAILED: Final = 1
USAGE_ERROR: Final = 2
JOB_FAILED: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
TERMINATED: Final = 143

DEBUG_VARIABLE: Final = "HEADRACE_DEBUG"

_FURTHER: Final = ("install_completion", "show_completion", "context", "ca", "cert", "cert_key")
"""Options before a command that the first help leaves to the documentation."""

_TyperUsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The error for every mistake in options and arguments; typer exports only some of its subclasses."""


class RootGroup(TyperGroup):
    """The root of the command line: it turns what a command raises into an exit code."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse what comes before the command."""
        try:
            return super().make_context(*args, **extra)
        except _TyperUsageError as error:
            raise _usage_error(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            # While a closed pipe can still be answered: when the interpreter exits, it would be a complaint.
            sys.stdout.flush()
        except HeadraceError as error:
            raise typer.Exit(_report(error)) from None
        except _TyperUsageError as error:
            raise _usage_error(error) from None
        except (KeyboardInterrupt, typer.Abort):
            # Abort is Ctrl-C, or the end of input, at a question.
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _drop_stdout()
            raise typer.Exit(PIPE_CLOSED) from None
        except OSError as error:
            raise typer.Exit(_report(error)) from None
        return result

    def get_params(self, ctx: Any) -> Any:
        """Return the root's own parameters, which show no needless types in the help."""
        params = _without_types(super().get_params(ctx))
        for param in params:
            # They work, but are for those who read more than the first screen.
            param.hidden = param.name in _FURTHER
        return params

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; it and those below it show no needless types in their help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            for each in (command, *getattr(command, "commands", {}).values()):
                _without_types(each.get_params(ctx))
        return command


_TOPIC_REMEDIES: Final = {
    "sub": ": headrace tail --topic PATTERN prints some topics only",
    "tail": ": --topic PATTERN names the topics",
    "pub": ": --topic TOPIC names the topic",
}


@contextlib.contextmanager
def exit_with_code() -> Iterator[None]:
    """End a forked process as a command ends: with one line on stderr and an exit code."""
    try:
        yield
    except (HeadraceError, OSError) as error:
        raise SystemExit(_report(error)) from None


def _without_types(params: Any) -> Any:
    """Hide the ``<bool>`` that typer shows beside each flag, and the ``<list[str]>`` beside an argument's name."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif isinstance(param, TyperArgument):
            param.display_type_rich = lambda **_: None  # type: ignore[method-assign]
    return params


def _report(error: HeadraceError | OSError) -> int:
    """Print an error and, where it helps, what can be done about it; return the exit code."""
    code, sentence = FAILED, str(error)
    match error:
        case UsageError():
            code = USAGE_ERROR
        case DamagedError():
            sentence += "; `headrace log repair --dry-run` shows what can be done"
        case OSError():
            where = "" if error.filename is None else f"{error.filename}: "
            sentence = f"{where}{system_reason(error)}"
    return _print_error(sentence, code)


def _usage_error(error: Any) -> Exception:
    """Report a mistake in options or arguments in one line; a group's help, when no command is given, stays."""
    if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":
        unchanged: Exception = error
        return unchanged
    sentence = " ".join(error.format_message().split()).rstrip(".")
    remedy = _TOPIC_REMEDIES.get(error.ctx.info_name, "") if _asks_for_topic(error) else ""
    sentence = f"{sentence[:1].lower()}{sentence[1:]}{remedy}; see {error.ctx.command_path} --help"
    return typer.Exit(_print_error(sentence, USAGE_ERROR))


def _asks_for_topic(error: Any) -> bool:
    """Tell whether a command was given a topic as those of other hubs take one: as an argument, or as an option."""
    extra = "extra argument" in error.format_message()
    return extra or getattr(error, "option_name", None) in ("--topic", "-t", "--subject")


def _print_error(sentence: str, code: int) -> int:
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        traceback.print_exc()
    print(f"headrace: {sentence}", file=sys.stderr)
    return code


def _drop_stdout() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
