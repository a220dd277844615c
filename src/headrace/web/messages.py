"""Messages for the dashboard: found by number, time and filter, with payloads cut to what a person reads.

Searches run in threads and are bounded: a result has the range that was searched, so that the next can continue.
"""

from __future__ import annotations

from base64 import b64encode
from math import isfinite
from typing import Any, Final

import msgspec

from headrace.errors import TrimmedError
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.message import Batch, Message, merge, messages

PREVIEW: Final = 512
"""Bytes of a payload in a list."""

WHOLE: Final = 1 << 20
"""Bytes of a payload that is opened."""

MOST: Final = 500
"""Messages in one answer."""

_FIRST_LOOK: Final = 1_000
_FURTHEST: Final = 1_000_000
"""The range of messages in one search: first a few, then more and more."""


class SearchResult(msgspec.Struct, frozen=True):
    """Messages in order, and the range that was searched."""

    messages: list[dict[str, Any]]
    first: int
    last: int


def newest(log: Log, wanted: Filter, before: int, count: int) -> SearchResult:
    """Find the last ``count`` messages below ``before`` that pass the filter."""
    last = min(before - 1, log.head)
    found: list[Message] = []
    end, width = last, _FIRST_LOOK
    begin = end + 1
    while end >= log.first and len(found) < count and last - end < _FURTHEST:
        begin = max(log.first, end - width + 1)
        found = _passing(log, wanted, begin, end, count - len(found), newest_first=True) + found
        end, width = begin - 1, width * 4
    if len(found) == count:
        begin = found[0].seq
    return SearchResult([shown(message) for message in found], begin, last)


def following(log: Log, wanted: Filter, first: int, count: int) -> SearchResult:
    """Find the first ``count`` messages from ``first`` on that pass the filter."""
    first = max(first, log.first)
    last = min(log.head, first + _FURTHEST - 1)
    found = _passing(log, wanted, first, last, count, newest_first=False)
    if len(found) == count:
        last = found[-1].seq
    return SearchResult([shown(message) for message in found], first, last)


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


def _passing(
    log: Log, wanted: Filter, first: int, last: int, count: int, *, newest_first: bool
) -> list[Message]:
    found: list[Message] = []
    gathered: list[Batch] = []

    def look() -> None:
        rows = wanted.apply(merge(gathered))
        if newest_first and rows.num_rows > count:
            rows = rows.slice(rows.num_rows - count)
        found.extend(messages(rows))
        gathered.clear()

    size = 0
    for batch in log.scan(first, last):
        gathered.append(batch)
        size += len(batch)
        if size >= 4 * _FIRST_LOOK:
            look()
            size = 0
            if newest_first:
                del found[:-count]
            elif len(found) >= count:
                break
    if gathered:
        look()
    return found[-count:] if newest_first else found[:count]
