"""The threads that read the log, in shares: a heavy reader delays other heavy readers, and nobody else.

The shares have threads of their own, so that none can take another's:

- **live** readers are durable consumers, subscribers, the matcher, and everything that is not named below;
- **filtered** is for follows at the head of the log whose filters are too heavy for the event loop;
- **bulk** is for reads of ranges, for follows that are far behind and filter what they catch up with, and for the
  searches of the dashboard. Its work comes in short steps, so that many readers have their turns;
- **past** is for reading what only the archive has: an archive may be far away, slow or unreachable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

LIVE: Final = 2
FILTERED: Final = 1
BULK: Final = 2
PAST: Final = 2
"""Threads of each share."""

PAST_THREADS: Final = "headrace-past"
"""The prefix of the names of the ``past`` threads."""

_SWITCH_SECONDS: Final = 0.001


class LocalBounds(Protocol):
    """Where a log's own segments begin."""

    @property
    def first_here(self) -> int:
        """The oldest message in them."""


class ReaderThreads(Executor):
    """The hub's readers. As an executor it is the live share."""

    def __init__(self) -> None:
        # After each read or write, the event loop waits this long for a thread that computes.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        self._live = ThreadPoolExecutor(LIVE, "headrace-read")
        self.filtered: Executor = ThreadPoolExecutor(FILTERED, "headrace-filter")
        self.bulk: Executor = ThreadPoolExecutor(BULK, "headrace-bulk")
        self.past: Executor = ThreadPoolExecutor(PAST, PAST_THREADS)

    def at(self, log: LocalBounds, seq: int, usual: Executor | None = None) -> Executor:
        """Return the share that reads from message ``seq`` on: the ``usual`` one, unless only the archive has it."""
        return self.past if seq < log.first_here else usual or self

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Run a function in the live share."""
        return self._live.submit(function, *arguments, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; waiting work of the other shares is dropped, since nobody is left to use it."""
        for share in (self.filtered, self.bulk, self.past):
            share.shutdown(wait, cancel_futures=True)
        self._live.shutdown(wait, cancel_futures=cancel_futures)
