"""One client of the link: its tube, its open requests and its streams, all of them bounded.

A request is answered once; until then its id is open. Everything a client can pile up at the hub is bounded here:
further requests and streams are refused, and the tube is not read while too many rows are uncommitted, too many answers
are unsent, or the hub is congested.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import (
    ArchiveError,
    ClosedError,
    DamagedError,
    HeadraceError,
    LimitError,
    RefusedError,
    StorageError,
    TrimmedError,
    UnavailableError,
    UnexpectedError,
    UsageError,
    WireError,
)
from headrace.hub.access.accounts import Resource
from headrace.hub.access.connection_facts import CONNECTION_NUMBERS, ConnectionFacts
from headrace.hub.access.principal import Principal
from headrace.hub.access.principals import Principals
from headrace.hub.sequencer import Published
from headrace.message import Batch
from headrace.net.link.streams import LinkStream
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
MAX_STREAMS: Final = 64
MAX_UNCOMMITTED: Final = 16 << 20
"""Bytes of one client's rows that are not committed yet."""
MAX_UNSENT: Final = 4 << 20
"""Bytes of answers that are not sent yet."""
_MAX_REASON: Final = 1000

_JOINED: Final = 16 << 10
"""Messages up to this size are copied together: that costs less than to send them in parts."""


_OF_THE_CONNECTION: Final = (WireError, HelloRequest, MoreRequest, CancelRequest)
"""Requests that no operation takes."""


class ExplainedError(RefusedError):
    """A refusal with further members for programs."""

    def __init__(self, code: str, reason: str, **facts: Any) -> None:
        super().__init__(code, reason)
        self.facts = facts


