"""A real node on a simulated machine: one life of its process, its connections, and all its lives."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from tests.simulation.cluster import BrokenPromiseError
from tests.simulation.machine import Machine, SimulatedLoop, SimulatedThreads

from headrace.cluster.effects import Status
from headrace.cluster.membership import MembershipEffect, Refuse, Reply
from headrace.config import Address, load
from headrace.errors import DamagedError, StorageError
from headrace.hub.publishing.intake import PublishIntake
from headrace.hub.sequence import Hub
from headrace.hub.services.entries import ServicePolicy, obey
from headrace.hub.state_parts import StateParts
from headrace.hub.steady_clock import SteadyClock
from headrace.message import Batch, node_id
from headrace.net.cluster.node import ClusterNode
from headrace.wire.parcel.body import (
    Body,
    DoViewChange,
    DscRes,
    Mode,
    NewState,
    NodeInfo,
    Ping,
    Pong,
    PrepareOk,
    StateChange,
)
from headrace.wire.parcel.stream import Parcel

if TYPE_CHECKING:
    from tests.simulation.nodes import World

RESTARTED_SECONDS = 1.0
"""What was committed so long before a restart is known after it."""

HUNG_SECONDS = 4.0
"""A node whose disk keeps it waiting for so long says so, and has given way if it was primary."""

Fsync = Literal["always", "interval", "never"]
PORTS = 7_000


class End:
    """One end of a connection, as a node sees it."""

    buffered = 0

    def __init__(self, process: Process, dialled: bool) -> None:
        self.process = process
        self.dialled = dialled
        self.other: End
        self.peer: NodeInfo | None = None
        self.admitted = True
        self._arrival = 0.0

    def post(self, body: Body, bulk: bytes = b"", *, certain: bool = False) -> bool:
        if not self.admitted:
            return False
        self._check(body)
        world = self.process.world
        way = self.process.machine, self.other.process.machine
        # In order, each after the one before.
        self._arrival = max(self._arrival, world.network.now + world.random.uniform(0.0001, 0.004))
        world.network.at(self._arrival, lambda: self._arrive(way, body, bulk))
        return True

    def _check(self, body: Body) -> None:
        """A node whose disk has failed to sync vouches for nothing more."""
        failed, now = self.process.machine.files.failed_at, self.process.world.network.now
        if isinstance(body, PrepareOk | DoViewChange) and failed is not None and now > failed + 0.1:
            raise BrokenPromiseError(f"{self.process.node.name} vouches for its log after a failed sync")

    def head_of(self, _body: Body, _bulk: bytes) -> bytes:
        return b"head"

    def post_as(self, _head: bytes, body: Body, bulk: bytes, *, certain: bool = False) -> bool:
        return self.post(body, bulk, certain=certain)

    def beat(self) -> None:
        self.post(Ping())
        self.post(StateChange(self.process.cluster.membership.mode))

    def _arrive(self, way: tuple[Machine, Machine], body: Body, bulk: bytes) -> None:
        if not self.admitted or not self.other.admitted:
            return
        world = self.process.world
        if way in world.cut:
            # What is lost on the way is not sent again over the same connection: it breaks, sooner or later.
            self.admitted = False
            world.network.at(world.network.now + world.random.uniform(0, 3), self.end)
        else:
            self.other.process.take(self.other, self.process.id, body, bulk)

    def end(self) -> None:
        """Close the connection; both ends learn of it."""
        for each in (self, self.other):
            each.admitted = False
            if each.process.loop.alive:
                each.process.loop.call_soon(each.process.lost, each)


class Process:
    """One life of a node."""

    def __init__(self, node: Node, fsync: Fsync) -> None:
        self.node = node
        self.world = world = node.world
        self.machine = node.machine
        self.id = node.id
        self.loop = SimulatedLoop(self.machine)
        slowest = world.ordeal.slowest
        threads = SimulatedThreads(self.machine, self.loop, slowest, in_order=False)
        writer = SimulatedThreads(self.machine, self.loop, slowest, in_order=True)
        self.settings = load(environ={}, sets=[*world.sets, *node.sets, f"log.fsync={fsync}"])
        self.parts = StateParts()
        self.clock = SteadyClock(lambda: self.machine.wall, lambda: int(self.machine.uptime * 1e6))
        self._ends: dict[Address, End | None] = {}
        self.cluster = ClusterNode(self.settings, threads, writer)
        self.log = self.cluster.open_log(self.machine.files.directory)
        self.known = self.log.head_op
        """What it knew to be committed when it was started."""
        self.hub = Hub(self.log, self.id, max_uncommitted=1 << 20, state=self.parts.state())
        self.hub.wake = lambda: self.loop.call_soon(self.hub.take_turn)
        self.hub.now = self.clock.now
        self.hub.doors.append(self)
        stages = self.machine.files.directory.with_name("stages")
        self.intake = PublishIntake(self.hub, self.parts.publishers, self.parts.queries, stages)
        self.peers = self.cluster.attach(self.hub, self.intake, node.address)
        self.cluster.became_primary = self._obey_policy
        self.driver = self.cluster._replication
        self.driver._random = Random(world.random.random())
        write = self.hub.write
        assert write is not None

        def appends(batches: Sequence[Batch], done: Any) -> bool:
            world.appends(batches)
            return write(batches, done)

        self.hub.write = appends
        self.shown = self.log.head
        self.committed: list[tuple[float, int]] = [(world.network.now, self.log.head_op)]

    def start(self) -> None:
        self.cluster.start()
        for peer in self.peers:
            self._ends[peer] = None
            self.loop.call_later(self.world.random.uniform(0, 0.1), self._dial, peer)
        if self.settings.log.fsync == "interval":
            self.loop.call_later(self.settings.log.fsync_interval, self._sync)
        self.loop.call_later(0.2, self._look)

    def end(self) -> None:
        """Be killed: nothing is written any more, and connections break."""
        self.loop.alive = False
        for end in self._ends.values():
            if end is not None:
                end.end()
        for end in [*self.world.ends]:
            if end.process is self:
                end.end()
        self.log._segments = ()
        if self.log.lock is not None:
            self.log.lock.release()
            self.log.lock = None

    @property
    def working(self) -> bool:
        return self.driver.status is Status.NORMAL and self.cluster.mode is Mode.WRK

    # What a hub's server does

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Show what is committed, as doors do."""
        for batch in batches:
            for message in batch:
                self.world.shown(self, message.seq, message.payload, message.time)
        self.committed.append((self.world.network.now, self.log.head_op))
        self.tell()

    def tell(self) -> None:
        """Tell whoever asks where the head is, if that is known; it never goes back, over all lives."""
        if self.hub.head_doubt() is not None:
            return
        if self.log.head < self.node.told:
            raise BrokenPromiseError(f"{self.node.name} tells of head {self.log.head} after {self.node.told}")
        self.node.told = self.log.head

    def check_head(self) -> None:
        """Nobody sees a part of what was appended together."""
        log = self.log
        if not log.first_op <= log.head_op:
            return
        with contextlib.suppress(DamagedError):
            last = next(iter(log.read_ops(log.head_op, log.head_op)[0]))
            if (log.head_op, last.node, last.time) in self.world.tied:
                raise BrokenPromiseError(f"{self.node.name} shows a part of a group, up to {log.head_op}")

    def _obey_policy(self) -> None:
        if not self.log.tail_op:
            self.hub.submit(obey(ServicePolicy()))

    def _sync(self) -> None:
        """Sync at intervals, as the log's upkeep does."""

        def done(future: Any) -> None:
            error = future.exception()
            if error is not None:
                self.cluster.sync_failed(error)
            else:
                self.loop.call_later(self.settings.log.fsync_interval, self._sync)

        if self.log.dirty:
            # A sync that is under way is known to the real log, not to one whose threads are played.
            self.driver._disk.beside(self.log.sync, done)
        else:
            self.loop.call_later(self.settings.log.fsync_interval, self._sync)

    def _look(self) -> None:
        facts = self.cluster.facts()
        if "WRK" in (self.cluster.mode.value, facts["nodes"][0]["mode"]) and facts["primary"] is None:  # type: ignore[index]
            raise BrokenPromiseError(f"{self.node.name} shows WRK and knows no primary")
        if self.machine.waited >= HUNG_SECONDS:
            if self.hub.sequencer is None:
                raise BrokenPromiseError(f"{self.node.name} keeps its place, though its disk hangs")
            if "disk" not in str(facts["problem"]):
                raise BrokenPromiseError(f"{self.node.name} does not tell that its disk hangs")
        self.clock.now()
        self.tell()
        self.check_head()
        if self.cluster.beginning_anew.is_set():
            self.world.begins_anew(self.node)
        else:
            self.loop.call_later(0.2, self._look)

    # Connections

    def _dial(self, peer: Address) -> None:
        world, target = self.world, self.world.at(peer)
        way = self.machine, target.machine
        process = target.process
        if process is None or way in world.cut or way[::-1] in world.cut:
            self.loop.call_later(world.random.uniform(0.2, 0.6), self._dial, peer)
            return
        here, there = End(self, dialled=True), End(process, dialled=False)
        here.other, there.other = there, here
        world.ends += [here, there]
        me, now = self.cluster.membership.me, process.machine.uptime
        answer: DscRes | None = None
        with process.machine.acting(process.loop):
            there.peer = me
            for effect in process.cluster.membership.asked(me, now, hello=True, source=peer.host):
                if isinstance(effect, Reply):
                    assert isinstance(effect.parcel.body, DscRes)
                    answer = effect.parcel.body
                elif not isinstance(effect, Refuse):
                    process.cluster.obey([effect])
        if answer is None:
            here.end()
            self.loop.call_later(1.0, self._dial, peer)
            return
        effects = self.cluster.membership.answered(str(peer), answer, self.machine.uptime, hello=True)
        self._ends[peer] = here
        here.peer = answer.neighbours[0]
        self._obey(here, effects)
        if here.admitted:
            self.cluster.joined(here, here.peer)  # type: ignore[arg-type]

    def take(self, end: End, sender: int, body: Body, bulk: bytes) -> None:
        """Take a parcel, as :class:`~headrace.net.cluster.parcel_door.ParcelStream` does."""
        if not self.loop.alive:
            return
        with self.machine.acting(self.loop):
            membership = self.cluster.membership
            if membership.refusal(sender, body) is not None:
                return
            self._obey(end, membership.heard(sender, self.machine.uptime))
            match body:
                case Ping():
                    end.post(Pong())
                case Pong():
                    pass
                case StateChange(mode):
                    membership.state_change(sender, mode)
                case _:
                    self.world.happened[type(body).__name__] += 1
                    self.cluster.take(end, Parcel(sender, body, bulk))  # type: ignore[arg-type]
                    if isinstance(body, NewState):
                        self.check_head()

    def lost(self, end: End) -> None:
        """Note that a connection is gone; dial again."""
        if end not in self.world.ends:
            return
        self.world.ends.remove(end)
        self.cluster.left(end)  # type: ignore[arg-type]
        for peer, known in self._ends.items():
            if known is end:
                self._ends[peer] = None
                self.loop.call_later(self.world.random.uniform(0.05, 0.5), self._dial, peer)

    def _obey(self, end: End, effects: Sequence[MembershipEffect]) -> None:
        for effect in effects:
            match effect:
                case Reply(parcel):
                    end.post(parcel.body)
                case Refuse():
                    end.end()
                    return
                case _:
                    self.cluster.obey([effect])


