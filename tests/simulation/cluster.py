"""A cluster on a simulated network, with disks that lose what was not synced, and what must be true of it.

The rules and the testimonies' bytes are the real ones; sockets, clocks and disks are played. :func:`simulate` builds a
world from a seed, lets it suffer, heals it, and raises :class:`BrokenPromiseError` as soon as

- two nodes have different operations at one position that both hold to be committed,
- something is committed, and so acknowledged, that a majority has never had,
- something is committed that ends within a group,
- a view starts without something that was committed, or a node cuts off what it had committed,
- a node gives up,

or if the healed cluster does not agree, and go on, within :data:`SETTLE_SECONDS`. In the end, on every node, messages
have the numbers 1, 2, 3, … without a hole, every entry stands at the same place among them, and the state that a node
made of the entries has each of them once, in order, whatever snapshots and restarts it went through.

An operation is played by a text of its own (:class:`Op`). What a driver does with operations, and could do wrong if it
counted messages instead, is in :class:`Positions`, which tests break on purpose.

A node can be ended between any two effects, in three ways: killed (what was written stays), without power (any part of
what was not synced is gone), or with its disk emptied. What counts as a loss happens to fewer nodes than a majority at
a time, as the promise has it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple

from tests.simulation.network import Endpoint, Network

from headrace.cluster.durable_state import DurableState
from headrace.cluster.effects import (
    Advance,
    Append,
    Become,
    Broadcast,
    CutBack,
    Effect,
    FetchSnapshot,
    Halt,
    Install,
    Persist,
    Send,
    Serve,
    Status,
    Sync,
)
from headrace.cluster.history import History
from headrace.cluster.replica import Replica
from headrace.cluster.replica_state import Timing
from headrace.errors import HeadraceError
from headrace.wire.parcel.body import DoViewChange, NewState, Prepare, Replication, StartView

SETTLE_SECONDS = 30.0
"""How long after everything is healed all nodes must agree and have a new message. It is a dozen of patience."""


ENTRY = "entry "
"""What the text of an entry begins with; all others are messages."""

TIED = " of a group that goes on"
"""What the text of an operation ends with that is committed together with the next one."""


class BrokenPromiseError(AssertionError):
    """A promise was not kept."""


class EndedError(Exception):
    """A node was ended in the middle of its work."""


class Op(NamedTuple):
    """A message and its number, or an entry and the number of the message that it stands after."""

    seq: int
    text: str

    @property
    def is_entry(self) -> bool:
        return self.text.startswith(ENTRY)

    @property
    def is_tied(self) -> bool:
        return self.text.endswith(TIED)


class Applied(NamedTuple):
    """An entry that has changed a node's state, and its position."""

    position: int
    op: Op


class Snapshot(NamedTuple):
    """The state after the operation at ``position``."""

    position: int = 0
    state: tuple[Applied, ...] = ()


NO_SNAPSHOT = Snapshot()


class Positions:
    """What becomes of operations in a driver, its log and its hub."""

    def served(self, ops: Sequence[Op], first: int, last: int) -> tuple[Op, ...]:
        """What a node sends of its log."""
        return tuple(ops[first - 1 : last])

    def cut_back(self, ops: Sequence[Op], last: int) -> list[Op]:
        """What a cut leaves of a log."""
        return list(ops[:last])

    def to_apply(self, ops: Sequence[Op], after: int, last: int) -> Iterator[Applied]:
        """The entries that a state at position ``after`` lacks of a log that is committed up to ``last``."""
        for position in range(after + 1, last + 1):
            if ops[position - 1].is_entry:
                yield Applied(position, ops[position - 1])


BY_POSITION = Positions()


def tied(ops: Sequence[Op], first: int) -> list[tuple[int, int]]:
    """Those of some operations, of which the first is at position ``first``, that are tied to the next."""
    return [(position, position) for position, op in enumerate(ops, first) if op.is_tied]


def whole(ops: Sequence[Op], position: int) -> int:
    """The last position up to this one that is not within a group: segments and states end nowhere else."""
    while position and ops[position - 1].is_tied:
        position -= 1
    return position


