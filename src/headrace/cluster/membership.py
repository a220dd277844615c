"""Membership: discovery, heartbeat, removal, and a node's own mode.

A node asks its configured peers for their identity (DscReq), learns of others from their answers, and asks those in
turn. It sends each neighbour a heartbeat every second, in every mode. A neighbour that is silent for more than five is
removed, and found again by being asked again. Any parcel counts as a sign of life.

The document gives the heartbeat no form. To nodes of ours it is a Ping. A neighbour that has only ever spoken the
document gets a DscReq, which it answers, at an address that is its own: where it answered before, or the host that it
named, if it came from there or configuration lists it. Its answers show that it is alive and make this node ask nobody
else, unless configuration lists it.

**Neighbours** are all nodes that introduced themselves; the list grows and shrinks. The **cluster** is what was
configured: the node itself, and one node at each address of ``cluster.peers``. Only its members vote, and silence does
not make it smaller. The id at a configured address is learnt from the answer of the node there, and fixed once the
cluster has begun (``nodes``).

A node's mode is a table, :data:`MODES`. ``DSC``: it is looking for the others, or for the log. ``WRK``: it has the log
of its view, and hears the view's primary. ``ERR``: it hears no majority, or cannot go on; it accepts no publish. A
fault stays until a restart.

No node can take another's place: an id that is heard under one name is refused to a second. A node that says **hello**
after its introduction is of this cluster by its name, and with a key by proof; one that does not speaks the document
alone. It never speaks for a node, and gives way if it was first to use a node's id. Without an introduction one may ask
how far the sequence is, and nothing else; a node outside the cluster has no part in its replication.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias, get_args

from headrace.cluster.effects import Status
from headrace.wire.parcel.body import (
    Body,
    DscReq,
    DscRes,
    Fault,
    Mode,
    NodeInfo,
    Replication,
    SeqReq,
    SeqRes,
    parse_host,
)
from headrace.wire.parcel.stream import Parcel, discovered
from headrace.wire.state_machine import StateMachine

HEARTBEAT_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 5.0

MAX_STRANGERS: Final = 64
"""Neighbours outside the cluster, so many with a hello and so many without; more are refused."""

_REPLICATION: Final = frozenset(get_args(Replication))


class ModeEvent(Enum):
    """Event that changes a node's mode."""

    ALONE = "no other node is configured"
    CAUGHT_UP = "has the log of its view, and a primary"
    BEHIND = "has to find the log of its view, or a primary"
    SILENCE = "hears no majority for 5 s"
    MAJORITY = "hears a majority"
    FAULT = "cannot go on"


MODES: Mapping[tuple[Mode, ModeEvent], Mode] = {
    (Mode.DSC, ModeEvent.ALONE): Mode.WRK,
    (Mode.DSC, ModeEvent.CAUGHT_UP): Mode.WRK,
    (Mode.DSC, ModeEvent.SILENCE): Mode.ERR,
    (Mode.DSC, ModeEvent.FAULT): Mode.ERR,
    (Mode.WRK, ModeEvent.BEHIND): Mode.DSC,
    (Mode.WRK, ModeEvent.SILENCE): Mode.ERR,
    (Mode.WRK, ModeEvent.FAULT): Mode.ERR,
    (Mode.ERR, ModeEvent.MAJORITY): Mode.DSC,
}


@dataclass(frozen=True, slots=True)
class Discover:
    """Open a stream to ``host``, send a DscReq with this node's identity, and pass the answer to ``answered``."""

    host: str
    heartbeat: bool = False
    """Whether it goes to a neighbour that speaks only the document: then no hello follows the DscReq."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer on the stream that the request came on."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send a Ping to each of these neighbours."""

    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send a ProtoError with this reason, count it, and close the stream."""

    fault: Fault
    reason: str


@dataclass(frozen=True, slots=True)
class NeighbourJoined:
    """A neighbour was added; members of the cluster may vote."""

    node: NodeInfo
    member: bool
    hello: bool = True
    """Whether it said hello; one that did not speaks only the document."""


@dataclass(frozen=True, slots=True)
class NeighbourRemoved:
    """A neighbour was silent too long."""

    node: NodeInfo


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """This node's mode has changed: tell the neighbours by StateChange."""

    mode: Mode