class LinkConnection:
    """One client of the hub; the receiver of its tube."""

    def __init__(self, door: LinkDoor, tube: Tube) -> None:
        self.tube = tube
        self.peer = str(tube.peer)
        self.greeted = False
        self.client = ""
        """The id that the client has proved, where that is asked for."""
        self.principal = door.principal_of(tube)
        """Who the client is."""
        self.account = door.accounts.of(self.principal, tube.peer.host)
        """What the client has, over all its connections."""
        self.number = next(CONNECTION_NUMBERS)
        self._heard = 0.0
        self._received = self._sent = 0
        """Bytes of messages in and out."""
        self._charged = 0
        self._charged_cost = 0
        """Streams that are charged to it."""
        self._over_rate = False
        """Whether the client waits because it sends too much a second."""
        self.name = ""
        """What it calls itself."""
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        self.finished = asyncio.Event()
        """Set when nothing is left to send."""
        self._door = door
        self._challenge: str | None = None
        """What the client has been given to sign."""
        self._open: set[int] = set()
        self._cancelled: set[int] = set()
        """Open requests whose streams are to end as soon as they begin."""
        self._streams: dict[int, LinkStream] = {}
        self._uncommitted = 0
        self._reading = True
        self._ended = False
        self._cut_off = False
        """Whether an event could not be sent: none may follow it, or its stream would have a hole."""

    # Called by the tube

    def on_message(self, message: Received) -> None:
        """Take a request."""
        if self.finished.is_set():
            # What came with the request that was wrong is dropped.
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
        """Go on sending."""
        self.pump()
        self.regulate()

    def on_end(self, error: HeadraceError | None) -> None:
        """Let open requests be answered, if the client can still receive, then finish."""
        self._ended = True
        if isinstance(error, WireError):
            self.refuse(error.reason, error)
        why = self._door.stopping
        for stream in list(self._streams.values()):
            # This may be a killed client: one that leaves in good order cancels its streams first.
            if why is None:
                stream.lose()
            else:
                stream.close()
            self._open.discard(stream.id)
            if why is not None:
                self.stream_over(stream.id, why)
        self._streams.clear()
        self._charge_streams()
        if error is not None:
            self._open.clear()
        self._finish_if_done()

    # Called by operations and streams

    def describe(self) -> str:
        """Name the client for people: by its id or address, and what it calls itself."""
        who = f"client {self.client}" if self.client else self.peer
        return f"{who} ({self.name[:64]})" if self.name else who

    @property
    def owner(self) -> str:
        """Whose publishers' and queries' names are the client's own; empty where nobody is known."""
        return self.principal.owner

    @property
    def full(self) -> bool:
        """Whether streams must wait."""
        return self.tube.paused or self.tube.closed or self._cut_off or self._sent_too_much()

    def answer(self, request_id: int, body: Buffer | None = None, /, **members: Any) -> None:
        """Answer a request that is done."""
        self._close(request_id)
        try:
            self._send({"id": request_id, "ok": True, **members}, body)
        except LimitError as error:
            self._send(_refusal(request_id, error))
        self._finish_if_done()

    def fail(self, request_id: int, error: HeadraceError) -> None:
        """Answer a request that is refused, and count it."""
        self._close(request_id)
        head = _refusal(request_id, error)
        if head["error"] != "stopping":
            self.refuse(head["error"], error)
        self._send(head)
        self._finish_if_done()

    def check_topics(self, batches: Sequence[Batch]) -> None:
        """Raise an error unless the client may publish to every topic of some messages."""
        self._door.operations.rights.check_topics(self, batches)

    def submit(self, request_id: int, entry: Batch, then: Callable[[Batch], None]) -> None:
        """Submit a log entry and call ``then`` once it is committed; an error in either is the request's answer."""

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
            # Later: the stream must not be closed while it sends.
            asyncio.get_running_loop().call_soon(self.hang_up)

    def stream(self, stream: LinkStream) -> None:
        """Begin a stream, unless it was cancelled while it was being prepared."""
        if stream.id in self._cancelled:
            stream.close()
            self.answer(stream.id, cancelled=True)
            return
        self._streams[stream.id] = stream
        self._charge_streams()
        stream.pump()

    def stream_over(self, stream_id: int, answer: Mapping[str, Any] | HeadraceError) -> None:
        """Send a stream's last answer, and forget it."""
        self._streams.pop(stream_id, None)
        self._charge_streams()
        if isinstance(answer, HeadraceError):
            self.fail(stream_id, answer)
        else:
            self.answer(stream_id, **answer)

    def check_room_for_stream(self, cost: int = 0) -> None:
        """Raise if the tube has as many streams as it may, or has ended; ``cost`` is that of the stream's filter."""
        if self._ended:
            raise RefusedError("stopping", "the tube has ended")
        if len(self._streams) >= MAX_STREAMS:
            raise ExplainedError("busy", f"{MAX_STREAMS} streams are open on this tube", limit=MAX_STREAMS)
        if self._door.admission.shut is not None:
            raise ExplainedError("busy", self._door.admission.shut)
        for resource, amount in ((Resource.SUBSCRIPTIONS, 1), (Resource.FILTER_COST, cost)):
            if (detail := self.account.lacks(resource, amount)) is not None:
                raise RefusedError("limit", detail)

    def uncommitted(self, size: int) -> None:
        """Count bytes of uncommitted rows (or, negative, of rows that are committed now)."""
        self._uncommitted += size
        if size < 0:
            self.regulate()

    def known_as(self, principals: Principals) -> Principal | None:
        """Return who the client is among the hub's new principals."""
        return principals.named(self.principal.name) if self.client else self._door.principal_of(self.tube)

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
            self.streams,
        )

    def revoked(self, detail: str) -> None:
        """End: what the client might do, it may no longer."""
        self.refuse("revoked", detail)
        self.tube.abort()
        self.finished.set()

    def refuse(self, reason: str, detail: object) -> None:
        """Count a refusal."""
        self._door.counters.refuse("tube", reason, self.peer, detail)

    def hang_up(self) -> None:
        """Close once everything is sent."""
        self.drop()
        self.tube.start_closing()
        self.finished.set()

    # Called by the door

    def drop(self) -> None:
        """Forget everything: the tube is closed."""
        self._open.clear()
        for stream in list(self._streams.values()):
            stream.lose()
        self._streams.clear()
        self._charge_streams()

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def open_streams(self) -> list[LinkStream]:
        """Return its streams, as they are now."""
        return list(self._streams.values())

    def pump(self) -> None:
        """Go on with every stream."""
        for stream in self.open_streams():
            stream.pump()

    def tick(self, now: float, handshake_seconds: float) -> None:
        """Enforce deadlines."""
        if not self.greeted and now - self.since > handshake_seconds:
            self.refuse("deadline", "no hello in time")
            self.hang_up()
            return
        for stream in list(self._streams.values()):
            stream.tick(now)
        if self.account.rated and not self.full:
            self.pump()

    def regulate(self) -> None:
        """Read from the client, or make it wait."""
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
        """Make the client wait while it sends more a second than it may."""
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

    def _charge_streams(self) -> None:
        self.account.adjust(Resource.SUBSCRIPTIONS, len(self._streams) - self._charged)
        self._charged = len(self._streams)
        cost = sum(stream.cost for stream in self._streams.values())
        self.account.adjust(Resource.FILTER_COST, cost - self._charged_cost)
        self._charged_cost = cost

    def _take(self, request_id: int, request: Request | WireError) -> None:
        """Take a request about the connection itself, or one that is wrong or too early."""
        match request:
            case HelloRequest():
                if self.greeted:
                    raise RefusedError("hello", "hello was sent already")
                if self._challenge is None:
                    self._challenge = self._door.challenge(request)
                    if self._challenge is not None:
                        self.answer(request_id, challenge=self._challenge)
                        return
                try:
                    members, self.client = self._door.greet(
                        self, request, self._challenge or secrets.token_hex()
                    )
                except HeadraceError as error:
                    self.fail(request_id, error)
                    self.hang_up()
                    return
                self.greeted, self.name = True, request.name
                self._door.identify(self)
                self.tube.trust()
                self.answer(request_id, **members)
                return
            case MoreRequest(bytes=size):
                if (stream := self._streams.get(request_id)) is not None:
                    stream.grant(size)
                return
            case CancelRequest():
                if (stream := self._streams.get(request_id)) is not None:
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
        """Answer a publish of ``size`` bytes, which are no longer under way."""
        self._uncommitted -= size
        if isinstance(result, HeadraceError):
            self.fail(request_id, result)
        else:
            first, last, repeated, op, kept = result
            # Said only if so: no other answer is longer for it.
            told = {"kept": True} if kept else {}
            self.answer(request_id, first=first, last=last, repeated=repeated, op=op, **told)
        if not self._reading:
            self.regulate()

    def _passed(self, request_id: int, size: int, result: Published | HeadraceError) -> None:
        """Answer what a frontend has passed on: it asks only whether it was a repeat."""
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
                # One short message is sent in one go.
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


def _refusal(request_id: int, error: HeadraceError) -> dict[str, Any]:
    """Return an error as a client gets it: a code, a sentence and facts."""
    head: dict[str, Any] = {"id": request_id, "error": "storage", "reason": str(error)[:_MAX_REASON]}
    match error:
        case RefusedError(code=code, reason=reason):
            head |= {"error": code, "reason": reason[:_MAX_REASON]}
            if isinstance(error, ExplainedError):
                head |= error.facts
        case LimitError(limit=limit):
            head |= {"error": "limit", "limit": limit}
        case WireError(field=field):
            head |= {"error": "malformed", "field": field}
        case TrimmedError():
            head |= {"error": "trimmed", "first": error.first, "last": error.last, "oldest": error.oldest}
        case DamagedError():
            head |= {"error": "damaged", "first": error.first, "last": error.last}
        case ArchiveError():
            head |= {"error": "archive", "first": error.first, "last": error.last}
        case UnavailableError():
            head["error"] = "unavailable"
        case StorageError():
            pass
        case UsageError() if not isinstance(error, ClosedError):
            head["error"] = "malformed"
        case _:
            head["error"] = "stopping"
    return head
