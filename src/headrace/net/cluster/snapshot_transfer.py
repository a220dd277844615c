"""Snapshots from node to node: what a node begins behind when the others no longer keep what it lacks.

The one that lacks asks piece by piece, on the connection it has dialled; the other one makes a snapshot of its state
when the first piece is asked for, and keeps it for as long as that connection asks on.

A snapshot takes the hub time and memory, so a node that asks and asks must not have it make one each time:

- one is made each :data:`MAKE_SECONDS` at most, whoever asks. Who asks in between gets the last one, if that reaches
  far enough, and otherwise nothing; it asks again by itself;
- each node has one under way, over whichever of its connections it asked last: there are no more snapshots in memory
  than nodes, and the last;
- a node that does not take its pieces is sent no more than any parcels: what waits for it is bounded by the stream.

What is fetched has :data:`MAX_BYTES` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.errors import DamagedError, LimitError
from headrace.hub.sequence import Hub
from headrace.log.snapshot import Snapshot, parse, serialize
from headrace.net.cluster.parcel_door import ParcelStream
from headrace.wire.parcel.body import GetSnapshot, SnapshotPart

PART_BYTES: Final = 4 << 20
MAX_BYTES: Final = 1 << 30
MAKE_SECONDS: Final = 5.0
"""A node that has begun behind one and finds that more was trimmed meanwhile waits so long for the next, at most."""


class _Made(NamedTuple):
    seq: int
    data: bytes


_NONE: Final = _Made(0, b"")


class Snapshots:
    """Both sides; ``now`` is the loop's clock."""

    def __init__(
        self, hub: Hub, fetched: Callable[[int, Snapshot | None], None], now: Callable[[], float]
    ) -> None:
        self._hub = hub
        self._now = now
        self._fetched = fetched
        """Told what was fetched as which token, or that it cannot be had."""
        self._last = _NONE
        self._made_at: float | None = None
        self._under_way: dict[int, tuple[ParcelStream, _Made]] = {}
        """By the node that asks."""
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
        if stream.peer is None:
            return  # Nodes have introduced themselves.
        node = stream.peer.id
        if ask.offset == 0:
            self._under_way[node] = stream, self._reaching_past(ask.after)
        asking, made = self._under_way.get(node, (None, _NONE))
        if asking is not stream:
            made = _NONE
        piece = made.data[ask.offset : ask.offset + PART_BYTES]
        if asking is stream and ask.offset + len(piece) >= len(made.data):
            del self._under_way[node]
        stream.post(SnapshotPart(ask.token, made.seq, ask.offset, len(made.data)), piece)

    def tick(self, now: float) -> None:
        """Forget the last one when it is old."""
        if self._made_at is not None and now - self._made_at >= MAKE_SECONDS:
            self._last, self._made_at = _NONE, None

    def _reaching_past(self, after: int) -> _Made:
        """A snapshot that reaches past a number, if one may be made or was."""
        self.tick(self._now())
        state = self._hub.state
        if self._made_at is None and state.seq > after:
            data = serialize(Snapshot(self._hub.log.uuid, state.seq, state.sections()))
            self._last, self._made_at = _Made(state.seq, data), self._now()
        elif self._last.seq <= after < state.seq:
            self._hub.counters.add("snapshots_refused")
        return self._last if self._last.seq > after else _NONE

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
        if stream.peer is not None and self._under_way.get(stream.peer.id, (None,))[0] is stream:
            del self._under_way[stream.peer.id]
        if stream is self._source:
            self._end(None)

    def _end(self, snapshot: Snapshot | None) -> None:
        self._source, self._parts, self._size = None, [], 0
        self._fetched(self._token, snapshot)
