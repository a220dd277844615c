"""The benchmark of content routing runs to its end and reports what it promises; never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import routing


@pytest.mark.slow
def test_routing_against_redis(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert routing.main(["--quick", "--json", str(file)]) == 0
    rates, delays = json.loads(file.read_text())["routing"]["tables"]
    for table in (rates, delays):
        rows = {row["name"]: row for row in table["rows"]}
        assert {"headrace"} <= rows.keys() <= {"headrace", "redis, clients filter"}
        for row in rows.values():
            figures = [value for key, value in row.items() if key not in ("name", "base", "ratio")]
            assert figures
            assert all(figure > 0 for figure in figures)
