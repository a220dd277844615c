"""Commands over TLS: their options, saved contexts, and what a hub of the same machine tells them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from tests.certificates import Authority, Certificate
from tests.tls.conftest import TlsHub
from typer.testing import CliRunner, Result

from headrace.cli.app import app
from headrace.cli.hubs import contexts
from headrace.cli.hubs.running_hub import RunningHub, find_running_hub
from headrace.errors import UnreachableError
from headrace.testing import Hub

CLIENT = "0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def hub_logs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands log to a stderr that is gone when they end, and the hub is in this process."""
    monkeypatch.setattr("headrace.cli.terminal.stderr.log_briefly", lambda: None)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def https(tls: TlsHub) -> str:
    return f"https://{tls.hub.doors['http']}"


def test_an_authority_by_option_or_by_variable(tls: TlsHub) -> None:
    url = tls.hub.url("tube+tls")
    told = run("pub", "--url", url, "hello")
    assert told.exit_code == 1
    assert "--ca FILE" in told.stderr
    assert run("--ca", tls.ca, "pub", "--url", url, "hello").exit_code == 0
    # The option is an environment variable to all that the command starts.
    assert os.environ["HEADRACE_CA"] == tls.ca
    assert run("pub", "--url", tls.hub.url("wss"), "hello").exit_code == 0
    assert run("pub", "--url", tls.hub.url("publisher+tls"), "hello").exit_code == 0
    assert run("pub", "--url", tls.hub.url("fyrehose+tls"), "hello").exit_code == 0
    assert json.loads(run("services", "list", "--url", url).stdout) == []
    top = run("top", "--url", https(tls), "--count", 1, "--json")
    assert top.exit_code == 0, top.stderr


def test_an_unknown_authority_at_http(tls: TlsHub) -> None:
    top = run("top", "--url", https(tls), "--count", 1)
    assert top.exit_code == 1
    assert "--ca FILE" in top.stderr


def test_a_saved_context(tls: TlsHub, tmp_path: Path) -> None:
    added = run("context", "add", "mill", tls.hub.url("tube+tls"), "--ca", tls.ca)
    assert added.exit_code == 0, added.stderr
    file = contexts.file_of_contexts()
    assert file.is_relative_to(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    published = run("pub", "hello")
    assert published.exit_code == 0, published.stderr
    assert run("consumers", "list").exit_code == 0
    run("context", "add", "other", "tube://127.0.0.1:1")
    assert [(each["name"], each["current"]) for each in json.loads(run("context", "list").stdout)] == [
        ("mill", False),
        ("other", True),
    ]
    os.environ.pop("HEADRACE_CA", None)
    assert run("--context", "mill", "pub", "hello").exit_code == 0
    os.environ.pop("HEADRACE_CONTEXT")
    assert run("pub", "hello").exit_code == 1
    assert run("context", "use", "mill").exit_code == 0
    assert run("pub", "hello").exit_code == 0
    assert run("context", "remove", "mill").exit_code == 0
    assert run("context", "use", "mill").exit_code == 2
    assert json.loads(run("context", "list").stdout)[0]["name"] == "other"


def test_a_context_has_credentials_for_its_own_hub_only(tls: TlsHub, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("swordfish\n")
    key.chmod(0o600)
    settings = {
        "tls.cert": str(tls.certificate.cert),
        "tls.key": str(tls.certificate.key),
        "auth.required": True,
        f"auth.clients.{CLIENT}": "swordfish",
    }
    with Hub(settings) as hub:
        saved = ("--ca", tls.ca, "--client-id", CLIENT, "--key-file", key)
        run("context", "add", "locked", hub.url("tube+tls"), *saved)
        assert "swordfish" not in contexts.file_of_contexts().read_text()
        published = run("pub", "hello")
        assert published.exit_code == 0, published.stderr
        elsewhere = run("pub", "--url", hub.url("tube+tls"), "hello")
        assert elsewhere.exit_code == 1
        assert "swordfish" not in elsewhere.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "hub.example"), "names no hub"),
        (("a", "pigeon://roof"), "names no hub"),
        (("a", "tube+tls://h", "--ca", "/nowhere.pem"), "no such file"),
        (("a", "tube://h", "--ca", "/etc/hostname"), "save tube+tls://"),
        (("a", "tube://h", "--client-id", CLIENT), "belong together"),
        (("", "tube://h"), "a context's name"),
    ],
)
def test_what_is_no_context(arguments: tuple[str, ...], message: str) -> None:
    told = run("context", "add", *arguments)
    assert told.exit_code == 2
    assert message in told.stderr
    assert not contexts.file_of_contexts().exists()


def test_a_damaged_file_of_contexts_is_told() -> None:
    file = contexts.file_of_contexts()
    file.parent.mkdir(parents=True)
    file.write_text("{")
    told = run("pub", "hello")
    assert told.exit_code == 2
    assert "is damaged" in told.stderr


def test_a_hub_of_this_machine_is_known_by_its_certificate(
    tmp_path: Path, authority: Authority, other_authority: Authority
) -> None:
    """Its certificate may have any name, and is expected as it is: not another one, whoever signed it."""
    certificate = authority.sign("elsewhere.example", ())
    settings = {"tls.cert": str(certificate.cert), "tls.key": str(certificate.key)}
    with Hub(settings, data=tmp_path) as hub:
        found = find_running_hub(tmp_path / "log")
        assert found is not None
        assert found.status()["head"] == 0
        other = other_authority.sign("elsewhere.example")
        with pytest.raises(UnreachableError, match="certificate"):
            RunningHub(1, dict(hub.doors), None, str(other.cert)).status()


def test_settings_with_tls_lead_to_a_local_hub(tls: TlsHub, certificate: Certificate) -> None:
    os.environ["HEADRACE_TLS__CERT"] = str(certificate.cert)
    os.environ["HEADRACE_TLS__KEY"] = str(certificate.key)
    os.environ["HEADRACE_LISTEN__TUBE_TCP"] = tls.hub.doors["tube_tcp"]
    published = run("pub", "hello")
    assert published.exit_code == 0, published.stderr
