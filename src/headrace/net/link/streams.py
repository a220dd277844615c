"""One stream of the link: a cursor, moved on as fast as the client grants bytes and the tube takes them.

There is no "live" and no "catching up", only a cursor: what lies at it is taken from what was committed last, if it is
still at hand, and read from the log, off the event loop, if it is not. So a stream has no seam at which a row could be
missed or repeated, and costs at most one body that is being read. A ``read`` ends behind its last row; a ``follow``
waits at the head for the next commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Final, Protocol

import pyarrow as pa

from headrace.errors import ClosedError, HeadraceError, StorageError, WireError
from headrace.hub.counters import Counter
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.net.link.row_bodies import Live, Piece, read_piece
from headrace.wire.link.message import Buffer, body_of

_AT_SECONDS: Final = 1.0
"""How often a stream that filters says how far it has come while nothing matches."""

_SMALL: Final = 512
"""Rows up to which a filter is applied on the event loop."""


class Outlet(Protocol):
    """Where a stream's events go."""

    @property
    def full(self) -> bool:
        """Whether the tube takes no more for now."""

    def event(self, head: Mapping[str, Any], body: Buffer | None = None) -> None:
        """Send one event."""

    def stream_over(self, stream_id: int, answer: Mapping[str, Any] | HeadraceError) -> None:
        """Send a stream's last word, and forget it."""


class Stream(Protocol):
    """What a connection wants of a stream."""

    id: int

    def grant(self, size: int) -> None:
        """The client takes more."""

    def close(self) -> None:
        """Send nothing more."""

    def lose(self) -> None:
        """Send nothing more: the tube is gone, and nobody knows what the client had of it."""

    def tick(self, now: float) -> None:
        """Do what depends on time."""

    def pump(self) -> None:
        """Send what there is, as far as credit and the tube allow."""


class Credit:
    """Bytes that may be under way to a client."""

    __slots__ = ("_granted", "_under_way")

    def __init__(self, granted: int) -> None:
        self._granted = granted
        self._under_way = 0

    @property
    def room(self) -> int:
        """What may be sent besides."""
        return max(0, self._granted - self._under_way)

    def allows(self, size: int) -> bool:
        """Whether an event of ``size`` may be sent: one that is longer than the rest, when half is free.

        A client need not grant before it has taken half. If a long event waited for more, both would wait for ever.
        """
        return self._under_way * 2 <= self._granted or self._under_way + size <= self._granted

    def spend(self, size: int) -> None:
        """An event was sent."""
        self._under_way += size

    def grant(self, size: int) -> None:
        """The client is done with so much."""
        self._under_way = max(0, self._under_way - size)


