"""What is in deploy/, as far as it can be tried where no container engine runs: by linters, and against a real hub."""

from __future__ import annotations

import http.client
import json
import os
import re
import runpy
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.hubprocess import HubProcess
from tests.system.observing import eventually

import headrace
from headrace.config import DOORS, Settings, load
from headrace.hub.access.exposure import missing_guard
from headrace.spark.runtime import standalone
from headrace.web.metric_names import reference

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False
    )


def tool(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def test_the_dockerfile() -> None:
    done = run(tool("hadolint"), DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""


def test_the_image_opens_every_door_to_its_network() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    set_there = dict(re.findall(r"(HEADRACE_\w+)=(\S+)", text.partition("FROM")[2]))
    settings = load(environ=set_there)
    for door in DOORS:
        default = getattr(Settings().listen, door)
        assert str(getattr(settings.listen, door)) == f"0.0.0.0:{default.port}"
        assert re.search(rf"^EXPOSE.*\b{default.port}\b", text, re.MULTILINE), door


def test_the_image_asks_who_comes() -> None:
    set_there = dict(
        re.findall(r"(HEADRACE_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text().partition("FROM")[2])
    )
    settings = load(environ=set_there)
    assert settings.auth.required
    assert settings.auth.first_key == settings.node.data / "first-key"
    assert all(missing_guard(door, settings) is None for door in DOORS)


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    """What a service of a compose file is told, its variables as the shell has them."""
    given = service.get("environment", {})
    pairs = given.items() if isinstance(given, dict) else (line.split("=", 1) for line in given)
    shell = {"CLIENT_ID": "0123456789abcdef01234567", "CLIENT_KEY": "secret", "CLUSTER_KEY": "k"}

    def expand(text: str) -> str:
        return re.sub(r"\$\{(\w+):[?-]([^}]*)\}", lambda found: shell.get(found[1], found[2]), text)

    return {expand(name): expand(value) for name, value in pairs}


def test_a_secret_takes_the_place_of_the_first_key() -> None:
    path = DEPLOY / "compose.secret.yaml"
    done = run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path)
    assert done.returncode == 0, done.stdout
    content = yaml.safe_load(path.read_text())
    beside = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in content["services"].items():
        assert name in beside
        where = load(environ=environment_of(service)).auth.first_key
        assert where is not None
        assert [where.name] == service["secrets"] == list(content["secrets"])


def test_the_nodes_of_the_cluster_know_their_client_and_each_other() -> None:
    content = yaml.safe_load((DEPLOY / "compose.cluster.yaml").read_text())
    set_there = dict(
        re.findall(r"(HEADRACE_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text().partition("FROM")[2])
    )
    client = environment_of(content["services"]["pipeline"])
    for name in ("hub-1", "hub-2", "hub-3"):
        told = {**set_there, **environment_of(content["services"][name])}
        settings = load(environ=told, sets=["cluster.peers=hub-1:7878,hub-2:7878,hub-3:7878"])
        assert settings.auth.clients[client["HEADRACE_CLIENT_ID"]].reveal() == client["HEADRACE_KEY"]
        assert all(missing_guard(door, settings) is None for door in DOORS)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cluster.yaml"])
def test_compose(name: str) -> None:
    done = run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / name)
    assert done.returncode == 0, done.stdout
    content = yaml.safe_load((DEPLOY / name).read_text())
    for service in content["services"].values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for published in service.get("ports", ()):
            assert published.startswith("127.0.0.1:"), "nothing is open to a network until somebody says so"
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in content["volumes"]
        load(environ=environment_of(service))


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cluster.yaml"])
def test_the_commands_in_compose_exist(name: str) -> None:
    content = yaml.safe_load((DEPLOY / name).read_text())
    for service in content["services"].values():
        if "command" not in service:
            continue
        words = [word for word in service["command"] if not word.startswith("-")]
        command = words[:2] if words[0] == "pipeline" else words[:1]
        options = {word for word in service["command"] if word.startswith("--")}
        told = run(sys.executable, "-m", "headrace", *command, "--help").stdout
        assert {option for option in options if option not in told} == set()


def test_the_modules_in_compose_take_what_they_are_told() -> None:
    content = yaml.safe_load((DEPLOY / "compose.cluster.yaml").read_text())
    told = [service["entrypoint"] for service in content["services"].values() if "entrypoint" in service]
    assert len(told) == 2
    for python, flag, module, *arguments in told:
        assert (python, flag, module) == ("python", "-m", standalone.__name__)
        assert standalone.command(arguments)[1].startswith("org.apache.spark.deploy.")


def test_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("NO systemd-analyze: the unit file is not checked")
    # Only where Headrace will be installed can its path be an executable.
    here = (DEPLOY / "headrace.service").read_text().replace("/opt/headrace/bin/headrace", sys.executable)
    (tmp_path / "headrace.service").write_text(here)
    done = run(analyze, "verify", tmp_path / "headrace.service")
    assert (done.returncode, done.stderr) == (0, "")


def unit_line() -> tuple[list[str], dict[str, str]]:
    """The command and the environment of the systemd unit."""
    text = (DEPLOY / "headrace.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    return command.split(), dict(re.findall(r"^Environment=(\w+)=(\S+)", text, re.MULTILINE))


def image_line() -> tuple[list[str], dict[str, str]]:
    """The command and the environment of the image."""
    text = (DEPLOY / "Dockerfile").read_text().rpartition("FROM")[2]
    parts = [
        json.loads(re.findall(rf"^{word} (\[.+\])$", text, re.MULTILINE)[-1])
        for word in ("ENTRYPOINT", "CMD")
    ]
    return [*parts[0], *parts[1]], dict(re.findall(r"((?:HEADRACE|NUMBA)_\w+)=(\S+)", text))


@pytest.mark.parametrize("line", [unit_line, image_line], ids=["systemd", "container"])
def test_the_command_line_starts_a_hub_that_shows_its_first_key_once(
    tmp_path: Path, line: Callable[[], tuple[list[str], dict[str, str]]]
) -> None:
    """As it is written, but for the directories, and for ports that are free here."""

    def here(text: str) -> str:
        moved = re.sub(r"^/(?:var/lib/headrace|var/cache/headrace|data)\b", str(tmp_path / "data"), text)
        return re.sub(r"^0\.0\.0\.0:\d+$", "0.0.0.0:0", moved)

    command, told = line()
    ready = tmp_path / "ready"
    ports = {f"HEADRACE_LISTEN__{door.upper()}": "127.0.0.1:0" for door in DOORS}
    environ = {**os.environ, **ports, **{name: here(value) for name, value in told.items()}}
    del environ["NUMBA_CACHE_DIR"]  # the tests' own is filled
    arguments = [sys.executable, "-m", "headrace", *map(here, command[1:]), "--ready-file", str(ready)]
    shown = []
    for _ in range(2):
        with subprocess.Popen(arguments, env=environ, stderr=subprocess.PIPE, text=True) as hub:
            try:
                eventually("it is ready", lambda: ready.exists() or hub.poll() is not None)
                _, _, port = json.loads(ready.read_text())["http"].rpartition(":")
                with closing(http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)) as asking:
                    asking.request("GET", "/readyz")
                    assert asking.getresponse().status == 200
                    asking.close()
                    asking.request("GET", "/api/messages")
                    assert asking.getresponse().status == 401
            finally:
                hub.send_signal(signal.SIGTERM)
                stderr = hub.communicate(timeout=60)[1]
        assert hub.returncode == 0, stderr
        shown.append("HEADRACE_KEY" in stderr)
    assert shown == [True, False]
    assert stat.S_IMODE((tmp_path / "data" / "first-key").stat().st_mode) == 0o600


def test_the_example_settings() -> None:
    settings = load(DEPLOY / "headrace.toml", environ={})
    assert settings.auth.required
    assert settings.listen.fyrehose is None
    assert missing_guard("tube_tcp", settings) is None


def test_the_unit_asks_who_comes() -> None:
    told = dict(
        re.findall(
            r"^Environment=(HEADRACE_\w+)=(\S+)", (DEPLOY / "headrace.service").read_text(), re.MULTILINE
        )
    )
    settings = load(environ=told)
    assert settings.auth.required
    assert settings.auth.first_key == Path("/var/lib/headrace/first-key")


def test_the_grafana_dashboard_is_what_its_tool_writes_and_asks_for_what_there_is(tmp_path: Path) -> None:
    written = json.loads((DEPLOY / "grafana.json").read_text())
    assert written == runpy.run_path(str(ROOT / "tools" / "grafana.py"))["dashboard"]()
    asked = set(re.findall(r"headrace_\w+", json.dumps(written)))
    with HubProcess.start(tmp_path) as hub:
        with headrace.connect_sync(f"fyrehose://{hub.doors['fyrehose']}", from_seq=1) as backbone:
            backbone.publish(b"one")
            next(iter(backbone))
        with socket.create_connection(hub.address("fyrehose")) as stranger:
            stranger.sendall(b"\xff")
            stranger.recv(1)
        from urllib.request import urlopen

        with urlopen(f"http://{hub.doors['http']}/metrics", timeout=30) as answer:
            given = set(re.findall(r"^(headrace_\w+)", answer.read().decode(), re.MULTILINE))
    assert asked - given == set()


def test_the_alert_rules_ask_for_metrics_that_there_are() -> None:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    asked = {name for rule in rules for name in re.findall(r"headrace_\w+", rule["expr"])}
    assert asked
    known = reference()
    assert [name for name in asked if f"`{name}" not in known] == []
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
