"""The benchmark of TLS runs; its figures are nobody's business here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock

import pytest

from bench import tls


@pytest.mark.slow
def test_it_measures_everything_once(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    with mock.patch.dict(os.environ):
        assert tls.main(["--quick", "--json", str(figures)]) == 0
    tables = json.loads(figures.read_text())["tls"]["tables"]
    assert [table["title"].split()[0] for table in tables] == ["delivered", "latency", "new"]
    for table in tables:
        plain, secured = table["rows"]
        assert secured["base"] == plain["name"]
