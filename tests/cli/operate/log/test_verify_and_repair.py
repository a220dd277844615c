"""``log verify`` and ``log repair``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.cli.logs import flip, write_log
from tests.cli.pseudo_terminal import Terminal
from tests.hubprocess import HubProcess

from headrace.log import Log


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log of three sealed segments, the middle one with a flipped byte: messages 2 and 3 are in doubt."""
    directory = write_log(tmp_path, [b"one"], [b"two", b"three"], [b"four"], [b"five"])
    middle = directory / "0000000000000002.arrow"
    flip(middle, middle.stat().st_size // 2)
    return tmp_path


def test_a_good_log(run: Run, shown: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one"], [b"two"])
    result = shown("log", "verify", "--data", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("all is as it was written: ")
    assert result.stdout.endswith(", messages up to 2\n")
    facts = json.loads(run("log", "verify", "--data", tmp_path).stdout)
    read = [path for path in directory.iterdir() if path.name not in ("lock", "synced")]
    assert facts.pop("bytes") == sum(path.stat().st_size for path in read)
    assert facts == {"directory": str(directory), "ok": True, "last": 2, "problems": []}


def test_damage_is_found(run: Run, shown: Run, damaged: Path) -> None:
    result = shown("log", "verify", "--data", damaged)
    assert result.exit_code == 1
    problem, summary = result.stdout.splitlines()
    assert "0000000000000002.arrow" in problem
    assert problem.endswith("messages 2 to 3 are in doubt")
    assert summary.startswith("1 problem in ")
    result = run("log", "verify", "--data", damaged)
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert facts["ok"] is False
    [found] = facts["problems"]
    assert (found["first"], found["last"], found["mends"]) == (2, 3, False)
    assert found["file"] == str(damaged / "log" / "0000000000000002.arrow")


def test_verify_beside_a_live_hub(run: Run, hub: HubProcess) -> None:
    assert run("log", "verify", "--data", hub.data).exit_code == 0


def test_verify_shows_its_progress_on_a_terminal(damaged: Path) -> None:
    with Terminal("log", "verify", "--data", damaged) as terminal:
        terminal.read_until("0000000000000005.open")
        assert terminal.wait() == 1
    assert "messages 2 to 3 are in doubt" in terminal.shown


def test_nothing_to_repair(run: Run, shown: Run, tmp_path: Path) -> None:
    write_log(tmp_path, [b"one"])
    result = shown("log", "repair", "--data", tmp_path)
    assert result.exit_code == 0
    assert "nothing is wrong" in result.stdout
    assert json.loads(run("log", "repair", "--data", tmp_path).stdout)["problems"] == []


def test_a_dry_run_changes_nothing(shown: Run, damaged: Path) -> None:
    before = {path.name: path.read_bytes() for path in (damaged / "log").iterdir()}
    result = shown("log", "repair", "--data", damaged, "--dry-run")
    assert result.exit_code == 1
    assert "to do: " in result.stdout
    assert {path.name: path.read_bytes() for path in (damaged / "log").iterdir()} == before


def test_repair_keeps_what_comes_before(run: Run, damaged: Path) -> None:
    result = run("log", "repair", "--data", damaged, "--yes")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["first"], facts["last"]) == (1, 1)
    assert facts["lost"] == [{"first": 2, "last": 5}]
    assert facts["log"] != facts["log_before"]
    assert Path(facts["aside"]).is_dir()
    assert payloads(damaged) == [b"one"]
    assert run("log", "verify", "--data", damaged).exit_code == 0


def test_repair_keeps_what_comes_after_if_asked(shown: Run, damaged: Path) -> None:
    result = shown("log", "repair", "--data", damaged, "--yes", "--keep", "after")
    assert result.exit_code == 0, result.stderr
    assert "lost: messages 1 to 3" in result.stdout
    assert payloads(damaged) == [b"four", b"five"]


def test_lost_entries_cost_no_message(run: Run, shown: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one", b"two"], [b"three"], entries_after=[1, 2, 3])
    (directory / "0000000000000001.entries").unlink()
    facts = json.loads(run("log", "verify", "--data", tmp_path).stdout)
    [problem] = facts["problems"]
    assert (problem["entries_after"], problem["file"]) == (0, str(directory / "0000000000000001.entries"))
    result = shown("log", "verify", "--data", tmp_path)
    assert "entries of the log before message 1 are in doubt" in result.stdout
    facts = json.loads(run("log", "repair", "--data", tmp_path, "--yes").stdout)
    assert (facts["first"], facts["last"], facts["lost"]) == (1, 3, [])
    assert facts["lost_entries"] == [{"first": 0, "last": 2}]
    assert facts["log"] == facts["log_before"]
    assert any("begin with an empty state after message 2" in step for step in facts["steps"])
    assert payloads(tmp_path) == [b"one", b"two", b"three"]
    assert run("log", "verify", "--data", tmp_path).exit_code == 0


def test_nobody_to_ask(run: Run, damaged: Path) -> None:
    result = run("log", "repair", "--data", damaged)
    assert result.exit_code == 2
    assert "to do: " in result.stderr
    assert "--yes" in result.stderr.splitlines()[-1]
    assert run("log", "verify", "--data", damaged).exit_code == 1


@pytest.mark.parametrize(
    ("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0), (b"\x04", 130), (None, 130)]
)
def test_a_person_is_asked(damaged: Path, answer: bytes | None, code: int) -> None:
    with Terminal("log", "repair", "--data", damaged) as terminal:
        terminal.read_until("Repair it now? [y/N]: ")
        if answer is None:
            terminal.interrupt()
        else:
            terminal.write(answer)
        assert terminal.wait() == code
    assert ("done: " in terminal.shown) == (code == 0)
    assert ("nothing was changed" in terminal.shown) == (code == 1)
    assert payloads(damaged, ok=code == 0) == ([b"one"] if code == 0 else [])


def test_repair_refuses_while_a_hub_runs(run: Run, hub: HubProcess) -> None:
    result = run("log", "repair", "--data", hub.data, "--yes")
    assert result.exit_code == 1
    assert f"is in use by process {hub.pid}" in result.stderr


def payloads(data: Path, *, ok: bool = True) -> list[bytes]:
    if not ok:
        return []
    log = Log.open(data / "log", read_only=True)
    try:
        return [message.payload for batch in log.scan(log.first) for message in batch]
    finally:
        log.close()
