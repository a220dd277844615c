"""``headrace demo``: it shows everything, judges truly, and leaves nothing behind."""

from __future__ import annotations

import doctest
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from tests.cli.pseudo_terminal import Terminal
from tests.forking import Process, piped

from headrace.cli.operate.pipeline import run as pipeline_run
from headrace.cli.run.demo import picture, processes
from headrace.cli.run.demo.picture import draw, summary
from headrace.config import DOORS
from headrace.demo.audit import Audit, Finding
from headrace.demo.listeners import Alert
from headrace.demo.play import Play, SparkEnd
from headrace.spark import runner
from headrace.spark.runner import Pipeline, PipelineRequest

SECONDS = 200


@pytest.fixture(autouse=True)
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    for door in DOORS:
        monkeypatch.setenv(f"HEADRACE_LISTEN__{door.upper()}", "127.0.0.1:0")


def started(*arguments: str, cwd: Path | None = None) -> AbstractContextManager[Process]:
    return piped("demo", *arguments, cwd=cwd)


def events(process: Process) -> list[dict[str, Any]]:
    """What a demo that ends by itself has told."""
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, b""), out[-2000:]
    return [json.loads(line) for line in out.splitlines()]


def family(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not alive


@pytest.mark.slow
def test_without_spark(tmp_path: Path) -> None:
    with started("--seconds", "3", "--vehicles", "8", "--no-spark", cwd=tmp_path) as process:
        told = events(process)
    first, *_, last = told
    assert first["event"] == "started"
    assert first["dashboard"] == f"http://{first['doors']['http']}/"
    assert {"alert", "progress"} <= {each["event"] for each in told}
    assert last["event"] == "summary"
    assert last["good"], last["findings"]
    assert set(last["messages"]) == {"fyrehose", "spp", "attribute", "tube"}
    assert all(last["messages"].values())
    assert (last["spark"], last["without_spark"]) == (None, None)
    assert not Path(first["data"]).parent.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
def test_with_spark() -> None:
    with started("--seconds", "5", "--vehicles", "8") as process:
        last: dict[str, Any] = {}
        while last.get("event") != "summary":
            last = json.loads(process.stdout.readline())
        everyone = family(process.pid)
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, b"")
    # The hub, Spark's driver, its JVM and a Python worker.
    assert len(everyone) >= 4
    assert all_gone(everyone)
    assert last["good"], last["findings"]
    assert [finding["what"] for finding in last["findings"]] == [
        "sequence",
        "messages",
        "matching",
        "parcel",
        "spark",
    ]
    assert last["spark"]["messages"] == sum(last["messages"].values())
    assert last["spark"]["by_protocol"] == last["messages"]
    assert last["spark"]["vehicles"] == 8
    assert last["spark"]["metres"] > 0


