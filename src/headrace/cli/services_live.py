"""What ``services watch`` and ``services put`` do: speak SPP, print what a service is and becomes."""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.cli.access import Access
from headrace.cli.output import print_json
from headrace.cli.pipes import Outlet
from headrace.cli.rendering import visible
from headrace.cli.stderr import speak_briefly
from headrace.client.spp.client import SppClient
from headrace.errors import RefusedError, WireError
from headrace.hub.services.merge_patch import apply, parse_object

_ENCODER: Final = msgspec.json.Encoder()

_ECHO_SECONDS: Final = 10.0
"""How long a change may take to come back."""


def watch(hub: Access, service: str, count: int | None, *, as_json: bool) -> None:
    """Print a service's value and then its changes, up to ``count`` lines."""
    speak_briefly()
    asyncio.run(_watch(hub, service, count, as_json=as_json))


def put(hub: Access, service: str, change: str | None, file: Path | None, *, as_json: bool) -> None:
    """Change a service by what was typed, or by a file's bytes. Nothing is printed unless JSON is asked for."""
    speak_briefly()
    content = os.fsencode(change or "") if file is None else file.read_bytes()
    asyncio.run(_put(hub, service, content))
    if as_json:
        print_json({"id": service, "put": len(content)})


async def _watch(hub: Access, service: str, count: int | None, *, as_json: bool) -> None:
    outlet = Outlet(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    line = _json_line if as_json else _text_line
    with outlet.while_read():
        async with hub.spp() as client, client.subscribe(service) as live:
            await outlet.write(line("value", live.value))
            left -= 1
            while left:
                change = await anext(live, None)
                if change is None:
                    break
                await outlet.write(line("change", change))
                left -= 1


async def _put(hub: Access, service: str, change: bytes) -> None:
    """SPP acknowledges nothing, but sends those who subscribe what has changed: that is waited for."""
    async with hub.spp() as client:
        await client.publish(change, topic=service)
        try:
            async with asyncio.timeout(_ECHO_SECONDS), client.subscribe(service, "last") as live:
                shown = live.value or b""
                while not _shows(shown, change):
                    shown = await anext(live)
        except (TimeoutError, StopAsyncIteration):
            raise RefusedError("unconfirmed", _unconfirmed(hub, client, service)) from None


def _shows(shown: bytes, change: bytes) -> bool:
    """Whether what a subscriber was sent, the object or a change to it, has a change in it."""
    if shown == change:
        return True
    try:
        whole, patch = parse_object(shown), parse_object(change)
    except WireError:
        return False
    return patch in (whole, {}) or apply(whole, patch) == whole


def _unconfirmed(hub: Access, client: SppClient, service: str) -> str:
    problem = f"{hub.url} does not show the change of {service!r} within {_ECHO_SECONDS:g} s"
    if service in client.offered:
        return f"{problem}: it may be of a kind that cannot take it, or too long"
    if hub.client is None and not client.offered:
        return f"{problem}, nor any service: if its auth.required is on, say who you are with --client-id"
    return f"{problem}, nor the service: it may be removed, or too many are there"


def _json_line(what: str, content: Any) -> bytes:
    """A change of something that is not merged is its new value."""
    if not isinstance(content, bytes):
        return _ENCODER.encode({what: content}) + b"\n"
    try:
        return _ENCODER.encode({"value": content.decode()}) + b"\n"
    except UnicodeDecodeError:
        return _ENCODER.encode({"value_base64": b64encode(content).decode()}) + b"\n"


def _text_line(_what: str, content: Any) -> bytes:
    text = content if isinstance(content, bytes) else _ENCODER.encode(content)
    return visible(text).encode() + b"\n"
