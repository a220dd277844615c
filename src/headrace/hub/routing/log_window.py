"""Earlier messages for fences, as far as they can be read from the log.

Messages that cannot be read are counted and left out. A fence then takes the next sighting of a key for its first one;
otherwise nothing could be matched for as long as the damage is within the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.errors import ArchiveError, DamagedError, StorageError, TrimmedError
from headrace.hub.sequence import Hub
from headrace.message import Batch

READ_BYTES: Final = 4 << 20
"""Payload bytes that are read at a time."""


class LogWindow:
    """Reads a hub's log; for :class:`~headrace.matching.Matcher`, in any thread."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def __call__(self, first: int, last: int) -> Iterator[Batch]:
        """Read the messages from one number to another, both included, as far as they are still there."""
        log = self._hub.log
        at, end = max(first, log.first), last
        while at <= last:
            try:
                batches = log.read(at, end, READ_BYTES)
            except TrimmedError as error:
                at = max(error.oldest, at + 1)
            except StorageError as error:
                bad = _unreadable(error, at, end)
                if bad[0] > at:
                    end = bad[0] - 1  # What is before the damage comes first.
                else:
                    self._hub.counters.report("untracked", *bad, str(error))
                    at, end = bad[1] + 1, last
            else:
                if not batches:
                    return
                yield from batches
                at = batches[-1].last + 1
                end = last if at > end else end


def _unreadable(error: StorageError, first: int, last: int) -> tuple[int, int]:
    """Return which of the messages to be read an error is about."""
    if isinstance(error, DamagedError | ArchiveError) and first <= error.first <= last:
        first = error.first
    if isinstance(error, DamagedError | ArchiveError) and error.last is not None:
        last = max(first, min(error.last, last))
    return first, last
