"""The result of a search of the log that skips messages of other topics."""

from __future__ import annotations

from typing import NamedTuple

from headrace.message import Batch


class Found(NamedTuple):
    """Messages, in order but not without gaps; every other message up to ``upto`` is of other topics."""

    batches: list[Batch]
    upto: int
    """The last message that was looked at or skipped."""
    cost: int
    """Approximate bytes read."""
