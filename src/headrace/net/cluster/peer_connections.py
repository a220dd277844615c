"""The connections that a node makes to others: to each configured peer, kept up, and once to those that others name."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Final

from headrace.cluster.membership import SILENCE_SECONDS
from headrace.config import Address
from headrace.errors import UnexpectedError
from headrace.net.cluster.parcel_door import Circle, ParcelStream
from headrace.net.server.connection import TLS_SHUTDOWN_SECONDS, ConnectionGroup
from headrace.net.server.door import DoorContext
from headrace.wire.parcel import stream as wire
from headrace.wire.parcel.body import Body, DscReq, DscRes, Ping, SeqReq, SeqRes, StateChange
from headrace.wire.parcel.stream import Parcel

MAX_ASKED: Final = 4
"""Nodes that are being asked at a time because others have named them."""

_RETRY_SECONDS: Final = 0.1
_RETRY_MOST_SECONDS: Final = 1.0
"""A peer that is down is tried at least this often: it must be met soon after it is back."""


class DialledStream(ParcelStream):
    """A connection to a peer; one that is ``asked`` only who it is ends with its answer."""

    dialled = True

    def __init__(self, door: Peers, address: Address, *, asked: bool = False) -> None:
        super().__init__(door)
        self.address = address
        self.over = asyncio.Event()
        self._only_asked = asked
        self._recovering = False

    def opened(self) -> None:
        """Introduce this node."""
        super().opened()
        me = self.circle.membership.me
        body = DscReq(me)
        self._exchange.sent(body)
        self.send(self._seal.greet(me.id, body))

    def beat(self) -> None:
        """Send a heartbeat, ask how far the peer is, and tell how this node is."""
        self.post(Ping())
        if not self._recovering:
            self._recovering = self.post(SeqReq())
        # Behind SeqReq, which makes the other one believe that this node works.
        self.post(StateChange(self.circle.membership.mode))

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection, and dial again."""
        super().connection_lost(error)
        self.over.set()

    def waits_for(self, body: Body) -> bool:
        """Whether an answer of this kind was asked for."""
        return isinstance(body, SeqRes) and self._recovering

    def answered(self, parcel: Parcel, now: float) -> None:
        """An answer came."""
        match parcel.body:
            case DscRes() as answer:
                self._met(parcel.id, answer, now)
            case SeqRes(seq):
                self._recovering = False
                self.circle.is_at(parcel.id, seq)
            case _:
                super().answered(parcel, now)

    def judge(self, now: float) -> None:
        """Give up a peer that is silent."""
        if self.peer is None and now - self.since > SILENCE_SECONDS:
            self.refuse("idle", f"no DscRes within {SILENCE_SECONDS:g} s")
        elif self.peer is not None:
            super().judge(now)

    def _met(self, sender: int, answer: DscRes, now: float) -> None:
        if not answer.neighbours or answer.neighbours[0].id != sender:
            raise UnexpectedError("parcel", "neighbours", sender, "the responder first")
        responder = answer.neighbours[0]
        greeted = self._seal.greeted
        if not greeted and not self._only_asked:
            self.refuse("identity", f"{responder.name} is no node of a cluster")
            return
        self._obey(self.circle.membership.answered(str(self.address), answer, now, hello=greeted))
        if not self.admitted:
            return
        if self._only_asked:
            self.close()
            return
        # Who listens there has shown who it is: batches may come from it now.
        self._parcels.max_bulk = wire.MAX_BULK
        self.peer = responder
        self.name = f"{responder.name} ({self.address})"
        self.circle.joined(self, responder)


class Peers(ConnectionGroup[DialledStream]):
    """The connections to the configured peers, made again whenever one is lost."""

    def __init__(self, context: DoorContext, circle: Circle, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(context, "parcel")
        self.circle = circle
        self._tls = tls
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def dial(self, address: Address) -> None:
        """Keep a connection to a peer."""
        if address not in self._tasks:
            self._tasks[address] = asyncio.ensure_future(self._keep_dialling(address))

    def ask(self, address: Address) -> None:
        """Ask a node that others know who it is, once."""
        if address not in self._tasks and len(self._asking) < MAX_ASKED:
            task = asyncio.ensure_future(self._ask(address))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def stop(self) -> None:
        """Dial nobody any more; what there is stays until the end."""
        for task in (*self._tasks.values(), *self._asking):
            task.cancel()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        await asyncio.gather(*self._tasks.values(), *self._asking, return_exceptions=True)
        await super().close()

    async def _keep_dialling(self, address: Address) -> None:
        pause = _RETRY_SECONDS
        while True:
            stream = await self._try(address)
            if stream is not None:
                await stream.over.wait()
                if stream.peer is not None:
                    pause = _RETRY_SECONDS
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _RETRY_MOST_SECONDS)

    async def _ask(self, address: Address) -> None:
        stream = await self._try(address, asked=True)
        if stream is not None:
            await stream.over.wait()

    async def _try(self, address: Address, *, asked: bool = False) -> DialledStream | None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                _, stream = await loop.create_connection(
                    lambda: DialledStream(self, address, asked=asked),
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=None if self._tls is None else address.host,
                    ssl_shutdown_timeout=None if self._tls is None else TLS_SHUTDOWN_SECONDS,
                )
        except (OSError, UnicodeError, TimeoutError):  # UnicodeError: a name that no host can have
            self.counters.add("dial_failures", door=self.name)
            return None
        return stream
