"""What ``services watch`` and ``services put`` do: speak SPP, print what a service is and becomes."""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.cli.pipes import Outlet
from headrace.cli.rendering import visible
from headrace.cli.stderr import speak_briefly
from headrace.client import connect
from headrace.client.spp import Spp

_ENCODER: Final = msgspec.json.Encoder()


def watch(url: str, service: str, count: int | None, *, as_json: bool) -> None:
    """Print a service's value and then its changes, up to ``count`` lines."""
    speak_briefly()
    asyncio.run(_watch(url, service, count, as_json=as_json))


def put(url: str, service: str, change: str | None, file: Path | None) -> None:
    """Change a service by what was typed, or by a file's bytes."""
    speak_briefly()
    content = os.fsencode(change or "") if file is None else file.read_bytes()
    asyncio.run(_put(url, service, content))


async def _watch(url: str, service: str, count: int | None, *, as_json: bool) -> None:
    outlet = Outlet(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    line = _json_line if as_json else _text_line
    client: Spp
    with outlet.while_read():
        async with connect(url) as client, client.subscribe(service) as live:
            await outlet.write(line("value", live.value))
            left -= 1
            while left:
                change = await anext(live, None)
                if change is None:
                    break
                await outlet.write(line("change", change))
                left -= 1


async def _put(url: str, service: str, change: bytes) -> None:
    client: Spp
    async with connect(url) as client:
        await client.publish(service, change)


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
