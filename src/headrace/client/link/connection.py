"""A client's connection to the link: one tube at a time, replaced when it is lost.

A :class:`LinkConnection` gives a :class:`~headrace.client.link.requests.LinkSession` to each request. If there is none,
the reconnecting loop dials until ``patience`` is over. A request that has lost several tubes is given up. All sessions
of a client must be with one log: sequence numbers mean nothing in another.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from headrace.client.link.requests import LinkSession, LostTubeError, Make, R, check
from headrace.client.reconnect import ATTEMPT_SECONDS, DialPlan, dial_hosts, redial
from headrace.client.tls import RenewedContext, explain
from headrace.config import Address
from headrace.errors import (
    ClosedError,
    HeadraceError,
    RefusedError,
    UnexpectedError,
    UnreachableError,
    UsageError,
    WireError,
)
from headrace.tube import TubeOptions, connect
from headrace.wire.link.message import MAX_ANSWER, VERSION, VERSIONS, Body, LinkMessage
from headrace.wire.link.requests import HelloRequest

_HOST_SECONDS: Final = 1.0
"""The least time that a host has to answer."""
_MOST_LOST: Final = 10
"""Tubes that one request may lose: a request that breaks each of them would break the next too."""
_REFUSED: Final = "nobody listens there; is the hub running? `headrace serve` starts one"
_NO_LINK: Final = (
    "what answers there is not the link: that is the door listen.tube_tcp, by default on port 8081,"
    " and tube+tls:// where the hub has tls.cert"
)
_NO_ANSWER: Final = f"no answer in time: the hub hangs, or {_NO_LINK}"
_IDLE_SECONDS: Final = 2.0
_PONG_SECONDS: Final = 3.0

Sign = Callable[[str | None], Mapping[str, Any]]
"""Makes the ``auth`` of a hello: it signs the hub's challenge, or asks for one."""


class LinkDialer:
    """Opens tubes to hubs, and says hello."""

    def __init__(
        self,
        hosts: Sequence[Address],
        name: str,
        sign: Sign | None,
        scheme: str = "tube",
        tls: RenewedContext | None = None,
    ) -> None:
        """``scheme`` is ``tube`` or ``ws``; with ``tls`` they are ``tube+tls`` and ``wss``."""
        self._name = name
        self._tls = tls
        self._sign = sign
        self._scheme = scheme if tls is None else {"tube": "tube+tls", "ws": "wss"}[scheme]
        self._options = TubeOptions(max_message=MAX_ANSWER, max_inflated=MAX_ANSWER, compress=False)
        if len(hosts) > 1:
            # Where there is another host to go to, one that hangs is not waited for as long.
            self._options = replace(self._options, idle_seconds=_IDLE_SECONDS, pong_seconds=_PONG_SECONDS)

    async def dial(self, address: Address) -> LinkSession:
        """Connect to a host; :class:`~headrace.errors.UnreachableError` if it cannot serve us now."""
        try:
            context = None if self._tls is None else self._tls.current()
            tube = await connect(f"{self._scheme}://{address}", options=self._options, tls=context)
        except WireError as error:
            raise UnreachableError(str(address), f"{_NO_LINK} ({error})") from None
        except UnreachableError as error:
            handshake = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)
            if self._tls is not None and isinstance(error.__cause__, handshake):
                raise UnreachableError(str(address), explain(error.__cause__, address.host)) from None
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            reason = _REFUSED if refused else error.reason
            if self._tls is None and error.__cause__ is None and "before the tube was open" in reason:
                reason = f"{reason}: {_NO_LINK}"
            raise UnreachableError(str(address), reason) from None
        session = LinkSession(tube)
        try:
            tube.attach(session)
            await self._greet(session)
        except LostTubeError as lost:
            tube.abort()
            reason = f"the connection was lost at once: either the hub is stopping, or {_NO_LINK}"
            if str(lost):
                reason = f"it takes no clients now: {lost}"
            raise UnreachableError(str(address), reason) from None
        except BaseException:
            tube.abort()
            raise
        return session

    async def _greet(self, session: LinkSession) -> None:
        hello = await self._say_hello(session, None)
        challenge = hello.head.get("challenge")
        if self._sign is not None and isinstance(challenge, str) and "error" not in hello.head:
            hello = await self._say_hello(session, challenge)
        if self._sign is None and hello.head.get("error") == "auth":
            raise RefusedError("auth", "the hub serves only clients it knows: give a client id and its key")
        check(hello)
        if (version := hello.head.get("version")) not in VERSIONS:
            spoken = ", ".join(map(str, VERSIONS))
            raise UnexpectedError("link", "version", version, f"this client speaks {spoken}")
        session.hub = hello.head
        session.log = str(hello.head.get("log"))
        position = hello.head.get("op")
        session.position = position if type(position) is int else 0

    async def _say_hello(self, session: LinkSession, challenge: str | None) -> LinkMessage:
        auth = None if self._sign is None else dict(self._sign(challenge))
        return await session.call(lambda n: HelloRequest(id=n, version=VERSION, name=self._name, auth=auth))


