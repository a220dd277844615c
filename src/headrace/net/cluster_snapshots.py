"""Snapshots from node to node: what a node begins behind when the others no longer keep what it lacks.

The one that lacks asks piece by piece, on the connection it has dialled; the other one makes a snapshot of its state
when the first piece is asked for, and keeps it for as long as that connection asks on. Bounded: a snapshot per
connection, :data:`MAX_BYTES` of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.errors import DamagedError, LimitError
from headrace.hub.hub import Hub
from headrace.log.snapshot import Snapshot, parse, serialize
from headrace.net.parcel import ParcelStream
from headrace.wire.parcel_body import GetSnapshot, SnapshotPart

PART_BYTES: Final = 4 << 20
MAX_BYTES: Final = 1 << 30


class Snapshots:
    """Both sides."""

    def __init__(self, hub: Hub, fetched: Callable[[int, Snapshot | None], None]) -> None:
        self._hub = hub
        self._fetched = fetched
        """Told what was fetched as which token, or that it cannot be had."""
        self._made: dict[ParcelStream, tuple[int, bytes]] = {}
        self._source: ParcelStream | None = None
        self._token = 0
        self._after = 0
        self._parts: list[bytes] = []
        self._size = 0

    def fetch(self, stream: ParcelStream | None, token: int, after: int) -> None:
        """Fetch a snapshot that reaches past ``after``; one at a time, and the last that was wanted."""
        self._source, self._token, self._after, self._parts, self._size = stream, token, after, [], 0
        if stream is None or not stream.post(GetSnapshot(token, after, 0), certain=True):
            self._end(None)

    def asked(self, stream: ParcelStream, ask: GetSnapshot) -> None:
        """Somebody wants a piece."""
        state = self._hub.state
        if ask.offset == 0:
            data = b""
            if state.seq > ask.after:
                data = serialize(Snapshot(self._hub.log.uuid, state.seq, state.sections()))
            self._made[stream] = (state.seq, data)
        seq, data = self._made.get(stream, (0, b""))
        piece = data[ask.offset : ask.offset + PART_BYTES]
        if ask.offset + len(piece) >= len(data):
            self._made.pop(stream, None)
        stream.post(SnapshotPart(ask.token, seq, ask.offset, len(data)), piece, certain=True)

    def came(self, stream: ParcelStream, part: SnapshotPart, piece: bytes) -> None:
        """A piece has come."""
        if stream is not self._source or part.token != self._token or part.offset != self._size:
            return
        if part.size > MAX_BYTES:
            raise LimitError("parcel", "snapshot", part.size, MAX_BYTES)
        self._parts.append(piece)
        self._size += len(piece)
        if self._size < part.size and piece:
            stream.post(GetSnapshot(part.token, self._after, self._size), certain=True)
            return
        try:
            self._end(parse(b"".join(self._parts), "the other node's snapshot") if part.size else None)
        except DamagedError:
            self._end(None)

    def left(self, stream: ParcelStream) -> None:
        """A connection is over."""
        self._made.pop(stream, None)
        if stream is self._source:
            self._end(None)

    def _end(self, snapshot: Snapshot | None) -> None:
        self._source, self._parts, self._size = None, [], 0
        self._fetched(self._token, snapshot)
