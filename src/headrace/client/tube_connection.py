"""A client's way to the link: one tube at a time, replaced when it is lost.

A :class:`Session` is one tube after its hello: requests go out with a number, answers find their request by it. When
the tube is gone, everything that waits is told :class:`LostTubeError`, and whoever asked decides: a question is asked
again, a stream goes on behind what it had, a publish is repeated under the numbers it had.

A :class:`Connection` gives a session to whoever needs one. If there is none, hosts are tried in turn, ever more
slowly, until one answers or ``patience`` is over. Tubes that are lost as soon as they are there are replaced ever more
slowly too, and a request that has lost several is given up: nothing spins. All sessions of a client must be with one
log: another one's sequence numbers mean something else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from headrace.config import Address
from headrace.errors import (
    ClosedError,
    HeadraceError,
    PeerError,
    RefusedError,
    TrimmedError,
    UnexpectedError,
    UnreachableError,
    UsageError,
    WireError,
)
from headrace.tube import Options, Received, Tube, connect
from headrace.wire.link import (
    MAX_ANSWER,
    VERSION,
    VERSIONS,
    Buffer,
    LinkMessage,
    parse,
    serialize,
    serialize_before,
)
from headrace.wire.link_requests import Cancel, Hello, More, Request, serialize_request

_RETRY_SECONDS: Final = 0.05
_RETRY_MOST_SECONDS: Final = 3.0
_ATTEMPT_SECONDS: Final = 5.0
_HOST_SECONDS: Final = 1.0
_SETTLED_SECONDS: Final = 2.0
"""A tube that was lost earlier than this after it was there is replaced more slowly than the one before."""
_RESTLESS_MOST_SECONDS: Final = 1.0
_MOST_LOST: Final = 10
"""Tubes that one request may lose: what breaks every one of them breaks the next as well."""
_REFUSED: Final = "nobody listens there; is the hub running? `headrace serve` starts one"
_NO_LINK: Final = "what is there is no link: that is the door listen.tube_tcp, by default on port 8081"
_IDLE_SECONDS: Final = 2.0
_PONG_SECONDS: Final = 3.0

logger = logging.getLogger("headrace.client")

R = TypeVar("R", bound=Request)
Make = Callable[[int], R]
"""Makes a request of the number it is given."""

Sign = Callable[[], Mapping[str, Any]]
"""Makes the auth of a hello, anew for each: a token is good once."""


class LostTubeError(Exception):
    """The tube is gone, and with it whatever was asked over it; never leaves the client."""


class Inbox:
    """One stream's events, kept until they are taken; its credit bounds how many that can be."""

    def __init__(self, session: Session, request_id: int, credit: int) -> None:
        self.id = request_id
        self.loop = asyncio.get_running_loop()
        self._session = session
        self._events: deque[LinkMessage] = deque()
        self._end: LinkMessage | Exception | None = None
        self._arrived = asyncio.Event()
        self._credit = credit
        self._taken = 0

    def put(self, message: LinkMessage) -> None:
        """Keep an event, or the last word."""
        if "event" in message.head:
            self._events.append(message)
        else:
            self._end = message
        self._arrived.set()

    def lose(self) -> None:
        """Note that the tube is gone."""
        self._end = LostTubeError()
        self._arrived.set()

    async def get(self) -> LinkMessage | None:
        """The next event; ``None`` at the stream's end. Cancelling this loses nothing."""
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
        """What the stream's last word said, once :meth:`get` has returned ``None``."""
        return self._end.head if isinstance(self._end, LinkMessage) else {}

    @property
    def lost(self) -> bool:
        """Whether the tube is gone; events that came before are still here."""
        return isinstance(self._end, LostTubeError)

    def cancel(self) -> None:
        """Want no more."""
        if not self.over:
            self._session.cancel(self.id)


