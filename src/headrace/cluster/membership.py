"""Who is there: discovery, heartbeat, removal, and a node's own mode.

A node asks its configured peers who they are (DscReq), learns from their answers of others, and asks those in turn. It
sends each neighbour a heartbeat every second, in every mode; who is silent for more than five is removed, and found
again by being asked again. Any parcel counts as a sign of life.

Two things are kept apart. **Neighbours** are whoever introduced themselves; the list grows and shrinks. The
**cluster** is what was configured: the node itself, and one node at each address of ``cluster.peers``. Only its
members vote, and silence does not make it smaller. Which id belongs to a configured address is learnt from the
answer of whoever listens there, and known for good once the cluster has begun (``nodes``).

A node's mode is a table, :data:`MODES`. ``DSC``: it is looking for the others, or for the log. ``WRK``: it has
the log of its view. ``ERR``: it hears no majority, or cannot go on; it accepts no publish. A fault stays until
the node is started anew.

Nobody can take another's place: an id that is heard under one name is refused to a second. Who says **hello** behind
its introduction is a node of this cluster by its name, and with a key by proof; who does not speaks the document alone.
Such a one never speaks for a node, and gives way if it was first to use a node's id. Who has not introduced itself may
ask where the sequence is, and nothing else; who is not of the cluster has no part in its replication.
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
"""Neighbours that are not of the cluster, so many with a hello and so many without; beyond that they are refused."""

_REPLICATION: Final = frozenset(get_args(Replication))


class Event(Enum):
    """What changes a node's mode."""

    ALONE = "no other node is configured"
    CAUGHT_UP = "has the log of its view"
    BEHIND = "has to find the log of its view"
    SILENCE = "hears no majority for 5 s"
    MAJORITY = "hears a majority"
    FAULT = "cannot go on"


