"""The ``parcel`` door, and what the connections between nodes have in common: the document's own framing, both ends.

Whoever connects is answered as the document says: DscReq by DscRes, SeqReq by SeqRes, a heartbeat by another. A node
of this cluster introduces itself with a hello behind its DscReq (:mod:`~headrace.net.cluster.parcel_authentication`);
from it alone anything else is taken, and handed to the :class:`Circle` that this node belongs to.

Who says no hello speaks for nobody who did: what it sends under a node's id is no sign of that node's life. With a key,
a hello shows that its sender knew the key once; that it is there is shown by the next parcel, which is under a key that
the connection alone has. Only then it counts.

Each node dials each configured peer (:mod:`~headrace.net.cluster.peer_connections`) and speaks to it on that
connection; what the peer says of its own accord comes on the one that it dialled. So one that can be heard but not
reached, or the other way round, is just that. Answers go back on the connection they were asked on.

Bounded: strangers may send 64 bytes behind a parcel, nodes of the cluster one batch; a stranger that is silent for
``limits.idle_seconds``, or says nothing for ``limits.handshake_seconds`` at first, is cut off, and it is not read from
while ``limits.queue_bytes`` of answers wait for it; what a node does not take within :data:`MAX_QUEUED` is not sent to
it, and it fetches what it misses when it can.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.cluster.membership import SILENCE_SECONDS, Answer, Effect, Membership, Refuse
from headrace.errors import UnexpectedError, WireError
from headrace.net.cluster.parcel_authentication import Seal
from headrace.net.server.connection import DoorConnection, TcpDoor
from headrace.net.server.door import DoorContext
from headrace.wire.parcel import stream as wire
from headrace.wire.parcel.body import (
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
from headrace.wire.parcel.stream import Exchange, Parcel, ParcelDecoder

if TYPE_CHECKING:
    from headrace.net.cluster.peer_connections import DialledStream

logger = logging.getLogger("headrace")

MAX_QUEUED: Final = 32 << 20
"""Bytes that wait for one peer; beyond that, parcels to it are dropped until it has taken some."""

_TOGETHER: Final = 16 << 10
"""Bulk that is copied behind its parcel, so that both go together."""


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


class ParcelStream(DoorConnection[Any]):
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
        self._unproven: NodeInfo | None = None
        """Who it says it is, until something comes that only such a one can send."""

    def must_wait(self) -> bool:
        """What nodes agree on never waits for publishers; a stranger waits until it has taken its answers."""
        return self._full

    def pause_writing(self) -> None:
        """What is posted to a node is judged one by one."""
        if not self._seal.greeted:
            super().pause_writing()

    def resume_writing(self) -> None:
        """The peer has taken most of it."""
        if self._full:
            super().resume_writing()

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
            why = str(detail)
            if isinstance(detail, WireError) and isinstance(detail.value, bytes):
                # The peer knows the bytes that it sent: the room is for what is wrong with them.
                why = f"{detail.field}: {detail.limit}"
            self.send(wire.serialize(wire.refusal(self.circle.membership.me.id, fault, why)))
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
        if not self._seal.greeted and membership.is_node(parcel.id):
            self._pretended(parcel)
            return
        if self.peer is not None and self._seal.greeted and parcel.id != self.peer.id:
            raise UnexpectedError("parcel", "id", parcel.id, f"{self.peer.id}, as it introduced itself")
        if self._unproven is not None:
            identity, self._unproven = self._unproven, None
            self._obey(membership.proved(identity, now))
            if not self.admitted:
                return
        why = membership.refusal(parcel.id, parcel.body)
        if why is not None and self._seal.greeted and len(membership.members) < membership.size - 1:
            return  # Who is of the cluster is not known yet: what matters is sent again.
        if why is not None and not self.waits_for(parcel.body):
            raise UnexpectedError("parcel", "parcel_type", parcel.parcel_type, why)
        if not isinstance(parcel.body, DscReq | DscRes):  # these are judged as introductions
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
        greeted = self._seal.greeted
        # The first one is under the cluster's key alone: whoever has heard it can send it again.
        proven = not self._seal.tag or self.peer is not None
        self._unproven = None if proven else identity
        self.peer = identity
        self.name = f"{identity.name} ({self.endpoint[0]})"
        if greeted:
            self._parcels.max_bulk = wire.MAX_BULK
        tag = self._seal.hello if greeted else 0
        self._obey(self.circle.membership.asked(identity, now, tag=tag, hello=greeted, proven=proven))

    def _pretended(self, parcel: Parcel) -> None:
        """One that speaks the document alone goes by a node's id: it may ask, and is not taken for that node."""
        if isinstance(parcel.body, SeqReq):
            self.post(SeqRes(self.circle.seq))
        else:
            self.refuse("identity", f"id {parcel.id} belongs to a node of the cluster")

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


class ParcelDoor(TcpDoor[ParcelStream]):
    """Where other nodes, and whoever speaks the document, connect."""

    def __init__(
        self,
        context: DoorContext,
        circle: Circle,
        listening: socket.socket,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(context, "parcel", listening, tls=tls)
        self.circle = circle

    def connection(self) -> ParcelStream:
        """A new connection."""
        return ParcelStream(self)

    def tick(self, now: float) -> None:
        """Judge every connection's deadlines, and who has fallen silent."""
        super().tick(now)
        self.circle.tick(now)

    def stop(self) -> None:
        """Accept nothing more; nodes go on hearing one another until the end."""
        if self._server is not None:
            self._server.close()
