"""How much filtering the event loop does in one turn; what is past it is left to threads.

A few filters are quickest where the messages are: on the event loop, at once. Many, or heavy ones, would hold up
everybody, publishers included. So all streams of a door share a budget for each turn of the loop, in units of about a
microsecond.
"""

from __future__ import annotations

import asyncio
from typing import Final

TURN: Final = 2000
"""Units in one turn."""

_EACH: Final = 100
"""Units of applying a filter to rows, however few; :data:`_ROWS` rows cost one more."""
_ROWS: Final = 4


class FilterBudget:
    """The budget of one door."""

    def __init__(self) -> None:
        self.spent = 0
        """Units of this turn."""
        self.most = 0
        """The most that a turn has taken."""

    def glance(self, batches: int, unknown: int = 0) -> bool:
        """Take what deciding about whole batches costs, if there is room for it.

        ``unknown`` topics are new to the filter's pattern, which has to be matched.
        """
        return self._take(1 + batches + _EACH * unknown)

    def apply(self, rows: int) -> bool:
        """Take what applying a filter to rows costs, if there is room for it."""
        return self._take(_EACH + rows // _ROWS)

    def _take(self, units: int) -> bool:
        if self.spent + units > TURN:
            return False
        if not self.spent:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self.spent += units
        return True

    def _next_turn(self) -> None:
        self.most = max(self.most, self.spent)
        self.spent = 0
