"""The time that messages are stamped with: the machine's, unless that steps.

A clock that is set wrong for a moment, by hand or by a broken time server, must not stamp messages with a time that
everything after them has to wait for, nor make old messages look old enough to be removed. So a step is ignored until
it has lasted :data:`PATIENCE` seconds; meanwhile time follows the machine's uptime. Small differences are
followed at once: that is how a clock is kept right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP: Final = 1_000_000
"""Microseconds by which the clock may differ from what uptime says before that counts as a step."""

PATIENCE: Final = 300_000_000
"""Microseconds that a step must last to be believed."""


class SteadyClock:
    """Microseconds since 1970, by a clock that may step (``wall``) and one that does not (``uptime``)."""

    def __init__(self, wall: Callable[[], int], uptime: Callable[[], int]) -> None:
        self._wall = wall
        self._uptime = uptime
        self._offset = wall() - uptime()
        self._stepped_at: int | None = None
        self._stepped_to = 0
        """Where the clock was, against uptime, when the present step was first seen."""

    def now(self) -> int:
        """Return the time."""
        uptime = self._uptime()
        offset = self._wall() - uptime
        if abs(offset - self._offset) <= STEP:
            self._offset, self._stepped_at = offset, None
        elif self._stepped_at is None or abs(offset - self._stepped_to) > STEP:
            # Another step, even if nobody looked between the two: it has to last by itself.
            self._stepped_at, self._stepped_to = uptime, offset
        elif uptime - self._stepped_at >= PATIENCE:
            self._offset, self._stepped_at = offset, None
        return uptime + self._offset

    @property
    def stepped(self) -> bool:
        """Whether the machine's clock has stepped, and it is not known yet whether it stays there."""
        return self._stepped_at is not None
