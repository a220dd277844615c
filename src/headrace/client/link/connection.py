"""A client's way to the link: one tube at a time, replaced when it is lost.

A :class:`Connection` gives a :class:`~headrace.client.link.requests.Session` to whoever needs one. If there is none,
hosts are tried in turn, ever more slowly, until one answers or ``patience`` is over. Tubes that are lost as soon as
they are there are replaced ever more slowly too, and a request that has lost several is given up: nothing spins. All
sessions of a client must be with one log: another one's sequence numbers mean something else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from headrace.client.link.requests import LostTubeError, Make, R, Session, check
from headrace.config import Address
from headrace.errors import (
    ClosedError,
    HeadraceError,
    PeerError,
    RefusedError,
    UnexpectedError,
    UnreachableError,
    UsageError,
    WireError,
)
from headrace.tube import TubeOptions, connect
from headrace.wire.link.message import MAX_ANSWER, VERSION, VERSIONS, Body, LinkMessage
from headrace.wire.link.requests import Hello

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

Sign = Callable[[], Mapping[str, Any]]
"""Makes the auth of a hello, anew for each: a token is good once."""


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

    async def call(self, make: Make[R], body: Body | None = None) -> LinkMessage:
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
        options = TubeOptions(max_message=MAX_ANSWER, max_inflated=MAX_ANSWER, compress=False)
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
