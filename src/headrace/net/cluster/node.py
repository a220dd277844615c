"""A node of a cluster: the connections between its membership, its replica, its hub and the other nodes.

Membership (:class:`~headrace.cluster.Membership`), replication (:mod:`~headrace.net.cluster.replica_driver`) and the
requests to the primary (:mod:`~headrace.hub.publishing.relaying.primary_client`) decide; a :class:`ClusterNode` carries
parcels between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from headrace.cluster import durable_state as states
from headrace.cluster.durable_state import StoredState
from headrace.cluster.effects import Status
from headrace.cluster.membership import (
    SILENCE_SECONDS,
    Discover,
    Heartbeat,
    Membership,
    MembershipEffect,
    ModeChanged,
    NeighbourJoined,
    NeighbourRemoved,
)
from headrace.config import Address, Settings
from headrace.errors import StorageError, UnavailableError, UsageError
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.publishing.relaying.primary_client import PrimaryClient
from headrace.hub.publishing.relaying.primary_requests import PrimaryAnswer, parse_bulk, serialize_answer
from headrace.hub.sequence import Hub
from headrace.log import Log
from headrace.log.snapshots.snapshot import Snapshot
from headrace.log.snapshots.start_after import install
from headrace.message import node_id
from headrace.net.cluster.parcel_door import MAX_QUEUED, ParcelHost, ParcelStream
from headrace.net.cluster.peer_connections import DialledStream
from headrace.net.cluster.replica_driver import ReplicaDriver
from headrace.net.cluster.settings import addresses_of
from headrace.net.cluster.transfers import Snapshots
from headrace.net.server.machine.log_disk import LogDisk
from headrace.net.server.machine.writer_thread import Writer, WriterThread
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


class ClusterNode(ParcelHost):
    """This node's part in its cluster."""

    def __init__(self, settings: Settings, disk: Executor, writer: Writer | None = None) -> None:
        self._settings = settings
        self._threads = disk
        self._writer: Writer = writer or WriterThread()
        self._name = settings.node.name
        self._id = node_id(settings.node.name)
        self.membership: Membership
        self._hub: Hub
        self._intake: PublishIntake
        self._replication: ReplicaDriver
        self._primary: PrimaryClient
        self._snapshots: Snapshots
        self._stored: StoredState | None = None
        self._peers: tuple[Address, ...] = ()
        self.streams: dict[int, DialledStream] = {}
        self._seqs: dict[int, int] = {}
        """Each node's sequence number when it last told."""
        self._silent: dict[int, tuple[NodeInfo, float]] = {}
        """Nodes of the cluster that are not heard, and when they last were."""
        self._fetched: Snapshot | None = None
        self._head_known = False
        """Whether this node's head is known not to be behind what it was before the node was started."""
        self._present: int | None = None
        """The primary that is there, as of the last look: what is shown, and what the mode follows from."""
        self._closed = False
        self.ask = lambda _address, _heartbeat: None
        self.became_primary: Callable[[], None] = lambda: None
        self.beginning_anew = asyncio.Event()
        """Set when the log has to begin anew: drain the hub, call :meth:`begin_anew`, and start another one."""

    # What the server asks

    def open_log(self, directory: Path) -> Log:
        """Open this node's log: only what is known to be committed is shown."""
        options = self._settings.log
        log, self._stored = states.open_log(
            directory, fsync=options.fsync, segment_bytes=options.segment_bytes
        )
        return log

    def attach(self, hub: Hub, intake: PublishIntake, door: Address | None) -> tuple[Address, ...]:
        """Take over numbering and committing from a hub; return the peers to dial.

        ``door`` is where the node will listen. Nothing is numbered here until its peers are there.
        """
        now = self._now()
        nodes = self._stored.state.nodes if self._stored is not None else ()
        host, self._peers = addresses_of(self._settings, door, len(nodes))
        info = NodeInfo(self._id, Mode.DSC, self._name, host)
        self.membership = Membership(info, map(str, self._peers), nodes=nodes)
        self.obey(self.membership.start(now))
        self._hub, self._intake = hub, intake
        patience = self._settings.cluster.publish_seconds
        self._primary = PrimaryClient(hub, intake, patience=patience, name=lambda: uuid4().hex, now=now)
        self._primary.schedule = self._schedule
        hub.sequencer = self._primary
        hub.head_doubt = self._head_doubt
        self._snapshots = Snapshots(hub, self._has_fetched, self._now, self._make_snapshot)
        disk = LogDisk(hub.log, self._threads, self._writer)
        disk.keep_note()
        self._replication = ReplicaDriver(
            self._id, self.membership.size, hub, self._stored, self, self._primary, disk
        )
        return self._peers

    def start(self) -> None:
        """Take part."""
        self._replication.start(self._ticked)

    def sync_failed(self, error: StorageError) -> None:
        """Take no part any more: another node takes over what this one can no longer vouch for."""
        self._replication.sync_failed(error)

    async def flush(self) -> None:
        """Wait until nothing is under way."""
        while self._primary.busy:  # noqa: ASYNC110 -- at the end of a hub's life
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Stop taking part."""
        self._closed = True
        self._replication.close()
        self._primary.close()
        self._writer.shutdown(wait=False)

    def begin_anew(self, directory: Path) -> None:
        """Replace the log, which is closed, by one that begins after the fetched snapshot."""
        snapshot, stored = self._fetched, self._replication.stored
        if snapshot is None or stored is None:
            raise UsageError("there is no snapshot to begin after")
        install(directory, snapshot, self._hub.log.last_time)
        state = replace(stored.state, commit=snapshot.op)
        states.save(directory / states.STATE_FILE, replace(stored, state=state, log=str(snapshot.uuid)))
        logger.info("the log begins anew after message %d", snapshot.seq)

    @property
    def mode(self) -> Mode:
        """This node's general status."""
        return self.membership.mode

    @property
    def problem(self) -> str | None:
        """What keeps this node from working fully, if anything."""
        if self.membership.fault or self._replication.trouble:
            return self.membership.fault or self._replication.trouble
        size = self.membership.size
        match self.mode:
            case Mode.WRK:
                return self._head_doubt()
            case Mode.ERR:
                seen = 1 + sum(self._age(node) is not None for node in self.membership.members)
                return (
                    f"this node sees {seen} of the cluster's {size} nodes, no majority: it takes no messages"
                )
            case _:
                replica = self._replication.replica
                doing = "not begun" if replica is None else replica.state.status.value
                missing = [
                    str(peer) for peer in self._peers if self._age(self.membership.at(str(peer))) is None
                ]
                without = f", without {', '.join(missing)}" if missing else ""
                return f"this node is finding its place in the cluster ({doing}{without})"

    def not_yet(self) -> str | None:
        """Why clients cannot be served yet, if so: they would take this node's empty log for the cluster's."""
        if self._hub.log.tail_op:
            return None
        return f"this node has nothing of the cluster's log yet: {self.problem or 'it is about to get it'}"

    def _head_doubt(self) -> str | None:
        """Why this node's head may be behind what it was before the node was started, if so."""
        # Once known, it is known for good: in one life, a head never goes back.
        self._head_known = self._head_known or self._replication.caught_up_with_itself
        if self._head_known:
            return None
        return "this node was started again, and does not know yet how much is committed of what it has"

    def vouch(self) -> None:
        """Trust this node's disk as it is, on an operator's word."""
        self._replication.vouch()

    def facts(self) -> dict[str, object]:
        """Describe the cluster for the status."""
        primary, replica = self._present, self._replication.replica
        infos = {info.id: info for info in self.membership.neighbours}
        nodes = [self._fact(self.membership.me, primary, 0.0)]
        configured: set[int | None] = set()
        for address in self._peers:
            if (document := self.membership.document_node_at(str(address))) is not None:
                configured.add(document.id)
                fact = self._fact(document, None, self._age(document.id))
                nodes.append({**fact, "role": "document only"})
                continue
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
            "view": 0 if replica is None else replica.state.view,
            "status": "stopped" if replica is None else replica.state.status.value,
            "primary": None if primary is None else self._called(primary),
            "nodes": nodes,
            "problem": self.problem,
        }

    def _called(self, node: int) -> str:
        """A node's name, or its id if no more is known."""
        if node == self._id:
            return self._name
        infos = [*self.membership.neighbours, *(info for info, _ in self._silent.values())]
        return next((info.name for info in infos if info.id == node), str(node))

    def _age(self, node: int | None) -> float | None:
        """Seconds since a node was heard; ``None`` if it is not here."""
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

    def obey(self, effects: Sequence[MembershipEffect]) -> None:
        """Carry out what the membership asks for."""
        for effect in effects:
            match effect:
                case Discover(host, heartbeat):
                    address = Address(*parse_host(host))
                    if heartbeat or address not in self._peers:  # those are dialled all the time
                        self.ask(address, heartbeat)
                case Heartbeat(to):
                    for node in to:
                        if (stream := self.streams.get(node)) is not None:
                            stream.beat()
                case ModeChanged(mode):
                    logger.info("this node's mode is %s", mode.value)
                    for stream in tuple(self.streams.values()):
                        stream.post(StateChange(mode))
                case NeighbourJoined(info, member, hello):
                    self._silent.pop(info.id, None)
                    kind = "node" if member else "neighbour"
                    vote = "" if hello else ", speaks only the document and never votes"
                    logger.info("%s %s (%s) is here%s", kind, info.name, info.host, vote)
                case NeighbourRemoved(info):
                    if info.id in self.membership.members:
                        self._silent[info.id] = (info, self._now() - SILENCE_SECONDS)
                    logger.warning("node %s (%s) has fallen silent", info.name, info.host)
                case _:
                    pass

    def joined(self, stream: DialledStream, info: NodeInfo) -> None:
        """Send to this peer on its new connection from now on."""
        self.streams[info.id] = stream
        self.settled()

    def is_at(self, node: int, seq: int) -> None:
        """Note a node's sequence number."""
        if node in self.membership.members:
            self._seqs[node] = seq

    def left(self, stream: ParcelStream) -> None:
        """Forget a connection that is closed."""
        peer = stream.peer
        self._intake.forget(stream)
        self._snapshots.left(stream)
        if peer is not None and self.streams.get(peer.id) is stream:
            del self.streams[peer.id]
            self.settled()

    def _make_snapshot(self, make: Callable[[], bytes], then: Callable[[bytes | None], None]) -> None:
        making = asyncio.get_running_loop().run_in_executor(self._threads, make)

        def made(done: asyncio.Future[bytes]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                logger.error("the state could not be packed for another node: %s", error)
            then(None if error is not None else done.result())

        making.add_done_callback(made)

    def tick(self, now: float) -> None:
        """Ignore it: the replica's driver has a clock of its own."""

    def take(self, stream: ParcelStream, parcel: Parcel) -> None:
        """Hand a parcel to the rules that it concerns."""
        match parcel.body:
            case Publish(view, request):
                self._answer(stream, view, request, parcel.bulk)
            case Ack() as ack:
                self._primary.acknowledged(stream, ack, parcel.bulk, self._now())
            case GetSnapshot() as ask:
                self._snapshots.asked(stream, ask)
            case SnapshotPart() as part:
                self._snapshots.came(stream, part, parcel.bulk)
            case body:
                replication: Replication = body  # type: ignore[assignment]
                self._replication.receive(parcel.id, replication, parcel.bulk)

    def _answer(self, stream: ParcelStream, view: int, request: int, bulk: bytes) -> None:
        asked, body = parse_bulk(bulk)

        def told(answer: PrimaryAnswer) -> None:
            ack = Ack(view, request, answer.first or 0, answer.last or 0)
            stream.post(ack, serialize_answer(answer), certain=True)
            # The node answers its client when it knows what is committed.
            if stream.peer is not None:
                self._replication.tell(stream.peer.id)

        self._intake.answer(stream, asked, body, told)

    # What the replica wants

    def takes(self, to: int) -> bool:
        """Whether a node is connected, and its connection has room."""
        stream = self.streams.get(to)
        if stream is not None and stream.buffered > MAX_QUEUED:
            self._hub.counters.add("parcels_dropped")
            return False
        return stream is not None

    def broadcast(self, body: Replication, bulk: bytes) -> None:
        """Send a parcel to every other node that is connected."""
        head: bytes | None = None
        for stream in tuple(self.streams.values()):
            head = head or stream.head_of(body, bulk)
            if head is None:
                return
            stream.post_as(head, body, bulk)

    def fetch_snapshot(self, token: int, source: int, after: int) -> None:
        """Fetch a snapshot that reaches past operation ``after`` in the background."""
        seq = self._hub.log.seq_of(after)
        logger.info("fetching a snapshot: the others no longer keep what follows message %d", seq)
        asyncio.get_running_loop().call_soon(self._snapshots.fetch, self.streams.get(source), token, after)

    def install(self) -> None:
        """Ask the server to begin anew."""
        self.beginning_anew.set()

    def is_now(self, status: Status, view: int, primary: int | None) -> None:
        """Note the replica's new status, view and primary."""
        who = "this node" if primary == self._id else f"node {self._called(primary or 0)}"
        if status is Status.NORMAL and primary is not None:
            logger.info("view %d: %s is primary, from message %d on", view, who, self._hub.log.tail + 1)
        else:
            logger.info("view %d: %s", view, status.value)
        replica = self._replication.replica
        if replica is not None and replica.state.nodes:
            self.membership.began(replica.state.nodes)
        self._look_for_primary(status)

    def _look_for_primary(self, status: Status) -> None:
        self._present = self._replication.present_primary
        found = self._present is not None
        self.obey(self.membership.replica_is(status, self._now(), primary=found))

    def halted(self, reason: str) -> None:
        """Note that the node cannot go on."""
        self.obey(self.membership.failed(reason))

    def numbers_here(self) -> None:
        """Number messages here from now on, those that were to be relayed included."""
        self._primary.aim_here(self._now())
        self.became_primary()

    def settled(self) -> None:
        """Send requests to the present primary, unless that is this node."""
        if self._hub.sequencer is None or self._closed:
            return
        primary, replica = self._replication.primary, self._replication.replica
        stream = None if primary is None else self.streams.get(primary)
        self._primary.aim(stream, 0 if replica is None else replica.state.view, self._now())

    def _has_fetched(self, token: int, snapshot: Snapshot | None) -> None:
        self._fetched = snapshot
        op, uuid = (None, None) if snapshot is None else (snapshot.op, snapshot.uuid)
        self._replication.fetched(token, op, uuid)

    def _ticked(self, now: float) -> None:
        self._look_for_primary(self._replication.status)
        self.obey(self.membership.tick(now))
        if self.mode is Mode.ERR:
            reason = self.problem or "this node is out of order"
            self._primary.refuse(reason)
            self._hub.abandon(UnavailableError(f"{reason}; whether this was taken is not known"))
        self._primary.tick(now)
        self._snapshots.tick(now)

    def _schedule(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(when, lambda: None if self._closed else self._primary.tick(loop.time()))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