class LinkConnection:
    """Sessions with one of several hubs that have the same log."""

    def __init__(
        self,
        hosts: Sequence[Address],
        name: str,
        sign: Sign | None,
        patience: float,
        random: Random,
        scheme: str = "tube",
        tls: RenewedContext | None = None,
    ) -> None:
        self.log: str | None = None
        """The uuid of the log; ``None`` before the first connection."""
        self.connects = 0
        """Tubes that were opened, the first one included."""
        self.plan = link_plan(hosts, random)
        self._dialer = LinkDialer(hosts, name, sign, scheme, tls)
        self._patience = patience
        self._session: LinkSession | None = None
        self._connecting: asyncio.Task[LinkSession] | None = None
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
            self._use(await dial_hosts(self.plan, self._dial, seconds))
        except HeadraceError as error:
            self._ended = error
            raise

    async def close(self) -> None:
        """Close the tube; calls that wait for one fail."""
        self._ended = self._ended or ClosedError("the client is closed")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._session is not None:
            await self._session.tube.close()

    def check(self) -> None:
        """Raise unless the client is open."""
        if self._ended is not None:
            raise self._ended
        if not self._opened:
            raise UsageError("the client is not open: write `async with headrace.connect(…) as …`")

    async def session(self) -> LinkSession:
        """Return the session, or wait for the next one."""
        self.check()
        if self._session is not None and not self._session.lost:
            return self._session
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._reconnect())
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            # If the client was closed, raise that instead of the cancellation.
            self.check()
            raise

    async def call(self, make: Make[R], body: Body | None = None) -> LinkMessage:
        """Make a request that may be repeated; raise a refusal."""
        for _ in range(_MOST_LOST):
            session = await self.session()
            try:
                message = await session.call(make, body)
                check(message)
            except LostTubeError:
                continue
            return message
        reason = f"the connection was lost {_MOST_LOST} times over one request"
        raise UnreachableError(",".join(map(str, self.plan.hosts)), reason)

    async def _reconnect(self) -> LinkSession:
        loop = asyncio.get_running_loop()
        if self._session is not None:
            self._session = None
            self.plan.lost(loop.time())
        try:
            session = await redial(self.plan, self._dial, deadline=loop.time() + self._patience)
        except UnreachableError as error:
            # The next request dials at once: its patience must not go into the pauses of this one.
            self.plan.failures = 0
            raise UnreachableError(error.address, f"no hub answers for {self._patience:g} s") from error
        except UnexpectedError as error:
            self._ended = error
            raise
        self._use(session)
        return session

    async def _dial(self, address: Address) -> LinkSession:
        session = await self._dialer.dial(address)
        if self.log is None:
            self.log = session.log
        elif session.log != self.log:
            session.tube.abort()
            reason = f"the hub at {address} must have the log {self.log}"
            raise UnexpectedError("link", "log", session.log, reason)
        return session

    def _use(self, session: LinkSession) -> None:
        self._session = session
        self.connects += 1


def link_plan(hosts: Sequence[Address], random: Random) -> DialPlan:
    """Plan the dialling of the link's door: hosts share the time, so that one that hangs delays the others little."""
    attempt = max(ATTEMPT_SECONDS / len(hosts), _HOST_SECONDS)
    return DialPlan(hosts, random, attempt=attempt, no_answer=_NO_ANSWER)
