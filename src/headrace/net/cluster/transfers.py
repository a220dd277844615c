"""What nodes send one another of their logs: operations, and snapshots when the operations are no longer kept.

Operations are messages and entries, in their order, packed with the uuid of their log
(:mod:`headrace.log.replication_frames`) as the bulk of Prepare and NewState. The receiver may have some of them
already, or want only the first ones.

A node that needs a snapshot asks for it piece by piece, on the connection that it dialled. The other node makes one
when the first piece is asked for, and keeps it while that connection asks on. Making one costs the hub time and memory,
so:

- one is made every :data:`MAKE_SECONDS` at most, whoever asks. A node that asks in between gets the last one if that
  reaches far enough, and otherwise nothing; it asks again by itself;
- each node has one under way, on the connection it asked on last: there are never more snapshots in memory than nodes,
  and the last one;
- a node that does not take its pieces is sent no more than of any parcel: the stream bounds what waits for it.

A fetched snapshot has :data:`MAX_BYTES` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from headrace.cluster.effects import Serve
from headrace.cluster.tied_ops import Spans
from headrace.errors import DamagedError, LimitError, TrimmedError
from headrace.hub.compact_batches import compacted
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.log.replication_frames import pack, unpack
from headrace.log.snapshots.snapshot import Snapshot, parse
from headrace.message import Batch
from headrace.net.cluster.parcel_door import ParcelStream
from headrace.wire.parcel.body import GetSnapshot, NewState, Prepare, SnapshotPart

SERVE_BYTES: Final = 1 << 20
"""Approximate size of one NewState."""

PART_BYTES: Final = 4 << 20
MAX_BYTES: Final = 1 << 30
MAKE_SECONDS: Final = 5.0
"""The longest wait for the next snapshot of a node that finds more was trimmed while it installed one."""


class Received(NamedTuple):
    """Operations that another node has sent."""

    uuid: UUID | None
    """Their log."""
    batches: Sequence[Batch]
    tied: Spans
    """Those of them that are tied to the next."""


NOTHING: Final = Received(None, (), ())


def numbered(hub: Hub, body: Prepare) -> bytes:
    """Pack what a Prepare numbers: this hub has appended it, and not committed it yet."""
    batches = hub.appended_from(body.first)
    return pack(hub.log.uuid, [each for each in batches if each.last_op <= body.last], tied=True)


def received(body: Prepare | NewState, bulk: bytes) -> Received:
    """Unpack the operations that came with a parcel; anything else than its first to its last raises."""
    if body.last < body.first:
        return NOTHING
    uuid, batches = unpack(bulk, body.first, body.last)
    return Received(uuid, batches, tied_spans(batches))


def served(log: Log, asked: Serve) -> tuple[NewState, bytes]:
    """Answer a node that asks for operations, with as many of them as a parcel takes."""
    try:
        read = log.read_ops(asked.first, asked.last, SERVE_BYTES, uncommitted=True)
    except TrimmedError:
        return NewState(asked.view, log.first_op, log.first_op - 1, asked.commit), b""
    batches: list[Batch] = []
    # Asked after it is read: a tail may be sealed meanwhile.
    sealed_end = log.sealed_end(asked.first)
    for each in read:
        if sealed_end is not None:
            # It is served as one group, so nobody shows a part of a group that is in it.
            each = replace(each, tied=each.last_op < sealed_end)
        # Sealed batches have a column for everything: stored like that, they would grow from node to node.
        batches += compacted(each)
    last = batches[-1].last_op if batches else asked.first - 1
    bulk = pack(log.uuid, batches, tied=True) if batches else b""
    return NewState(asked.view, asked.first, last, asked.commit), bulk


def between(batches: Sequence[Batch], first: int, last: int) -> Iterator[Batch]:
    """Cut received batches to the operations ``first`` to ``last``."""
    for batch in batches:
        begin, end = max(first - batch.op, 0), min(last - batch.op + 1, len(batch))
        if begin < end:
            yield batch if end - begin == len(batch) else batch.slice(begin, end)


def tied_spans(batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """Return the operations that are tied to the next one."""
    return [(batch.op, batch.last_op) for batch in batches if batch.tied]


class _Made(NamedTuple):
    op: int
    data: bytes


_NONE: Final = _Made(0, b"")

Make = Callable[[Callable[[], bytes], Callable[[bytes | None], None]], None]
"""Makes a snapshot in a thread, and calls back with it, or with ``None`` if that failed."""


class Snapshots:
    """Both sides of fetching snapshots; ``now`` is the loop's clock.

    ``fetched`` is called with the token of a fetch and the snapshot, or None if there is none to be had.
    """

    def __init__(
        self,
        hub: Hub,
        fetched: Callable[[int, Snapshot | None], None],
        now: Callable[[], float],
        make: Make | None = None,
    ) -> None:
        self._hub = hub
        self._make = make or (lambda made, then: then(made()))
        self._making = False
        self._waiting: dict[int, tuple[ParcelStream, GetSnapshot]] = {}
        """Who asks for the snapshot that is being made, by node."""
        self._now = now
        self._fetched = fetched
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
        """Fetch a snapshot that reaches past operation ``after``; a new fetch replaces the one before."""
        self._source, self._token, self._after, self._parts, self._size = stream, token, after, [], 0
        if stream is None or not stream.post(GetSnapshot(token, after, 0), certain=True):
            self._end(None)

    def asked(self, stream: ParcelStream, ask: GetSnapshot) -> None:
        """Send a node the piece it asks for."""
        if stream.peer is None:
            return  # It has not introduced itself.
        if ask.offset == 0 and self._is_being_made(ask.after):
            self._waiting[stream.peer.id] = stream, ask
        else:
            self._send(stream, stream.peer.id, ask)

    def _send(self, stream: ParcelStream, node: int, ask: GetSnapshot) -> None:
        if ask.offset == 0:
            self._under_way[node] = stream, self._reaching_past(ask.after)
        asking, made = self._under_way.get(node, (None, _NONE))
        if asking is not stream:
            made = _NONE
        piece = made.data[ask.offset : ask.offset + PART_BYTES]
        if asking is stream and ask.offset + len(piece) >= len(made.data):
            del self._under_way[node]
        stream.post(SnapshotPart(ask.token, made.op, ask.offset, len(made.data)), piece)

    def tick(self, now: float) -> None:
        """Forget the last snapshot when it is old."""
        if self._made_at is not None and now - self._made_at >= MAKE_SECONDS:
            self._last, self._made_at = _NONE, None

    def _is_being_made(self, after: int) -> bool:
        """Begin to make a snapshot, if one is wanted and none is there; return whether one is under way."""
        self.tick(self._now())
        state = self._hub.state
        if not self._making and self._made_at is None and state.op > after:
            self._making = True
            taken = state.freeze()
            self._make(partial(self._hub.log.packed_snapshot, taken), partial(self._made, taken.op))
        return self._making

    def _made(self, op: int, data: bytes | None) -> None:
        self._making = False
        if data is not None:
            self._last, self._made_at = _Made(op, data), self._now()
        waiting, self._waiting = self._waiting, {}
        for node, (stream, ask) in waiting.items():
            self._send(stream, node, ask)

    def _reaching_past(self, after: int) -> _Made:
        if self._last.op <= after < self._hub.state.op:
            self._hub.counters.add("snapshots_refused")
        return self._last if self._last.op > after else _NONE

    def came(self, stream: ParcelStream, part: SnapshotPart, piece: bytes) -> None:
        """Take a piece, and ask for the next."""
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
        """Forget a connection that is closed."""
        if stream.peer is not None and self._under_way.get(stream.peer.id, (None,))[0] is stream:
            del self._under_way[stream.peer.id]
        for node, (waiting, _) in tuple(self._waiting.items()):
            if waiting is stream:
                del self._waiting[node]
        if stream is self._source:
            self._end(None)

    def _end(self, snapshot: Snapshot | None) -> None:
        self._source, self._parts, self._size = None, [], 0
        self._fetched(self._token, snapshot)
