"""The ``parcel`` door and the connections to other nodes: the document's own framing, both ends.

Whoever connects is answered as the document says: DscReq by DscRes, SeqReq by SeqRes, a heartbeat by another. A node
of this cluster introduces itself with a hello behind its DscReq (:mod:`~headrace.net.parcel_seal`); from it alone
anything else is taken, and handed to the :class:`Circle` that this node belongs to.

Each node dials each configured peer and speaks to it on that connection; what the peer says of its own accord comes
on the one that it dialled. So one that can be heard but not reached, or the other way round, is just that. Answers go
back on the connection they were asked on.

Bounded: strangers may send 64 bytes behind a parcel, nodes of the cluster one batch; a stranger that is silent for
``limits.idle_seconds``, or says nothing for ``limits.handshake_seconds`` at first, is cut off; what a peer does not
take within :data:`MAX_QUEUED` is not sent to it, and it fetches what it misses when it can.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final, Protocol

from headrace.cluster.membership import SILENCE_SECONDS, Answer, Effect, Membership, Refuse
from headrace.config import Address
from headrace.errors import UnexpectedError, WireError
from headrace.net.door import House
from headrace.net.parcel_seal import Seal
from headrace.net.streams import BACKLOG, Stream, StreamDoor, Streams
from headrace.wire import parcel as wire
from headrace.wire.parcel import Exchange, Parcel, ParcelDecoder
from headrace.wire.parcel_body import (
    Body,
    DscReq,
    DscRes,
    Fault,
    NodeInfo,
    Ping,
    Pong,
    ProtoError,
    SeqReq,
    SeqRes,
    StateChange,
)

logger = logging.getLogger("headrace")

MAX_QUEUED: Final = 32 << 20
"""Bytes that wait for one peer; beyond that, parcels to it are dropped until it has taken some."""

MAX_ASKED: Final = 4
"""Nodes that are being asked at a time because others have named them."""

_TOGETHER: Final = 16 << 10
"""Bulk that is copied behind its parcel, so that both go together."""

_RETRY_SECONDS: Final = 0.1
_RETRY_MOST_SECONDS: Final = 1.0
"""A peer that is down is tried at least this often: it must be met soon after it is back."""


class Circle(Protocol):
    """What connections want of the cluster that their node belongs to, or of a lone node."""

    membership: Membership

    @property
    def seq(self) -> int:
        """This node's sequence number."""

    def obey(self, effects: Sequence[Effect]) -> None:
        """Do what the membership wants done, but for what concerns the stream at hand."""

    def take(self, stream: ParcelStream, parcel: Parcel) -> None:
        """Something beyond the document came from a node of the cluster."""

    def joined(self, stream: DialledStream, info: NodeInfo) -> None:
        """Somebody has answered at an address that this node dialled."""

    def is_at(self, node: int, seq: int) -> None:
        """A node has told its sequence number."""

    def tick(self, now: float) -> None:
        """Some time has passed."""

    def left(self, stream: ParcelStream) -> None:
        """A connection is over."""


