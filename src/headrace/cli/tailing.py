"""What ``tail`` does: follow the link from a place on, print what comes, stop in time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from headrace.cli.access import Access
from headrace.cli.pipes import Outlet
from headrace.cli.places import End, Place, Then
from headrace.cli.rendering import Form, render_whole
from headrace.cli.seeking import seek
from headrace.cli.stderr import speak_briefly
from headrace.client.link.client import LinkClient
from headrace.message import messages


def follow(
    hub: Access, place: Place, topic: str | None, origins: Sequence[str] | None, count: int | None, form: Form
) -> None:
    """Print what is committed from ``place`` on, up to ``count`` messages."""
    speak_briefly()
    asyncio.run(_follow(hub, place, topic, origins, count, form))


async def _follow(
    hub: Access, place: Place, topic: str | None, origins: Sequence[str] | None, count: int | None, form: Form
) -> None:
    outlet = Outlet(sys.stdout.fileno())
    left = sys.maxsize if count is None else count
    with outlet.while_read():
        async with hub.link("headrace tail") as link:
            begin, since = await _begin(link, place)
            stream = link.follow(begin, from_time=since, topic=topic, origin=origins).batches()
            async with stream:
                async for rows in stream:
                    some = rows.slice(0, left)
                    await outlet.write(render_whole(messages(some), form))
                    left -= some.num_rows
                    if not left:
                        break


async def _begin(link: LinkClient, place: Place) -> tuple[int | None, float | None]:
    """Where to begin, as a follow wants it: a number, or a time, or neither for now."""
    match place:
        case End.NOW:
            return None, None
        case End.EARLIEST:
            return await seek(link, place), None
        case Then(seconds):
            return None, seconds
        case int():
            return place, None
