"""What every benchmark shares: tables, ratios, and what they decide."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

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


def test_a_terminated_benchmark_leaves_nothing_behind(tmp_path: Path) -> None:
    """Such as `timeout` ends it: its servers are stopped and its files removed."""
    script = """
import bench, contextlib, sys, tempfile, time
def measure(quick):
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("begun", flush=True)
        time.sleep(60)
        yield bench.Table("never", ("rows/s",))
bench.run("one", measure, [])
"""
    line = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


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


def keyed(rate: float, *, less_is_better: bool) -> bench.Table:
    made = bench.Table("a table", ("figure",), less_is_better=less_is_better)
    made.add("the peer", 100.0)
    made.add("ours", rate, base="the peer", key=True)
    made.add("another of ours", 1.0, base="the peer")
    return made


@pytest.mark.parametrize(
    ("recorded", "now", "less_is_better", "is_worse"),
    [
        (300, 250, False, False),
        (300, 230, False, True),
        (300, 900, False, False),
        (100, 120, True, False),
        (100, 130, True, True),
        (100, 50, True, False),
    ],
)
def test_a_key_ratio_that_is_a_fifth_worse_than_recorded_fails(
    recorded: float, now: float, less_is_better: bool, is_worse: bool, tmp_path: Path
) -> None:
    file = tmp_path / "recorded.json"
    bench.run("one", lambda _: [keyed(recorded, less_is_better=less_is_better)], ["--json", str(file)])
    status = bench.run("one", lambda _: [keyed(now, less_is_better=less_is_better)], ["--check", str(file)])
    assert status == is_worse


def test_what_was_never_recorded_is_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "recorded.json"
    file.write_text("{}")
    assert bench.run("one", lambda _: [keyed(1, less_is_better=False)], ["--check", str(file)]) == 0


def test_tables_with_key_ratios_are_drawn(tmp_path: Path) -> None:
    plain = bench.Table("plain", ("figure",))
    plain.add("a & b", 1.0)
    tables = [keyed(250, less_is_better=False), plain]
    bench.run("one", lambda _: tables, ["--charts", str(tmp_path)])
    (drawn,) = tmp_path.iterdir()
    assert drawn.name == "bench-one-a-table.svg"
    root = ElementTree.fromstring(drawn.read_text())
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "a table (longer is better)"
    assert "250 (2.5x)" in texts


def test_without_a_record_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.run("one", measure(1), ["--check", str(tmp_path / "none.json")])
    assert "has no ratios to compare with" in capsys.readouterr().err
