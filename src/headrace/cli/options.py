"""What several commands are told in the same words, and the settings that follow from it."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli import completing
from headrace.cli.access import Access, Client
from headrace.cli.exits import DEBUG_VARIABLE
from headrace.config import Settings, load
from headrace.config.sources import CLIENT_VARIABLE, KEY_VARIABLE
from headrace.errors import UsageError

SETTINGS_PANEL: Final = "Settings"
HUB_PANEL: Final = "Hub"

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings as TOML. Without it, the file that HEADRACE_CONFIG names, if any.",
        rich_help_panel=SETTINGS_PANEL,
    ),
]

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DIR",
        help="The data directory; the log is in its folder log. Without it, the setting node.data.",
        rich_help_panel=SETTINGS_PANEL,
    ),
]

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="SECTION.KEY=VALUE",
        help="One setting; stronger than the file and the environment. A later one wins.",
        rich_help_panel=SETTINGS_PANEL,
        autocompletion=completing.settings,
    ),
]


class Door(StrEnum):
    """The ways in and out that the command line speaks: the schemes of their URLs."""

    TUBE = "tube"
    FYREHOSE = "fyrehose"
    SPP = "spp"
    SDK = "sdk"
    PUBLISHER = "publisher"

    @property
    def setting(self) -> str:
        """What says, in ``listen``, where it is."""
        return "tube_tcp" if self is Door.TUBE else self.value


class PubDoor(StrEnum):
    """The ways in for ``pub``."""

    TUBE = Door.TUBE.value
    FYREHOSE = Door.FYREHOSE.value
    PUBLISHER = Door.PUBLISHER.value


class Transport(StrEnum):
    """What carries a protocol that has a choice."""

    TCP = "tcp"
    UDP = "udp"


def default_url(door: Door) -> str:
    """Where a hub listens that has this environment's settings: what ``headrace serve`` here would open."""
    settings = gather(None, None)
    address = getattr(settings.listen, door.setting) or getattr(Settings().listen, door.setting)
    return f"{door.value}://{address}"


def hub_url(given: str | None, door: Door) -> str:
    """The URL of a hub's ``door``: the one given, if it is of that door, else where the settings have it."""
    if given is None:
        return default_url(door)
    if given.partition("://")[0].lower() != door.value:
        raise UsageError(f"{given!r}: expected {door.value}://host:port")
    return given


def access(given: str | None, door: Door, client_id: str | None) -> Access:
    """A hub's ``door``, for the client of that id."""
    return Access(hub_url(given, door), identified(client_id))


def identified(client_id: str | None, settings: Settings | None = None) -> Client | None:
    """Who this is, if that is said by an option or the environment."""
    named = client_id or os.environ.get(CLIENT_VARIABLE)
    if not named:
        return None
    key = key_of(named, settings)
    if key is None:
        raise UsageError(
            f"the key of client {named} is not known:"
            f" put it into {KEY_VARIABLE}, or into the setting auth.clients.{named}"
        )
    return Client(named, key)


def key_of(client_id: str, settings: Settings | None = None) -> str | None:
    """The key of a client: never an option, for the command lines of a machine are no secret there."""
    if given := os.environ.get(KEY_VARIABLE):
        return given
    known = (settings or gather(None, None)).auth.clients.get(client_id.lower())
    return None if known is None else known.reveal()


LinkUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        metavar="URL",
        help="The hub's link; without it, where the settings here have it: tube://127.0.0.1:8081.",
        rich_help_panel=HUB_PANEL,
    ),
]

ClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id",
        metavar="ID",
        help="Who this is, in 24 hex digits, where the hub wants to know it; without it, HEADRACE_CLIENT_ID. The key"
        " is taken from HEADRACE_KEY, or from the setting auth.clients.ID.",
        rich_help_panel=HUB_PANEL,
    ),
]

HubTransport = Annotated[
    Transport | None,
    typer.Option(
        "--transport",
        help="What carries fyrehose: tcp, unless the URL begins with fyrehose+udp://.",
        rich_help_panel=HUB_PANEL,
    ),
]

MessagesAsJson = Annotated[bool, typer.Option("--json", help="JSON lines, on a terminal too.")]
MessagesAsText = Annotated[bool, typer.Option("--text", help="Text, in a pipe too: columns, with tabs.")]
MessagesRaw = Annotated[bool, typer.Option("--raw", help="Payloads as they are, a line end after each.")]

Json = Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")]


def gather(config: Path | None, data: Path | None, sets: list[str] | None = None) -> Settings:
    """The settings of a command."""
    environ = {name: value for name, value in os.environ.items() if name != DEBUG_VARIABLE}
    settings = load(config, environ=environ, sets=sets or ())
    return settings if data is None else settings.override({"node.data": data}, source="--data")
