"""The time that stamps messages: the machine's clock, unless the clock steps.

A clock may be set wrong for a moment, by hand or by a broken time server. It must not stamp messages with a time that
later messages have to wait for, nor make messages look old enough to be removed. So a step is ignored until it has
lasted :data:`PATIENCE`; in the meantime the time follows the machine's uptime. Small differences, which keep a clock
right, are followed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP: Final = 1_000_000
"""Microseconds by which the clock may differ from the uptime before that counts as a step."""

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
        """The clock's distance from the uptime when the current step was first seen."""

    def now(self) -> int:
        """Return the time."""
        uptime = self._uptime()
        offset = self._wall() - uptime
        if abs(offset - self._offset) <= STEP:
            self._offset, self._stepped_at = offset, None
        elif self._stepped_at is None or abs(offset - self._stepped_to) > STEP:
            # This is another step, even if nobody looked between the two, so it has to last by itself.
            self._stepped_at, self._stepped_to = uptime, offset
        elif uptime - self._stepped_at >= PATIENCE:
            self._offset, self._stepped_at = offset, None
        return uptime + self._offset

    @property
    def stepped(self) -> bool:
        """Whether the machine's clock has stepped and the step is not trusted yet."""
        return self._stepped_at is not None
