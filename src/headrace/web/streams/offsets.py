"""Offsets, which are sequence numbers in the protocol's sortable form; and the cursors of its live answers."""

from __future__ import annotations

import random
import re
from typing import Final

from headrace.message import MAX_SEQUENCE

_OFFSET: Final = re.compile(r"(\d{1,16})(?:_0{16})?", re.ASCII)

_EPOCH: Final = 1_728_432_000
"""9 October 2024, from which the protocol counts the intervals of cursors."""

_INTERVAL: Final = 20
_JITTER: Final = 3600


def write_offset(seq: int) -> str:
    """Write the position after message ``seq``.

    >>> write_offset(42)
    '0000000000000042_0000000000000000'
    """
    return f"{seq:016d}_{0:016d}"


def parse_offset(text: str) -> int | None:
    """Return the message before a position; ``None`` if the text is not an offset. A bare number is one, too.

    >>> parse_offset("0000000000000042_0000000000000000"), parse_offset("42"), parse_offset("4,2")
    (42, 42, None)
    """
    found = _OFFSET.fullmatch(text)
    seq = int(found[1]) if found is not None else -1
    return seq if 0 <= seq <= MAX_SEQUENCE else None


def next_cursor(now: float, given: str | None) -> str:
    """Return the cursor of a live answer, which lets caches tell answers apart and never goes back."""
    interval = int((now - _EPOCH) // _INTERVAL)
    if (
        given is not None
        and given.isascii()
        and given.isdigit()
        and len(given) < 16
        and int(given) >= interval
    ):
        return str(int(given) + max(1, random.randint(1, _JITTER) // _INTERVAL))
    return str(interval)
