"""Authentication, for every door.

A client proves that it has its key by a token over its id and the time. The time must be within
:data:`WINDOW_SECONDS` of the hub's, and a token is good once, so that an eavesdropper cannot replay it. Used tokens are
remembered until they expire, whichever door they were used at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final

from headrace.config import Secret
from headrace.wire.sdk.auth import Auth, client_id_text, is_signed

WINDOW_SECONDS: Final = 300.0

MAX_USED: Final = 100_000
"""Used tokens remembered per client. A client that makes more has to wait; others do not."""


class Denied(StrEnum):
    """Why authentication failed; the label of its counter."""

    UNKNOWN = "unknown_client"
    WRONG = "wrong_token"
    STALE = "stale_timestamp"
    REPEATED = "repeated_token"
    TOO_MANY = "too_many_tokens"


ADVICE: Final = {
    Denied.UNKNOWN: "check the client id: it is not among the hub's auth.clients",
    Denied.WRONG: "check the key (HEADRACE_KEY, keyFile): it is not the one that the hub has for this client id",
    Denied.STALE: f"check the clocks: client and hub differ by more than {WINDOW_SECONDS:g} s",
    Denied.REPEATED: "a token is good once: sign another",
    Denied.TOO_MANY: f"more than {MAX_USED:,} tokens in {WINDOW_SECONDS:g} s: wait",
}
"""Advice for the user, by reason."""


class Authentication:
    """The clients' keys, and the tokens that have been used."""

    def __init__(self, clients: Mapping[str, Secret], *, required: bool, allow_sha1: bool = False) -> None:
        self.required = required
        self._clients = clients
        self._allow_sha1 = allow_sha1
        self._used: set[str] = set()
        self._expiring: list[tuple[float, str, bytes]] = []
        """A heap of used tokens by expiry, each with its client."""
        self._counts: Counter[bytes] = Counter()

    def judge(self, auth: Auth, now: float) -> Denied | None:
        """Return why a client's identity is not accepted, or ``None``; ``now`` in seconds since 1970."""
        if not self.required:
            return None
        key = self._clients.get(client_id_text(auth.client_id))
        # The same work for an unknown client: timing must not reveal which ids exist.
        signed = is_signed(auth, (key.reveal() if key else "unknown").encode(), allow_sha1=self._allow_sha1)
        if key is None:
            return Denied.UNKNOWN
        if not signed:
            return Denied.WRONG
        if abs(now - auth.seconds) > WINDOW_SECONDS:
            return Denied.STALE
        return self._use(auth, now)

    def _use(self, auth: Auth, now: float) -> Denied | None:
        while self._expiring and self._expiring[0][0] < now:
            _, expired, client = heappop(self._expiring)
            self._used.discard(expired)
            self._counts[client] -= 1
        token = auth.token.lower()
        if token in self._used:
            return Denied.REPEATED
        if self._counts[auth.client_id] >= MAX_USED:
            return Denied.TOO_MANY
        self._used.add(token)
        self._counts[auth.client_id] += 1
        heappush(self._expiring, (auth.seconds + WINDOW_SECONDS, token, auth.client_id))
        return None
