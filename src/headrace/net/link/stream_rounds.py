"""Every commit is a round through all streams at the head, a short part of it in each turn of the event loop.

A few streams are served at once, before the publisher has its answer. However many there are, the loop turns to
everybody else every :data:`TURN_SECONDS`. A stream takes all there is when its turn comes. So what is committed during
a round is one more round after it, however many commits there were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from time import perf_counter
from typing import Final, Protocol

TURN_SECONDS: Final = 0.002
"""Seconds of one turn; a stream that has begun is not interrupted."""


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
