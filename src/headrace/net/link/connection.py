"""One client of the link: its tube, its open requests and its streams, all of them bounded.

Each request is answered once; until then its id is open. A client can use only so much of the hub: further requests and
streams are refused, and the tube is not read while too many rows are uncommitted, too many answers are unsent, or the
hub is congested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import (
    HeadraceError,
    LimitError,
    RefusedError,
    StorageError,
    UnexpectedError,
    WireError,
)
from headrace.hub.access.connection_facts import CONNECTION_NUMBERS, ConnectionFacts
from headrace.hub.access.principal import Principal
from headrace.hub.access.principals import Principals
from headrace.hub.sequencer import Published
from headrace.message import Batch
from headrace.net.link.refusals import ExplainedError, refusal_of
from headrace.net.link.streams.credit import LinkStream
from headrace.net.link.streams.open_streams import OpenStreams
from headrace.tube import Received, Tube
from headrace.wire.link.message import MAX_HEAD, Buffer, encode_head, serialize_before
from headrace.wire.link.requests import (
    CancelRequest,
    HelloRequest,
    MoreRequest,
    PassRequest,
    PublishRequest,
    Request,
    parse_asked,
)

if TYPE_CHECKING:
    from headrace.net.link.door import LinkDoor

MAX_OPEN: Final = 1024
MAX_UNCOMMITTED: Final = 16 << 20
"""Bytes of a client's uncommitted rows above which the client has to wait."""
MAX_UNSENT: Final = 4 << 20
"""Bytes of unsent answers above which a client that does not read has to wait."""
_JOINED: Final = 16 << 10
"""Size up to which a message's parts are copied together, which costs less than sending them separately."""


_OF_THE_CONNECTION: Final = (WireError, HelloRequest, MoreRequest, CancelRequest)
"""Requests about the connection itself, which no operation performs."""


