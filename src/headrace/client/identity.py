"""A client's id and key, and the proof of them that a hub asks for: a new one each time, as a token is valid once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headrace.errors import UnexpectedError, UsageError, WireError
from headrace.wire.attribute.messages import CLIENT_ID_BYTES
from headrace.wire.sdk.auth import MAX_CHALLENGE, Auth, parse_client_id, serialize_auth, sign

_NANO: Final = 1_000_000_000


def check_credentials(client_id: str | None, key: str | None) -> None:
    """Refuse a client id without a key, and a key without a client id."""
    if (client_id is None) != (key is None):
        raise UsageError("client_id and key belong together; the key of a certificate is cert_key")


class Identity:
    """A client id, made up if none is given, and the key that proves it, if any."""

    def __init__(self, client_id: str | None, key: str | None) -> None:
        if key is not None and client_id is None:
            check_credentials(client_id, key)
        self.made_up = client_id is None
        self.client_id = secrets.token_bytes(CLIENT_ID_BYTES) if client_id is None else _id_bytes(client_id)
        try:
            self._key = None if key is None else key.encode()
        except UnicodeEncodeError:
            raise UsageError("the key is not text: expected UTF-8") from None
        self._last = 0

    def claim(self, after: int | None = None, challenge: str | None = None) -> Auth:
        """Make the claim for a new connection, which may resume after message ``after``.

        A signed ``challenge`` is valid only on the connection that it was sent to.
        """
        # Never the same time twice, even for two connections in one tick of the clock.
        self._last = max(self._last + 1, time.time_ns())
        timestamp = f"{self._last // _NANO}.{self._last % _NANO:09d}"
        # If authentication is off, any token will do.
        token = "" if self._key is None else sign(self._key, self.client_id, timestamp, challenge=challenge)
        return Auth(self.client_id, timestamp, token, after, challenge)

    def request(self) -> Auth:
        """Make a claim that proves nothing: the hub answers with a challenge to sign."""
        return Auth(self.client_id, "0", "")

    def answer(self, challenge: str) -> Auth:
        """Make the claim that signs a hub's challenge."""
        if len(challenge) > MAX_CHALLENGE:
            raise UnexpectedError("sdk", "challenge", len(challenge), f"at most {MAX_CHALLENGE} characters")
        return self.claim(challenge=challenge)


def signer(client_id: str, key: str) -> Callable[[str | None], Mapping[str, Any]]:
    """Return a function that makes the ``auth`` of a link's hello: it signs a challenge, or asks for one."""
    identity = Identity(client_id, key)

    def sign_hello(challenge: str | None) -> Mapping[str, Any]:
        claim = identity.request() if challenge is None else identity.answer(challenge)
        return msgspec.json.decode(serialize_auth(claim), type=dict[str, Any])

    return sign_hello


def _id_bytes(text: str) -> bytes:
    try:
        return parse_client_id(text)
    except WireError as error:
        raise UsageError(f"client_id {text!r}: expected {error.limit}") from None
