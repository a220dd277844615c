"""Sessions of the dashboard: who has logged in, by a random cookie.

A session is for a principal as it was at the login. It ends when it is logged out, is not used for
:data:`IDLE_SECONDS` or is :data:`LONGEST_SECONDS` old, when its principal is gone or is proven by something else, when
its principal has too many newer ones, and when the hub stops. The hub keeps only a hash of the cookie.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from headrace.hub.access.principal import Principal
from headrace.hub.access.principals import Principals

IDLE_SECONDS: Final = 3600.0
LONGEST_SECONDS: Final = 12 * 3600.0

MAX_SESSIONS: Final = 1024
MAX_OF_PRINCIPAL: Final = 64
"""One principal's browsers; past it the session that was used the longest ago ends."""

_COOKIE_BYTES: Final = 32


@dataclass(slots=True)
class Session:
    """One login."""

    principal: Principal
    began: float
    used: float


class Sessions:
    """The open sessions, least recently used first; ``now`` in seconds of a steady clock."""

    def __init__(self) -> None:
        self._open: OrderedDict[bytes, Session] = OrderedDict()

    def begin(self, principal: Principal, now: float) -> str:
        """Begin a session; return its cookie."""
        own = [key for key, session in self._open.items() if session.principal.name == principal.name]
        for key in own[: max(len(own) - MAX_OF_PRINCIPAL + 1, 0)]:
            del self._open[key]
        while len(self._open) >= MAX_SESSIONS:
            self._open.popitem(last=False)
        cookie = secrets.token_urlsafe(_COOKIE_BYTES)
        self._open[_key(cookie)] = Session(principal, now, now)
        return cookie

    def find(self, cookie: str, principals: Principals, now: float) -> Principal | None:
        """Return who has a cookie, as the principal is now; ``None`` if the session is over."""
        key = _key(cookie)
        session = self._open.get(key)
        if session is None:
            return None
        current = principals.named(session.principal.name)
        expired = now - session.used > IDLE_SECONDS or now - session.began > LONGEST_SECONDS
        # Who has another key now has to show that: the old one may be known to somebody.
        if expired or current is None or not session.principal.proofs <= current.proofs:
            del self._open[key]
            return None
        session.used = now
        self._open.move_to_end(key)
        return current

    def end(self, cookie: str) -> None:
        """End a session."""
        self._open.pop(_key(cookie), None)

    def __len__(self) -> int:
        return len(self._open)


def _key(cookie: str) -> bytes:
    # The table's own comparisons say nothing about a cookie that nobody has.
    return sha256(cookie.encode(errors="replace")).digest()
