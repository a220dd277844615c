"""The backlog of a relay: how many bytes wait for another hub, and for how long there was no progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.hub.sequence import Hub
from headrace.message import Batch

SILENCES: Final = 3
"""How many times ``patience`` a connected hub may take for an answer, since it may wait that long itself."""

LEAST_SECONDS: Final = 1.0
"""Least patience with a connected hub: with none, publishers would be refused before an answer can come."""

_SLOWEST: Final = 4 << 20
"""Bytes of a commit that the slowest hub takes in a second: it may pass them on to another hub itself."""


class Standstill:
    """Measures for how long something that is awaited has made no progress."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._progress: object = None

    def seconds(self, now: float, progress: object, *, awaited: bool) -> float:
        """Return for how long ``progress`` has been the same while something was awaited."""
        if not awaited or progress != self._progress:
            self._since, self._progress = now, progress
        return now - self._since


class RelayBacklog:
    """The queue to another hub: publishers wait while it is too long; requests that wait too long are refused."""

    def __init__(self, hub: Hub, *, patience: float, most: int, now: float) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Asks the driver to send what is due."""
        self._hub = hub
        self._patience = patience
        self._patience_connected = max(patience, LEAST_SECONDS)
        self.silence = silence_of(patience)
        """Seconds that a connected hub may take to answer a request."""
        self._most = most
        self.size = 0
        """Bytes of requests that wait or have no answer yet."""
        self._lost_at: float | None = now
        """Time when the connection was lost; ``None`` once the next connection has worked."""

    @property
    def congested(self) -> bool:
        """Whether publishers must wait."""
        return self.size > self._most

    def lost(self, now: float) -> None:
        """Note that the connection is lost."""
        if self._lost_at is None:
            self._lost_at = now

    def _release(self, size: int) -> None:
        was_congested = self.congested
        self.size -= size
        if was_congested and not self._hub.congested:
            self._hub.relieved()


def silence_of(patience: float) -> float:
    """Return how many seconds a connected hub may take to answer a request.

    >>> silence_of(10.0), silence_of(0.0)
    (30.0, 3.0)
    """
    return SILENCES * max(patience, LEAST_SECONDS)


def silence_after(rows: Sequence[Batch], patience: float) -> float:
    """Return how many seconds a connected hub may take to answer a commit of these rows."""
    return silence_of(patience) + sum(batch.size for batch in rows) / _SLOWEST
