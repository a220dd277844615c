"""Rounds: after a commit all streams at the head are served, a short part of them in each turn of the event loop.

A few streams are served at once, before the publisher has its answer. If there are many, the loop serves everything
else every :data:`TURN_SECONDS`. A stream takes everything there is when its turn comes, so all commits during a round
make just one more round.

Cheap filters are applied fastest on the event loop, where the messages are. Many filters, or heavy ones, would hold up
everything else, even publishers. So all streams of a door share a budget for each turn of the loop
(:class:`FilterBudget`), in units of about a microsecond; threads do the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from time import perf_counter
from typing import Final, Protocol

TURN_SECONDS: Final = 0.002
"""Seconds of one turn; a stream is not interrupted while it sends."""


TURN: Final = 2000
"""Units in one turn."""

_EACH: Final = 100
"""Least units for applying a filter to rows; each :data:`_ROWS` rows cost one more."""
_ROWS: Final = 4


class Pumped(Protocol):
    """A stream."""

    def pump(self) -> None:
        """Send what there is."""


class Streaming(Protocol):
    """A connection with its streams."""

    def open_streams(self) -> Collection[Pumped]:
        """Return its streams, as they are now."""


class StreamRounds:
    """The rounds of one door."""

    def __init__(self, connections: Collection[Streaming]) -> None:
        self._connections = connections
        self._round: Iterator[Pumped] | None = None
        """The rest of the current round."""
        self._again = False
        """Whether there was a commit since the round began."""

    def begin(self) -> None:
        """Continue every stream."""
        if self._round is not None:
            self._again = True
            return
        self._round = self._streams()
        self._go_on()

    def _go_on(self) -> None:
        until = perf_counter() + TURN_SECONDS
        while self._round is not None:
            for stream in self._round:
                due = True
                try:
                    stream.pump()
                    due = perf_counter() >= until
                finally:
                    # A stream that fails must not stop the others.
                    if due:
                        asyncio.get_running_loop().call_soon(self._go_on)
                if due:
                    return
            self._round = self._streams() if self._again else None
            self._again = False

    def _streams(self) -> Iterator[Pumped]:
        for connection in tuple(self._connections):
            yield from connection.open_streams()


class FilterBudget:
    """The budget of one door."""

    def __init__(self) -> None:
        self.spent = 0
        """Units spent in this turn."""
        self.most = 0
        """Most units that a turn has spent."""

    def glance(self, batches: int, unknown: int = 0) -> bool:
        """Spend the cost of deciding about whole batches, if the budget has it.

        ``unknown`` topics are new to the filter, so its pattern has to be matched.
        """
        return self._take(1 + batches + _EACH * unknown)

    def apply(self, rows: int) -> bool:
        """Spend the cost of applying a filter to rows, if the budget has it."""
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
