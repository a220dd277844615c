"""Turns of the event loop, shared fairly among peers: with the rest of what it has sent, a peer waits in line.

One read may bring ten thousand requests, and a hundred connections may be read in one turn. Nobody else would be served
until all of that is done. So a connection takes :data:`AT_ONCE` frames of a read, or one if the turn has brought enough
(:data:`IN_A_TURN`). With the rest it waits in line, unread. In each turn the lines go on for :data:`TURN_SECONDS`, or
until :data:`READERS` of them are read from again: one connection of each address after the other, each with some
frames. So an address that has more connections, or sends
more on them, waits longer for itself.

A thousand peers that each send one short thing at the same moment, which costs a tenth of a millisecond, would make a
long turn, too. So after :data:`FEW_READS` and :data:`TURN_SECONDS` in a turn, what is read is kept as it is and waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

AT_ONCE: Final = 32
"""Frames that one connection takes before others have their turn: some milliseconds at most."""

FRAME_BYTES: Final = 8 << 10
"""Bytes that cost about as much as a frame; a shorter read costs what is in it."""

IN_A_TURN: Final = 128
"""Frames that are taken in one turn as they are read, by all connections together, before each takes only one."""

TURN_SECONDS: Final = 0.008
"""Seconds of one turn in which those in line go on."""

FEW_READS: Final = 16
"""Reads that come before a clock is asked: nobody who sends a message now and then pays for it."""

READERS: Final = 4
"""Connections in line that are read from again in one turn and fill their buffers: with those it has brought enough."""

GoOn = Callable[[], bool | None]
"""Goes on; returns whether a connection is read from again that fills its buffer."""


class FairTurns:
    """The lines of all connections that have frames left."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        """Calls something in the next turn of the event loop; set by its owner before there are connections."""
        self.left = IN_A_TURN
        """Frames that may still be taken in this turn; at 0, what is read is better taken in a later one."""
        self._clock = clock
        self._lines: dict[str, deque[GoOn]] = {}
        """Who goes on next, by address; the first line is the next."""
        self._due = False
        self.reads = 0
        """Reads in this turn, counted by whoever reads; before :data:`FEW_READS` the turn is not :attr:`over`."""
        self._until = 0.0
        """When the present turn has taken as long as it may."""

    @property
    def over(self) -> bool:
        """Whether this turn has taken as long as it may: what was read now is better kept for a later one."""
        if self.reads < FEW_READS:
            return False
        if not self._due:
            self._look_ahead()
            return False
        if self._clock() < self._until:
            return False
        self.left = min(self.left, 0)
        return True

    def at_once(self, most: int = AT_ONCE) -> int:
        """Return how many frames a connection may take that was just read."""
        self._look_ahead()
        return max(1, min(most, self.left))

    def spend(self, frames: int) -> None:
        """Count what costs as much as so many frames."""
        self._look_ahead()
        self.left -= frames

    def wait(self, origin: str, go_on: GoOn) -> None:
        """Call ``go_on`` when it is its turn: to take :data:`AT_ONCE` frames, and wait again if there are more."""
        self._lines.setdefault(origin, deque()).append(go_on)
        self._look_ahead()

    def _look_ahead(self) -> None:
        if not self._due and self.call_soon is not None:
            self._due = True
            self._until = self._clock() + TURN_SECONDS
            self.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._due, self.reads, readers = False, 0, 0
        until = self._clock() + TURN_SECONDS
        while self._lines:
            origin = next(iter(self._lines))
            line = self._lines.pop(origin)
            go_on = line.popleft()
            if line:
                self._lines[origin] = line
            readers += bool(go_on())
            if readers == READERS or self._clock() >= until:
                break
        # What is read after them is counted by itself.
        self.left = IN_A_TURN
        if self._lines:
            self._look_ahead()
