from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.cli.conftest import SECONDS, Command, Run
from tests.cli.pseudo_terminal import Terminal
from tests.cli.use.test_pub_link import facts, url
from tests.forking import Process, piped
from tests.hubprocess import HubProcess

from headrace.cli.use import services


def put(hub: HubProcess, command: Command, service: str, *change: object) -> None:
    """Change a service, which ends when the hub has it."""
    done = command("services", "put", service, *change, "--url", hub.url("spp"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def watch(hub: HubProcess, service: str, count: int) -> AbstractContextManager[Process]:
    return piped("services", "watch", service, "--count", count, "--url", hub.url("spp"))


def test_put_get_list(hub: HubProcess, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes(b"\xff\n")
    put(hub, command, "s/json", '{"speed":60}')
    put(hub, command, "s/last", "--file", file)
    assert facts(command("services", "watch", "s/json", "-n", 1, "--url", hub.url("spp"))) == {
        "value": {"speed": 60}
    }
    assert facts(command("services", "watch", "s/last", "-n", 1, "--url", hub.url("spp"))) == {
        "value_base64": "/wo="
    }
    assert facts(command("services", "get", "s/json", "--url", url(hub))) == {"speed": 60}
    assert command("services", "get", "s/last", "--url", url(hub)).stdout == b"\xff\n"
    shown = facts(command("services", "get", "s/json", "--json", "--url", url(hub)))
    assert shown == {"id": "s/json", "value": {"speed": 60}}
    shown = facts(command("services", "get", "s/last", "--json", "--url", url(hub)))
    assert shown == {"id": "s/last", "value_base64": "/wo="}
    done = command("services", "put", "s/text", "five", "--json", "--url", hub.url("spp"))
    assert facts(done) == {"id": "s/text", "put": 4}
    assert facts(command("services", "get", "s/text", "--json", "--url", url(hub)))["value"] == "five"
    listed = {each["id"]: each for each in facts(command("services", "list", "--url", url(hub)))}
    assert (listed["s/json"]["kind"], listed["s/last"]["kind"]) == ("json", "last")
    with Terminal("services", "list", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    assert ["s/last", "last"] in [line.split()[:2] for line in terminal.shown.splitlines()]
    with Terminal("services", "get", "s/last", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    assert terminal.shown == "0xff0a\n"


def test_watching_changes(hub: HubProcess, command: Command) -> None:
    with watch(hub, "w/json", 2) as process:
        assert process.stdout is not None
        try:
            # It waits for the service to appear.
            put(hub, command, "w/json", '{"speed":60,"gear":1}')
            assert json.loads(process.stdout.readline()) == {"value": {"speed": 60, "gear": 1}}
            put(hub, command, "w/json", '{"speed":61,"gear":null}')
            assert json.loads(process.stdout.readline()) == {"change": {"speed": 61, "gear": None}}
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def test_watching_on_a_terminal(hub: HubProcess, command: Command) -> None:
    put(hub, command, "w/last", "one")
    with Terminal("services", "watch", "w/last", "--count", 2, "--url", hub.url("spp")) as terminal:
        terminal.read_until("one\n")
        put(hub, command, "w/last", "two\tthree")
        assert terminal.wait() == 0
    assert terminal.shown == "one\ntwo\\tthree\n"


def test_what_is_not_there(hub: HubProcess, command: Command) -> None:
    done = command("services", "get", "nowhere", "--url", url(hub))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"there is no service 'nowhere'" in done.stderr


def test_create_and_remove(hub: HubProcess, command: Command) -> None:
    def link(*arguments: object) -> tuple[int, bytes, bytes]:
        done = command("services", *arguments, "--url", url(hub))
        return done.returncode, done.stdout, done.stderr

    assert link("create", "c/last", "--kind", "last") == (0, b'{"id": "c/last", "kind": "last"}\n', b"")
    with Terminal("services", "create", "c/last", "--kind", "last", "--url", url(hub)) as terminal:
        assert terminal.wait() == 0
    assert terminal.shown == "c/last is there, of kind last\n"
    put(hub, command, "c/last", '{"text": "replaced, not merged"}')
    with watch(hub, "c/last", 4) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())
            assert link("remove", "c/last") == (0, b'{"id": "c/last", "removed": true}\n', b"")
            assert link("remove", "c/last") == (0, b'{"id": "c/last", "removed": false}\n', b"")
            code, _, told = link("get", "c/last")
            assert (code, b"there is no service 'c/last'" in told) == (1, True)
            # Whoever puts it could not see it come back: a removed service is offered to nobody.
            assert command("pub", "still heard", "--topic", "c/last", "--url", url(hub)).returncode == 0
            assert json.loads(process.stdout.readline()) == {"value": "still heard"}
            assert link("create", "c/last", "--kind", "last")[0] == 0
            assert json.loads(process.stdout.readline()) == {"value": ""}
            put(hub, command, "c/last", "again")
            assert json.loads(process.stdout.readline()) == {"value": "again"}
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
    assert link("create", "c/last") == (
        1,
        b"",
        b"headrace: service 'c/last' exists already, with kind last (conflict)\n",
    )
    code, _, told = link("remove", "nowhere")
    assert (code, b"there is no service 'nowhere'" in told) == (1, True)


def test_a_change_is_there_when_put_ends(hub: HubProcess, command: Command) -> None:
    for change, then in [('{"a":1,"b":2}', {"a": 1, "b": 2}), ('{"b":null}', {"a": 1}), ("{}", {"a": 1})]:
        put(hub, command, "p/json", change)
        assert facts(command("services", "get", "p/json", "--url", url(hub))) == then
    put(hub, command, "p/last", "text")
    put(hub, command, "p/last", '{"now":"an object"}')
    put(hub, command, "p/last", "text")
    assert command("services", "get", "p/last", "--url", url(hub)).stdout == b"text"


def test_a_change_that_is_not_taken_is_told(
    hub: HubProcess, run: Run, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(hub, command, "p/object", "{}")
    monkeypatch.setattr(services, "_ECHO_SECONDS", 1.0)
    done = run("services", "put", "p/object", "no object", "--url", hub.url("spp"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "does not show the change of 'p/object'" in done.stderr
    assert "of a kind that cannot take it" in done.stderr


def test_no_services(tmp_path: Path, command: Command) -> None:
    with HubProcess.start(tmp_path) as hub:
        assert facts(command("services", "list", "--url", url(hub))) == []
        with Terminal("services", "list", "--url", url(hub)) as terminal:
            assert terminal.wait() == 0
        assert terminal.shown == "there are no services\n"
        hub.terminate()


def test_one_change_at_a_time(hub: HubProcess, command: Command, tmp_path: Path) -> None:
    for arguments in (["x"], ["x", "1", "--file", tmp_path / "f"]):
        done = command("services", "put", *arguments, "--url", hub.url("spp"))
        assert (done.returncode, done.stderr) == (2, b"headrace: expected a CHANGE or --file FILE\n")
