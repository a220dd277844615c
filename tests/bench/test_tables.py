"""What every benchmark shares: tables, ratios, and what they decide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench


def table(rate: float) -> bench.Table:
    made = bench.Table("a table", ("messages/s",))
    made.add("the peer", 100.0)
    made.add("ours", rate, base="the peer", least=1.2)
    made.add("another of ours", 1.0, base="the peer")
    return made


def measure(rate: float) -> bench.Measure:
    def tables(quick: bool) -> Iterator[bench.Table]:
        yield table(rate)

    return tables


@pytest.mark.parametrize(
    ("rate", "status", "said"), [(120, 0, ""), (119, 1, "too little: a table: ours: 1.19x, not 1.2x\n")]
)
def test_ratios_decide(rate: float, status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("one", measure(rate), []) == status
    shown = capsys.readouterr()
    assert shown.err == said
    assert "of the peer (at least 1.2x)" in shown.out
    assert "0.01x  of the peer\n" in shown.out


def test_a_quick_run_decides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("one", measure(1), ["--quick"]) == 0
    assert capsys.readouterr().err == ""


def test_figures_go_to_a_file_beside_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text('{"other": 1}')
    assert bench.run("one", measure(150), ["--json", str(file)]) == 0
    known = json.loads(file.read_text())
    assert known["other"] == 1
    (rows,) = (table["rows"] for table in known["one"]["tables"])
    assert [(row["ratio"], row.get("least")) for row in rows] == [(None, None), (1.5, 1.2), (0.01, None)]
