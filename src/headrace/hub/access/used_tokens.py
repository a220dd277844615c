"""Used tokens: each is valid once, even after a restart.

A token names no hub and no connection, so it has to be remembered for as long as its time is accepted. Each token is
stored on the disk before it is accepted (:class:`TokenMemory`), and read back after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

MAX_USED: Final = 100_000
"""Most used tokens that are remembered per client. A client that uses more has to wait; others do not."""

DIGEST_BYTES: Final = 20


class UsedToken(NamedTuple):
    """What is needed to recognise a token."""

    expires: float
    """When its time is no longer accepted, in seconds since 1970."""
    client: bytes
    digest: bytes


class TokenMemory(Protocol):
    """Where used tokens outlive the hub's process."""

    def remember(self, token: UsedToken) -> None:
        """Keep a token."""


class UsedTokens:
    """The used tokens that are not expired."""

    def __init__(self, known: Iterable[UsedToken] = (), memory: TokenMemory | None = None) -> None:
        self._memory = memory
        self._used: set[bytes] = set()
        self._expiring: list[UsedToken] = []
        """A heap of them by expiry."""
        self._counts: Counter[bytes] = Counter()
        for token in known:
            self._keep(token)

    def is_used(self, client: bytes, token: str, now: float) -> bool:
        """Whether a client has used a token."""
        while self._expiring and self._expiring[0].expires < now:
            expired = heappop(self._expiring)
            self._used.discard(expired.digest)
            self._counts[expired.client] -= 1
            if not self._counts[expired.client]:
                del self._counts[expired.client]
        return _digest(client, token) in self._used

    def is_full(self, client: bytes) -> bool:
        """Return whether a client has used as many tokens as it may."""
        return self._counts[client] >= MAX_USED

    def use(self, client: bytes, token: str, expires: float) -> None:
        """Use a token up."""
        used = UsedToken(expires, client, _digest(client, token))
        if self._memory is not None:
            self._memory.remember(used)
        self._keep(used)

    def _keep(self, token: UsedToken) -> None:
        if token.digest not in self._used:
            self._used.add(token.digest)
            self._counts[token.client] += 1
            heappush(self._expiring, token)

    def __len__(self) -> int:
        return len(self._used)


def _digest(client: bytes, token: str) -> bytes:
    # Hex digits may come in either case.
    return sha256(client + token.lower().encode(errors="replace")).digest()[:DIGEST_BYTES]
