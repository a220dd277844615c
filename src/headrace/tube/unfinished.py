"""Memory for messages that have begun to arrive and are not whole, bounded for all connections together.

Each connection is bounded by the longest message, but many connections may each send half of one and wait. So all of
them report here what they hold. Past the bound, peers that were silent for :data:`SILENCE` seconds in the middle of a
message are cut off, those first that hold the most of all from one address. Peers that keep sending are left alone up
to :data:`STRETCH` times the bound: a burst of long messages is no attack. Past that, somebody has to go in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

SILENCE: Final = 2.0
"""Seconds without a byte after which an honest sender of a message under way is in trouble, too."""

STRETCH: Final = 4
"""Times the bound that peers may hold who keep sending."""


class Holder(Protocol):
    """A connection, as it is seen here."""

    @property
    def origin(self) -> str:
        """The address it comes from."""

    def give_up(self, held: int, bound: int, /) -> None:
        """Cut off, and free the memory, because all hold too much."""


class UnfinishedBytes:
    """What all connections hold of messages that are not whole."""

    def __init__(self, bound: int, clock: Callable[[], float] = monotonic) -> None:
        self.bound = bound
        self.total = 0
        self._clock = clock
        self._held: dict[Holder, tuple[int, float]] = {}
        """Bytes of each, and when it last sent some."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, holder: Holder, size: int) -> None:
        """Note how much a connection holds now; it has just sent something."""
        before, _ = self._held.pop(holder, (0, 0.0))
        self.total += size - before
        if size:
            # Put last: the first ones have been silent the longest.
            self._held[holder] = (size, self._clock())
            if size > before and self.total > self.bound:
                self._make_room()

    def _make_room(self) -> None:
        now, by_address = self._clock(), Counter[str]()
        for holder, (size, _) in self._held.items():
            by_address[holder.origin] += size
        while self.total > self.bound:
            hard = self.total > STRETCH * self.bound
            silent = [each for each, (_, at) in self._held.items() if hard or now - at >= SILENCE]
            if not silent:
                return
            # Of equals the first, which has been silent the longest.
            chosen = max(silent, key=lambda each: by_address[each.origin])
            total, (size, _) = self.total, self._held.pop(chosen)
            by_address[chosen.origin] -= size
            self.total -= size
            chosen.give_up(total, self.bound)
