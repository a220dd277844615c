"""The benchmark of digests runs to its end, and every way gives the same chain; never how fast."""

from __future__ import annotations

import json
from pathlib import Path

from bench import proof


def test_every_way_of_verifying(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert proof.main(["--quick", "--json", str(file)]) == 0
    sealing, verifying = json.loads(file.read_text())["proof"]["tables"]
    assert 0 < sealing["rows"][1]["share"] < 1
    assert all(row["messages/s"] > 0 for row in verifying["rows"])
