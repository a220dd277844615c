"""The one reconnecting loop: for every client, and for hubs that dial other hubs.

Strategy: a :class:`DialPlan` decides which host is dialled, how long it has to answer and how long to pause before the
next round; time and randomness are its arguments. :func:`dial_hosts` and :func:`redial` carry it out, and a
:class:`Failover` uses them to keep one connection of a client open.

Invariants of a :class:`Failover`:

- At most one connection exists, and the loss of an earlier one is ignored.
- After :meth:`Failover.close`, or a :meth:`Failover.open` that failed, nothing is left in the event loop.
- The first reason for its end is the one it reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from headrace.config import Address
from headrace.errors import ClosedError, HeadraceError, RefusedError, UnreachableError, UsageError

ATTEMPT_SECONDS: Final = 5.0
"""How long each host has to answer."""

FIRST_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 2.0
"""The first and the longest pause between rounds; each is twice the one before, and randomised by half of itself."""

STEADY_SECONDS: Final = 5.0
"""After a connection that lived this long, pauses start over."""

CLOSE_SECONDS: Final = 10.0
"""Seconds that closing waits for the hub to read what was sent."""

logger = logging.getLogger("headrace.client")

T = TypeVar("T")


class DialPlan:
    """Which of several hosts to dial, for how long, and when again; no socket and no clock."""

    def __init__(
        self,
        hosts: Sequence[Address],
        random: Random,
        *,
        attempt: float = ATTEMPT_SECONDS,
        longest: float = LONGEST_SECONDS,
        no_answer: str = "no answer",
        on_failure: Callable[[UnreachableError], object] | None = None,
    ) -> None:
        self.hosts = list(hosts)
        """The next host to dial comes first: the last one that answered, until it fails."""
        self.attempt = attempt
        self.longest = longest
        self.no_answer = no_answer
        """The reason to report for a host that does not answer in time."""
        self.on_failure = on_failure
        """Called for each host that cannot be reached."""
        self.failures = 0
        """Rounds without an answer and connections that were lost at once, since the last good connection."""
        self._random = random
        self._since = float("-inf")

    def deadline(self, now: float, end: float, left: int) -> float:
        """Share the time until ``end`` among the ``left`` hosts of a round: return the first one's deadline."""
        return now + (end - now) / left

    def failed(self, error: UnreachableError) -> None:
        """Note that the first host cannot be reached, and put it last."""
        if self.on_failure is not None:
            self.on_failure(error)
        self.hosts.append(self.hosts.pop(0))

    def connected(self, now: float) -> None:
        """Note that the first host answered."""
        self._since = now

    def lost(self, now: float) -> None:
        """Note the end of a connection: unless it was steady, the next one is made more slowly."""
        steady = now - self._since >= STEADY_SECONDS
        self.failures = 0 if steady else self.failures + 1

    def pause(self) -> float:
        """Seconds to wait before the next round."""
        if not self.failures:
            return 0.0
        doubled = FIRST_SECONDS * 2.0 ** min(self.failures - 1, 16)
        return min(self.longest, doubled) * self._random.uniform(0.5, 1.5)


async def dial_hosts(
    plan: DialPlan, dial: Callable[[Address], Awaitable[T]], seconds: float | None = None
) -> T:
    """Dial each host once, until one answers; :class:`~headrace.errors.UnreachableError` if none does."""
    loop = asyncio.get_running_loop()
    problems: list[UnreachableError] = []
    end = loop.time() + (plan.attempt * len(plan.hosts) if seconds is None else seconds)
    for left in range(len(plan.hosts), 0, -1):
        address = plan.hosts[0]
        try:
            async with asyncio.timeout_at(plan.deadline(loop.time(), end, left)):
                connection = await dial(address)
        except TimeoutError:
            problem = UnreachableError(str(address), plan.no_answer)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            problem = UnreachableError(str(address), reason_of(error))
        except UnreachableError as error:
            problem = error
        else:
            plan.connected(loop.time())
            return connection
        problems.append(problem)
        plan.failed(problem)
    addresses = ",".join(problem.address for problem in problems)
    raise UnreachableError(addresses, "; ".join(dict.fromkeys(problem.reason for problem in problems)))


