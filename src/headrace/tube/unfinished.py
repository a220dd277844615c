"""Memory for messages that have begun to arrive and are not whole, bounded for all connections together.

Each connection is bounded by the longest message, but many connections may each send half of one and wait. So all of
them report here what they hold. Well below the bound (:data:`WAITING`) connections that send more have to wait: they
are not read from until there is room. Of each address the one whose message began first goes on all the same, so that
there is always one that gets done.

Past that, peers that were silent for :data:`SILENCE` seconds in the middle of a message, though they were read from,
are cut off, those first that hold the most of all from one address. :data:`STRETCH` times the bound is never exceeded:
then somebody has to go in any case.

All of that could come within one turn of the event loop, and nobody else would be served meanwhile. So once
:data:`TURN_BYTES` have come in a turn, whoever sends more is read from in a later one, a few connections in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

SILENCE: Final = 2.0
"""Seconds without a byte after which an honest sender of a message under way is in trouble, too."""

WAITING: Final = 0.75
"""The share of the bound from which connections wait."""

TURN_BYTES: Final = 4 << 20
"""Bytes of unfinished messages that are taken in one turn of the event loop: a millisecond or two."""

AT_A_TIME: Final = 16
"""Connections that are read from again in one turn; each brings a quarter of a megabyte at a time."""

STRETCH: Final = 1.4
"""Times the bound at which somebody is cut off in any case."""


class Holder(Protocol):
    """A connection, as it is seen here."""

    @property
    def origin(self) -> str:
        """The address it comes from."""

    def wait_for_room(self) -> None:
        """Read nothing until :meth:`go_on` is called."""

    def go_on(self) -> None:
        """Read again."""

    def give_up(self, held: int, bound: int, /) -> None:
        """Cut off, and free the memory, because all hold too much."""


class UnfinishedBytes:
    """What all connections hold of messages that are not whole."""

    def __init__(self, bound: int, clock: Callable[[], float] = monotonic) -> None:
        self.bound = bound
        self.total = 0
        self._clock = clock
        self._held: dict[Holder, tuple[int, float]] = {}
        """Bytes of each, and when it last sent some, or began to be read from again."""
        self._lines: dict[str, dict[Holder, None]] = {}
        """Those of each address, in the order in which their messages began."""
        self._waiting: dict[Holder, None] = {}
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        """Calls something in the next turn of the event loop; set by its owner. Without it, turns are not bounded."""
        self._in_turn = 0
        """Bytes that have come in this turn, as far as that is known: only full turns are told apart."""
        self._paced: dict[Holder, None] = {}
        """Connections that are read from in a later turn."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Connections that wait for room."""
        return len(self._waiting)

    def hold(self, holder: Holder, size: int) -> None:
        """Note how much a connection holds now; it has just sent something."""
        before, _ = self._held.pop(holder, (0, 0.0))
        self.total += size - before
        if not size:
            self._leave(holder)
            if before:
                self._let_go()
            return
        # Put last: the first ones have been silent the longest.
        self._held[holder] = (size, self._clock())
        line = self._lines.setdefault(holder.origin, {})
        line.setdefault(holder)
        if size > before and self.total > WAITING * self.bound:
            self._make_room()
            if holder in self._held and self._crowded and next(iter(line)) is not holder:
                self._waiting[holder] = None
                self._paced.pop(holder, None)
                holder.wait_for_room()
                return
        if size > before and holder in self._held:
            self._pace(holder, size - before)

    def tick(self) -> None:
        """Cut off the silent, whom others may wait for; called a few times a second."""
        if self._waiting:
            self._make_room()
            self._let_go()

    def _pace(self, holder: Holder, came: int) -> None:
        """Let a connection wait for a later turn if this one has brought enough."""
        self._in_turn += came
        if self.call_soon is None or self._in_turn < TURN_BYTES or holder in self._waiting:
            return
        if not self._paced:
            self.call_soon(self._next_turn)
        self._paced[holder] = None
        holder.wait_for_room()

    def _next_turn(self) -> None:
        self._in_turn = 0
        for holder in list(self._paced)[:AT_A_TIME]:
            del self._paced[holder]
            holder.go_on()
        if self._paced and self.call_soon is not None:
            self.call_soon(self._next_turn)

    @property
    def _crowded(self) -> bool:
        return self.total > WAITING * self.bound

    def _leave(self, holder: Holder) -> None:
        line = self._lines.get(holder.origin)
        if line is not None:
            line.pop(holder, None)
            if not line:
                del self._lines[holder.origin]
        self._waiting.pop(holder, None)

    def _let_go(self) -> None:
        """Let those go on that need not wait any longer."""
        now = self._clock()
        for holder in list(self._waiting):
            if not self._crowded or next(iter(self._lines[holder.origin])) is holder:
                del self._waiting[holder]
                # It was not read from meanwhile: its silence begins now.
                self._held[holder] = (self._held.pop(holder)[0], now)
                holder.go_on()

    def _make_room(self) -> None:
        now, by_address = self._clock(), Counter[str]()
        for holder, (size, _) in self._held.items():
            by_address[holder.origin] += size
        while self._crowded:
            hard = self.total > STRETCH * self.bound
            silent = [
                each
                for each, (_, at) in self._held.items()
                if hard or (now - at >= SILENCE and each not in self._waiting)
            ]
            if not silent:
                return
            # Of equals the first, which has been silent the longest.
            chosen = max(silent, key=lambda each: by_address[each.origin])
            total, (size, _) = self.total, self._held.pop(chosen)
            by_address[chosen.origin] -= size
            self.total -= size
            self._leave(chosen)
            self._paced.pop(chosen, None)
            chosen.give_up(total, self.bound)
