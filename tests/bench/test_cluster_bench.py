from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import cluster


@pytest.mark.slow
def test_runs(tmp_path: Path) -> None:
    """Everything once, quickly; JetStream too where it is installed."""
    out = tmp_path / "figures.json"
    assert cluster.main(["--quick", "--json", str(out)]) == 0
    throughput, latency = json.loads(out.read_text())["cluster"]["tables"]
    names = [row["name"] for row in throughput["rows"]]
    assert names[:2] == ["at the primary, batches", "at the primary, one at a time"]
    assert all(row["messages/s"] > 0 for row in throughput["rows"])
    assert all(0 < row["p50"] <= row["p99"] for row in latency["rows"])
    assert (throughput["rows"][0]["ratio"] is not None) == (cluster.PEER in names)
