"""The ``parcel`` door, and what all connections between nodes have in common, whichever end opened them.

Anyone who connects is answered as the document says: DscReq by DscRes, SeqReq by SeqRes, a heartbeat by another. A node
of this cluster introduces itself with a hello after its DscReq (:mod:`~headrace.net.cluster.parcel_authentication`).
Anything beyond the document is taken only from such a node, and handed to this node's :class:`ParcelHost`.

A stream without a hello cannot act for an authenticated node: what it sends under a node's id is no sign of that node's
life. With a key, a hello proves that its sender knew the key once. That the sender is there now is proven by the next
parcel, which is tagged with a key of this connection alone; only then does it count.

Each node dials each configured peer (:mod:`~headrace.net.cluster.peer_connections`) and sends on that connection; what
the peer sends of its own accord comes on the one that it dialled. So a node that can be heard but not reached, or the
other way round, is treated as just that. Answers go back on the connection on which they were asked for.

Bounds: a stranger may send 64 bytes after a parcel, a node of the cluster one batch. A stranger is cut off when it is
silent for ``limits.idle_seconds``, or says nothing at first for ``limits.handshake_seconds``, and is not read from
while ``limits.queue_bytes`` of answers wait for it. A node that has :data:`MAX_QUEUED` bytes waiting is sent nothing
more; it fetches what it misses when it can.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.client.tls import RenewedContext
from headrace.cluster.membership import (
    SILENCE_SECONDS,
    Discover,
    Membership,
    MembershipEffect,
    Refuse,
    Reply,
)
from headrace.config import Address
from headrace.errors import UnexpectedError, WireError
from headrace.hub.access.principal import Action
from headrace.hub.sequence import Hub
from headrace.net.cluster.parcel_authentication import ParcelTags
from headrace.net.server.accepting.connection import DoorConnection
from headrace.net.server.accepting.door import DoorContext
from headrace.net.server.accepting.tcp_door import TcpDoor
from headrace.wire.parcel import stream as wire
from headrace.wire.parcel.body import (
    Ack,
    Body,
    Commit,
    DscReq,
    DscRes,
    Fault,
    Mode,
    NodeInfo,
    Ping,
    Pong,
    Prepare,
    PrepareOk,
    ProtoError,
    Publish,
    SeqReq,
    SeqRes,
    StateChange,
    parse_host,
)
from headrace.wire.parcel.stream import Exchange, Parcel, ParcelDecoder

if TYPE_CHECKING:
    from headrace.net.cluster.peer_connections import DialledStream

logger = logging.getLogger("headrace")

MAX_QUEUED: Final = 32 << 20
"""Bytes that may wait for one peer; beyond that, parcels to it are dropped."""

_AT_WORK: Final = frozenset((Publish, Ack, Prepare, PrepareOk, Commit))
"""Parcels of nodes that work: nearly all there are."""

_TOGETHER: Final = 16 << 10
"""Bulk up to this size is joined to its parcel, so that both go in one write."""


class ParcelHost:
    """The node that connections belong to. This one is in no cluster: it "goes straight into WRK".

    It dials only neighbours that speak the document, for their heartbeats.
    """

    def __init__(self, hub: Hub, name: str, host: str, now: float) -> None:
        self._hub = hub
        self.membership = Membership(NodeInfo(hub.node, Mode.DSC, name, host), ())
        self.membership.start(now)
        self.ask: Callable[[Address, bool], None] = lambda _address, _heartbeat: None
        """Asks the node at an address for its identity; as a heartbeat, if it speaks only the document."""

    @property
    def seq(self) -> int:
        """This node's sequence number."""
        return self._hub.log.head

    def obey(self, effects: Sequence[MembershipEffect]) -> None:
        """Carry out what the membership asks for, except on the stream at hand."""
        for effect in effects:
            if isinstance(effect, Discover) and effect.heartbeat:
                self.ask(Address(*parse_host(effect.host)), True)

    def take(self, stream: ParcelStream, parcel: Parcel) -> None:
        """Take a parcel beyond the document from a node of the cluster."""

    def joined(self, stream: DialledStream, info: NodeInfo) -> None:
        """Note that a dialled peer has answered."""

    def is_at(self, node: int, seq: int) -> None:
        """Note a node's sequence number."""

    def tick(self, now: float) -> None:
        """Send heartbeats, and forget neighbours that have fallen silent."""
        self.obey(self.membership.tick(now))

    def left(self, stream: ParcelStream) -> None:
        """Forget a connection that is closed."""


