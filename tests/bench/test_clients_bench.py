"""The benchmark of clients runs, with whatever is installed; its figures are nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import clients


@pytest.mark.slow
def test_it_measures_everything_once(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert clients.main(["--quick", "--json", str(figures)]) == 0
    latency, rate = json.loads(figures.read_text())["clients"]["tables"]
    assert all(0 < row["p50"] <= row["p99"] for row in latency["rows"])
    assert {row["name"] for row in rate["rows"]} >= {"headrace, fyrehose", "headrace, link"}
