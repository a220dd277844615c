"""What a connection to the backbone is, whatever carries it: the words between a driver and its client.

A driver is dull: it decodes what comes and hands it to its :class:`Sink`, writes what it is given, and says once when
the connection is lost. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.client.fyrehose.subscription import Outgoing
from headrace.errors import WireError
from headrace.message import Run
from headrace.wire.fyrehose.stream import DeliverRun, Forward


class Sink(Protocol):
    """Who takes what a link brings."""

    def delivered(self, run: DeliverRun, *, from_backbone: bool) -> None:
        """DELIVERs have come, from the hub or from another client."""

    def acknowledged(self) -> None:
        """The hub has answered a KEEPALIVE."""

    def forward(self, frame: Forward, *, from_backbone: bool) -> None:
        """A FORWARD has come."""

    def refused(self, error: WireError) -> None:
        """Something broke the protocol; a stream is lost with it."""

    def unsent(self, datagrams: int) -> None:
        """The system did not take so many datagrams."""

    def lost(self, link: Link, reason: str) -> None:
        """The connection has ended, and not by our :meth:`Link.close` or :meth:`Link.abort`."""


class Link(Protocol):
    """One connection, open from its making until it is closed or lost."""

    max_data: int
    """The most bytes a pushed message may have here."""

    def send(self, work: Sequence[Outgoing]) -> None:
        """Send at once, or never: what is here is small and repeated by its protocol."""

    async def push(self, run: Run) -> None:
        """Send a PUSH per payload, and wait until there is room for more."""

    def read(self, wanted: bool, /) -> None:
        """Go on reading, or let what comes wait."""

    async def close(self, deadline: float) -> None:
        """Close once the hub has what was pushed, or at the event loop's time ``deadline``."""

    def abort(self) -> None:
        """Close at once."""
