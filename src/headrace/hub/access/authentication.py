"""Authentication, for every door.

A client proves that it has its key by a token: an HMAC over its id, the time, and, if its protocol has room for one,
the hub's challenge.

- At the link and at SPP the hub gives each connection a challenge, which consists of the id of the hub's log and a
  random number. A token is valid only on that connection.
- The SDK's protocol has no room for a challenge. Its token is valid once at this hub (:mod:`used_tokens
  <headrace.hub.access.used_tokens>`), within :data:`WINDOW_SECONDS` of the hub's time.

Failed attempts make the next ones wait (:mod:`login_attempts <headrace.hub.access.login_attempts>`).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.config import Secret
from headrace.hub.access.login_attempts import LoginAttempts
from headrace.hub.access.used_tokens import MAX_USED, UsedTokens
from headrace.wire.sdk.auth import Auth, client_id_text, is_signed

WINDOW_SECONDS: Final = 300.0


class Denied(StrEnum):
    """Why authentication failed; the label of its counter."""

    UNKNOWN = "unknown_client"
    WRONG = "wrong_token"
    UNBOUND = "wrong_challenge"
    STALE = "stale_timestamp"
    REPEATED = "repeated_token"
    EARLIER = "signed_before_start"
    TOO_MANY = "too_many_tokens"
    PAUSED = "too_many_failures"


ADVICE: Final = {
    Denied.UNKNOWN: "check the client id: it is not among the hub's auth.clients",
    Denied.WRONG: "check the key (HEADRACE_KEY, keyFile): it is not the one that the hub has for this client id",
    Denied.UNBOUND: "sign the challenge that the hub gave this connection",
    Denied.STALE: f"check the clocks: client and hub differ by more than {WINDOW_SECONDS:g} s",
    Denied.REPEATED: "a token is good once: sign another",
    Denied.EARLIER: "sign another: the hub does not know which tokens were used before it was started",
    Denied.TOO_MANY: f"more than {MAX_USED:,} tokens in {WINDOW_SECONDS:g} s: wait",
    Denied.PAUSED: "too many attempts have failed from this address: wait a minute, and check the key",
}
"""Advice for the user, by reason."""

_GUESSES: Final = frozenset({Denied.UNKNOWN, Denied.WRONG})
"""Failures that may be attempts to guess a key."""


class Verdict(NamedTuple):
    """The outcome of a claim: the id that the client has proven, if any, or why the claim is refused."""

    client: str = ""
    denied: Denied | None = None


class Authentication:
    """The clients' keys, the tokens that were used, and the attempts that failed.

    ``clients`` may be changed by its owner. Tokens signed at ``signed_after`` or earlier are refused.
    """

    def __init__(
        self,
        clients: Mapping[str, Secret],
        *,
        required: bool,
        useful: bool = False,
        allow_sha1: bool = False,
        used: UsedTokens | None = None,
        signed_after: float = 0.0,
    ) -> None:
        self.required = required
        self.useful = required or useful
        """Whether a client gains rights by proving who it is."""
        self.attempts = LoginAttempts()
        self._clients = clients
        self._allow_sha1 = allow_sha1
        self._used = UsedTokens() if used is None else used
        self._signed_after = signed_after

    def judge(self, auth: Auth, now: float, *, address: str = "", challenge: str | None = None) -> Verdict:
        """Judge a client's claim; ``now`` in seconds since 1970, ``challenge`` that of this connection, if it has one.

        If authentication is not required, an unproven claim is accepted, and the client stays anonymous.
        """
        if not self.useful:
            return Verdict()
        client = client_id_text(auth.client_id)
        if self.attempts.pause(client, address, now):
            denied: Denied | None = Denied.PAUSED
        else:
            denied = self._examine(auth, now, challenge)
        if denied is None:
            self.attempts.succeeded(client, address)
            return Verdict(client)
        # If no proof is required, many clients give unknown ids; only the keys of known ids can be guessed.
        if denied in _GUESSES and (self.required or denied is Denied.WRONG):
            self.attempts.failed(client, address, now)
        return Verdict(denied=denied) if self.required else Verdict()

    def _examine(self, auth: Auth, now: float, challenge: str | None) -> Denied | None:
        key = self._clients.get(client_id_text(auth.client_id))
        # Do the same work for an unknown client, so that timing does not reveal which ids exist.
        signed = is_signed(auth, (key.reveal() if key else "unknown").encode(), allow_sha1=self._allow_sha1)
        if key is None:
            return Denied.UNKNOWN
        if not signed:
            return Denied.WRONG
        if challenge is not None:
            given = (auth.challenge or "").encode(errors="replace")
            return None if hmac.compare_digest(given, challenge.encode()) else Denied.UNBOUND
        # A token that was signed for a connection is valid only there.
        return Denied.UNBOUND if auth.challenge is not None else self._use(auth, now)

    def _use(self, auth: Auth, now: float) -> Denied | None:
        if abs(now - auth.seconds) > WINDOW_SECONDS:
            return Denied.STALE
        if auth.seconds <= self._signed_after:
            return Denied.EARLIER
        if self._used.is_used(auth.client_id, auth.token, now):
            return Denied.REPEATED
        if self._used.is_full(auth.client_id):
            return Denied.TOO_MANY
        self._used.use(auth.client_id, auth.token, auth.seconds + WINDOW_SECONDS)
        return None