async def redial(
    plan: DialPlan,
    dial: Callable[[Address], Awaitable[T]],
    *,
    deadline: float | None = None,
    wanted: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Dial round after round until a host answers.

    No round begins before ``wanted`` returns. If a round fails past ``deadline`` (the event loop's time), raise
    :class:`~headrace.errors.UnreachableError`.
    """
    loop = asyncio.get_running_loop()
    while True:
        if pause := plan.pause():
            await asyncio.sleep(pause)
        if wanted is not None:
            await wanted()
        try:
            return await dial_hosts(plan, dial)
        except UnreachableError as error:
            plan.failures += 1
            logger.debug("no hub yet: %s", error)
            if deadline is not None and loop.time() >= deadline:
                raise


async def keep_dialling(
    plan: DialPlan, dial: Callable[[Address], Awaitable[T]], over: Callable[[T], Awaitable[bool]]
) -> None:
    """Dial forever: again whenever ``over`` returns, which tells whether the connection was useful.

    After a useful connection the pause is the shortest, but there is one: a peer that greets and hangs up must not be
    dialled in a tight loop, nor a restarting one by everybody at once.
    """
    while True:
        connection = await redial(plan, dial)
        useful = await over(connection)
        plan.failures = 1 if useful else plan.failures + 1


class Dialled(Protocol):
    """A connection that a :class:`Failover` keeps."""

    @property
    def ended(self) -> str | None:
        """Why it is over, if it is."""

    async def close(self, deadline: float) -> None:
        """Close in good order, at the latest at the event loop's time ``deadline``."""

    def abort(self) -> None:
        """Close at once."""


S = TypeVar("S", bound=Dialled)


class Failover(Generic[S]):
    """Keeps a connection to one of several hosts; a task runs only while a lost connection is being replaced."""

    def __init__(
        self,
        hosts: Sequence[Address],
        random: Random,
        dial: Callable[[Address], Awaitable[S]],
        *,
        wanted: Callable[[], Awaitable[None]] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """``dial`` connects to a host and performs the handshake.

        It raises ``OSError`` or :class:`~headrace.errors.UnreachableError` if that host cannot serve us now,
        :class:`~headrace.errors.RefusedError` if no host ever will, and leaves nothing open if it fails or is
        cancelled. ``wanted`` returns when a lost connection is to be replaced; without it, that is at once. ``on_end``
        is called when there will be no further connection: see :attr:`over`.
        """
        self.plan = DialPlan(hosts, random)
        self.over: HeadraceError | None = None
        """Why there will be no further connection."""
        self.connects = 0
        """Connections that were made, the first one included."""
        self.disconnects = 0
        """Connections that were lost."""
        self._dial_host = dial
        self._wanted = wanted
        self._on_end = on_end
        self._loop: asyncio.AbstractEventLoop
        self._opened = False
        self.current: S | None = None
        """The connection there is now."""
        self._changed = asyncio.Event()
        self._replacing: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether there is a connection now."""
        return self.current is not None

    async def open(self, seconds: float) -> None:
        """Connect to the first host that answers; each is tried once."""
        if self._opened:
            raise UsageError("a client is opened once: make another one")
        self._opened = True
        self._loop = asyncio.get_running_loop()
        try:
            self._use(await dial_hosts(self.plan, self._dial, seconds))
        except UnreachableError as error:
            hint = f"{error.reason}; is the hub running there? `headrace serve` starts one"
            self.end(hinted := UnreachableError(error.address, hint))
            raise hinted from None
        except BaseException as error:
            self.end(error if isinstance(error, HeadraceError) else ClosedError("the client was not opened"))
            raise

    async def close(self) -> None:
        """Close the connection in good order; calls that wait for one fail."""
        connection, self.current = self.current, None
        replacing, self._replacing = self._replacing, None
        if replacing is not None:
            replacing.cancel()
        self.end(ClosedError("the client is closed"))
        try:
            if connection is not None:
                await connection.close(self._loop.time() + CLOSE_SECONDS)
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

    async def connection(self) -> S:
        """Return the connection, or wait for the next one."""
        self.check()
        while self.current is None:
            self._changed.clear()
            await self._changed.wait()
            self.check()
        return self.current

    def renew(self) -> None:
        """Replace the connection by another one, once it is completely closed."""
        connection, self.current = self.current, None
        if connection is not None:
            self.plan.failures = 0
            self._replacing = self._loop.create_task(self._replace(connection))

    def lost(self, connection: Dialled, reason: str) -> None:
        """Replace a connection that has ended by itself."""
        if connection is not self.current:
            return
        self.current = None
        self.disconnects += 1
        logger.warning("lost the hub at %s: %s", self.plan.hosts[0], reason)
        self.plan.lost(self._loop.time())
        self._replacing = self._loop.create_task(self._replace())

    def end(self, error: HeadraceError) -> None:
        """Stop everything at once."""
        if self.over is None:
            self.over = error
        connection, self.current = self.current, None
        if connection is not None:
            connection.abort()
        if self._replacing is not None and self._replacing is not asyncio.current_task():
            self._replacing.cancel()
        self._changed.set()
        if self._on_end is not None:
            self._on_end()

    async def _dial(self, address: Address) -> S:
        connection = await self._dial_host(address)
        if self.over is not None:
            connection.abort()
            raise self.over
        if connection.ended is not None:
            raise UnreachableError(str(address), connection.ended)
        return connection

    def _use(self, connection: S) -> None:
        self.current = connection
        self.connects += 1
        self._changed.set()

    async def _replace(self, old: S | None = None) -> None:
        if old is not None:
            await old.close(self._loop.time() + CLOSE_SECONDS)
        try:
            self._use(await redial(self.plan, self._dial, wanted=self._wanted))
        except RefusedError as error:
            logger.warning("%s", error)
            self.end(error)
        else:
            logger.info("connected again, to %s", self.plan.hosts[0])


def reason_of(error: Exception | None) -> str:
    """Describe why a connection was not made, or has ended."""
    if error is None:
        return "the hub closed the connection"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    return str(getattr(error, "strerror", None) or error).lower()
