"""``headrace keys``: what it makes works, and shows no secret."""

from __future__ import annotations

import hashlib
import json
import ssl
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.net.raw import running_hub

from headrace.cli.operate.keys.principal_tables import append_table, remove_table
from headrace.client.link.client import LinkClient
from headrace.config import load
from headrace.config.key_files import keys_of
from headrace.errors import UsageError
from headrace.hub.access.principal import Action
from headrace.hub.access.principals import Principals


def test_new_makes_what_the_hub_and_the_client_need(run: Run, tmp_path: Path) -> None:
    done = run(
        "keys",
        "new",
        "gateway-7",
        "--dir",
        tmp_path / "keys",
        "--allow",
        "publish fleet/7/**",
        "--deny",
        "read a",
    )
    assert done.exit_code == 0, done.output
    (tmp_path / "hub.toml").write_text(done.stdout)
    settings = load(tmp_path / "hub.toml", environ={})
    table = Principals(settings, keys_of(settings))
    key, token = ((tmp_path / "keys" / f"gateway-7.{kind}").read_text().strip() for kind in ("key", "token"))
    client = settings.access["gateway-7"].client_id
    made = table.of_token(token)
    assert made is not None
    assert made is table.of_client_id(client)
    assert table.keys[client].reveal() == key
    assert made.may(Action.PUBLISH, "fleet/7/x")
    assert not made.may(Action.READ, "fleet/7/x")
    assert settings.access["gateway-7"].deny == ("read a",)
    for secret in (key, token):
        assert len(secret) >= 40
        assert secret not in done.output
    for path in (tmp_path / "keys").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_nothing_is_replaced_and_nothing_is_left_of_what_failed(run: Run, tmp_path: Path) -> None:
    assert run("keys", "new", "a", "--dir", tmp_path).exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run("keys", "new", "a", "--dir", tmp_path).exit_code == 2
    for wrong in (
        ("keys", "new", "a b"),
        ("keys", "new", "0" * 24),
        ("keys", "new", "b", "--allow", "dance x"),
    ):
        assert run(*wrong, "--dir", tmp_path).exit_code == 2
    (tmp_path / "b.token").write_text("mine")
    assert run("keys", "new", "b", "--dir", tmp_path).exit_code == 2
    assert not (tmp_path / "b.key").exists()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {**before, "b.token": b"mine"}