class Session:
    """One tube to a hub; the receiver of its messages."""

    def __init__(self, tube: Tube) -> None:
        self.tube = tube
        self.lost = False
        self.log = ""
        self.hub: Mapping[str, Any] = {}
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[LinkMessage]] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._next_id = 0

    def on_message(self, message: Received) -> None:
        """Give an answer or an event to whoever waits for it."""
        try:
            parsed = parse(message)
        except WireError as error:
            logger.warning("the hub at %s sent what is no message of the link: %s", self.tube.peer, error)
            self.tube.abort()
            return
        request_id = parsed.head.get("id")
        if (call := self._calls.pop(request_id, None)) is not None:  # type: ignore[arg-type]
            if not call.done():
                call.set_result(parsed)
        elif (inbox := self._inboxes.get(request_id)) is not None:  # type: ignore[arg-type]
            inbox.put(parsed)
            if inbox.over:
                del self._inboxes[inbox.id]

    def on_room(self) -> None:
        """Nothing waits for room here: windows and credit bound what is sent."""

    def on_end(self, _error: HeadraceError | None) -> None:
        """Tell whoever waits."""
        self.lost = True
        calls, self._calls = self._calls, {}
        inboxes, self._inboxes = self._inboxes, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(LostTubeError())
                # Whoever asked may have gone away.
                call.exception()
        for inbox in inboxes.values():
            inbox.lose()
        self.tube.start_closing()

    def call(self, make: Make[R], body: Buffer | None = None) -> asyncio.Future[LinkMessage]:
        """Ask; the future has the answer, refusals too."""
        request_id = self._number()
        future: asyncio.Future[LinkMessage] = self._loop.create_future()
        if self._send(make(request_id), body):
            self._calls[request_id] = future
        else:
            future.set_exception(LostTubeError())
        return future

    def stream(self, make: Make[R], credit: int) -> Inbox:
        """Ask for a stream."""
        inbox = Inbox(self, self._number(), credit)
        if self._send(make(inbox.id)):
            self._inboxes[inbox.id] = inbox
        else:
            inbox.lose()
        return inbox

    def grant(self, request_id: int, size: int) -> None:
        """Let the hub send more of a stream."""
        if request_id in self._inboxes:
            self._send(More(id=request_id, bytes=size))

    def cancel(self, request_id: int) -> None:
        """End a stream; what still comes of it is thrown away."""
        if self._inboxes.pop(request_id, None) is not None:
            self._send(Cancel(id=request_id))

    def _number(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _send(self, request: Request, body: Buffer | None = None) -> bool:
        if self.lost or self.tube.closed:
            return False
        head = serialize_request(request)
        if body is None:
            self.tube.write(serialize(head))
        else:
            self.tube.write_parts((serialize_before(head, body), body))
        return True


class Connection:
    """Sessions with one of several hubs that have the same log."""

    def __init__(
        self,
        hosts: Sequence[Address],
        name: str,
        sign: Sign | None,
        patience: float,
        random: Random,
        scheme: str = "tube",
    ) -> None:
        self.log: str | None = None
        self.connects = 0
        self._hosts = list(hosts)
        self._name = name
        self._sign = sign
        self._patience = patience
        self._random = random
        self._scheme = scheme
        self._session: Session | None = None
        self._connecting: asyncio.Task[Session] | None = None
        self._connected_at = float("-inf")
        self._restless = 0.0
        """How long the next tube waits that was lost as soon as it was there."""
        self._ended: HeadraceError | None = None
        self._opened = False

    @property
    def up(self) -> bool:
        """Whether there is a tube now."""
        return self._session is not None and not self._session.lost

    async def open(self, seconds: float) -> None:
        """Connect to the first host that answers."""
        if self._opened or self._ended is not None:
            raise UsageError("a client is opened once: make another one")
        self._opened = True
        try:
            async with asyncio.timeout(seconds):
                self._session = await self._try_hosts(seconds)
        except TimeoutError:
            hosts = ",".join(map(str, self._hosts))
            self._ended = UnreachableError(hosts, _silent(seconds))
            raise self._ended from None
        except HeadraceError as error:
            self._ended = error
            raise

    async def close(self) -> None:
        """Give up the tube; whoever waits is told."""
        self._ended = self._ended or ClosedError("the client is closed")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._session is not None:
            await self._session.tube.close()

    def check(self) -> None:
        """Refuse to work for a client that is not open."""
        if self._ended is not None:
            raise self._ended
        if not self._opened:
            raise UsageError("the client is not open: write `async with headrace.connect(…) as …`")

    async def session(self) -> Session:
        """The session, or the next one."""
        self.check()
        if self._session is not None and not self._session.lost:
            return self._session
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._reconnect())
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            # Ours to pass on, unless it is the connecting that was cancelled because the client was closed.
            self.check()
            raise

    async def call(self, make: Make[R], body: Buffer | None = None) -> LinkMessage:
        """Ask what may be asked again; refusals are raised."""
        for _ in range(_MOST_LOST):
            session = await self.session()
            try:
                message = await session.call(make, body)
                check(message)
            except LostTubeError:
                continue
            return message
        hosts = ",".join(map(str, self._hosts))
        raise UnreachableError(hosts, f"the connection was lost {_MOST_LOST} times over one request")

    async def _reconnect(self) -> Session:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        delay = 0.0
        if loop.time() - self._connected_at < _SETTLED_SECONDS:
            await asyncio.sleep(self._restless * self._random.uniform(0.5, 1.5))
            self._restless = min(_RESTLESS_MOST_SECONDS, max(_RETRY_SECONDS, 2 * self._restless))
        else:
            self._restless = 0.0
        while True:
            try:
                self._session = await self._try_hosts(_ATTEMPT_SECONDS)
                return self._session
            except UnexpectedError as error:
                self._ended = error
                raise
            except (PeerError, TimeoutError) as error:
                if isinstance(error, RefusedError) and error.code != "stopping":
                    raise
                logger.debug("no hub yet: %s", error)
                if loop.time() > deadline:
                    hosts = ",".join(map(str, self._hosts))
                    raise UnreachableError(hosts, f"no hub answers for {self._patience:g} s") from error
            delay = min(_RETRY_MOST_SECONDS, max(_RETRY_SECONDS, 2 * delay))
            await asyncio.sleep(delay * self._random.uniform(0.5, 1.5))

    async def _try_hosts(self, seconds: float) -> Session:
        """The first host that answers; they share the time: one that hangs must not keep the next from being tried."""
        problems: list[str] = []
        each = max(seconds / len(self._hosts), _HOST_SECONDS)
        for _ in range(len(self._hosts)):
            try:
                async with asyncio.timeout(each):
                    return await self._try_host(self._hosts[0])
            except TimeoutError:
                problems.append(_silent(each))
            except UnreachableError as error:
                refused = isinstance(error.__cause__, ConnectionRefusedError)
                problems.append(_REFUSED if refused else error.reason)
            self._hosts.append(self._hosts.pop(0))
        raise UnreachableError(",".join(map(str, self._hosts)), "; ".join(dict.fromkeys(problems)))

    async def _try_host(self, address: Address) -> Session:
        options = Options(max_message=MAX_ANSWER, max_inflated=MAX_ANSWER, compress=False)
        if len(self._hosts) > 1:
            # Where there is another one to go to, a host that hangs is not waited for as long.
            options = replace(options, idle_seconds=_IDLE_SECONDS, pong_seconds=_PONG_SECONDS)
        try:
            tube = await connect(f"{self._scheme}://{address}", options=options)
        except WireError as error:
            raise UnreachableError(str(address), f"{_NO_LINK} ({error})") from None
        session = Session(tube)
        try:
            tube.attach(session)
            auth = None if self._sign is None else dict(self._sign())
            hello = await session.call(lambda n: Hello(id=n, version=VERSION, name=self._name, auth=auth))
            if auth is None and hello.head.get("error") == "auth":
                raise RefusedError(
                    "auth", "the hub serves only clients it knows: say a client id and its key"
                )
            check(hello)
            if (version := hello.head.get("version")) not in VERSIONS:
                spoken = ", ".join(map(str, VERSIONS))
                raise UnexpectedError("link", "version", version, f"this client speaks {spoken}")
            session.hub = hello.head
            session.log = str(hello.head.get("log"))
            if self.log is None:
                self.log = session.log
            elif session.log != self.log:
                raise UnexpectedError(
                    "link", "log", session.log, f"the hub at {address} must have the log {self.log}"
                )
        except LostTubeError as lost:
            tube.abort()
            reason = f"the connection was lost at once: either the hub is stopping, or {_NO_LINK}"
            if str(lost):
                reason = f"it takes no clients now: {lost}"
            raise UnreachableError(str(address), reason) from None
        except BaseException:
            tube.abort()
            raise
        self.connects += 1
        self._connected_at = asyncio.get_running_loop().time()
        return session


def _silent(seconds: float) -> str:
    return f"no answer within {seconds:g} s: the hub hangs, or {_NO_LINK}"


def check(message: LinkMessage) -> None:
    """Raise what a refusal says; a hub that is stopping is as good as lost."""
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