MODES: Mapping[tuple[Mode, Event], Mode] = {
    (Mode.DSC, Event.ALONE): Mode.WRK,
    (Mode.DSC, Event.CAUGHT_UP): Mode.WRK,
    (Mode.DSC, Event.SILENCE): Mode.ERR,
    (Mode.DSC, Event.FAULT): Mode.ERR,
    (Mode.WRK, Event.BEHIND): Mode.DSC,
    (Mode.WRK, Event.SILENCE): Mode.ERR,
    (Mode.WRK, Event.FAULT): Mode.ERR,
    (Mode.ERR, Event.MAJORITY): Mode.DSC,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """Open a stream to ``host`` and send a DscReq with this node's information; give the answer to ``answered``."""

    host: str


@dataclass(frozen=True, slots=True)
class Recover:
    """Send a SeqReq to a neighbour, on a stream of one's own."""

    to: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer on the stream from which the request came."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a Ping to each of these neighbours."""

    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send a ProtoError with this reason, count it, and close the stream."""

    fault: Fault
    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A neighbour was added; a member of the cluster may vote."""

    node: NodeInfo
    member: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """A neighbour was silent for too long."""

    node: NodeInfo


@dataclass(frozen=True, slots=True)
class Changed:
    """This node's mode is now another: tell the neighbours by StateChange."""

    mode: Mode


Effect: TypeAlias = Ask | Recover | Answer | Beat | Refuse | Joined | Removed | Changed


class Membership:
    """One node's view of who is there. ``peers`` are the configured hosts, without this node's own.

    ``nodes`` are the ids of the cluster as its state has them; empty for one that has not begun.
    """

    def __init__(self, me: NodeInfo, peers: Iterable[str], *, nodes: Sequence[int] = ()) -> None:
        self._me = me
        self._peers: dict[tuple[str, int], int | None] = {parse_host(host): None for host in peers}
        """Which id answers at each configured address."""
        self._nodes = frozenset(nodes)
        self._neighbours: dict[int, NodeInfo] = {}
        self._heard: dict[int, float] = {}
        self._greeted: set[int] = set()
        """Neighbours that said hello."""
        self._machine = StateMachine("parcel", MODES, Mode.DSC)
        self._fault: str | None = None
        self._normal = False
        self._majority_heard = 0.0
        self._beat = 0.0

    @property
    def me(self) -> NodeInfo:
        """This node, with its mode as it is."""
        return replace(self._me, mode=self.mode)

    @property
    def mode(self) -> Mode:
        """This node's general status."""
        return self._machine.state

    @property
    def fault(self) -> str | None:
        """Why the node cannot go on, if so."""
        return self._fault

    @property
    def size(self) -> int:
        """How many nodes the configured cluster has."""
        return len(self._peers) + 1

    @property
    def members(self) -> frozenset[int]:
        """The ids, as far as known, of the other nodes that vote."""
        known = self._nodes or {node for node in self._peers.values() if node is not None}
        return frozenset(known) - {self._me.id}

    @property
    def neighbours(self) -> tuple[NodeInfo, ...]:
        """Whoever is there, those heard last first."""
        return tuple(sorted(self._neighbours.values(), key=lambda node: self._heard[node.id], reverse=True))

    def age(self, node: int, now: float) -> float | None:
        """How long ago a neighbour was last heard; None if it is none."""
        return now - self._heard[node] if node in self._heard else None

    def at(self, host: str) -> int | None:
        """Which id answers at a configured address, if it is known."""
        return self._peers.get(parse_host(host))

    def start(self, now: float) -> list[Effect]:
        """The first input."""
        self._majority_heard = now
        self._beat = now + HEARTBEAT_SECONDS
        if not self._peers:
            return self._step(Event.ALONE)
        return self._ask_missing()

    def began(self, nodes: Sequence[int]) -> None:
        """The cluster has begun, or told who it is: these are its ids."""
        self._nodes = frozenset(nodes)

    def is_node(self, node: int) -> bool:
        """Whether an id is a node's: of the cluster, or of somebody here who said hello."""
        return node in self._greeted or node in self.members

    def asked(
        self, identity: NodeInfo, now: float, *, tag: int = 0, hello: bool = True, proven: bool = True
    ) -> list[Effect]:
        """A DscReq: add the sender, and tell whom this node knows; ``tag`` bytes go behind that.

        One that is not ``proven`` may be an old one, sent again by somebody else: its sender is added by
        :meth:`proved`, when it has shown that it is there.
        """
        refusal = self._claim(identity, now, hello=hello)
        if refusal is not None:
            return [Refuse(Fault.BAD_REQ, refusal)]
        effects = self._add(identity, now, hello=hello) if proven else []
        others = [node for node in self.neighbours if node.id != identity.id]
        return [*effects, Answer(discovered(self.me, others, tag=tag))]

    def proved(self, identity: NodeInfo, now: float) -> list[Effect]:
        """The sender of a DscReq that was not proven is there."""
        refusal = self._claim(identity, now, hello=True)
        if refusal is not None:
            return [Refuse(Fault.BAD_REQ, refusal)]
        return self._add(identity, now, hello=True)

    def answered(self, host: str, answer: DscRes, now: float, *, hello: bool = True) -> list[Effect]:
        """The DscRes of whoever listens at ``host``: add it, and everyone it knows."""
        if not answer.neighbours:
            return [Refuse(Fault.BAD_RES, "a DscRes lists its sender first")]
        responder, *others = answer.neighbours
        address = parse_host(host)
        refusal = self._claim(responder, now, hello=hello) or self._misplaced(address, responder)
        if refusal is not None:
            return [Refuse(Fault.BAD_RES, refusal)]
        if address in self._peers:
            self._peers[address] = responder.id
        effects = [*self._add(responder, now, hello=hello), Recover(responder.id)]
        known = {node.address for node in self._neighbours.values()} | {self._me.address}
        for node in others:
            # What another tells of a node is a reason to ask it, not to believe it.
            if node.id != self._me.id and node.id not in self._neighbours and node.address not in known:
                known.add(node.address)
                effects.append(Ask(node.host))
            if len(known) > MAX_STRANGERS + self.size:
                break
        return [*effects, *self._judge(now)]

    def sequence_asked(self, sender: int, head: int, now: float) -> list[Effect]:
        """A SeqReq: the sender is taken to be at work from here on."""
        effects = self.heard(sender, now)
        self.state_change(sender, Mode.WRK)
        return [*effects, Answer(Parcel(self._me.id, SeqRes(head)))]

    def state_change(self, sender: int, mode: Mode) -> None:
        """A neighbour's mode is now another."""
        if sender in self._neighbours:
            self._neighbours[sender] = replace(self._neighbours[sender], mode=mode)

    def heard(self, sender: int, now: float) -> list[Effect]:
        """Any parcel is a sign of life."""
        if sender in self._neighbours:
            self._heard[sender] = now
        return self._judge(now)

    def refusal(self, sender: int, body: Body) -> str | None:
        """Why a parcel may not come from this sender, if so."""
        if isinstance(body, DscReq | DscRes | SeqReq):
            return None  # anybody may introduce itself, and ask where the sequence is
        if sender == self._me.id:
            return f"id {sender} is this node's own"
        if sender not in self._neighbours:
            return f"id {sender} has not introduced itself by DscReq"
        if type(body) in _REPLICATION and sender not in self.members:
            return f"id {sender} is not of this cluster"
        return None

    def replica_is(self, status: Status, now: float) -> list[Effect]:
        """What the replica is doing now."""
        self._normal = status is Status.NORMAL
        return self._judge(now)

    def failed(self, reason: str) -> list[Effect]:
        """The node cannot go on."""
        self._fault = reason
        return self._step(Event.FAULT)

    def tick(self, now: float) -> list[Effect]:
        """Heartbeats, removals, and another try at whoever is missing."""
        effects: list[Effect] = []
        for node in [node for node in self._heard if self._is_silent(node, now)]:
            del self._heard[node]
            self._greeted.discard(node)
            effects.append(Removed(self._neighbours.pop(node)))
        if now >= self._beat:
            self._beat = now + HEARTBEAT_SECONDS
            if self._neighbours:
                effects.append(Beat(tuple(self._neighbours)))
            effects += self._ask_missing()
        return [*effects, *self._judge(now)]

    def next_timer(self) -> float:
        """When :meth:`tick` has something to do."""
        timers = [heard + SILENCE_SECONDS for heard in self._heard.values()]
        return min([self._beat, *timers])

    def sees_majority(self, now: float) -> bool:
        """Whether so many of the cluster have been heard lately that they, with this node, are a majority."""
        members = self.members
        recent = sum(not self._is_silent(node, now) for node in self._heard if node in members)
        return recent + 1 > self.size // 2

    def _claim(self, node: NodeInfo, now: float, *, hello: bool) -> str | None:
        """Why a node may not go by its id, if so."""
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
        """Why a node may not be the one at a configured address, if so."""
        if address not in self._peers:
            return None
        if self._nodes and responder.id not in self._nodes:
            return f"{responder.name} is not of this cluster: replace the node that was there before"
        if any(node == responder.id and other != address for other, node in self._peers.items()):
            return f"{responder.name} answers at two addresses of cluster.peers: name it once"
        return None

    def _is_silent(self, neighbour: int, now: float) -> bool:
        return now >= self._heard[neighbour] + SILENCE_SECONDS

    def _strangers(self, *, hello: bool) -> int:
        members = self.members
        return sum(node not in members and (node in self._greeted) == hello for node in self._neighbours)

    def _add(self, node: NodeInfo, now: float, *, hello: bool) -> list[Effect]:
        new = node.id not in self._neighbours
        if hello:
            self._greeted.add(node.id)
        self._neighbours[node.id] = node
        self._heard[node.id] = now
        return [Joined(node, node.id in self.members)] if new else []

    def _ask_missing(self) -> list[Effect]:
        """Ask at each configured address whose node is not there."""
        return [
            Ask(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            for (host, port), node in self._peers.items()
            if node is None or node not in self._neighbours
        ]

    def _judge(self, now: float) -> list[Effect]:
        """Hold the mode against what is heard and what the replica does."""
        if self._fault is not None or not self._peers:
            return []
        if self.sees_majority(now):
            self._majority_heard = now
            effects = self._step(Event.MAJORITY)
            return effects + self._step(Event.CAUGHT_UP if self._normal else Event.BEHIND)
        if now >= self._majority_heard + SILENCE_SECONDS or self.mode is Mode.WRK:
            return self._step(Event.SILENCE)
        return []

    def _step(self, event: Event) -> list[Effect]:
        if not self._machine.allows(event):
            return []
        return [Changed(self._machine.step(event))]
