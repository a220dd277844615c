"""Streams that send one large answer in pieces, such as the hub's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.net.link.streams.credit import CreditedStream, StreamTarget
from headrace.wire.link.message import Buffer, body_of

_PIECE: Final = 1 << 20


class PieceStream(CreditedStream):
    """A stream of pieces, which are made as they are sent: each has the members of an event, and a body."""

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
    """Encode rows, some at a time; ``at`` is the number of rows before."""
    at = 0
    for rows in tables:
        yield {"event": "rows", "at": at}, body_of(rows)
        at += rows.num_rows
