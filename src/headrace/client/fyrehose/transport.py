"""The words between a connection to the backbone and its driver, whatever carries it.

A driver is dull: it decodes what comes and hands it to its :class:`FyrehoseReceiver`, writes what it is given, and
reports once that the connection is lost. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.client.fyrehose.subscription import Outgoing
from headrace.errors import WireError
from headrace.message import Run
from headrace.wire.fyrehose.stream import DeliverRun, Forward


class FyrehoseReceiver(Protocol):
    """Takes what a transport brings."""

    def delivered(self, run: DeliverRun, *, from_backbone: bool) -> None:
        """Take DELIVERs, from the hub or from another client."""

    def acknowledged(self) -> None:
        """Take the hub's answer to a KEEPALIVE."""

    def forward(self, frame: Forward, *, from_backbone: bool) -> None:
        """Take a FORWARD."""

    def refused(self, error: WireError) -> None:
        """Note bytes that break the protocol; a stream is lost with them."""

    def unsent(self, datagrams: int) -> None:
        """Note datagrams that the system did not take."""

    def lost(self, transport: FyrehoseTransport, reason: str) -> None:
        """Note the end of the connection, unless it came by our own ``close`` or ``abort``."""


class FyrehoseTransport(Protocol):
    """One connection, open from its making until it is closed or lost."""

    max_data: int
    """The most bytes a published message may have here."""

    @property
    def ended(self) -> str | None:
        """Why it is over, if it is."""

    def send(self, work: Sequence[Outgoing]) -> None:
        """Send at once, or never: this is small, and its protocol repeats it."""

    async def push(self, run: Run) -> None:
        """Send a PUSH per payload, and wait until there is room for more."""

    def read(self, wanted: bool, /) -> None:
        """Go on reading, or let what comes wait."""

    async def close(self, deadline: float) -> None:
        """Close once the hub has what was pushed, or at the event loop's time ``deadline``."""

    def abort(self) -> None:
        """Close at once."""
