"""Drives a cursor: reads the log in a thread and gives the consumer one chunk after another.

The :class:`~headrace.hub.cursor.Cursor` decides what is next. A consumer takes the memory of its transport's buffer and
one chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, Protocol, TypeVar

from headrace.errors import ClosedError, HeadraceError, StorageError, WireError
from headrace.hub.cursor import Chunk, Cursor, LogBounds, Lost
from headrace.hub.sequence_ranges import Range

C = TypeVar("C", bound=Chunk)
C_contra = TypeVar("C_contra", bound=Chunk, contravariant=True)


class FeedConsumer(Protocol[C_contra]):
    """Where a feed's chunks go."""

    @property
    def ready(self) -> bool:
        """Whether there is room for another chunk."""

    def take_chunk(self, chunk: C_contra) -> bool:
        """Take a chunk, or return ``False`` if the chunk has to wait."""

    def read_failed(self, lost: Lost, error: HeadraceError) -> None:
        """Note that messages cannot be read; if ``lost.ended``, the feed has stopped."""

    def pump(self) -> None:
        """Call :meth:`LogFeed.pump`: a read has come in."""


class FeedBounds(LogBounds, Protocol):
    """The bounds of the log, and of its own segments; older messages come from the archive."""

    @property
    def first_here(self) -> int:
        """The oldest message in the log's own segments."""


class ReaderShares(Protocol):
    """Threads that read the log (:class:`~headrace.net.server.machine.reader_threads.ReaderThreads`)."""

    def at(self, log: FeedBounds, seq: int, usual: Executor | None = None) -> Executor:
        """Return the threads that read from message ``seq`` on."""


class LogFeed(Generic[C]):
    """Moves one cursor as fast as its consumer takes chunks."""

    __slots__ = ("_consumer", "_log", "_read", "_readers", "cursor", "share")

    def __init__(
        self,
        log: FeedBounds,
        cursor: Cursor[C],
        read: Callable[[int, int], C],
        readers: ReaderShares,
        consumer: FeedConsumer[C],
        share: Executor | None = None,
    ) -> None:
        self.cursor = cursor
        self._log = log
        self._read = read
        """Reads some messages as one chunk, from the first number on and not past the last; runs in a thread."""
        self._readers = readers
        self.share = share
        """Threads for the next read, ``None`` for the live ones; they do not read what only the archive has."""
        self._consumer = consumer

    def pump(self) -> None:
        """Hand over messages until the consumer is full, none are left, or the log must be read."""
        consumer, cursor = self._consumer, self.cursor
        while consumer.ready:
            chunk, wanted = cursor.step(self._log.head)
            if wanted is not None:
                self._begin_read(wanted)
            if chunk is None or not consumer.take_chunk(chunk):
                return
            cursor.advance()

    def _begin_read(self, wanted: Range) -> None:
        share = self._readers.at(self._log, wanted[0], self.share)
        reading = asyncio.get_running_loop().run_in_executor(share, self._read, *wanted)
        reading.add_done_callback(self._was_read)

    def _was_read(self, done: asyncio.Future[C]) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or self.cursor.closed:
            return
        if error is None:
            self.cursor.was_read(done.result())
        elif isinstance(error, StorageError | WireError | ClosedError):
            lost = self.cursor.read_failed(error)
            if lost is not None:
                self._consumer.read_failed(lost, error)
        else:
            # Logged by the event loop; the next commit tries again.
            self.cursor.read_again()
            raise error
        self._consumer.pump()
