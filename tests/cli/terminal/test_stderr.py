from __future__ import annotations

import json
import logging
import sys

import pytest

from headrace.cli.terminal.stderr import (
    JsonLineFormatter,
    LogFormat,
    LogLevel,
    TextLineFormatter,
    log_to_stderr,
)


def record(level: int, message: str, *args: object, error: bool = False) -> logging.LogRecord:
    made = logging.LogRecord("headrace", level, __file__, 1, message, args, None)
    made.created = 1_700_000_000.25
    if error:
        try:
            raise ValueError("inner\nlines")
        except ValueError:
            made.exc_info = sys.exc_info()
    return made


def test_text_has_time_level_and_message() -> None:
    line = TextLineFormatter(colour=False).format(record(logging.WARNING, "cut %d bytes", 7))
    assert line == "2023-11-14T22:13:20.250Z WARNING  cut 7 bytes"


def test_text_colours_only_what_matters() -> None:
    coloured = TextLineFormatter(colour=True)
    assert "\x1b[31mERROR" in coloured.format(record(logging.ERROR, "it broke"))
    assert "\x1b" not in coloured.format(record(logging.INFO, "all is well"))


def test_json_is_one_line_whatever_happened() -> None:
    line = JsonLineFormatter().format(record(logging.ERROR, "two\nlines: %s", "ü", error=True))
    assert "\n" not in line
    facts = json.loads(line)
    assert facts["message"] == "two\nlines: ü"
    assert (facts["level"], facts["logger"], facts["time"]) == (
        "error",
        "headrace",
        "2023-11-14T22:13:20.250Z",
    )
    assert facts["exception"].endswith("ValueError: inner\nlines")


@pytest.mark.parametrize("form", list(LogFormat))
def test_levels(form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    before = (root.handlers[:], root.level, ours.level)
    try:
        log_to_stderr(form, LogLevel.INFO)
        logging.getLogger("headrace").info("ours")
        logging.getLogger("headrace").debug("too much")
        logging.getLogger("aiohttp.access").info("theirs")
        logging.getLogger("aiohttp.access").warning("their warning")
    finally:
        root.handlers[:], level, ours_level = before
        root.setLevel(level)
        ours.setLevel(ours_level)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "ours" in lines[0]
    assert "their warning" in lines[1]
