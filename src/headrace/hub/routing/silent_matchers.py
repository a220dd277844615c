"""Which matchers on the ring have fallen silent: those go off it, and their share to the others.

A matcher hears those that it dials, by name. One that it has heard, and hears no more, is gone after ``patience``
seconds. One that it has never heard may have died before this process began, which cannot be told from one that others
dial and this one does not. So a name on the ring that stays unheard is given as long, and then goes off the ring,
**once**, and only while some of those that are dialled have not said who they are: it may be one of them. Whoever lives
after all finds itself off the ring, joins again, and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.hub.routing.matcher_ring import MAX_MATCHERS

MAX_SPARED: Final = MAX_MATCHERS
"""Names that were taken off unheard, and are not again; of more, the oldest are forgotten."""


class Silence:
    """What one matcher has heard of the others; ``me`` is its own name."""

    def __init__(self, me: str, patience: float) -> None:
        self._me = me
        self._patience = patience
        self._heard: dict[str, float] = {}
        self._unheard: dict[str, float] = {}
        """Since when a name is on the ring that was not heard."""
        self._spared: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        """Whether a matcher was heard lately."""
        return name in self._heard

    def heard(self, name: str, now: float) -> None:
        """A matcher has said that it lives."""
        self._heard[name] = now
        self._unheard.pop(name, None)

    def gone(self, ring: Iterable[str], now: float, *, all_here: bool) -> list[str]:
        """Those on the ring that are to go off it now; ``all_here``: all that are dialled have said who they are."""
        on_ring = set(ring)
        late = [name for name, heard in self._heard.items() if now - heard >= self._patience]
        for name in late:
            del self._heard[name]
        strangers = [name for name in on_ring if name != self._me and name not in self._heard]
        self._unheard = {name: self._unheard.get(name, now) for name in strangers if name not in self._spared}
        gone = [name for name in late if name in on_ring]
        if not all_here:
            unheard = [
                name
                for name, since in self._unheard.items()
                if name not in gone and now - since >= self._patience
            ]
            self._spare(unheard)
            gone += unheard
        return sorted(gone)

    def stayed(self, name: str) -> None:
        """One that was to go off the ring could not be taken off: it is judged anew."""
        self._spared.pop(name, None)

    def _spare(self, names: list[str]) -> None:
        for name in names:
            del self._unheard[name]
            self._spared[name] = None
        while len(self._spared) > MAX_SPARED:
            del self._spared[next(iter(self._spared))]
