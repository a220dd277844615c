"""The benchmark of matching runs to its end, and all ways in it find the same; never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import matching


@pytest.mark.slow
def test_every_way_of_matching(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert matching.main(["--quick", "--json", str(file)]) == 0
    tables = json.loads(file.read_text())["matching"]["tables"]
    titles = [table["title"].split(",")[0] for table in tables]
    assert titles == [
        *matching.KINDS,
        "as subscriptions grow",
        "audiences",
        "changes while matching",
        "one change",
        "memory",
        "start",
    ]
    for table in tables:
        for row in table["rows"]:
            figures = [value for key, value in row.items() if key not in ("name", "base", "ratio")]
            assert figures
            assert all(figure > 0 for figure in figures), row
