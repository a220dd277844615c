"""Whether a hub serves another sequence than the one a client knows: everything it sends was received before.

A repeat is nothing unusual, nor are many at once. But a hub that sends old messages for a long time and nothing new has
lost its log, or is another one; a client that dropped them all as repeats would receive nothing for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STALE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 60.0
_MESSAGES: Final = 3
"""So many old messages over so long, none of them new, without a pause that would explain it."""


@dataclass(slots=True)
class Staleness:
    """For how long nothing has come but what came before."""

    suspected: bool = False
    _since: float = 0.0
    _last: float = float("-inf")
    _count: int = 0

    def progress(self) -> None:
        """Note a new message."""
        self.suspected = False
        self._last = float("-inf")

    def old(self, now: float) -> bool:
        """Note an old message; return whether that is no longer a coincidence."""
        if now - self._last > _PAUSE_SECONDS:
            self._since, self._count = now, 0
        self._last = now
        self._count += 1
        stale = self._count >= _MESSAGES and now - self._since >= STALE_SECONDS
        if stale:
            self._last = float("-inf")
        return stale
