"""A client's identity: the auth JSON of the SDK (and of SPP's AUTH), and the token in it.

``{"client_id": 24 hex digits, "timestamp": …, "token": …, "after": …, "challenge": …}``. The token is an HMAC over the
client id in lower case and the timestamp's text, and, after a colon, the challenge if there is one. A timestamp may
come as a string or as a number; either way its text is kept exactly as it came, since ``1700000000.50`` and
``1700000000.5`` are one time and two tokens.

Whether a timestamp is recent, a token was used before or a key is known is decided where the clock and the keys are.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from headrace.errors import LimitError, MalformedError
from headrace.message import MAX_SEQUENCE
from headrace.wire.attribute.messages import CLIENT_ID_BYTES
from headrace.wire.typed_json import decode_json

Digest: TypeAlias = Literal["sha256", "sha1"]

MAX_CHALLENGE: Final = 256
"""Characters of a challenge."""

_CLIENT_ID = re.compile(rf"[0-9A-Fa-f]{{{2 * CLIENT_ID_BYTES}}}")

_TIMESTAMP = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
"""Digits enough for nanoseconds and for femtoseconds; a float holds any such number."""


@dataclass(frozen=True, slots=True)
class Auth:
    """A client's claim. ``after`` asks for what it missed after that sequence number."""

    client_id: bytes
    timestamp: str
    token: str
    after: int | None = None
    challenge: str | None = None
    """What the hub gave this connection to sign, where its protocol has room for that: the link and SPP."""

    @property
    def seconds(self) -> float:
        """The timestamp as a time."""
        return float(self.timestamp)


def parse_auth(json: bytes) -> Auth:
    """Parse an auth from its JSON; unknown members are ignored.

    >>> parse_auth(b'{"client_id": "00112233445566778899AABB", "timestamp": 17.50, "token": "f0"}').timestamp
    '17.50'
    """
    rule = "a JSON object of client_id, timestamp and token, and after if any"
    members = decode_json(_MEMBERS, json, "sdk", "auth", rule)
    timestamp = bytes(members.timestamp)
    if timestamp[:1] == b'"':
        text = decode_json(_TEXT, timestamp, "sdk", "timestamp", "a string or a number")
    else:
        text = timestamp.decode(errors="replace")
    return Auth(
        parse_client_id(members.client_id), _decimal(text), members.token, members.after, members.challenge
    )


def serialize_auth(auth: Auth) -> bytes:
    """An auth as its JSON, the timestamp as a string."""
    members: dict[str, str | int] = {
        "client_id": client_id_text(auth.client_id),
        "timestamp": _decimal(auth.timestamp),
        "token": auth.token,
    }
    if auth.after is not None:
        if not 0 <= auth.after <= MAX_SEQUENCE:
            raise LimitError("sdk", "after", auth.after, MAX_SEQUENCE)
        members["after"] = auth.after
    if auth.challenge is not None:
        members["challenge"] = auth.challenge
    try:
        return msgspec.json.encode(members)
    except UnicodeEncodeError:
        raise MalformedError("sdk", "token", ascii(auth.token), "UTF-8") from None


def parse_client_id(text: str) -> bytes:
    """A client id out of its hex digits, in either case."""
    if not _CLIENT_ID.fullmatch(text):
        raise MalformedError("sdk", "client_id", text, f"{2 * CLIENT_ID_BYTES} hex digits")
    return bytes.fromhex(text)


def client_id_text(client_id: bytes) -> str:
    """A client id as hex digits in lower case."""
    if len(client_id) != CLIENT_ID_BYTES:
        raise MalformedError("sdk", "client_id", client_id, f"exactly {CLIENT_ID_BYTES} bytes")
    return client_id.hex()


def sign(
    key: bytes, client_id: bytes, timestamp: str, digest: Digest = "sha256", challenge: str | None = None
) -> str:
    """The token of a client that has this key, at this time, as hex digits.

    >>> sign(b"secret", bytes(12), "1700000000")[:16]
    '85691522df75fd61'
    """
    signed = client_id_text(client_id) + _decimal(timestamp)
    if challenge is not None:
        # No timestamp has a colon: what is signed with a challenge is never a token without one.
        signed += f":{challenge}"
    return hmac.new(key, signed.encode(errors="replace"), digest).hexdigest()


def is_signed(auth: Auth, key: bytes, *, allow_sha1: bool = False) -> bool:
    """Whether an auth's token was made with this key; the comparison takes the same time for any token."""
    given = auth.token.lower().encode(errors="replace")
    digests: tuple[Digest, ...] = ("sha256", "sha1") if allow_sha1 else ("sha256",)
    made = [sign(key, auth.client_id, auth.timestamp, digest, auth.challenge).encode() for digest in digests]
    return any(hmac.compare_digest(given, token) for token in made)


def _decimal(text: str) -> str:
    if not _TIMESTAMP.fullmatch(text):
        raise MalformedError(
            "sdk", "timestamp", text, "seconds in decimal digits, with a fraction or without"
        )
    return text


class _Members(msgspec.Struct):
    client_id: str
    timestamp: msgspec.Raw
    token: str
    after: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)] | None = None
    challenge: Annotated[str, msgspec.Meta(max_length=MAX_CHALLENGE)] | None = None


_MEMBERS = msgspec.json.Decoder(_Members)
_TEXT = msgspec.json.Decoder(str)
