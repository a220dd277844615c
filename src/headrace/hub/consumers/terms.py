"""The terms of a durable consumer: its messages, its retries and its dead letters, fixed when it is created."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import msgspec

from headrace.errors import LimitError, MalformedError
from headrace.message import NOT_A_MESSAGE

MAX_TERMS: Final = 64 << 10
MAX_ACK_SECONDS: Final = 7 * 86_400.0


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """A consumer's terms, fixed when it is created.

    ``topic``, ``origin`` and ``where`` choose its messages, as in a ``follow``; its own dead letters are never among
    them. ``max_tries`` 0 means no limit; ``dead_letter`` defaults to ``dead/NAME``.

    Messages that its members may not read are skipped, and done. So the rights of its creator are
    terms, too: a member with other rights would miss messages.
    """

    topic: str | None = None
    origin: tuple[str, ...] | None = None
    where: dict[str, Any] | None = None
    ack_seconds: float = 30.0
    max_tries: int = 10
    dead_letter: str | None = None
    readable: tuple[str, ...] | None = None
    """Patterns of the topics that its members may read; ``None`` for all."""
    denied: tuple[str, ...] = ()
    """Patterns of topics that they may not read even so."""

    @property
    def selects(self) -> bool:
        """Whether the terms choose among the messages; otherwise all are the consumer's."""
        return self != Terms(
            ack_seconds=self.ack_seconds, max_tries=self.max_tries, dead_letter=self.dead_letter
        )


def default_dead_letter(name: str) -> str:
    """Return the topic of a consumer's dead letters unless its terms name another.

    >>> default_dead_letter("billing")
    'dead/billing'
    """
    return f"dead/{name}"


def check_terms(terms: Terms) -> None:
    """Raise an error unless a consumer may have these terms."""
    seconds = terms.ack_seconds
    if not (isfinite(seconds) and 0 < seconds <= MAX_ACK_SECONDS):
        raise MalformedError("link", "ack_seconds", seconds, f"more than 0 and at most {MAX_ACK_SECONDS:g}")
    if terms.max_tries < 0:
        raise MalformedError("link", "max_tries", terms.max_tries, "0 (no limit) or more")
    if NOT_A_MESSAGE in (terms.origin or ()):
        # Entries have no numbers, so they could not be acknowledged.
        raise MalformedError(
            "link", "origin", terms.origin, f"not {NOT_A_MESSAGE!r}: its entries are not messages"
        )
    try:
        size = len(msgspec.json.encode(terms))
        msgspec.msgpack.encode(terms)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # An entry is JSON, a snapshot is msgpack: JSON takes integers for which msgpack has no room.
        raise MalformedError("link", "where", None, "JSON values with numbers of at most 64 bits") from None
    if size > MAX_TERMS:
        raise LimitError("link", "where", size, MAX_TERMS)
