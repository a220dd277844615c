"""``services``: named live objects that messages create and change."""

from __future__ import annotations

import sys
from base64 import b64encode
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.hubs.access import HubAccess, run_client
from headrace.cli.terminal.help_text import add_command, make_group
from headrace.cli.terminal.options import (
    ClientId,
    DoorScheme,
    Either,
    Json,
    JsonLines,
    LinkUrl,
    SppUrl,
    count_option,
    hub_access,
)
from headrace.cli.terminal.output import console, plain_table, print_json, print_result, size, wants_json
from headrace.errors import RefusedError, UsageError, WireError

if TYPE_CHECKING:
    from headrace.client.spp.client import SppClient


_CLIENT: Final = "headrace services"
_ECHO_SECONDS: Final = 10.0
"""Seconds that a change may take to come back."""


class ServiceKind(StrEnum):
    """How a service changes."""

    JSON = "json"
    LAST = "last"


Id = Annotated[str, typer.Argument(metavar="ID", help="The service's id.")]

services = make_group(
    """
    List a hub's services, watch one, change one: named live objects that messages create and change.

    watch and put speak SPP, the others use the link.
    """,
    ("Which are there?", "headrace services list"),
    ("What is one now?", "headrace services get fleet/42"),
    ("Change it:", """headrace services put fleet/42 '{"speed": 61}'"""),
)


