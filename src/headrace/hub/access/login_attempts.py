"""Failed logins: after each failure the next attempt has to wait, so that nobody can guess a key by trying.

Pauses are for a claimed identity at an address. The same identity at another address is not affected, so a stranger
cannot lock a client out. After failures under many identities the whole address has to wait, except for identities that
were proven there before. An attempt during a pause is refused without being checked. So no attempt waits in memory, and
a refusal does not reveal whether the identity exists.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from headrace.hub.access.addresses import parse_address

FREE: Final = 5
"""Failures of an identity at an address before the first pause, since people mistype and clients retry."""
FREE_OF_ADDRESS: Final = 25
"""Failures of all identities at an address before the first pause."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
FORGET_SECONDS: Final = 600.0
"""Seconds without a further failure after which failures are forgotten."""
MAX_KEPT: Final = 8192
"""Most identities at addresses that are remembered; those unchanged for longest are forgotten first."""

EVERYBODY: Final = ""
"""Stands for all identities of an address."""


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last: float = 0.0
    until: float = 0.0


class LoginAttempts:
    """Failures by address and claimed identity, in bounded memory; ``now`` in seconds of any clock."""

    def __init__(self) -> None:
        self._failed: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._proven: OrderedDict[tuple[str, str], None] = OrderedDict()

    def pause(self, who: str, address: str, now: float) -> float:
        """Return for how many seconds an identity at an address has to wait; 0 if it may try."""
        place = place_of(address)
        pause = self._pause((place, who), now)
        if (place, who) not in self._proven:
            pause = max(pause, self._pause((place, EVERYBODY), now))
        return pause

    def failed(self, who: str, address: str, now: float) -> None:
        """Note a failure."""
        place = place_of(address)
        self._note((place, who), FREE, now)
        self._note((place, EVERYBODY), FREE_OF_ADDRESS, now)

    def succeeded(self, who: str, address: str) -> None:
        """Note that an identity was proven, and forget its earlier failures."""
        key = (place_of(address), who)
        self._failed.pop(key, None)
        self._proven[key] = None
        self._proven.move_to_end(key)
        if len(self._proven) > MAX_KEPT:
            self._proven.popitem(last=False)

    def _pause(self, key: tuple[str, str], now: float) -> float:
        found = self._failed.get(key)
        # A clock that was set back must not make a pause longer.
        return 0.0 if found is None else min(max(found.until - now, 0.0), LONGEST_PAUSE)

    def _note(self, key: tuple[str, str], free: int, now: float) -> None:
        found = self._failed.get(key)
        if found is None or abs(now - found.last) > FORGET_SECONDS:
            found = self._failed[key] = _Failures()
        self._failed.move_to_end(key)
        found.count += 1
        found.last = now
        if found.count >= free:
            # Beyond the longest pause, doubling would only make a number too large.
            found.until = now + min(FIRST_PAUSE * 2.0 ** min(found.count - free, 16), LONGEST_PAUSE)
        if len(self._failed) > MAX_KEPT:
            self._failed.popitem(last=False)

    def __len__(self) -> int:
        return len(self._failed)


def place_of(address: str) -> str:
    """Return what counts as one address: in IPv6 the whole network of 64 bits that one machine may have.

    >>> place_of("192.0.2.7"), place_of("2001:db8::1:2:3:4")
    ('192.0.2.7', '2001:db8::/64')
    """
    try:
        parsed = parse_address(address)
    except ValueError:
        return address
    return str(parsed) if parsed.version == 4 else str(ip_network((parsed, 64), strict=False))
