"""The benchmark of services runs to its end and reports what it promises; never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import services


@pytest.mark.slow
def test_services_against_redis(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert services.main(["--quick", "--json", str(file)]) == 0
    delivered, delays = json.loads(file.read_text())["services"]["tables"]
    for table in (delivered, delays):
        rows = {row["name"]: row for row in table["rows"]}
        assert (
            {"headrace last", "headrace json"} <= rows.keys() <= {"headrace last", "headrace json", "redis"}
        )
        for row in rows.values():
            figures = [value for key, value in row.items() if key not in ("name", "base", "ratio")]
            assert figures
            assert all(figure > 0 for figure in figures)
