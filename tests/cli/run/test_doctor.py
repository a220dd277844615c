"""``headrace doctor``: what it finds on a machine and of a running hub."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.cli.pseudo_terminal import Terminal
from tests.hubprocess import FREE_DOORS, HubProcess

from headrace.cli.run import doctor_checks
from headrace.config import load
from headrace.errors import UsageError
from headrace.net.server.status.alerts import alerts_from
from headrace.spark.runtime import java

ANYWHERE = tuple(part for door in FREE_DOORS for part in ("--set", door))


def findings(run: Run, *arguments: object, code: int = 0) -> list[dict[str, str]]:
    result = run("doctor", "--json", *ANYWHERE, *arguments)
    assert result.exit_code == code, result.output
    found: list[dict[str, str]] = json.loads(result.stdout)
    return found


def about(found: list[dict[str, str]], subject: str) -> dict[str, str]:
    (one,) = [each for each in found if each["subject"] == subject]
    return one


def test_it_looks_at_everything(run: Run, tmp_path: Path) -> None:
    found = findings(run, "--data", tmp_path)
    subjects = {each["subject"] for each in found}
    assert subjects >= {"Python", "disk", "memory", "open files", "ports", "PySpark", "Java"}
    for each in found:
        assert each["found"]
        assert bool(each["remedy"]) == (each["verdict"] != "ok")
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_taken_is_named_with_its_door(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = findings(run, "--data", tmp_path, "--set", f"listen.spp=127.0.0.1:{port}")
    ports = about(found, "ports")
    assert ports["found"] == f"127.0.0.1:{port} (spp) is taken"
    assert "listen.spp=127.0.0.1:0" in ports["remedy"]


def test_a_hub_of_another_directory_is_recognised(run: Run, tmp_path: Path, hub: HubProcess) -> None:
    its_ports = [
        part for door, address in hub.doors.items() for part in ("--set", f"listen.{door}={address}")
    ]
    found = findings(run, "--data", tmp_path / "elsewhere", *its_ports)
    assert not [each for each in found if each["subject"] == "ports"]
    assert about(found, "hub")["verdict"] == "ok"
    assert about(found, "hub")["found"].endswith(f"; process {hub.pid}, its data in {hub.data}")
    assert about(found, "disk")["found"].endswith(f"free at {hub.data}")


def test_a_udp_port_counts_too(run: Run, tmp_path: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = findings(run, "--data", tmp_path, "--set", f"listen.fyrehose=127.0.0.1:{port}")
    assert "(fyrehose) is taken" in about(found, "ports")["found"]


def test_a_backbone_on_ipv6_has_no_udp(run: Run, tmp_path: Path) -> None:
    found = findings(run, "--data", tmp_path, "--set", "listen.fyrehose=[::1]:0")
    assert "TCP only" in about(found, "backbone")["found"]


def test_a_data_directory_that_is_a_file_must_be_mended(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = findings(run, "--data", tmp_path / "file" / "data", code=1)
    assert about(found, "disk")["verdict"] == "wrong"


def test_more_to_keep_than_the_disk_holds(run: Run, tmp_path: Path) -> None:
    disk = about(findings(run, "--data", tmp_path, "--set", "log.retain_bytes=8192TiB"), "disk")
    assert (disk["verdict"], "log.retain_bytes" in disk["remedy"]) == ("warning", True)


@pytest.mark.parametrize(
    ("available", "verdict"), [(100 << 20, "wrong"), (1 << 30, "warning"), (8 << 30, "ok")]
)
def test_memory(monkeypatch: pytest.MonkeyPatch, available: int, verdict: str) -> None:
    monkeypatch.setattr(doctor_checks, "_available_memory", lambda: available)
    (found,) = doctor_checks._memory()
    assert found.verdict == verdict


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise UsageError("there is no Java: pip install brings one along")

    monkeypatch.setattr(java, "java_home", none)
    (found,) = doctor_checks._java()
    assert (found.verdict, "pip install" in found.remedy) == ("warning", True)


def test_a_running_hub_is_asked_instead_of_its_ports(run: Run, tmp_path: Path) -> None:
    with HubProcess.start(tmp_path) as hub:
        same = tuple(part for door, at in hub.doors.items() for part in ("--set", f"listen.{door}={at}"))
        found = findings(run, "--data", hub.data, *same)
    assert "runs, no message yet" in about(found, "hub")["found"]
    assert not [each for each in found if each["subject"] == "ports"]


def test_a_hub_that_does_not_let_us_in_runs_all_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, key = "00112233445566778899aabb", "a key of its own"
    with HubProcess.start(tmp_path, "auth.required=true", f"auth.clients.{name}={key}") as hub:
        same = tuple(part for door, at in hub.doors.items() for part in ("--set", f"listen.{door}={at}"))
        stranger = findings(run, "--data", hub.data, *same)
        monkeypatch.setenv("HEADRACE_KEY", "another key")
        impostor = findings(run, "--data", hub.data, *same, "--client-id", name)
        monkeypatch.setenv("HEADRACE_KEY", key)
        known = findings(run, "--data", hub.data, *same, "--client-id", name)
    for found, remedy in ((stranger, "--client-id"), (impostor, f"check the id {name}")):
        assert about(found, "hub")["found"] == "runs, and refuses us"
        assert remedy in about(found, "hub")["remedy"]
        assert not [each for each in found if each["subject"] == "ports"]
    assert "runs, no message yet" in about(known, "hub")["found"]


def test_what_a_hub_counts_as_wrong() -> None:
    status: dict[str, Any] = {
        "node": {"name": "mill"},
        "first": 10,
        "head": 20,
        "disk": {"bytes": 5},
        "counters": {"holds_broken": 3, "sync_failures": {"a": {"b": 2}}, "received": 99},
        "problems": {"room": "only 3 MiB are free"},
        "consumers": {
            "billing": {"behind": 0, "behind_exact": True, "lost": 7},
            "well": {"behind": 0, "behind_exact": True, "lost": 0},
        },
        "lost": {"measure": {"messages": 36, "ranges": [[1, 36]]}},
        "pipeline": {
            "state": "running",
            "age": 1.0,
            "jobs": {"archive": {"state": "restarting", "error": "no room"}, "measure": {"state": "running"}},
        },
    }
    status["alerts"] = [alert._asdict() for alert in alerts_from(status, Counter())]
    well, *wrong = doctor_checks._hub(status)
    assert well.verdict == "ok"
    assert sorted(each.found for each in wrong) == [
        "archive fails: no room",
        "consumer billing has lost 7 messages",
        "holds broken: 3",
        "measure passed over 36 messages that were gone before it read them",
        "only 3 MiB are free",
        "sync failures: 2",
    ]
    assert all(each.remedy for each in wrong)
    assert [each.subject for each in wrong if "archive" in each.found] == ["pipeline"]


def test_a_data_directory_without_a_hub(tmp_path: Path) -> None:
    settings = load(environ={}, sets=[f"node.data={tmp_path}"])
    assert doctor_checks.hub_status(settings) is None
    (tmp_path / "log").mkdir()
    for nowhere in ("127.0.0.1:9", "127.0.0.1:no port"):
        told = {"pid": 1, "doors": {"http": nowhere}}
        (tmp_path / "log" / "lock").write_text(json.dumps(told))
        assert doctor_checks.hub_status(settings) is None


def test_on_a_terminal(tmp_path: Path) -> None:
    with Terminal("doctor", *ANYWHERE, "--data", tmp_path) as terminal:
        terminal.read_until("Java")
        assert "ok" in terminal.shown
