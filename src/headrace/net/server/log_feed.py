"""Feeding one stream consumer: a cursor, moved on as fast as the consumer takes bytes.

There is no "live" and no "catching up", only a cursor. What lies at the cursor is sent from the shared recent chunks
if it is there and read from the log, off the event loop, if it is not; the cursor then stands behind it. So a consumer
that falls behind and comes back has no seam at which a message could be missed or repeated, and its memory is its
transport's buffer and one chunk: while it takes what was read from the log, the next chunk is being read.

Ranges asked for (repairs, replays) go first, in the order they were asked, by the same means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import StorageError, TrimmedError
from headrace.log import Log
from headrace.net.server.encoded_cache import Chunk, Recent

Encoder = Callable[[int, int], Chunk]
"""Reads some messages from the log, from the first number on and not past the last, as one chunk."""


class Sink(Protocol):
    """Where a feed's bytes go."""

    def send(self, data: bytes | memoryview, count: int) -> None:
        """Send the bytes of ``count`` messages."""

    def range_cut(self, first: int, last: int, error: TrimmedError) -> None:
        """Of a range asked for, messages ``first`` to ``last`` are no longer kept; the rest follows."""

    def range_done(self) -> None:
        """A range asked for is done with: there is room for another."""

    def feed_failed(self, first: int, last: int, error: StorageError) -> None:
        """Messages ``first`` to ``last`` cannot be had; the feed has stopped."""


@dataclass(slots=True)
class Range:
    """Messages still to be sent, ``first`` to ``last``."""

    first: int
    last: int


class Feed:
    """One consumer's place in the sequence."""

    def __init__(self, log: Log, recent: Recent, encode: Encoder, readers: Executor, sink: Sink) -> None:
        self.cursor: int | None = None
        """The next message of the live sequence, or ``None`` when it is not wanted."""
        self.ranges: deque[Range] = deque()
        self.paused = False
        self._log = log
        self._recent = recent
        self._encode = encode
        self._readers = readers
        self._sink = sink
        self._reading = False
        self._ahead: tuple[Range | None, Chunk] | None = None
        """What was read from the log, and for which range, but not yet sent."""
        self._closed = False

    def pause(self) -> None:
        """Send nothing more for now: the consumer's buffer is full."""
        self.paused = True

    def resume(self) -> None:
        """Go on sending."""
        self.paused = False
        self.pump()

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        self._ahead = None
        self.ranges.clear()
        self.cursor = None

    def pump(self) -> None:
        """Send what there is until the consumer's buffer is full, all is sent, or the log must be read."""
        while not (self.paused or self._reading or self._closed):
            if self._ahead is not None:
                wanted, chunk = self._ahead
                self._ahead = None
                self._advance(wanted, chunk)
            elif self.ranges:
                wanted = self.ranges[0]
                if wanted.first > wanted.last:
                    self.ranges.popleft()
                    self._sink.range_done()
                    continue
                self._read(wanted.first, wanted.last, wanted)
            elif self.cursor is not None and self.cursor <= self._log.head:
                chunk_here = self._recent.find(self.cursor)
                if chunk_here is None:
                    self._read(self.cursor, self._log.head)
                elif chunk_here.first == self.cursor:
                    self.cursor = chunk_here.last + 1
                    self._sink.send(chunk_here.data, chunk_here.last - chunk_here.first + 1)
                else:
                    # In the middle of a chunk: the rest of it from the log, then chunk by chunk again.
                    self._read(self.cursor, chunk_here.last)
            else:
                return

    def _read(self, first: int, last: int, wanted: Range | None = None) -> None:
        """Read from the log for the range that is ``wanted``, or for the live sequence."""
        self._reading = True
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self._encode, first, last)
        reading.add_done_callback(lambda done: self._was_read(first, last, wanted, done))

    def _was_read(self, first: int, last: int, wanted: Range | None, done: asyncio.Future[Chunk]) -> None:
        self._reading = False
        if self._closed or done.cancelled():
            done.cancelled() or done.exception()
            return
        error = done.exception()
        if error is None:
            self._ahead = wanted, done.result()
        elif wanted is not None and isinstance(error, TrimmedError):
            gone = min(last, error.oldest - 1)
            wanted.first = gone + 1
            self._sink.range_cut(first, gone, error)
        elif isinstance(error, StorageError):
            self.close()
            self._sink.feed_failed(first, last, error)
        else:
            raise error
        self.pump()

    def _advance(self, wanted: Range | None, chunk: Chunk) -> None:
        """Send what was read, and begin to read what follows it before the consumer has taken it."""
        following = chunk.last + 1
        if wanted is not None:
            wanted.first = following
            if following <= wanted.last:
                self._read(following, wanted.last, wanted)
        elif self.cursor == chunk.first:
            self.cursor = following
            if not self.ranges and following <= self._log.head and self._recent.find(following) is None:
                self._read(following, self._log.head)
        else:
            return  # No longer wanted: the subscription lapsed or began anew meanwhile.
        self._sink.send(chunk.data, chunk.last - chunk.first + 1)
