"""Reading over the link: messages (``read``, ``follow``), ``entries``, the whole log (``replicate``), and the state.

Streams are opened here; :mod:`~headrace.net.link.streams` sends them. Threads search for times and pack snapshots,
since that may take a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

from headrace.errors import RefusedError, TrimmedError
from headrace.hub.filters import Filter
from headrace.hub.routing.subscriptions import (
    Subscriptions,
    tables,
)
from headrace.hub.sequence import Hub
from headrace.hub.topic_test import check_topic_pattern
from headrace.log import Log
from headrace.log.files import translating
from headrace.net.link.connection import LinkConnection
from headrace.net.link.operations.background_work import BackgroundWork
from headrace.net.link.operations.consumers import LinkConsumers
from headrace.net.link.operations.rights import LinkRights
from headrace.net.link.refusals import ExplainedError
from headrace.net.link.streams.operation_bodies import EntryFilter
from headrace.net.link.streams.operations import CopyStream, EntryStream, Waiting
from headrace.net.link.streams.pieces import PieceStream, byte_pieces, row_pieces
from headrace.net.link.streams.rounds import FilterBudget
from headrace.net.link.streams.row_bodies import RowCache
from headrace.net.link.streams.rows import RowStream
from headrace.net.server.machine.reader_threads import ReaderThreads
from headrace.wire.link import requests as ask


class LinkReading:
    """The reading operations of one hub's link."""

    def __init__(
        self,
        hub: Hub,
        readers: ReaderThreads,
        cache: RowCache,
        background: BackgroundWork,
        consumers: LinkConsumers,
        subscriptions: Subscriptions,
        rights: LinkRights,
    ) -> None:
        self._hub = hub
        self._log = hub.log
        self._readers = readers
        self._background = background
        self._path = str(hub.log.directory.resolve())
        self._cache = cache
        self.budget = FilterBudget()
        self._filters: WeakValueDictionary[Filter, Filter] = WeakValueDictionary()
        """The filters in use: readers with equal filters share one."""
        self._delivered = hub.counters.counter("delivered", door="tube")
        self._consumers = consumers
        self._subscribed = subscriptions
        self._rights = rights
        self.waiting = Waiting()
        self._packing: set[LinkConnection] = set()
        """Connections for which a snapshot or a chain is being packed: one at a time, since each may be large."""

    def head(self, connection: LinkConnection, request: ask.HeadRequest, _body: memoryview) -> None:
        """Answer with the log's range."""
        log = self._log

        def tell(history: list[str | None]) -> None:
            more: dict[str, object] = {}
            if request.first is not None and request.bytes is not None:
                more["reach"] = log.reach(request.first, request.bytes)
            if request.history:
                more["history"] = history
            connection.answer(
                request.id,
                **more,
                # A client that reads the files themselves reads every topic.
                path=self._path if connection.principal.reads_everything else "",
                log=str(log.uuid),
                first=log.first,
                first_here=log.first_here,
                head=log.head,
                first_time=log.first_time(),
                head_time=log.last_time if log.head else None,
                ops=[log.first_op, log.head_op],
            )

        # A digest would confirm a guess at a message's content.
        if not request.history or not connection.principal.reads_everything:
            tell([None] * len(request.history))
        elif all(seq > log.head or log.chain.fingerprint_at_hand(seq) is not None for seq in request.history):
            tell(self._fingerprints(request.history))
        else:
            self._background.answer(connection, request.id, tell, self._fingerprints, request.history)

    def _fingerprints(self, history: Sequence[int]) -> list[str | None]:
        """Return the fingerprints of the history up to some messages, if they are known here; may read the disk."""
        found: list[str | None] = []
        for seq in history:
            with suppress(TrimmedError):
                found.append(self._log.chain.fingerprint(seq) if seq <= self._log.head else None)
                continue
            found.append(None)
        return found

    def read(self, connection: LinkConnection, request: ask.ReadRequest, _body: memoryview) -> None:
        """Send a range of the messages that the log has now."""
        connection.streams.check_room()
        head = self._log.head
        last = head if request.last is None else min(request.last, head)
        self._begin(connection, request, request.first, last)

    def follow(self, connection: LinkConnection, request: ask.FollowRequest, _body: memoryview) -> None:
        """Send messages from a position on, as they are committed; or let the client join a durable consumer."""
        if request.consumer is not None:
            if request.topic is not None:
                # Check this before the consumer is created, since its terms are kept for ever.
                check_topic_pattern(request.topic)
            self._consumers.follow(connection, request, request.consumer)
            return
        if request.from_seq is not None and request.time is not None:
            raise RefusedError("conflict", "a follow begins at a sequence number or at a time, not at both")
        connection.streams.check_room()
        if request.time is None:
            begin = self._log.head + 1 if request.from_seq is None else request.from_seq
            self._begin(connection, request, begin, None)
            return

        def found(seq: int) -> None:
            connection.streams.check_room()
            self._begin(connection, request, seq, None)

        share = self._readers.past if self._log.is_past(request.time) else None
        self._background.answer(connection, request.id, found, self._log.seq_at, request.time, share=share)

    def replicate(self, connection: LinkConnection, request: ask.ReplicateRequest, _body: memoryview) -> None:
        """Send the log, messages and entries, to a hub that copies it, and continue as it grows."""
        connection.streams.check_room()
        log, last = self._log, request.last_op
        if last is not None:
            last = min(last, log.head_op)
        if request.from_op < log.first_op and (last is None or request.from_op <= last):
            raise _no_longer_kept(log)
        stream = CopyStream(
            request.id,
            connection,
            log,
            self._readers,
            self.waiting,
            first=request.from_op,
            last=last,
            credit=request.credit,
        )
        connection.stream(stream)

    def entries(self, connection: LinkConnection, request: ask.EntriesRequest, _body: memoryview) -> None:
        """Send the entries after each message of a range; if the range has no end, continue as they are committed."""
        connection.streams.check_room()
        topics = None if request.topic is None else Filter(request.topic)
        wanted = EntryFilter(request.first, request.last, topics)

        def found(ops: tuple[int, int | None]) -> None:
            first, last = ops
            connection.streams.check_room()
            stream = EntryStream(
                request.id,
                connection,
                self._log,
                self._readers,
                self.waiting,
                first=first,
                last=last,
                credit=request.credit,
                wanted=wanted,
            )
            connection.stream(stream)

        # Finding the entries of sealed messages reads the disk.
        self._background.answer(connection, request.id, found, self._operations, request)

    def _operations(self, request: ask.EntriesRequest) -> tuple[int, int | None]:
        """Return the range of operations that contains the entries of a range; runs in a thread."""
        log = self._log
        last = None
        with translating(log.directory):
            if request.last is not None:
                last = log.head_op if request.last >= log.head else log.op_of(request.last + 1) - 1
            first = request.from_op or self._after(request.first)
        if first < log.first_op and (last is None or first <= last):
            raise _no_longer_kept(log)
        return first, last

    def _after(self, seq: int) -> int:
        """Return the operation at which the entries after message ``seq`` begin, as far as they are kept."""
        log = self._log
        # An archive has messages only; entries are in the log's own segments.
        if seq < log.first_here - 1:
            raise TrimmedError(seq, log.first_here - 1, log.first_here)
        if seq < log.first_here:
            return log.first_op
        return log.op_of(seq) + 1 if seq <= log.head else log.head_op + 1

    def snapshot(self, connection: LinkConnection, request: ask.SnapshotRequest, _body: memoryview) -> None:
        """Send the hub's state."""
        taken = self._hub.state.freeze()
        self._send(connection, request, "snapshot", taken.seq, partial(self._log.packed_snapshot, taken))

    def chain(self, connection: LinkConnection, request: ask.ChainRequest, _body: memoryview) -> None:
        """Send the digests of all committed messages."""
        head = self._log.head

        def made() -> bytes:
            return self._log.chain.at(head).since(request.first).serialize()

        self._send(connection, request, "chain", head, made)

    def _send(
        self,
        connection: LinkConnection,
        request: ask.SnapshotRequest | ask.ChainRequest,
        what: str,
        seq: int,
        make: Callable[[], bytes],
    ) -> None:
        """Send bytes in pieces; a thread makes them, and they describe the log up to message ``seq``."""
        connection.streams.check_room()
        if connection in self._packing:
            raise ExplainedError("busy", "a snapshot or a chain is being packed for this tube", limit=1)

        def over() -> None:
            self._packing.discard(connection)

        def made(data: bytes) -> None:
            over()
            connection.streams.check_room()
            end = {"seq": seq, "size": len(data)}
            pieces = byte_pieces(what, data)
            connection.stream(PieceStream(request.id, connection, pieces, request.credit, end))

        self._packing.add(connection)
        self._background.answer(connection, request.id, made, make, failed=over)

    def subscriptions(
        self, connection: LinkConnection, request: ask.SubscriptionsRequest, _body: memoryview
    ) -> None:
        """Send every content subscription."""
        connection.streams.check_room()
        # Send a copy, since subscriptions may change meanwhile.
        pieces, end = (
            row_pieces(tables(list(self._subscribed))),
            {"head": self._hub.state.seq, "op": self._hub.state.op},
        )
        connection.stream(PieceStream(request.id, connection, pieces, request.credit, end))

    def _begin(
        self,
        connection: LinkConnection,
        request: ask.ReadRequest | ask.FollowRequest,
        cursor: int,
        last: int | None,
    ) -> None:
        origins = [request.origin] if isinstance(request.origin, str) else request.origin
        where = ask.parse_where(request.where or {})
        wanted = self._rights.filter(connection, request.topic, origins, where)
        if cursor < self._log.first and (last is None or cursor <= last):
            raise TrimmedError(cursor, self._log.head if last is None else last, self._log.first)
        if wanted is not None:
            # Equal filters are shared, with everything they have compiled and remembered.
            wanted = self._filters.setdefault(wanted, wanted)
            connection.streams.check_room(wanted.cost)
        stream = RowStream(
            request.id,
            connection,
            self._log,
            self._cache,
            self._readers,
            self.budget,
            first=cursor,
            last=last,
            wanted=wanted,
            credit=request.credit,
            delivered=self._delivered,
        )
        connection.stream(stream)


def _no_longer_kept(log: Log) -> TrimmedError:
    """Return the error for a reader of operations that are no longer kept."""
    return TrimmedError(1, max(log.first_here - 1, 1), log.first_here)
