"""What ``services create`` and ``services remove`` do: ask the hub over the link, say what came of it."""

from __future__ import annotations

import asyncio
from typing import Literal

from headrace.cli.stderr import speak_briefly
from headrace.client import connect
from headrace.client.tube import LinkClient


def create(url: str, service: str, kind: Literal["json", "last"]) -> None:
    """Create a service, or offer a removed one again."""
    speak_briefly()
    asyncio.run(_create(url, service, kind))
    print(f"{service} is there, of kind {kind}")


def remove(url: str, service: str) -> None:
    """Offer a service no longer."""
    speak_briefly()
    now = asyncio.run(_remove(url, service))
    print(f"removed {service}" if now else f"{service} was removed before")


async def _create(url: str, service: str, kind: Literal["json", "last"]) -> None:
    link: LinkClient
    async with connect(url, name="headrace services") as link:
        await link.create_service(service, kind)


async def _remove(url: str, service: str) -> bool:
    link: LinkClient
    async with connect(url, name="headrace services") as link:
        return await link.remove_service(service)
