"""Streams of a link connection, as fast as the client grants bytes and the tube takes them.

A client grants a stream **credit**, a number of bytes that may be on their way to it, and grants more as it takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.wire.link.message import Buffer


class StreamTarget(Protocol):
    """Where a stream's events go: its client's connection."""

    @property
    def full(self) -> bool:
        """Whether the tube cannot take more for now."""

    def event(self, head: dict[str, Any], body: Buffer | None = None) -> None:
        """Send one event."""

    def stream_over(self, stream_id: int, answer: Mapping[str, Any] | HeadraceError) -> None:
        """Send a stream's last answer, and forget it."""


class LinkStream(Protocol):
    """A stream as its connection sees it."""

    id: int

    @property
    def cost(self) -> int:
        """What its filter costs."""

    def grant(self, size: int) -> None:
        """Allow more bytes: the client has taken some."""

    def close(self) -> None:
        """Send nothing more."""

    def lose(self) -> None:
        """Send nothing more: the tube is lost, and it is unknown what the client has received."""

    def tick(self, now: float) -> None:
        """Do what depends on time."""

    def pump(self) -> None:
        """Send what there is, as far as credit and the tube allow."""


class Credit:
    """Bytes that may be on their way to a client."""

    __slots__ = ("_granted", "_under_way")

    def __init__(self, granted: int) -> None:
        self._granted = granted
        self._under_way = 0

    @property
    def room(self) -> int:
        """Bytes that may still be sent."""
        return max(0, self._granted - self._under_way)

    def allows(self, size: int) -> bool:
        """Return whether an event of ``size`` may be sent; once half the credit is free, even a longer event may.

        A client need not grant more before it has taken half, so waiting for more could last for ever.
        """
        return self._under_way * 2 <= self._granted or self._under_way + size <= self._granted

    def spend(self, size: int) -> None:
        """Count an event that was sent."""
        self._under_way += size

    def grant(self, size: int) -> None:
        """Count bytes that the client has taken."""
        self._under_way = max(0, self._under_way - size)


class CreditedStream:
    """The common part of all streams."""

    cost = 0
    """What its filter costs."""

    def __init__(self, stream_id: int, target: StreamTarget, credit: int) -> None:
        self.id = stream_id
        self._target = target
        self._credit = Credit(credit)
        self._closed = False

    def grant(self, size: int) -> None:
        """Allow more bytes: the client has taken some."""
        self._credit.grant(size)
        self.pump()

    def pump(self) -> None:
        """Send what there is, as far as credit and the tube allow."""
        raise NotImplementedError

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def lose(self) -> None:
        """Send nothing more: the client knows where to resume."""
        self.close()

    def tick(self, now: float) -> None:
        """Do what depends on time."""

    def _end(self, answer: Mapping[str, Any] | HeadraceError) -> None:
        self.close()
        self._target.stream_over(self.id, answer)
