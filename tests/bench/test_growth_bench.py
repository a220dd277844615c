"""The benchmark of growth runs, with NATS if it is installed; its figures are nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import growth


@pytest.mark.slow
def test_it_measures_everything_once(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert growth.main(["--quick", "--json", str(figures)]) == 0
    tables = json.loads(figures.read_text())["growth"]["tables"]
    assert [table["title"].rpartition(" by ")[2] for table in tables] == [
        "subscribers",
        "publishers",
        "bytes in a message",
        "subscribers, µs",
    ]
    *rates, latencies = tables
    for table in rates:
        assert all(row["messages/s"] > 0 for row in table["rows"])
    assert all(row["p99"] >= row["p50"] > 0 for row in latencies["rows"])
