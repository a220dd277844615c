"""A node's disk: work that may wait for it is done by threads, and a disk that does not answer is noticed.

A node that waits for its disk on the event loop sends no heartbeats and answers no health checks, so a disk that hangs
would take the node along without a word. Therefore syncing, cutting back, saving the state and noting the commit
number are done by threads. An append only copies to the system's cache. Handing it to a thread would cost more than
the append itself, so it stays on the loop while the disk is prompt: nothing has waited for it longer than
:data:`SLOW_SECONDS`, and no append has taken longer. After that, appends are a thread's work as well
(``docs/adr/0015-disk-work-off-the-loop.md``).

Silence is counted from look to look, and no look counts for more than :data:`MOST_PER_LOOK`: a process that was
stopped, or did not get the processor, does not blame its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import count
from time import monotonic
from typing import Final, TypeVar

from headrace.log import Log, watermark

logger = logging.getLogger("headrace")

T = TypeVar("T")

SLOW_SECONDS: Final = 0.5
"""A disk that takes longer is slow: appends leave the event loop. A disk at work answers a sync within 0.1 s."""

WARY_SECONDS: Final = 10.0
"""Seconds that a disk counts as slow after an append took that long."""

MOST_PER_LOOK: Final = 0.5
"""Seconds of silence that one look counts at most; there are four in a second."""


class NodeDisk:
    """What one node has its disk do. ``writer`` does its work in order; ``threads`` do theirs side by side."""

    def __init__(self, log: Log, threads: Executor, writer: Executor) -> None:
        self._log = log
        self._threads = threads
        self._writer = writer
        self.slow = False
        """Whether appends are to be handed to a thread."""
        self.silent = 0.0
        """Seconds that the disk has kept something waiting, as of the last look."""
        self._wary_until = 0.0
        self._looked = 0.0
        self._waiting: dict[object, float] = {}
        """Seconds that each piece of work has been under way."""
        self._under_way: set[int] = set()
        self._numbers = count()
        self._committed: watermark.Watermark | None = None
        try:
            self._committed = watermark.Watermark(log.directory, watermark.COMMITTED)
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            logger.warning("%s: %s; it is not noted what is committed", log.directory, why)

    def look(self, now: float) -> None:
        """Find out how long the disk has kept something waiting; call it a few times a second."""
        elapsed, self._looked = min(now - self._looked, MOST_PER_LOOK), now
        work: set[object] = set(self._under_way)
        if self._log.syncing:
            work.add(("sync", self._log.syncs))
        if self._log.writing:
            work.add(("write", self._log.tail_op))
        before = self._waiting
        self._waiting = {each: before[each] + elapsed if each in before else 0.0 for each in work}
        self.silent = max(self._waiting.values(), default=0.0)
        self.slow = self.silent >= SLOW_SECONDS or now < self._wary_until

    @property
    def must_wait(self) -> bool:
        """Whether an append could keep the event loop waiting."""
        return self.slow or self._log.writing

    def at_once(self, append: Callable[[], None]) -> None:
        """Append on the event loop; if that takes long, the next ones are for a thread."""
        begun = monotonic()
        try:
            append()
        finally:
            now = monotonic()
            if now - begun >= SLOW_SECONDS:
                self.slow, self._wary_until = True, now + WARY_SECONDS
                logger.warning("an append took %.1f s: the disk is slow", now - begun)

    def in_order(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Do work in the writer's thread, then call ``done`` on the event loop."""
        self._follow(self._writer.submit(work), done)

    def beside(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Do work in any thread, then call ``done`` on the event loop."""
        self._follow(self._threads.submit(work), done)

    def note_committed(self, op: int, done: Callable[[], None]) -> None:
        """Note that operations up to ``op`` are committed; it may be lost in a crash, and is never ahead."""
        note, uuid = self._committed, self._log.uuid
        if note is None:
            return

        def write() -> None:
            # If it cannot be written it lags behind, as it may.
            with contextlib.suppress(OSError):
                note.write(uuid, op)

        with contextlib.suppress(RuntimeError):  # the hub has stopped
            self.beside(write, lambda _: done())

    def _follow(self, future: Future[T], done: Callable[[Future[T]], None]) -> None:
        if future.done():
            done(future)
            return
        number = next(self._numbers)
        self._under_way.add(number)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            self._under_way.discard(number)
            done(future)

        def tell(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the disk answered
                loop.call_soon_threadsafe(ended)

        future.add_done_callback(tell)
