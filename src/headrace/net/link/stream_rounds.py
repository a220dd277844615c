"""Every commit is a round through all streams at the head, a short part of it in each turn of the event loop.

A few streams are served at once, before the publisher has its answer. However many there are, the loop turns to
everybody else every :data:`TURN_SECONDS`. A stream takes all there is when its turn comes. So what is committed during
a round is one more round after it, however many commits there were.

A few filters are quickest where the messages are: on the event loop, at once. Many, or heavy ones, would hold up
everybody, publishers included. So all streams of a door share a budget for each turn of the loop
(:class:`FilterBudget`), in units of about a microsecond; what is past it is left to threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from time import perf_counter
from typing import Final, Protocol

TURN_SECONDS: Final = 0.002
"""Seconds of one turn; a stream that has begun is not interrupted."""


TURN: Final = 2000
"""Units in one turn."""

_EACH: Final = 100
"""Units of applying a filter to rows, however few; :data:`_ROWS` rows cost one more."""
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
        """What is left of the round under way."""
        self._again = False
        """Whether something was committed since it began."""

    def begin(self) -> None:
        """Go on with every stream."""
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
                    # One that fails is its own concern: the others go on.
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
