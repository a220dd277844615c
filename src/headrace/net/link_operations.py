"""What the link's operations do. Each takes a request and sees to it that its connection answers it, now or later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from headrace.config import Settings
from headrace.errors import HeadraceError, LimitError, RefusedError, StorageError, TrimmedError
from headrace.hub.changes import Changes, Use, uses
from headrace.hub.filters import Filter
from headrace.hub.holds import hold
from headrace.hub.hub import Hub
from headrace.hub.losses import Losses
from headrace.hub.publishers import Publishers
from headrace.hub.publishing import Publishing, mark, published
from headrace.hub.sequencer import Published
from headrace.hub.services import Services
from headrace.hub.staging import (
    SECONDS,
    Commits,
    Load,
    Queries,
    Repeated,
    Stage,
    Staging,
    Wait,
    loaded,
    remove_all,
)
from headrace.hub.state import entry
from headrace.hub.subscriptions import Subscriptions, tables
from headrace.log.snapshot import Snapshot, serialize
from headrace.message import Batch
from headrace.net.link_connection import LinkConnection
from headrace.net.link_consumers import LinkConsumers
from headrace.net.link_rows import Live
from headrace.net.link_services import LinkServices
from headrace.net.link_streams import PieceStream, RowStream, byte_pieces, row_pieces
from headrace.net.reports import Reports
from headrace.wire import link_requests as ask
from headrace.wire.link import PASSED, PUBLISHED, rows_of
from headrace.wire.plain_rows import parse_published

MAX_TOPIC: Final = 0xFFFF
"""Bytes of a topic: what the log keeps of one that a whole batch shares."""

ORIGINS: Final = frozenset({"tube", "spark", "fyrehose", "spp", "attribute", "replay"})
"""What a publisher may say its rows come from; a frontend passes on what came in by its own doors."""

MAX_HOLDS: Final = 256

T = TypeVar("T")


class Operations:
    """The operations of one hub's link."""

    def __init__(
        self,
        hub: Hub,
        settings: Settings,
        readers: Executor,
        live: Live,
        status: Callable[[], dict[str, object]],
        *,
        publishers: Publishers,
        queries: Queries,
        services: Services | None,
        consumers: LinkConsumers | None,
        reports: Reports | None = None,
        losses: Losses | None = None,
        subscriptions: Subscriptions | None = None,
    ) -> None:
        self._hub = hub
        self._log = hub.log
        self._settings = settings
        self._readers = readers
        self._live = live
        self._delivered = hub.counters.counter("delivered", door="tube")
        self._status = status
        self._subscribed = subscriptions
        self._consumers = consumers
        self._reports = Reports() if reports is None else reports
        self._losses = Losses() if losses is None else losses
        self.publishing = self._publishing = Publishing(hub, publishers)
        """Judges what is published once; there is one in a hub."""
        self._staging = Staging(settings.node.data / "stages")
        self._staging.sweep()
        self.commits = self._commits = Commits(hub, queries, self._staging)
        self._changes = None if services is None else Changes(hub, services)
        self._table: dict[type[ask.Request], Callable[[LinkConnection, Any, memoryview], None]] = {
            ask.Head: self._head,
            ask.Status: self._tell_status,
            ask.Read: self._read,
            ask.Follow: self._follow,
            ask.Publish: self._publish,
            ask.Pass: self._pass,
            ask.Publisher: self._publisher,
            ask.Holds: self._holds,
            ask.Stage: self._stage,
            ask.Commit: self._commit,
            ask.Abort: self._abort,
            ask.Snapshot: self._snapshot,
            ask.Report: self._report,
            ask.Lost: self._lost,
            ask.Subscriptions: self._subscriptions,
        }
        if consumers is not None:
            self._table |= {ask.Ack: consumers.ack, ask.Consumers: consumers.manage}
        if services is not None:
            self._table[ask.Services] = LinkServices(hub, services).manage

    def perform(self, connection: LinkConnection, request: ask.Request, body: memoryview) -> None:
        """Do what a request asks; an error raised here is its answer."""
        operation = self._table.get(type(request))
        if operation is None:
            name = type(request).__name__.lower()
            raise RefusedError("unknown", f"this hub has no {name} yet")
        operation(connection, request, body)

    def tick(self, now: float) -> None:
        """Forget stages that nobody committed."""
        if expired := self._staging.expire(now):
            self._hub.counters.add("stages_expired", len(expired))
            self._in_thread(remove_all, expired)

    # Reading

    def _head(self, connection: LinkConnection, request: ask.Head, _body: memoryview) -> None:
        log = self._log
        more: dict[str, object] = {}
        if request.first is not None and request.bytes is not None:
            more["reach"] = log.reach(request.first, request.bytes)
        connection.answer(
            request.id,
            None,
            **more,
            message=min(self._hub.newest, log.head),
            path=str(log.directory.resolve()),
            log=str(log.uuid),
            first=log.first,
            head=log.head,
            first_time=log.first_time(),
            head_time=log.last_time if log.head else None,
        )

    def _tell_status(self, connection: LinkConnection, request: ask.Status, _body: memoryview) -> None:
        connection.answer(request.id, None, status=self._status())

    def _report(self, connection: LinkConnection, request: ask.Report, _body: memoryview) -> None:
        self._reports.take(request.name, request.facts, monotonic())
        connection.answer(request.id, None)

    def _lost(self, connection: LinkConnection, request: ask.Lost, _body: memoryview) -> None:
        reader, first, last = request.reader, request.first, request.last
        if (first is None) != (last is None) or (first is not None and reader is None):
            raise RefusedError("malformed", "a loss has a reader, first and last")
        if reader is not None and first is not None and last is not None:
            if first > last:
                raise RefusedError("malformed", f"there are no messages {first} to {last}")
            for fresh in self._losses.add(reader, first, last):
                detail = f"gone before {reader!r} had read them"
                self._hub.counters.report("reader_lost", *fresh, detail, at_will=True)
        connection.answer(request.id, None, lost=self._losses.facts(reader))

    def _read(self, connection: LinkConnection, request: ask.Read, _body: memoryview) -> None:
        connection.check_room_for_stream()
        head = self._log.head
        last = head if request.last is None else min(request.last, head)
        self._begin(connection, request, request.first, last)

    def _follow(self, connection: LinkConnection, request: ask.Follow, _body: memoryview) -> None:
        if request.consumer is not None:
            if self._consumers is None:
                raise RefusedError("unknown", "this hub has no durable consumers")
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

        self._later(connection, request.id, found, self._log.seq_at, request.time)

    def _begin(
        self, connection: LinkConnection, request: ask.Read | ask.Follow, cursor: int, last: int | None
    ) -> None:
        wanted = _filter(request)
        if cursor < self._log.first and (last is None or cursor <= last):
            raise TrimmedError(cursor, self._log.head if last is None else last, self._log.first)
        stream = RowStream(
            request.id,
            connection,
            self._log,
            self._live,
            self._readers,
            cursor=cursor,
            last=last,
            wanted=wanted,
            credit=request.credit,
            delivered=self._delivered,
        )
        connection.stream(stream)

    def _snapshot(self, connection: LinkConnection, request: ask.Snapshot, _body: memoryview) -> None:
        connection.check_room_for_stream()
        state = self._hub.state
        taken = Snapshot(self._log.uuid, state.seq, state.sections())

        def made(data: bytes) -> None:
            end = {"seq": taken.seq, "size": len(data)}
            pieces = byte_pieces("snapshot", data)
            connection.stream(PieceStream(request.id, connection, pieces, request.credit, end))

        self._later(connection, request.id, made, serialize, taken)

    def _subscriptions(
        self, connection: LinkConnection, request: ask.Subscriptions, _body: memoryview
    ) -> None:
        if self._subscribed is None:
            raise RefusedError("unknown", "this hub has no subscriptions")
        connection.check_room_for_stream()
        # As it is now: it may change while it is sent.
        pieces, end = row_pieces(tables(list(self._subscribed))), {"head": self._hub.state.seq}
        connection.stream(PieceStream(request.id, connection, pieces, request.credit, end))

    # Publishing

    def _publish(self, connection: LinkConnection, request: ask.Publish, body: memoryview) -> None:
        _check_origin(request.origin)
        batch = self._rows(
            body, origin=request.origin, publisher=request.publisher or connection.peer, number=request.number
        )
        if request.number is not None and not request.publisher:
            raise RefusedError("malformed", "a number is a publisher's: say whose it is")
        size = len(body)
        connection.uncommitted(size)

        def told(result: Published | HeadraceError) -> None:
            connection.uncommitted(-size)
            if isinstance(result, HeadraceError):
                connection.fail(request.id, result)
            else:
                connection.answer(
                    request.id, None, first=result.first, last=result.last, repeated=result.repeated
                )

        self._publishing.publish(batch, told, follows=request.follows)

    def _pass(self, connection: LinkConnection, request: ask.Pass, body: memoryview) -> None:
        rows = rows_of(body, PASSED)
        if not rows.num_rows:
            raise RefusedError("malformed", "there are no rows in the body")
        for name, most in (("topic", MAX_TOPIC), ("publisher", MAX_TOPIC), ("origin", ask.MAX_NAME)):
            lengths = pc.min_max(pc.binary_length(rows.column(name))).as_py()
            if lengths["max"] > most:
                raise LimitError("link", name, lengths["max"], most)
            if name == "origin" and not lengths["min"]:
                raise RefusedError("malformed", "a row has no origin")
        batch, size = Batch.from_arrow(rows), len(body)
        connection.uncommitted(size)

        def told(result: Published | HeadraceError) -> None:
            connection.uncommitted(-size)
            if isinstance(result, HeadraceError):
                connection.fail(request.id, result)
                return
            # The mark has the place behind the rows.
            last = None if result.last is None else result.last - 1
            first = None if last is None else last - len(batch) + 1
            connection.answer(request.id, None, first=first, last=last, repeated=result.repeated > 0)

        self._publishing.publish(
            mark(request.frontend, request.number), told, follows=request.number > 0, behind=batch
        )

    def _publisher(self, connection: LinkConnection, request: ask.Publisher, _body: memoryview) -> None:
        def told(newest: int | HeadraceError | None) -> None:
            if isinstance(newest, HeadraceError):
                connection.fail(request.id, newest)
            else:
                connection.answer(request.id, None, newest=newest)

        self._publishing.newest(request.publisher, told)

    def _holds(self, connection: LinkConnection, request: ask.Holds, _body: memoryview) -> None:
        holds = self._hub.state.holds
        name = request.name
        if name is None:
            if request.seq is not None or request.release:
                raise RefusedError("malformed", "a hold has a name")
            connection.answer(request.id, None, holds=dict(holds))
            return
        if request.release == (request.seq is not None):
            raise RefusedError("malformed", "a hold is set with seq or let go with release")
        if request.release and name not in holds:
            raise RefusedError("missing", f"there is no hold {name!r}")
        if not request.release and name not in holds and len(holds) >= MAX_HOLDS:
            raise LimitError("link", "holds", len(holds) + 1, MAX_HOLDS)
        if request.seq is not None and request.seq < self._log.first:
            raise TrimmedError(request.seq, self._log.first - 1, self._log.first)

        def done(result: Batch | StorageError) -> None:
            if isinstance(result, StorageError):
                connection.fail(request.id, result)
            else:
                held = holds.get(name)
                connection.answer(request.id, None, holds={} if held is None else {name: held})

        self._hub.submit(entry(holds.name, name, hold(request.seq)), done)

    # Stages

    def _stage(self, connection: LinkConnection, request: ask.Stage, body: memoryview) -> None:
        rows = self._rows(body)
        deadline = asyncio.get_running_loop().time() + SECONDS
        stage = Stage(request.query, request.batch, request.part, rows, deadline, held=len(body))
        name = uuid4().hex
        path = self._staging.add(name, stage)
        if path is None:
            connection.answer(request.id, None, stage=name)
            return
        connection.uncommitted(len(body))

        def spilled(_: None) -> None:
            connection.uncommitted(-len(body))
            connection.answer(request.id, None, stage=name)

        def failed() -> None:
            connection.uncommitted(-len(body))
            self._staging.remove([name])

        self._later(connection, request.id, spilled, stage.spill, path, failed=failed)

    def _commit(self, connection: LinkConnection, request: ask.Commit, body: memoryview) -> None:
        _check_origin(request.origin)
        if request.services and self._changes is None:
            raise RefusedError("unknown", "this hub has no services")
        query, batch, names = request.query, request.batch, request.stages

        def again() -> None:
            try:
                self._commit(connection, request, body)
            except HeadraceError as error:
                connection.fail(request.id, error)

        match self._commits.begin(query, batch, names, again):
            case Wait():
                return
            case Repeated(first, last):
                connection.answer(request.id, None, first=first, last=last, repeated=True)
                return
            case Load(stages):
                pass

        def told(result: tuple[int | None, int | None] | HeadraceError) -> None:
            if isinstance(result, HeadraceError):
                connection.fail(request.id, result)
            else:
                connection.answer(request.id, None, first=result[0], last=result[1], repeated=False)

        def read(rows: tuple[list[Batch], dict[str, Use]]) -> None:
            made = [replace(each, origin=request.origin, publisher=query) for each in rows[0]]
            try:
                if self._changes is not None:
                    self._changes.make_room(rows[1])
            except HeadraceError:
                self._commits.give_up(query)
                raise
            # Behind the creations, in the same turn, so in the same append.
            self._commits.append(query, batch, made, names, told)

        give_up = partial(self._commits.give_up, query)
        self._later(connection, request.id, read, _loaded, stages, request.services, failed=give_up)

    def _abort(self, connection: LinkConnection, request: ask.Abort, _body: memoryview) -> None:
        self._in_thread(remove_all, self._staging.remove(request.stages))
        connection.answer(request.id)

    # What they share

    def _rows(
        self, body: memoryview, *, origin: str = "", publisher: str = "", number: int | None = None
    ) -> Batch:
        plain = parse_published(body)
        if plain is None:
            return published(self._checked_rows(body), origin=origin, publisher=publisher, number=number)
        topic, run = plain
        self._check_topic(len(topic.encode()))
        batch = Batch(run, origin=origin, publisher=publisher, number=number, topic=topic)
        # Where all together are not too long, none is.
        if batch.run.size > self._settings.limits.message_bytes:
            self._check_payload(int(batch.run.lengths.max()))
        return batch

    def _checked_rows(self, body: memoryview) -> pa.RecordBatch:
        rows = rows_of(body, PUBLISHED)
        if not rows.num_rows:
            raise RefusedError("malformed", "there are no rows in the body")
        self._check_topic(pc.max(pc.binary_length(rows.column("topic"))).as_py())
        self._check_payload(pc.max(pc.binary_length(rows.column("payload"))).as_py())
        return rows

    def _check_topic(self, longest: int) -> None:
        if longest > MAX_TOPIC:
            raise LimitError("link", "topic", longest, MAX_TOPIC)

    def _check_payload(self, longest: int) -> None:
        if longest > (most := self._settings.limits.message_bytes):
            raise LimitError("link", "payload", longest, most)

    def _in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)

    def _later(
        self,
        connection: LinkConnection,
        request_id: int,
        then: Callable[[T], None],
        function: Callable[..., T],
        *arguments: Any,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Work in a thread, then go on here; whatever of ours goes wrong in either is the request's answer."""

        def done(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                return
            try:
                result = future.result()
            except HeadraceError as error:
                failed()
                connection.fail(request_id, error)
                return
            try:
                then(result)
            except HeadraceError as error:
                connection.fail(request_id, error)

        self._in_thread(function, *arguments).add_done_callback(done)


def _loaded(stages: list[Stage], services: bool) -> tuple[list[Batch], dict[str, Use]]:
    """The rows of stages, and how they use services if they are changes to those; for a thread."""
    rows = loaded(stages)
    return rows, uses(each.to_arrow() for each in rows) if services else {}


def _filter(request: ask.Read | ask.Follow) -> Filter | None:
    """What a stream wants, or ``None`` for everything, log entries included."""
    if request.topic is None and request.origin is None and request.where is None:
        return None
    origins = [request.origin] if isinstance(request.origin, str) else request.origin
    return Filter(request.topic, origins, ask.parse_where(request.where or {}))


def _check_origin(origin: str) -> None:
    if origin not in ORIGINS:
        raise RefusedError("malformed", f"origin {origin!r}: expected one of {', '.join(sorted(ORIGINS))}")
