"""One tube to a hub after its hello: each request has an id, by which its answers find it.

When the tube is lost, every open request gets a :class:`LostTubeError`, and its caller decides: a question is asked
again, a stream resumes after its last row, a publish is repeated under the same numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.errors import HeadraceError, RefusedError, TrimmedError, WireError
from headrace.tube import Received, Tube
from headrace.wire.link.message import Body, LinkMessage, parse, serialize, serialize_before
from headrace.wire.link.requests import CancelRequest, MoreRequest, Request, serialize_request

logger = logging.getLogger("headrace.client")

R = TypeVar("R", bound=Request)
Make = Callable[[int], R]
"""Makes a request from its id."""

Answered = Callable[["LinkMessage | None"], None]
"""Called with the answer, even a refusal; with ``None`` if the tube is lost."""


_JOINED = 16 << 10
"""Bodies up to this size are copied to their heads: that costs less than to send them in parts."""


class LostTubeError(Exception):
    """The tube is lost, and with it all requests on it; never leaves the client."""


class Inbox:
    """One stream's events, kept until they are taken; its credit bounds them."""

    def __init__(self, session: LinkSession, request_id: int, credit: int) -> None:
        self.id = request_id
        self.loop = asyncio.get_running_loop()
        self._session = session
        self._events: deque[LinkMessage] = deque()
        self._end: LinkMessage | Exception | None = None
        self._arrived = asyncio.Event()
        self._credit = credit
        self._taken = 0

    def put(self, message: LinkMessage) -> None:
        """Keep an event, or the end."""
        if "event" in message.head:
            self._events.append(message)
        else:
            self._end = message
        self._arrived.set()

    def lose(self, why: Exception | None = None) -> None:
        """Note that the tube is lost, or why nothing more is expected of it."""
        self._end = LostTubeError() if why is None else why
        self._arrived.set()

    async def get(self) -> LinkMessage | None:
        """Return the next event; ``None`` at the stream's end. Cancelling this loses nothing."""
        while not self._events:
            if self._end is not None:
                if isinstance(self._end, Exception):
                    raise self._end
                check(self._end)
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._events.popleft()
        self._taken += len(message.body)
        if self._taken * 2 >= self._credit:
            self._session.grant(self.id, self._taken)
            self._taken = 0
        return message

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._end is not None

    @property
    def last(self) -> Mapping[str, Any]:
        """The head of the stream's end, once :meth:`get` has returned ``None``."""
        return self._end.head if isinstance(self._end, LinkMessage) else {}

    @property
    def lost(self) -> bool:
        """Whether the tube is lost; events that came before are still here."""
        return isinstance(self._end, LostTubeError)

    def cancel(self) -> None:
        """End the stream: drop its events, and end every waiting :meth:`get`."""
        if not self.over:
            self._session.cancel(self.id)
            self._end = LinkMessage({})
        self._events.clear()
        self._arrived.set()


class LinkSession:
    """One tube to a hub; the receiver of its messages."""

    def __init__(self, tube: Tube) -> None:
        self.tube = tube
        self.lost = False
        self.log = ""
        self.hub: Mapping[str, Any] = {}
        self.position = 0
        """The newest operation of the hub's log when the tube was opened."""
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Answered] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._next_id = 0

    def on_message(self, message: Received) -> None:
        """Hand an answer or an event to the request it belongs to."""
        try:
            parsed = parse(message)
        except WireError as error:
            logger.warning("the hub at %s broke the link's protocol: %s", self.tube.peer, error)
            self.tube.abort()
            return
        request_id = parsed.head.get("id")
        if (answered := self._calls.pop(request_id, None)) is not None:  # type: ignore[arg-type]
            answered(parsed)
        elif (inbox := self._inboxes.get(request_id)) is not None:  # type: ignore[arg-type]
            inbox.put(parsed)
            if inbox.over:
                del self._inboxes[inbox.id]

    def on_room(self) -> None:
        """Do nothing: windows and credit bound what is sent."""

    def on_end(self, _error: HeadraceError | None) -> None:
        """Fail all open requests."""
        self.lost = True
        calls, self._calls = self._calls, {}
        inboxes, self._inboxes = self._inboxes, {}
        for answered in calls.values():
            answered(None)
        for inbox in inboxes.values():
            inbox.lose()
        self.tube.start_closing()

    def call(self, make: Make[R], body: Body | None = None) -> asyncio.Future[LinkMessage]:
        """Send a request; the future gets the answer, even a refusal."""
        future: asyncio.Future[LinkMessage] = self._loop.create_future()

        def answered(message: LinkMessage | None) -> None:
            if future.done():
                return
            if message is not None:
                future.set_result(message)
            else:
                future.set_exception(LostTubeError())
                # The caller may have gone away.
                future.exception()

        if not self.ask(make(self.next_id()), answered, body):
            future.set_exception(LostTubeError())
        return future

    def ask(self, request: Request, answered: Answered, body: Body | None = None) -> bool:
        """Send a request with the next id, whose answer is passed on at once; return whether it could be sent."""
        sent = self._send(request, body)
        if sent:
            self._calls[request.id] = answered
        return sent

    def next_id(self) -> int:
        """Return the id of the next request."""
        self._next_id += 1
        return self._next_id - 1

    def stream(self, make: Make[R], credit: int) -> Inbox:
        """Request a stream."""
        inbox = Inbox(self, self.next_id(), credit)
        if self._send(make(inbox.id)):
            self._inboxes[inbox.id] = inbox
        else:
            inbox.lose()
        return inbox

    def grant(self, request_id: int, size: int) -> None:
        """Let the hub send more of a stream."""
        if request_id in self._inboxes:
            self._send(MoreRequest(id=request_id, bytes=size))

    def cancel(self, request_id: int) -> None:
        """End a stream; what still comes of it is dropped."""
        if self._inboxes.pop(request_id, None) is not None:
            self._send(CancelRequest(id=request_id))

    def _send(self, request: Request, body: Body | None = None) -> bool:
        if self.lost or self.tube.closed:
            return False
        head = serialize_request(request)
        if body is None:
            self.tube.write(serialize(head))
        elif type(body) is bytes and len(body) <= _JOINED:
            self.tube.write(serialize(head) + body)
        else:
            parts = (body,) if isinstance(body, bytes | bytearray | memoryview) else body
            size = sum(memoryview(part).nbytes for part in parts)
            self.tube.write_parts((serialize_before(head, size), *parts))
        return True


def check(message: LinkMessage) -> None:
    """Raise a refusal; a hub that is stopping counts as lost."""
    head = message.head
    code = head.get("error")
    if code is None:
        return
    reason = str(head.get("reason", ""))
    if code == "stopping":
        raise LostTubeError(reason)
    if code == "trimmed":
        places = [head.get(name) for name in ("first", "last", "oldest")]
        if all(type(place) is int for place in places):
            raise TrimmedError(*places)  # type: ignore[arg-type]
    raise RefusedError(str(code), reason)
