"""The interface between a door and the server that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.config import Settings
from headrace.hub.access.access import AccessControl
from headrace.hub.access.accounts import Accounts
from headrace.hub.access.authentication import Authentication
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.publishing.storing.set_aside import AsideRequest
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Published
from headrace.hub.state_parts import StateParts
from headrace.net.server.accepting.admission import Admission
from headrace.net.server.accepting.entrance import Entrance
from headrace.net.server.machine.reader_threads import ReaderThreads
from headrace.tube.fair_turns import FairTurns
from headrace.tube.unfinished import UnfinishedBytes


@dataclass(frozen=True, slots=True)
class DoorContext:
    """The parts of a hub that all doors share."""

    hub: Hub
    settings: Settings
    admission: Admission
    readers: ReaderThreads
    """Threads that read the log for consumers."""
    parts: StateParts
    intake: PublishIntake
    authentication: Authentication
    access: AccessControl
    """Who may do what."""
    unfinished: UnfinishedBytes
    """The memory for unfinished messages at all doors."""
    turns: FairTurns
    """What each peer may take of a turn of the event loop, at all doors."""
    accounts: Accounts
    """What each peer uses, and its limits."""
    entrance: Entrance
    """How every TCP door accepts."""
    aside: AsideStore | None = None
    """What a frontend's upstream hub refused for good."""


class AsideStore(Protocol):
    """Requests that were kept here, and that the upstream hub refused for good."""

    @property
    def requests(self) -> list[AsideRequest]:
        """Those that nobody has dealt with, oldest first."""

    async def retry(self, name: str) -> Published:
        """Publish a request again, as new messages."""

    async def drop(self, name: str) -> None:
        """Forget a request."""


class Door(Protocol):
    """An open door. One that is also a :class:`headrace.hub.sequence.CommitReceiver` receives each commit."""

    def tick(self, now: float) -> None:
        """Enforce deadlines; called a few times a second."""

    def relieved(self) -> None:
        """Read from publishers again: the hub is no longer congested."""

    def facts(self) -> dict[str, int]:
        """Return numbers for the status: subscribers and the like."""

    def stop(self) -> None:
        """Accept nothing and read nothing more."""

    async def close(self) -> None:
        """Send what is buffered and close every connection; the caller sets the deadline."""

    def abort(self) -> None:
        """Close everything that is still open, now."""


async def close_all(doors: Sequence[Door], seconds: float) -> None:
    """Close all doors at once; cut off what is still open after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(door.close() for door in doors))
    except TimeoutError:
        for door in doors:
            door.abort()
