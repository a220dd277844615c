"""``keys revoke``: remove a principal from the hub's file, and the files with its secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.operate.keys.principal_tables import remove_table
from headrace.cli.terminal.options import Config, Json, Yes, load_settings
from headrace.cli.terminal.output import confirm, print_result
from headrace.config import Settings
from headrace.config.sources import FILE_VARIABLE
from headrace.errors import UsageError

EXAMPLES: Final = (
    ("Asking first:", "headrace keys revoke gateway-7 --config hub.toml"),
    ("In a script:", "headrace keys revoke gateway-7 --config hub.toml --yes"),
)


def revoke(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The principal's name, or the first client's id.")
    ],
    config: Config = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove a principal from the hub's configuration file, and delete the files with its key and its token.

    A running hub notices that its file has changed, or is told by headrace reload: the principal's connections and
    sessions end. It asks first. The first client (auth.first_key) is revoked by its client id.
    """
    settings = load_settings(config)
    where = config or _configured()
    if name in settings.access:
        files = _files_of(settings, name)
    elif (first := _first_key(settings, name)) is not None:
        files = [first]
    else:
        known = ", ".join([*settings.access, *settings.auth.clients]) or "nobody"
        raise UsageError(f"there is no principal {name!r} in the settings; they have {known}")
    listed = "".join(f", and delete {path}" for path in files)
    confirm(f"Revoke {name}{listed}?", yes=yes, remedy="add --yes to do it")
    if name in settings.access and (where is None or not remove_table(where, name)):
        source = settings.source(f"access.{name}.allow")
        raise UsageError(
            f"access.{name} is not in a configuration file but from {source}: take it away there"
        )
    for path in files:
        path.unlink(missing_ok=True)
    print_result(
        {"revoked": name, "deleted": [str(path) for path in files]},
        f"{name} is revoked; `headrace reload` tells a hub that does not watch its file",
        as_json=as_json,
    )


def _configured() -> Path | None:
    import os

    named = os.environ.get(FILE_VARIABLE)
    return Path(named) if named else None


def _files_of(settings: Settings, name: str) -> list[Path]:
    key = settings.access[name].key_file
    if key is None:
        return []
    beside = key.with_name(f"{name}.token")
    return [path for path in (key, beside) if path.exists()]


def _first_key(settings: Settings, client: str) -> Path | None:
    path = settings.auth.first_key
    if path is None or settings.source(f"auth.clients.{client.lower()}") != str(path):
        return None
    return path
