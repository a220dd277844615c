"""The benchmark of datagrams runs; its figures are nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import udp


@pytest.mark.slow
def test_it_measures_everything_once(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert udp.main(["--quick", "--json", str(figures)]) == 0
    [table] = json.loads(figures.read_text())["udp"]["tables"]
    assert [row["name"].split()[0] for row in table["rows"]] == ["one", "several"]
    assert all(row["delivered/s"] > 0 and row["published/s"] > 0 for row in table["rows"])
