"""The benchmark of a turn runs; its figures are nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

from bench import turn


def test_it_measures_everything_once(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert turn.main(["--quick", "--json", str(figures)]) == 0
    [table] = json.loads(figures.read_text())["turn"]["tables"]
    assert len(table["rows"]) == 6
    assert all(row["a turn"] >= row["a message"] > 0 for row in table["rows"])
