"""Where a place is in a running hub's log."""

from __future__ import annotations

from headrace.cli.places import End, Place, Then
from headrace.client.link.client import LinkClient


async def seek(link: LinkClient, place: Place) -> int:
    """The number of the first message from ``place`` on; the next to come if there is none."""
    match place:
        case End.EARLIEST:
            return (await link.head()).first
        case End.NOW:
            return (await link.head()).head + 1
        case Then(seconds):
            async with link.follow(from_time=seconds) as stream:
                return await stream.begun()
        case int():
            return place