def edge(ops: Sequence[Op], position: int) -> str:
    """What is on both sides of the place after a position."""
    sides = ops[position - 1 : position] if position else [], ops[position : position + 1]
    return " | ".join("nothing" if not side else "entry" if side[0].is_entry else "message" for side in sides)


def numbered(after: Op | None, texts: Iterable[str]) -> Iterator[Op]:
    """Number what is published, as a primary does: messages count on, entries stand after the newest one."""
    seq = 0 if after is None else after.seq
    for text in texts:
        seq += not text.startswith(ENTRY)
        yield Op(seq, text)


@dataclass
class Parcel:
    """What goes from node to node."""

    body: Replication
    bulk: bytes
    ops: tuple[Op, ...]
    first: int


@dataclass
class Disk:
    """What is left of a node when it ends."""

    ops: list[Op] = field(default_factory=list)
    """All that the log has had from 1 on, also what was trimmed, to compare it."""
    first: int = 1
    snapshot: Snapshot = NO_SNAPSHOT
    synced: int = 0
    cuts: int = 0
    state: DurableState | None = None
    lossless: bool = True
    """Whether nothing that should be here has been lost."""


@dataclass(frozen=True)
class Scenario:
    """What a seed chooses."""

    size: int
    synced_only: bool
    founded: bool
    worst: float
    seconds: float
    publishes: int
    ends: int
    ends_within: float
    partitions: int
    trims: int
    skew: float
    pause: float
    """How long a node stays down, on average."""
    timing: Timing

    disk: float
    """How long a sync takes at most."""
    ambushes: float
    """How likely a node is to end just after it has reported to a new primary."""
    held: float
    """How likely a parcel of a view change is to be held up for long."""
    entries: float
    """How likely an operation is to be an entry."""
    groups: float
    """How likely operations are to be a group."""

    @classmethod
    def of(cls, random: Random) -> Scenario:
        hasty = random.random() < 0.7
        return cls(
            size=random.choice([1, 2, 3, 3, 3, 3, 3, 4, 5, 5]),
            synced_only=random.random() < 0.5,
            founded=random.random() < 0.8,
            worst=random.choice([0.0, 0.05, 0.2, 0.4]),
            seconds=random.choice([3.0, 6.0]) if hasty else random.choice([10.0, 20.0]),
            publishes=random.choice([20, 60, 120]),
            ends=random.choice([0, 3, 6, 12]),
            ends_within=random.choice([0.0, 0.0, 0.002, 0.01]),
            partitions=random.choice([0, 3, 6, 12]),
            trims=random.choice([0, 0, 3, 8]),
            skew=random.choice([0.0, 0.0, 0.2]),
            pause=random.choice([0.05, 0.3, 2.0]),
            # In haste, views change all the time, and what was sent in one arrives in the next but one.
            timing=Timing(beat=0.05, patience=random.choice([0.15, 0.3])) if hasty else Timing(),
            disk=random.choice([0.01, 0.01, 0.2]),
            ambushes=random.choice([0.0, 0.0, 0.3]),
            held=random.choice([0.0, 0.0, 0.3]),
            entries=random.choice([0.0, 0.2, 0.5, 0.9]),
            groups=0.0,
        )


