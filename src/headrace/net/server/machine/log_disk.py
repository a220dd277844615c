"""The disk under a log: work that may wait for it is done by threads, and a disk that does not answer is noticed.

A hub that waits for its disk on the event loop sends no heartbeats and answers no health checks, so a disk that hangs
would take the hub along without a word. Therefore syncing, cutting back, saving the state and noting the commit
number are done by threads. An append only copies to the system's cache and is on the way of every message. The event
loop hands it to the writer's thread and waits for it, but no longer than :data:`PATIENCE`; then the loop continues, and
the next append waits. As long as the disk is slow, the loop does not wait at all.

To hand an append over takes longer than the append. So a small one is made on the event loop if nothing else is under
way that the system could let it wait for: no sync, no new tail, no other write. A node of a cluster, whose heartbeats
should go on, does so only while its disk is known to answer: a sync has ended between the last two looks
(``docs/adr/0024-appends-never-hold-the-loop.md``).

Silence is counted from look to look, and no look counts for more than :data:`MOST_PER_LOOK`: a process that was
stopped, or did not get the processor, does not blame its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from time import monotonic
from typing import Final, TypeVar

from headrace.errors import HeadraceError
from headrace.hub.sequence import Hub, WhenWritten
from headrace.log import Log, watermark
from headrace.message import Batch
from headrace.net.server.machine.writer_thread import Writer

logger = logging.getLogger("headrace")

T = TypeVar("T")

PATIENCE: Final = 0.02
"""Seconds that the event loop waits for an append."""

SLOW_SECONDS: Final = 0.5
"""A disk that takes longer is slow: the loop does not wait for it. A disk at work answers a sync within 0.1 s."""

HUNG_SECONDS: Final = 2.0
"""Seconds of silence after which the hub says that its disk does not answer."""

WARY_SECONDS: Final = 1.0
"""Seconds that a disk counts as slow after the loop has waited in vain."""

SMALL_BYTES: Final = 384 << 10
"""An append of this many bytes or more is handed over, whatever else is under way. A turn of the backbone is smaller:
handing it over and waiting takes a tenth of the turn."""

MOST_PER_LOOK: Final = 0.5
"""Seconds of silence that one look counts at most; there are four in a second."""


class LogDisk:
    """The work of a hub's disk. ``writer`` does its work in order; ``threads`` do theirs side by side.

    Small appends are made on the event loop while nothing else is under way: always by a hub that is ``alone``, by a
    node of a cluster while its disk ends syncs.
    """

    def __init__(self, log: Log, threads: Executor, writer: Writer, *, alone: bool = False) -> None:
        self._log = log
        self._threads = threads
        self._writer = writer
        self._alone = alone
        self._answers = alone
        """Whether small appends may be made on the event loop."""
        self._syncs = log.syncs
        self.slow = False
        """Whether the event loop does not wait for appends."""
        self.silent = 0.0
        """Seconds that the disk has kept something waiting, when last checked."""
        self._wary_until = 0.0
        self._looked = 0.0
        self._waiting: dict[object, float] = {}
        """Seconds that each piece of work has been under way."""
        self._under_way: set[int] = set()
        self._numbers = count()
        self._committed: watermark.Watermark | None = None
        self.pause: Callable[[], None] = lambda: None
        """Called when an append takes long: whatever comes after it has to wait."""
        self.resume: Callable[[Callable[[], None]], None] = lambda tell: tell()
        """Called when that append has ended, with a function that tells the caller how it ended."""

    def keep_note(self) -> None:
        """Prepare to :meth:`note_committed`."""
        try:
            self._committed = watermark.Watermark(self._log.directory, watermark.COMMITTED)
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            logger.warning("%s: %s; the committed operation cannot be noted", self._log.directory, why)

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
        self._answers = self._alone or self._log.syncs != self._syncs
        self._syncs = self._log.syncs
        self.slow = self.silent >= SLOW_SECONDS or now < self._wary_until

    @property
    def problem(self) -> str | None:
        """The problem with the disk, if it does not answer."""
        return None if self.silent < HUNG_SECONDS else f"the disk has not answered for {self.silent:.0f} s"

    def append(self, batches: Sequence[Batch], told: WhenWritten) -> bool:
        """Append batches and return true. If the disk takes long, pause, return false, and resume when it has ended.

        An append that fails within :data:`PATIENCE` raises; how a later one ended is ``told``.
        """
        if self._answers and not (self._log.busy or self.slow) and _size(batches) < SMALL_BYTES:
            begun = monotonic()
            self._log.append(batches)
            if monotonic() - begun > PATIENCE:
                # The system makes writers wait: not on the event loop again.
                self._be_wary()
            return True
        future = self._writer.submit(partial(self._log.append, batches))
        if not self.slow:
            if self._writer.wait(future, PATIENCE):
                future.result()
                return True
            self._be_wary()
        self.pause()
        self._follow(future, lambda done: self.resume(partial(_tell, told, done)))
        return False

    async def appended(self, batches: Sequence[Batch]) -> None:
        """Append batches; if the disk takes long, the event loop continues meanwhile. A failure raises."""
        over: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()

        def told(error: HeadraceError | None) -> None:
            if not over.done():
                over.set_result(error)

        if not self.append(batches, told) and (error := await over) is not None:
            raise error

    def in_order(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Do work in the writer's thread, then call ``done`` on the event loop."""
        self._ended(self._writer.submit(work), done)

    def beside(self, work: Callable[[], T], done: Callable[[Future[T]], None]) -> None:
        """Do work in any thread, then call ``done`` on the event loop."""
        self._ended(self._threads.submit(work), done)

    def note_committed(self, op: int, done: Callable[[], None]) -> None:
        """Note that operations up to ``op`` are committed; it may be lost in a crash, and is never ahead."""
        note, uuid = self._committed, self._log.uuid
        if note is None:
            return

        def write() -> None:
            # If it cannot be written it lags, as it may.
            with contextlib.suppress(OSError):
                note.write(uuid, op)

        with contextlib.suppress(RuntimeError):  # the hub has stopped
            self.beside(write, lambda _: done())

    def _be_wary(self) -> None:
        self.slow, self._wary_until = True, monotonic() + WARY_SECONDS

    def _ended(self, future: Future[T], done: Callable[[Future[T]], None]) -> None:
        if future.done():
            done(future)
        else:
            self._follow(future, done)

    def _follow(self, future: Future[T], done: Callable[[Future[T]], None]) -> None:
        """Call ``done`` in a later turn of the event loop, even if the work is over by now."""
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


def let_append(hub: Hub, disk: LogDisk) -> None:
    """Have a hub without others append by way of its disk: it numbers nothing while an append is under way."""

    def pause() -> None:
        hub.paused = True

    def resume(tell: Callable[[], None]) -> None:
        tell()
        hub.resume()

    disk.pause, disk.resume = pause, resume
    hub.write = disk.append


def _tell(told: WhenWritten, done: Future[None]) -> None:
    """Tell why an append has failed, if it has."""
    error = done.exception()
    if error is not None and not isinstance(error, HeadraceError):
        raise error
    told(error)


def _size(batches: Sequence[Batch]) -> int:
    size = 0
    for batch in batches:
        size += batch.run.size
    return size