class LinkConnection:
    """One client of the hub; the receiver of its tube."""

    def __init__(self, door: LinkDoor, tube: Tube) -> None:
        self.tube = tube
        self.peer = str(tube.peer)
        self.greeted = False
        self.client = ""
        """The id that the client has proven; empty where no proof is needed."""
        self.principal = door.hellos.before(tube)
        """Who the client is."""
        self.account = door.accounts.of(self.principal, tube.peer.host)
        """What the client uses over all its connections."""
        self.number = next(CONNECTION_NUMBERS)
        self._heard = 0.0
        self._received = self._sent = 0
        """Bytes of messages in and out."""
        self._over_rate = False
        """Whether the client has to wait because it sends too much per second."""
        self.name = ""
        """The name that the client gives itself."""
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        self.finished = asyncio.Event()
        """Set once nothing is left to send."""
        self._door = door
        self.challenge: str | None = None
        """What the client was given to sign."""
        self._open: set[int] = set()
        self._cancelled: set[int] = set()
        """Open requests that were cancelled before their streams began."""
        self.streams = OpenStreams(self.account, door.admission)
        self._uncommitted = 0
        self._reading = True
        self._ended = False
        self._cut_off = False
        """Whether an event could not be sent; later ones must not be sent, or their stream would have a hole."""

    # Called by the tube

    def on_message(self, message: Received) -> None:
        """Handle a request."""
        if self.finished.is_set():
            # Drop what came together with an invalid request.
            return
        try:
            asked = parse_asked(message)
        except WireError as error:
            # A request without an id cannot be answered.
            self.refuse(error.reason, error)
            self.hang_up()
            return
        account, size = self.account, len(message)
        self._heard = self._loop.time()
        self._received += size
        account.received_bytes += size
        messages = account.received_messages
        request_id, request, body, rows = asked
        operations, under_way = self._door.operations, 0
        try:
            if isinstance(request, _OF_THE_CONNECTION) or not self.greeted:
                self._take(request_id, request)
            elif request_id in self._open or len(self._open) >= MAX_OPEN or self._door.stopping is not None:
                self._turn_down(request_id)
            else:
                self._open.add(request_id)
                if type(request) is PublishRequest:
                    if not self.principal.may_do_everything:
                        operations.rights.check(self, request)
                    self._uncommitted += (under_way := len(body))
                    reply = partial(self._published, request_id, under_way)
                    operations.publishing.publish(self, request, body, rows, reply)
                elif type(request) is PassRequest:
                    operations.rights.check(self, request)
                    self._uncommitted += (under_way := len(body))
                    reply = partial(self._passed, request_id, under_way)
                    operations.publishing.pass_on(request, body, reply)
                else:
                    operations.perform(self, request, body)
        except HeadraceError as error:
            self._uncommitted -= under_way
            self.fail(request_id, error)
        if account.rated:
            account.rate(size, account.received_messages - messages, self._heard)
            self._keep_rate()
        self.regulate()

    def on_room(self) -> None:
        """Continue sending."""
        self.pump()
        self.regulate()

    def on_end(self, error: HeadraceError | None) -> None:
        """Finish once open requests are answered, as far as the client can still receive answers."""
        self._ended = self.streams.ended = True
        if isinstance(error, WireError):
            self.refuse(error.reason, error)
        why = self._door.stopping
        for stream in self.streams.take_all():
            # The client may have been killed: normally a client cancels its streams first.
            if why is None:
                stream.lose()
            else:
                stream.close()
            self._open.discard(stream.id)
            if why is not None:
                self.fail(stream.id, why)
        if error is not None:
            self._open.clear()
        self._finish_if_done()

    # Called by operations and streams

    def describe(self) -> str:
        """Name the client for people: its id or address, and the name that it gives itself."""
        who = f"client {self.client}" if self.client else self.peer
        return f"{who} ({self.name[:64]})" if self.name else who

    @property
    def owner(self) -> str:
        """The client that its publishers' and queries' names belong to; empty where clients are not known."""
        return self.principal.owner

    @property
    def full(self) -> bool:
        """Whether streams must wait."""
        return self.tube.paused or self.tube.closed or self._cut_off or self._sent_too_much()

    def answer(self, request_id: int, body: Buffer | None = None, /, **members: Any) -> None:
        """Answer a request with success."""
        self._close(request_id)
        try:
            self._send({"id": request_id, "ok": True, **members}, body)
        except LimitError as error:
            self._send(refusal_of(request_id, error))
        self._finish_if_done()

    def fail(self, request_id: int, error: HeadraceError) -> None:
        """Answer a request with an error, and count the refusal."""
        self._close(request_id)
        head = refusal_of(request_id, error)
        if head["error"] != "stopping":
            self.refuse(head["error"], error)
        self._send(head)
        self._finish_if_done()

    def check_topics(self, batches: Sequence[Batch]) -> None:
        """Raise an error unless the client may publish to every topic of some messages."""
        self._door.operations.rights.check_topics(self, batches)

    def submit(self, request_id: int, entry: Batch, then: Callable[[Batch], None]) -> None:
        """Submit a log entry and call ``then`` once it is committed; if either fails, answer with the error."""

        def done(result: Batch | StorageError) -> None:
            try:
                if isinstance(result, StorageError):
                    raise result
                then(result)
            except HeadraceError as error:
                self.fail(request_id, error)

        self._door.hub.submit(entry, done)

    def event(self, head: dict[str, Any], body: Buffer | None = None) -> None:
        """Send one event of a stream; if it is too long for a tube, fail the request and hang up."""
        try:
            self._send(head, body)
        except LimitError as error:
            self.fail(head["id"], error)
            self._cut_off = True
            # Hang up later, since the stream must not be closed while it sends.
            asyncio.get_running_loop().call_soon(self.hang_up)

    def stream(self, stream: LinkStream) -> None:
        """Begin a stream, unless it was cancelled while it was being prepared."""
        if stream.id in self._cancelled:
            stream.close()
            self.answer(stream.id, cancelled=True)
            return
        self.streams.add(stream)
        stream.pump()

    def stream_over(self, stream_id: int, answer: Mapping[str, Any] | HeadraceError) -> None:
        """Send a stream's last answer, and forget it."""
        self.streams.remove(stream_id)
        if isinstance(answer, HeadraceError):
            self.fail(stream_id, answer)
        else:
            self.answer(stream_id, **answer)

    def uncommitted(self, size: int) -> None:
        """Count bytes of uncommitted rows (or, negative, of rows that are committed now)."""
        self._uncommitted += size
        if size < 0:
            self.regulate()

    def known_as(self, principals: Principals) -> Principal | None:
        """Return which of the hub's reloaded principals the client is."""
        return principals.named(self.principal.name) if self.client else self._door.hellos.before(self.tube)

    def facts(self, now: float) -> ConnectionFacts:
        """Describe the connection for an operator."""
        return ConnectionFacts(
            self.number,
            "tube",
            self.describe(),
            self.principal.name,
            now - self.since,
            now - (self._heard or self.since),
            self._received,
            self._sent,
            self.tube.unsent,
            len(self.streams),
        )

    def revoked(self, detail: str) -> None:
        """Cut the connection, since the client's rights were withdrawn."""
        self.refuse("revoked", detail)
        self.tube.abort()
        self.finished.set()

    def refuse(self, reason: str, detail: object) -> None:
        """Count a refusal."""
        self._door.counters.refuse("tube", reason, self.peer, detail)

    def hang_up(self) -> None:
        """Close the tube once everything is sent."""
        self.drop()
        self.tube.start_closing()
        self.finished.set()

    # Called by the door

    def drop(self) -> None:
        """Forget all requests and streams, since the tube is closed."""
        self._open.clear()
        for stream in self.streams.take_all():
            stream.lose()

    def open_streams(self) -> list[LinkStream]:
        """Return a list of the streams that are open now."""
        return list(self.streams)

    def pump(self) -> None:
        """Continue every stream."""
        for stream in self.open_streams():
            stream.pump()

    def tick(self, now: float, handshake_seconds: float) -> None:
        """Enforce deadlines."""
        if not self.greeted and now - self.since > handshake_seconds:
            self.refuse("deadline", "no hello in time")
            self.hang_up()
            return
        for stream in self.open_streams():
            stream.tick(now)
        if self.account.rated and not self.full:
            self.pump()

    def regulate(self) -> None:
        """Read from the client, or make it wait if it uses too much."""
        busy = (
            self._uncommitted > MAX_UNCOMMITTED
            or self._door.hub.congested
            or (self.tube.paused and self.tube.unsent > MAX_UNSENT)
            or self._over_rate
        )
        if busy == self._reading and not self._ended:
            self._reading = not busy
            if busy:
                self.tube.pause_reading()
            else:
                self.tube.resume_reading()

    def _keep_rate(self) -> None:
        """Make the client wait while it sends more per second than it may."""
        loop = asyncio.get_running_loop()
        wait = self.account.wait(loop.time())
        if wait and not self._over_rate:
            self._over_rate = True
            self.account.paused += 1
            self._door.counters.add("rate_pauses", door="tube")
            loop.call_later(wait, self._within_rate)

    def _within_rate(self) -> None:
        self._over_rate = False
        if not self.tube.closed:
            self._keep_rate()
            self.regulate()

    def _sent_too_much(self) -> bool:
        return self.account.rated and self.account.wait_to_send(asyncio.get_running_loop().time()) > 0

    def _take(self, request_id: int, request: Request | WireError) -> None:
        """Handle a request about the connection itself, or one that is invalid or too early."""
        match request:
            case HelloRequest():
                self._door.hellos.take(self, request_id, request)
                return
            case MoreRequest(bytes=size):
                if (stream := self.streams.get(request_id)) is not None:
                    stream.grant(size)
                return
            case CancelRequest():
                if (stream := self.streams.get(request_id)) is not None:
                    stream.close()
                    self.stream_over(request_id, {"cancelled": True})
                elif request_id in self._open:
                    self._cancelled.add(request_id)
                return
            case UnexpectedError():
                self._check_greeted()
                raise RefusedError("unknown", str(request))
            case WireError():
                raise request
        self._check_greeted()

    def _turn_down(self, request_id: int) -> None:
        if request_id in self._open:
            self.refuse("conflict", f"request {request_id} is open already")
            self.hang_up()
            return
        if len(self._open) >= MAX_OPEN:
            raise ExplainedError("busy", f"{MAX_OPEN} requests are open on this tube", limit=MAX_OPEN)
        if self._door.stopping is not None:
            raise self._door.stopping

    def _published(self, request_id: int, size: int, result: Published | HeadraceError) -> None:
        """Answer a publish whose ``size`` bytes are committed or refused."""
        self._uncommitted -= size
        if isinstance(result, HeadraceError):
            self.fail(request_id, result)
        else:
            first, last, repeated, op, kept = result
            # Other answers leave the member out, to be shorter.
            told = {"kept": True} if kept else {}
            self.answer(request_id, first=first, last=last, repeated=repeated, op=op, **told)
        if not self._reading:
            self.regulate()

    def _passed(self, request_id: int, size: int, result: Published | HeadraceError) -> None:
        """Answer a frontend that passed rows on; it only needs to know whether they are a repeat."""
        if not isinstance(result, HeadraceError):
            result = result._replace(repeated=bool(result.repeated))
        self._published(request_id, size, result)

    def _check_greeted(self) -> None:
        if not self.greeted:
            asyncio.get_running_loop().call_soon(self.hang_up)
            raise RefusedError("hello", "hello must come first")

    def _send(self, head: dict[str, Any], body: Buffer | None = None) -> None:
        if self._cut_off:
            return
        if body is None:
            data: Buffer = encode_head(head)
            size = len(data)
            if size > MAX_HEAD:
                raise LimitError("link", "head", size, MAX_HEAD)
        else:
            length = memoryview(body).nbytes
            data = serialize_before(head, length)
            size = len(data) + length
            if size <= _JOINED:
                # Send a short message at once.
                data, body = b"".join((data, body)), None
        account = self.account
        try:
            if body is None:
                self.tube.write(data)
            else:
                self.tube.write_parts((data, body))
        except HeadraceError as error:
            # If the tube is closed, there is nobody to tell.
            if isinstance(error, LimitError) and not self.tube.closed:
                raise
            return
        self._sent += size
        account.sent_bytes += size
        if account.rated:
            account.rate_sent(size, self._loop.time())

    def _close(self, request_id: int) -> None:
        self._open.discard(request_id)
        if self._cancelled:
            self._cancelled.discard(request_id)

    def _finish_if_done(self) -> None:
        if self._ended and not self._open:
            self.finished.set()
