"""A hub that is used and abused shows no secret: not in its logs, its answers, its errors, or what commands print."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.cli.conftest import Command
from tests.cli.conftest import command as command
from tests.hubprocess import HubProcess

import headrace
from headrace.errors import HeadraceError

CLIENT = "0123456789abcdef01234567"
SECRETS = {
    "the key of a client": "key-of-the-client-0",
    "the key in a file": "key-in-a-file-1",
    "a bearer token": "bearer-token-2",
    "the key of the cluster": "key-of-the-cluster-3",
    "a key that somebody mistyped": "mistyped-key-4",
    "a token that somebody mistyped": "mistyped-token-5",
}
KEY, FILED, TOKEN, CLUSTER, MISTYPED, MISTYPED_TOKEN = SECRETS.values()
FILED_CLIENT = "fedcba9876543210fedcba98"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    (tmp_path / "filed.key").write_text(FILED)
    (tmp_path / "filed.key").chmod(0o600)
    config = tmp_path / "hub.toml"
    config.write_text(
        f"""
        [auth]
        required = true
        clients.{CLIENT} = "{KEY}"
        [cluster]
        key = "{CLUSTER}"
        [access.filed]
        client_id = "{FILED_CLIENT}"
        key_file = "{tmp_path}/filed.key"
        token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"
        allow = ["read **"]
        """
    )
    options = ("--config", str(config), "--log-level", "debug", "--log-format", "json")
    with HubProcess.start(tmp_path / "hub", options=options) as hub:
        yield hub


def test_every_secret_stays_one(
    hub: HubProcess, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bytes] = []
    # Clients, right and wrong.
    for door in ("tube_tcp", "spp", "sdk"):
        scheme = {"tube_tcp": "tube", "spp": "spp", "sdk": "sdk"}[door]
        for client, key in ((CLIENT, KEY), (FILED_CLIENT, FILED), (CLIENT, MISTYPED), ("0" * 24, MISTYPED)):
            try:
                with headrace.connect_sync(f"{scheme}://{hub.doors[door]}", client_id=client, key=key) as one:
                    told.append(repr(one).encode())
            except HeadraceError as error:
                told.append(f"{error!r} {error} {error.__cause__!r}".encode())
    # The API, in every way it may be asked.
    where = f"http://{hub.doors['http']}"
    status, *paths = ("/api/status", "/api/me", "/api/settings", "/api/connections", "/metrics", "/readyz")
    basics = [b64encode(f"{CLIENT}:{key}".encode()).decode() for key in (KEY, MISTYPED)]
    right, wrong = (
        (f"Basic {basics[0]}", f"Bearer {TOKEN}"),
        (f"Basic {basics[1]}", f"Bearer {MISTYPED_TOKEN}"),
    )
    told += [ask(where + path, Authorization=given) for given in right for path in (status, *paths)]
    told += [ask(where + status, Authorization=given) for given in (*wrong, "Basic ?", f"Other {MISTYPED}")]
    told.append(ask(f"{where}/nowhere?key={MISTYPED}"))
    cookie = ""
    for body in ({"client_id": CLIENT, "key": KEY}, {"token": MISTYPED_TOKEN}, {"key": KEY, "x": MISTYPED}):
        answer = ask(f"{where}/login", json.dumps(body).encode(), **{"X-Headrace": "1"})
        found = re.search(rb"Set-Cookie: [\w-]+=([\w-]+)", answer)
        # Only who has logged in is told.
        cookie = cookie if found is None else found[1].decode()
        told.append(answer.replace(cookie.encode(), b"") if cookie else answer)
    assert cookie
    told += [ask(where + path, Cookie=f"headrace-session={cookie}") for path in (status, *paths)]
    # SQL runs in a process that the hub has started, and knows its settings and its environment.
    for query in ("select * from duckdb_settings()", "select getenv('HEADRACE_KEY')"):
        asked = json.dumps({"query": query}).encode()
        told.append(ask(f"{where}/api/sql", asked, **{"Authorization": right[0], "X-Headrace": "1"}))
    # Strangers' bytes at every door.
    for door in hub.doors:
        with socket.create_connection(hub.address(door), timeout=20) as stranger:
            stranger.sendall(b"nonsense\r\n\r\n" + b"\xff" * 64)
            stranger.settimeout(0.2)
            with contextlib.suppress(OSError):
                told.append(stranger.recv(4096))
    # Commands beside the hub.
    monkeypatch.setenv("HEADRACE_CONFIG", str(tmp_path / "hub.toml"))
    monkeypatch.setenv("HEADRACE_CLIENT_ID", CLIENT)
    monkeypatch.setenv("HEADRACE_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    commands = (
        ("top", "--url", where, "--json", "--count", "1"),
        ("doctor", "--data", hub.data, "--json"),
        ("keys", "list", "--json"),
        ("audit", "--data", hub.data),
        ("tail", "--url", f"tube://{hub.doors['tube_tcp']}", "--count", "0"),
        ("serve", "--set", f"cluster.key={CLUSTER}", "--set", "log.fsync=sometimes"),
        ("context", "add", "mill", where, "--client-id", FILED_CLIENT, "--key-file", tmp_path / "filed.key"),
        ("context", "list"),
        ("services", "--url", f"tube://{hub.doors['tube_tcp']}", "--key", MISTYPED),
    )
    for arguments in commands:
        done = command(*arguments)
        told += [done.stdout, done.stderr]
    hub.terminate()
    kept = (hub.data, tmp_path / "config")
    files = [path for directory in kept for path in directory.rglob("*") if path.is_file()]
    everything = {
        "the hub's log": hub.stderr.encode(),
        "what was answered": b"\n".join(told),
        **{str(path): path.read_bytes() for path in files},
    }
    assert b"wrong_token" in everything["the hub's log"]
    assert CLIENT.encode() in everything["what was answered"]
    assert any("audit" in name for name in everything)
    assert any("contexts.json" in name for name in everything)
    shown = {
        (name, where)
        for name, secret in {**SECRETS, "a session": cookie, **dict(zip("ab", basics, strict=True))}.items()
        for where, content in everything.items()
        if secret.encode() in content
    }
    assert shown == set()


def ask(url: str, data: bytes | None = None, **headers: str) -> bytes:
    try:
        with urlopen(Request(url, data, headers), timeout=20) as answer:
            return bytes(str(answer.headers).encode() + answer.read())
    except HTTPError as error:
        return bytes(str(error.headers).encode() + error.read())
