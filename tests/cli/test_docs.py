"""The page about the command line has every command and every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.test_help import every_command
from typer.main import get_command

from headrace.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/**/*.md")]
BLOCK = re.compile(r"^```(?:sh|console|text)\b[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TYPED = re.compile(
    r"""(?:^|[|;&(] *|\$ |timeout \d+ )headrace((?: +(?:'[^']*'|"[^"]*"|[^\s|;&<>()]+))+)""", re.MULTILINE
)
WORD = re.compile(r"""'[^']*'|"[^"]*"|[^\s]+""")


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


def unknown_words(line: str) -> list[str]:
    """What a command line has that the command does not know: options, or the command itself."""
    words = WORD.findall(line)
    command = get_command(app)
    unknown = []
    while words:
        word = words.pop(0)
        if word == "#":
            break
        if not word.startswith("-") or word == "-":
            below = getattr(command, "commands", None)
            if below is None:
                continue
            if word not in below:
                return [*unknown, word]
            command = below[word]
            continue
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        option = next((each for each in command.params if name in each.opts), None)
        if option is None and name not in ("--help", "-h"):
            unknown.append(name)
        elif option is not None and not option.is_flag and word == name and words:
            words.pop(0)
    return unknown


def test_what_pages_tell_to_type_exists() -> None:
    lines = {
        (page.name, line)
        for page in PAGES
        for block in BLOCK.findall(page.read_text())
        for line in TYPED.findall(block.replace("\\\n", " "))
        if "[--" not in line and "..." not in line
    }
    assert len(lines) > 100
    assert {(page, line): wrong for page, line in lines if (wrong := unknown_words(line))} == {}
    assert unknown_words("replay --from 1 --speed 10 --to tube://b") == ["--speed"]
    assert unknown_words("topp --count 3") == ["topp"]
