from __future__ import annotations

import doctest
import json
import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import Run
from tests.cli.logs import write_log
from tests.hubprocess import HubProcess

from headrace.cli.operate.log import info
from headrace.hub.state import entry
from headrace.log import Log
from headrace.log.files import WriterLock


def test_json(run: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one", b"two"], [b"three"], entries_after=[1])
    log = Log.open(directory)
    log.write_snapshot(4, 2, {})
    uuid = str(log.uuid)
    log.close()
    facts = json.loads(run("log", "info", "--data", tmp_path).stdout)
    sealed, tail = facts.pop("segments")
    for what in ("bytes", "message_bytes", "entry_bytes"):
        assert sealed[what] + tail[what] == facts[what]
    assert (
        sealed["message_bytes"] + sealed["entry_bytes"]
        == sealed["bytes"]
        == sum(
            (directory / f"0000000000000001.{suffix}").stat().st_size
            for suffix in ("arrow", "entries", "topics")
        )
    )
    assert tail["message_bytes"] == tail["bytes"] == (directory / "0000000000000005.open").stat().st_size
    for each in (facts, sealed):
        for what in ("bytes", "message_bytes", "entry_bytes"):
            assert each.pop(what) > 0
    assert facts == {
        "directory": str(directory),
        "log": uuid,
        "first": 1,
        "first_here": 1,
        "archive": None,
        "head": 3,
        "tail": 3,
        "messages": 3,
        "entries": 2,
        "snapshot": 2,
        "damaged_snapshots": [],
        "torn_bytes": 0,
        "hub": None,
    }
    assert sealed == {
        "file": "0000000000000001.arrow",
        "kind": "sealed",
        "first": 1,
        "last": 2,
        "messages": 2,
        "entries": 2,
        "first_time": "1970-01-01T00:00:01.000000Z",
        "last_time": "1970-01-01T00:00:02.000000Z",
    }
    assert (tail["kind"], tail["first"], tail["last"]) == ("open", 3, 3)


def test_text(shown: Run, tmp_path: Path) -> None:
    write_log(tmp_path, [b"one", b"two"], [b"three"], entries_after=[1, 3])
    text = shown("log", "info", "--data", tmp_path).stdout
    assert "messages   3, 1 to 3" in text
    assert "entries    4 of the hub's own, " in text
    assert "when       1970-01-01 00:00:01 to 00:00:03 UTC" in text
    assert "hub        none is running" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("0000")]
    assert rows[0][:2] == ["0000000000000001.arrow", "2"]
    assert rows[1][:2] == ["0000000000000005.open", "1"]
    assert [row[4] for row in rows] == ["2", "2"]


