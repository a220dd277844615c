"""The interface to a frontend's upstream hub, whatever protocol it speaks.

:mod:`~headrace.net.upstream.over_link` speaks the link: same numbers, times and uuid, whole envelopes, acknowledged
once. :mod:`~headrace.net.upstream.over_fyrehose` speaks the backbone's own protocol: same numbers, plain payloads,
best effort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypedDict, TypeVar

from headrace.client.reconnect import DialPlan, redial
from headrace.config import Address, Settings
from headrace.errors import ConfigError, UnreachableError
from headrace.hub.publishing.publisher_numbers import PublisherNumbers
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.net.server.machine.log_disk import LogDisk
from headrace.net.upstream.aside_disk import AsideDisk
from headrace.net.upstream.outbox_disk import OutboxStatus

T = TypeVar("T")

START_SECONDS: Final = 10.0
"""Seconds that a frontend without a log waits for its upstream hub."""


class UpstreamStatus(TypedDict):
    """An upstream hub in the status."""

    url: str
    connected: bool
    peer: str | None
    """The address in use."""
    head: int
    """Its head, as far as this hub knows."""
    lag: int
    """How many of its messages this hub does not have yet."""
    waiting_bytes: int
    """Bytes on their way to it."""
    problem: str | None
    away_since: float | None
    """When the connection was lost, in seconds since 1970."""
    outbox: OutboxStatus | None
    """What is kept here until it is back, where that was asked for."""


class Upstream(Protocol):
    """The hub above this one."""

    @property
    def problem(self) -> str | None:
        """Why messages do not flow, if they do not."""

    @property
    def refusing(self) -> str | None:
        """Why publishers are refused, if they are."""

    @property
    def aside(self) -> AsideDisk | None:
        """What it has refused for good of what was kept here, where messages are kept."""

    async def open_log(self, directory: Path) -> Log:
        """Open this hub's log, a copy of the upstream hub's from some message on; make it if there is none."""

    def attach(self, hub: Hub, disk: LogDisk, publishers: PublisherNumbers) -> None:
        """Become the sequencer of the hub that has this log, on this disk, and these publishers in its state."""

    async def run(self) -> None:
        """Follow as long as the hub runs; returns, or raises, only when it cannot continue."""

    def tick(self, now: float) -> None:
        """Enforce deadlines."""

    async def flush(self) -> None:
        """Wait until nothing is under way; the caller sets the deadline."""

    async def close(self) -> None:
        """End the connection."""

    def facts(self) -> UpstreamStatus:
        """Describe the upstream hub for the status."""


async def first_contact(plan: DialPlan, dial: Callable[[Address], Awaitable[T]], seconds: float) -> T:
    """Reach the hub that a new copy is made of; both may have been started at the same time."""
    try:
        return await redial(plan, dial, deadline=asyncio.get_running_loop().time() + seconds)
    except UnreachableError as error:
        reason = f"{error.reason}; a new frontend needs its upstream hub to begin"
        raise UnreachableError(error.address, reason) from None


def upstream_of(settings: Settings) -> Upstream | None:
    """Return the hub above this one, if the settings name one."""
    urls = settings.node.upstream
    if not urls:
        return None
    if urls[0].startswith("tube"):
        from headrace.net.upstream.over_link import TubeUpstream

        return TubeUpstream(settings)
    if settings.upstream.store:
        raise ConfigError(
            "upstream.store",
            True,
            source=settings.source("upstream.store"),
            expected="false, since a fyrehose upstream recognises no repeats: use tube://",
        )
    from headrace.net.upstream.over_fyrehose import FyrehoseUpstream

    return FyrehoseUpstream(settings)
