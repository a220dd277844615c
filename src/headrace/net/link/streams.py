"""The streams of one link connection, sent as fast as the client grants bytes and the tube takes them.

A :class:`LogStream` sends the log by a :class:`~headrace.hub.cursor.Cursor`: a ``read`` ends after its last row, a
``follow`` waits at the head for the next commit. Most count messages; a copy of the log, and a stream of its entries,
count operations. A :class:`PieceStream` sends the hub's state, a piece at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Final, Protocol

import pyarrow as pa

from headrace.errors import ClosedError, HeadraceError
from headrace.hub.counters import Counter
from headrace.hub.cursor import Cursor, Lost
from headrace.hub.filters import Filter
from headrace.log import Log
from headrace.net.link.operation_bodies import EntryFilter, OperationBounds, read_entries, read_operations
from headrace.net.link.row_bodies import Piece, RowCache, RowChunk, read_piece
from headrace.net.link.stream_rounds import FilterBudget
from headrace.net.server.log.feed import FeedBounds, LogFeed
from headrace.net.server.machine.reader_threads import ReaderThreads
from headrace.wire.link.message import Buffer, body_of

_AT_SECONDS: Final = 1.0
"""How often a stream with a filter reports its position while nothing matches."""

_SMALL: Final = 512
"""Rows up to which a filter is applied on the event loop."""

_FAR: Final = 100_000
"""Messages behind the head from which on a follow reads as those do who read ranges: it has much to catch up with."""

_PIECE: Final = 1 << 20


class StreamTarget(Protocol):
    """Where a stream's events go: its client's connection."""

    @property
    def full(self) -> bool:
        """Whether the tube takes no more for now."""

    def event(self, head: dict[str, Any], body: Buffer | None = None) -> None:
        """Send one event."""

    def stream_over(self, stream_id: int, answer: Mapping[str, Any] | HeadraceError) -> None:
        """Send a stream's last answer, and forget it."""


class LinkStream(Protocol):
    """A stream, as its connection sees it."""

    id: int

    @property
    def cost(self) -> int:
        """What its filter costs."""

    def grant(self, size: int) -> None:
        """Allow more bytes: the client has taken some."""

    def close(self) -> None:
        """Send nothing more."""

    def lose(self) -> None:
        """Send nothing more: the tube is lost, and it is unknown what the client has received."""

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
        """Bytes that may still be sent."""
        return max(0, self._granted - self._under_way)

    def allows(self, size: int) -> bool:
        """Return whether an event of ``size`` may be sent: even one longer than the credit may, once half is free.

        A client need not grant more before it has taken half, so waiting for more could last forever.
        """
        return self._under_way * 2 <= self._granted or self._under_way + size <= self._granted

    def spend(self, size: int) -> None:
        """Count an event that was sent."""
        self._under_way += size

    def grant(self, size: int) -> None:
        """Count what the client has taken."""
        self._under_way = max(0, self._under_way - size)


class CreditedStream:
    """The common part of all streams."""

    cost = 0
    """What its filter costs."""

    def __init__(self, stream_id: int, target: StreamTarget, credit: int) -> None:
        self.id = stream_id
        self._target = target
        self._credit = Credit(credit)
        self._closed = False

    def grant(self, size: int) -> None:
        """Allow more bytes: the client has taken some."""
        self._credit.grant(size)
        self.pump()

    def pump(self) -> None:
        """Send what there is, as far as credit and the tube allow."""
        raise NotImplementedError

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def lose(self) -> None:
        """Send nothing more: the client knows where to resume."""
        self.close()

    def tick(self, now: float) -> None:
        """Do what depends on time."""

    def _end(self, answer: Mapping[str, Any] | HeadraceError) -> None:
        self.close()
        self._target.stream_over(self.id, answer)


