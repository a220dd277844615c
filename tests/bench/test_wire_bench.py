"""Benchmarks run to their end and report what they promise; never how fast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import bench
from bench import __main__ as runner

CODECS = {"fyrehose", "attribute", "spp", "parcel", "sdk", "tube"}


@pytest.mark.slow
def test_wire_measures_every_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert runner.main(["wire", "--quick", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())["wire"]
    assert figures["quick"] is True
    rows = [row for table in figures["tables"] for row in table["rows"]]
    assert {row["name"].split()[0] for row in rows} >= CODECS
    for row in rows:
        rates = [value for key, value in row.items() if key not in ("name", "base", "ratio")]
        assert rates[0] is not None
        assert all(rate is None or rate > 0 for rate in rates), row
    printed = capsys.readouterr().out
    for table in figures["tables"]:
        assert table["title"] in printed


def test_every_benchmark_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == runner.benchmarks()
    assert all(len(line.split()) > 1 for line in lines), "a benchmark without a docstring"


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["nothing"])
    assert "no benchmark named nothing" in capsys.readouterr().err


def test_one_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def apart(name: str, arguments: Sequence[str]) -> int:
        ran.append(name)
        assert arguments == ["--quick"]
        return int(name == "bad")

    monkeypatch.setattr(runner, "benchmarks", lambda: ["bad", "good"])
    monkeypatch.setattr(runner, "_apart", apart)
    assert runner.main(["--quick"]) == 1
    assert ran == ["bad", "good"]
    assert capsys.readouterr().err == "failed: bad\n"


def test_a_table_prints_ratios() -> None:
    table = bench.Table("Ways to go", ("km/h",), note="downhill")
    table.add("walk", 5.0)
    table.add("ride", 1250.0, base="walk")
    assert table.text().splitlines() == [
        "Ways to go",
        "         km/h    ratio",
        "  walk   5.00",
        "  ride  1,250  250.00x  of walk",
        "  downhill",
    ]
    assert [row["ratio"] for row in table.json()["rows"]] == [None, 250.0]


def test_a_row_has_a_value_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 values for 2 columns"):
        bench.Table("t", ("a", "b")).add("row", 1.0)


def test_best_calls_at_least_once_more_than_it_warms() -> None:
    calls: list[int] = []
    assert bench.best(lambda: calls.append(1), quick=True) > 0
    assert len(calls) == 2
    assert 0 < bench.best(lambda: None, quick=False, seconds=0.01, repeats=2) < 0.01


def test_figures_of_several_benchmarks_share_a_file(tmp_path: Path) -> None:
    def measure(quick: bool) -> list[bench.Table]:
        return []

    file = tmp_path / "figures.json"
    assert bench.run("one", measure, ["--json", str(file)]) == 0
    assert bench.run("two", measure, ["--quick", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert {name: entry["quick"] for name, entry in figures.items()} == {"one": False, "two": True}