def test_append_list_and_revoke(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text("# Our hub.\n[auth]\nrequired = true  # always\n\n[access.old]\nallow = []\n")
    for name in ("ada", "bob"):
        done = run(
            *(
                "keys",
                "new",
                name,
                "--dir",
                tmp_path / "keys",
                "--allow",
                "all",
                "--append",
                "--config",
                config,
            )
        )
        assert (done.exit_code, done.stdout) == (0, "")
    listed = json.loads(run("keys", "list", "--config", config, "--json").stdout)
    assert [each["name"] for each in listed] == ["old", "ada", "bob"]
    assert listed[1]["proofs"] == [f"key in {tmp_path}/keys/ada.key", "token"]
    assert run("keys", "revoke", "ada", "--config", config).exit_code == 2, "there is nobody to ask"
    done = run("keys", "revoke", "ada", "--config", config, "--yes")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == ["bob.key", "bob.token"]
    text = config.read_text()
    assert text.startswith("# Our hub.\n[auth]\nrequired = true  # always\n\n[access.old]")
    assert set(tomllib.loads(text)["access"]) == {"old", "bob"}
    assert run("keys", "revoke", "ada", "--config", config, "--yes").exit_code == 2
    (tmp_path / "keys" / "bob.key").chmod(0o644)
    assert "chmod 600" in run("keys", "list", "--config", config, "--json").stdout


def test_the_first_client_is_revoked_by_its_id(run: Run, tmp_path: Path) -> None:
    client, first, config = "0123456789abcdef01234567", tmp_path / "first-key", tmp_path / "hub.toml"
    first.write_text(f"{client}:secret\n")
    config.write_text(f'[auth]\nfirst_key = "{first}"\n')
    listed = run("keys", "list", "--config", config, "--json").stdout
    assert client in listed
    assert "secret" not in listed
    assert run("keys", "revoke", client, "--config", config, "--yes").exit_code == 0
    assert not first.exists()


@pytest.mark.parametrize(
    "text",
    [
        "access.ada.allow = []\n",
        "access = {ada = {allow = []}}\n",
        "[access]\nada = {allow = []}\n",
        "[access.ada]\nallow = '''\n[x]\n'''\n",
    ],
)
def test_what_is_written_another_way_is_left_to_people(tmp_path: Path, text: str) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(text)
    with pytest.raises(UsageError, match="by hand"):
        remove_table(config, "ada")
    assert config.read_text() == text
    with pytest.raises(UsageError, match="already"):
        append_table(config, "ada", "[access.ada]")


def test_a_table_is_removed_however_it_is_spaced(tmp_path: Path) -> None:
    config = tmp_path / "hub.toml"
    config.write_text(
        '[log]\nfsync = "always"\n  [ access . "ada" ] # hers\n  allow = ["read a"]\n\n[node]\nname = "x"\n'
    )
    assert remove_table(config, "ada")
    assert config.read_text() == '[log]\nfsync = "always"\n[node]\nname = "x"\n'
    assert not remove_table(config, "ada")


async def test_certificates_that_a_hub_and_a_client_take(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    done = run("keys", "tls", "--dir", directory, "--client", "ada.example")
    assert done.exit_code == 0, done.output
    said = tomllib.loads(done.stdout)
    assert said["access"]["ada-example"]["certificate"] == "ada.example"
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert {name: mode for name, mode in modes.items() if name.endswith(".key")} == dict.fromkeys(
        ("ca.key", "hub.key", "ada.example.key"), 0o600
    )
    assert "PRIVATE" not in done.output
    sets = [f"tls.{name}={path}" for name, path in said["tls"].items()]
    sets += ["auth.required=true", "access.ada.certificate=ada.example", "access.ada.allow=all"]
    async with running_hub(tmp_path / "data", *sets) as server:
        url = f"tube+tls://localhost:{server.doors['tube_tcp'].rpartition(':')[2]}"
        own = {"cert": directory / "ada.example.pem", "cert_key": directory / "ada.example.key"}
        async with LinkClient.at(url, ca=directory / "ca.pem", **own) as link:
            assert (await link.publish(b"x")).first == 1


def test_the_authority_stays_when_clients_are_added(run: Run, tmp_path: Path) -> None:
    assert run("keys", "tls", "--dir", tmp_path).exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run("keys", "tls", "--dir", tmp_path, "--client", "ada").exit_code == 0
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert run("keys", "tls", "--dir", tmp_path, "--client", "ada").exit_code == 2
    for wrong in ("ca", "hub", "../x", "a b", ""):
        assert run("keys", "tls", "--dir", tmp_path, "--client", wrong).exit_code == 2
    assert run("keys", "tls", "--dir", tmp_path, "--host", "hub.example", "--host", "10.0.0.1").exit_code == 0
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "hub.pem", tmp_path / "hub.key")
    assert (tmp_path / "hub.pem").read_bytes() != before["hub.pem"]


def test_a_key_on_the_command_line_is_warned_of(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = "0123456789abcdef01234567"
    secret = hashlib.sha256(b"x").hexdigest()
    run("keys", "list", "--set", f"auth.clients.{client}={secret}", "--set", "log.fsync=always")
    assert f"auth.clients.{client} is on the command line" in caplog.text
    assert f"HEADRACE_AUTH__CLIENTS__{client.upper()}" in caplog.text
    assert "log.fsync" not in caplog.text
    assert secret not in caplog.text