@pytest.mark.slow
def test_a_machine_without_pyspark_is_shown_the_rest(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = [sys.executable, "-m", "headrace", "demo", "--seconds", "2", "--vehicles", "4"]
    pipe, environ = subprocess.PIPE, {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(line, stdout=pipe, stderr=pipe, env=environ) as process:
        *_, last = events(process)
    assert last["good"], last["findings"]
    assert "PySpark" in last["without_spark"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_when_told_to_and_leaves_nothing(number: int) -> None:
    with started("--seconds", "600", "--no-spark") as process:
        first = json.loads(process.stdout.readline())
        children = family(process.pid)
        assert children
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (130, b"")
    assert all_gone(children)
    assert not Path(first["data"]).parent.exists()


@pytest.mark.slow
def test_a_hub_ends_with_the_demo_that_is_killed() -> None:
    with started("--seconds", "600", "--no-spark") as process:
        first = json.loads(process.stdout.readline())
        children = family(process.pid)
        process.kill()
        process.communicate(timeout=SECONDS)
    assert all_gone(children)
    # Nobody was left to remove it.
    shutil.rmtree(Path(first["data"]).parent)


@pytest.mark.slow
def test_kept_until_interrupted() -> None:
    with started("--seconds", "1", "--vehicles", "4", "--no-spark", "--keep") as process:
        for line in process.stdout:
            if json.loads(line)["event"] == "kept":
                break
        children = family(process.pid)
        assert [child for child in children if child.is_running()]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert all_gone(children)


@pytest.mark.slow
def test_on_a_terminal() -> None:
    with Terminal("demo", "--seconds", "2", "--vehicles", "8", "--no-spark") as terminal:
        assert terminal.wait() == 0
        assert "the town" in terminal.shown
        assert "in 2 s through five protocols" in terminal.shown
        assert "✓ every number from 1 to" in terminal.shown
        assert "Try next:" in terminal.shown


@pytest.mark.slow
def test_interrupted_on_a_terminal() -> None:
    with Terminal("demo", "--seconds", "600", "--no-spark") as terminal:
        terminal.read_until("the town")
        children = family(terminal.process.pid)
        terminal.interrupt()
        assert terminal.wait() == 130
        assert all_gone(children)


def _play(**options: Any) -> Play:
    doors = dict.fromkeys(DOORS, "127.0.0.1:1")
    return Play(doors, vehicles=24, seconds=60.0, **{"spark": lambda: None, **options})


@pytest.fixture
def busy() -> Play:
    play = _play()
    play.phase, play.elapsed, play.head = "driving", 30.0, 12_345_678
    play.received = dict.fromkeys(("fyrehose", "spp", "attribute", "tube", "spark"), 3_000_000)
    play.alerts += [
        Alert(time.monotonic() % 60, "harbour", f"taxi-{n}", f"taxi-{n} is in the harbour", n)
        for n in range(99)
    ]
    for watch in play.watches:
        watch.received = 123_456
        watch.seen = {f"taxi-{n}": play.now for n in range(12)}
    play.results.fleet.update(
        {"messages": 12_000_000, "metres": 5000, "top_speed": 79.0, "furthest": "taxi-1"}
    )
    for name in play.results._names:
        found = {"metres": 1000, "top_speed": 70.0, "battery": None, "messages": 5}
        play.results.vehicles[name] = found
    return play


@pytest.mark.parametrize("width", [60, 80, 105, 120, 200])
@pytest.mark.parametrize("height", [24, 34, 60])
@pytest.mark.parametrize("failed", [(), ("measure", "fleet")], ids=["well", "failed"])
def test_a_picture_fits_its_terminal(busy: Play, width: int, height: int, failed: tuple[str, ...]) -> None:
    busy.pipeline = {"jobs": {name: {"error": "no room " * 99} for name in failed}}
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(draw(busy, width, height))
    shown = out.getvalue().rstrip("\n").splitlines()
    assert all(len(line) <= width for line in shown)
    assert len(shown) <= height
    assert "12,345,678" in shown[0]
    assert "30 s left" in shown[0]
    assert any("the town" in line for line in shown)


@pytest.mark.parametrize("width", [106, 120, 130, 140, 160])
def test_numbers_stay_whole(busy: Play, width: int) -> None:
    for name in ("fyrehose", "spp", "attribute", "tube", "spark"):
        busy.rates[name] = deque([12_345.0] * 60)
    shown = _drawn(busy, width)
    assert shown.count("123,456") == len(busy.watches)
    assert shown.count("3,000,000") == 5
    assert shown.count("12,345 ") == 5
    for watch in busy.watches:
        assert f"{watch.name} " in shown
    assert shown.count("taxi-0, ") == len(busy.watches)
    assert "#98 " in shown


def test_what_is_cut_says_so() -> None:
    assert doctest.testmod(picture).failed == 0


def _drawn(play: Play, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width, height=40).print(draw(play, width, 40))
    return out.getvalue()


def test_what_spark_does_is_told(busy: Play) -> None:
    assert "spark/vehicle/taxi-1" in _drawn(busy)
    assert "Spark is starting" in _drawn(_play())
    assert "no Java" in _drawn(_play(spark=lambda: SparkEnd("no Java", True)))
    assert "park" not in _drawn(_play(spark=None))
    busy.pipeline = {"jobs": {"measure": {"state": "restarting", "error": "no room " * 99}}}
    assert "measure failed, and is started again: no room" in _drawn(busy)
    assert "spark/vehicle/taxi-1" in _drawn(busy)
    starting = _play()
    starting.pipeline = busy.pipeline
    assert "measure failed" in _drawn(starting)


def test_a_job_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[PipelineRequest] = []

    class Recorded(Pipeline):
        def __init__(self, asked: PipelineRequest) -> None:
            made.append(asked)
            super().__init__(asked)

        def run(self) -> None:
            pass

    monkeypatch.setattr(runner, "Pipeline", Recorded)
    monkeypatch.setattr(pipeline_run, "stop_on_signals", lambda _: None)
    monkeypatch.setattr(processes, "_redirect_output", lambda _: None)
    monkeypatch.setattr(os, "nice", lambda _: None)
    processes._run_jobs(processes.JOBS, "127.0.0.1:1", str(tmp_path), tmp_path / "said")
    assert [(asked.jobs, asked.restart) for asked in made] == [(processes.JOBS, True)]


def test_a_summary_says_what_is_wrong(busy: Play) -> None:
    findings = [Finding("sequence", True, "all there"), Finding("spark", False, "Spark counted 1 of 2")]
    audit = Audit(dict.fromkeys(("fyrehose", "spp", "attribute", "tube"), 7), 30, 99, findings, None)
    out = io.StringIO()
    Console(file=out, width=140).print(summary(busy, audit))
    assert "✓ all there" in out.getvalue()
    assert "✗ Spark counted 1 of 2" in out.getvalue()
    assert "28 messages in 60 s" in out.getvalue()
