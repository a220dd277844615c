"""What the link's operations do. Each takes a request and sees to it that its connection answers it, now or later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import pyarrow.compute as pc

from headrace.config import Settings
from headrace.errors import HeadraceError, LimitError, RefusedError, StorageError, TrimmedError
from headrace.hub.filters import Filter
from headrace.hub.holds import hold
from headrace.hub.hub import Hub
from headrace.hub.publishers import Publishers
from headrace.hub.publishing import Published, Publishing, published
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
from headrace.log.snapshot import Snapshot, serialize
from headrace.message import Batch
from headrace.net.link_connection import LinkConnection
from headrace.net.link_consumers import LinkConsumers
from headrace.net.link_rows import Live
from headrace.net.link_streams import BytesStream, RowStream
from headrace.wire import link_requests as ask
from headrace.wire.link import PUBLISHED, rows_of

MAX_TOPIC: Final = 0xFFFF
"""Bytes of a topic: what the log keeps of one that a whole batch shares."""

ORIGINS: Final = frozenset({"tube", "spark", "fyrehose", "spp", "attribute", "replay"})
"""What a publisher may say its rows come from; a frontend passes on what came in by its own doors."""

MAX_HOLDS: Final = 256
SERVICES_A_TIME: Final = 256

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
    ) -> None:
        self._hub = hub
        self._log = hub.log
        self._settings = settings
        self._readers = readers
        self._live = live
        self._status = status
        self._services = services
        self._consumers = consumers
        self._publishing = Publishing(hub, publishers)
        self._staging = Staging(settings.node.data / "stages")
        self._staging.sweep()
        self._commits = Commits(hub, queries, self._staging)
        self._table: dict[type[ask.Request], Callable[[LinkConnection, Any, memoryview], None]] = {
            ask.Head: self._head,
            ask.Status: self._tell_status,
            ask.Read: self._read,
            ask.Follow: self._follow,
            ask.Publish: self._publish,
            ask.Publisher: self._publisher,
            ask.Holds: self._holds,
            ask.Stage: self._stage,
            ask.Commit: self._commit,
            ask.Abort: self._abort,
            ask.Snapshot: self._snapshot,
            ask.Services: self._tell_services,
        }
        if consumers is not None:
            self._table |= {ask.Ack: consumers.ack, ask.Consumers: consumers.manage}

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
        connection.answer(
            request.id,
            None,
            log=str(log.uuid),
            first=log.first,
            head=log.head,
            first_time=log.first_time(),
            head_time=log.last_time if log.head else None,
        )

    def _tell_status(self, connection: LinkConnection, request: ask.Status, _body: memoryview) -> None:
        connection.answer(request.id, None, status=self._status())

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
        )
        connection.stream(stream)

    def _snapshot(self, connection: LinkConnection, request: ask.Snapshot, _body: memoryview) -> None:
        connection.check_room_for_stream()
        state = self._hub.state
        taken = Snapshot(self._log.uuid, state.seq, state.sections())

        def made(data: bytes) -> None:
            end = {"seq": taken.seq, "size": len(data)}
            connection.stream(BytesStream(request.id, connection, "snapshot", data, request.credit, end))

        self._later(connection, request.id, made, serialize, taken)

    def _tell_services(self, connection: LinkConnection, request: ask.Services, _body: memoryview) -> None:
        if self._services is None:
            raise RefusedError("unknown", "this hub has no services")
        if request.service is None:
            found = self._services.after(request.after, SERVICES_A_TIME)
            connection.answer(request.id, None, services=[_described(service) for service in found])
            return
        service = self._services.get(request.service)
        if service is None:
            raise RefusedError("missing", f"there is no service {request.service!r}")
        connection.answer(request.id, service.snapshot, services=[_described(service)])

    # Publishing

    def _publish(self, connection: LinkConnection, request: ask.Publish, body: memoryview) -> None:
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

    def _publisher(self, connection: LinkConnection, request: ask.Publisher, _body: memoryview) -> None:
        connection.answer(request.id, None, newest=self._publishing.newest(request.publisher))

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
        rows = rows_of(body, PUBLISHED)
        self._check_lengths(self._rows(body, origin="spark"))
        deadline = asyncio.get_running_loop().time() + SECONDS
        stage = Stage(request.query, request.batch, request.part, rows, deadline)
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

        def told(result: tuple[int | None, int | None] | StorageError) -> None:
            if isinstance(result, StorageError):
                connection.fail(request.id, result)
            else:
                connection.answer(request.id, None, first=result[0], last=result[1], repeated=False)

        def read(rows: list[Any]) -> None:
            made = [published(each, origin=request.origin, publisher=query) for each in rows]
            self._commits.append(query, batch, made, names, told)

        self._later(
            connection, request.id, read, loaded, stages, failed=partial(self._commits.give_up, query)
        )

    def _abort(self, connection: LinkConnection, request: ask.Abort, _body: memoryview) -> None:
        self._in_thread(remove_all, self._staging.remove(request.stages))
        connection.answer(request.id)

    # What they share

    def _rows(
        self, body: memoryview, *, origin: str, publisher: str = "", number: int | None = None
    ) -> Batch:
        _check_origin(origin)
        rows = rows_of(body, PUBLISHED)
        if not rows.num_rows:
            raise RefusedError("malformed", "there are no rows in the body")
        longest = pc.max(pc.binary_length(rows.column("topic"))).as_py()
        if longest > MAX_TOPIC:
            raise LimitError("link", "topic", longest, MAX_TOPIC)
        batch = published(rows, origin=origin, publisher=publisher, number=number)
        self._check_lengths(batch)
        return batch

    def _check_lengths(self, batch: Batch) -> None:
        longest, most = int(batch.run.lengths.max()), self._settings.limits.message_bytes
        if longest > most:
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


def _filter(request: ask.Read | ask.Follow) -> Filter | None:
    """What a stream wants, or ``None`` for everything, log entries included."""
    if request.topic is None and request.origin is None and request.where is None:
        return None
    origins = [request.origin] if isinstance(request.origin, str) else request.origin
    return Filter(request.topic, origins, ask.parse_where(request.where or {}))


def _check_origin(origin: str) -> None:
    if origin not in ORIGINS:
        raise RefusedError("malformed", f"origin {origin!r}: expected one of {', '.join(sorted(ORIGINS))}")


def _described(service: Any) -> dict[str, Any]:
    return {
        "id": service.id,
        "kind": str(service.kind),
        "created": service.created,
        "seq": service.seq,
        "bytes": service.weight,
    }
