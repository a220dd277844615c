"""The benchmark of rare topics runs to its end, and every way in it finds the same; never how fast."""

from __future__ import annotations

import json
from pathlib import Path

from bench import topics


def test_every_way_of_reading(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert topics.main(["--quick", "--json", str(file)]) == 0
    tables = json.loads(file.read_text())["topics"]["tables"]
    assert len(tables) == 3
    for table in tables:
        assert [row["name"] for row in table["rows"]][::2] == ["every row", "by the index"]
        assert all(row["messages/s"] > 0 for row in table["rows"])
