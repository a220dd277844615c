"""Reading over the link: the log (``read``, ``follow``), a snapshot, and the content subscriptions.

Streams are opened here; :mod:`~headrace.net.link.streams` sends them. Searching for a time and packing a snapshot may
take a while, and are done in a thread.
"""

from __future__ import annotations

from concurrent.futures import Executor

from headrace.errors import RefusedError, TrimmedError
from headrace.hub.filters import Filter
from headrace.hub.routing.subscriptions import Subscriptions, tables
from headrace.hub.sequence import Hub
from headrace.log.snapshot import Snapshot, serialize
from headrace.net.link.background_work import BackgroundWork
from headrace.net.link.connection import ExplainedError, LinkConnection
from headrace.net.link.consumers import LinkConsumers
from headrace.net.link.row_bodies import RowCache
from headrace.net.link.streams import PieceStream, RowStream, byte_pieces, row_pieces
from headrace.wire.link import requests as ask


class LinkReading:
    """The reading operations of one hub's link."""

    def __init__(
        self,
        hub: Hub,
        readers: Executor,
        cache: RowCache,
        background: BackgroundWork,
        consumers: LinkConsumers,
        subscriptions: Subscriptions,
    ) -> None:
        self._hub = hub
        self._log = hub.log
        self._readers = readers
        self._background = background
        self._cache = cache
        self._delivered = hub.counters.counter("delivered", door="tube")
        self._consumers = consumers
        self._subscribed = subscriptions
        self._packing: set[LinkConnection] = set()
        """Connections for which a snapshot is being packed: each is as large as the state, so one at a time."""

    def head(self, connection: LinkConnection, request: ask.HeadRequest, _body: memoryview) -> None:
        """Answer the log's range."""
        log = self._log
        more: dict[str, object] = {}
        if request.first is not None and request.bytes is not None:
            more["reach"] = log.reach(request.first, request.bytes)
        connection.answer(
            request.id,
            **more,
            message=min(self._hub.newest, log.head),
            path=str(log.directory.resolve()),
            log=str(log.uuid),
            first=log.first,
            head=log.head,
            first_time=log.first_time(),
            head_time=log.last_time if log.head else None,
        )

    def read(self, connection: LinkConnection, request: ask.ReadRequest, _body: memoryview) -> None:
        """Send a range of the log as it is now."""
        connection.check_room_for_stream()
        head = self._log.head
        last = head if request.last is None else min(request.last, head)
        self._begin(connection, request, request.first, last)

    def follow(self, connection: LinkConnection, request: ask.FollowRequest, _body: memoryview) -> None:
        """Send the log from a position on, as it grows; or let the client join a durable consumer."""
        if request.consumer is not None:
            self._consumers.follow(connection, request, request.consumer)
            return
        if request.from_seq is not None and request.time is not None:
            raise RefusedError("conflict", "a follow begins at a sequence number or at a time, not at both")
        connection.check_room_for_stream()
        if request.time is None:
            begin = self._log.head + 1 if request.from_seq is None else request.from_seq
            self._begin(connection, request, begin, None)
            return

        def found(seq: int) -> None:
            connection.check_room_for_stream()
            self._begin(connection, request, seq, None)

        self._background.answer(connection, request.id, found, self._log.seq_at, request.time)

    def snapshot(self, connection: LinkConnection, request: ask.SnapshotRequest, _body: memoryview) -> None:
        """Send the hub's state."""
        connection.check_room_for_stream()
        if connection in self._packing:
            raise ExplainedError("busy", "a snapshot is being packed for this tube", limit=1)
        state = self._hub.state
        taken = Snapshot(self._log.uuid, state.seq, state.sections())

        def over() -> None:
            self._packing.discard(connection)

        def made(data: bytes) -> None:
            over()
            connection.check_room_for_stream()
            end = {"seq": taken.seq, "size": len(data)}
            pieces = byte_pieces("snapshot", data)
            connection.stream(PieceStream(request.id, connection, pieces, request.credit, end))

        self._packing.add(connection)
        self._background.answer(connection, request.id, made, serialize, taken, failed=over)

    def subscriptions(
        self, connection: LinkConnection, request: ask.SubscriptionsRequest, _body: memoryview
    ) -> None:
        """Send every content subscription."""
        connection.check_room_for_stream()
        # A copy: subscriptions may change while they are sent.
        pieces, end = row_pieces(tables(list(self._subscribed))), {"head": self._hub.state.seq}
        connection.stream(PieceStream(request.id, connection, pieces, request.credit, end))

    def _begin(
        self,
        connection: LinkConnection,
        request: ask.ReadRequest | ask.FollowRequest,
        cursor: int,
        last: int | None,
    ) -> None:
        wanted = _filter(request)
        if cursor < self._log.first and (last is None or cursor <= last):
            raise TrimmedError(cursor, self._log.head if last is None else last, self._log.first)
        stream = RowStream(
            request.id,
            connection,
            self._log,
            self._cache,
            self._readers,
            first=cursor,
            last=last,
            wanted=wanted,
            credit=request.credit,
            delivered=self._delivered,
        )
        connection.stream(stream)


def _filter(request: ask.ReadRequest | ask.FollowRequest) -> Filter | None:
    """Make a stream's filter; ``None`` for everything, log entries included."""
    if request.topic is None and request.origin is None and request.where is None:
        return None
    origins = [request.origin] if isinstance(request.origin, str) else request.origin
    return Filter(request.topic, origins, ask.parse_where(request.where or {}))
