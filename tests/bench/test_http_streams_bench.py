from __future__ import annotations

import json
from pathlib import Path

from bench import http_streams


def test_it_appends_and_follows(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert http_streams.main(["--quick", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    text = json.dumps(figures)
    assert "headrace x1" in text
    assert "headrace x8" in text
    assert "p99" in text
