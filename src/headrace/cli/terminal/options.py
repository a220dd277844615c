"""Options that several commands have, and the settings and URLs that follow from them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.cli.hubs.access import Credentials, HubAccess
from headrace.cli.hubs.contexts import current_context, key_of
from headrace.cli.terminal import completion
from headrace.cli.terminal.exits import DEBUG_VARIABLE
from headrace.config import DOORS, Settings, load
from headrace.config.first_key import KEY as FIRST_KEY
from headrace.config.first_key import read_first_key
from headrace.config.key_files import key_of_client
from headrace.config.settings import find
from headrace.config.sources import CA_VARIABLE, CLIENT_VARIABLE, KEY_VARIABLE, PIN_VARIABLE, variable_of
from headrace.errors import HeadraceError, UsageError
from headrace.protocols import with_tls

logger = logging.getLogger("headrace")

SETTINGS_PANEL: Final = "Settings"
HUB_PANEL: Final = "Hub"


class DoorScheme(StrEnum):
    """The doors that commands connect to, by the scheme of their URLs."""

    TUBE = "tube"
    FYREHOSE = "fyrehose"
    SPP = "spp"
    SDK = "sdk"
    PUBLISHER = "publisher"
    HTTP = "http"


_DOORS = {
    **{door.value: door for door in DoorScheme},
    "ws": DoorScheme.TUBE,
    "fyrehose+udp": DoorScheme.FYREHOSE,
}
_DOORS |= {with_tls(scheme): door for scheme, door in _DOORS.items()}
"""The door that each scheme names."""


class PublishDoor(StrEnum):
    """The doors that ``pub`` can publish to."""

    TUBE = DoorScheme.TUBE.value
    FYREHOSE = DoorScheme.FYREHOSE.value
    PUBLISHER = DoorScheme.PUBLISHER.value


class Transport(StrEnum):
    """The transports of fyrehose."""

    TCP = "tcp"
    UDP = "udp"


def url_option(door: str, default: str) -> Any:
    """Make the option ``--url``."""
    text = f"The hub's {door}; by default the one in the local settings: {default}."
    return typer.Option("--url", "-u", metavar="URL", help=text, rich_help_panel=HUB_PANEL)


def position_option(option: str, *more: str, what: str = "Where to begin") -> Any:
    """Make an option that says where in the sequence to begin, or to end."""
    text = f"{what}: a number, earliest, now, a time (2026-01-31T10:30, 10:30) or -5m (s, m, h, d)."
    return typer.Option(option, *more, metavar="POSITION", help=text)


def until_option(*names: str) -> Any:
    """Make the option ``--until``."""
    text = "The last message: a number, now, a time (to end before it) or -5m (s, m, h, d)."
    return typer.Option("--until", *names, metavar="POSITION", help=text)


def count_option(text: str = "Stop after this many.") -> Any:
    """Make the option ``--count``."""
    return typer.Option("--count", "-n", min=1, metavar="N", help=text)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings as TOML; by default the file that HEADRACE_CONFIG names, if any.",
        rich_help_panel=SETTINGS_PANEL,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DIR",
        help="The data directory, which has the log in its folder log; by default the setting node.data.",
        rich_help_panel=SETTINGS_PANEL,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="SECTION.KEY=VALUE",
        help="One setting; it overrides the file and the environment. A later one wins.",
        rich_help_panel=SETTINGS_PANEL,
        autocompletion=completion.settings,
    ),
]
LinkUrl = Annotated[str | None, url_option("link", "tube://127.0.0.1:8081")]
SppUrl = Annotated[str | None, url_option("spp door", "spp://127.0.0.1:3002")]
ClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id",
        metavar="ID",
        help="This client's id, 24 hex digits, where the hub asks for one; by default HEADRACE_CLIENT_ID. The key is"
        " taken from HEADRACE_KEY, or from the setting auth.clients.ID.",
        rich_help_panel=HUB_PANEL,
    ),
]
HubTransport = Annotated[
    Transport | None,
    typer.Option(
        "--transport",
        help="The transport of fyrehose: tcp, unless the URL begins with fyrehose+udp://.",
        rich_help_panel=HUB_PANEL,
    ),
]
Count = Annotated[int | None, count_option()]
Either = Annotated[
    list[str] | None,
    typer.Option(
        "--or", metavar="CONDITION", help="An alternative to --where: this condition alone. Repeatable."
    ),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines, even on a terminal.")]
TextLines = Annotated[
    bool, typer.Option("--text", help="Print text, even in a pipe: columns separated by tabs.")
]
RawLines = Annotated[
    bool, typer.Option("--raw", help="Print payloads as they are, each followed by a newline.")
]
FullLines = Annotated[bool, typer.Option("--full", help="Show long payloads whole, even on a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, even on a terminal.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def load_settings(
    config: Path | None = None, data: Path | None = None, sets: list[str] | None = None
) -> Settings:
    """Load the settings of a command."""
    environ = {name: value for name, value in os.environ.items() if name != DEBUG_VARIABLE}
    settings = load(config, environ=environ, sets=sets or ())
    for key in secrets_among(sets or ()):
        logger.warning(
            "%s is on the command line, where every user of this machine can read it: put it into a file of mode 600,"
            " or into %s",
            key,
            variable_of(key),
        )
    return settings if data is None else settings.override({"node.data": data}, source="--data")


def secrets_among(sets: Sequence[str]) -> list[str]:
    """Return the keys of those ``--set`` that have a secret.

    >>> secrets_among(["log.fsync=always", "cluster.key=open sesame", "cluster.key="])
    ['cluster.key']
    """
    given = [(key.strip(), value.strip()) for key, _, value in (each.partition("=") for each in sets)]
    return [key for key, value in given if value and find(key, "--set")[0].secret]


def default_url(door: DoorScheme) -> str:
    """Return a door's URL in the context in use; else where ``headrace serve`` would open it in this environment."""
    if (context := current_context()) is not None:
        return context.url_of(door.value)
    setting = "tube_tcp" if door is DoorScheme.TUBE else door.value
    settings = load_settings()
    address = getattr(settings.listen, setting) or getattr(Settings().listen, setting)
    tls = settings.tls
    if tls.cert is None or setting not in (tls.doors or DOORS):
        return f"{door.value}://{address}"
    expect_this_hub(settings)
    return f"{with_tls(door.value)}://{address}"


