"""What ``consumers reset`` and ``consumers remove`` do."""

from __future__ import annotations

import asyncio

from headrace.cli.places import Place
from headrace.cli.seeking import seek
from headrace.cli.stderr import speak_briefly
from headrace.client import connect
from headrace.client.tube import LinkClient


def reset(url: str, name: str, place: Place) -> int:
    """Have a consumer go on at ``place``; return the number that is."""
    speak_briefly()
    return asyncio.run(_reset(url, name, place))


def remove(url: str, name: str) -> None:
    """Remove a consumer."""
    speak_briefly()
    asyncio.run(_remove(url, name))


async def _reset(url: str, name: str, place: Place) -> int:
    link: LinkClient
    async with connect(url, name="headrace consumers") as link:
        seq = await seek(link, place)
        await link.reset_consumer(name, seq)
        return seq


async def _remove(url: str, name: str) -> None:
    link: LinkClient
    async with connect(url, name="headrace consumers") as link:
        await link.remove_consumer(name)
