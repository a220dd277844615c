"""Connections that this process makes and keeps: to connectors, dispatchers and matchers elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final, TypeVar

from headrace.client.reconnect import DialPlan, keep_dialling
from headrace.client.tls import dial_arguments
from headrace.config import Address
from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import ConnectionGroup

HEARTBEATS: Final = 4
"""Least number of heartbeats within ``limits.idle_seconds``."""

BEAT: Final = 1.0
"""Most seconds between heartbeats, which also carry what peers must know of one another."""

S = TypeVar("S", bound="Dialled[Any]")


class Dialling(ConnectionGroup[S]):
    """Connections to addresses that settings name: to each of them, or to the first that answers."""

    def __init__(
        self, context: DoorContext, name: str, addresses: Sequence[Address], door: str, *, every: bool = True
    ) -> None:
        """``door`` is what is dialled: with TLS, if this hub has TLS there itself."""
        super().__init__(context, name)
        self._tls = context.entrance.tls.dials(door) if addresses else None
        self._lists = [[address] for address in addresses] if every else [list(addresses)]
        self._tasks: list[asyncio.Task[None]] = []

    def connection(self, address: Address) -> S:
        """Make the protocol of a new connection to an address."""
        raise NotImplementedError

    async def open(self) -> None:
        """Dial, and keep dialling."""
        for addresses in self._lists:
            plan = DialPlan(
                addresses,
                Random(),
                attempt=self.settings.limits.handshake_seconds,
                on_failure=lambda _: self.counters.add("dial_failures", door=self.name),
            )
            self._tasks.append(asyncio.ensure_future(keep_dialling(plan, self._dial, _until_over)))

    def stop(self) -> None:
        """Stop dialling."""
        for task in self._tasks:
            task.cancel()
        super().stop()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().close()

    async def _dial(self, address: Address) -> S:
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(
            lambda: self.connection(address), address.host, address.port, **dial_arguments(self._tls, address)
        )
        return stream


async def _until_over(stream: Dialled[Any]) -> bool:
    await stream.over.wait()
    return stream.useful


D = TypeVar("D", bound=Dialling[Any])


class Dialled(DoorConnection[D]):
    """A connection that was dialled. It sends heartbeats; a peer that has answered one must answer them all."""

    answers: bool = False
    """Whether the peer answers heartbeats. In the original protocol it does not, so silence proves nothing."""

    def __init__(self, door: D, decoder: Any) -> None:
        super().__init__(door, decoder)
        self.over = asyncio.Event()
        self.useful = False
        """Whether the connection was of use, so that the next one is dialled soon."""
        self._beaten = 0.0

    def heartbeat(self) -> bytes:
        """Return the bytes of a heartbeat."""
        raise NotImplementedError

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection, and dial again."""
        super().connection_lost(error)
        self.over.set()

    def judge(self, now: float) -> None:
        """Send a heartbeat when it is due; give up a peer that no longer answers."""
        if self.answers:
            self.judge_silence(now, self.limits.idle_seconds)
        if self.admitted and now - self._beaten >= min(self.limits.idle_seconds / HEARTBEATS, BEAT):
            self._beaten = now
            self.send(self.heartbeat())
