"""The benchmark of the log's size runs; its figures are nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

from bench import log_size


def test_it_measures_everything_once(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert log_size.main(["--quick", "--json", str(figures)]) == 0
    [table] = json.loads(figures.read_text())["log_size"]["tables"]
    assert len(table["rows"]) == 2
    assert all(row["ms to open"] > 0 and row["p99"] > 0 for row in table["rows"])
