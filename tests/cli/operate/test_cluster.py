"""``headrace cluster``: a node that is alone, and a log that is set aside."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run as Command
from tests.hubprocess import HubProcess

from headrace.log import Log
from headrace.message import Batch, Run


def make_log(data: Path) -> None:
    log = Log.open(data / "log")
    log.append([Batch(Run.one(b"a"), first=1, time=1, origin="tube")])
    log.close()


def test_a_log_is_set_aside_and_nothing_is_lost(tmp_path: Path, run: Command) -> None:
    make_log(tmp_path)
    assert "replaced-1" in run("cluster", "replace", "--data", tmp_path, "--yes").stdout
    assert not (tmp_path / "log").exists()
    make_log(tmp_path)
    assert "replaced-2" in run("cluster", "replace", "--data", tmp_path, "--yes").stdout
    for number in (1, 2):
        log = Log.open(tmp_path / f"log.replaced-{number}", read_only=True)
        assert log.tail == 1
        log.close()


def test_it_asks_first(tmp_path: Path, run: Command) -> None:
    make_log(tmp_path)
    assert "--yes" in run("cluster", "replace", "--data", tmp_path).stderr
    assert (tmp_path / "log").exists()


def test_there_must_be_a_log(tmp_path: Path, run: Command) -> None:
    assert "holds no log" in run("cluster", "replace", "--data", tmp_path, "--yes").stderr
    assert "no hub runs" in run("cluster", "vouch", "--data", tmp_path, "--yes").stderr


def test_a_hub_that_is_alone(hub: HubProcess, run: Command) -> None:
    status = run("cluster", "status", "--url", f"tube://{hub.doors['tube_tcp']}")
    assert status.exit_code != 0
    assert "in no cluster" in status.stderr
    assert "stop it first" in run("cluster", "replace", "--data", hub.data, "--yes").stderr
    assert "in no cluster" in run("cluster", "vouch", "--data", hub.data, "--yes").stderr
