"""A cluster of real nodes on simulated machines and a simulated network, and publishers that are never told a lie.

A node here is what a hub runs: :class:`~headrace.net.cluster.node.ClusterNode` with its driver, membership, relay and
snapshots, the log, the hub with all parts of its state, and the publishing rules. Played are the machine under it
(:mod:`tests.simulation.machine`) and the connections, which keep their order and break, as TCP's do. What the rules
alone have to bear (lost, repeated and reordered parcels) is in :mod:`tests.simulation.cluster`.

:func:`live` builds a world from a seed, lets it suffer, heals it, and raises :class:`BrokenPromiseError` as soon as

- two nodes show different messages under one number, or one shows a number twice or out of order,
- a publisher is told a number under which there is something else, or two numbers for one message,
- a node is started again, without a loss, and does not know what it had committed a second before,
- a node tells of a head that is behind one it has told of, in any of its lives,
- a node shows a part of what was appended together,
- a node shows ``WRK`` and no primary,
- a node vouches for anything after a sync has failed, or keeps its place or silence while its disk hangs,
- a message is stamped later than a right clock could have, or earlier than the one before,
- a node gives up, though its disk has done nothing that cannot be borne,

or if the healed cluster does not agree, take a message from every publisher, and have the same state on every node.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.simulation.cluster import BrokenPromiseError
from tests.simulation.machine import Machine, simulated_system, true_time
from tests.simulation.network import Network
from tests.simulation.node_process import PORTS, End, Fsync, Node, Process
from tests.simulation.publishers import Publisher

from headrace.cluster.effects import Status
from headrace.config import Address
from headrace.errors import DamagedError, HeadraceError, StorageError
from headrace.message import Batch

SETTLE_SECONDS = 60.0
"""How long after everything is healed the cluster has to agree. Disks that hung and nodes that begin anew take some."""


@dataclass(frozen=True)
class Ordeal:
    """What a seed chooses."""

    size: int
    seconds: float
    fsync: tuple[Fsync, ...]
    """The modes that nodes are started with, chosen anew each time."""
    publishers: int
    pause: float
    """Seconds between a publisher's messages, on average."""
    ends: int
    partitions: int
    resets: int
    stalls: int
    sync_errors: int
    full: int
    rot: int
    steps: int
    upkeep: int
    down: float
    slowest: float
    """Seconds that a thread's work takes at most."""
    skew: float

    @classmethod
    def of(cls, random: Random) -> Ordeal:
        some = random.choice
        return cls(
            size=some([2, 3, 3, 3, 3, 4, 5]),
            seconds=some([5.0, 10.0]),
            fsync=some([("always",), ("interval",), ("always", "interval", "never"), ("never", "always")]),
            publishers=some([1, 2, 4]),
            pause=some([0.2, 0.6]),
            ends=some([0, 2, 5]),
            partitions=some([0, 1, 3]),
            resets=some([0, 3]),
            stalls=some([0, 0, 1, 3]),
            sync_errors=some([0, 0, 0, 1]),
            full=some([0, 0, 1, 2]),
            rot=some([0, 0, 1]),
            steps=some([0, 0, 1]),
            upkeep=some([0, 0, 2, 5]),
            down=some([0.3, 2.0]),
            slowest=some([0.001, 0.02, 0.3]),
            skew=some([0.0, 0.0, 0.1]),
        )


