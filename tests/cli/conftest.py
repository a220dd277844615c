"""A command line in this process, one in a process of its own, and a hub that many tests only look at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import SOAK
from tests.forking import completed
from tests.hubprocess import HubProcess
from typer.testing import CliRunner, Result

from headrace.cli.app import app
from headrace.cli.terminal import output

SECONDS = 60

Run = Callable[..., Result]
Command = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def run() -> Run:
    """Run a command here; gives its exit code, stdout and stderr."""

    def invoke(*arguments: object, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return invoke


@pytest.fixture
def shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command here as if a person read its output."""

    def invoke(*arguments: object, stdin: str | bytes | None = None) -> Result:
        with monkeypatch.context() as patch:
            patch.setattr(output, "on_terminal", lambda: True)
            return run(*arguments, stdin=stdin)

    return invoke


@pytest.fixture
def command() -> Command:
    """Run a command in a process of its own."""

    def invoke(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        words = [str(argument) for argument in arguments]
        if not SOAK:
            return completed(words, stdin=stdin, seconds=SECONDS)
        line = [sys.executable, "-m", "headrace", *words]
        return subprocess.run(line, input=stdin, capture_output=True, timeout=SECONDS, check=False)

    return invoke


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that many tests share: they may publish, and must not stop it."""
    with HubProcess.start(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def no_log(tmp_path: Path) -> Path:
    """A data directory that a user might name by mistake: somebody else's files, no log."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "notes.txt").write_text("not ours")
    return tmp_path
