"""Connections that this process makes, and makes again: to connectors, dispatchers and matchers elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from headrace.config import Address
from headrace.net.server.connection import ConnectionGroup, DoorConnection
from headrace.net.server.door import DoorContext

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between tries, doubled each time and spread at random, so that a restarted peer is not met by all at once."""

HEARTBEATS: Final = 4
"""Heartbeats within ``limits.idle_seconds``, at least."""

BEAT: Final = 1.0
"""Seconds between heartbeats, at most: they also carry what peers must learn of one another."""

logger = logging.getLogger("headrace")

S = TypeVar("S", bound="Dialled[Any]")


class Dialling(ConnectionGroup[S]):
    """Connections to addresses that settings name: to each of them, or to the first that answers."""

    def __init__(
        self, context: DoorContext, name: str, addresses: Sequence[Address], *, every: bool = True
    ) -> None:
        super().__init__(context, name)
        self._lists = [[address] for address in addresses] if every else [list(addresses)]
        self._tasks: list[asyncio.Task[None]] = []

    def connection(self) -> S:
        """The protocol of a new connection."""
        raise NotImplementedError

    async def open(self) -> None:
        """Dial, and go on dialling."""
        for addresses in self._lists:
            self._tasks.append(asyncio.ensure_future(self._keep_dialling(addresses)))

    def stop(self) -> None:
        """Dial no more."""
        for task in self._tasks:
            task.cancel()
        super().stop()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().close()

    async def _keep_dialling(self, addresses: Sequence[Address]) -> None:
        pause = FIRST_PAUSE
        while True:
            stream = await self._dial(addresses)
            if stream is not None:
                await stream.over.wait()
                if stream.useful:
                    pause = FIRST_PAUSE
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _dial(self, addresses: Sequence[Address]) -> S | None:
        loop = asyncio.get_running_loop()
        for address in addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self.settings.limits.handshake_seconds):
                    _, stream = await loop.create_connection(self.connection, address.host, address.port)
                return stream
            self.counters.add("dial_failures", door=self.name)
        return None


D = TypeVar("D", bound=Dialling[Any])


class Dialled(DoorConnection[D]):
    """A connection that was dialled. It sends heartbeats, and expects to hear something in return."""

    def __init__(self, door: D, decoder: Any) -> None:
        super().__init__(door, decoder)
        self.over = asyncio.Event()
        self.useful = False
        """Whether something came of it: then the next try need not wait long."""
        self._beaten = 0.0

    def heartbeat(self) -> bytes:
        """What tells the peer that we live."""
        raise NotImplementedError

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection, and dial again."""
        super().connection_lost(error)
        self.over.set()

    def judge(self, now: float) -> None:
        """Tell that we live; give a peer up that does not."""
        self.judge_silence(now)
        if self.admitted and now - self._beaten >= min(self.limits.idle_seconds / HEARTBEATS, BEAT):
            self._beaten = now
            self.send(self.heartbeat())
