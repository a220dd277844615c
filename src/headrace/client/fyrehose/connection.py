"""One transport to the backbone at a time: opened, replaced when it is lost, closed.

:class:`~headrace.client.fyrehose.subscription.Subscription` decides what to send, and what to do with what comes; a
:class:`~headrace.client.reconnect.Failover` decides which host is dialled when. This class drives both: it keeps the
one timer, and lets tasks wait for a connection or for messages.

Invariant: what comes from an earlier transport is ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from headrace.client.fyrehose.repair import LostRange
from headrace.client.fyrehose.subscription import SILENCE_SECONDS, Outgoing, Subscription
from headrace.client.reconnect import Failover
from headrace.client.stats import FyrehoseStats
from headrace.config import Address
from headrace.errors import ClosedError, UnexpectedError, UnreachableError, WireError
from headrace.message import Batch, Run
from headrace.wire.fyrehose.stream import DeliverRun, Forward

_TICK_SECONDS: Final = 0.001
"""The resolution of timers, in seconds: finer ones are not needed."""

logger = logging.getLogger("headrace.client")


class FyrehoseTransport(Protocol):
    """One connection over TCP or UDP, open from its making until it is closed or lost.

    It is dull: it decodes what comes and hands it over, writes what it is given, and reports once that it is lost.
    """

    max_data: int
    """Maximum bytes of a published message."""

    @property
    def ended(self) -> str | None:
        """Why it is over, if it is."""

    def send(self, work: Sequence[Outgoing]) -> None:
        """Send at once, or never: this is small, and its protocol repeats it."""

    async def push(self, run: Run) -> None:
        """Send a PUSH per payload, and wait until there is room for more."""

    def read(self, wanted: bool, /) -> None:
        """Resume reading, or pause."""

    async def close(self, deadline: float) -> None:
        """Close once the hub has what was pushed, or at the event loop's time ``deadline``."""

    def abort(self) -> None:
        """Close at once."""


@dataclass(slots=True)
class _Attempt:
    """A transport on which the hub has yet to answer."""

    settled: asyncio.Event = field(default_factory=asyncio.Event)
    lost: str | None = None


class FyrehoseConnection:
    """A connection to one of several hosts, kept open."""

    def __init__(
        self,
        hosts: Sequence[Address],
        open_transport: Callable[[Address, FyrehoseConnection], Awaitable[FyrehoseTransport]],
        subscription: Subscription,
        stats: FyrehoseStats,
        random: Random,
    ) -> None:
        self.failover: Failover[FyrehoseTransport] = Failover(hosts, random, self._dial, on_end=self._ended)
        self._open_transport = open_transport
        self._subscription = subscription
        self._stats = stats
        self._transport: FyrehoseTransport | None = None
        """The channel being listened to, even before it has proven useful."""
        self._attempt: _Attempt | None = None
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> Batch | LostRange | None:
        """Return what is next for the consumer; ``None`` once the client is closed."""
        subscription, failover = self._subscription, self.failover
        # Yield once per batch, however fast they come, and before anything is taken: a task that is cancelled here
        # loses nothing.
        await asyncio.sleep(0)
        while not len(subscription):
            if isinstance(failover.over, ClosedError):
                return None
            failover.check()
            self._arrived.clear()
            self._do(subscription.listen(_now()))
            await self._arrived.wait()
        if isinstance(failover.over, ClosedError):
            return None
        now, was_full = _now(), subscription.full
        item = subscription.take(now)
        if was_full and not subscription.full:
            self._do(subscription.relieved(now))
        return item

    async def _dial(self, address: Address) -> FyrehoseTransport:
        transport = self._transport = await self._open_transport(address, self)
        self._attempt = attempt = _Attempt()
        try:
            self._do(self._subscription.connected(_now()))
            if self._subscription.listening:
                # The answer to a KEEPALIVE shows that it is a hub, and that it sends us what comes from here on.
                await attempt.settled.wait()
            if attempt.lost is not None:
                raise UnreachableError(str(address), attempt.lost)
            self.failover.check()
        except BaseException:
            self._transport = None
            transport.abort()
            raise
        finally:
            self._attempt = None
        self._stats.connects += 1
        return transport

    def _ended(self) -> None:
        self._stop_timer()
        if self._attempt is not None:
            self._attempt.settled.set()
        self._transport = None
        self._arrived.set()

    # For the transport

    def delivered(self, run: DeliverRun, *, from_backbone: bool) -> None:
        """Hand DELIVERs to the subscription."""
        try:
            work = self._subscription.received(run, _now(), from_backbone=from_backbone)
        except UnexpectedError as error:
            self.failover.end(error)
            return
        if len(self._subscription):
            self._arrived.set()
        self._do(work)

    def acknowledged(self) -> None:
        """Note the answer to a KEEPALIVE."""
        self._subscription.heard(_now())
        if self._attempt is not None:
            self._attempt.settled.set()

    def forward(self, frame: Forward, *, from_backbone: bool) -> None:
        """Answer the hub's request for messages that another client misses."""
        self._do(self._subscription.forward(frame, _now(), from_backbone=from_backbone))

    def refused(self, error: WireError) -> None:
        """Note bytes that break the protocol."""
        self._stats.refused += 1
        logger.warning("refused received bytes: %s", error)

    def unsent(self, datagrams: int) -> None:
        """Note datagrams that the system did not take."""
        self._stats.unsent += datagrams

    def lost(self, transport: FyrehoseTransport, reason: str) -> None:
        """Replace a transport that has ended by itself."""
        if transport is not self._transport:
            return
        self._transport = None
        self._stop_timer()
        if self._attempt is not None:
            self._attempt.lost = reason
            self._attempt.settled.set()
        else:
            self._stats.disconnects += 1
            self.failover.lost(transport, reason)

    def _do(self, work: Sequence[Outgoing]) -> None:
        transport = self._transport
        if transport is None:
            return
        if work:
            transport.send(work)
        transport.read(self._subscription.reads)
        if (reason := self._subscription.reset) is not None and self._attempt is None:
            logger.info("exchanging the connection: %s", reason)
            self._transport = None
            self._stop_timer()
            self.failover.renew()
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        when = self._subscription.next_timer()
        if when is None:
            return
        # A timer that fires too early does no harm, and moving it with every batch would cost more.
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(max(when, loop.time() + _TICK_SECONDS), self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        transport, now = self._transport, _now()
        if transport is not None and self._subscription.silent(now):
            transport.abort()
            self.lost(transport, f"not heard for {SILENCE_SECONDS:g} s")
            return
        work = self._subscription.tick(now)
        if len(self._subscription):
            self._arrived.set()
        self._do(work)


def _now() -> float:
    return asyncio.get_running_loop().time()
