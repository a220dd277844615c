"""Streams of messages: ``read`` and ``follow``.

A filter is applied on the event loop where that is cheap, and in a thread otherwise.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, Final

from headrace.errors import ClosedError
from headrace.hub.counters import Counter
from headrace.hub.cursor import Cursor
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.net.link.streams.credit import StreamTarget
from headrace.net.link.streams.log_stream import LogStream
from headrace.net.link.streams.rounds import FilterBudget
from headrace.net.link.streams.row_bodies import Piece, RowCache, RowChunk, read_piece
from headrace.net.server.machine.reader_threads import ReaderThreads

_SMALL: Final = 512
"""Most rows that a filter is applied to on the event loop."""

_FAR: Final = 100_000
"""Messages behind the head from which a follow is served like a read of a range, since it has much to catch up with."""


class RowStream(LogStream):
    """A ``read`` (with a ``last``) or a ``follow`` (without) of the log's messages."""

    def __init__(
        self,
        stream_id: int,
        target: StreamTarget,
        log: Log,
        cache: RowCache,
        readers: ReaderThreads,
        budget: FilterBudget,
        *,
        first: int,
        last: int | None,
        wanted: Filter | None,
        credit: int,
        delivered: Counter,
    ) -> None:
        self._log = log
        self._cache = cache
        self._wanted = wanted
        self.cost = 0 if wanted is None else wanted.cost
        self._delivered = delivered
        self._readers = readers
        self._budget = budget
        self._heavy: RowChunk | None = None
        """A chunk in memory that a thread has to filter."""
        follows = last is None
        cursor = Cursor(first, self._at_hand, last=last) if follows else Cursor[Piece](first, last=last)
        super().__init__(stream_id, target, credit, log, cursor, readers, readers.bulk)
        if follows:
            cache.readers += 1
            self._report(self._reported_at)

    def close(self) -> None:
        """Send nothing more."""
        if not self._closed and self._cursor.last is None:
            self._cache.readers -= 1
        super().close()

    def tick(self, now: float) -> None:
        """Report the filter's position if that is due."""
        if self._wanted is not None:
            self._report_if_due(now)

    def _members(self, piece: Piece) -> dict[str, Any]:
        self._delivered.value += piece.rows
        # Count from the last position sent: pieces in which nothing passed the filter are not sent.
        first = piece.first if self._wanted is None else self._reported + 1
        return {"event": "rows", "first": first, "last": piece.last}

    def _position(self) -> dict[str, Any]:
        return {"seq": self._next - 1}

    def _at_hand(self, seq: int) -> Piece | None:
        """Return the newest messages if they need not be read or filtered in a thread."""
        self._heavy = chunk = self._cache.find(seq)
        wanted = self._wanted
        if chunk is None or chunk.first != seq:
            self._feed.share = self._share(seq)
            return None
        if wanted is None:
            return chunk.whole()
        found = chunk.known(wanted)
        if found is None and self._budget.glance(len(chunk.batches), chunk.unknown_topics(wanted)):
            found = chunk.at_a_glance(wanted)
        if found is None:
            rows = chunk.last - chunk.first + 1
            if wanted.compiled and rows <= _SMALL and self._budget.apply(rows):
                found = chunk.filtered(wanted)
        if found is None:
            self._feed.share = self._readers.filtered
        return found

    def _share(self, seq: int) -> Executor:
        """Return the threads that read for a stream at ``seq``."""
        if self._log.head - seq >= _FAR:
            return self._readers.bulk
        return self._readers if self._wanted is None else self._readers.filtered

    def _read(self, first: int, last: int) -> Piece:
        if self._closed:
            # The client has gone while the read waited for its turn.
            raise ClosedError("the stream is over")
        chunk = self._heavy
        if chunk is not None and self._wanted is not None and chunk.first <= first <= chunk.last:
            return (
                chunk.filtered(self._wanted)
                if chunk.first == first
                else chunk.filtered_from(first, self._wanted)
            )
        return read_piece(self._log, first, last, self._wanted)
