from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Never

import pytest
import typer
from tests.cli.conftest import Command
from typer.testing import CliRunner, Result

from headrace.cli.terminal.exits import RootGroup
from headrace.errors import ConfigError, HeadraceError, LockedError, UsageError


def ending(error: BaseException) -> Result:
    """What becomes of a command that raises."""
    app = typer.Typer(cls=RootGroup, pretty_exceptions_enable=False)

    @app.callback()
    def root() -> None: ...

    @app.command()
    def fail() -> Never:
        raise error

    return CliRunner().invoke(app, ["fail"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LockedError("/data/log", "process 7"), 1),
        (HeadraceError("it broke"), 1),
        (UsageError("not like that"), 2),
        (ConfigError("log.fsync", "maybe", source="--set", expected="always, interval or never"), 2),
    ],
)
def test_an_error_of_ours_is_one_line(error: HeadraceError, code: int) -> None:
    result = ending(error)
    assert result.exit_code == code
    assert result.stderr == f"headrace: {error}\n"
    assert result.stdout == ""


def test_the_debug_variable_adds_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    result = ending(UsageError("not like that"))
    assert result.exit_code == 2
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.endswith("headrace: not like that\n")


def test_the_debug_variable_is_no_setting(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert b"holds no log" in command("log", "info", "--data", tmp_path).stderr


def test_an_error_of_the_system_names_the_file() -> None:
    result = ending(PermissionError(13, "Permission denied", "/data/log/lock"))
    assert (result.exit_code, result.stderr) == (1, "headrace: /data/log/lock: permission denied\n")


def test_an_interrupt_is_quiet() -> None:
    result = ending(KeyboardInterrupt())
    assert (result.exit_code, result.output) == (130, "")


def test_a_mistake_of_headrace_is_not_hidden() -> None:
    result = ending(RuntimeError("a bug"))
    assert isinstance(result.exception, RuntimeError)


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """``headrace … | true``: nobody reads, nobody complains."""
    program = """
import sys, typer
from headrace.cli.terminal.exits import RootGroup
app = typer.Typer(cls=RootGroup)
@app.callback()
def root(): ...
@app.command()
def flood():
    sys.stdout.write("x" * 100)
app(["flood"])
"""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:  # noqa: PTH123 - a descriptor, not a path
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--wrong"], "no such option: --wrong; see headrace --help"),
        (["wrong"], "no such command 'wrong'; see headrace --help"),
        (["tail", "--wrong"], "no such option: --wrong; see headrace tail --help"),
        (["services", "get"], "missing argument 'ID'; see headrace services get --help"),
    ],
)
def test_a_wrong_option_is_one_line(command: Command, arguments: list[str], complaint: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    # Typer may add which options it takes to be meant.
    said = re.sub(r" \(Possible options: [^)]*\)", "", done.stderr.decode())
    assert said == f"headrace: {complaint}\n"


def test_a_group_without_a_command_shows_its_help(command: Command) -> None:
    done = command("log")
    assert done.returncode == 2
    assert b"Usage: headrace log" in done.stdout + done.stderr


@pytest.mark.parametrize("module", ["typer", "headrace.errors", "headrace.cli.run.serve"])
def test_ctrl_c_while_modules_are_imported_leaves_no_trace(module: str) -> None:
    program = f"""
import sys
from headrace.cli import main

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
