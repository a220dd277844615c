"""The sources of settings: the file, the environment and the command line; each overrides those before it.

A variable's name is its key in capitals, with two underscores for each dot: ``HEADRACE_LOG__FSYNC`` is ``log.fsync``.
The text of a variable or of ``--set`` is a TOML value, or else plain text.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from headrace.config.first_key import KEY as FIRST_KEY
from headrace.config.first_key import read_first_key
from headrace.config.settings import LoadedFrom, RawValue, Settings, find
from headrace.errors import ConfigError

PREFIX = "HEADRACE_"

FILE_VARIABLE = f"{PREFIX}CONFIG"
"""The TOML file, where ``--config`` does not name it."""

KEY_VARIABLE = f"{PREFIX}KEY"
"""The key of a client."""

CLIENT_VARIABLE = f"{PREFIX}CLIENT_ID"
"""The id of that client, where no option names it."""

CA_VARIABLE = f"{PREFIX}CA"
CERT_VARIABLE = f"{PREFIX}CERT"
CERT_KEY_VARIABLE = f"{PREFIX}CERT_KEY"
PIN_VARIABLE = f"{PREFIX}PIN"
"""The files of a client's TLS: the authority that it trusts, its own certificate and that one's key, and the one
certificate that it expects."""

CONTEXT_VARIABLE = f"{PREFIX}CONTEXT"
"""The saved context that the commands use, where ``--context`` does not name it."""

RESERVED = frozenset(
    {
        FILE_VARIABLE,
        KEY_VARIABLE,
        CLIENT_VARIABLE,
        CA_VARIABLE,
        CERT_VARIABLE,
        CERT_KEY_VARIABLE,
        PIN_VARIABLE,
        CONTEXT_VARIABLE,
        f"{PREFIX}SOAK",
        f"{PREFIX}SEED",
        f"{PREFIX}DEBUG",
        f"{PREFIX}SCREENSHOTS",
    }
)
"""Variables that are not settings: the file, a client's credentials and TLS, and the test suite's own."""

KUBERNETES = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)",
    re.ASCII,
)
"""Variables that Kubernetes sets in every container beside a service named ``headrace…``."""


def load(
    path: Path | None = None, *, environ: Mapping[str, str] = os.environ, sets: Sequence[str] = ()
) -> Settings:
    """Load the settings. ``path`` is the TOML file; by default ``HEADRACE_CONFIG`` names it, or there is none.

    ``sets`` are ``section.key=value``; a later one wins.
    """
    named_by = "--config"
    if path is None and environ.get(FILE_VARIABLE):
        path, named_by = Path(environ[FILE_VARIABLE]), FILE_VARIABLE
    file = () if path is None else from_file(path, named_by)
    settings = Settings().gather(chain(file, from_environment(environ), map(from_set, sets)))
    where = settings.auth.first_key
    if where is not None and (first := read_first_key(where, settings.source(FIRST_KEY))) is not None:
        client, key = first
        settings = settings.gather([RawValue(f"auth.clients.{client}", key.reveal(), str(where))])
    ours = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    return replace(settings, loaded=LoadedFrom(path, ours, tuple(sets)), overrides=())


def load_again(settings: Settings) -> Settings:
    """Load settings from their sources again, as these are now, and keep what was overridden since."""
    if settings.loaded is None:
        return settings
    path, environ, sets = settings.loaded
    again = load(path, environ=environ, sets=sets)
    for values, source in settings.overrides:
        again = again.override(values, source=source)
    return again


def from_file(path: Path, named_by: str) -> Iterator[RawValue]:
    """Read a TOML file; an error about a missing file blames ``named_by``."""
    try:
        sections = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problem = f"a file that can be read; {error.strerror}"
        raise ConfigError(str(path), None, source=named_by, expected=problem) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), None, source=named_by, expected=f"TOML in UTF-8; {error}") from None
    for section, settings in sections.items():
        if isinstance(settings, dict):
            for name, value in settings.items():
                yield RawValue(f"{section}.{name}", value, str(path))
        else:
            yield RawValue(section, settings, str(path))


def from_environment(environ: Mapping[str, str]) -> Iterator[RawValue]:
    """Read the variables; one with our prefix that is not a setting is refused as a typing error."""
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        if KUBERNETES.fullmatch(variable) and "__" not in variable:
            continue
        key = variable.removeprefix(PREFIX).replace("__", ".").lower()
        find(key, "the environment", spell=variable_of)
        yield RawValue(key, environ[variable].strip(), variable, typed=True)


def from_set(text: str) -> RawValue:
    """Parse one ``--set``."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(key.strip(), None, source="--set", expected="section.key=value")
    return RawValue(key.strip(), value.strip(), "--set", typed=True)


def variable_of(key: str) -> str:
    """Return the variable of a key.

    >>> variable_of("log.fsync")
    'HEADRACE_LOG__FSYNC'
    """
    return PREFIX + key.replace(".", "__").upper()
