"""A node's requests to the primary of its cluster, whichever node that is now.

A node that is not primary relays everything published at it (:mod:`~headrace.hub.publishing.relaying.publishes`). Its
requests go to the primary as Publish parcels, and the answers come back as Acks on the same connection. When the
primary changes or the connection is lost, every unanswered request is sent again. When this node itself becomes
primary, it answers its own requests.

Commits and questions about a publisher's newest number are **calls**: they are retried until a primary answers, for at
most ``patience`` seconds after the last answer. A call that a connected primary leaves unanswered ends after the same
silence as a publish. The rows of a commit are sent before it, request by request. The primary keeps the rows of one
commit per node, so the next call waits until the commit itself is sent.

Nothing here has a socket or a clock: ``now`` is an argument, and :attr:`PrimaryClient.schedule` asks for a later
:meth:`~PrimaryClient.tick`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from headrace.errors import HeadraceError, UnavailableError
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.publishing.relaying.backlog import silence_after
from headrace.hub.publishing.relaying.primary_requests import (
    MISSING,
    NOT_PRIMARY,
    PrimaryAnswer,
    PrimaryRequest,
    Rows,
    body_for,
    parse_answer,
    request_for,
    serialize_request,
)
from headrace.hub.publishing.relaying.publishes import UNKNOWN, PublishRelay
from headrace.hub.publishing.relaying.requests import RelayRequest
from headrace.hub.sequence import Hub
from headrace.hub.sequencer import Commit, Opening, WhenNewest, WhenOpened, WhenPublished
from headrace.message import Batch
from headrace.wire.link.message import PUBLISHED, body_of
from headrace.wire.parcel.body import Ack, Publish

MAX_WAITING: Final = 64 << 20
"""Bytes on their way to the primary above which publishers have to wait."""

_STAGE_BYTES: Final = 4 << 20
_RETRY_SECONDS: Final = 0.05

_UNTOLD: Final = Commit()

_Make: TypeAlias = Callable[[], Iterator[tuple[PrimaryRequest, Rows]]]
_WhenEnded: TypeAlias = Callable[[PrimaryAnswer | HeadraceError], None]


class PrimaryStream(Protocol):
    """The connection to the primary."""

    @property
    def admitted(self) -> bool:
        """Whether it is still open."""

    def post(self, body: Publish, bulk: bytes = b"", *, certain: bool = False) -> bool:
        """Send a parcel."""


@dataclass(slots=True, eq=False)
class _Call:
    """Requests that are sent again, from the first on, until a primary has answered all of them."""

    make: _Make
    left: Iterator[tuple[PrimaryRequest, Rows]]
    """The requests that are not sent yet."""
    reply: _WhenEnded
    begun: float
    ready_at: float
    silence: float
    """Seconds that the primary may leave a request unanswered."""
    asked: float = 0.0
    """Time when the newest request was sent."""


class PrimaryClient(PublishRelay):
    """The sequencer of a node that is not primary."""

    def __init__(
        self, hub: Hub, intake: PublishIntake, *, patience: float, name: Callable[[], str], now: float
    ) -> None:
        super().__init__(
            hub,
            name=name,
            patience=patience,
            most=MAX_WAITING,
            now=now,
            unreachable="no primary of the cluster has answered",
        )
        self.wake = self._send_due
        self.schedule: Callable[[float], None] = lambda _: None
        """Asks the driver to call :meth:`tick` at this time, in addition to its few calls per second."""
        self._intake = intake
        self._now = now
        self._stream: PrimaryStream | None = None
        self._here = False
        self._view = 0
        self._requests = 0
        """Number of requests sent, which numbers them on the wire; the relay's numbers are others."""
        self._unanswered: dict[int, Callable[[PrimaryAnswer | None], None]] = {}
        """Handlers of answers, by request on this stream; called with ``None`` if no answer will come."""
        self._retry: tuple[PrimaryStream, int, float] | None = None
        """The stream to return to, its view, and the time for that."""
        self._calls: deque[_Call] = deque()
        """Calls that wait for their turn."""
        self._calling: _Call | None = None
        """The call whose requests are being sent."""
        self._sent_calls: set[_Call] = set()
        """Calls whose last request was sent."""
        self._blocked = False
        """Whether the next request of a call waits for the previous answer."""
        self._advancing = False
        self._scheduled = 0.0
        """Time of the latest retry that is scheduled."""
        self._heard = 0.0
        """Time when a primary last answered a call."""

    @property
    def busy(self) -> bool:
        """Whether any request or call is unanswered."""
        return bool(self.size or self._calls or self._calling or self._sent_calls)

    def commit(
        self, query: str, batch: int, rows: Sequence[Batch], reply: WhenPublished, terms: Commit = _UNTOLD
    ) -> None:
        """Append a query's batch once, all of it or none."""

        def ended(answer: PrimaryAnswer | HeadraceError) -> None:
            result = answer.published if isinstance(answer, PrimaryAnswer) else answer
            self._after(result, RelayRequest([], reply, True))

        self._call(
            partial(_commit_requests, query, batch, rows, terms), ended, silence_after(rows, self._patience)
        )

    def newest(self, publisher: str, reply: WhenNewest) -> None:
        """Ask for a publisher's highest number."""

        def ended(answer: PrimaryAnswer | HeadraceError) -> None:
            reply(answer.refused or answer.newest if isinstance(answer, PrimaryAnswer) else answer)

        self._call(lambda: iter([(PrimaryRequest("newest", publisher=publisher), b"")]), ended)

    def open(self, publisher: str, opening: Opening, reply: WhenOpened) -> None:
        """Open a publisher's name."""
        request = PrimaryRequest("open", publisher=publisher, **opening._asdict())

        def ended(answer: PrimaryAnswer | HeadraceError) -> None:
            reply(answer.opened if isinstance(answer, PrimaryAnswer) else answer)

        self._call(lambda: iter([(request, b"")]), ended)

    def aim(self, stream: PrimaryStream | None, view: int, now: float) -> None:
        """Send requests to the primary of ``view`` over ``stream``; ``None`` if there is no primary."""
        self._now = now
        if stream is self._stream and view == self._view and not self._here:
            return
        self._drop()
        # Nodes that have staged rows here commit them at another node now.
        self._intake.forget_all()
        self._stream, self._view = stream, view
        if stream is not None:
            self.connected()
            self._advance()

    def aim_here(self, now: float) -> None:
        """Answer all open requests here, since this node is the primary now."""
        self._now = now
        self._drop()
        self._here = True
        self.connected(here=True)
        self._advance()

    def acknowledged(self, stream: object, ack: Ack, bulk: bytes, now: float) -> None:
        """Handle the primary's answer."""
        self._now = now
        if stream is not self._stream:
            return
        # A malformed answer raises an error, which ends the connection; the request is sent again.
        answer = parse_answer(bulk)
        waiting = self._unanswered.pop(ack.request, None)
        if waiting is not None:
            waiting(answer)

    def tick(self, now: float) -> None:
        """Refuse requests that have waited too long, and retry those that are due."""
        self._now = now
        super().tick(now)
        for call in [call for call in self._calls if now >= max(call.begun, self._heard) + self._patience]:
            # A node that keeps answering that it is not the primary does not restart the wait.
            self._calls.remove(call)
            call.reply(
                UnavailableError(f"the cluster has had no primary for {self._patience:g} s: try again")
            )
        for call in [call for call in self._asking() if now - call.asked >= call.silence]:
            self._forget(call)
            call.reply(UnavailableError(f"{self.unreachable} for {round(call.silence, 1):g} s; {UNKNOWN}"))
        if self._retry is not None and now >= self._retry[2]:
            (stream, view, _), self._retry = self._retry, None
            if self._stream is None and not self._here and stream.admitted:
                self.aim(stream, view, now)
        self._advance()

    def close(self) -> None:
        """Send nothing more."""
        self._drop()
        self._calls.clear()
        self._sent_calls.clear()

    # Connection

    def _drop(self) -> None:
        self._retry = None
        self._stream, self._here = None, False
        self.lost(self._now)
        unanswered, self._unanswered = self._unanswered, {}
        for reply in unanswered.values():
            reply(None)

    def _not_primary(self) -> None:
        """Send everything again soon, in the same order, since the node is not the primary, or not yet."""
        stream, view = self._stream, self._view
        if stream is None:
            return
        self._drop()
        self._view = 0
        self._retry = stream, view, self._now + _RETRY_SECONDS
        self.schedule(self._retry[2])

    def _request(
        self, request: PrimaryRequest, body: Rows, reply: Callable[[PrimaryAnswer | None], None]
    ) -> None:
        if self._here:
            self._intake.answer(self, request, memoryview(body), reply)
        elif self._stream is None:
            reply(None)
        else:
            self._requests += 1
            self._unanswered[self._requests] = reply
            bulk = serialize_request(request, body)
            if not self._stream.post(Publish(self._view, self._requests), bulk, certain=True):
                self._not_primary()

    # Rows

    def _send_due(self) -> None:
        # Take all requests before sending one: this node may answer at once, which calls this again.
        for request in tuple(self.due(here=self._here)):
            body = body_for(request, self._hub.log.uuid)
            self._request(request_for(request), body, partial(self._rows_answered, request))

    def _rows_answered(self, request: RelayRequest, answer: PrimaryAnswer | None) -> None:
        if answer is None:
            return  # It is sent again.
        if answer.error == NOT_PRIMARY:
            self._not_primary()
        else:
            self.answered(request, answer.published)

    # Calls

    def _call(self, make: _Make, reply: _WhenEnded, silence: float | None = None) -> None:
        silence = self.silence if silence is None else silence
        self._calls.append(_Call(make, make(), reply, self._now, self._now, silence))
        self._advance()

    def _asking(self) -> Iterator[_Call]:
        """Yield the calls that wait for an answer."""
        yield from self._sent_calls
        if self._calling is not None and self._blocked:
            yield self._calling

    def _forget(self, call: _Call) -> None:
        """Stop waiting for the answer to a call, so that the next one has its turn."""
        self._sent_calls.discard(call)
        if call is self._calling:
            self._calling, self._blocked = None, False

    def _advance(self) -> None:
        """Send the requests of one call after another, until an answer must be awaited."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while (self._here or self._stream is not None) and not self._blocked:
                call = self._calling or next(
                    (call for call in self._calls if call.ready_at <= self._now), None
                )
                if call is None:
                    return
                if self._calling is None:
                    self._calling = call
                    self._calls.remove(call)
                request, body = next(call.left)
                call.asked = self._now
                if request.kind == "stage":
                    self._blocked = True
                else:
                    self._calling = None
                    self._sent_calls.add(call)
                self._request(request, body, partial(self._call_answered, call, request))
        finally:
            self._advancing = False

    def _call_answered(self, call: _Call, request: PrimaryRequest, answer: PrimaryAnswer | None) -> None:
        if call is not self._calling and call not in self._sent_calls:
            return  # The call was given up.
        staged = request.kind == "stage"
        if staged:
            self._blocked = False
        else:
            self._sent_calls.discard(call)
        if answer is None or answer.error in (NOT_PRIMARY, MISSING):
            if self._calling is call:
                self._calling = None
            call.left = call.make()
            call.ready_at = self._now + _RETRY_SECONDS
            self._calls.append(call)
            if call.ready_at != self._scheduled:
                # Schedule it once for all calls that are lost together: each tick looks at all of them.
                self._scheduled = call.ready_at
                self.schedule(call.ready_at)
            if answer is not None and answer.error == NOT_PRIMARY:
                self._not_primary()
            return
        self._heard = self._now
        if not staged or answer.error:
            if self._calling is call:
                self._calling = None
            call.reply(answer.refused or answer)
        self._advance()


def _commit_requests(
    query: str, batch: int, rows: Sequence[Batch], terms: Commit
) -> Iterator[tuple[PrimaryRequest, Rows]]:
    origin = rows[0].origin if rows else "spark"
    count = 0
    for table in _pieces(rows):
        stage = PrimaryRequest("stage", publisher=query, number=batch, origin=origin, rows=count)
        yield stage, body_of(table)
        count += table.num_rows
    yield PrimaryRequest("commit", publisher=query, number=batch, rows=count, **terms._asdict()), b""


def _pieces(rows: Sequence[Batch]) -> Iterator[pa.RecordBatch]:
    """Cut rows into pieces small enough not to hold up other traffic."""
    for batch in rows:
        table = batch.to_arrow().select(PUBLISHED.names)
        step = max(1, table.num_rows * _STAGE_BYTES // max(table.nbytes, 1))
        for at in range(0, table.num_rows, step):
            yield table.slice(at, step)