class ParcelStream(Stream[Any]):
    """One connection, whoever opened it."""

    dialled = False

    def __init__(self, door: Any) -> None:
        self._parcels = ParcelDecoder(max_bulk=wire.MAX_TAG)
        super().__init__(door, self._parcels)
        self.circle: Circle = door.circle
        self.peer: NodeInfo | None = None
        """Who it is, once it has said so."""
        cluster = door.settings.cluster
        self._seal = Seal(cluster.name, cluster.key.reveal(), dialled=self.dialled)
        self._exchange = Exchange(wire.DIALLER if self.dialled else wire.LISTENER)

    def must_wait(self) -> bool:
        """What nodes agree on never waits for publishers."""
        return False

    def pause_writing(self) -> None:
        """What is posted is judged one by one."""

    def resume_writing(self) -> None:
        """The peer has taken most of it."""

    def opened(self) -> None:
        """Let small parcels go at once."""
        transport_socket = self._transport.get_extra_info("socket")
        transport_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, body: Body, bulk: bytes = b"", *, certain: bool = False) -> bool:
        """Send a parcel, unless too much waits already; ``certain`` ones are bounded by whoever sends them."""
        head = self.head_of(body, bulk)
        return head is not None and self.post_as(head, body, bulk, certain=certain)

    def head_of(self, body: Body, bulk: bytes) -> bytes | None:
        """A parcel's own bytes, for this and other connections to nodes; ``None`` if it cannot be sent."""
        try:
            return self._seal.head(self.circle.membership.me.id, body, bulk)
        except WireError as error:
            logger.error("a %s cannot be sent: %s", type(body).__name__, error)
            self.counters.add("parcels_dropped")
            return None

    def post_as(self, head: bytes, body: Body, bulk: bytes, *, certain: bool = False) -> bool:
        """Send a parcel whose own bytes are made."""
        if not self.admitted or (not certain and self.buffered > MAX_QUEUED):
            self.counters.add("parcels_dropped")
            return False
        try:
            self._exchange.sent(body)
        except WireError as error:
            logger.error("a %s cannot be sent: %s", type(body).__name__, error)
            self.counters.add("parcels_dropped")
            return False
        pieces = self._seal.seal(head, bulk)
        if len(bulk) <= _TOGETHER:
            # One write is one packet, and wakes the peer once.
            self.send(b"".join(pieces))
        else:
            for piece in pieces:
                self.send(piece)
        return True

    def refuse(self, reason: str, detail: object) -> None:
        """Count why, say so, and close."""
        self.counters.refuse(self.door.name, reason, self.name, detail)
        if self.admitted and reason not in ("slow", "connections"):
            fault = Fault.BAD_RES if self.dialled else Fault.BAD_REQ
            self.send(wire.serialize(wire.refusal(self.circle.membership.me.id, fault, str(detail))))
            self.close()
        else:
            self.abort()

    def closed(self) -> None:
        """The connection is over."""
        self.circle.left(self)

    def take(self, frame: Parcel) -> None:
        """Act on a parcel."""
        if isinstance(frame.body, ProtoError):
            said = f"{frame.body.error.value}: {frame.body.reason}"
            self.counters.refuse(self.door.name, "refused_by_peer", self.name, said)
            self.abort()
            return
        self._exchange.received(frame.body)
        hello = isinstance(frame.body, DscReq | DscRes) and not self._seal.greeted
        parcel = self._seal.open(frame, hello=hello)
        now = self.loop.time()
        membership = self.circle.membership
        if self.peer is not None and self._seal.greeted and parcel.id != self.peer.id:
            raise UnexpectedError("parcel", "id", parcel.id, f"{self.peer.id}, as it introduced itself")
        why = membership.refusal(parcel.id, parcel.body)
        if why is not None and self._seal.greeted and len(membership.members) < membership.size - 1:
            return  # Who is of the cluster is not known yet: what matters is sent again.
        if why is not None and not self.waits_for(parcel.body):
            raise UnexpectedError("parcel", "parcel_type", parcel.parcel_type, why)
        self.circle.obey(membership.heard(parcel.id, now))
        match parcel.body:
            case DscReq(identity):
                self._introduced(parcel.id, identity, now)
            case SeqReq():
                self._obey(membership.sequence_asked(parcel.id, self.circle.seq, now))
            case Ping():
                self.post(Pong())
            case Pong():
                pass
            case StateChange(mode):
                membership.state_change(parcel.id, mode)
            case _:
                self.answered(parcel, now)

    def waits_for(self, _body: Body) -> bool:
        """Whether an answer of this kind was asked for."""
        return False

    def answered(self, parcel: Parcel, _now: float) -> None:
        """Anything else came."""
        if not self._seal.greeted:
            raise UnexpectedError(
                "parcel", "parcel_type", parcel.parcel_type, "only nodes of the cluster may send it"
            )
        self.circle.take(self, parcel)

    def _introduced(self, sender: int, identity: NodeInfo, now: float) -> None:
        """ "The DscReq contains the sender's information." Whoever asks with a new one is that from now on."""
        if sender != identity.id:
            raise UnexpectedError("parcel", "id", sender, f"{identity.id}, as in its identity")
        membership = self.circle.membership
        if identity.id in membership.members and not self._seal.greeted:
            self.refuse("identity", f"id {identity.id} belongs to a node of the cluster")
            return
        self.peer = identity
        self.name = f"{identity.name} ({self._address})"
        if self._seal.greeted:
            self._parcels.max_bulk = wire.MAX_BULK
        self._obey(membership.asked(identity, now, tag=self._seal.hello if self._seal.greeted else 0))

    def _obey(self, effects: Sequence[Effect]) -> None:
        """Do what concerns this stream, and leave the rest to the circle."""
        for effect in effects:
            match effect:
                case Answer(parcel):
                    if isinstance(parcel.body, DscRes) and self._seal.greeted:
                        self._exchange.sent(parcel.body)
                        self.send(self._seal.greet(parcel.id, parcel.body))
                    else:
                        self.post(parcel.body)
                case Refuse(_, reason):
                    self.refuse("identity", reason)
                    return
                case _:
                    self.circle.obey([effect])

    def judge(self, now: float) -> None:
        """Cut off whoever is silent."""
        limits = self.limits
        patience = (
            limits.handshake_seconds
            if self.peer is None and self.heard == self.since
            else limits.idle_seconds
        )
        if self._seal.greeted:
            patience = SILENCE_SECONDS
        if now - self.heard > patience:
            self.refuse("idle", f"not heard of for {patience:g} s")


class DialledStream(ParcelStream):
    """A connection to a peer; one that is ``asked`` only who it is ends with its answer."""

    dialled = True

    def __init__(self, door: Peers, address: Address, *, asked: bool = False) -> None:
        super().__init__(door)
        self.address = address
        self.over = asyncio.Event()
        self._only_asked = asked
        self._recovering = False
        self._parcels.max_bulk = wire.MAX_BULK

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
        if not self._seal.greeted and not self._only_asked:
            self.refuse("identity", f"{responder.name} is no node of a cluster")
            return
        self._obey(self.circle.membership.answered(str(self.address), answer, now))
        if not self.admitted:
            return
        if self._only_asked:
            self.close()
            return
        self.peer = responder
        self.name = f"{responder.name} ({self.address})"
        self.circle.joined(self, responder)


class ParcelDoor(StreamDoor[ParcelStream]):
    """Where other nodes, and whoever speaks the document, connect."""

    def __init__(
        self, house: House, circle: Circle, listening: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(house, "parcel", listening)
        self.circle = circle
        self._tls = tls

    def connection(self) -> ParcelStream:
        """A new connection."""
        return ParcelStream(self)

    async def open(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self.connection, sock=self._listening, backlog=BACKLOG, ssl=self._tls
        )

    def tick(self, now: float) -> None:
        """Judge every connection's deadlines, and who has fallen silent."""
        super().tick(now)
        self.circle.tick(now)

    def stop(self) -> None:
        """Accept nothing more; nodes go on hearing one another until the end."""
        if self._server is not None:
            self._server.close()


class Peers(Streams[DialledStream]):
    """The connections to the configured peers, made again whenever one is lost."""

    def __init__(self, house: House, circle: Circle, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(house, "parcel")
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
                    server_hostname=address.host if self._tls is not None else None,
                )
        except (OSError, TimeoutError):
            self.counters.add("dial_failures", door=self.name)
            return None
        return stream
