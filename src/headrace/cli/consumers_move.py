"""What ``consumers reset`` and ``consumers remove`` do."""

from __future__ import annotations

import asyncio

from headrace.cli.access import Access
from headrace.cli.places import Place
from headrace.cli.seeking import seek
from headrace.cli.stderr import speak_briefly


def reset(hub: Access, name: str, place: Place) -> int:
    """Have a consumer go on at ``place``; return the number that is."""
    speak_briefly()
    return asyncio.run(_reset(hub, name, place))


def remove(hub: Access, name: str) -> None:
    """Remove a consumer."""
    speak_briefly()
    asyncio.run(_remove(hub, name))


async def _reset(hub: Access, name: str, place: Place) -> int:
    async with hub.link("headrace consumers") as link:
        seq = await seek(link, place)
        await link.reset_consumer(name, seq)
        return seq


async def _remove(hub: Access, name: str) -> None:
    async with hub.link("headrace consumers") as link:
        await link.remove_consumer(name)