class World:
    """One seed's cluster of real nodes."""

    def __init__(self, seed: int, directory: Path, **chosen: Any) -> None:
        self.random = random = Random(seed)
        self.ordeal = ordeal = replace(Ordeal.of(random), **chosen)
        self.directory = directory
        self.network = Network(Random(random.random()), 0.0)
        self.happened: Counter[str] = Counter()
        self.suffering = True
        self.cut: set[tuple[Machine, Machine]] = set()
        self.ends: list[End] = []
        self.messages: dict[int, bytes] = {}
        """What was shown under each number, to anybody, at any node."""
        self.numbers: dict[bytes, int] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.tied: set[tuple[int, int, int]] = set()
        """Operations that were appended together with the next one: position, node and time."""
        peers = ",".join(f"127.0.0.1:{PORTS + number}" for number in range(ordeal.size))
        self.sets = [f"cluster.peers={peers}", "log.segment_bytes=64KiB"]
        self.nodes = [Node(self, number) for number in range(ordeal.size)]
        self.publishers = [Publisher(self, number) for number in range(ordeal.publishers)]
        for node in self.nodes:
            self.network.at(random.uniform(0, 0.5), node.start)
        for publisher in self.publishers:
            self.network.at(random.uniform(1, 3), publisher.next)
        faults: dict[Callable[[], None], int] = {
            self._end: ordeal.ends,
            self._partition: ordeal.partitions,
            self._reset: ordeal.resets,
            self._stall: ordeal.stalls,
            self._fail_sync: ordeal.sync_errors,
            self._fill: ordeal.full,
            self._rot: ordeal.rot,
            self._step: ordeal.steps,
            self._upkeep: ordeal.upkeep,
        }
        for fault, count in faults.items():
            for _ in range(count):
                self.network.at(random.uniform(3, 3 + ordeal.seconds), fault)

    def run(self) -> None:
        until = 3 + self.ordeal.seconds
        self.network.run(lambda: False, until)
        self.suffering = False
        self.cut.clear()
        for node in self.nodes:
            node.machine.stall(0.0)
            node.machine.files.full = node.machine.files.failing = False
            node.machine.wrong_by = 0
            if node.process is not None and node.process.cluster.membership.fault:
                self._operate(node)
        self._heal()
        for _ in range(int(SETTLE_SECONDS / 0.5)):
            self.network.run(lambda: False, self.network.now + 0.5)
            if self._settled():
                break
        else:
            raise BrokenPromiseError(f"no agreement: {self._where()}")
        self._check()

    def at(self, address: Address) -> Node:
        return next(node for node in self.nodes if node.address == address)

    def begins_anew(self, node: Node) -> None:
        """Do what a hub's process does when its log has to begin after a snapshot."""
        process = node.process
        assert process is not None
        self.happened["began anew"] += 1
        with node.machine.acting(process.loop):
            time = process.log.last_time
            process.end()
            node.machine.stop()
            process.hub.log.last_time = time
            process.cluster.begin_anew(node.machine.files.directory)
        node.process, node.before = None, []
        self.network.at(self.network.now + 0.1, node.start)

    # What everybody sees

    def shown(self, process: Process, seq: int, payload: bytes, time: int) -> None:
        """A node shows a message at its doors."""
        if seq != process.shown + 1:
            raise BrokenPromiseError(f"{process.node.name} shows {seq} after {process.shown}")
        process.shown = seq
        known = self.messages.setdefault(seq, payload)
        if known != payload:
            raise BrokenPromiseError(f"{process.node.name} shows {payload!r} as {seq}, others {known!r}")
        if self.numbers.setdefault(payload, seq) != seq:
            raise BrokenPromiseError(f"{payload!r} is {self.numbers[payload]} and {seq}")
        if time > true_time(self.network) + 2_000_000:
            raise BrokenPromiseError(f"message {seq} is stamped {time - true_time(self.network)} µs ahead")

    def appends(self, batches: Sequence[Batch]) -> None:
        """A primary appends batches together."""
        for place, batch in enumerate(batches, 1):
            ops = {(op, batch.node, batch.time) for op in range(batch.op, batch.last_op + 1)}
            # What it wanted to append there at this moment before was refused by the disk.
            self.tied -= ops
            if len(batches) > 1 or batch.tied:
                self.tied |= ops
                if place == len(batches) and not batch.tied:
                    self.tied.remove((batch.last_op, batch.node, batch.time))

    def acknowledged_at(self, first: int, payloads: list[bytes]) -> None:
        for seq, payload in enumerate(payloads, first):
            self.acknowledged[payload] = seq
            if self.messages.get(seq, payload) != payload or self.numbers.get(payload, seq) != seq:
                raise BrokenPromiseError(
                    f"{payload!r} is acknowledged as {seq}, which is {self.messages.get(seq)!r}"
                )

    # Faults

    def _losable(self, node: Node) -> bool:
        """Whether a node may lose something: fewer than a majority may at a time."""
        for each in self.nodes:
            process = each.process
            if (
                process is not None
                and process.driver.replica is not None
                and process.driver.stored is not None
            ):
                state, stored = process.driver.replica.state, process.driver.stored.state
                # What is not stored yet may never be.
                votes = state.voter and stored.voter and state.status is Status.NORMAL
                each.whole = (each.whole or votes) and not each.doomed
        lost = sum(not other.whole for other in self.nodes if other is not node)
        return lost < self.ordeal.size - self.ordeal.size // 2 - 1

    def _end(self) -> None:
        node = self.random.choice(self.nodes)
        kinds = ["killed"]
        losable = self._losable(node)
        if losable or (not node.weak and node.process is not None):
            kinds += ["without power", "without power"]
        if losable:
            kinds.append("emptied")
        self._end_by(node, self.random.choice(kinds))

    def _end_by(self, node: Node, kind: str) -> None:
        node.end(kind)
        self.network.at(self.network.now + self.random.expovariate(1 / self.ordeal.down), node.start)

    def _rot(self) -> None:
        node = self.random.choice(self.nodes)
        if self._losable(node):
            self._end_by(node, "rotten")

    def _partition(self) -> None:
        machines = [node.machine for node in self.nodes]
        group = set(self.random.sample(machines, self.random.randint(1, len(machines) - 1)))
        one_way = self.random.random() < 0.3
        cut = {
            (a, b)
            for a in machines
            for b in machines
            if (a in group) != (b in group) and (not one_way or a in group)
        }
        self.cut |= cut
        self.happened["partition"] += 1
        self.network.at(self.network.now + self.random.uniform(0, 8), lambda: self.cut.difference_update(cut))

    def _reset(self) -> None:
        if self.ends:
            self.happened["reset"] += 1
            self.random.choice(self.ends).end()

    def _stall(self) -> None:
        machine = self.random.choice(self.nodes).machine
        self.happened["stall"] += 1
        machine.stall(self.random.choice([0.3, 1.0, 6.0]))

    def _fail_sync(self) -> None:
        """A sync fails: the system forgets what it covered, and the node gives up. Somebody sees to it."""
        node = self.random.choice(self.nodes)
        if not self._losable(node) or node.process is None:
            return
        self.happened["failed sync"] += 1
        node.machine.files.failing = node.doomed = True
        node.whole = False

        def replaced() -> None:
            node.machine.files.failing = node.doomed = False
            if node.process is not None and node.process.log.failure is not None:
                self._operate(node)

        self.network.at(self.network.now + 3, replaced)

    def _operate(self, node: Node) -> None:
        """Start a node again that has given up for a reason that is its disk's, or replace it."""
        process = node.process
        assert process is not None
        if process.log.failure is None:
            raise BrokenPromiseError(f"{node.name} gives up: {process.cluster.membership.fault}")
        self._end_by(node, self.random.choice(["without power", "emptied"]))
        node.whole = False

    def _fill(self) -> None:
        files = self.random.choice(self.nodes).machine.files
        self.happened["full disk"] += 1
        files.full = True
        self.network.at(self.network.now + self.random.uniform(0.1, 4), lambda: setattr(files, "full", False))

    def _step(self) -> None:
        machine = self.random.choice(self.nodes).machine
        self.happened["clock step"] += 1
        machine.wrong_by = self.random.choice([25, -25]) * 3_600_000_000
        self.network.at(self.network.now + 4, lambda: setattr(machine, "wrong_by", 0))

    def _upkeep(self) -> None:
        """Seal, keep a snapshot, and trim, as a hub does in threads."""
        node = self.random.choice(self.nodes)
        process = node.process
        if process is None or process.log.failure is not None or node.machine.files.full:
            return
        self.happened["upkeep"] += 1
        log, state = process.log, process.hub.state
        with node.machine.acting(process.loop), contextlib.suppress(StorageError):
            log.rotate()
            while log.seal_next() is not None:
                pass
            if state.op > (log.snapshot.op if log.snapshot is not None else 0):
                log.write_snapshot(state.op, state.seq, state.sections())
            if self.random.random() < 0.6:
                log.retain(process.clock.now(), retain_bytes=0, retain_us=None, holds={})

    # The end

    def _heal(self) -> None:
        for node in self.nodes:
            node.start()
        for publisher in self.publishers:
            publisher.finish()

    def _settled(self) -> bool:
        processes = [node.process for node in self.nodes if node.process is not None]
        return (
            len(processes) == len(self.nodes)
            and all(process.working for process in processes)
            and len({(process.log.head_op, process.log.tail_op) for process in processes}) == 1
            and all(process.log.head_op == process.log.tail_op for process in processes)
            and all(publisher.finished for publisher in self.publishers)
        )

    def _check(self) -> None:
        for payload, seq in self.acknowledged.items():
            if self.messages.get(seq) != payload:
                raise BrokenPromiseError(f"{payload!r} is {seq} no more: {self.messages.get(seq)!r}")
        states = []
        for node in self.nodes:
            process = node.process
            assert process is not None
            try:
                self._check_log(process)
            except DamagedError as damage:
                # A sealed segment's messages are checked when they are read.
                if not node.rotten:
                    raise BrokenPromiseError(f"{node.name}: {damage}") from damage
                self.happened["damage found"] += 1
            if process.log.head != max(self.messages, default=0):
                raise BrokenPromiseError(f"{node.name} ends at {process.log.head}")
            states.append(process.hub.state.sections())
        for name in states[0]:
            if any(state[name] != states[0][name] for state in states):
                raise BrokenPromiseError(f"the nodes' states differ in {name}")
        self.happened["messages"] += len(self.messages)

    def _check_log(self, process: Process) -> None:
        before = 0
        for batch in process.log.scan(process.log.first):
            for message in batch:
                if self.messages.get(message.seq) != message.payload or message.time < before:
                    raise BrokenPromiseError(f"{process.node.name} has {message!r} in its log")
                before = message.time

    def close(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                with node.machine.acting(node.process.loop):
                    node.process.end()
                node.process = None

    def _where(self) -> str:
        def of(node: Node) -> str:
            process = node.process
            if process is None:
                return f"{node.name} is down"
            log = process.log
            with node.machine.acting(process.loop):
                problem = process.cluster.problem
            return (
                f"{node.name} {process.cluster.mode.value} {process.driver.status.value}"
                f" at {log.head_op}/{log.tail_op} ({problem})"
            )

        waiting = [publisher.name for publisher in self.publishers if not publisher.finished]
        return "; ".join(map(of, self.nodes)) + f"; waiting: {waiting}"


def live(seed: int, directory: Path, play: Callable[[World], None] = lambda _: None, **chosen: Any) -> World:
    """Let a seed's world run, with what is ``chosen`` in place of what the seed chooses.

    ``play`` may plan what happens besides.
    """
    logger = logging.getLogger("headrace")
    before, logger.disabled = logger.disabled, True
    try:
        with simulated_system():
            world = World(seed, directory, **chosen)
            play(world)
            try:
                world.run()
            except (AssertionError, HeadraceError) as broken:
                raise BrokenPromiseError(f"seed {seed} at {world.network.now:.3f} s: {broken}") from broken
            finally:
                world.close()
    finally:
        logger.disabled = before
    return world
