"""A node of a cluster: who else is there, what they say, and what this node tells of it all.

Membership (:class:`~headrace.cluster.Membership`) and replication (:mod:`~headrace.net.cluster.replica_driver`)
decide; here are the connections between them and the hub. To the other nodes' connections this is their
:class:`~headrace.net.cluster.parcel_door.Circle`, to the replica its
:class:`~headrace.net.cluster.replica_driver.Surroundings`, to the server whatever it asks of something that its hub
depends on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from headrace.cluster import Kept, Membership, Status
from headrace.cluster import durable_state as states
from headrace.cluster.membership import SILENCE_SECONDS, Ask, Beat, Changed, Effect, Joined, Removed
from headrace.config import Address, Settings
from headrace.errors import ConfigError, UnavailableError, UsageError
from headrace.hub.publishing.idempotent import Publishing
from headrace.hub.publishing.staging import Commits
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.log.snapshot import Snapshot
from headrace.log.start_after_snapshot import install
from headrace.message import node_id
from headrace.net.cluster.node_disk import STATE_FILE, open_log
from headrace.net.cluster.own_address import is_own
from headrace.net.cluster.parcel_door import MAX_QUEUED, ParcelStream
from headrace.net.cluster.peer_connections import DialledStream
from headrace.net.cluster.primary_requests import Primary, ToPrimary
from headrace.net.cluster.replica_driver import Driver
from headrace.net.cluster.request_bytes import Answer, parse_asked, serialize_answer
from headrace.net.cluster.snapshot_transfer import Snapshots
from headrace.wire.parcel.body import (
    Ack,
    GetSnapshot,
    Mode,
    NodeInfo,
    Publish,
    Replication,
    SnapshotPart,
    StateChange,
    parse_host,
)
from headrace.wire.parcel.stream import Parcel

logger = logging.getLogger("headrace")


class Cluster:
    """This node's part in its cluster."""

    def __init__(self, settings: Settings, disk: Executor) -> None:
        self._settings = settings
        self._disk = disk
        self._name = settings.node.name
        self._id = node_id(settings.node.name)
        self._host = ""
        self.membership: Membership
        self._driver: Driver
        self._hub: Hub
        self._requests: ToPrimary
        self._primary: Primary
        self._snapshots: Snapshots
        self._kept: Kept | None = None
        self._peers: tuple[Address, ...] = ()
        self._streams: dict[int, DialledStream] = {}
        self._seqs: dict[int, int] = {}
        """How far each node was when it last told."""
        self._silent: dict[int, tuple[NodeInfo, float]] = {}
        """Nodes of the cluster that are not heard, and when they last were."""
        self._fetched: Snapshot | None = None
        self._closed = False
        self.ask: Callable[[Address], None] = lambda _: None
        """Asks a node that others have named who it is."""
        self.became_primary: Callable[[], None] = lambda: None
        self.beginning_anew = asyncio.Event()
        """Set when the log has to begin anew: the hub is drained, :meth:`begin_anew` called, another one started."""

    # What the server asks

    def open_log(self, directory: Path) -> Log:
        """Open this node's log: only what is known to be committed is shown."""
        options = self._settings.log
        log, self._kept = open_log(directory, fsync=options.fsync, segment_bytes=options.segment_bytes)
        return log

    def attach(self, hub: Hub, where: Address | None) -> tuple[Address, ...]:
        """Decide for a hub when its messages are committed, and who numbers them; return the peers to dial.

        ``where`` the node's door will listen. Until its peers are there, nothing is numbered here.
        """
        cluster = self._settings.cluster
        if self._settings.node.upstream:
            raise self._misconfigured("node.upstream", "none: a node of a cluster has no upstream hub")
        if where is None:
            raise self._misconfigured("listen.parcel", "an address: the other nodes must reach this one")
        own = [peer for peer in cluster.peers if peer == cluster.address or is_own(peer, where)]
        # Where the door listens on all addresses, the others know this node by the one in the list.
        self._host = str(cluster.address or next(iter(own), where))
        self._peers = tuple(dict.fromkeys(peer for peer in cluster.peers if peer not in own))
        if len(self._peers) >= states.MAX_NODES:
            raise self._misconfigured("cluster.peers", f"at most {states.MAX_NODES} nodes, this one included")
        nodes = self._kept.state.nodes if self._kept is not None else ()
        if nodes and len(nodes) != len(self._peers) + 1:
            raise self._misconfigured(
                "cluster.peers", f"the {len(nodes)} nodes that the cluster has, this one included"
            )
        info = NodeInfo(self._id, Mode.DSC, self._name, self._host)
        self.membership = Membership(info, map(str, self._peers), nodes=nodes)
        self.obey(self.membership.start(self._now()))
        self._hub = hub
        self._primary = Primary(hub)
        self._requests = ToPrimary(
            hub, self._primary, patience=cluster.publish_seconds, name=lambda: uuid4().hex
        )
        hub.sequencer = self._requests.passing
        self._snapshots = Snapshots(hub, self._has_fetched, self._now)
        self._driver = Driver(
            self._id, self.membership.size, hub, self._kept, self, self._requests.passing, self._disk
        )
        return self._peers

    def judge_by(self, publishing: Publishing, commits: Commits) -> None:
        """What makes a publish or a commit that is tried again harmless."""
        self._primary.judge_by(publishing, commits)

    def start(self) -> None:
        """Take part."""
        self._driver.start(self._ticked)

    async def flush(self) -> None:
        """Wait until nothing is under way."""
        while self._requests.busy:  # noqa: ASYNC110 -- at the end of a hub's life
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Take no part any more."""
        self._closed = True
        self._driver.close()
        self._requests.close()

    def begin_anew(self, directory: Path) -> None:
        """Put the fetched snapshot in the place of the log, which is closed."""
        snapshot, kept = self._fetched, self._driver.kept
        if snapshot is None or kept is None:
            raise UsageError("there is no snapshot to begin behind")
        install(directory, snapshot, self._hub.log.last_time)
        state = replace(kept.state, commit=snapshot.seq)
        states.save(directory / STATE_FILE, Kept(state, kept.boot, str(snapshot.uuid)))
        logger.info("the log begins anew behind message %d", snapshot.seq)

    @property
    def mode(self) -> Mode:
        """This node's general status."""
        return self.membership.mode

    @property
    def problem(self) -> str | None:
        """Why this node does not do all that it should, if so."""
        if self.membership.fault or self._driver.trouble:
            return self.membership.fault or self._driver.trouble
        size = self.membership.size
        match self.mode:
            case Mode.WRK:
                return None
            case Mode.ERR:
                seen = 1 + sum(self._age(node) is not None for node in self.membership.members)
                return (
                    f"this node sees {seen} of the cluster's {size} nodes, no majority: it takes no messages"
                )
            case _:
                replica = self._driver.replica
                doing = "not begun" if replica is None else replica.status.value
                missing = [
                    str(peer) for peer in self._peers if self._age(self.membership.at(str(peer))) is None
                ]
                without = f", without {', '.join(missing)}" if missing else ""
                return f"this node is finding its place in the cluster ({doing}{without})"

    def not_yet(self) -> str | None:
        """Why clients cannot be served here yet, if so: they would take this node's empty log for the cluster's."""
        if self._hub.log.tail:
            return None
        return f"this node has nothing of the cluster's log yet: {self.problem or 'it is about to get it'}"

    def vouch(self) -> None:
        """An operator's word: this node's disk is to be trusted as it is."""
        self._driver.vouch()

    def facts(self) -> dict[str, object]:
        """What the status tells of the cluster."""
        primary, replica = self._driver.primary, self._driver.replica
        infos = {info.id: info for info in self.membership.neighbours}
        nodes = [self._fact(self.membership.me, primary, 0.0)]
        configured = set()
        for address in self._peers:
            node = self.membership.at(str(address))
            configured.add(node)
            info, age = NodeInfo(node or 0, Mode.ERR, str(address), str(address)), self._age(node)
            if node in infos:
                info = infos[node]
            elif node in self._silent:
                info, heard = self._silent[node]
                info, age = replace(info, mode=Mode.ERR), self._now() - heard
            nodes.append(self._fact(info, primary, age))
        for info in self.membership.neighbours:
            if info.id not in configured:
                fact = self._fact(info, None, self._age(info.id))
                nodes.append({**fact, "role": "neighbour"})
        return {
            "name": self._settings.cluster.name,
            "view": 0 if replica is None else replica.view,
            "status": "stopped" if replica is None else replica.status.value,
            "primary": None if primary is None else self._called(primary),
            "nodes": nodes,
            "problem": self.problem,
        }

    def _called(self, node: int) -> str:
        """A node's name, or its id where that is all that is known."""
        if node == self._id:
            return self._name
        infos = [*self.membership.neighbours, *(info for info, _ in self._silent.values())]
        return next((info.name for info in infos if info.id == node), str(node))

    def _age(self, node: int | None) -> float | None:
        """How long ago a node was heard; ``None`` if it is not here."""
        return None if node is None else self.membership.age(node, self._now())

    def _fact(self, info: NodeInfo, primary: int | None, age: float | None) -> dict[str, object]:
        head = self._hub.log.head if info.id == self._id else self._seqs.get(info.id)
        return {
            "name": info.name,
            "host": info.host,
            "mode": info.mode.value,
            "role": "primary" if primary is not None and info.id == primary else "backup",
            "head": None if age is None else head,
            "age": None if age is None else round(age, 3),
        }

    # What connections ask

    @property
    def seq(self) -> int:
        """This node's sequence number."""
        return self._hub.log.head

    def obey(self, effects: Sequence[Effect]) -> None:
        """Do what the membership wants."""
        for effect in effects:
            match effect:
                case Ask(host):
                    address = Address(*parse_host(host))
                    if address not in self._peers:  # those are dialled all the time
                        self.ask(address)
                case Beat(to):
                    for node in to:
                        if (stream := self._streams.get(node)) is not None:
                            stream.beat()
                case Changed(mode):
                    logger.info("this node's mode is %s", mode.value)
                    for stream in tuple(self._streams.values()):
                        stream.post(StateChange(mode))
                case Joined(info, member):
                    self._silent.pop(info.id, None)
                    logger.info("%s %s (%s) is here", "node" if member else "neighbour", info.name, info.host)
                case Removed(info):
                    if info.id in self.membership.members:
                        self._silent[info.id] = (info, self._now() - SILENCE_SECONDS)
                    logger.warning("node %s (%s) has fallen silent", info.name, info.host)
                case _:
                    pass

    def joined(self, stream: DialledStream, info: NodeInfo) -> None:
        """A peer has answered at its address."""
        self._streams[info.id] = stream
        self.settled()

    def is_at(self, node: int, seq: int) -> None:
        """A node has told its sequence number."""
        if node in self.membership.members:
            self._seqs[node] = seq

    def left(self, stream: ParcelStream) -> None:
        """A connection is over."""
        peer = stream.peer
        self._primary.forget(stream)
        self._snapshots.left(stream)
        if peer is not None and self._streams.get(peer.id) is stream:
            del self._streams[peer.id]
            self.settled()

    def tick(self, now: float) -> None:
        """The driver has a clock of its own."""

    def take(self, stream: ParcelStream, parcel: Parcel) -> None:
        """Something came from a node of the cluster."""
        match parcel.body:
            case Publish(view, request):
                self._asked(stream, view, request, parcel.bulk)
            case Ack() as ack:
                self._requests.acknowledged(stream, ack, parcel.bulk)
            case GetSnapshot() as ask:
                self._snapshots.asked(stream, ask)
            case SnapshotPart() as part:
                self._snapshots.came(stream, part, parcel.bulk)
            case body:
                replication: Replication = body  # type: ignore[assignment]
                self._driver.receive(parcel.id, replication, parcel.bulk)

    def _asked(self, stream: ParcelStream, view: int, request: int, bulk: bytes) -> None:
        asked, body = parse_asked(bulk)

        def tell(answer: Answer) -> None:
            ack = Ack(view, request, answer.first or 0, answer.last or 0)
            stream.post(ack, serialize_answer(answer), certain=True)

        self._primary.answer(stream, asked, body, tell)

    # What the replica wants

    def post(self, to: int, body: Replication, bulk: bytes) -> None:
        """Send a parcel to a node, if there is a way."""
        stream = self._streams.get(to)
        if stream is not None:
            stream.post(body, bulk)

    def takes(self, to: int) -> bool:
        """Whether there is a way to a node, and room on it."""
        stream = self._streams.get(to)
        if stream is not None and stream.buffered > MAX_QUEUED:
            self._hub.counters.add("parcels_dropped")
            return False
        return stream is not None

    def broadcast(self, body: Replication, bulk: bytes) -> None:
        """Send a parcel to every other node, if there is a way."""
        head: bytes | None = None
        for stream in tuple(self._streams.values()):
            head = head or stream.head_of(body, bulk)
            if head is None:
                return
            stream.post_as(head, body, bulk)

    def fetch_snapshot(self, token: int, source: int, after: int) -> None:
        """Fetch a snapshot in the background."""
        logger.info("fetching a snapshot: the others no longer keep what follows message %d", after)
        asyncio.get_running_loop().call_soon(self._snapshots.fetch, self._streams.get(source), token, after)

    def install(self) -> None:
        """Have the hub begin anew."""
        self.beginning_anew.set()

    def is_now(self, status: Status, view: int, primary: int | None) -> None:
        """The replica's part is another."""
        who = "this node" if primary == self._id else f"node {self._called(primary or 0)}"
        if status is Status.NORMAL and primary is not None:
            logger.info("view %d: %s is primary, from message %d on", view, who, self._hub.log.tail + 1)
        else:
            logger.info("view %d: %s", view, status.value)
        replica = self._driver.replica
        if replica is not None and replica.nodes:
            self.membership.began(replica.nodes)
        self.obey(self.membership.replica_is(status, self._now()))

    def halted(self, reason: str) -> None:
        """The node cannot go on."""
        self.obey(self.membership.failed(reason))

    def numbers_here(self) -> None:
        """This node numbers messages from now on: also what it was about to pass on."""
        self._requests.aim_here()
        self.became_primary()

    def settled(self) -> None:
        """Ask the primary, whoever that is now, if it is not this node."""
        if self._hub.sequencer is None or self._closed:
            return
        primary, replica = self._driver.primary, self._driver.replica
        stream = None if primary is None else self._streams.get(primary)
        self._requests.aim(stream, 0 if replica is None else replica.view)

    def _has_fetched(self, token: int, snapshot: Snapshot | None) -> None:
        self._fetched = snapshot
        seq, uuid = (None, None) if snapshot is None else (snapshot.seq, snapshot.uuid)
        self._driver.fetched(token, seq, uuid)

    def _ticked(self, now: float) -> None:
        self.obey(self.membership.tick(now))
        passing = self._requests.passing
        if self.mode is Mode.ERR:
            reason = self.problem or "this node is out of order"
            passing.refuse(reason)
            self._hub.abandon(UnavailableError(f"{reason}; whether this was taken is not known"))
        passing.tick(now)
        self._snapshots.tick(now)

    def _misconfigured(self, key: str, expected: str) -> ConfigError:
        value = self._settings.as_dict()[key]
        return ConfigError(key, value, source=self._settings.source(key), expected=expected)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
