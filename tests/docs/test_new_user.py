"""A new user's first minutes, in the order of the README and the quickstart: real terminals, and a real browser.

``headrace up`` runs in one terminal, commands are typed in another, and the dashboard is open beside them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.cli.pseudo_terminal import Terminal
from tests.docs.test_examples import DEFAULT_PORTS, free_ports
from tests.web.browsing import browser, needs_browser

__all__ = ["browser"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, *needs_browser("the walk")]


def typed(*arguments: str) -> str:
    """What a command shows on a terminal of its own."""
    with Terminal(*arguments, columns=100) as terminal:
        code = terminal.wait()
    assert code == 0, terminal.shown
    assert "Traceback" not in terminal.shown
    return terminal.shown


def test_the_walk_of_a_new_user(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for door, port in free_ports("").items():
        name = next(each for each, default in DEFAULT_PORTS.items() if default == door)
        monkeypatch.setenv(f"HEADRACE_LISTEN__{name.upper()}", f"127.0.0.1:{port}")
    with Terminal("up", columns=120) as up, browser.new_context() as context:
        up.read_until("Ctrl-C stops it.")
        found = re.search(r"dashboard\s+(http://\S+)", up.shown)
        assert found is not None, up.shown
        dashboard = found[1]
        page = context.new_page()
        page.goto(dashboard)
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        # The first message of a new hub is number 1, though the pipeline runs.
        assert re.search(r"\b1\b", typed("pub", "--topic", "orders", "one mill wheel"))
        assert re.search(
            r"\b2\b",
            typed("pub", "--topic", "orders", "--attr", "city=Praha", "--attr", "weight=120", "two sacks"),
        )
        shown = typed("tail", "--from", "earliest", "--count", "2")
        assert shown.index("one mill wheel") < shown.index("two sacks")
        assert all(len(line) <= 100 for line in shown.splitlines())
        curl = subprocess.run(
            ["curl", "-s", "-d", "hello", f"{dashboard}v1/publish/greetings"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert curl.stdout == '{"seq":3}\n'
        assert "one mill wheel" in typed("sub", "--from", "1", "--count", "3")
        typed("services", "put", "fleet/42", '{"speed": 60, "driver": "Ada"}')
        assert "Ada" in typed("services", "get", "fleet/42")
        assert "orders" in typed("sql", "select topic, count(*) from messages group by 1 order by 1")
        page.goto(f"{dashboard}#/stream?topic=orders")
        page.reload()
        expect(page.locator("tbody")).to_contain_text("one mill wheel")
        page.goto(f"{dashboard}#/services")
        expect(page.get_by_role("button", name="fleet/42", exact=True)).to_be_visible()
        page.goto(f"{dashboard}#/topics")
        expect(page.locator("tbody")).to_contain_text("greetings")
        assert "ok" in typed("doctor").lower()
        assert "Traceback" not in up.shown
        up.press_ctrl_c()
        assert up.wait() == 0, up.shown
        assert "Traceback" not in up.shown
    assert "orders" in typed("sql", "select topic, count(*) from messages group by 1 order by 1")
