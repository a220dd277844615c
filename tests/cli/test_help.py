from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from tests.cli.conftest import Command, Run
from tests.cli.pseudo_terminal import Terminal
from typer.main import get_command

from headrace import __version__
from headrace.cli.app import app

HEAVY = ("aiohttp", "asyncio", "msgspec", "multiprocessing", "numba", "numpy", "pyarrow", "pyspark", "uvloop")


COMMAND = get_command(app)


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [()]
    for name, each in COMMAND.commands.items():
        found.append((name,))
        found += [(name, below) for below in getattr(each, "commands", ())]
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["serve", "--help"],
        ["log", "dump", "--help"],
        ["replay", "--help"],
        ["demo", "--help"],
        ["pipeline", "run", "--help"],
        ["--version"],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = f"""
import sys
from headrace.cli import main
sys.argv = ["headrace", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_help_has_prose_and_examples(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    assert not re.search(r"<(bool|str|list\[str\])>", result.stdout)
    assert f"  headrace {' '.join(path)}".rstrip() in result.stdout
    assert run(*path, "-h").stdout == result.stdout


@pytest.mark.parametrize(
    ("path", "usage"), [(("pipeline", "run"), "[OPTIONS] [JOB]..."), (("decode",), "[OPTIONS] {CAPTURE}...")]
)
def test_several_are_shown_as_such_once(run: Run, path: tuple[str, ...], usage: str) -> None:
    (line,) = [line for line in run(*path, "--help").stdout.splitlines() if "Usage: " in line]
    assert line.strip().endswith(f"{' '.join(path)} {usage}"), line


def test_brackets_in_prose_are_shown(run: Run) -> None:
    assert "pip install '.[spark]'" in " ".join(run("pipeline", "--help").stdout.split())


def test_the_first_help_fits_a_screen_and_has_groups() -> None:
    with Terminal("--help", columns=80) as terminal:
        assert terminal.wait() == 0
    lines = terminal.shown.splitlines()
    assert len(lines) <= 50
    assert all(len(line) <= 80 for line in lines)
    for panel in ("Run a hub and watch it", "Use a hub", "Operate a hub: log, cluster, keys, Spark"):
        assert f"─ {panel} ─" in terminal.shown
    assert "2 usage error" in terminal.shown
    for name in COMMAND.commands:
        assert len([line for line in lines if line.startswith(f"│ {name} ")]) == 1


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_examples_can_be_pasted_from_a_narrow_terminal(path: tuple[str, ...]) -> None:
    command = COMMAND
    for name in path:
        command = command.commands[name]
    assert command.epilog is not None
    for line in command.epilog.splitlines():
        assert len(re.sub(r"\[/?\w+\]", "", line)) <= 76, line


def examples_of(path: tuple[str, ...]) -> list[list[str]]:
    """The command lines that a help shows, up to where a shell would take over."""
    command = COMMAND
    for name in path:
        command = command.commands[name]
    shown = re.sub(r"(?<!\\)\[/?\w+\]", "", command.epilog or "").replace("\\[", "[")
    lines = [line.strip() for line in shown.splitlines() if line.startswith("  ")]
    lines = [line.partition("  #")[0] for line in lines]
    parts = [part.split() for line in lines for part in re.split(r" \| | > ", line) if "headrace" in part]
    assert parts, path
    return [shlex.split(" ".join(part)) for part in parts if part[0] == "headrace"]


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_examples_ask_for_what_there_is(path: tuple[str, ...]) -> None:
    for _, *words in examples_of(path):
        command = COMMAND
        name = ""
        while words and words[0] in getattr(command, "commands", {}):
            name = words.pop(0)
            command = command.commands[name]
        assert getattr(command, "commands", None) is None, words
        # Reads options and arguments, and runs nothing.
        command.make_context(name, words)


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_json_everywhere_but_where_a_hub_runs(path: tuple[str, ...]) -> None:
    command = COMMAND
    for name in path:
        command = command.commands[name]
    if getattr(command, "commands", None) is None and path not in (("serve",), ("up",)):
        assert any("--json" in option.opts for option in command.params)


def test_version(command: Command) -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"headrace {__version__}\n".encode())


@pytest.mark.parametrize(
    "wrong",
    [
        ["nonsense"],
        ["serve", "--nonsense"],
        ["serve", "--log-format", "xml"],
        ["pub", "hello", "--count", "0"],
        ["sub", "--from", "-1"],
        ["sub", "--transport", "pigeon"],
        ["tail", "--from", "yesterday"],
        ["tail", "--from", "0"],
        ["replay"],
        ["services"],
        ["log"],
    ],
    ids=" ".join,
)
def test_asking_wrongly_is_2(run: Run, wrong: list[str]) -> None:
    result = run(*wrong)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "wrong",
    [
        ["sub", "orders/**"],
        ["sub", "--topic", "orders"],
        ["tail", "orders/**"],
        ["pub", "--subject", "orders"],
    ],
    ids=" ".join,
)
def test_a_topic_as_other_hubs_take_it_is_recognised(run: Run, wrong: list[str]) -> None:
    assert re.search(": (headrace tail )?--topic (PATTERN|TOPIC) .*; see ", run(*wrong).stderr)


def test_a_slip_of_the_pen_is_recognised(run: Run) -> None:
    assert "Did you mean 'serve'" in run("srve").stderr
