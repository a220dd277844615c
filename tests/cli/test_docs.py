"""The page about the command line has every command and every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.test_help import every_command
from typer.main import get_command

from headrace.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def section(name: str) -> str:
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section {name!r}"
    return found[1]


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in every_command()
        if path
        not in (
            (),
            ("cluster",),
            ("consumers",),
            ("context",),
            ("keys",),
            ("log",),
            ("log", "aside"),
            ("pipeline",),
            ("services",),
        )
    ],
    ids=" ".join,
)
def test_every_command_has_a_section_with_its_options(path: tuple[str, ...]) -> None:
    command = get_command(app)
    for name in path:
        command = command.commands[name]
    text = section(" ".join(path))
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    assert options
    assert {option for option in options if f"{option}" not in text} == set()
    usage = text.split("```")[1]
    assert set(re.findall(r"--[a-z-]+", usage)) == options


def test_every_exit_code_is_documented() -> None:
    from headrace.cli.terminal import exits

    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert codes | {0} == {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