@add_command(
    services,
    "list",
    ("For people:", "headrace services list"),
    ("For a script:", "headrace services list --json | jq -r '.[].id'"),
)
def list_services(url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """List the services in the order of their creation: id, kind, the message that changed each last, and its size.

    A service of kind json is an object, and changes are merged into it; one of kind last is the newest message.
    """
    found = hub_access(url, DoorScheme.TUBE, client_id).ask(_CLIENT, lambda link: link.services())
    if wants_json(asked=as_json):
        print_json(found)
    elif not found:
        print("there are no services")
    else:
        from rich.markup import escape

        from headrace.cli.terminal.rendering import visible

        table = plain_table("id", "kind", ">created", ">changed", ">size")
        for each in found:
            name = escape(visible(each["id"].encode()))
            table.add_row(name, each["kind"], str(each["created"]), str(each["seq"]), size(each["bytes"]))
        console().print(table)


@add_command(
    services,
    "get",
    ("Look:", "headrace services get fleet/42"),
    ("One member:", "headrace services get fleet/42 | jq .speed"),
    ("As it was after message 1200:", "headrace services get fleet/42 --as-of 1200"),
)
def get(
    service: Id,
    as_of: Annotated[
        int | None, typer.Option("--as-of", metavar="SEQ", min=1, help="The value after this message.")
    ] = None,
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Print a service's value: in a pipe or a file its bytes as they are, on a terminal as text. --json prints
    {"id":…,"value":…}, with "value_base64" instead if the value is not UTF-8.

    --as-of rebuilds the value from the log, which must still have everything from its beginning on.
    """
    value = hub_access(url, DoorScheme.TUBE, client_id).ask(
        _CLIENT, lambda link: link.service(service) if as_of is None else link.service_as_of(service, as_of)
    )
    if as_json:
        print_json({"id": service, **as_json_value(value)})
    elif sys.stdout.isatty():
        from headrace.cli.terminal.rendering import visible

        print(visible(value))
    else:
        sys.stdout.buffer.write(value)


@add_command(
    services,
    "bisect",
    ("When did it first go too fast?", "headrace services bisect fleet/42 --where 'speed>60'"),
    ("And what was it then?", "headrace services get fleet/42 --as-of 1200"),
)
def bisect(
    service: Id,
    where: Annotated[
        list[str],
        typer.Option("--where", "-w", metavar="CONDITION", help="A condition on a member; all must hold."),
    ],
    either: Either = None,
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Find the message after which a service's object first satisfied conditions on its top-level members.

    Conditions are those of headrace sub --where. It exits with 1 if they never held. The log must still have everything
    from its beginning on.
    """
    from headrace.cli.terminal.attribute_syntax import parse_alternatives

    wanted = parse_alternatives(where, either)
    found = hub_access(url, DoorScheme.TUBE, client_id).ask(
        _CLIENT, lambda link: link.service_bisect(service, wanted)
    )
    if found is None:
        raise RefusedError(
            "never", f"{service} never satisfied {' or '.join([' and '.join(where), *(either or ())])}"
        )
    seq, value = found
    shown = value.decode(errors="replace")
    print_result(
        {"id": service, "seq": seq, **as_json_value(value)}, f"message {seq}: {shown}", as_json=as_json
    )


@add_command(
    services,
    "watch",
    ("Watch:", "headrace services watch fleet/42"),
    ("Wait for the next change:", "headrace services watch fleet/42 --count 2 | tail -n 1"),
)
def watch(
    service: Id,
    count: Annotated[int | None, count_option("Stop after this many lines.")] = None,
    as_json: JsonLines = False,
    url: SppUrl = None,
    client_id: ClientId = None,
) -> None:
    """Print a service's value, and then each change; wait for a service that does not exist yet.

    It runs until --count, Ctrl-C or until nobody reads its output. In a pipe, it prints one JSON object a line:
    {"value":{"speed":60}} first, then {"change":{"speed":61}} with what is merged into it. A service of kind last has
    new values instead of changes: {"value":"text"}, with "value_base64" instead where that is not UTF-8.
    """
    hub = hub_access(url, DoorScheme.SPP, client_id)
    run_client(_watch(hub, service, count, as_json=wants_json(asked=as_json)))


@add_command(
    services,
    "put",
    ("Merge:", """headrace services put fleet/42 '{"speed": 61}'"""),
    ("From a file:", "headrace services put site/logo --file logo.png"),
)
def put(
    service: Id,
    change: Annotated[str | None, typer.Argument(metavar="CHANGE", help="The change.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Take a file's bytes as the change.")
    ] = None,
    url: SppUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Change a service, or create it: of kind json if its first change is a JSON object, of kind last otherwise.

    A change of a json service is merged into it (null removes a member). SPP has no acknowledgements, but sends changes
    to subscribers: the command ends when the hub has sent the change back, and exits with 1 after ten seconds without.
    """
    import os

    if (change is None) == (file is None):
        raise UsageError("expected a CHANGE or --file FILE")
    hub = hub_access(url, DoorScheme.SPP, client_id)
    content = os.fsencode(change or "") if file is None else file.read_bytes()
    run_client(_put(hub, service, content))
    if as_json:
        print_json({"id": service, "put": len(content)})


@add_command(
    services,
    "create",
    ("An object:", "headrace services create fleet/42"),
    ("JSON text that is replaced, not merged:", "headrace services create config --kind last"),
)
def create(
    service: Id,
    kind: Annotated[
        ServiceKind,
        typer.Option("--kind", "-k", help="json: an object, changes are merged. last: the newest message."),
    ] = ServiceKind.JSON,
    url: LinkUrl = None,
    client_id: ClientId = None,
    as_json: Json = False,
) -> None:
    """Create an empty service, or offer a removed one again.

    services put creates a service too, of a kind that follows from the first change. Here you choose the kind. It is
    also the only way back for an id that was removed: its subscribers move to the new, empty object. A service that
    exists stays as it is.
    """
    hub = hub_access(url, DoorScheme.TUBE, client_id)
    hub.ask(
        _CLIENT,
        lambda link: link.create_service(service, "json" if kind is ServiceKind.JSON else "last"),
    )
    facts = {"id": service, "kind": kind.value}
    print_result(facts, f"{service} is there, of kind {kind.value}", as_json=as_json)


@add_command(
    services,
    "remove",
    ("Remove:", "headrace services remove fleet/42"),
    ("And offer it again, empty:", "headrace services create fleet/42"),
)
def remove(service: Id, url: LinkUrl = None, client_id: ClientId = None, as_json: Json = False) -> None:
    """Remove a service: the hub no longer offers it.

    Its subscribers are notified and stay subscribed: messages published under its id still reach them. Publishing does
    not bring it back, only services create does.
    """
    hub = hub_access(url, DoorScheme.TUBE, client_id)
    removed = hub.ask(_CLIENT, lambda link: link.remove_service(service))
    sentence = f"removed {service}" if removed else f"{service} was removed before"
    print_result({"id": service, "removed": removed}, sentence, as_json=as_json)


def as_json_value(value: bytes) -> dict[str, Any]:
    """Return a service's value as JSON: an object, else text, else base64.

    >>> as_json_value(b'{"speed": 61}'), as_json_value(b"61"), as_json_value(b"\\xff")
    ({'value': {'speed': 61}}, {'value': '61'}, {'value_base64': '/w=='})
    """
    from headrace.hub.services.merge_patch import parse_object

    try:
        return {"value": parse_object(value)}
    except WireError:
        return _as_text(value)


def _as_text(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": b64encode(value).decode()}


async def _watch(hub: HubAccess, service: str, count: int | None, *, as_json: bool) -> None:
    from headrace.cli.terminal.pipes import PipeWriter

    output = PipeWriter(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    line = _json_line if as_json else _text_line
    with output.while_read():
        async with hub.spp() as client, client.subscribe(service) as live:
            await output.write(line("value", live.value))
            left -= 1
            while left:
                change = await anext(live, None)
                if change is None:
                    break
                await output.write(line("change", change))
                left -= 1


def _json_line(what: str, content: Any) -> bytes:
    """Render a value or a change; a change that is bytes is the new value."""
    import msgspec

    facts = _as_text(content) if isinstance(content, bytes) else {what: content}
    return msgspec.json.encode(facts) + b"\n"


def _text_line(_what: str, content: Any) -> bytes:
    import msgspec

    from headrace.cli.terminal.rendering import visible

    text = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return visible(text).encode() + b"\n"


async def _put(hub: HubAccess, service: str, change: bytes) -> None:
    """Publish a change, and wait until the hub sends it back to this client as a subscriber."""
    import asyncio

    async with hub.spp() as client:
        await client.publish(change, topic=service)
        try:
            async with asyncio.timeout(_ECHO_SECONDS), client.subscribe(service, "last") as live:
                shown = live.value or b""
                while not _contains(shown, change):
                    shown = await anext(live)
        except (TimeoutError, StopAsyncIteration):
            raise RefusedError("unconfirmed", _unconfirmed(hub, client, service)) from None


def _contains(shown: bytes, change: bytes) -> bool:
    from headrace.hub.services.merge_patch import apply, parse_object

    if shown == change:
        return True
    try:
        whole, patch = parse_object(shown), parse_object(change)
    except WireError:
        return False
    return patch in (whole, {}) or apply(whole, patch) == whole


def _unconfirmed(hub: HubAccess, client: SppClient, service: str) -> str:
    problem = f"{hub.url} does not show the change of {service!r} within {_ECHO_SECONDS:g} s"
    if service in client.offered:
        return f"{problem}: it may be of a kind that cannot take it, or too long"
    if hub.credentials is None and not client.offered:
        return f"{problem}, nor any service: if its auth.required is on, add --client-id"
    return f"{problem}, nor the service: it may be removed, or too many are there"
