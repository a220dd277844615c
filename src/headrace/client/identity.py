"""Who a client is to a hub, and how it proves that: anew each time, since a token is good once."""

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
            raise UsageError("a key is a client's: give its client_id too")
        self.made_up = client_id is None
        self.client_id = secrets.token_bytes(CLIENT_ID_BYTES) if client_id is None else _id_bytes(client_id)
        try:
            self._key = None if key is None else key.encode()
        except UnicodeEncodeError:
            raise UsageError("the key is no text: expected UTF-8") from None
        self._said = 0

    def claim(self, after: int | None = None) -> Auth:
        """Make the claim for a new connection, which may go on after message ``after``."""
        # Two connections in one tick of the clock are two claims all the same.
        self._said = max(self._said + 1, time.time_ns())
        timestamp = f"{self._said // _NANO}.{self._said % _NANO:09d}"
        # If authentication is off, any token will do.
        token = "" if self._key is None else sign(self._key, self.client_id, timestamp)
        return Auth(self.client_id, timestamp, token, after)


def signer(client_id: str, key: str) -> Callable[[], Mapping[str, Any]]:
    """Return a function that makes the claim of each of the link's hellos."""
    identity = Identity(client_id, key)

    def made() -> Mapping[str, Any]:
        said: Mapping[str, Any] = msgspec.json.decode(serialize_auth(identity.claim()))
        return said

    return made


def _id_bytes(text: str) -> bytes:
    try:
        return parse_client_id(text)
    except WireError as error:
        raise UsageError(f"client_id {text!r}: expected {error.limit}") from None
