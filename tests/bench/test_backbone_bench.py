"""The backbone benchmark runs, against whatever peers are installed; its figures are nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import backbone


@pytest.mark.slow
def test_it_measures_everything_once(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert backbone.main(["--quick", "--json", str(figures)]) == 0
    tables = json.loads(figures.read_text())["backbone"]["tables"]
    titles = [table["title"] for table in tables]
    assert [title.split()[0] for title in titles] == [
        "delivered",
        "latency",
        "persisted",
        "replay",
        "datagrams/s",
        "ceilings",
    ]
    for table in tables:
        for row in table["rows"]:
            values = [value for key, value in row.items() if key not in ("name", "base", "ratio")]
            assert values
            assert all(value > 0 for value in values)
    assert {row["name"].split()[0] for row in tables[0]["rows"]} >= {"headrace"}
