"""A hub that nobody has configured has one client, whose key is shown once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headrace.cli.hubs.first_key import with_first_key
from headrace.cli.terminal.options import find_credentials
from headrace.config import load
from headrace.errors import ConfigError

CLIENT = "0123456789abcdef01234567"


def test_it_is_made_shown_once_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "data" / "first-key"
    sets = ["auth.required=true", f"auth.first_key={path}"]
    with caplog.at_level(logging.WARNING, "headrace"):
        [(client, key)] = with_first_key(load(environ={}, sets=sets)).auth.clients.items()
        assert len(key.reveal()) >= 32
        assert caplog.text.count(key.reveal()) == 1
        assert f"HEADRACE_CLIENT_ID={client}" in caplog.text
        assert path.stat().st_mode & 0o777 == 0o600
        again = with_first_key(load(environ={}, sets=sets))
        assert again.auth.clients == {client: key}
        assert caplog.text.count(key.reveal()) == 1
    assert key.reveal() not in repr(again)


def test_a_secret_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{CLIENT.upper()}:of:mine\n")
    monkeypatch.setenv("HEADRACE_AUTH__FIRST_KEY", str(path))
    settings = with_first_key(load())
    assert {name: key.reveal() for name, key in settings.auth.clients.items()} == {CLIENT: "of:mine"}
    # Commands beside the hub use it, unless somebody names another client.
    found = find_credentials(None)
    assert found is not None
    assert (found.id, found.key) == (CLIENT, "of:mine")


@pytest.mark.parametrize("other", [f"auth.clients.{CLIENT}=key", "access.reader.allow=read **"])
def test_none_is_made_where_there_are_others(tmp_path: Path, other: str) -> None:
    path = tmp_path / "first-key"
    settings = load(environ={}, sets=[f"auth.first_key={path}", other])
    assert with_first_key(settings) is settings
    assert not path.exists()


@pytest.mark.parametrize(
    "content", ["", "a key", "xyz:key", f"{CLIENT}:", f"{CLIENT}:a\0b", f"{CLIENT}:{'x' * 5000}"]
)
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "first-key"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        load(environ={}, sets=[f"auth.first_key={path}"])
    assert "24 hex digits" in str(refused.value)
    assert not content or content not in str(refused.value)


def test_where_it_cannot_be_made_the_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"auth\.first_key"):
        with_first_key(load(environ={}, sets=[f"auth.first_key={tmp_path}/file/first-key"]))
