"""The connections that a node makes: lasting ones to each configured peer, and short ones.

A short one asks a node that others have named, or is a heartbeat to a neighbour that speaks only the document: a DscReq
without a hello, answered by a DscRes. A configured peer that answers without a hello gets heartbeats of that kind, and
is dialled in earnest again when it is silent, or says hello.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Final

from headrace.client.reconnect import DialPlan, keep_dialling
from headrace.client.tls import RenewedContext, dial_arguments
from headrace.cluster.membership import HEARTBEAT_SECONDS, SILENCE_SECONDS
from headrace.config import Address
from headrace.errors import UnexpectedError
from headrace.net.cluster.parcel_door import ParcelHost, ParcelStream
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import ConnectionGroup
from headrace.wire.parcel import stream as wire
from headrace.wire.parcel.body import Body, DscReq, DscRes, Mode, NodeInfo, Ping, SeqReq, SeqRes, StateChange
from headrace.wire.parcel.stream import Parcel

MAX_ASKED: Final = 4
"""Named nodes that are asked for their identity at a time."""

_LONGEST_SECONDS: Final = 1.0
"""A peer that is down is dialled at least this often, so that it is met soon after it is back."""


class DialledStream(ParcelStream):
    """A connection to a peer; if only its identity is ``asked`` for, it ends with the answer.

    As a ``heartbeat`` it speaks only the document.
    """

    dialled = True

    def __init__(
        self, door: PeerConnections, address: Address, *, asked: bool = False, heartbeat: bool = False
    ) -> None:
        super().__init__(door)
        self.address = address
        self.over = asyncio.Event()
        self._only_asked = asked
        self._heartbeat = heartbeat
        self._recovering = False

    def opened(self) -> None:
        """Introduce this node."""
        super().opened()
        me = self.host.membership.me
        body = DscReq(me)
        self._exchange.sent(body)
        self.send(wire.serialize(Parcel(me.id, body)) if self._heartbeat else self._tags.greet(me.id, body))

    def beat(self) -> None:
        """Send a heartbeat, ask how far the peer is, and tell how this node is."""
        self.post(Ping())
        if not self._recovering:
            self._recovering = self.post(SeqReq())
        # After SeqReq, which makes the peer believe that this node works.
        self.post(StateChange(self.host.membership.mode))

    def connection_lost(self, error: Exception | None) -> None:
        """Let the address be dialled again."""
        super().connection_lost(error)
        self.over.set()

    def waits_for(self, body: Body) -> bool:
        """Whether an answer of this kind was asked for."""
        return isinstance(body, SeqRes) and self._recovering

    def answered(self, parcel: Parcel, now: float) -> None:
        """Take an answer."""
        match parcel.body:
            case DscRes() as answer:
                self._met(parcel.id, answer, now)
            case SeqRes(seq):
                self._recovering = False
                self.host.is_at(parcel.id, seq)
            case _:
                super().answered(parcel, now)

    def note_refusal(self, reason: str, detail: object) -> None:
        """Count a refusal; of a configured peer, log it only if it is not the same as at the last attempt."""
        if self._only_asked or self.door.refusals.get(self.address) != str(detail):
            super().note_refusal(reason, detail)
        else:
            self.counters.add("refused", door=self.door.name, reason=reason)
        if not self._only_asked:
            self.door.refusals[self.address] = str(detail)

    def judge(self, now: float) -> None:
        """Give up a peer that is silent."""
        if self.peer is None and now - self.since > SILENCE_SECONDS:
            self.refuse("idle", f"no DscRes within {SILENCE_SECONDS:g} s")
        elif self.peer is not None:
            super().judge(now)

    def _met(self, sender: int, answer: DscRes, now: float) -> None:
        greeted = self._tags.greeted
        if not greeted:
            answer = self._with_responder(sender, answer)
        if not answer.neighbours or answer.neighbours[0].id != sender:
            raise UnexpectedError("parcel", "neighbours", sender, "the responder first")
        responder = answer.neighbours[0]
        self.check_certificate(responder)
        self._obey(self.host.membership.answered(str(self.address), answer, now, hello=greeted))
        if not self.admitted:
            return
        self.door.refusals.pop(self.address, None)
        if self._only_asked or not greeted:
            self.close()
            return
        # The peer has shown its identity: batches may come from it now.
        self._parcels.max_bulk = wire.MAX_BULK
        self.peer = responder
        self.name = f"{responder.name} ({self.address})"
        self.host.joined(self, responder)

    def _with_responder(self, sender: int, answer: DscRes) -> DscRes:
        """Put the responder first: the document asks for its neighbours, and not for itself."""
        known = self.host.membership.document_node_at(str(self.address))
        listed = next((node for node in answer.neighbours if node.id == sender), None)
        if known is not None and known.id == sender:
            responder = known if listed is None else replace(known, mode=listed.mode)
        else:
            responder = listed or NodeInfo(sender, Mode.WRK, str(self.address), str(self.address))
        return DscRes((responder, *(node for node in answer.neighbours if node.id != sender)))


class PeerConnections(ConnectionGroup[DialledStream]):
    """The connections to the configured peers, made again when lost."""

    def __init__(self, context: DoorContext, host: ParcelHost, tls: RenewedContext | None = None) -> None:
        super().__init__(context, "parcel")
        self.host = host
        self._tls = tls
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._beating: dict[Address, asyncio.Task[None]] = {}
        """Heartbeats that are not answered yet."""
        self.refusals: dict[Address, str] = {}
        """Why each configured peer was refused when it was last dialled; none once it is met."""

    def dial(self, address: Address) -> None:
        """Keep a connection to a peer."""
        if address not in self._tasks:
            plan = DialPlan(
                [address],
                Random(),
                attempt=SILENCE_SECONDS,
                longest=_LONGEST_SECONDS,
                on_failure=lambda _: self.counters.add("dial_failures", door=self.name),
            )
            self._tasks[address] = asyncio.ensure_future(keep_dialling(plan, self._dial, self._until_over))

    def ask(self, address: Address, heartbeat: bool) -> None:
        """Ask a node for its identity, once: one that others have named, or a neighbour as a ``heartbeat``."""
        if heartbeat and address not in self._beating:
            self._beating[address] = asyncio.ensure_future(self._ask(address, heartbeat=True))
            self._beating[address].add_done_callback(lambda _: self._beating.pop(address))
        elif not heartbeat and address not in self._tasks and len(self._asking) < MAX_ASKED:
            task = asyncio.ensure_future(self._ask(address))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def stop(self) -> None:
        """Dial no more; open connections stay until the end."""
        for task in (*self._tasks.values(), *self._asking, *self._beating.values()):
            task.cancel()

    async def close(self) -> None:
        """Send what is buffered and close every connection."""
        tasks = (*self._tasks.values(), *self._asking, *self._beating.values())
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    async def _ask(self, address: Address, *, heartbeat: bool = False) -> None:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                stream = await self._dial(address, asked=True, heartbeat=heartbeat)
        except (OSError, UnicodeError):  # UnicodeError: a name that no host can have
            self.counters.add("dial_failures", door=self.name)
        else:
            await stream.over.wait()

    async def _dial(self, address: Address, *, asked: bool = False, heartbeat: bool = False) -> DialledStream:
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: DialledStream(self, address, asked=asked, heartbeat=heartbeat),
            address.host,
            address.port,
            **dial_arguments(self._tls, address),
        )
        return stream

    async def _until_over(self, stream: DialledStream) -> bool:
        await stream.over.wait()
        while self.host.membership.document_node_at(str(stream.address)) is not None:  # noqa: ASYNC110
            await asyncio.sleep(HEARTBEAT_SECONDS)
        return stream.peer is not None