def test_entries_of_an_open_tail_are_weighed(run: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one", b"two"], entries_after=[1, 2])
    with_entries = json.loads(run("log", "info", "--data", tmp_path).stdout)
    without = write_log(tmp_path / "other", [b"one", b"two"])
    assert (with_entries["messages"], with_entries["entries"]) == (2, 4)
    file = "0000000000000001.open"
    assert with_entries["message_bytes"] == (without / file).stat().st_size
    assert with_entries["bytes"] == (directory / file).stat().st_size


def test_a_log_of_entries_alone(shown: Run, tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log")
    log.append([entry("holds", "h", b"{}").numbered(1, 0, 1, 0)])
    log.commit(1)
    log.write_snapshot(1, 0, {})
    log.close()
    text = shown("log", "info", "--data", tmp_path).stdout
    assert "messages   0\n" in text
    assert "entries    1 of" in text
    assert "snapshot   before the first message" in text


def test_a_segment_fits_a_line_of_80_columns() -> None:
    segment = {
        "file": "0000000012345678.arrow",
        "messages": 10_000_000,
        "entries": 100_000,
        "message_bytes": 268_000_000,
        "entry_bytes": 1_000_000,
        "first_time": "2026-01-31T10:00:00.500000Z",
    }
    out = StringIO()
    Console(file=out, width=80).print(info._table([segment]))
    assert out.getvalue().splitlines()[1].split()[-4:] == ["976.6", "KiB", "2026-01-31", "10:00"]
    assert doctest.testmod(info).failed == 0


def test_an_empty_log(run: Run, shown: Run, tmp_path: Path) -> None:
    write_log(tmp_path)
    facts = json.loads(run("log", "info", "--data", tmp_path, "--json").stdout)
    assert (facts["first"], facts["head"]) == (1, 0)
    assert facts["segments"][0]["first_time"] is None
    assert "messages   0\n" in shown("log", "info", "--data", tmp_path).stdout


def test_a_torn_end_is_told_and_left(run: Run, shown: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one"])
    tail = directory / "0000000000000001.open"
    with tail.open("ab") as file:
        file.write(b"unfinished")
    before = tail.read_bytes()
    assert "torn end" in shown("log", "info", "--data", tmp_path).stdout
    assert json.loads(run("log", "info", "--data", tmp_path, "--json").stdout)["torn_bytes"] == 10
    assert tail.read_bytes() == before


def test_a_damaged_snapshot_is_named(run: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one"])
    (directory / "0000000000000001.snapshot").write_bytes(b"nonsense")
    assert "0000000000000001.snapshot" in run("log", "info", "--data", tmp_path).stdout


def test_damage_is_one_line(run: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one"], [b"two"])
    (directory / "0000000000000001.index").unlink()
    result = run("log", "info", "--data", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "0000000000000001" in result.stderr
    assert "`headrace log repair --dry-run` shows what can be done" in result.stderr


@pytest.mark.parametrize("command", [["info"], ["dump"], ["seal"], ["verify"], ["repair", "--yes"]])
def test_no_log_is_told_and_none_is_made(run: Run, no_log: Path, command: list[str]) -> None:
    result = run("log", *command, "--data", no_log)
    assert result.exit_code == 2
    assert (
        result.stderr == f"headrace: {no_log}/log holds no log; name the hub's data directory with --data\n"
    )
    assert [path.name for path in (no_log / "log").iterdir()] == ["notes.txt"]
    assert run("log", *command, "--data", no_log / "nowhere").exit_code == 2
    assert not (no_log / "nowhere").exists()


def test_the_data_directory_comes_from_the_settings(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "elsewhere", [b"one"])
    monkeypatch.setenv("HEADRACE_NODE__DATA", str(tmp_path / "elsewhere"))
    assert json.loads(run("log", "info", "--json").stdout)["head"] == 1
    config = tmp_path / "hub.toml"
    monkeypatch.delenv("HEADRACE_NODE__DATA")
    config.write_text(f'[node]\ndata = "{tmp_path / "elsewhere"}"\n')
    assert json.loads(run("log", "info", "--json", "--config", config).stdout)["head"] == 1


def test_a_live_hub(run: Run, shown: Run, hub: HubProcess) -> None:
    facts = json.loads(run("log", "info", "--data", hub.data, "--json").stdout)
    assert facts["hub"] == {"pid": hub.pid, "doors": hub.doors}
    assert f"hub        process {hub.pid}: fyrehose " in shown("log", "info", "--data", hub.data).stdout


def test_what_a_killed_hub_left_in_the_lock_file_is_not_believed(run: Run, tmp_path: Path) -> None:
    directory = write_log(tmp_path, [b"one"])
    (directory / "lock").write_text('{"pid": 1, "doors": {"http": "127.0.0.1:1"}}\n')
    assert json.loads(run("log", "info", "--data", tmp_path, "--json").stdout)["hub"] is None


@pytest.mark.parametrize("told", [{}, {"doors": "none"}, {"doors": {"http": "127.0.0.1:1"}}])
def test_a_holder_that_cannot_be_asked(run: Run, tmp_path: Path, told: dict[str, object]) -> None:
    directory = write_log(tmp_path, [b"one"])
    lock = WriterLock(directory / "lock")
    try:
        lock.tell(**told)
        facts = json.loads(run("log", "info", "--data", tmp_path, "--json").stdout)
    finally:
        lock.release()
    assert facts["hub"]["pid"] == os.getpid()
    assert facts["head"] == 1


@pytest.mark.parametrize("command", [["info"], ["dump"], ["verify"], ["repair", "--dry-run"]])
def test_a_log_of_an_earlier_version_is_refused(run: Run, tmp_path: Path, command: list[str]) -> None:
    tail = tmp_path / "log" / "0000000000000001.open"
    tail.parent.mkdir()
    tail.write_bytes(b"HRTAIL\x01\n" + bytes(200))
    result = run("log", *command, "--data", tmp_path)
    assert result.exit_code in (1, 2)
    assert "has version 1 of the log's format, and this Headrace reads version 2" in result.stderr
    assert tail.read_bytes() == b"HRTAIL\x01\n" + bytes(200)
