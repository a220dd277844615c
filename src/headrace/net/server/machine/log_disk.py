"""The disk under a log: threads do the work that may wait for it, and a disk that does not answer is noticed.

A hub that waits for its disk on the event loop sends no heartbeats and answers no health checks: a disk that hangs
would silently hang the hub. So threads sync, cut back, save the state and note the commit number. An append is on the
way of every message, but only copies to the system's cache: the event loop hands it to the writer's thread and waits
for it, but no longer than :data:`PATIENCE`. Then the loop continues, and the next append waits. While the disk is slow,
the loop does not wait at all.

Handing an append over takes longer than the append itself. So the event loop makes small ones itself, unless the system
might delay them for something else: a sync, a new tail, another write. A cluster node must keep sending heartbeats, so
it does this only while its disk is known to answer: a sync has ended between the last two looks
(``docs/adr/0024-appends-never-hold-the-loop.md``).

The disk's silence is added up from look to look, and no look counts for more than :data:`MOST_PER_LOOK`. So a process
that was stopped, or did not get the processor, does not blame its disk.
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
"""Longest time, in seconds, that the event loop waits for an append."""

SLOW_SECONDS: Final = 0.5
"""Seconds of silence after which a disk is slow and the loop does not wait for it. A busy disk syncs within 0.1 s."""

HUNG_SECONDS: Final = 2.0
"""Seconds of silence after which the hub reports that its disk does not answer."""

WARY_SECONDS: Final = 1.0
"""Seconds that a disk counts as slow after the loop has waited in vain."""

SMALL_BYTES: Final = 384 << 10
"""Bytes from which an append is always handed over. A turn of the backbone is smaller: handing it over and waiting
would take a tenth of the turn."""

MOST_PER_LOOK: Final = 0.5
"""Most seconds of silence that one look counts; there are four looks a second."""


class LogDisk:
    """The work of a hub's disk. ``writer`` does its work in order; ``threads`` do theirs side by side.

    While the disk does nothing else, small appends are made on the event loop: always by a hub that is ``alone``, by a
    cluster node only while its disk answers syncs.
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
        """Whether the disk is so slow that the event loop does not wait for appends."""
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
        """Called when an append takes long: later ones have to wait."""
        self.resume: Callable[[Callable[[], None]], None] = lambda tell: tell()
        """Called when that append has ended, with a function that tells the caller how it ended."""

    def keep_note(self) -> None:
        """Open the file that :meth:`note_committed` writes to."""
        try:
            self._committed = watermark.Watermark(self._log.directory, watermark.COMMITTED)
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            logger.warning("%s: %s; the committed operation cannot be noted", self._log.directory, why)

    def look(self, now: float) -> None:
        """Check for how long the disk has not answered; call this a few times a second."""
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
                # The system makes writers wait, so they should not wait on the event loop again.
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
        """Append batches without holding the event loop for long; raise an error if that fails."""
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
        """Note that operations up to ``op`` are committed. A crash may lose the note; it is never ahead."""
        note, uuid = self._committed, self._log.uuid
        if note is None:
            return

        def write() -> None:
            # A note that cannot be written lags, which is allowed.
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
        """Call ``done`` in a later turn of the event loop, even if the work is done already."""
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
    """Make a lone hub append through its disk; it numbers no messages while an append is running."""

    def pause() -> None:
        hub.paused = True

    def resume(tell: Callable[[], None]) -> None:
        tell()
        hub.resume()

    disk.pause, disk.resume = pause, resume
    hub.write = disk.append


def _tell(told: WhenWritten, done: Future[None]) -> None:
    """Report whether an append failed, and why."""
    error = done.exception()
    if error is not None and not isinstance(error, HeadraceError):
        raise error
    told(error)


def _size(batches: Sequence[Batch]) -> int:
    size = 0
    for batch in batches:
        size += batch.run.size
    return size