MembershipEffect: TypeAlias = (
    Discover | Reply | Heartbeat | Refuse | NeighbourJoined | NeighbourRemoved | ModeChanged
)


class Membership:
    """One node's view of the others. ``peers`` are the configured hosts, without this node's own.

    ``nodes`` are the stored ids of the cluster; empty before it has begun.
    """

    def __init__(self, me: NodeInfo, peers: Iterable[str], *, nodes: Sequence[int] = ()) -> None:
        self._me = me
        self._peers: dict[tuple[str, int], int | None] = {parse_host(host): None for host in peers}
        """Id that answers at each configured address."""
        self._nodes = frozenset(nodes)
        self._neighbours: dict[int, NodeInfo] = {}
        self.heard_at: dict[int, float] = {}
        """When each neighbour was last heard; while :attr:`settled`, a connection may note that itself."""
        self.settled = False
        """Whether this node works: then a sign of life changes nothing but its time."""
        self.changes = 0
        """How often neighbours, members or the mode have changed: what was found about a sender holds until then."""
        self._greeted: set[int] = set()
        """Neighbours that said hello."""
        self._document: dict[int, str] = {}
        """Host at which each neighbour that speaks only the document gets its heartbeats."""
        self._machine = StateMachine("parcel", MODES, Mode.DSC)
        self._fault: str | None = None
        self._normal = False
        self._majority_heard = 0.0
        self._beat = 0.0

    @property
    def me(self) -> NodeInfo:
        """This node's identity, with its present mode."""
        return replace(self._me, mode=self.mode)

    @property
    def mode(self) -> Mode:
        """This node's general status."""
        return self._machine.state

    @property
    def fault(self) -> str | None:
        """Reason why the node cannot go on, if any."""
        return self._fault

    @property
    def size(self) -> int:
        """Number of nodes in the configured cluster."""
        return len(self._peers) + 1

    @property
    def members(self) -> frozenset[int]:
        """Ids of the other nodes that vote, as far as known."""
        known = self._nodes or {node for node in self._peers.values() if node is not None}
        return frozenset(known) - {self._me.id}

    @property
    def neighbours(self) -> tuple[NodeInfo, ...]:
        """All neighbours, those heard last first."""
        return tuple(sorted(self._neighbours.values(), key=lambda node: self.heard_at[node.id], reverse=True))

    def age(self, node: int, now: float) -> float | None:
        """Seconds since a neighbour was last heard; None if it is not one."""
        return now - self.heard_at[node] if node in self.heard_at else None

    def at(self, host: str) -> int | None:
        """The id that answers at a configured address, if known."""
        return self._peers.get(parse_host(host))

    def document_node_at(self, host: str) -> NodeInfo | None:
        """The neighbour at an address that speaks only the document, if there is one."""
        address = parse_host(host)
        found = (node for node, at in self._document.items() if parse_host(at) == address)
        return next((self._neighbours[node] for node in found), None)

    def start(self, now: float) -> list[MembershipEffect]:
        """Begin: the first input."""
        self._majority_heard = now
        self._beat = now + HEARTBEAT_SECONDS
        if not self._peers:
            return self._step(ModeEvent.ALONE)
        return self._ask_missing()

    def began(self, nodes: Sequence[int]) -> None:
        """Learn the cluster's ids: it has begun."""
        self.changes += 1
        self._nodes = frozenset(nodes)

    def is_node(self, node: int) -> bool:
        """Whether an id is in use by a node of the cluster, or by a neighbour that said hello."""
        return node in self._greeted or node in self.members

    def asked(
        self,
        identity: NodeInfo,
        now: float,
        *,
        tag: int = 0,
        hello: bool = True,
        proven: bool = True,
        source: str = "",
    ) -> list[MembershipEffect]:
        """Answer a DscReq from the address ``source``: add its sender and list the neighbours.

        ``tag`` bytes follow the answer. A DscReq that is not ``proven`` may be a recording: its sender is added by
        :meth:`proved`, once it has shown that it is there.
        """
        refusal = self._claim(identity, now, hello=hello)
        if refusal is not None:
            return [Refuse(Fault.BAD_REQ, refusal)]
        effects = self._add(identity, now, hello=hello) if proven else []
        own = identity.address == self._me.address
        if not hello and not own and (identity.address[0] == source or identity.address in self._peers):
            self._document.setdefault(identity.id, identity.host)
        others = [node for node in self.neighbours if node.id != identity.id]
        return [*effects, Reply(discovered(self.me, others, tag=tag))]

    def proved(self, identity: NodeInfo, now: float) -> list[MembershipEffect]:
        """Add the sender of an unproven DscReq: it is there."""
        refusal = self._claim(identity, now, hello=True)
        if refusal is not None:
            return [Refuse(Fault.BAD_REQ, refusal)]
        return self._add(identity, now, hello=True)

    def answered(
        self, host: str, answer: DscRes, now: float, *, hello: bool = True
    ) -> list[MembershipEffect]:
        """Take the DscRes of the node at ``host``: add it, and ask those that it names."""
        if not answer.neighbours:
            return [Refuse(Fault.BAD_RES, "a DscRes lists its sender first")]
        responder, *others = answer.neighbours
        address = parse_host(host)
        refusal = self._claim(responder, now, hello=hello)
        if hello:
            refusal = refusal or self._misplaced(address, responder)
        if refusal is not None:
            return [Refuse(Fault.BAD_RES, refusal)]
        if hello and address in self._peers:
            self._peers[address] = responder.id
            self.changes += 1
        effects = self._add(responder, now, hello=hello)
        if not hello:
            if responder.id in self._document and address not in self._peers:
                others = []
            self._document[responder.id] = host
        known = {node.address for node in self._neighbours.values()} | {self._me.address}
        for node in others:
            # Being named by another is a reason to be asked, not to be believed.
            if node.id != self._me.id and node.id not in self._neighbours and node.address not in known:
                known.add(node.address)
                effects.append(Discover(node.host))
            if len(known) > MAX_STRANGERS + self.size:
                break
        return [*effects, *self._judge(now)]

    def sequence_asked(self, sender: int, head: int, now: float) -> list[MembershipEffect]:
        """Answer a SeqReq, whose sender counts as working from here on."""
        effects = self.heard(sender, now)
        self.state_change(sender, Mode.WRK)
        return [*effects, Reply(Parcel(self._me.id, SeqRes(head)))]

    def state_change(self, sender: int, mode: Mode) -> None:
        """Note a neighbour's mode."""
        if sender in self._neighbours:
            self._neighbours[sender] = replace(self._neighbours[sender], mode=mode)

    def heard(self, sender: int, now: float) -> list[MembershipEffect]:
        """Note a sign of life: any parcel is one."""
        if sender in self._neighbours:
            self.heard_at[sender] = now
        return self._judge(now)

    def refusal(self, sender: int, body: Body) -> str | None:
        """Reason why this sender may not send this parcel, if any."""
        if isinstance(body, DscReq | DscRes | SeqReq):
            return None  # anyone may introduce itself, and ask how far the sequence is
        if sender == self._me.id:
            return f"id {sender} is this node's own"
        if sender not in self._neighbours:
            return f"id {sender} has not introduced itself by DscReq"
        if type(body) in _REPLICATION and sender not in self.members:
            return f"id {sender} is not of this cluster"
        return None

    def replica_is(self, status: Status, now: float, *, primary: bool = True) -> list[MembershipEffect]:
        """Note the replica's status, and whether its view has a ``primary`` that is there."""
        self._normal = status is Status.NORMAL and primary
        return self._judge(now)

    def failed(self, reason: str) -> list[MembershipEffect]:
        """Note that the node cannot go on."""
        self._fault = reason
        return self._step(ModeEvent.FAULT)

    def tick(self, now: float) -> list[MembershipEffect]:
        """Send heartbeats, remove silent neighbours, and ask the missing ones again."""
        effects: list[MembershipEffect] = []
        for node in [node for node in self.heard_at if self._is_silent(node, now)]:
            del self.heard_at[node]
            self.changes += 1
            self._greeted.discard(node)
            self._document.pop(node, None)
            effects.append(NeighbourRemoved(self._neighbours.pop(node)))
        if now >= self._beat:
            self._beat = now + HEARTBEAT_SECONDS
            if pinged := tuple(node for node in self._neighbours if node in self._greeted):
                effects.append(Heartbeat(pinged))
            effects += [Discover(host, heartbeat=True) for host in self._document.values()]
            effects += self._ask_missing()
        return [*effects, *self._judge(now)]

    def sees_majority(self, now: float) -> bool:
        """Whether the nodes of the cluster heard lately are, with this one, a majority."""
        members = self.members
        recent = sum(not self._is_silent(node, now) for node in self.heard_at if node in members)
        return recent + 1 > self.size // 2

    def _claim(self, node: NodeInfo, now: float, *, hello: bool) -> str | None:
        """Reason why a node may not use its id, if any."""
        if node.id == self._me.id:
            if (node.name, node.host) == (self._me.name, self._me.host):
                return "it is this node itself: say with cluster.address as which of cluster.peers"
            return f"id {node.id} is taken by {self._me.name}: give each node a name of its own"
        holder = self._neighbours.get(node.id)
        if holder is None or (hello and node.id not in self._greeted):
            if node.id not in self.members and self._strangers(hello=hello) >= MAX_STRANGERS:
                return f"{MAX_STRANGERS} nodes that are not of this cluster are here already"
            return None
        alive = not self._is_silent(node.id, now)
        if alive and (holder.name != node.name or holder.host != node.host):
            return f"id {node.id} is taken by {holder.name} at {holder.host}"
        return None

    def _misplaced(self, address: tuple[str, int], responder: NodeInfo) -> str | None:
        """Reason why a node may not be the one at a configured address, if any."""
        if address not in self._peers:
            return None
        if self._nodes and responder.id not in self._nodes:
            return f"{responder.name} is not of this cluster: replace the node that was there before"
        if any(node == responder.id and other != address for other, node in self._peers.items()):
            return f"{responder.name} answers at two addresses of cluster.peers: name it once"
        return None

    def _is_silent(self, neighbour: int, now: float) -> bool:
        return now >= self.heard_at[neighbour] + SILENCE_SECONDS

    def _strangers(self, *, hello: bool) -> int:
        members = self.members
        return sum(node not in members and (node in self._greeted) == hello for node in self._neighbours)

    def _add(self, node: NodeInfo, now: float, *, hello: bool) -> list[MembershipEffect]:
        self.changes += 1
        new = node.id not in self._neighbours
        if hello:
            self._greeted.add(node.id)
            self._document.pop(node.id, None)
        self._neighbours[node.id] = node
        self.heard_at[node.id] = now
        return [NeighbourJoined(node, node.id in self.members, hello)] if new else []

    def _ask_missing(self) -> list[MembershipEffect]:
        return [
            Discover(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            for (host, port), node in self._peers.items()
            if node is None or node not in self._neighbours
        ]

    def _judge(self, now: float) -> list[MembershipEffect]:
        """Adapt the mode to the nodes heard and to the replica."""
        if self._fault is not None or not self._peers:
            return []
        if self.sees_majority(now):
            self._majority_heard = now
            effects = self._step(ModeEvent.MAJORITY)
            return effects + self._step(ModeEvent.CAUGHT_UP if self._normal else ModeEvent.BEHIND)
        if now >= self._majority_heard + SILENCE_SECONDS or self.mode is Mode.WRK:
            return self._step(ModeEvent.SILENCE)
        return []

    def _step(self, event: ModeEvent) -> list[MembershipEffect]:
        if not self._machine.allows(event):
            return []
        mode = self._machine.step(event)
        self.settled = mode is Mode.WRK
        self.changes += 1
        return [ModeChanged(mode)]
