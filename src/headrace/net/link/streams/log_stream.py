"""A stream over the log, driven by a :class:`~headrace.hub.cursor.Cursor`.

It ends after its last position or, without one, waits at the head for the next commit. Most streams count messages; a
copy of the log, and a stream of its entries, count operations.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.hub.cursor import Cursor, Lost
from headrace.net.link.streams.credit import CreditedStream, StreamTarget
from headrace.net.link.streams.row_bodies import Piece
from headrace.net.server.log.feed import FeedBounds, LogFeed
from headrace.net.server.machine.reader_threads import ReaderThreads

_AT_SECONDS: Final = 1.0
"""Seconds between reports of a stream's position while nothing matches its filter."""


class LogStream(CreditedStream):
    """A stream over the log; its cursor counts messages or operations.

    It ends after the cursor's last position, or waits at the head for the next commit. Subclasses read pieces and name
    the members of events.
    """

    def __init__(
        self,
        stream_id: int,
        target: StreamTarget,
        credit: int,
        bounds: FeedBounds,
        cursor: Cursor[Piece],
        readers: ReaderThreads,
        share: Executor | None = None,
    ) -> None:
        super().__init__(stream_id, target, credit)
        self._cursor = cursor
        self._feed = LogFeed(bounds, cursor, self._read, readers, self, share)
        self._next = cursor.next
        self._reported = cursor.next - 1
        """The last position that was sent to the client."""
        self._reported_at = asyncio.get_running_loop().time()

    def close(self) -> None:
        """Send nothing more."""
        if not self._closed:
            super().close()
            self._cursor.close()

    def pump(self) -> None:
        """Send as far as credit and the tube allow, until everything is sent or the log must be read."""
        self._feed.pump()
        last = self._cursor.last
        if last is not None and self._next > last and not (self._closed or self._target.full):
            self._end({"next": self._next})

    @property
    def ready(self) -> bool:
        """Whether another piece may be sent."""
        return not (self._closed or self._target.full) and self._credit.allows(1)

    def take_chunk(self, piece: Piece) -> bool:
        """Send a piece, if the client's credit allows it."""
        if piece.body is not None:
            size = len(piece.body)
            if not self._credit.allows(size):
                return False
            self._credit.spend(size)
            self._target.event({"id": self.id, **self._members(piece)}, piece.body)
            self._reported = piece.last
        self._next = piece.last + 1
        return True

    def read_failed(self, _lost: Lost, error: HeadraceError) -> None:
        """End with the error, which names the rows that are gone."""
        self._end(error)

    def _read(self, first: int, last: int) -> Piece:
        """Read a piece from ``first`` on, not past ``last``; runs in a thread."""
        raise NotImplementedError

    def _members(self, piece: Piece) -> dict[str, Any]:
        """Return the members of the event that carries a piece."""
        raise NotImplementedError

    def _position(self) -> dict[str, Any]:
        """Return the members of an event ``at``."""
        raise NotImplementedError

    def _report(self, now: float) -> None:
        self._reported, self._reported_at = self._next - 1, now
        self._target.event({"id": self.id, "event": "at", **self._position()})

    def _report_if_due(self, now: float) -> None:
        """Report the position of a stream that has advanced without sending anything for a while."""
        if now - self._reported_at >= _AT_SECONDS and self._reported < self._next - 1:
            self._report(now)
