"""JSON from a peer, as a typed value or one of our errors."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from headrace.errors import MalformedError, Protocol

Json: TypeAlias = bytes | str | msgspec.Raw

T = TypeVar("T")


def decode_json(decoder: msgspec.json.Decoder[T], text: Json, protocol: Protocol, field: str, rule: str) -> T:
    """Decode ``text``; text that is not JSON, or not of the decoder's type, breaks the ``rule``.

    Besides msgspec's own errors, a decoder may raise UnicodeDecodeError (a ValueError) for text that is not UTF-8, and
    RecursionError for deep nesting in unknown members.
    """
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        raise MalformedError(protocol, field, shown(text), rule) from None


def shown(text: Json) -> str:
    """Return JSON as text for an error."""
    return text if isinstance(text, str) else bytes(text).decode(errors="replace")