class ParcelStream(DoorConnection[Any]):
    """One connection; ``dialled`` tells which end this is."""

    dialled = False

    def __init__(self, door: Any) -> None:
        self._parcels = ParcelDecoder(max_bulk=wire.MAX_TAG)
        super().__init__(door, self._parcels)
        self.host: ParcelHost = door.host
        self._id = self.host.membership.me.id
        self.peer: NodeInfo | None = None
        """The peer's identity, once it has introduced itself."""
        cluster = door.settings.cluster
        self._tags = ParcelTags(cluster.name, cluster.key.reveal(), dialled=self.dialled)
        self._exchange = Exchange(wire.DIALLER if self.dialled else wire.LISTENER)
        self._at_work = -1
        """As of which change of the membership the peer is a node that may take part in replication."""
        self._unproven: NodeInfo | None = None
        """The identity it claims, until a parcel comes that only that node can send."""

    def must_wait(self) -> bool:
        """Whether to stop reading: only from a stranger that does not take its answers. Replication never waits."""
        return self._full

    def pause_writing(self) -> None:
        """Note that the peer is slow; for nodes, :meth:`post` decides parcel by parcel."""
        if not self._tags.greeted:
            super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the peer has caught up."""
        if self._full:
            super().resume_writing()

    def opened(self) -> None:
        """Send small parcels at once."""
        transport_socket = self._transport.get_extra_info("socket")
        transport_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, body: Body, bulk: bytes = b"", *, certain: bool = False) -> bool:
        """Send a parcel, unless too much waits already; the callers of ``certain`` ones bound them themselves."""
        head = self.head_of(body, bulk)
        return head is not None and self.post_as(head, body, bulk, certain=certain)

    def head_of(self, body: Body, bulk: bytes) -> bytes | None:
        """Encode a parcel without its bulk, for any connection to a node; ``None`` if it cannot be sent."""
        try:
            return self._tags.head(self._id, body, bulk)
        except WireError as error:
            logger.error("a %s cannot be sent: %s", type(body).__name__, error)
            self.counters.add("parcels_dropped")
            return None

    def post_as(self, head: bytes, body: Body, bulk: bytes, *, certain: bool = False) -> bool:
        """Send a parcel that :meth:`head_of` has encoded."""
        if not self.admitted or (not certain and self._transport.get_write_buffer_size() > MAX_QUEUED):
            self.counters.add("parcels_dropped")
            return False
        try:
            if body.ordered or not self._exchange.open:
                self._exchange.sent(body)
        except WireError as error:
            logger.error("a %s cannot be sent: %s", type(body).__name__, error)
            self.counters.add("parcels_dropped")
            return False
        pieces = self._tags.seal(head, bulk)
        if len(bulk) <= _TOGETHER:
            # One write is one packet, and wakes the peer once.
            self.send(b"".join(pieces))
        else:
            for piece in pieces:
                self.send(piece)
        return True

    def refuse(self, reason: str, detail: object) -> None:
        """Count a refusal, tell the peer, and close."""
        self.note_refusal(reason, detail)
        if self.admitted and reason not in ("slow", "connections"):
            fault = Fault.BAD_RES if self.dialled else Fault.BAD_REQ
            why = str(detail)
            if isinstance(detail, WireError) and isinstance(detail.value, bytes):
                # The peer knows the bytes that it sent: leave the room for what is wrong with them.
                why = f"{detail.field}: {detail.limit}"
            self.send(wire.serialize(wire.refusal(self._id, fault, why)))
            self.close()
        else:
            self.abort()

    def closed(self) -> None:
        """Tell the node."""
        self.host.left(self)

    def take(self, frame: Parcel) -> None:
        """Act on a parcel."""
        membership = self.host.membership
        if self._at_work == membership.changes and type(frame.body) in _AT_WORK and self._exchange.open:
            # Its sender was judged before, and nothing has changed since.
            parcel = self._tags.open(frame)
            if self.peer is None or parcel.id != self.peer.id:
                raise _another_id(parcel, self.peer)
            membership.heard_at[parcel.id] = self.heard
            self.host.take(self, parcel)
            return
        if isinstance(frame.body, ProtoError):
            said = f"{frame.body.error.value}: {frame.body.reason}"
            self.counters.refuse(self.door.name, "refused_by_peer", self.name, said)
            self.abort()
            return
        self._exchange.received(frame.body)
        hello = isinstance(frame.body, DscReq | DscRes) and not self._tags.greeted
        parcel = self._tags.open(frame, hello=hello)
        if not (self._tags.greeted or self.principal.known):
            access = self.door.context.access
            access.turned_away(self.door.name, self.name, self.principal.name, "unknown")
            self.refuse("not-allowed", "auth.required is on: only nodes of the cluster are answered")
            return
        if not (self._tags.greeted or self.may(Action.ADMIN)):
            self.refuse("not-allowed", "only nodes of the cluster are answered, and who has the right admin")
            return
        now = self.loop.time()
        if not self._tags.greeted and membership.is_node(parcel.id):
            self._pretended(parcel)
            return
        if self.peer is not None and self._tags.greeted and parcel.id != self.peer.id:
            raise _another_id(parcel, self.peer)
        if self._unproven is not None:
            identity, self._unproven = self._unproven, None
            self._obey(membership.proved(identity, now))
            if not self.admitted:
                return
        why = membership.refusal(parcel.id, parcel.body)
        if why is not None and self._tags.greeted and len(membership.members) < membership.size - 1:
            return  # The cluster's nodes are not all known yet: what matters is sent again.
        if why is not None and not self.waits_for(parcel.body):
            raise UnexpectedError("parcel", "parcel_type", parcel.parcel_type, why)
        introduces = isinstance(parcel.body, DscReq | DscRes)  # judged below
        if not introduces and (effects := membership.heard(parcel.id, now)):
            self.host.obey(effects)
        match parcel.body:
            case DscReq(identity):
                self._introduced(parcel.id, identity, now)
            case SeqReq():
                self._obey(membership.sequence_asked(parcel.id, self.host.seq, now))
            case Ping():
                self.post(Pong())
            case Pong():
                pass
            case StateChange(mode):
                membership.state_change(parcel.id, mode)
            case _:
                if self.peer is not None and self._tags.greeted and why is None and membership.settled:
                    self._at_work = membership.changes
                self.answered(parcel, now)

    def waits_for(self, _body: Body) -> bool:
        """Whether an answer of this kind was asked for."""
        return False

    def answered(self, parcel: Parcel, _now: float) -> None:
        """Take any other parcel."""
        if not self._tags.greeted:
            raise UnexpectedError(
                "parcel", "parcel_type", parcel.parcel_type, "only nodes of the cluster may send it"
            )
        self.host.take(self, parcel)

    def _introduced(self, sender: int, identity: NodeInfo, now: float) -> None:
        """ "The DscReq contains the sender's information." A new one replaces the one before."""
        if sender != identity.id:
            raise UnexpectedError("parcel", "id", sender, f"{identity.id}, as in its identity")
        greeted = self._tags.greeted
        self.check_certificate(identity)
        # The first one is tagged with the cluster's key alone: anyone who has recorded it can send it again.
        proven = not self._tags.tag or self.peer is not None
        self._unproven = None if proven else identity
        self.peer = identity
        self.name = f"{identity.name} ({self.endpoint[0]})"
        if greeted:
            self._parcels.max_bulk = wire.MAX_BULK
        tag = self._tags.hello if greeted else 0
        # This node's own door, however its address is spelt, is nobody else's.
        own = identity.address == self._transport.get_extra_info("sockname")[:2]
        source = "" if own else self.endpoint[0]
        asked = self.host.membership.asked(
            identity, now, tag=tag, hello=greeted, proven=proven, source=source
        )
        self._obey(asked)

    def check_certificate(self, identity: NodeInfo) -> None:
        """Refuse a node whose certificate is another's: it is bound to the node's name."""
        if self._tags.greeted and self.certificate_names and identity.name not in self.certificate_names:
            names = " or ".join(self.certificate_names)
            raise UnexpectedError("parcel", "name", identity.name, f"{names}, as in its certificate")

    def _pretended(self, parcel: Parcel) -> None:
        """Answer a peer without a hello that uses a node's id: it may ask, and is not taken for that node."""
        if isinstance(parcel.body, SeqReq):
            self.post(SeqRes(self.host.seq))
        else:
            self.refuse("identity", f"id {parcel.id} belongs to a node of the cluster")

    def _obey(self, effects: Sequence[MembershipEffect]) -> None:
        """Do what concerns this stream, and leave the rest to the node."""
        for effect in effects:
            match effect:
                case Reply(parcel):
                    if isinstance(parcel.body, DscRes) and self._tags.greeted:
                        self._exchange.sent(parcel.body)
                        self.send(self._tags.greet(parcel.id, parcel.body))
                    else:
                        self.post(parcel.body)
                case Refuse(_, reason):
                    self.refuse("identity", reason)
                    return
                case _:
                    self.host.obey([effect])

    def judge(self, now: float) -> None:
        """Cut off a silent peer."""
        limits = self.limits
        patience = (
            limits.handshake_seconds
            if self.peer is None and self.heard == self.since
            else limits.idle_seconds
        )
        if self._tags.greeted:
            patience = SILENCE_SECONDS
        if now - self.heard > patience:
            self.refuse("idle", f"not heard of for {patience:g} s")


def _another_id(parcel: Parcel, peer: NodeInfo | None) -> UnexpectedError:
    known = "of nobody" if peer is None else str(peer.id)
    return UnexpectedError("parcel", "id", parcel.id, f"{known}, as it introduced itself")


class ParcelDoor(TcpDoor[ParcelStream]):
    """The door for other nodes, and for anyone who speaks the document."""

    has_login = True

    def __init__(
        self,
        context: DoorContext,
        host: ParcelHost,
        listening: socket.socket,
        tls: RenewedContext | None = None,
    ) -> None:
        super().__init__(context, "parcel", listening, tls=tls)
        self.host = host

    def connection(self) -> ParcelStream:
        """A new connection."""
        return ParcelStream(self)

    def tick(self, now: float) -> None:
        """Judge every connection's deadlines, and which nodes have fallen silent."""
        super().tick(now)
        self.host.tick(now)

    def stop(self) -> None:
        """Accept nothing more; nodes stay connected until the end."""
        if self._server is not None:
            self._server.close()
