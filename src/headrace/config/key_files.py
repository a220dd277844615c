"""The keys of principals: given in the settings, or in files that nobody but their owner may read."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from headrace.config.settings import Settings
from headrace.config.value_types import Secret
from headrace.errors import ConfigError, system_reason

_MOST = 4096
"""Maximum bytes of a key file: a longer one is something else."""


def keys_of(settings: Settings) -> Mapping[str, Secret]:
    """Return the key of each principal that has one, by the principal's name; key files are read."""
    keys = {}
    for name, entry in settings.access.items():
        if entry.key_file is not None:
            key = f"access.{name}.key_file"
            if entry.key:
                problem = f"a file, or access.{name}.key, and not both"
                raise ConfigError(key, str(entry.key_file), source=settings.source(key), expected=problem)
            keys[name] = read_key(entry.key_file, key, settings.source(key))
        elif entry.key:
            keys[name] = entry.key
    return keys


def key_of_client(settings: Settings, client_id: str) -> Secret | None:
    """Return the key of a client id, a principal's or one of ``auth.clients``."""
    for name, entry in settings.access.items():
        if entry.client_id == client_id.lower():
            return keys_of(settings).get(name)
    return settings.auth.clients.get(client_id.lower())


def key_files(settings: Settings) -> list[Path]:
    """Return the files that :func:`keys_of` reads, and the first client's key file."""
    first = settings.auth.first_key
    files = [entry.key_file for entry in settings.access.values() if entry.key_file is not None]
    return files if first is None else [*files, first]


def read_key(path: Path, key: str, source: str) -> Secret:
    """Read a key file; an error names the setting ``key`` and its ``source``, never what is in the file."""

    def refuse(expected: str) -> ConfigError:
        return ConfigError(key, str(path), source=source, expected=expected)

    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = file.read(_MOST + 1)
    except OSError as error:
        raise refuse(f"a file that can be read; {system_reason(error)}") from None
    if mode & 0o077:
        raise refuse(f"a file that only its owner may read (chmod 600), not one of mode {mode:o}")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(content) > _MOST or not text.isprintable():
        raise refuse(f"a file with one line of text, at most {_MOST} bytes")
    return Secret(text)
