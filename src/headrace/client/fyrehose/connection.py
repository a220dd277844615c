"""One link to the backbone at a time: opened, kept, replaced when it is lost, closed.

What to send, and what becomes of what comes, is decided by
:class:`~headrace.client.fyrehose.subscription.Subscription`. This class does it: it connects to one host after the
other, keeps the one timer, and lets tasks wait for a link or for messages. In the background there are only callbacks
of the event loop, and one task while a lost link is replaced.

Invariants:

- At most one link exists, and whatever comes from an earlier one is not heard.
- After :meth:`Connection.close`, or an :meth:`Connection.open` that failed, nothing is left in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from headrace.client.fyrehose.repair import LostRange
from headrace.client.fyrehose.stats import Stats
from headrace.client.fyrehose.subscription import SILENCE_SECONDS, Outgoing, Subscription
from headrace.client.fyrehose.transport import Link, Sink
from headrace.config import Address
from headrace.errors import (
    ClosedError,
    HeadraceError,
    UnexpectedError,
    UnreachableError,
    UsageError,
    WireError,
)
from headrace.message import Batch
from headrace.wire.fyrehose.stream import DeliverRun, Forward

_ATTEMPT_SECONDS: Final = 5.0
"""How long a host is given to answer when a link is replaced."""

_RETRY_SECONDS: Final = 0.05
_RETRY_MOST_SECONDS: Final = 2.0
"""The first and the longest delay before the hosts are tried again."""

_STEADY_SECONDS: Final = 5.0
"""A link that lived so long was a good one: delays begin anew."""

_CLOSE_SECONDS: Final = 10.0
"""How long closing waits for the hub to take what was pushed."""

_TICK_SECONDS: Final = 0.001
"""As fine as timers need to be."""

logger = logging.getLogger("headrace.client")

OpenLink = Callable[[Address, Sink], Awaitable[Link]]


@dataclass(slots=True)
class _Attempt:
    """A link that has yet to show that it is one."""

    settled: asyncio.Event = field(default_factory=asyncio.Event)
    lost: str | None = None


class Connection:
    """The way to one of several hosts."""

    def __init__(
        self,
        hosts: Sequence[Address],
        open_link: OpenLink,
        subscription: Subscription,
        stats: Stats,
        random: Random,
    ) -> None:
        self._hosts = list(hosts)
        self._open_link = open_link
        self._subscription = subscription
        self._stats = stats
        self._random = random
        self._loop: asyncio.AbstractEventLoop
        self._link: Link | None = None
        self._link_since = 0.0
        self._up = asyncio.Event()
        self._arrived = asyncio.Event()
        self._attempt: _Attempt | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._opened = False
        self._ended: HeadraceError | None = None

    @property
    def up(self) -> bool:
        """Whether there is a link."""
        return self._link is not None and self._up.is_set()

    async def open(self, seconds: float) -> None:
        """Connect to the first host that answers; each is tried once."""
        if self._opened or self._ended is not None:
            raise UsageError("a client is opened once: make another one")
        self._loop = asyncio.get_running_loop()
        self._opened = True
        try:
            await self._try_hosts(seconds)
        except BaseException as error:
            self._end(error if isinstance(error, HeadraceError) else ClosedError("the client was not opened"))
            raise

    async def close(self) -> None:
        """Give up the link once the hub has what was pushed; whoever waits is told."""
        link = None
        if self.up:
            link, self._link = self._link, None
        self._end(ClosedError("the client is closed"))
        try:
            if link is not None:
                await link.close(self._loop.time() + _CLOSE_SECONDS)
        finally:
            if (replacing := self._replacing) is not None:
                self._replacing = None
                with contextlib.suppress(asyncio.CancelledError):
                    await replacing

    def check(self) -> None:
        """Raise why the client cannot be used, if it cannot."""
        if self._ended is not None:
            raise self._ended
        if not self._opened:
            raise UsageError("the client is not open: write `async with headrace.connect(…) as …`")

    async def link(self) -> Link:
        """The link, or the next one."""
        self.check()
        while self._link is None or not self._up.is_set():
            await self._up.wait()
            self.check()
        return self._link

    async def take(self) -> Batch | LostRange | None:
        """What is next for the consumer; ``None`` if the client is closed (meanwhile)."""
        subscription = self._subscription
        # With each batch whatever else waits gets its turn, however fast they come; and before anything is taken, so
        # that a task that is cancelled here loses nothing.
        await asyncio.sleep(0)
        while not len(subscription):
            if isinstance(self._ended, ClosedError):
                return None
            self.check()
            self._arrived.clear()
            self._do(subscription.listen(self._loop.time()))
            await self._arrived.wait()
        if isinstance(self._ended, ClosedError):
            return None
        now, was_full = self._loop.time(), subscription.full
        item = subscription.take(now)
        if was_full and not subscription.full:
            self._do(subscription.relieved(now))
        return item

    def delivered(self, run: DeliverRun, *, from_backbone: bool) -> None:
        """DELIVERs have come."""
        try:
            work = self._subscription.received(run, self._loop.time(), from_backbone=from_backbone)
        except UnexpectedError as error:
            self._end(error)
            return
        if len(self._subscription):
            self._arrived.set()
        self._do(work)

    def acknowledged(self) -> None:
        """The hub has answered a KEEPALIVE."""
        self._subscription.heard(self._loop.time())
        if self._attempt is not None:
            self._attempt.settled.set()

    def forward(self, frame: Forward, *, from_backbone: bool) -> None:
        """The hub asks for what another client misses."""
        self._do(self._subscription.forward(frame, self._loop.time(), from_backbone=from_backbone))

    def refused(self, error: WireError) -> None:
        """Something broke the protocol."""
        self._stats.refused += 1
        logger.warning("refused what came: %s", error)

    def unsent(self, datagrams: int) -> None:
        """The system did not take some datagrams."""
        self._stats.unsent += datagrams

    def lost(self, link: Link, reason: str) -> None:
        """A link has ended by itself."""
        if link is not self._link:
            return
        self._link = None
        self._stop_timer()
        if self._attempt is not None:
            self._attempt.lost = reason
            self._attempt.settled.set()
        elif self._up.is_set():
            self._up.clear()
            self._stats.disconnects += 1
            logger.warning("lost the hub at %s: %s", self._hosts[0], reason)
            steady = self._loop.time() - self._link_since >= _STEADY_SECONDS
            self._failures = 0 if steady else self._failures + 1
            self._replacing = self._loop.create_task(self._replace(None))

    async def _try_hosts(self, seconds: float) -> None:
        """Link to the first host that answers, beginning with the last one that did; share the time among them."""
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
                link = await self._open_link(address, self)
                try:
                    await self._begin(link)
                except BaseException:
                    self._link = None
                    link.abort()
                    raise
        except TimeoutError:
            raise UnreachableError(str(address), "no answer") from None
        except OSError as error:
            raise UnreachableError(str(address), _reason(error)) from None
        self._up.set()
        self._link_since = self._loop.time()
        self._stats.connects += 1

    async def _begin(self, link: Link) -> None:
        self.check()
        self._link = link
        self._attempt = attempt = _Attempt()
        try:
            self._do(self._subscription.connected(self._loop.time()))
            if self._subscription.listening:
                # The answer to a KEEPALIVE shows that it is a hub, and that it sends us what comes from here on.
                await attempt.settled.wait()
            self.check()
            if attempt.lost is not None:
                raise UnreachableError(str(self._hosts[0]), attempt.lost)
        finally:
            self._attempt = None

    async def _replace(self, old: Link | None) -> None:
        if old is not None:
            await old.close(self._loop.time() + _CLOSE_SECONDS)
        while True:
            if self._failures:
                doubled = _RETRY_SECONDS * 2.0 ** min(self._failures - 1, 16)
                await asyncio.sleep(min(_RETRY_MOST_SECONDS, doubled) * self._random.uniform(0.5, 1.5))
            try:
                await self._try_hosts(_ATTEMPT_SECONDS * len(self._hosts))
            except UnreachableError as error:
                self._failures += 1
                logger.debug("no hub yet: %s", error)
            else:
                logger.info("connected again, to %s", self._hosts[0])
                return

    def _do(self, work: Sequence[Outgoing]) -> None:
        link = self._link
        if link is None:
            return
        if work:
            link.send(work)
        link.read(self._subscription.reads)
        if (reason := self._subscription.reset) is not None and self._attempt is None:
            logger.info("exchanging the connection: %s", reason)
            self._link = None
            self._up.clear()
            self._stop_timer()
            self._replacing = self._loop.create_task(self._replace(link))
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        when = self._subscription.next_timer()
        if when is None:
            return
        # One that comes too early does no harm and moving it with every batch would cost more.
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(max(when, self._loop.time() + _TICK_SECONDS), self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        link, now = self._link, self._loop.time()
        if link is not None and self._subscription.silent(now):
            link.abort()
            self.lost(link, f"not heard for {SILENCE_SECONDS:g} s")
            return
        work = self._subscription.tick(now)
        if len(self._subscription):
            self._arrived.set()
        self._do(work)

    def _end(self, error: HeadraceError) -> None:
        """Stop everything at once; the first reason is the one that is told."""
        if self._ended is None:
            self._ended = error
        self._stop_timer()
        if self._replacing is not None:
            self._replacing.cancel()
        if self._attempt is not None:
            self._attempt.settled.set()
        if self._link is not None:
            self._link.abort()
            self._link = None
        self._up.set()
        self._arrived.set()


def _reason(error: OSError) -> str:
    if error.errno is None or isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    return os.strerror(error.errno).lower()
