from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import link


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    """Everything once, quickly; nats and redis too where they are installed."""
    out = tmp_path / "figures.json"
    assert link.main(["--quick", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())["link"]
    assert figures["quick"] is True
    reading, delays, *publishing, ceilings = figures["tables"]
    assert [row["name"] for row in reading["rows"]] == ["from the open tail", "from sealed segments"]
    assert all(row["messages/s"] > 0 for row in reading["rows"])
    assert [row["name"] for row in delays["rows"]] == [
        "raw loopback socket",
        "link, follow",
        "link, acknowledged",
    ]
    assert all(0 < row["p50"] <= row["p99"] for row in delays["rows"])
    assert publishing
    for table in publishing:
        names = [row["name"] for row in table["rows"]]
        assert names[:2] == ["link, one at a time", "link, batches"]
        assert all(row["messages/s"] > 0 for row in table["rows"])
        for row in table["rows"][:2]:
            # Compared with the peer of the table, if there is one.
            assert (row["ratio"] is not None) == (len(names) == 3)
    assert ceilings["rows"]
