"""Messages for the dashboard, with payloads cut to what a person reads; :mod:`headrace.web.search` finds them."""

from __future__ import annotations

from base64 import b64encode
from math import isfinite
from typing import Any, Final

import msgspec

from headrace.errors import TrimmedError
from headrace.log import Log
from headrace.message import Message
from headrace.web.search import Search

PREVIEW: Final = 512
"""Bytes of a payload in a list."""

WHOLE: Final = 1 << 20
"""Bytes of a payload that is opened."""

MOST: Final = 500
"""Messages in one answer."""


class SearchResult(msgspec.Struct, frozen=True):
    """Messages in order, and the range that was searched."""

    messages: list[dict[str, Any]]
    first: int
    last: int

    @classmethod
    def of(cls, search: Search) -> SearchResult:
        """The result of a search that is over."""
        return cls([shown(message) for message in search.found], search.first, search.last)


def one(log: Log, seq: int) -> dict[str, Any] | None:
    """Read one message, with as much of its payload as is shown; ``None`` if it does not exist."""
    try:
        batches = log.read(seq, seq) if 1 <= seq <= log.head else []
    except TrimmedError:
        return None
    for batch in batches:
        for message in batch:
            return shown(message, WHOLE)
    return None


def shown(message: Message, limit: int = PREVIEW) -> dict[str, Any]:
    """Return a message as JSON: its payload as text, or as base64 if it is not UTF-8, cut to ``limit`` bytes."""
    return {
        "seq": message.seq,
        "time": message.time,
        "origin": message.origin,
        "node": message.node,
        "publisher": message.publisher,
        "number": message.number,
        "topic": message.topic,
        "attributes": dict(message.attributes),
        "numbers": {name: _finite(value) for name, value in message.numbers.items()},
        "size": len(message.payload),
        **readable("payload", message.payload, limit),
    }


def readable(name: str, content: bytes, limit: int) -> dict[str, str]:
    """Return bytes as text, or as base64 (with a suffix to the name) if they are not UTF-8, cut to ``limit``."""
    cut = content[:limit]
    try:
        return {name: cut.decode()}
    except UnicodeDecodeError as error:
        if len(cut) < len(content) and error.start >= len(cut) - 3:
            # The cut split a character.
            return {name: cut[: error.start].decode()}
        return {f"{name}_base64": b64encode(cut).decode()}


def _finite(value: float) -> float | str:
    """Write infinities, which JSON does not have, as words."""
    return value if isfinite(value) else str(value)
