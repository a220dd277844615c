"""Streams of the log's operations: a copy of the log for another hub, and entries for a hub that follows state."""

from __future__ import annotations

from typing import Any

from headrace.hub.cursor import Cursor
from headrace.log import Log
from headrace.net.link.streams.credit import StreamTarget
from headrace.net.link.streams.log_stream import LogStream
from headrace.net.link.streams.operation_bodies import (
    EntryFilter,
    OperationBounds,
    read_entries,
    read_operations,
)
from headrace.net.link.streams.row_bodies import Piece
from headrace.net.server.machine.reader_threads import ReaderThreads


class Waiting:
    """The number of streams over operations that wait at the head: only they need commits of entries alone."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class OperationStream(LogStream):
    """A stream that counts the log's operations: a copy of the log, or its entries."""

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
    """An ``entries``: the entries after each message of a range whose topic matches."""

    def __init__(
        self, stream_id: int, target: StreamTarget, log: Log, readers: ReaderThreads, waiting: Waiting, *,
        first: int, last: int | None, credit: int, wanted: EntryFilter,
    ) -> None:  # fmt: skip
        self._wanted = wanted
        super().__init__(stream_id, target, log, readers, waiting, first=first, last=last, credit=credit)
        if last is None:
            self._report(self._reported_at)

    def tick(self, now: float) -> None:
        """Report the position if that is due, since entries are rare."""
        self._report_if_due(now)

    def _read(self, first: int, last: int) -> Piece:
        return read_entries(self._log, first, last, self._wanted)

    def _members(self, piece: Piece) -> dict[str, Any]:
        return {"event": "rows", "next": piece.last + 1}

    def _position(self) -> dict[str, Any]:
        return {"next": self._next}