class RowStream:
    """A ``read`` (with a ``last``) or a ``follow`` (without)."""

    def __init__(
        self,
        stream_id: int,
        outlet: Outlet,
        log: Log,
        live: Live,
        readers: Executor,
        *,
        cursor: int,
        last: int | None,
        wanted: Filter | None,
        credit: int,
        delivered: Counter,
    ) -> None:
        self.id = stream_id
        self.cursor = cursor
        self.last = last
        self._outlet = outlet
        self._log = log
        self._live = live
        self._readers = readers
        self._wanted = wanted
        self._credit = Credit(credit)
        self._delivered = delivered
        self._ready: Piece | None = None
        """Read, and waiting for credit."""
        self._reading = False
        self._closed = False
        self._told = cursor - 1
        """How far the client knows that the stream has come."""
        self._told_at = asyncio.get_running_loop().time()
        if last is None:
            live.followers += 1
            self._tell(self._told_at)

    def grant(self, size: int) -> None:
        """The client takes more."""
        self._credit.grant(size)
        self.pump()

    def close(self) -> None:
        """Send nothing more."""
        if not self._closed:
            self._closed = True
            self._ready = None
            if self.last is None:
                self._live.followers -= 1

    def lose(self) -> None:
        """Send nothing more: whoever had it knows where to go on."""
        self.close()

    def tick(self, now: float) -> None:
        """Tell how far the filter has come, if it is time."""
        if self._wanted is not None and now - self._told_at >= _AT_SECONDS and self._told < self.cursor - 1:
            self._tell(now)

    def pump(self) -> None:
        """Send what there is until credit or the tube say stop, all is sent, or the log must be read."""
        while not (self._closed or self._reading or self._outlet.full):
            if self._ready is not None:
                if not self._send(self._ready):
                    return
                self._ready = None
            elif self.last is not None and self.cursor > self.last:
                self._over({"ok": True, "next": self.cursor})
            elif self.cursor > self._log.head or not self._credit.allows(1):
                return
            elif (piece := self._at_hand()) is not None:
                self._ready = piece
            else:
                self._read()

    def _at_hand(self) -> Piece | None:
        chunk = self._live.find(self.cursor) if self.last is None else None
        if chunk is None or (chunk.first != self.cursor and self._wanted is None):
            return None
        if self._wanted is not None and chunk.last - chunk.first >= _SMALL:
            return None
        return chunk.piece(self.cursor, self._wanted)

    def _send(self, piece: Piece) -> bool:
        if piece.body is not None:
            size = len(piece.body)
            if not self._credit.allows(size):
                return False
            self._credit.spend(size)
            # From where the client last heard of: it was not told of pieces in which nothing passed the filter.
            first = piece.first if self._wanted is None else self._told + 1
            self._outlet.event(
                {"id": self.id, "event": "rows", "first": first, "last": piece.last}, piece.body
            )
            self._told = piece.last
            self._delivered.value += piece.rows
        self.cursor = piece.last + 1
        return True

    def _read(self) -> None:
        self._reading = True
        last = self._log.head if self.last is None else self.last
        reading = asyncio.get_running_loop().run_in_executor(
            self._readers, read_piece, self._log, self.cursor, last, self._wanted
        )
        reading.add_done_callback(self._was_read)

    def _was_read(self, done: asyncio.Future[Piece]) -> None:
        self._reading = False
        error = None if done.cancelled() else done.exception()
        if self._closed or done.cancelled():
            return
        if error is None:
            self._ready = done.result()
            self.pump()
        elif isinstance(error, StorageError | WireError | ClosedError):
            self._over(error)
        else:
            raise error

    def _tell(self, now: float) -> None:
        self._told, self._told_at = self.cursor - 1, now
        self._outlet.event({"id": self.id, "event": "at", "seq": self.cursor - 1})

    def _over(self, answer: Mapping[str, Any] | HeadraceError) -> None:
        self.close()
        self._outlet.stream_over(self.id, answer)


class PieceStream:
    """A stream of pieces that are made, or cut, as they are sent: each the members of its event, and its body."""

    def __init__(
        self,
        stream_id: int,
        outlet: Outlet,
        pieces: Iterator[tuple[dict[str, Any], Buffer]],
        credit: int,
        end: Mapping[str, Any],
    ) -> None:
        self.id = stream_id
        self._outlet = outlet
        self._pieces = pieces
        self._next = next(pieces, None)
        self._credit = Credit(credit)
        self._end = end
        self._closed = False

    def grant(self, size: int) -> None:
        """The client takes more."""
        self._credit.grant(size)
        self.pump()

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def lose(self) -> None:
        """Send nothing more."""
        self.close()

    def tick(self, now: float) -> None:
        """Nothing here depends on time."""

    def pump(self) -> None:
        """Send pieces until credit or the tube say stop."""
        while not (self._closed or self._outlet.full):
            if self._next is None:
                self.close()
                self._outlet.stream_over(self.id, self._end)
                return
            members, body = self._next
            if not self._credit.allows(len(body)):
                return
            self._credit.spend(len(body))
            self._outlet.event({"id": self.id, **members}, body)
            self._next = next(self._pieces, None)


def byte_pieces(event: str, data: bytes) -> Iterator[tuple[dict[str, Any], Buffer]]:
    """Bytes that are all there already; ``at`` is the offset of each piece."""
    view = memoryview(data)
    for at in range(0, len(data), _PIECE):
        yield {"event": event, "at": at}, view[at : at + _PIECE]


def row_pieces(tables: Iterator[pa.RecordBatch]) -> Iterator[tuple[dict[str, Any], Buffer]]:
    """Rows, some at a time; ``at`` is how many came before."""
    at = 0
    for rows in tables:
        yield {"event": "rows", "at": at}, body_of(rows)
        at += rows.num_rows


_PIECE: Final = 1 << 20
