from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import past


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    """Everything once, quickly."""
    out = tmp_path / "figures.json"
    assert past.main(["--quick", "--json", str(out)]) == 0
    rates, delays = json.loads(out.read_text())["past"]["tables"]
    assert [row["name"] for row in rates["rows"]][1:] == [
        "read from the archive",
        "follow from message 1",
        "durable consumer from message 1",
    ]
    assert all(row["messages/s"] > 0 for row in rates["rows"])
    assert all(0 < row["p50"] <= row["p99"] for row in delays["rows"])
