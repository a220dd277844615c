"""A frontend's way to the hub that numbers its messages: what the server wants of it, whatever it speaks.

:mod:`~headrace.net.upstream.over_link` speaks the link: same numbers, times and uuid, whole envelopes, acknowledged
once. :mod:`~headrace.net.upstream.over_fyrehose` speaks the backbone's own protocol: same numbers, plain payloads,
best effort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypedDict, TypeVar

from headrace.config import Settings
from headrace.errors import UnreachableError
from headrace.hub.sequence import Hub
from headrace.log import Log

T = TypeVar("T")

_RETRY_SECONDS: Final = 0.2


class Facts(TypedDict):
    """What the status tells of an upstream hub."""

    url: str
    connected: bool
    peer: str | None
    """Which of its addresses answers."""
    head: int
    """How far it is, as far as this hub knows."""
    lag: int
    """How much of that this hub does not have yet."""
    waiting_bytes: int
    """What is under way to it."""
    problem: str | None


class Upstream(Protocol):
    """The hub above this one."""

    @property
    def problem(self) -> str | None:
        """Why messages do not come and go as they should, if so."""

    async def open_log(self, directory: Path) -> Log:
        """Open this hub's log, which is, or becomes, a copy of the other one's from somewhere on."""

    def attach(self, hub: Hub) -> None:
        """Become the sequencer of the hub that has this log."""

    async def run(self) -> None:
        """Follow for as long as the hub runs; returns, or raises, only when there is no way on."""

    def tick(self, now: float) -> None:
        """Judge deadlines."""

    async def flush(self) -> None:
        """Wait until nothing is under way; the caller sets the deadline."""

    async def close(self) -> None:
        """End the connection."""

    def facts(self) -> Facts:
        """What the status tells."""


async def wait_for_hub(reach: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Reach the hub that a new copy is made of; both may have been started at the same time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await reach()
        except UnreachableError as error:
            if loop.time() > deadline:
                reason = f"{error.reason}; a new frontend needs its upstream hub to begin"
                raise UnreachableError(error.address, reason) from None
        await asyncio.sleep(_RETRY_SECONDS)


def upstream_of(settings: Settings) -> Upstream | None:
    """The hub above this one, if the settings name one."""
    urls = settings.node.upstream
    if not urls:
        return None
    if urls[0].startswith("tube://"):
        from headrace.net.upstream.over_link import TubeUpstream

        return TubeUpstream(settings)
    from headrace.net.upstream.over_fyrehose import FyrehoseUpstream

    return FyrehoseUpstream(settings)
