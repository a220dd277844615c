"""Where settings come from: the file, the environment and the command line, in that order of strength.

A variable's name is its key in capitals, the dots doubled to underscores: ``HEADRACE_LOG__FSYNC`` is
``log.fsync``. The text of a variable or of ``--set`` is a TOML value, or itself where it is none.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from headrace.config.settings import Given, Settings, find
from headrace.errors import ConfigError

PREFIX = "HEADRACE_"

FILE_VARIABLE = f"{PREFIX}CONFIG"
"""Names the TOML file where ``--config`` does not."""

KEY_VARIABLE = f"{PREFIX}KEY"
"""Has the key by which a client proves that it is who it says."""

CLIENT_VARIABLE = f"{PREFIX}CLIENT_ID"
"""Says which client that is, where nothing else does."""

RESERVED = frozenset(
    {
        FILE_VARIABLE,
        KEY_VARIABLE,
        CLIENT_VARIABLE,
        f"{PREFIX}SOAK",
        f"{PREFIX}SEED",
        f"{PREFIX}DEBUG",
        f"{PREFIX}SCREENSHOTS",
    }
)
"""Variables that are no settings: the file's, who a client is, and the test suite's."""

KUBERNETES = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)",
    re.ASCII,
)
"""What Kubernetes puts into the environment of every container beside a service named ``headrace…``."""


def load(
    path: Path | None = None, *, environ: Mapping[str, str] = os.environ, sets: Sequence[str] = ()
) -> Settings:
    """Gather the settings. ``path`` is the TOML file; else ``HEADRACE_CONFIG`` names it, else there is none.

    ``sets`` are ``section.key=value``, a later one stronger than an earlier.
    """
    named_by = "--config"
    if path is None and environ.get(FILE_VARIABLE):
        path, named_by = Path(environ[FILE_VARIABLE]), FILE_VARIABLE
    file = () if path is None else from_file(path, named_by)
    return Settings().gather(chain(file, from_environment(environ), map(from_set, sets)))


def from_file(path: Path, named_by: str) -> Iterator[Given]:
    """What a TOML file says; ``named_by`` is blamed where there is no such file."""
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
                yield Given(f"{section}.{name}", value, str(path))
        else:
            yield Given(section, settings, str(path))


def from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """What the variables say; one of our name that is no setting is refused, being a slip of the pen."""
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        if KUBERNETES.fullmatch(variable) and "__" not in variable:
            continue
        key = variable.removeprefix(PREFIX).replace("__", ".").lower()
        find(key, "the environment", spell=variable_of)
        yield Given(key, environ[variable].strip(), variable, typed=True)


def from_set(text: str) -> Given:
    """What one ``--set`` says."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(key.strip(), None, source="--set", expected="section.key=value")
    return Given(key.strip(), value.strip(), "--set", typed=True)


def variable_of(key: str) -> str:
    """The variable of a key.

    >>> variable_of("log.fsync")
    'HEADRACE_LOG__FSYNC'
    """
    return PREFIX + key.replace(".", "__").upper()
