"""Detecting a hub that serves another sequence than the one a client knows.

Repeats are normal, even many at once. But a hub that sends old messages for a long time and nothing new has lost its
log, or is another hub; a client that dropped them all as repeats would wait forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STALE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 60.0
_MESSAGES: Final = 3
"""A hub is stale after this many old messages over this long, with no new one and no such pause among them."""


@dataclass(slots=True)
class Staleness:
    """Counts old messages since the last new one."""

    suspected: bool = False
    _since: float = 0.0
    _last: float = float("-inf")
    _count: int = 0

    def progress(self) -> None:
        """Note a new message."""
        self.suspected = False
        self._last = float("-inf")

    def old(self, now: float) -> bool:
        """Note an old message; return whether the hub is stale."""
        if now - self._last > _PAUSE_SECONDS:
            self._since, self._count = now, 0
        self._last = now
        self._count += 1
        stale = self._count >= _MESSAGES and now - self._since >= STALE_SECONDS
        if stale:
            self._last = float("-inf")
        return stale
