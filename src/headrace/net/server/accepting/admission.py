"""The one place that admits or refuses a new connection: counts of open ones, in all and by address."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from headrace.platforms import allow_open_files

RESERVED_FILES: Final = 256
"""Open files reserved for the log and all else: a hub that cannot open its next segment refuses every publisher."""

logger = logging.getLogger("headrace")


def room_for(connections: int) -> int:
    """Return how many of ``connections`` fit the limit on open files, after raising it as far as allowed."""
    allowed = allow_open_files(connections + RESERVED_FILES)
    if allowed >= connections + RESERVED_FILES:
        return connections
    room = max(allowed - RESERVED_FILES, allowed // 2)
    logger.warning(
        "room for %d connections, not for %d (limits.connections): only %d files may be open (ulimit -n)",
        room,
        connections,
        allowed,
    )
    return room


class Admission:
    """Bounded counts of open connections, shared by the doors.

    An address has its slots at each door, so that connections at one do not shut the others for everybody who is behind
    the same address translator; at all doors together it gets no more than half of what there is. The http door has an
    admission of its own: an operator must be able to look at a hub whose other doors are full.
    """

    def __init__(self, *, per_address: int, total: int, setting: str = "limits.connections") -> None:
        self._per_address = per_address
        self._total = total
        self._at_all_doors = max(per_address, total // 2)
        """Slots of one address at all doors together."""
        self._setting = setting
        """The limit as a refusal names it."""
        self._open: Counter[tuple[str, str]] = Counter()
        """Connections by address and door."""
        self._of_address: Counter[str] = Counter()
        self._count = 0
        self.shut: str | None = None
        """The reason why nobody is admitted, if there is one."""

    def admit(self, address: str, door: str = "") -> str | None:
        """Take one more connection from ``address`` at ``door``; return why not, if it must be refused."""
        if self.shut is not None:
            return self.shut
        if self._count >= self._total:
            return f"{self._total} connections are open ({self._setting})"
        if self.is_crowded(address, door):
            at = f" at {door}" if door else ""
            limit = f"{self._setting}_per_address"
            return f"{self._per_address} connections from {address} are open{at} ({limit})"
        if self._of_address[address] >= self._at_all_doors:
            return f"{self._at_all_doors} connections from {address} are open: half of {self._setting}"
        self._open[address, door] += 1
        self._of_address[address] += 1
        self._count += 1
        return None

    def is_crowded(self, address: str, door: str = "") -> bool:
        """Whether ``address`` has as many connections at ``door`` as one may have."""
        return self._open[address, door] >= self._per_address

    def release(self, address: str, door: str = "") -> None:
        """Release a connection that :meth:`admit` took."""
        self._count -= 1
        self._open[address, door] -= 1
        if self._open[address, door] <= 0:
            del self._open[address, door]
        self._of_address[address] -= 1
        if self._of_address[address] <= 0:
            del self._of_address[address]

    def __len__(self) -> int:
        return self._count
