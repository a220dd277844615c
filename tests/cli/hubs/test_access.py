"""Commands and a hub that wants to know who asks."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.cli.conftest import Command, Run
from tests.cli.use.test_pub_link import facts, url
from tests.hubprocess import HubProcess

from headrace.cli.hubs.access import Credentials
from headrace.cli.use import services

CLIENT, KEY = "00112233445566778899aabb", "a key of its own"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that serves only whom it knows."""
    directory = tmp_path_factory.mktemp("guarded")
    with HubProcess.start(directory, "auth.required=true", f"auth.clients.{CLIENT}={KEY}") as running:
        yield running


def asking(hub: HubProcess) -> list[list[object]]:
    """Every command that asks a hub."""
    link = ["--url", url(hub)]
    spp = ["--url", hub.url("spp")]
    return [
        ["pub", "hello", "--topic", "t", *link],
        ["tail", "--from", "earliest", "--count", 1, *link],
        ["services", "create", "s", *link],
        ["services", "put", "s", "{}", *spp],
        ["services", "watch", "s", "--count", 1, *spp],
        ["services", "get", "s", *link],
        ["services", "list", *link],
        ["services", "remove", "s", *link],
        ["consumers", "list", *link],
        ["log", "seal", "--data", hub.data],
        ["top", "--count", 1, "--url", f"http://{hub.doors['http']}"],
    ]


@pytest.mark.slow
def test_whom_the_hub_knows_may_ask(
    guarded: HubProcess, run: Run, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KEY", KEY)
    for arguments in asking(guarded):
        if arguments[0] == "tail" or arguments[1] == "watch":
            # They write to their process's stdout, as it is.
            done = command(*arguments, "--client-id", CLIENT)
            assert (done.returncode, done.stderr) == (0, b""), arguments
        else:
            result = run(*arguments, "--client-id", CLIENT)
            assert (result.exit_code, result.stderr) == (0, ""), arguments
    # Without the option, the environment says it.
    monkeypatch.setenv("HEADRACE_CLIENT_ID", CLIENT)
    assert facts(command("consumers", "list", "--url", url(guarded))) == []
    # Log entries are the newest: only the hub knows how far it has committed them, and tells us.
    told = facts(command("log", "info", "--data", guarded.data))
    assert told["head"] == told["tail"]
    found = json.loads(command("doctor", "--data", guarded.data).stdout)
    assert "hub" in [each["subject"] for each in found]


def test_the_key_may_be_a_setting(guarded: HubProcess, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"HEADRACE_AUTH__CLIENTS__{CLIENT}", KEY)
    assert run("services", "list", "--url", url(guarded), "--client-id", CLIENT.upper()).exit_code == 0


def test_nobody_else_may(guarded: HubProcess, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_ECHO_SECONDS", 0.5)
    for arguments in asking(guarded):
        if arguments[:2] == ["services", "watch"]:
            continue  # It waits for the service to be offered.
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (1, ""), arguments
        assert result.stderr.count("\n") == 1
    assert "--client-id" in result.stderr
    monkeypatch.setenv("HEADRACE_KEY", "another key")
    for arguments in asking(guarded):
        result = run(*arguments, "--client-id", CLIENT)
        assert (result.exit_code, result.stdout) == (1, ""), arguments


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tail", "--client-id", CLIENT], f"the key of client {CLIENT} is not known"),
        (["tail", "--client-id", "me"], "the key of client me is not known"),
        (["pub", "x", "--door", "fyrehose", "--client-id", CLIENT], "the fyrehose door knows no clients"),
        (["pub", "x", "--door", "publisher", "--client-id", CLIENT], "the publisher door knows no clients"),
        (["sub", "--client-id", CLIENT], "--client-id is for --where"),
    ],
)
def test_asked_wrongly(run: Run, arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr


def test_a_key_is_never_shown() -> None:
    assert KEY not in repr(Credentials(CLIENT, KEY))
