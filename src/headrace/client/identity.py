"""A client's id and key, and the proof of them that a hub asks for: a new one each time, as a token is valid once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headrace.errors import UsageError, WireError
from headrace.wire.attribute.messages import CLIENT_ID_BYTES
from headrace.wire.sdk.auth import Auth, parse_client_id, serialize_auth, sign

_NANO: Final = 1_000_000_000


class Identity:
    """A client id, made up if none is given, and the key that proves it, if any."""

    def __init__(self, client_id: str | None, key: str | None) -> None:
        if key is not None and client_id is None:
            raise UsageError("a key belongs to a client: give its client_id too")
        self.made_up = client_id is None
        self.client_id = secrets.token_bytes(CLIENT_ID_BYTES) if client_id is None else _id_bytes(client_id)
        try:
            self._key = None if key is None else key.encode()
        except UnicodeEncodeError:
            raise UsageError("the key is no text: expected UTF-8") from None
        self._last = 0

    def claim(self, after: int | None = None) -> Auth:
        """Make the claim for a new connection, which may resume after message ``after``."""
        # Never the same time twice, even for two connections in one tick of the clock.
        self._last = max(self._last + 1, time.time_ns())
        timestamp = f"{self._last // _NANO}.{self._last % _NANO:09d}"
        # If authentication is off, any token will do.
        token = "" if self._key is None else sign(self._key, self.client_id, timestamp)
        return Auth(self.client_id, timestamp, token, after)


def signer(client_id: str, key: str) -> Callable[[], Mapping[str, Any]]:
    """Return a function that makes the ``auth`` of each of the link's hellos."""
    identity = Identity(client_id, key)
    return lambda: msgspec.json.decode(serialize_auth(identity.claim()), type=dict[str, Any])


def _id_bytes(text: str) -> bytes:
    try:
        return parse_client_id(text)
    except WireError as error:
        raise UsageError(f"client_id {text!r}: expected {error.limit}") from None
