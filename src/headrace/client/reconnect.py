"""One connection at a time to one of several hosts: opened, replaced when it is lost, closed.

What a connection is, and what is said on it first, is its :class:`Owner`'s to know: it dials one host. Here is decided
which host, when, and when not any more. In the background there is one task while a lost connection is replaced, and
nothing else.

Invariants:

- At most one stream exists, and the loss of an earlier one is not heard.
- After :meth:`Failover.close`, or a :meth:`Failover.open` that failed, nothing is left in the event loop.
- The first reason for the end is the one that is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from headrace.config import Address
from headrace.errors import ClosedError, HeadraceError, RefusedError, UnreachableError, UsageError

_ATTEMPT_SECONDS: Final = 5.0
"""How long a host is given to answer when a stream is replaced."""

_RETRY_SECONDS: Final = 0.05
_RETRY_MOST_SECONDS: Final = 5.0
"""The first and the longest delay before the hosts are tried again; each is randomised by half of itself."""

_STEADY_SECONDS: Final = 5.0
"""A stream that lived so long was a good one: delays begin anew."""

_CLOSE_SECONDS: Final = 10.0
"""How long closing waits for the hub to take what was sent."""

logger = logging.getLogger("headrace.client")


class Dialled(Protocol):
    """A connection that was made."""

    @property
    def ended(self) -> str | None:
        """Why it is over, if it is."""

    async def close(self, deadline: float) -> None:
        """Close in good order, at the latest at the event loop's time ``deadline``."""

    def abort(self) -> None:
        """Close at once."""


S = TypeVar("S", bound=Dialled)
S_co = TypeVar("S_co", bound=Dialled, covariant=True)


class Owner(Protocol[S_co]):
    """Who uses the connections."""

    async def dial(self, address: Address) -> S_co:
        """Connect to a host, and say and hear what comes first.

        ``OSError`` or :class:`~headrace.errors.UnreachableError` if that host is of no use now,
        :class:`~headrace.errors.RefusedError` if no host is, ever. Nothing is left if it fails or is cancelled.
        """

    async def wanted(self) -> None:
        """Return when a stream that was lost is to be replaced."""

    def ended(self) -> None:
        """There will be no stream any more: see :attr:`Failover.over`."""


class Failover(Generic[S]):
    """The way to one of several hosts."""

    def __init__(self, hosts: Sequence[Address], owner: Owner[S], random: Random) -> None:
        self.over: HeadraceError | None = None
        """Why there will be no stream any more."""
        self.connects = 0
        """Streams that were made, the first one included."""
        self.disconnects = 0
        """Streams that were lost."""
        self._hosts = list(hosts)
        self._owner = owner
        self._random = random
        self._loop: asyncio.AbstractEventLoop
        self._opened = False
        self._stream: S | None = None
        self._since = 0.0
        self._changed = asyncio.Event()
        self._replacing: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def current(self) -> S | None:
        """The stream there is now."""
        return self._stream

    async def open(self, seconds: float) -> None:
        """Connect to the first host that answers; each is tried once."""
        if self._opened:
            raise UsageError("a client is opened once: make another one")
        self._opened = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._try_hosts(seconds)
        except UnreachableError as error:
            hint = f"{error.reason}; is the hub running there? `headrace serve` starts one"
            self.end(hinted := UnreachableError(error.address, hint))
            raise hinted from None
        except BaseException as error:
            self.end(error if isinstance(error, HeadraceError) else ClosedError("the client was not opened"))
            raise

    async def close(self) -> None:
        """Give up the stream in good order; whoever waits is told."""
        stream, self._stream = self._stream, None
        replacing, self._replacing = self._replacing, None
        if replacing is not None:
            replacing.cancel()
        self.end(ClosedError("the client is closed"))
        try:
            if stream is not None:
                await stream.close(self._loop.time() + _CLOSE_SECONDS)
        finally:
            if replacing is not None:
                with contextlib.suppress(asyncio.CancelledError):
                    await replacing

    def check(self) -> None:
        """Raise unless the client is open."""
        if self.over is not None:
            raise self.over
        if not self._opened:
            raise UsageError("the client is not open: write `async with headrace.connect(…) as …`")

    async def stream(self) -> S:
        """The stream, or the next one."""
        self.check()
        while self._stream is None:
            self._changed.clear()
            await self._changed.wait()
            self.check()
        return self._stream

    def renew(self) -> None:
        """Give up the stream for another one, which is opened when this one is closed all the way."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._failures = 0
            self._replacing = self._loop.create_task(self._replace(stream))

    def lost(self, stream: Dialled, reason: str) -> None:
        """A stream has ended by itself."""
        if stream is not self._stream:
            return
        self._stream = None
        self.disconnects += 1
        logger.warning("lost the hub at %s: %s", self._hosts[0], reason)
        steady = self._loop.time() - self._since >= _STEADY_SECONDS
        self._failures = 0 if steady else self._failures + 1
        self._replacing = self._loop.create_task(self._replace())

    def end(self, error: HeadraceError) -> None:
        """Stop everything at once."""
        if self.over is None:
            self.over = error
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()
        if self._replacing is not None and self._replacing is not asyncio.current_task():
            self._replacing.cancel()
        self._changed.set()
        self._owner.ended()

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
        try:
            async with asyncio.timeout_at(deadline):
                stream = await self._owner.dial(address)
        except TimeoutError:
            raise UnreachableError(str(address), "no answer") from None
        except OSError as error:
            raise UnreachableError(str(address), reason_of(error)) from None
        if self.over is not None:
            stream.abort()
            raise self.over
        if stream.ended is not None:
            raise UnreachableError(str(address), stream.ended)
        self._stream = stream
        self._since = self._loop.time()
        self.connects += 1
        self._changed.set()

    async def _replace(self, old: S | None = None) -> None:
        if old is not None:
            await old.close(self._loop.time() + _CLOSE_SECONDS)
        while True:
            if self._failures:
                doubled = _RETRY_SECONDS * 2.0 ** min(self._failures - 1, 16)
                await asyncio.sleep(min(_RETRY_MOST_SECONDS, doubled) * self._random.uniform(0.5, 1.5))
            await self._owner.wanted()
            try:
                await self._try_hosts(_ATTEMPT_SECONDS * len(self._hosts))
            except UnreachableError as error:
                self._failures += 1
                logger.debug("no hub yet: %s", error)
            except RefusedError as error:
                logger.warning("%s", error)
                self.end(error)
                return
            else:
                logger.info("connected again, to %s", self._hosts[0])
                return


def reason_of(error: Exception | None) -> str:
    """Why a connection was not made, or has ended, in words."""
    if error is None:
        return "the hub closed the connection"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    return str(getattr(error, "strerror", None) or error).lower()
