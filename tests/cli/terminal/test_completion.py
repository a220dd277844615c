"""Completion, as bash asks for it."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys

import pytest

from headrace.cli.terminal import completion


def offered(line: str) -> list[str]:
    """What the command offers for the last word of a line."""
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "headrace"],
        env={**os.environ, **asked, "_HEADRACE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("headrace ser", ["serve", "services"]),
        ("headrace services wa", ["watch"]),
        ("headrace tail --origin s", ["spp", "spark"]),
        ("headrace pub --door f", ["fyrehose"]),
        ("headrace pipeline run ver", ["verify"]),
        ("headrace serve --set log.fs", ["log.fsync=", "log.fsync_interval="]),
        ("headrace top --cou", ["--count"]),
    ],
)
def test_a_word_that_is_half_typed(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_the_script_names_the_command() -> None:
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [sys.executable, "-m", "headrace"],
            env={**os.environ, "_HEADRACE_COMPLETE": f"source_{shell}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "_HEADRACE_COMPLETE" in done.stdout


def test_examples() -> None:
    assert doctest.testmod(completion).failed == 0