def expect_this_hub(settings: Settings) -> None:
    """Let every client of this process expect the certificate of the hub with these settings, if it has one.

    It is this machine's, whatever name stands in its certificate.
    """
    tls = settings.tls
    if tls.cert is not None and CA_VARIABLE not in os.environ and os.access(tls.cert, os.R_OK):
        os.environ.setdefault(PIN_VARIABLE, str(tls.cert.absolute()))


def hub_url(given: str | None, door: DoorScheme) -> str:
    """Return the URL of a hub's ``door``: the one that was given, if it is of that door, else the default."""
    if given is None:
        return default_url(door)
    if door_of(given) is not door:
        raise UsageError(f"{given!r}: expected {door.value}://host:port")
    return given


def door_of(url: str) -> DoorScheme | None:
    """Return the door that a URL names; the link is one door over TCP and over a WebSocket.

    >>> door_of("ws://127.0.0.1:8080"), door_of("pigeon://roof")
    (<DoorScheme.TUBE: 'tube'>, None)
    """
    return _DOORS.get(url.partition("://")[0].lower())


def hub_access(given: str | None, door: DoorScheme, client_id: str | None) -> HubAccess:
    """Return access to a hub's ``door``, for the client with this id."""
    return HubAccess(hub_url(given, door), find_credentials(client_id, url=given))


def find_credentials(
    client_id: str | None, settings: Settings | None = None, *, url: str | None = None
) -> Credentials | None:
    """Find the credentials of the client that an option or the environment names; else those of ``auth.first_key``.

    Those of the context in use are for its own hub, and not for one that a ``url`` names.
    """
    named = client_id or os.environ.get(CLIENT_VARIABLE)
    context = current_context() if url is None else None
    if context is not None and context.key_file and named in (None, context.client_id):
        key = key_of(context)
        return None if key is None else Credentials(context.client_id, key)
    if not named:
        return _first_client(settings or load_settings())
    key = find_key(named, settings)
    if key is None:
        raise UsageError(
            f"the key of client {named} is not known:"
            f" put it into {KEY_VARIABLE}, or into the setting auth.clients.{named}"
        )
    return Credentials(named, key)


def find_key(client_id: str, settings: Settings | None = None) -> str | None:
    """Find a client's key, in the environment or in the settings."""
    if given := os.environ.get(KEY_VARIABLE):
        return given
    known = key_of_client(settings or load_settings(), client_id)
    return None if known is None else known.reveal()


def _first_client(settings: Settings) -> Credentials | None:
    where = settings.auth.first_key
    found = None if where is None else read_first_key(where, settings.source(FIRST_KEY))
    return None if found is None else Credentials(found[0], found[1].reveal())


def committed_head(settings: Settings, client_id: str | None) -> int | None:
    """Return the last message that the running hub has committed: its files may have later ones."""
    from headrace.cli.hubs.running_hub import find_running_hub

    try:
        hub = find_running_hub(settings.node.data / "log", find_credentials(client_id, settings))
    except HeadraceError:
        return None
    return None if hub is None else hub.head()


_LOG_FILES: Final = (".open", ".arrow", ".index", ".snapshot")


def existing_log(settings: Settings) -> Path:
    """Return the directory of a log that exists, in whatever state: no command creates one."""
    directory = settings.node.data / "log"
    # A repair that was interrupted may have moved every file away.
    interrupted = (directory / "repairing").exists()
    if not interrupted and not any(path.suffix in _LOG_FILES for path in directory.glob("[0-9]*")):
        raise UsageError(f"{directory} holds no log; name the hub's data directory with --data")
    return directory