class LogStream(CreditedStream):
    """A stream over the log, by whatever its cursor counts: sequence numbers, or operations.

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
        """Send while credit and the tube allow, until all is sent or the log must be read."""
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
        """Report the position of a stream that has moved on and had nothing to send for a while."""
        if now - self._reported_at >= _AT_SECONDS and self._reported < self._next - 1:
            self._report(now)


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
        """A chunk at hand that a thread is to filter."""
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
        """Report the filter's position, if it is time."""
        if self._wanted is not None:
            self._report_if_due(now)

    def _members(self, piece: Piece) -> dict[str, Any]:
        self._delivered.value += piece.rows
        # From the last position sent: pieces in which nothing passed the filter are not.
        first = piece.first if self._wanted is None else self._reported + 1
        return {"event": "rows", "first": first, "last": piece.last}

    def _position(self) -> dict[str, Any]:
        return {"seq": self._next - 1}

    def _at_hand(self, seq: int) -> Piece | None:
        """Return the newest messages, unless they have to be read, or filtered in a thread."""
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
            # Its client has gone while the read waited for its turn.
            raise ClosedError("the stream is over")
        chunk = self._heavy
        if chunk is not None and self._wanted is not None and chunk.first <= first <= chunk.last:
            return (
                chunk.filtered(self._wanted)
                if chunk.first == first
                else chunk.filtered_from(first, self._wanted)
            )
        return read_piece(self._log, first, last, self._wanted)


class Waiting:
    """How many streams over operations wait at the head: a commit of entries alone concerns only them."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class OperationStream(LogStream):
    """A stream that counts the log's operations: a copy of the log for a hub, or entries for one that follows state."""

    def __init__(
        self,
        stream_id: int,
        target: StreamTarget,
        log: Log,
        readers: ReaderThreads,
        waiting: Waiting,
        *,
        first: int,
        last: int | None,
        credit: int,
    ) -> None:
        self._log = log
        self._waiting = waiting
        super().__init__(
            stream_id, target, credit, OperationBounds(log), Cursor[Piece](first, last=last), readers
        )
        if last is None:
            waiting.count += 1

    def close(self) -> None:
        """Send nothing more."""
        if not self._closed and self._cursor.last is None:
            self._waiting.count -= 1
        super().close()


class CopyStream(OperationStream):
    """A ``replicate``: messages and entries, in their order, as packed batches."""

    def _read(self, first: int, last: int) -> Piece:
        return read_operations(self._log, first, last)

    def _members(self, piece: Piece) -> dict[str, Any]:
        return {"event": "ops", "first": piece.first, "last": piece.last}


class EntryStream(OperationStream):
    """An ``entries``: the entries that stand after messages of a range, with a topic that matches."""

    def __init__(
        self, stream_id: int, target: StreamTarget, log: Log, readers: ReaderThreads, waiting: Waiting, *,
        first: int, last: int | None, credit: int, wanted: EntryFilter,
    ) -> None:  # fmt: skip
        self._wanted = wanted
        super().__init__(stream_id, target, log, readers, waiting, first=first, last=last, credit=credit)
        if last is None:
            self._report(self._reported_at)

    def tick(self, now: float) -> None:
        """Report the position, if it is time: entries are rare."""
        self._report_if_due(now)

    def _read(self, first: int, last: int) -> Piece:
        return read_entries(self._log, first, last, self._wanted)

    def _members(self, piece: Piece) -> dict[str, Any]:
        return {"event": "rows", "next": piece.last + 1}

    def _position(self) -> dict[str, Any]:
        return {"next": self._next}


class PieceStream(CreditedStream):
    """A stream of pieces, made as they are sent: each is the members of an event, and a body."""

    def __init__(
        self,
        stream_id: int,
        target: StreamTarget,
        pieces: Iterator[tuple[dict[str, Any], Buffer]],
        credit: int,
        end: Mapping[str, Any],
    ) -> None:
        super().__init__(stream_id, target, credit)
        self._pieces = pieces
        self._piece = next(pieces, None)
        self._answer = end

    def pump(self) -> None:
        """Send pieces while credit and the tube allow."""
        while not (self._closed or self._target.full):
            if self._piece is None:
                self._end(self._answer)
                return
            members, body = self._piece
            if not self._credit.allows(len(body)):
                return
            self._credit.spend(len(body))
            self._target.event({"id": self.id, **members}, body)
            self._piece = next(self._pieces, None)


def byte_pieces(event: str, data: bytes) -> Iterator[tuple[dict[str, Any], Buffer]]:
    """Cut bytes into pieces; ``at`` is the offset of each."""
    view = memoryview(data)
    for at in range(0, len(data), _PIECE):
        yield {"event": event, "at": at}, view[at : at + _PIECE]


def row_pieces(tables: Iterator[pa.RecordBatch]) -> Iterator[tuple[dict[str, Any], Buffer]]:
    """Encode rows, some at a time; ``at`` is how many came before."""
    at = 0
    for rows in tables:
        yield {"event": "rows", "at": at}, body_of(rows)
        at += rows.num_rows
