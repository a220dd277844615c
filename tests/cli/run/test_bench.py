"""``headrace bench``: it measures everything once, and what it prints can be read."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Command
from tests.cli.pseudo_terminal import Terminal


@pytest.mark.slow
def test_for_a_script(command: Command) -> None:
    done = command("bench", "--seconds", "0.2", "--size", "64")
    assert done.returncode == 0, done.stderr
    figures = {figure["what"]: figure for figure in json.loads(done.stdout)}
    assert len(figures) == 4
    latency = figures.pop("one message, push to delivery")
    assert 0 < latency["p50_us"] <= latency["p99_us"]
    for figure in figures.values():
        assert figure["rate"] > 0
        assert round(figure["bytes_per_second"] / figure["rate"]) == 64


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    ["starting a hub", "latency of one message", "delivering as fast", "publishing with", "reading from"],
)
def test_ctrl_c_is_no_error(moment: str) -> None:
    with Terminal("bench", "--seconds", "0.5") as terminal:
        terminal.read_until(moment)
        terminal.press_ctrl_c()
        assert terminal.wait() == 130
    assert "headrace:" not in terminal.shown
    assert "Traceback" not in terminal.shown


@pytest.mark.slow
def test_on_a_terminal() -> None:
    with Terminal("bench", "--seconds", "0.1") as terminal:
        assert terminal.wait() == 0
        assert "read from the log" in terminal.shown
        assert "█" in terminal.shown