class Node:
    """One node of the cluster, through all its lives."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"node{number}"
        self.id = node_id(self.name)
        self.address = Address("127.0.0.1", PORTS + number)
        self.sets = [f"node.name={self.name}", f"listen.parcel={self.address}"]
        directory = world.directory / self.name
        self.machine = Machine(
            directory / "log", world.network, Random(world.random.random()), world.ordeal.skew
        )
        self.process: Process | None = None
        self.whole = True
        """Whether it has lost nothing that it has not recovered."""
        self.rotten = False
        """Whether a bit of its files is another than was written."""
        self.doomed = False
        """Whether its disk is about to fail for good."""
        self._weak = True
        self.fsync: Fsync | None = None
        """What it is started with, if that is not left to chance."""
        self.before: list[tuple[float, int]] = []
        """What it knew to be committed, and since when."""
        self.told = 0
        """The last head that it told anybody."""
        self.ended = 0.0
        """When it was ended, or its disk was last known to do anything before that."""

    def start(self) -> None:
        world, machine = self.world, self.machine
        if self.process is not None:
            return
        machine.wrong_by = 0
        fsync = self.fsync or world.random.choice(world.ordeal.fsync)
        loop = SimulatedLoop(machine)
        with machine.acting(loop):
            try:
                self.process = process = Process(self, fsync)
            except (StorageError, OSError) as error:
                self._cannot_start(error)
                return
        world.happened[f"started with {fsync}"] += 1
        machine.files.failed_at = None
        if self.before:
            limit = self.ended - RESTARTED_SECONDS
            known = max((op for when, op in self.before if when <= limit), default=0)
            if process.known < known:
                raise BrokenPromiseError(f"{self.name} knew {known} to be committed, and now {process.known}")
        with machine.acting(process.loop):
            process.tell()
            process.start()

    @property
    def weak(self) -> bool:
        """Whether something counts that is not synced: until it is stored that nothing does."""
        if self.process is not None:
            stored = self.process.driver.stored
            self._weak = stored is None or stored.fsync != "always"
        return self._weak

    def _cannot_start(self, error: Exception) -> None:
        """Do what an operator does: try again, or replace the node's disk."""
        world = self.world
        if isinstance(error, DamagedError) and not self.whole:
            world.happened["damaged"] += 1
            self.machine.files.empty()
            self.before = []
        elif not self.machine.files.full and not isinstance(error, DamagedError):
            world.happened["cannot start"] += 1
        elif isinstance(error, DamagedError):
            raise BrokenPromiseError(f"{self.name} lost nothing and does not start: {error}") from error
        world.network.at(world.network.now + 0.5, self.start)

    def end(self, kind: str) -> None:
        """End a life: killed, without power, emptied, or rotten."""
        world, machine = self.world, self.machine
        world.happened[kind] += 1
        weak = self.weak
        if self.process is not None:
            self.before = self.process.committed
            self.ended = min(world.network.now, machine.stalled_from)
            with machine.acting(self.process.loop):
                self.process.end()
            self.process = None
            machine.stop()
        if self.doomed:
            kind = "emptied"
        if kind != "killed":
            self.before = []
            machine.boot += kind != "rotten"
            machine.stall(0.0)
            machine.files.failing = False
        machine.files.failed_at = None
        if kind == "without power":
            machine.files.power_fails(None if self.fsync else world.random)
            self.whole = self.whole and not weak
        elif kind == "emptied":
            machine.files.empty()
            self.whole = False
        elif kind == "rotten":
            world.happened[f"rot in {machine.files.rot(world.random)}"] += 1
            self.whole = False
            self.rotten = True
