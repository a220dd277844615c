"""What ``services create`` and ``services remove`` do: ask the hub over the link, say what came of it."""

from __future__ import annotations

import asyncio
from typing import Literal

from headrace.cli.access import Access
from headrace.cli.output import print_json, wants_json
from headrace.cli.stderr import speak_briefly


def create(hub: Access, service: str, kind: Literal["json", "last"], *, as_json: bool) -> None:
    """Create a service, or offer a removed one again."""
    speak_briefly()
    asyncio.run(_create(hub, service, kind))
    if wants_json(asked=as_json):
        print_json({"id": service, "kind": kind})
    else:
        print(f"{service} is there, of kind {kind}")


def remove(hub: Access, service: str, *, as_json: bool) -> None:
    """Offer a service no longer."""
    speak_briefly()
    now = asyncio.run(_remove(hub, service))
    if wants_json(asked=as_json):
        print_json({"id": service, "removed": now})
    else:
        print(f"removed {service}" if now else f"{service} was removed before")


async def _create(hub: Access, service: str, kind: Literal["json", "last"]) -> None:
    async with hub.link("headrace services") as link:
        await link.create_service(service, kind)


async def _remove(hub: Access, service: str) -> bool:
    async with hub.link("headrace services") as link:
        return await link.remove_service(service)
