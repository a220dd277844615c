"""``pub``: send messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.access import Access
from headrace.cli.options import (
    HUB_PANEL,
    ClientId,
    Door,
    HubTransport,
    Json,
    PubDoor,
    Transport,
    default_url,
    identified,
)
from headrace.cli.output import counted, print_json, wants_json
from headrace.cli.prose import examples, paragraphs
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.message import Run

HELP: Final = paragraphs(
    """
    Publish messages: each argument is one, or each line of stdin, or each file.

    It ends when the hub has committed them all, and prints their numbers: 42, or 42-47 for the first and the last
    (other publishers' messages may lie between); in a pipe, {"first":42,"last":47}. A connection that is lost on the
    way is replaced, and no message is doubled by that.

    With --door fyrehose, and with --door publisher, nothing is acknowledged: "sent" means that the connection took it.
    """
)
EXAMPLES: Final = examples(
    ("Two messages:", "headrace pub hello 'and good day'"),
    ("With a topic and attributes:", "headrace pub 21.5 --topic weather/bern --attr celsius=21.5"),
    ("For those who subscribed what it says:", "headrace pub hello --attr x=5 --attr city=Praha"),
    ("One a line, as they come:", "tail -F app.log | headrace pub --topic logs/app"),
    ("A file's bytes as one message:", "headrace pub --file picture.png"),
    (
        "The same many times, over the backbone of a hub elsewhere:",
        "headrace pub tick --count 100000 --url fyrehose://10.0.0.7:2323",
    ),
)


def pub(
    messages: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="Messages. None, or -, for the lines of stdin."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE", help="Send a file's bytes as one message. Repeatable."),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, metavar="N", help="Send it all this many times.")
    ] = 1,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic of the messages.")] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attr",
            "-a",
            metavar="NAME=VALUE",
            help='An attribute: a number if the value is one, else text; "7" in double quotes is text too.'
            " Repeatable.",
        ),
    ] = None,
    door: Annotated[
        PubDoor | None,
        typer.Option(
            "--door",
            help="The way in; without it, what the URL says, else tube: the link, which acknowledges.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "-u",
            metavar="URL",
            help="The hub's door; without it, where the settings here have it: tube://127.0.0.1:8081.",
            rich_help_panel=HUB_PANEL,
        ),
    ] = None,
    transport: HubTransport = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Publish messages."""
    address = url or default_url(Door.TUBE if door is None else Door(door.value))
    spoken = _door(door, address, transport)
    if spoken is Door.FYREHOSE and (topic is not None or attributes):
        raise UsageError("fyrehose carries no --topic and no --attr: leave out --door fyrehose, or them")
    if spoken is Door.PUBLISHER and topic is not None:
        raise UsageError(
            "the publisher door carries no --topic: leave out --door publisher, or give it as --attr"
        )
    if spoken is not Door.TUBE and client_id is not None:
        raise UsageError(f"--client-id is for the link: the {spoken.value} door knows no clients")
    from headrace.cli import publishing

    described = publishing.described(topic or "", attributes or [])
    batches = _messages(messages, files, count, publishing.longest(address, transport, described))
    if spoken is not Door.TUBE:
        if spoken is Door.FYREHOSE:
            sent = publishing.push(address, transport, batches)
        else:
            sent = publishing.publish_attributes(address, batches, described)
        if wants_json(asked=as_json):
            print_json({"url": address, "sent": sent.messages, "bytes": sent.bytes})
        else:
            print(f"sent {counted(sent.messages, 'message')} ({counted(sent.bytes, 'byte')}) to {address}")
        return
    first, last = publishing.publish(Access(address, identified(client_id)), batches, described)
    if wants_json(asked=as_json):
        print_json({"first": first, "last": last})
    elif first is None:
        print("there was nothing to publish")
    else:
        print(first if first == last else f"{first}-{last}")


def _door(door: PubDoor | None, url: str, transport: Transport | None) -> Door:
    """Which door a URL is of, if nothing speaks against it."""
    scheme = url.partition("://")[0].lower()
    if scheme.startswith("fyrehose"):
        spoken = Door.FYREHOSE
    elif scheme in (Door.TUBE.value, Door.PUBLISHER.value):
        spoken = Door(scheme)
    else:
        raise UsageError(f"{url!r}: expected tube://host:port, fyrehose://host:port or publisher://host:port")
    if door is not None and door.value != spoken.value:
        raise UsageError(f"--door {door.value} and --url {url} name different doors")
    if spoken is not Door.FYREHOSE and transport is not None:
        raise UsageError("--transport is fyrehose's: add --door fyrehose")
    return spoken


def _messages(
    messages: list[str] | None, files: list[Path] | None, count: int, most: int
) -> AsyncIterator[Run]:
    from headrace.cli import publishing

    typed = [] if messages is None or messages == ["-"] else messages
    if typed or files:
        return publishing.repeated(publishing.payloads(typed, files or [], most), count)
    if count == 1:
        return publishing.from_stdin(most)
    raise UsageError("--count repeats messages that are given as arguments or files, not stdin's")
