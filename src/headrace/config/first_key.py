"""The first client of a hub that nobody has configured: its id and key, in a file of one line, ``ID:KEY``.

A container or a service needs a client before there is anybody to configure one. ``auth.first_key`` names the file:
the hub makes it, unless the operator has provided it, for example as a container's secret.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from headrace.config.value_types import Secret, client_id
from headrace.errors import ConfigError, system_reason

KEY: Final = "auth.first_key"

_MOST: Final = 4096
"""Maximum bytes of the file: a longer one is something else."""
_EXPECTED: Final = "a file with one line, a client id of 24 hex digits, a colon and its key"


def read_first_key(path: Path, source: str) -> tuple[str, Secret] | None:
    """Read the client's id and key; ``None`` if there is no such file. Errors never show what is in it."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = f"a file that can be read; {system_reason(error)}"
        raise ConfigError(KEY, str(path), source=source, expected=problem) from None
    try:
        name, _, key = content.decode().strip().partition(":")
        client = client_id(name)
    except ValueError:
        raise ConfigError(KEY, str(path), source=source, expected=_EXPECTED) from None
    if not key or not key.isprintable() or len(content) > _MOST:
        raise ConfigError(KEY, str(path), source=source, expected=_EXPECTED)
    return client, Secret(key)


def make_first_key(path: Path, source: str) -> tuple[str, Secret]:
    """Make a client's id and key, and write them to a new file that only its owner may read."""
    client, key = secrets.token_hex(12), secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as stream:
            stream.write(f"{client}:{key}\n")
            stream.flush()
            os.fsync(file)
    except OSError as error:
        problem = f"a file that can be made; {system_reason(error)}"
        raise ConfigError(KEY, str(path), source=source, expected=problem) from None
    return client, Secret(key)
