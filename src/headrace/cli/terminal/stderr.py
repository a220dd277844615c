"""The log of a running program: one line per event, on stderr, for people or for programs.

Text is ``2026-01-31T12:00:00.000Z WARNING what happened``. JSON has the same as ``time``, ``level``, ``logger`` and
``message``, and a traceback, if there is one, as ``exception``, so that a line is always one event.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final


class LogFormat(StrEnum):
    """The form of a line."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The minimum level of a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_COLOURS: Final = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}


def log_to_stderr(form: LogFormat, level: LogLevel) -> None:
    """Log to stderr: the program from ``level`` on, other libraries from WARNING on."""
    handler = StderrHandler()
    handler.setFormatter(
        JsonLineFormatter() if form is LogFormat.JSON else TextLineFormatter(colour=sys.stderr.isatty())
    )
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, _number(level)), force=True)
    logging.getLogger("headrace").setLevel(_number(level))


def log_briefly() -> None:
    """Log warnings in the form of a command's errors, for commands that are soon over."""
    handler = StderrHandler()
    handler.setFormatter(logging.Formatter("headrace: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class StderrHandler(logging.Handler):
    """Writes to whatever stderr is at that moment.

    A program that runs a command in its own process may have given it a stderr that is gone afterwards; what threads
    log later must not fail for that.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a line."""
        try:
            line = self.format(record) + "\n"
            # It may be closed at any moment.
            with contextlib.suppress(ValueError):
                sys.stderr.write(line)
                sys.stderr.flush()
        except Exception:  # noqa: BLE001 -- as logging's own handlers do
            self.handleError(record)


class TextLineFormatter(logging.Formatter):
    """Lines for people."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Time, level, message."""
        level = f"{record.levelname:<8}"
        if self._colour and record.levelno in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelno]}m{level}\x1b[0m"
        return f"{_time(record)} {level} {record.message}"


class JsonLineFormatter(logging.Formatter):
    """Lines for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object on one line."""
        facts = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    then = datetime.fromtimestamp(record.created, UTC)
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(level: LogLevel) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
