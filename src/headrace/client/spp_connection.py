"""One stream to a hub's services at a time: opened, authenticated, replaced when it is lost, closed.

What packets mean is decided by the :class:`Owner`. In the background there is one task while a lost stream is replaced,
and nothing else.

Invariants:

- At most one stream exists, and whatever comes from an earlier one is not heard.
- A stream that is given up on purpose is closed all the way before the next is opened: what was published there does
  not come after what is published next.
- After :meth:`Connection.close`, or an :meth:`Connection.open` that failed, nothing is left in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from random import Random
from typing import Final, Protocol

from headrace.client.spp_stream import SppStream
from headrace.config import Address
from headrace.errors import ClosedError, HeadraceError, RefusedError, UnreachableError, UsageError
from headrace.wire.auth import Auth as Claim
from headrace.wire.auth import serialize_auth, sign
from headrace.wire.spp import Auth, Authenticated, ClientFrame, ServerFrame

_ATTEMPT_SECONDS: Final = 5.0
"""How long a host is given to answer when a stream is replaced."""

_RETRY_SECONDS: Final = 0.05
_RETRY_MOST_SECONDS: Final = 5.0
"""The first and the longest delay before the hosts are tried again."""

_STEADY_SECONDS: Final = 5.0
"""A stream that lived so long was a good one: delays begin anew."""

_CLOSE_SECONDS: Final = 10.0
"""How long closing waits for the hub to take what was published."""

logger = logging.getLogger("headrace.client")


class Owner(Protocol):
    """Who uses a connection."""

    def received(self, frame: ServerFrame) -> None:
        """A packet has come; what it is answered with can be sent at once."""

    def disconnected(self) -> None:
        """The stream is gone, and with it whatever the hub knew of us."""

    def ended(self) -> None:
        """Nothing more will come: see :attr:`Connection.over`."""


class Connection:
    """The way to one of several hosts."""

    def __init__(
        self, hosts: Sequence[Address], client: tuple[bytes, bytes] | None, owner: Owner, random: Random
    ) -> None:
        self.over: HeadraceError | None = None
        """Why there will be no stream any more."""
        self._hosts = list(hosts)
        self._client = client
        self._owner = owner
        self._random = random
        self._loop: asyncio.AbstractEventLoop
        self._stream: SppStream | None = None
        self._since = 0.0
        self._opened = False
        self._up = asyncio.Event()
        self._answer: asyncio.Future[bool] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def up(self) -> bool:
        """Whether there is a stream."""
        return self._stream is not None and self._up.is_set()

    async def open(self, seconds: float) -> None:
        """Connect to the first host that answers; each is tried once."""
        if self._opened:
            raise UsageError("a client is opened once: make another one")
        self._opened = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._try_hosts(seconds)
        except BaseException as error:
            self._end(error if isinstance(error, HeadraceError) else ClosedError("the client was not opened"))
            raise

    async def close(self, *farewell: ClientFrame) -> None:
        """Give up the stream once the hub has what was published; whoever waits is told."""
        stream = None
        if self.up:
            stream, self._stream = self._stream, None
        replacing, self._replacing = self._replacing, None
        if replacing is not None:
            replacing.cancel()
        self._end(ClosedError("the client is closed"))
        try:
            if stream is not None:
                await stream.close(farewell, self._loop.time() + _CLOSE_SECONDS)
        finally:
            if replacing is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    await replacing

    def renew(self, *farewell: ClientFrame) -> None:
        """Give up the stream for another one."""
        stream = self._stream
        if stream is not None and self._up.is_set():
            self._forget()
            self._failures = 0
            self._replacing = self._loop.create_task(self._replace(stream, farewell))

    def send(self, frame: ClientFrame) -> None:
        """Send at once, or never: what is meant for this stream is nothing to the next."""
        if self._stream is not None:
            self._stream.send(frame)

    async def publish(self, frame: ClientFrame) -> None:
        """Send on this stream or the next, and wait until there is room for more."""
        self.check()
        while self._stream is None or not self._up.is_set():
            await self._up.wait()
            self.check()
        stream = self._stream
        stream.send(frame)
        await stream.room()

    def check(self) -> None:
        """Raise unless the connection is open."""
        if self.over is not None:
            raise self.over
        if not self._opened:
            raise UsageError("the client is not open: write `async with headrace.connect(…) as …`")

    def received(self, stream: SppStream, frame: ServerFrame) -> None:
        """A packet has come."""
        if stream is not self._stream:
            return
        if not isinstance(frame, Authenticated):
            self._owner.received(frame)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(frame.accepted)

    def lost(self, stream: SppStream, reason: str) -> None:
        """A stream has ended by itself."""
        if stream is not self._stream:
            return
        was_up = self._up.is_set()
        self._forget()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(UnreachableError(str(self._hosts[0]), reason))
        elif was_up:
            logger.warning("lost the hub at %s: %s", self._hosts[0], reason)
            steady = self._loop.time() - self._since >= _STEADY_SECONDS
            self._failures = 0 if steady else self._failures + 1
            self._replacing = self._loop.create_task(self._replace())

    async def _try_hosts(self, seconds: float) -> None:
        """Connect to the first host that answers, beginning with the last one that did; share the time among them."""
        deadline = self._loop.time() + seconds
        problems: list[UnreachableError] = []
        for left in range(len(self._hosts), 0, -1):
            now = self._loop.time()
            try:
                await self._try_host(self._hosts[0], now + (deadline - now) / left)
            except UnreachableError as error:
                problems.append(error)
                self._hosts.append(self._hosts.pop(0))
            else:
                return
        addresses = ",".join(problem.address for problem in problems)
        raise UnreachableError(addresses, "; ".join(dict.fromkeys(problem.reason for problem in problems)))

    async def _try_host(self, address: Address, deadline: float) -> None:
        stream = self._stream = SppStream(self)
        try:
            async with asyncio.timeout_at(deadline):
                try:
                    await stream.open(address)
                    await self._authenticate(stream, address)
                except BaseException:
                    stream.abort()
                    self._forget()
                    raise
        except TimeoutError:
            raise UnreachableError(str(address), "no answer") from None
        except OSError as error:
            raise UnreachableError(str(address), (error.strerror or str(error)).lower()) from None
        if self._stream is not stream:
            raise UnreachableError(str(address), "the connection was lost at once")
        self._since = self._loop.time()
        self._up.set()

    async def _authenticate(self, stream: SppStream, address: Address) -> None:
        if self._client is None:
            return
        client_id, key = self._client
        timestamp = f"{time.time():.6f}"
        claim = Claim(client_id, timestamp, sign(key, client_id, timestamp))
        self._answer = self._loop.create_future()
        try:
            stream.send(Auth(serialize_auth(claim)))
            accepted = await self._answer
        finally:
            self._answer = None
        if not accepted:
            reason = (
                f"{address} does not accept client {client_id.hex()}: check its id, its key and this clock"
            )
            raise RefusedError("auth", reason)

    async def _replace(self, old: SppStream | None = None, farewell: Sequence[ClientFrame] = ()) -> None:
        if old is not None:
            await old.close(farewell, self._loop.time() + _CLOSE_SECONDS)
        while True:
            if self._failures:
                doubled = _RETRY_SECONDS * 2.0 ** min(self._failures - 1, 16)
                await asyncio.sleep(min(_RETRY_MOST_SECONDS, doubled) * self._random.uniform(0.5, 1.5))
            try:
                await self._try_hosts(_ATTEMPT_SECONDS * len(self._hosts))
            except UnreachableError as error:
                self._failures += 1
                logger.debug("no hub yet: %s", error)
            except RefusedError as error:
                logger.warning("%s", error)
                self._end(error)
                return
            else:
                logger.info("connected again, to %s", self._hosts[0])
                return

    def _forget(self) -> None:
        self._stream = None
        self._up.clear()
        self._owner.disconnected()

    def _end(self, error: HeadraceError) -> None:
        """Stop everything at once; the first reason is the one that is told."""
        if self.over is None:
            self.over = error
        if self._stream is not None:
            self._stream.abort()
        self._forget()
        self._up.set()
        self._owner.ended()
