"""What ``services list`` and ``services get`` do: ask the hub over the link, print the answer."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64encode
from typing import Any

from rich.markup import escape
from rich.table import Table

from headrace.cli.access import Access
from headrace.cli.output import console, print_json, size, wants_json
from headrace.cli.rendering import visible
from headrace.cli.stderr import speak_briefly
from headrace.errors import WireError
from headrace.hub.services.merge_patch import parse_object


def show_all(hub: Access, *, as_json: bool) -> None:
    """Print the services there are."""
    speak_briefly()
    found = asyncio.run(_all(hub))
    if wants_json(asked=as_json):
        print_json(found)
    elif found:
        console().print(_table(found))
    else:
        print("there are no services")


def show(hub: Access, service: str, *, as_json: bool) -> None:
    """Print what a service is: for a program its bytes and nothing else, unless JSON is asked for."""
    speak_briefly()
    value = asyncio.run(_one(hub, service))
    if as_json:
        print_json({"id": service, **as_value(value)})
    elif sys.stdout.isatty():
        print(visible(value))
    else:
        sys.stdout.buffer.write(value)


def as_value(value: bytes) -> dict[str, Any]:
    """What a service is, as JSON says it: an object, else text, else base64.

    >>> as_value(b'{"speed": 61}'), as_value(b"61"), as_value(b"\\xff")
    ({'value': {'speed': 61}}, {'value': '61'}, {'value_base64': '/w=='})
    """
    try:
        return {"value": parse_object(value)}
    except WireError:
        pass
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": b64encode(value).decode()}


async def _all(hub: Access) -> list[dict[str, Any]]:
    async with hub.link("headrace services") as link:
        return await link.services()


async def _one(hub: Access, service: str) -> bytes:
    async with hub.link("headrace services") as link:
        return await link.service(service)


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for heading in ("created", "changed", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for service in found:
        table.add_row(
            escape(visible(service["id"].encode())),
            service["kind"],
            str(service["created"]),
            str(service["seq"]),
            size(service["bytes"]),
        )
    return table