class Node:
    """What a driver does: hand inputs to the replica, and do as it says, in order."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.id = number
        self.endpoint: Endpoint = ("node", number)
        self.disk = Disk()
        self.replica: Replica | None = None
        self.numbered: dict[int, Op] = {}
        """What this node has numbered and not acknowledged yet, by position."""
        self.commit = 0
        self.parts: list[list[str]] = []
        """The parts of a group that are not appended yet."""
        self.state: list[Applied] = []
        self._received: Parcel | None = None
        self._snapshots: dict[int, tuple[list[Op], Snapshot]] = {}
        self._rate = 1 + world.random.uniform(-1, 1) * world.scenario.skew
        self._offset = world.random.uniform(0, 1_000)
        self._life = 0

    def start(self) -> None:
        scenario, disk = self.world.scenario, self.disk
        self._life += 1
        intact = disk.lossless or scenario.synced_only
        while len(disk.ops) > disk.snapshot.position and disk.ops[-1].is_tied:
            # A group that is not whole is a torn end.
            disk.ops.pop()
            self.world.happened["torn group"] += 1
        disk.synced = min(disk.synced, len(disk.ops))
        self.replica = self.world.rules(
            self.id,
            scenario.size,
            stored=disk.state,
            commit=disk.snapshot.position,
            tail=len(disk.ops),
            intact=intact and disk.state is not None,
            synced_only=scenario.synced_only,
            random=Random(self.world.random.random()),
            timing=scenario.timing,
            tied=tied(disk.ops, 1),
        )
        begin, disk.synced = disk.synced + 1, len(disk.ops)  # opening a log syncs it
        self.world.hold(self, begin)
        self.commit = self.replica.state.commit
        self.world.check_prefix(self, self.commit)
        self.state = list(disk.snapshot.state)
        self.state += self.world.positions.to_apply(disk.ops, disk.snapshot.position, self.commit)
        self.world.network.attach(self.endpoint, self)
        self._run(lambda replica: replica.start(self._local(self.world.network.now)))

    def receive(self, datagram: Parcel, source: Endpoint, now: float) -> None:
        self._received = datagram
        spans = tied(datagram.ops, datagram.first)
        self._run(
            lambda replica: replica.receive(
                source[1], datagram.body, datagram.bulk, self._local(now), tied=spans
            )
        )
        self._received = None

    def tick(self, now: float) -> None:
        self._run(lambda replica: replica.tick(self._local(now)))

    def next_timer(self) -> float | None:
        timer = None if self.replica is None else self.replica.next_timer()
        return None if timer is None else (timer - self._offset) / self._rate + 1e-9

    def publish(self, texts: list[str], *parts: list[str]) -> bool:
        """Number operations, and then the parts of the group that they begin, if they are accepted."""
        if not self.accepting or self.parts:
            return False
        if self.replica is not None and self.replica.state.ends_within_group:
            # It was not accepting for a moment, and refused the rest of a group.
            now = self._local(self.world.network.now)
            self.world.happened["left"] += 1
            self._run(lambda replica: replica.leave(now))
            return False
        self.parts = list(parts)
        self._append(texts)
        return True

    def _append(self, texts: list[str]) -> None:
        disk = self.disk
        first = len(disk.ops) + 1
        disk.ops += numbered(disk.ops[-1] if disk.ops else None, texts)
        self.numbered.update(enumerate(disk.ops[first - 1 :], first))
        if not self.world.scenario.synced_only:
            self.world.hold(self, first)
        now, spans = self._local(self.world.network.now), tied(disk.ops[first - 1 :], first)
        if self.parts:
            self._later(0.3, self._append_part)
        self._run(lambda replica: replica.appended(first, len(disk.ops), now, tied=spans))

    def _append_part(self) -> None:
        if self.parts and self.accepting:
            self._append(self.parts.pop(0))
        self.parts = self.parts if self.accepting else []

    def vouch(self) -> None:
        now = self._local(self.world.network.now)
        self._run(lambda replica: replica.vouch(now))
        self.world.network.arm(self.endpoint)

    def end(self, kind: str) -> None:
        """Killed, without power, or emptied."""
        disk, random = self.disk, self.world.random
        self.world.happened[kind] += 1
        if self.replica is not None:
            self.replica = None
            self.parts = []
            self.numbered.clear()
            self._snapshots.clear()
            self.world.network.detach(self.endpoint)
        if kind == "emptied":
            self.disk = Disk(lossless=False)
        elif kind == "without power":
            kept = random.randint(disk.synced, len(disk.ops))
            del disk.ops[kept:]
            disk.lossless = False

    @property
    def accepting(self) -> bool:
        return self.replica is not None and self.replica.accepting(self._local(self.world.network.now))

    @property
    def voting(self) -> bool:
        """Whether this node has lost nothing that it has not recovered."""
        if self.replica is not None:
            return self.replica.state.voter
        trusted = self.disk.lossless or self.world.scenario.synced_only
        return self.disk.state is not None and self.disk.state.voter and trusted

    def _run(self, action: Callable[[Replica], list[Effect]]) -> None:
        if self.replica is None:
            return
        world = self.world
        try:
            for effect in action(self.replica):
                if world.suffering and world.random.random() < world.scenario.ends_within:
                    raise EndedError
                world.happened[type(effect).__name__] += 1
                self._do(effect)
        except EndedError:
            world.end(self)

    def _do(self, effect: Effect) -> None:
        world, disk = self.world, self.disk
        match effect:
            case Send(to, body, bulk):
                self._send(to, body, bulk)
            case Broadcast(body):
                ops: tuple[Op, ...] = ()
                if isinstance(body, Prepare):
                    ops = tuple(disk.ops[body.first - 1 : body.last])
                for node in world.nodes:
                    if node is not self:
                        self._send(node.id, body, b"", ops, getattr(body, "first", 0))
            case Append(first, last):
                received = self._received
                assert received is not None
                assert first == len(disk.ops) + 1, "appended with a hole"
                begin = first - received.first
                assert begin >= 0, "appended what has not come"
                disk.ops += received.ops[begin : last - received.first + 1]
                world.happened[f"Append at {edge(disk.ops, first - 1)}"] += 1
                assert len(disk.ops) == last, "appended what has not come"
                if not world.scenario.synced_only:
                    world.hold(self, first)
            case CutBack(last):
                world.happened[f"CutBack at {edge(disk.ops, last)}"] += 1
                disk.ops = world.positions.cut_back(disk.ops, last)
                if len(disk.ops) < self.commit:
                    raise BrokenPromiseError(
                        f"{self.id} cuts back to {len(disk.ops)}, but has committed {self.commit}"
                    )
                disk.synced = min(disk.synced, last)
                disk.cuts += 1
            case Sync(token):
                self._sync(token)
            case Persist(state):
                disk.state = state
                if state.voter:
                    disk.lossless = True
            case Advance(commit):
                self._advance(commit)
            case Serve():
                self._later(0.01, lambda: self._serve(effect))
            case FetchSnapshot(token, source):
                self._later(0.5, lambda: self._fetch(token, world.node(source)))
            case Install(token, last):
                disk.ops, disk.snapshot = self._snapshots.pop(token)
                assert len(disk.ops) == disk.snapshot.position == last, "another snapshot was fetched"
                self.state = list(disk.snapshot.state)
                disk.first = last + 1
                disk.synced = last
                disk.cuts += 1
            case Become(status, _, primary):
                self.parts = []
                if status is Status.NORMAL and primary == self.id:
                    world.check_start(self)
                else:
                    self.numbered.clear()
            case Halt(reason):
                raise BrokenPromiseError(f"{self.id} gives up: {reason}")

    def _advance(self, commit: int) -> None:
        if not self.commit < commit <= len(self.disk.ops):
            raise BrokenPromiseError(f"{self.id} goes from {self.commit} to {commit}")
        if self.disk.ops[commit - 1].is_tied:
            raise BrokenPromiseError(f"{self.id} commits {commit}, which is not the end of its group")
        for position in range(self.commit + 1, commit + 1):
            op = self.disk.ops[position - 1]
            self.world.committed(self, position, op)
            if self.numbered.pop(position, None) is not None:
                self.world.acknowledged[op.text] = position
        self.world.happened[f"Advance at {edge(self.disk.ops, commit)}"] += 1
        applied = max(self.commit, self.disk.snapshot.position)
        self.state += self.world.positions.to_apply(self.disk.ops, applied, commit)
        self.commit = commit

    def _sync(self, token: int) -> None:
        disk, upto = self.disk, len(self.disk.ops)
        cuts = disk.cuts

        def done() -> None:
            if disk.cuts == cuts:
                begin, disk.synced = disk.synced + 1, max(disk.synced, upto)
                self.world.hold(self, begin)
            now = self._local(self.world.network.now)
            self._run(lambda replica: replica.synced(token, upto, now))

        self._later(self.world.scenario.disk, done)

    def _serve(self, effect: Serve) -> None:
        replica, disk = self.replica, self.disk
        if replica is None or replica.state.view != effect.view:
            return
        if effect.first < disk.first:
            body = NewState(effect.view, disk.first, disk.first - 1, effect.commit)
            self._send(effect.to, body, b"")
            return
        last = min(effect.last, effect.first - 1 + self.world.random.randint(1, 8))
        body = NewState(effect.view, effect.first, last, effect.commit)
        ops = self.world.positions.served(disk.ops, effect.first, last)
        self._send(effect.to, body, b"", ops, effect.first)

    def _fetch(self, token: int, source: Node) -> None:
        position = None
        if source.replica is not None and (source.endpoint, self.endpoint) not in self.world.network.cut:
            position = self.world.random.randint(source.disk.first - 1, source.commit)
            position = whole(source.disk.ops, position)
            self._snapshots[token] = source.disk.ops[:position], source.snapshot(position)
        now = self._local(self.world.network.now)
        self._run(lambda replica: replica.fetched(token, position, now))

    def snapshot(self, position: int) -> Snapshot:
        """The state as it was at a position."""
        self.world.happened[f"snapshot at {edge(self.disk.ops, position)}"] += 1
        return Snapshot(position, tuple(each for each in self.state if each.position <= position))

    def _send(
        self, to: int, body: Replication, bulk: bytes, ops: tuple[Op, ...] = (), first: int = 0
    ) -> None:
        world, network = self.world, self.world.network
        world.happened[type(body).__name__] += 1
        parcel, to_endpoint = Parcel(body, bulk, ops, first), ("node", to)
        crucial = world.suffering and isinstance(body, DoViewChange | StartView)
        if crucial and world.random.random() < world.scenario.held:
            late = network.now + world.random.uniform(0, 10) * world.scenario.timing.patience
            network.at(late, lambda: network.send(parcel, self.endpoint, to_endpoint))
        else:
            network.send(parcel, self.endpoint, to_endpoint)
        if crucial and isinstance(body, DoViewChange) and world.random.random() < world.scenario.ambushes:
            raise EndedError

    def _later(self, most: float, action: Callable[[], None]) -> None:
        """Something that takes time, unless the node ends meanwhile."""
        life, network = self._life, self.world.network

        def act() -> None:
            if self._life == life and self.replica is not None:
                action()
                network.arm(self.endpoint)

        network.at(network.now + self.world.random.uniform(0, most), act)

    def _local(self, now: float) -> float:
        return now * self._rate + self._offset


class World:
    """One seed's cluster."""

    def __init__(
        self, seed: int, rules: type[Replica], *, positions: Positions = BY_POSITION, **chosen: Any
    ) -> None:
        self.random = random = Random(seed)
        self.rules = rules
        self.positions = positions
        self.scenario = scenario = replace(Scenario.of(random), **chosen)
        self.network = Network(Random(random.random()), scenario.worst)
        self.happened: Counter[str] = Counter()
        self.suffering = True
        self.chosen: dict[int, Op] = {}
        """What was committed at each position, as the first node to commit it had it."""
        self._chosen_in: dict[int, int] = {}
        """In which view it was, at the latest."""
        self.acknowledged: dict[str, int] = {}
        self._holders: defaultdict[tuple[int, Op], set[int]] = defaultdict(set)
        self._published = 0
        self.nodes = [Node(self, 10 * index + 7) for index in range(scenario.size)]
        ids = tuple(node.id for node in self.nodes)
        for node in self.nodes:
            if scenario.founded:
                node.disk.state = DurableState(voter=True, nodes=ids, history=History([(0, 1)]))
            self.network.at(
                random.uniform(0, 0 if scenario.founded else 3), lambda node=node: self._start(node)
            )
        for _ in range(scenario.publishes):
            self.network.at(self._moment(), self._publish)
        for _ in range(scenario.ends):
            self.network.at(self._moment(), lambda: self.end(random.choice(self.nodes)))
        for _ in range(scenario.partitions):
            self.network.at(self._moment(), self._partition)
        for _ in range(scenario.trims):
            self.network.at(self._moment(), self._trim)

    def run(self) -> None:
        self.network.run(lambda: False, self.scenario.seconds)
        self.suffering = False
        self.network.calm()
        for node in self.nodes:
            self._start(node)
        self.network.at(self.scenario.seconds + 1, self._publish_at_last)
        if not self.network.run(self._settled, self.scenario.seconds + SETTLE_SECONDS):
            raise BrokenPromiseError(f"no agreement: {self._where()}")
        self.check_numbers()
        for node in self.nodes:
            self.check_prefix(node, len(self.chosen))
            self.check_state(node)
        for text, position in self.acknowledged.items():
            if position not in self.chosen or self.chosen[position].text != text:
                raise BrokenPromiseError(
                    f"{text} was acknowledged at {position}, where there is {self.chosen.get(position)}"
                )

    def goes_on(self, within: float) -> bool:
        """Whether a message that is published from now on is acknowledged in time."""
        until, before = self.network.now + within, len(self.acknowledged)
        for step in range(int(within / 0.1)):
            self.network.at(self.network.now + 0.1 * step, self._publish)
        return self.network.run(lambda: len(self.acknowledged) > before, until)

    def node(self, number: int) -> Node:
        return next(node for node in self.nodes if node.id == number)

    def hold(self, node: Node, first: int) -> None:
        """A node has what counts as appended, from ``first`` on."""
        upto = node.disk.synced if self.scenario.synced_only else len(node.disk.ops)
        for position in range(first, upto + 1):
            self._holders[position, node.disk.ops[position - 1]].add(node.id)

    def committed(self, node: Node, position: int, op: Op) -> None:
        """A node holds an operation to be committed."""
        if position in self.chosen:
            if self.chosen[position] != op:
                raise BrokenPromiseError(f"{node.id} has {op} as {position}, others {self.chosen[position]}")
            return
        holders = self._holders[position, op]
        if len(holders) <= self.scenario.size // 2:
            raise BrokenPromiseError(f"{node.id} commits {position}, which only {holders} had")
        self.chosen[position] = op
        self._chosen_in[position] = node.replica.state.view if node.replica is not None else 0

    def check_start(self, node: Node) -> None:
        """A new primary has everything that was committed in views before its own.

        One whose view starts late, after others have gone on, does no harm: nobody follows it.
        """
        assert node.replica is not None
        for position, op in self.chosen.items():
            earlier = self._chosen_in.get(position, 0) < node.replica.state.view
            if earlier and node.disk.ops[position - 1 : position] != [op]:
                raise BrokenPromiseError(f"{node.id} starts a view without {position}")

    def check_prefix(self, node: Node, upto: int) -> None:
        for position in range(1, upto + 1):
            if node.disk.ops[position - 1] != self.chosen[position]:
                raise BrokenPromiseError(f"{node.id} has another {position} than was committed")

    def check_numbers(self) -> None:
        """Messages have the numbers 1, 2, 3, …, and entries stand after the message before them; groups are whole."""
        newest = 0
        following = ""
        for position, op in sorted(self.chosen.items()):
            if following and not op.text.removesuffix(TIED).endswith(following):
                raise BrokenPromiseError(f"{op} is at {position}, where {following} is to go on")
            following = ""
            if op.is_tied:
                following = op.text.removesuffix(TIED).rpartition(" ")[2]
                self.happened["tied"] += 1
            newest += not op.is_entry
            if op.seq != newest:
                raise BrokenPromiseError(f"{op} is at {position}, where the newest message is {newest}")
            self.happened["entry" if op.is_entry else "message"] += 1

    def check_state(self, node: Node) -> None:
        """Each entry has changed a node's state once, in order, and nothing else has."""
        entries = [Applied(position, op) for position, op in sorted(self.chosen.items()) if op.is_entry]
        for place, (applied, entry) in enumerate(zip_longest(node.state, entries)):
            if applied != entry:
                again = "again" if applied in entries[:place] else "instead"
                raise BrokenPromiseError(f"{node.id} applied {applied} {again}: {entry} is next")

    def end(self, node: Node) -> None:
        """End a node in some way that the promise allows for, and start it again after a while."""
        if not self.suffering:
            return
        kinds = ["killed"]
        others_down = sum(not other.voting for other in self.nodes if other is not node)
        losable = others_down < self.scenario.size - self.scenario.size // 2 - 1
        if self.scenario.synced_only or losable:
            kinds += ["without power", "without power"]
        if losable:
            kinds.append("emptied")
        node.end(self.random.choice(kinds))
        self.network.at(
            self.network.now + self.random.expovariate(1 / self.scenario.pause), lambda: self._start(node)
        )

    def _start(self, node: Node) -> None:
        if node.replica is None:
            node.start()

    def _moment(self) -> float:
        return self.random.uniform(0, self.scenario.seconds)

    def _publish(self) -> None:
        """Offer operations of its own to each node: more than one may think that it is the primary."""
        for node in self.nodes:
            texts = []
            for _ in range(self.random.randint(1, 3)):
                is_entry = self.random.random() < self.scenario.entries
                texts.append(f"{ENTRY if is_entry else 'message '}{self._published}")
                self._published += 1
            grouped = self.scenario.groups and self.random.random() < self.scenario.groups
            parts = self._group() if grouped else [texts]
            self.happened["accepted" if node.publish(*parts) else "not accepted"] += 1

    def _group(self) -> list[list[str]]:
        """A group of operations, in parts."""
        name, count = f"group-{self._published}", self.random.randint(2, 12)
        self._published += 1
        texts = [f"{ENTRY if place % 4 == 3 else 'message '}{place} {name}" for place in range(count)]
        texts[:-1] = [text + TIED for text in texts[:-1]]
        each = self.random.randint(1, count)
        return [texts[begin : begin + each] for begin in range(0, count, each)]

    def _publish_at_last(self) -> None:
        """Publish one more message, again until it is acknowledged."""
        if not any(message.startswith("last") for message in self.acknowledged):
            any(node.publish([f"last from {node.id} at {self.network.now}"]) for node in self.nodes)
            self.network.at(self.network.now + 1, self._publish_at_last)

    def _settled(self) -> bool:
        replicas = [node.replica for node in self.nodes if node.replica is not None]
        return (
            len(replicas) == len(self.nodes)
            and any(message.startswith("last") for message in self.acknowledged)
            and len({(replica.state.view, replica.state.commit, replica.state.tail) for replica in replicas})
            == 1
            and all(replica.state.status is Status.NORMAL for replica in replicas)
        )

    def _partition(self) -> None:
        """Cut some ways for a while; every shape comes about, also one-way."""
        random, ends = self.random, [node.endpoint for node in self.nodes]
        ways = [(a, b) for a in ends for b in ends if a != b]
        one = random.choice(ends)
        shapes: list[Callable[[], Iterator[tuple[Endpoint, Endpoint]]]] = [
            lambda: (way for way in ways if one in way),
            lambda: (way for way in ways if way[0] == one),
            lambda: (way for way in ways if way[1] == one),
            lambda: (way for way in ways if random.random() < 0.4),
            lambda: (way for way in ways if (way[0] in group) != (way[1] in group)),
            lambda: (way for way in ways if one not in way and (way[0] in group) != (way[1] in group)),
        ]
        group = set(random.sample(ends, random.randint(0, len(ends))))
        cut = set(random.choice(shapes)())
        self.network.cut |= cut
        most = self.scenario.seconds / 3
        self.network.at(
            self.network.now + random.uniform(0, most), lambda: self.network.cut.difference_update(cut)
        )

    def _trim(self) -> None:
        node = self.random.choice(self.nodes)
        if node.replica is not None:
            disk = node.disk
            disk.first = max(disk.first, whole(disk.ops, self.random.randint(0, node.commit)) + 1)
            # Nothing is trimmed before it is in a snapshot, and a snapshot syncs the log that it is of.
            disk.snapshot = node.snapshot(whole(disk.ops, self.random.randint(disk.first - 1, node.commit)))
            begin, disk.synced = disk.synced + 1, max(disk.synced, disk.snapshot.position)
            self.hold(node, begin)

    def _where(self) -> str:
        return "; ".join(
            f"{node.id} is down"
            if node.replica is None
            else f"{node.id} {(at := node.replica.state).status.value} in {at.view} at {at.commit}/{at.tail}"
            for node in self.nodes
        )


def simulate(
    seed: int, rules: type[Replica] = Replica, *, positions: Positions = BY_POSITION, **chosen: Any
) -> World:
    """Let a seed's world run, with what is ``chosen`` in place of what the seed chooses."""
    world = World(seed, rules, positions=positions, **chosen)
    try:
        world.run()
    except (AssertionError, HeadraceError) as broken:
        raise BrokenPromiseError(f"seed {seed} at {world.network.now:.3f} s: {broken}") from broken
    return world
